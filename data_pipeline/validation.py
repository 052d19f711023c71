"""Structural validation of requests and mined records (D.1): what is wrong with a row, never a repair."""

from __future__ import annotations

from collections.abc import Mapping

from data_pipeline.corpus import SkillCorpus
from data_pipeline.records import Stage1Record
from models.views import format_of_document

MIN_QUERY_WORDS = 8
MAX_QUERY_WORDS = 110
MAX_QUERY_CHARS = 700


def query_problem(query: str) -> str | None:
    """A reason by name where a request breaks D.1's bounds (8-110 white-space words, at most 700 characters)."""
    words = len(query.split())
    if words == 0:
        return "empty_query"
    if words < MIN_QUERY_WORDS:
        return "short_query"
    if words > MAX_QUERY_WORDS or len(query) > MAX_QUERY_CHARS:
        return "overlong_query"
    return None


def record_problem(
    record: Stage1Record, corpus: SkillCorpus, exclusions: Mapping[str, frozenset[str]], n_negatives: int
) -> str | None:
    """The first reason for which a Stage-I or Stage-II record is rejected, or None.

    Checked: the number of ids and texts, distinct ids, the positive not among them, every id in the corpus with a
    non-empty document, every text the canonical serialization of its id, no edge of the exclusion graph left.
    """
    ids = record.negative_ids
    if len(ids) != n_negatives or len(record.negatives) != n_negatives:
        return "wrong_negative_count"
    if len(set(ids)) != len(ids):
        return "duplicate_negative"
    if record.positive_id in ids:
        return "positive_among_negatives"
    if any(skill_id not in corpus for skill_id in (record.positive_id, *ids)):
        return "unknown_skill"
    texts = (record.positive, *record.negatives)
    document_format = format_of_document(record.positive)
    if not all(text.strip() for text in texts):
        return "empty_document"
    pairs = zip((record.positive_id, *ids), texts, strict=True)
    if any(corpus.document(skill_id, document_format) != text for skill_id, text in pairs):
        return "id_text_mismatch"
    if not exclusions.get(record.positive_id, frozenset()).isdisjoint(ids):
        return "excluded_negative"
    return None
