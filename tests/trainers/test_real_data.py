"""The main job on a small slice of the real skills: records, Stage I, GRPO on Ray, evaluation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs import GrpoConfig, Stage1Config, load_config
from data_pipeline import (
    BuiltRecords,
    SkillCorpus,
    build_records,
    read_bench,
    read_training_requests,
    write_records,
    write_records_folder,
)
from evaluation import evaluate
from models.tiny import TinyConfig, create_tiny
from trainers.grpo import train_grpo
from trainers.run_folder import RunFolder
from trainers.stage1 import train_stage1
from trainers.tracking import read_metrics

pytestmark = [pytest.mark.data, pytest.mark.ray]

REQUESTS, BENCH, OTHERS = 48, 24, 150
STAGE1_UPDATES, GRPO_UPDATES = 6, 3


@dataclass(frozen=True)
class Slice:
    """What the job left."""

    built: BuiltRecords
    stage1: RunFolder
    stage2: RunFolder
    results: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def job(ray_cluster, data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Slice:
    folder = tmp_path_factory.mktemp("slice")
    whole = SkillCorpus.from_jsonl(data_dir / "skills.jsonl.gz")
    requests = read_training_requests(data_dir / "train.jsonl")[:: 960 // REQUESTS][:REQUESTS]
    bench = read_bench(data_dir / "dev_bench.jsonl")[:BENCH]
    wanted = {r.skill_id for r in requests} | {s for query in bench for s in query.qrels}
    others = set(islice((s for s in whole.ids if s not in wanted), 0, None, len(whole) // OTHERS))
    corpus = SkillCorpus([skill for skill in whole if skill.skill_id in wanted | others])
    corpus.to_jsonl(folder / "corpus.jsonl")
    write_records(folder / "bench.jsonl", bench)
    built = build_records(requests, corpus)
    write_records_folder(built, folder / "data")
    shape = TinyConfig(vocab_size=2000, hidden_size=64, intermediate_size=128, num_layers=1)
    backbone = create_tiny(corpus.documents(), folder / "backbone", shape)

    common = [
        f"run.root={folder / 'runs'}",
        "run.threads=1",
        "run.device=cpu",
        "model.dtype=float32",
        f"data.exclusions_file={folder / 'data' / 'exclusions.json'}",
        "data.train_batch_size=6",
        "data.document_max_length=96",
        "data.heldout_fraction=0.2",
        "trainer.test_freq=3",
        "trainer.export_max_length=256",
        "tracking.wandb=disabled",
    ]
    stage1 = train_stage1(
        load_config(
            Stage1Config,
            None,
            [
                *common,
                "run.name=stage1",
                f"model.path={backbone}",
                f"data.train_file={folder / 'data' / 'stage1.jsonl'}",
                "data.max_length=224",
                "data.lm_max_length=224",
                "data.rationale_max_length=48",
                "data.negatives_per_record=2",
                "loss.kl_start_update=3",
                "loss.micro_batch_tokens=4096",
                "optim.lr=3e-3",
                "trainer.total_epochs=9",
                f"trainer.total_steps={STAGE1_UPDATES}",
            ],
        )
    )
    stage2 = train_grpo(
        load_config(
            GrpoConfig,
            None,
            [
                *common,
                "run.name=stage2",
                f"model.path={stage1.causal_lm}",
                f"data.train_file={folder / 'data' / 'stage2.jsonl'}",
                "data.max_prompt_length=160",
                "data.max_response_length=24",
                "data.max_query_length=224",
                "rollout.name=hf",
                "rollout.n=4",
                "actor.optim.lr=1e-4",
                "reward.terms.margin.weight=1",
                "reward.terms.gain.weight=1",
                "reward.terms.length.weight=1",
                f"trainer.total_steps={GRPO_UPDATES}",
            ],
        )
    )
    results = {
        spec.split(":")[0]: evaluate(
            spec,
            folder / "corpus.jsonl",
            folder / "bench.jsonl",
            folder / "evaluation" / f"{name}.json",
            cache_dir=folder / "cache",
        )
        for name, spec in (("bm25", "bm25"), ("hybrid", f"hybrid:{stage2.export}"))
    }
    for name, result in results.items():
        assert json.loads((folder / "evaluation" / f"{name}.json").read_text()) == result
    return Slice(built, stage1, stage2, results)


def test_every_request_has_records_of_both_stages(job: Slice):
    assert (len(job.built.stage1), len(job.built.stage2)) == (REQUESTS, REQUESTS)


@pytest.mark.parametrize(
    ("stage", "updates", "curve"),
    [("stage1", STAGE1_UPDATES, "loss/total"), ("stage2", GRPO_UPDATES, "reward/total/mean")],
)
def test_every_update_has_finite_metrics(job: Slice, stage: str, updates: int, curve: str):
    rows = read_metrics(getattr(job, stage).metrics)
    assert [row["step"] for row in rows] == list(range(1, updates + 1))
    assert all(curve in row for row in rows)
    assert all(np.isfinite(value) for row in rows for value in row.values())
    assert 0 <= rows[-1]["val/recall@10"] <= 1


def test_the_kl_term_of_stage_one_took_part(job: Slice):
    assert ["loss/kl" in row for row in read_metrics(job.stage1.metrics)] == [False] * 3 + [True] * 3


@pytest.mark.parametrize("stage", ["stage1", "stage2"])
def test_every_artifact_is_there(job: Slice, stage: str):
    run: RunFolder = getattr(job, stage)
    assert run.latest_checkpoint() is not None
    for file in ("config.yaml", "export/modules.json", "export/retrieval.json", "export/causal_lm/model.safetensors"):
        assert (run.root / file).is_file(), file
    assert list(run.plots.glob("*.png"))


def test_bm25_and_the_hybrid_are_measured_on_the_same_requests(job: Slice):
    for result in job.results.values():
        assert result["n_queries"] == BENCH
        assert all(0 <= value <= 1 for value in result["metrics"].values())
    assert job.results["bm25"]["metrics"]["recall@10"] > 0.5  # words nearly suffice for these requests
    assert 0 <= job.results["hybrid"]["fusion_weight"] <= 1
