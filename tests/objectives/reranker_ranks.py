"""One rank of a process group that trains a reranker: ``python reranker_ranks.py RANK SIZE FOLDER MODEL STRATEGY...``.

Not a test module: ``test_reranker_ranks.py`` starts it for each rank and reads what a strategy has written,
``FOLDER/<strategy>.<rank>.pt``. The strategy ``single`` runs on rank 0 alone, without the group.
"""

from __future__ import annotations

import datetime
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import objectives.engine_deepspeed
from configs.schema import OptimizerConfig, ParallelConfig, RerankerDataConfig, RerankerLossConfig
from data_pipeline.candidate_groups import CandidateGroup
from models.reranker import Reranker, export_reranker
from models.reranker_format import RerankerFormat
from objectives.engine import Engine, build_engine
from objectives.engine_torch import ReplicaEngine
from objectives.reranker import GroupCollator, reranker_backward, score_groups

RANK, SIZE, FOLDER, MODEL = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
FORM = RerankerFormat(yes="y", no="n", max_length=512)
DOCUMENTS = {name: f"{name} | Can do {name}. | " + f"Use it for {name}. " * count for count, name in enumerate("abcde")}
# Uneven groups, one without a rationale; the second update has fewer groups than there are ranks, and no rationale at all.
BATCHES = (
    [
        CandidateGroup("1", "single", "do a", "The user needs a.", tuple("abc"), (1, 0, 0)),
        CandidateGroup("2", "multi", "do b and e, then d", "", tuple("edcba"), (1, 0, 0, 0.5, 0)),
        CandidateGroup("3", "multi", "do c", "The user needs skills for c and d.", tuple("cd"), (1, 1)),
        CandidateGroup("4", "single", "do d " * 5, "The user needs d.", tuple("bd"), (0, 1)),
        CandidateGroup("5", "single", "e", "", tuple("aed"), (0, 1, 0)),
    ],
    [CandidateGroup("6", "single", "do b", "", tuple("abe"), (0, 1, 0))],
)


def engine_of(strategy: str, model: str) -> Engine:
    config = OptimizerConfig(lr=1e-3, weight_decay=0.1)
    reranker = Reranker.load(model, form=FORM)
    if strategy == "single":
        return ReplicaEngine(reranker, config)
    name = "deepspeed" if strategy.startswith("zero") else strategy
    parallel = ParallelConfig(workers=SIZE, strategy=name, zero_stage=int(strategy[-1]) if name == "deepspeed" else 2)
    return build_engine(reranker, config, parallel, default_strategy="deepspeed")


def train(case: str) -> Any:
    """Two updates, and the scores after them; ``<strategy>:<model>:<distill>``."""
    strategy, model, distill = case.split(":")
    engine = engine_of(strategy, f"{MODEL}{model}")
    loss = RerankerLossConfig(distill=distill, micro_batch_tokens=700)
    data = RerankerDataConfig(rationale_max_length=12)
    reranker: Any = engine.backbone
    collate = GroupCollator(reranker.pairs, DOCUMENTS.__getitem__, data, loss)
    updates = []
    for groups in BATCHES:
        terms = reranker_backward(engine, collate(groups), loss)
        updates.append({"terms": terms, "norm": engine.step(clip_grad=0.5)})
    scores = torch.cat(score_groups(engine, collate(BATCHES[0]), 700))
    weights = {name: value.clone() for name, value in engine.full_parameters()}
    if RANK == 0 or strategy != "single":
        export_reranker(engine, FORM, FOLDER / f"{case}.export")
    return {"updates": updates, "scores": scores, "weights": weights}


def main() -> None:
    torch.set_num_threads(1)
    objectives.engine_deepspeed.PERSISTENT_ELEMENTS = 0  # or ZeRO-3 would keep all of a small model on every rank
    store = dist.FileStore(str(FOLDER / "store"), SIZE)
    timeout = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=SIZE, timeout=timeout)
    for case in sys.argv[5:]:
        if case.startswith("single") and RANK > 0:
            continue
        try:
            torch.save(train(case), FOLDER / f"{case}.{RANK}.pt")
        except Exception:
            (FOLDER / f"{case}.{RANK}.error").write_text(traceback.format_exc())
            os._exit(1)  # the other ranks would wait for this one
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
