"""Tokens, and that a server without one answers its own machine alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.auth import check_listen, host_name, is_loopback, matching_token, read_token_file, token_digest
from serving.settings import accepted_tokens

TOKEN = "a-token-that-is-long-enough"
OTHER = "another-token-of-the-server"
FAR = {"client": ("203.0.113.9", 40000), "base_url": "http://search.example"}
QUERY = {"query": "x"}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    "headers",
    [{}, bearer("wrong"), bearer(TOKEN + "x"), bearer(TOKEN[:-1]), {"authorization": f"Basic {TOKEN}"}, bearer("")],
)
def test_without_the_token_everything_but_health_and_documents_is_refused(serve_with, headers: dict) -> None:
    client = serve_with(token_digests=(token_digest(TOKEN),), client=FAR)
    for method, path in [
        ("POST", "/search"), ("POST", "/search/batch"), ("POST", "/reload"), ("GET", "/indexes"), ("GET", "/metrics"),
        ("GET", "/skills/a/b"), ("GET", "/not-there"), ("GET", "/healthz/"), ("DELETE", "/search"),
        ("GET", "http://search.example//search"),
    ]:  # fmt: skip
        response = client.request(method, path, headers=headers, follow_redirects=False)
        assert response.status_code == 401, path
        assert response.headers["www-authenticate"].startswith("Bearer")
        assert TOKEN not in response.text
    for path in ("/healthz", "/docs", "/openapi.json"):
        assert client.get(path, headers=headers).status_code == 200


def test_every_token_of_the_server_is_accepted_from_anywhere(serve_with) -> None:
    client = serve_with(token_digests=(token_digest(TOKEN), token_digest(OTHER)), client=FAR)
    for token in (TOKEN, OTHER):
        assert client.post("/search", json=QUERY, headers=bearer(token)).status_code == 200


def test_clients_with_a_token_share_its_rate_wherever_they_ask_from(serve_with) -> None:
    client = serve_with(token_digests=(token_digest(TOKEN), token_digest(OTHER)), rate=0.01, burst=1, client=FAR)
    assert client.post("/search", json=QUERY, headers=bearer(TOKEN)).status_code == 200
    assert client.post("/search", json=QUERY, headers=bearer(TOKEN)).status_code == 429
    assert client.post("/search", json=QUERY, headers=bearer(OTHER)).status_code == 200


def test_guesses_are_limited_by_address(serve_with) -> None:
    client = serve_with(token_digests=(token_digest(TOKEN),), rate=0.01, burst=2, client=FAR)
    guesses = [client.post("/search", json=QUERY, headers=bearer(f"guess-{i}")).status_code for i in range(3)]
    assert guesses == [401, 401, 429]


@pytest.mark.parametrize(
    "client",
    [
        {"client": ("203.0.113.9", 1), "base_url": "http://localhost"},
        {"client": ("10.0.0.1", 1), "base_url": "http://127.0.0.1:8000"},
        {"client": ("127.0.0.1", 1), "base_url": "http://rebound.example"},
    ],
    ids=["another machine", "a private network", "a page elsewhere that rebound its name"],
)
def test_without_a_token_other_machines_are_refused(serve_with, client: dict) -> None:
    response = serve_with(client=client).post("/search", json=QUERY)
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "not_local"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org", "127.0.0.1.example.org"])
def test_listening_beyond_this_machine_needs_a_token(host: str) -> None:
    with pytest.raises(ValueError, match="--token-file"):
        check_listen(host, ())
    check_listen(host, (token_digest(TOKEN),))


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.", "127.0.0.1", "127.9.9.9", "::1", "[::1]", "::ffff:127.0.0.1"]
)
def test_loopback_names_and_addresses(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "header, name", [("localhost:80", "localhost"), ("[::1]:80", "::1"), ("::1", "::1"), ("a.b", "a.b"), ("", "")]
)
def test_the_name_in_a_host_header(header: str, name: str) -> None:
    assert host_name(header) == name


def test_a_token_file_has_one_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# operators\n{TOKEN}\n\n  {OTHER}  \n{TOKEN}\n")
    assert read_token_file(file) == [TOKEN, OTHER, TOKEN]
    monkeypatch.setenv("SKILLREASON_TOKEN", "from-the-environment-1")
    assert accepted_tokens(file) == tuple(map(token_digest, (TOKEN, OTHER, "from-the-environment-1")))


@pytest.mark.parametrize(
    "token", ["short", "has a space in the middle of it", "naïve-token-with-accents", "tab\tin-the-middle-of-it"]
)
def test_a_token_that_is_refused_is_not_repeated(token: str) -> None:
    with pytest.raises(ValueError, match="at least 16") as caught:
        token_digest(token)
    assert token not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"\xff\xfe\x00"])
def test_a_token_file_without_a_token_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "tokens"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=str(file)):
        read_token_file(file)


def test_odd_bytes_in_the_header_are_a_wrong_token() -> None:
    digests = (token_digest(TOKEN),)
    assert matching_token("Bearer \udcff\x00é", digests) is None
    assert matching_token(None, digests) is None
    assert matching_token(f"bearer {TOKEN}", digests) == digests[0]
