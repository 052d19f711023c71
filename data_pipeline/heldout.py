"""The tenth of the training records that is never trained on: it chooses the fusion weight and in-training recall."""

from __future__ import annotations

import hashlib


def is_heldout(skill_id: str, fraction: float = 0.1) -> bool:
    """Whether records whose positive is ``skill_id`` are held out, by a hash that every machine and run agrees on.

    The split is by skill, so that no skill is both trained on and measured; about ``fraction`` (0..1) of skills are
    held out, and a larger fraction holds out a superset of a smaller one.
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"heldout fraction = {fraction!r}: expected a number from 0 to 1")
    digest = hashlib.sha256(f"heldout:{skill_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64
