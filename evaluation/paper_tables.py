"""The figures of the paper's Tables 2, 5, 7, 8, 10 and 11, by row, for tables that show them beside ours."""

from __future__ import annotations

import re
from collections.abc import Mapping

Figures = Mapping[str, tuple[float | None, ...]]

TABLE2: Figures = {
    # R@1, R@5, R@10, N@10 on SkillReason-Bench, SRA-Bench, SkillRet
    "BM25": (21.29, 32.66, 37.38, 28.86, 36.69, 58.47, 67.35, 53.92, 32.83, 51.09, 57.68, 49.78),
    "Qwen3-Embedding-0.6B": (29.90, 46.53, 53.69, 41.00, 41.34, 57.08, 63.76, 54.46, 40.95, 58.27, 63.74, 57.18),
    "Qwen3-Embedding-4B": (34.67, 54.71, 62.59, 47.77, 46.52, 66.79, 73.25, 62.59, 36.33, 55.05, 61.43, 53.29),
    "harrier-oss-v1-0.6B": (36.55, 52.91, 59.43, 47.28, 48.48, 68.52, 76.22, 64.88, 47.22, 67.09, 73.66, 66.82),
    "jina-embeddings-v5-text-small": (
        36.02, 52.70, 59.56, 47.18, 43.02, 64.47, 72.22, 60.08, 42.77, 59.76, 65.74, 59.74,
    ),
    "Qwen3-Embedding-8B": (37.76, 58.89, 65.97, 51.34, 50.18, 74.54, 82.11, 69.72, 42.35, 60.78, 66.47, 59.66),
    "Octen-Embedding-8B": (50.47, 70.18, 76.32, 63.05, 54.09, 75.72, 83.39, 71.27, 48.40, 65.67, 71.42, 65.91),
    "KaLM-Gemma3-12B": (37.22, 54.55, 60.96, 48.59, 50.00, 73.41, 81.63, 68.95, 35.32, 55.34, 62.83, 53.39),
    "SkillRouter-Embedding-0.6B": (28.00, 43.12, 49.85, 38.18, 32.08, 52.95, 61.24, 47.84, 51.74, 70.88, 75.90, 70.69),
    "SkillRet-Embedding-0.6B": (26.95, 40.79, 47.12, 36.30, 41.81, 62.20, 68.82, 57.77, 44.64, 68.83, 75.75, 66.81),
    "SkillReason-0.6B": (45.16, 62.43, 69.00, 56.49, 52.81, 79.26, 88.18, 73.58, 52.45, 70.87, 76.70, 71.03),
    "SkillReason-4B": (53.58, 72.70, 78.84, 65.93, 60.90, 85.07, 91.56, 80.28, 52.03, 71.94, 77.93, 71.59),
}  # fmt: skip

TABLE5_MODELS = ("Qwen3-4B", "Qwen3-32B", "Qwen3-235B", "Mistral3.1-24B", "Llama-3-70B")
TABLE5: Mapping[str, tuple[float, ...]] = {
    "No skills": (38.81, 50.75, 54.30, 44.17, 42.02),
    "Gold skills": (64.23, 68.84, 70.28, 65.21, 61.42),
    "Qwen3-Emb-0.6B × Qwen3-Rank-0.6B": (58.00, 63.71, 64.64, 58.23, 55.37),
    "Qwen3-Emb-4B × Qwen3-Rank-4B": (59.77, 63.64, 66.32, 60.27, 55.63),
    "SkillRouter-Emb-0.6B × SkillRouter-Rank-0.6B": (58.56, 63.90, 64.73, 59.77, 53.77),
    "SkillReason-Emb-0.6B × SkillReason-Rank-0.6B": (62.28, 67.87, 67.54, 63.03, 58.79),
    "SkillReason-Emb-4B × SkillReason-Rank-4B": (63.84, 69.09, 68.96, 64.47, 59.83),
}

TABLE7: Figures = {
    # original R@1, expanded R@1, difference, the same for R@5
    "BM25": (21.29, 22.90, 1.61, 32.66, 36.15, 3.49),
    "Qwen3-Embedding-0.6B": (29.90, 32.45, 2.55, 46.53, 50.90, 4.37),
    "Qwen3-Embedding-4B": (34.67, 37.19, 2.52, 54.71, 58.81, 4.10),
    "harrier-oss-v1-0.6B": (36.55, 39.13, 2.57, 52.91, 56.64, 3.73),
    "jina-embeddings-v5-text-small": (36.02, 38.80, 2.79, 52.70, 57.01, 4.32),
    "Qwen3-Embedding-8B": (37.76, 40.28, 2.52, 58.89, 63.13, 4.24),
    "Octen-Embedding-8B": (50.47, 54.01, 3.54, 70.18, 74.09, 3.92),
    "KaLM-Gemma3-12B": (37.22, 40.49, 3.27, 54.55, 58.65, 4.10),
    "SkillRouter-Embedding-0.6B": (28.00, 29.36, 1.37, 43.12, 46.07, 2.95),
    "SkillRet-Embedding-0.6B": (26.95, 28.61, 1.66, 40.79, 44.41, 3.62),
    "SkillReason-0.6B": (45.16, 47.87, 2.71, 62.43, 66.80, 4.37),
    "SkillReason-4B": (53.58, 56.23, 2.65, 72.70, 76.54, 3.83),
}

