"""Whether test requests leak into the training data (D.2, Table 14): exact matches, and character n-gram neighbours."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from data_pipeline.records import read_bench, read_both_stages
from data_pipeline.rows import write_rows
from models.folders import atomic_write_text, write_json

NEAR_DUPLICATE = 0.85
REVIEW = 0.70
NGRAMS = (3, 5)
_BLOCK = 256


@dataclass(frozen=True)
class SimilarPair:
    """A test request and a training request for somebody to look at."""

    query_id: str
    query: str
    record_id: str
    training_query: str
    similarity: float


@dataclass(frozen=True)
class IsolationReport:
    """One row of Table 14, and the pairs at or above the review threshold, most similar first.

    ``exact`` and ``near`` count test requests, ``max_similarity`` (0..1) is over requests that are no exact match.
    """

    benchmark: str
    test_queries: int
    training_queries: int
    exact: int
    near: int
    review: int
    max_similarity: float
    pairs: list[SimilarPair]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def normalize(text: str) -> str:
    """NFKC, case folding, punctuation removed, white space folded (D.2)."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    # NFKC once more: folding can leave a composed character decomposed
    folded = unicodedata.normalize("NFKC", folded)
    bare = "".join(" " if unicodedata.category(c)[0] in "PS" else c for c in folded)
    return re.sub(r"\s+", " ", bare).strip()


def audit_isolation(
    benchmark: str,
    test: Sequence[tuple[str, str]],
    training: Sequence[tuple[str, str]],
    *,
    near: float = NEAR_DUPLICATE,
    review: float = REVIEW,
    progress: bool = False,
) -> IsolationReport:
    """Compare every test request with every training request.

    Similarity is the cosine of TF-IDF vectors of character 3- to 5-grams of the normalized texts, fitted on both sets together.

    Args:
        test, training: (id, text) pairs.

    Raises:
        ValueError: a set is empty, or ``review`` is above ``near``.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    if not test or not training:
        raise ValueError(f"{benchmark}: {len(test)} test and {len(training)} training requests; expected some of both")
    if review > near:
        raise ValueError(f"isolation.review is {review}; expected at most isolation.near, {near}")
    ours = [normalize(text) for _, text in training]
    theirs = [normalize(text) for _, text in test]
    known: dict[str, int] = {}
    for row, text in enumerate(ours):
        known.setdefault(text, row)
    vectorizer = TfidfVectorizer(analyzer="char", ngram_range=NGRAMS, lowercase=False, dtype=np.float32)  # type: ignore[arg-type]
    vectorizer.fit([*ours, *theirs])
    matrices: Any = (vectorizer.transform(ours), vectorizer.transform(theirs))  # sparse, [n, grams]
    columns, rows = matrices[0].T.tocsr(), matrices[1]
    pairs: list[SimilarPair] = []
    highest, exact, close = 0.0, 0, 0
    for start in tqdm(range(0, len(test), _BLOCK), desc=f"isolation of {benchmark}", disable=not progress):
        similarities = (rows[start : start + _BLOCK] @ columns).tocsr()
        for offset in range(similarities.shape[0]):
            number = start + offset
            begin, end = similarities.indptr[offset], similarities.indptr[offset + 1]
            values, where = similarities.data[begin:end], similarities.indices[begin:end]
            best = min(float(values.max()), 1.0) if len(values) else 0.0
            match = known.get(theirs[number])
            if match is not None:
                exact += 1
                best = 1.0
            else:
                highest = max(highest, best)
            close += best >= near
            over = {int(where[i]): min(float(values[i]), 1.0) for i in np.flatnonzero(values >= review)}
            if match is not None:
                over[match] = 1.0
            pairs += [
                SimilarPair(*test[number], *training[row], similarity=round(value, 4)) for row, value in over.items()
            ]
    pairs.sort(key=lambda pair: (-pair.similarity, pair.query_id, pair.record_id))
    return IsolationReport(benchmark, len(test), len(training), exact, close, len(pairs), round(highest, 4), pairs)


def isolate_records(
    records: str | Path,
    benchmarks: Mapping[str, str],
    out: str | Path,
    *,
    near: float = NEAR_DUPLICATE,
    review: float = REVIEW,
    progress: bool = False,
) -> list[IsolationReport]:
    """Compare a records folder's requests of both stages with every benchmark's; write ``isolation.json``, the table as
    ``isolation.md``, and ``review.jsonl``, the pairs for somebody to look at.

    Args:
        benchmarks: name -> file of test requests.
    """
    out = Path(out)
    stage1, stage2 = read_both_stages(records)
    training = [(r.record_id, r.query) for r in stage1] + [(f"{r.record_id}/implicit", r.query) for r in stage2]
    reports = []
    for name, file in benchmarks.items():
        test = [(q.query_id, q.query) for q in read_bench(file)]
        reports.append(audit_isolation(name, test, training, near=near, review=review, progress=progress))
    write_json(out / "isolation.json", [report.to_dict() for report in reports])
    atomic_write_text(out / "isolation.md", isolation_table(reports, near))
    write_rows(out / "review.jsonl", ({"benchmark": r.benchmark, **asdict(p)} for r in reports for p in r.pairs))
    return reports


def isolation_table(reports: Sequence[IsolationReport], near: float = NEAR_DUPLICATE) -> str:
    """Table 14 in Markdown; ``near`` is the threshold that the reports were made with."""
    lines = [f"| Benchmark | Test queries | Exact matches | ≥ {near:.2f} | Max. similarity |", "|---|---|---|---|---|"]
    lines += [
        f"| {r.benchmark} | {r.test_queries:,} | {r.exact} | {r.near} | {r.max_similarity:.4f} |" for r in reports
    ]
    return "\n".join(lines) + "\n"
