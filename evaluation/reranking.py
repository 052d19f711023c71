"""A retriever with a reranker after it, from a model's name on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from data_pipeline.corpus import SkillCorpus
from retrieval.reranked import RERANK_DEPTH, RerankedRetriever
from retrieval.retriever import Retriever

if TYPE_CHECKING:
    from models.reranker import Reranker


def rerank(
    first: Retriever,
    reranker: str | Path,
    corpus: SkillCorpus,
    depth: int = RERANK_DEPTH,
    *,
    dtype: str | None = None,
    progress: bool = False,
) -> RerankedRetriever:
    """Have a reranker reorder the first ``depth`` results of a retriever over a corpus.

    Args:
        reranker: a run's folder or its ``export/``, another folder of a causal LM, or a hub id such as
            Qwen/Qwen3-Reranker-0.6B.
        dtype: precision of the transformer, ``float32`` (default) or ``bfloat16``.

    Raises:
        ValueError: no such folder, a model that has no yes or no token, or a depth below 1.
    """
    scorer = load_reranker(reranker, dtype=dtype or "float32")

    def document_of(skill_id: str) -> str:
        skill = corpus.get(skill_id)
        return scorer.form.document(skill.name, skill.description, skill.body)

    return RerankedRetriever(first, scorer, document_of, depth, progress)


def load_reranker(reranker: str | Path, dtype: str = "float32", device: str | None = None) -> Reranker:
    """A reranker by a run's folder, its ``export/``, another folder or a hub id; on the GPU where there is one and no device
    is given. Raises as :func:`rerank`."""
    import torch

    from models.reranker import Reranker

    folder = Path(reranker).expanduser()
    path = folder / "export" if (folder / "export" / "config.json").is_file() else reranker
    return Reranker.load(path, dtype=dtype, device=device or ("cuda" if torch.cuda.is_available() else "cpu"))
