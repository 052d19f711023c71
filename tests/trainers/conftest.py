"""Twenty-four short training records, and configurations that train a toy backbone on them in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from configs import GrpoConfig, Stage1Config, load_config
from data_pipeline.records import Stage1Record, Stage2Record, write_records
from trainers.run_folder import RunFolder

SKILLS = {
    "charts": "draw bar and line charts",
    "forms": "fill the fields of a form",
    "indexes": "find slow SQL queries",
    "minutes": "turn a meeting into minutes",
    "captions": "write captions for a video",
    "budgets": "plan a monthly budget",
    "contracts": "read a contract clause by clause",
    "backups": "restore a lost backup",
    "seating": "make a seating plan",
    "recipes": "scale a recipe for many guests",
    "routes": "plan a delivery route",
    "lessons": "outline a lesson for children",
}
REQUESTS = ("please {0} for me today", "somebody has to {0} before noon")
NEGATIVES = 3


def build_stage1() -> list[Stage1Record]:
    """Two records a skill; its negatives are the three skills that follow it in the list."""
    ids = list(SKILLS)
    documents = {s: f"{s} | Can {SKILLS[s]}. | Use it to {SKILLS[s]}." for s in ids}
    records = []
    for number, skill in enumerate(ids):
        others = tuple(ids[(number + k) % len(ids)] for k in range(1, NEGATIVES + 1))
        for version, request in enumerate(REQUESTS):
            records.append(
                Stage1Record(
                    record_id=f"{skill}-{version}",
                    query=request.format(SKILLS[skill]),
                    query_capability=f"The user needs skills for {skill}.",
                    positive_id=skill,
                    positive=documents[skill],
                    negative_ids=others,
                    negatives=tuple(documents[s] for s in others),
                    category="all",
                )
            )
    return records


@pytest.fixture(scope="session")
def stage1_records() -> list[Stage1Record]:
    return build_stage1()


@pytest.fixture(scope="session")
def records_folder(tmp_path_factory: pytest.TempPathFactory, stage1_records: list[Stage1Record]) -> Path:
    """``stage1.jsonl`` and ``stage2.jsonl`` of the twenty-four records."""
    folder = tmp_path_factory.mktemp("records")
    implicit = [
        Stage2Record(
            **{**vars(r), "query": f"my guests wait and nobody knows {r.positive_id} {r.record_id[-1]}"},
            original_query=r.query,
        )
        for r in stage1_records
    ]
    write_records(folder / "stage1.jsonl", stage1_records)
    write_records(folder / "stage2.jsonl", implicit)
    return folder


MakeStage1 = Callable[..., Stage1Config]
MakeGrpo = Callable[..., GrpoConfig]


@pytest.fixture(scope="session")
def make_stage1(records_folder: Path, tiny_folder: Path) -> MakeStage1:
    """``make(root, *overrides)``: one CPU thread, float32, six updates an epoch, every update saved."""

    def make(root: Path, *overrides: str) -> Stage1Config:
        keys = [
            f"run.root={root}",
            "run.name=stage1",
            "run.threads=1",
            "run.device=cpu",
            f"model.path={tiny_folder}",
            "model.dtype=float32",
            f"data.train_file={records_folder / 'stage1.jsonl'}",
            "data.train_batch_size=4",
            "data.max_length=160",
            "data.document_max_length=48",
            "data.lm_max_length=96",
            "data.rationale_max_length=24",
            "data.negatives_per_record=2",
            "loss.kl_start_update=2",
            "loss.micro_batch_tokens=1024",
            "optim.lr=1e-3",
            "trainer.total_epochs=100",
            "trainer.save_freq=1",
            "trainer.test_freq=0",
            "trainer.export=false",
            "tracking.wandb=disabled",
        ]
        return load_config(Stage1Config, None, [*keys, *overrides])

    return make


@pytest.fixture(scope="session")
def make_grpo(records_folder: Path, tiny_folder: Path) -> MakeGrpo:
    """``make(root, *overrides)``: three updates of four groups of three, two skills of twelve held out, every update saved."""

    def make(root: Path, *overrides: str) -> GrpoConfig:
        keys = [
            f"run.root={root}",
            "run.name=grpo",
            "run.threads=1",
            "run.device=cpu",
            f"model.path={tiny_folder}",
            "model.dtype=float32",
            f"data.train_file={records_folder / 'stage2.jsonl'}",
            "data.train_batch_size=4",
            "data.max_prompt_length=64",
            "data.max_response_length=12",
            "data.max_query_length=160",
            "data.document_max_length=48",
            "data.heldout_fraction=0.25",
            "rollout.name=hf",
            "rollout.n=3",
            "actor.optim.lr=1e-3",
            "reward.terms.margin.params.tau=0.05",
            "reward.terms.gain.params.tau=0.05",
            "reward.terms.length.params.budget=6",
            "trainer.total_steps=3",
            "trainer.save_freq=1",
            "trainer.max_ckpt_to_keep=3",
            "trainer.test_freq=2",
            "tracking.wandb=disabled",
        ]
        return load_config(GrpoConfig, None, [*keys, *overrides])

    return make


CUSTOM_TERMS = [
    "reward.terms.pattern.function=examples.custom_reward:follows_pattern",
    "reward.terms.pattern.weight=0.2",
    "reward.terms.pattern.params.longest=32",
    "reward.terms.wide.function=rewards.terms:margin",
    "reward.terms.wide.weight=0.5",
    "reward.terms.wide.params.tau=0.5",
]


@pytest.fixture(scope="session")
def make_five_updates(make_grpo: MakeGrpo) -> MakeGrpo:
    """As ``make_grpo``: five updates with the paper's terms and two more by import path, two members in each pool, a checkpoint
    after every second update."""

    def make(root: Path, *overrides: str) -> GrpoConfig:
        keys = ["trainer.total_steps=5", "trainer.total_epochs=10", "trainer.save_freq=2"]
        pools = ["rollout.workers=2", "rollout.min_workers=1", "reward.retriever_workers=2"]
        return make_grpo(root, *keys, *pools, "actor.ppo_max_token_len=100", *CUSTOM_TERMS, *overrides)

    return make


@pytest.fixture(scope="session")
def unbroken(ray_cluster: None, make_five_updates: MakeGrpo, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The five updates, undisturbed, on one node."""
    from trainers.grpo import train_grpo

    return train_grpo(make_five_updates(tmp_path_factory.mktemp("unbroken")))


@pytest.fixture(autouse=True)
def _keep_torch_threads() -> Iterator[None]:
    """Training in this process sets torch's thread count; later tests get theirs back."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
