"""Who may ask: bearer tokens, compared in constant time, and the rule that without one only this machine may."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Sequence
from pathlib import Path

MIN_TOKEN_CHARS = 16


def token_digest(token: str) -> str:
    """SHA-256 of a token, hex: what the server keeps of it.

    Raises:
        ValueError: a token that is short, or holds what a header cannot. The token itself is never part of a message.
    """
    token = token.strip()
    if len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(
            f"a token of {len(token)} characters is refused; expected at least {MIN_TOKEN_CHARS} printable ASCII "
            "characters without spaces, such as `openssl rand -hex 32` prints"
        )
    return hashlib.sha256(token.encode("ascii")).hexdigest()


def read_token_file(path: str | Path) -> list[str]:
    """The tokens of a file, one a line; empty lines and lines that begin with # are skipped.

    Raises:
        ValueError: the file cannot be read, or holds no token.
    """
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"token file {path}: {error}") from error
    tokens = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not tokens:
        raise ValueError(f"token file {path} holds no token; expected one a line")
    return tokens


def matching_token(authorization: str | None, digests: Sequence[str]) -> str | None:
    """The digest that an ``Authorization`` header's bearer token has among the accepted ones, or None.

    Every digest is compared, each in constant time: how long it takes says nothing about the tokens.
    """
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer":
        return None
    given = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).hexdigest()
    found = None
    for digest in digests:
        if hmac.compare_digest(given, digest):
            found = digest
    return found


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine alone: ``localhost``, 127.0.0.0/8 or ::1."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def host_name(header: str) -> str:
    """The name in a ``Host`` header, without its port."""
    if header.startswith("["):
        return header.partition("]")[0].lstrip("[")
    return header.rpartition(":")[0] if header.count(":") == 1 else header


def check_listen(host: str, digests: Sequence[str]) -> None:
    """Refuse to listen beyond loopback without a token.

    Raises:
        ValueError: names the host and the two ways out.
    """
    if not digests and not is_loopback(host):
        raise ValueError(
            f"--host {host} is reachable from other machines and there is no token; expected --token-file FILE (or "
            "SKILLREASON_TOKEN in the environment), or --host 127.0.0.1"
        )
