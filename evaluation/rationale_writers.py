"""Who writes rationales at inference: the language model that an encoder shares its parameters with, or a teacher."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from data_pipeline.records import BenchQuery
from data_pipeline.teacher import TeacherConfig
from retrieval.retriever import split_model_spec

if TYPE_CHECKING:
    from models.generation import SamplingParams

logger = logging.getLogger(__name__)

_CHUNK = 64
"""Requests between two writes of the file: what a killed run loses."""


def causal_lm_of(model_spec: str | Path, model: str = "") -> str:
    """The LM that writes: ``model`` (a run's folder, its export, a causal LM or hub id), else the one beside the encoder.

    Raises:
        ValueError: BM25 without ``model``, or an encoder that no LM was exported with.
        FileNotFoundError: no such model.
    """
    if model:
        folder = Path(model).expanduser()
        places = (folder / "export" / "causal_lm", folder / "causal_lm")
        return str(next((place for place in places if (place / "config.json").is_file()), model))
    kind, path = split_model_spec(model_spec)
    if kind == "bm25":
        raise ValueError("bm25 has no language model that could write a rationale; give one with --augment-model")
    from models.encoder import resolve_encoder_folder

    folder = resolve_encoder_folder(path)
    if (folder / "causal_lm" / "config.json").is_file():
        return str(folder / "causal_lm")
    config = folder / "config.json"
    names = json.loads(config.read_text(encoding="utf-8")).get("architectures") or [] if config.is_file() else []
    if any(str(name).endswith("ForCausalLM") for name in names):
        return str(folder)
    raise ValueError(
        f"{folder} has no causal_lm/ and is no causal LM itself ({', '.join(names) or 'no architectures in config.json'}); give "
        "the one that writes rationales with --augment-model"
    )


def from_policy(
    lm: str,
    queries: Sequence[BenchQuery],
    params: SamplingParams,
    max_prompt_tokens: int,
    seed: int,
    dtype: str | None = None,
    progress: bool = False,
) -> Iterator[list[dict[str, Any]]]:
    """Rows of some requests at a time, sampled with the LM head; stop tokens are the model's."""
    import torch

    from models.backbone import Backbone
    from models.generation import sample_rollouts

    device = "cuda" if torch.cuda.is_available() else "cpu"
    policy = Backbone.load(lm, dtype=dtype or "float32", device=device).eval()
    tokenizer = policy.tokenizer
    params = replace(params, stop_token_ids=tokenizer.stop_token_ids)
    room = int(getattr(policy.model.config, "max_position_embeddings", 0) or 1 << 30) - params.max_tokens
    prompts = tokenizer.encode_prompts([query.query for query in queries], min(max_prompt_tokens, room))
    with tqdm(total=len(queries), desc="Writing rationales", unit="request", disable=not progress) as bar:
        for first in range(0, len(queries), _CHUNK):
            chunk = queries[first : first + _CHUNK]
            start = time.perf_counter()
            seeds = [_seed(seed, query.query) for query in chunk]
            groups = sample_rollouts(policy, prompts[first : first + _CHUNK], params, seeds)
            seconds = (time.perf_counter() - start) / (len(chunk) * params.n)
            yield [
                _row(query, text, sample, seconds, tokens=len(rollout.tokens))
                for query, group in zip(chunk, groups, strict=True)
                for sample, (rollout, text) in enumerate(
                    zip(group, tokenizer.decode([rollout.tokens for rollout in group]), strict=True)
                )
            ]
            bar.update(len(chunk))


def from_teacher(
    config: TeacherConfig, queries: Sequence[BenchQuery], cache: Path, progress: bool = False
) -> Iterator[list[dict[str, Any]]]:
    """All rows at once: the teacher's cache is what an interrupted run goes on from."""
    from data_pipeline.pipeline.asking import ask_teacher
    from data_pipeline.teacher.prompts import query_analysis

    start = time.perf_counter()
    tasks = [query_analysis(query.query_id, query.query) for query in queries]
    asked = ask_teacher(config, cache, "teacher", tasks, progress)
    if asked.failed:
        logger.warning("no rationale for %d requests: %s", asked.failed.total(), dict(asked.failed))
    answered = [(q, r.value["query_capability"]) for q, r in zip(queries, asked.results, strict=True) if r.value]
    seconds = (time.perf_counter() - start) / max(1, len(answered))
    yield [_row(query, text, 0, seconds) for query, text in answered]


def _row(query: BenchQuery, rationale: str, sample: int, seconds: float, **more: Any) -> dict[str, Any]:
    own = {"query_id": query.query_id, "query": query.query, "sample": sample, "rationale": rationale}
    return {**own, **more, "seconds": round(seconds, 6)}


def _seed(seed: int, request: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{request}".encode()).digest()[:8], "big")


def model_digest(lm: str) -> str:
    """Of a local model's files; a hub id stands for itself."""
    files = sorted(p for p in Path(lm).glob("*") if p.suffix in {".safetensors", ".json"}) if Path(lm).is_dir() else []
    if not files:
        return lm
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as handle:
            digest.update(file.name.encode() + hashlib.file_digest(handle, "sha256").digest())
    return digest.hexdigest()[:16]
