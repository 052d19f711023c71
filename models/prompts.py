"""Which prompts and which similarity an embedding model wants: given, its own, or those of its family's model card."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from models.views import QUERY_PREFIX, TASK_INSTRUCTION

QUERY_NAMES = ("query", "retrieval.query", "search_query", "s2p_query", "web_search_query")
DOCUMENT_NAMES = ("document", "passage", "corpus", "retrieval.passage", "search_document")
"""Names under which models of the hub keep their prompts; the first that is not empty counts."""
OUR_PROMPTS = {"skill": QUERY_PREFIX, "none": ""}
"""Prompts that every model has by name: the instruction of E.1, which the paper's baselines get as well, and none at all."""
SIMILARITIES = ("cosine", "dot")


@dataclass(frozen=True)
class Family:
    """Models whose card names prompts that their files may lack; ``pattern`` is searched in the lower-cased id or folder."""

    name: str
    pattern: str
    query: str = ""
    document: str = ""
    similarity: str = "cosine"


# The first that matches counts. Where a card leaves the task of an instruction to the user, it is ours.
FAMILIES = (
    Family("E5 instruct", r"\be5-[\w.-]*instruct", f"Instruct: {TASK_INSTRUCTION}\nQuery: "),
    Family("E5", r"\be5-(small|base|large)", "query: ", "passage: "),
    Family("BGE M3", r"\bbge-m3\b"),
    Family("BGE English", r"\bbge-(small|base|large)-en", "Represent this sentence for searching relevant passages: "),
    Family("BGE Chinese", r"\bbge-(small|base|large)-zh", "为这个句子生成表示以用于检索相关文章："),
    Family("GTE-Qwen", r"\bgte-qwen[\w.-]*instruct", f"Instruct: {TASK_INSTRUCTION}\nQuery: "),
    Family("Qwen3-Embedding", r"\bqwen3-embedding\b", QUERY_PREFIX),
    Family("dot product", r"-dot-v\d\b", similarity="dot"),
)


@dataclass(frozen=True)
class Prompts:
    """What stands before requests and documents, how embeddings are compared, and who said so of each.

    Sources: ``given``, ``model`` (its own files), the name of a family, or ``default`` (no prompt; cosine).
    """

    query: str
    document: str
    similarity: str
    query_source: str
    document_source: str
    similarity_source: str

    def to_dict(self) -> dict[str, str]:
        """Plain values, for a result file."""
        return asdict(self)


def family_of(name: str) -> Family | None:
    """The family of a hub id or of the last part of a folder's path, if we know it."""
    last = name.rstrip("/").lower().rsplit("/", 1)[-1]
    return next((family for family in FAMILIES if re.search(family.pattern, last)), None)


def resolve_prompts(
    name: str,
    own: Mapping[str, str | None],
    own_similarity: str | None,
    *,
    query: str | None = None,
    document: str | None = None,
    similarity: str | None = None,
) -> Prompts:
    """Given values first, then the model's own, then its family's, then none.

    A family speaks only where the model's files hold no prompt at all: a model that prompts requests alone means it so.

    Args:
        name: hub id or folder.
        own: the model's prompts by name.
        own_similarity: as its files say; None where they do not.
        query, document: a prompt as text, or the name of one of the model's or of :data:`OUR_PROMPTS`.
        similarity: ``cosine`` or ``dot``.

    Raises:
        ValueError: a name that the model does not have, or another similarity.
    """
    family = None if any(own.values()) else family_of(name)
    similarities = ((similarity, "given"), (own_similarity, "model"), (*_of(family_of(name), "similarity"),))
    chosen, said = next(((value, who) for value, who in similarities if value), ("cosine", "default"))
    if chosen not in SIMILARITIES:
        raise ValueError(f"{name}: similarity is {chosen!r} ({said}); expected one of {', '.join(SIMILARITIES)}")
    asked, asked_by = _prompt("query", query, own, QUERY_NAMES, family, name)
    told, told_by = _prompt("document", document, own, DOCUMENT_NAMES, family, name)
    return Prompts(asked, told, chosen, asked_by, told_by, said)


def _prompt(
    kind: str,
    given: str | None,
    own: Mapping[str, str | None],
    names: tuple[str, ...],
    family: Family | None,
    model: str,
) -> tuple[str, str]:
    if given is not None:
        return _named(kind, given, own, model), "given"
    text = next((found for key in names if (found := own.get(key))), None)
    if text is not None:
        return text, "model"
    text, source = _of(family, kind)
    return (text or "", source) if text is not None else ("", "model" if any(own.values()) else "default")


def _of(family: Family | None, key: str) -> tuple[Any, str]:
    return (None, "") if family is None else (getattr(family, key), family.name)


def _named(kind: str, given: str, own: Mapping[str, str | None], model: str) -> str:
    known = {**OUR_PROMPTS, **own}
    if given in known:
        return known[given] or ""
    if re.fullmatch(r"[\w.-]+", given):  # one word without a mark at its end is a name, and nobody's prompt
        raise ValueError(
            f"{model} has no {kind} prompt named {given!r}; expected one of {', '.join(known)}, or the prompt's text, such as "
            "'query: '"
        )
    return given
