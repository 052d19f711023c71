"""The reranker: teach a causal-LM cross-encoder to order what the retriever finds, in this process or in a group on Ray.

``python -m trainers.reranker CONFIG [key=value ...]`` runs it, also as a Ray job; ``skillreason train reranker`` is the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from configs import ConfigError, RerankerConfig
from data_pipeline.candidate_groups import CandidateGroup
from models.reranker_format import DOCUMENT_LABEL, SUFFIX, RerankerFormat, answer_token_ids
from models.tokenization import ModelTokenizer
from trainers.launch import run_stage
from trainers.reranker_loop import RerankerData, RerankerLoop, format_of, train_in_group
from trainers.run_folder import RunFolder, check_input_files, file_digest, model_digest
from trainers.session import Session


def train_reranker(config: RerankerConfig) -> RunFolder:
    """Train the reranker to the end, or go on from the newest checkpoint; see :func:`trainers.launch.run_stage`.

    Raises:
        ConfigError, RecordError, BackboneError, CheckpointError: before the first update, naming what is wrong.
        FloatingPointError: a loss or gradient that is not finite; the last checkpoint stands.
        GroupLost: processes were lost more than ``trainer.max_restarts`` times, or there was no room for them.
        Interrupted: after Ctrl-C, with the checkpoint of the last complete update written.
    """
    check_input_files(config)
    data = RerankerData.read(config)
    form = format_of(config.data)
    tokenizer = ModelTokenizer.load(config.model.path)
    answer_token_ids(tokenizer, form, config.model.path)
    _check_length(form, tokenizer)

    def loop_of(config: Any, device: str, session: Session | None, identity: dict[str, Any]) -> RerankerLoop:
        return RerankerLoop(config, data, device, session, identity)

    return run_stage(
        config,
        _identity(config, form, data.training),
        data.schedule.total,
        title="Reranker",
        loop_of=loop_of,
        in_group=train_in_group,
    )


def _check_length(form: RerankerFormat, tokenizer: ModelTokenizer) -> None:
    """Refuse a maximum length that leaves no token for the pair beside the template."""
    template = form.head + DOCUMENT_LABEL + SUFFIX
    fixed = len(tokenizer.hf(template, add_special_tokens=False)["input_ids"])
    if form.max_length < fixed + 2:
        raise ConfigError(
            f"data.max_length is {form.max_length}; the template takes {fixed} tokens, and two must be left for request and "
            f"document: expected at least {fixed + 2}"
        )


def _identity(config: RerankerConfig, form: RerankerFormat, groups: Sequence[CandidateGroup]) -> dict[str, Any]:
    """What must not change between a run and its resumption: the batches, what is in them, and the model it began with."""
    digest = hashlib.sha256()
    for group in groups:
        digest.update(json.dumps(asdict(group), sort_keys=True).encode())
    return {
        "stage": "reranker",
        "data.train_batch_size": config.data.train_batch_size,
        "data.max_candidates": config.data.max_candidates,
        "run.seed": config.run.seed,
        "groups of data.train_file": f"{len(groups)} ({digest.hexdigest()[:16]})",
        "data.corpus_file": file_digest(Path(config.data.corpus_file)),
        "format of pairs": asdict(form),
        "model.path": model_digest(config.model.path),
    }


if __name__ == "__main__":
    from trainers.main import main

    main(RerankerConfig, train_reranker)