TABLE8: Figures = {
    "BM25": (32.83, 35.03, 2.20, 51.09, 55.29, 4.21),
    "Qwen3-Embedding-0.6B": (40.95, 43.19, 2.24, 58.27, 60.17, 1.90),
    "Qwen3-Embedding-4B": (36.33, 39.28, 2.95, 55.05, 58.44, 3.38),
    "harrier-oss-v1-0.6B": (47.22, 50.13, 2.91, 67.09, 70.78, 3.69),
    "jina-embeddings-v5-text-small": (42.77, 45.02, 2.24, 59.76, 62.73, 2.97),
    "Qwen3-Embedding-8B": (42.35, 45.40, 3.05, 60.78, 63.79, 3.01),
    "Octen-Embedding-8B": (48.40, 50.96, 2.56, 65.67, 68.36, 2.69),
    "KaLM-Gemma3-12B": (35.32, 38.05, 2.73, 55.34, 59.56, 4.23),
    "SkillRouter-Embedding-0.6B": (51.74, 53.76, 2.02, 70.88, 72.92, 2.04),
    "SkillRet-Embedding-0.6B": (44.64, 49.76, 5.12, 68.83, 74.85, 6.02),
    "SkillReason-0.6B": (52.45, 55.15, 2.70, 70.87, 73.36, 2.49),
    "SkillReason-4B": (52.03, 54.99, 2.96, 71.94, 75.26, 3.32),
}

TABLE10: Figures = {
    # easy R@1, R@10, Multi-FC@10, hard R@1, R@10, Multi-FC@10
    "Qwen3-Embedding-0.6B": (32.50, 61.04, 23.53, 30.17, 57.42, 17.65),
    "Qwen3-Embedding-4B": (33.46, 64.15, 31.37, 28.57, 59.97, 31.37),
    "Qwen3-Embedding-8B": (34.21, 67.63, 33.33, 28.21, 63.96, 27.45),
    "SkillRet-Embedding-0.6B": (35.17, 68.73, 31.37, 31.95, 65.68, 23.53),
    "SkillRet-Embedding-8B": (28.72, 62.98, 31.37, 28.17, 59.34, 21.57),
    "SkillRouter-Embedding-0.6B": (37.09, 67.96, 31.37, 34.87, 66.07, 29.41),
    "SkillReason-0.6B": (34.72, 67.95, 37.25, 31.06, 62.60, 29.41),
    "SkillReason-4B": (31.77, 70.02, 41.18, 27.28, 65.08, 35.29),
}

TABLE11: Figures = {
    # milliseconds: retrieval, generation, rank, total
    "Retrieval only: Qwen3-Embedding-0.6B": (31.69, None, None, 31.69),
    "Retrieval only: SkillReason-0.6B": (31.58, None, None, 31.58),
    "Retrieval only: Qwen3-Embedding-4B": (144.41, None, None, 144.41),
    "Retrieval only: SkillReason-4B": (143.93, None, None, 143.93),
    "Retrieve–rerank: Qwen3-Embedding-0.6B × Qwen3-Reranker-0.6B": (31.69, None, 1904.43, 1936.12),
    "Retrieve–rerank: SkillReason-0.6B × SkillReason-Reranker-0.6B": (31.58, None, 1911.84, 1943.42),
    "Retrieve–rerank: Qwen3-Embedding-4B × Qwen3-Reranker-4B": (144.41, None, 5176.41, 5320.82),
    "Retrieve–rerank: SkillReason-4B × SkillReason-Reranker-4B": (143.93, None, 4710.06, 4853.99),
    "Self-CoT augmentation: SkillReason-0.6B": (49.79, 3101.31, None, 3151.10),
    "Self-CoT augmentation: SkillReason-4B": (217.93, 4019.34, None, 4237.27),
}

_HUB_NAMES = {
    "BM25": r"bm25",
    "Qwen3-Embedding-0.6B": r"Qwen/Qwen3-Embedding-0\.6B",
    "Qwen3-Embedding-4B": r"Qwen/Qwen3-Embedding-4B",
    "Qwen3-Embedding-8B": r"Qwen/Qwen3-Embedding-8B",
    "harrier-oss-v1-0.6B": r"[^/]+/harrier-oss-v1-0\.6b",
    "jina-embeddings-v5-text-small": r"jinaai/jina-embeddings-v5-text-small",
    "Octen-Embedding-8B": r"[^/]+/Octen-Embedding-8B",
    "KaLM-Gemma3-12B": r"[^/]+/KaLM-(Embedding-)?Gemma3-12B.*",
    "SkillRouter-Embedding-0.6B": r"[^/]+/SkillRouter-Embedding-0\.6B",
    "SkillRet-Embedding-0.6B": r"[^/]+/SkillRet-Embedding-0\.6B",
    "SkillRet-Embedding-8B": r"[^/]+/SkillRet-Embedding-8B",
    "Qwen3-Reranker-0.6B": r"Qwen/Qwen3-Reranker-0\.6B",
    "Qwen3-Reranker-4B": r"Qwen/Qwen3-Reranker-4B",
}


def public_name(model: str) -> str:
    """How the paper's tables call a model of the hub; the model's own name where they do not have it.

    A folder is never taken for one of the paper's models by its name: what was trained in it is the user's to say.
    """
    for name, pattern in _HUB_NAMES.items():
        if re.fullmatch(pattern, model, flags=re.IGNORECASE):
            return name
    return model
