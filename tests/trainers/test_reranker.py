"""Reranker training as a whole: update counts, learning, exact resume, the export, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import CrossEncoder

import trainers.loop
import trainers.reranker_loop
from configs import ConfigError, RerankerConfig, load_config
from data_pipeline.candidate_groups import CandidateGroup, read_groups
from data_pipeline.corpus import Skill, SkillCorpus
from data_pipeline.heldout import is_heldout
from data_pipeline.rows import RecordError, write_rows
from models.reranker import Reranker
from models.tokenization import BackboneError
from objectives.checkpoint import CheckpointError, list_checkpoints
from trainers.reranker import train_reranker
from trainers.reranker_loop import GroupSchedule
from trainers.run_folder import RunFolder
from trainers.tracking import read_metrics

SKILLS = {
    "charts": "draw bar charts",
    "forms": "fill a form",
    "indexes": "find slow queries",
    "minutes": "write minutes",
    "captions": "write captions",
    "budgets": "plan a budget",
    "contracts": "read a contract",
    "backups": "restore a backup",
}


def write_groups(folder: Path) -> None:
    """Sixteen groups: two single ones a skill, but every fourth is multi, has a second positive and no rationale."""
    ids = list(SKILLS)
    SkillCorpus(Skill(s, s, f"Can {text}.", f"Use it to {text}.") for s, text in SKILLS.items()).to_jsonl(
        folder / "corpus.jsonl"
    )
    rows = []
    for number in range(16):
        found = [ids[(number + k) % 8] for k in (1, 0, 3, 5)]
        multi = number % 4 == 3
        weights = [0.0, 1.0, 0.5 if multi else 0.0, 0.0]
        rows.append(
            {
                "record_id": f"g{number}",
                "source": "multi" if multi else "single",
                "query": f"please {SKILLS[found[1]]}" + (f" and {SKILLS[found[2]]}" if multi else ""),
                "query_capability": "" if multi else f"The user needs skills for {found[1]}.",
                "candidates": [{"skill_id": s, "weight": w} for s, w in zip(found, weights, strict=True)],
            }
        )
    write_rows(folder / "groups.jsonl", rows)


@pytest.fixture(scope="session")
def groups_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("groups")
    write_groups(folder)
    return folder


MakeReranker = Callable[..., RerankerConfig]


@pytest.fixture(scope="session")
def make_reranker(groups_folder: Path, tiny_folder: Path) -> MakeReranker:
    """``make(root, *overrides)``: one CPU thread, float32, four updates an epoch of five groups (the last of one), all saved."""

    def make(root: Path, *overrides: str) -> RerankerConfig:
        keys = [
            f"run.root={root}",
            "run.name=reranker",
            "run.threads=1",
            "run.device=cpu",
            f"model.path={tiny_folder}",
            "model.dtype=float32",
            f"data.train_file={groups_folder / 'groups.jsonl'}",
            f"data.corpus_file={groups_folder / 'corpus.jsonl'}",
            "data.train_batch_size=5",
            "data.max_length=512",
            "data.rationale_max_length=24",
            "data.answers=y/n",
            "loss.micro_batch_tokens=8192",
            "loss.window_groups=5",
            "optim.lr=1e-3",
            "trainer.save_freq=1",
            "trainer.max_ckpt_to_keep=100",
            "trainer.test_freq=0",
            "trainer.export=false",
            "tracking.wandb=disabled",
        ]
        return load_config(RerankerConfig, None, [*keys, *overrides])

    return make


def column(run: RunFolder, key: str) -> dict[int, float]:
    return {row["step"]: row[key] for row in read_metrics(run.metrics) if key in row}


def weights_at(run: RunFolder, number: int = -1) -> dict[str, torch.Tensor]:
    return load_file(Path(list_checkpoints(run.checkpoints)[number], "model.safetensors"))


# -- the schedule ---------------------------------------------------------------------------------------------------------


def groups_of(count: int, multi: int = 0) -> list[CandidateGroup]:
    sources = ["multi"] * multi + ["single"] * (count - multi)
    return [CandidateGroup(str(n), source, "q", "", ("a", "b"), (1, 0)) for n, source in enumerate(sources)]


def schedule_of(groups: list[CandidateGroup], batch_size: int, **settings: int) -> GroupSchedule:
    return GroupSchedule(groups, **{"batch_size": batch_size, "epochs": 1, "max_steps": 0, "seed": 42, **settings})


@pytest.mark.parametrize(("groups", "updates", "last"), [(46_912, 367, 64), (47_628, 373, 12)])
def test_the_papers_groups_give_its_updates_with_the_final_partial_window(groups: int, updates: int, last: int):
    schedule = schedule_of(groups_of(groups, multi=19_000), 128)
    batches = [batch.records for batch in schedule.after(0)]
    assert schedule.total == len(batches) == updates
    assert [len(batch) for batch in batches] == [128] * (updates - 1) + [last]
    assert len({group.record_id for batch in batches for group in batch}) == groups
    for batch in batches:
        assert abs(sum(g.source == "multi" for g in batch) - len(batch) * 19_000 / groups) < 2


def test_after_any_step_come_the_batches_of_an_unbroken_run():
    groups = groups_of(11, multi=4)
    whole = list(schedule_of(groups, 3, epochs=3).after(0))
    assert [len(batch.records) for batch in whole] == [3, 3, 3, 2] * 3
    for step in range(len(whole) + 1):
        assert list(schedule_of(groups, 3, epochs=3).after(step)) == whole[step:]
    assert [b.records for b in whole[:4]] != [b.records for b in whole[4:8]]


def test_a_limit_on_updates_ends_the_run_early():
    assert schedule_of(groups_of(9), 4, max_steps=2).total == 2
    assert schedule_of(groups_of(9), 4, max_steps=20).total == 3


# -- runs -----------------------------------------------------------------------------------------------------------------


def test_the_losses_fall(make_reranker: MakeReranker, tmp_path: Path):
    run = train_reranker(make_reranker(tmp_path, "trainer.total_epochs=12", "trainer.save_freq=0", "optim.lr=3e-3"))
    for key in ("loss/total", "loss/rank", "loss/distill", "loss/lm"):
        values = list(column(run, key).values())
        assert np.mean(values[-8:]) < 0.7 * np.mean(values[:8]), key
    assert list(column(run, "train/accuracy").values())[-4:] == [1.0] * 4
    rows = read_metrics(run.metrics)
    assert len(rows) == 48
    for row in rows:
        expected = row["loss/rank"] + row.get("loss/distill", 0.0) + 0.2 * row.get("loss/lm", 0.0)
        assert row["loss/total"] == pytest.approx(expected, rel=1e-5)


def test_every_group_is_trained_on_once_an_epoch(make_reranker: MakeReranker, tmp_path: Path, monkeypatch):
    seen: list[list[CandidateGroup]] = []
    collator = trainers.reranker_loop.GroupCollator

    class Noting(collator):
        def __call__(self, groups):
            seen.append(list(groups))
            return super().__call__(groups)

    monkeypatch.setattr(trainers.reranker_loop, "GroupCollator", Noting)
    train_reranker(make_reranker(tmp_path))
    assert [len(groups) for groups in seen] == [5, 5, 5, 1]
    assert set(Counter(g.record_id for groups in seen for g in groups).values()) == {1}
    assert [sum(g.source == "multi" for g in groups) for groups in seen[:3]] in ([1, 1, 2], [1, 2, 1], [2, 1, 1])


def test_a_resumed_run_ends_like_an_unbroken_one_bit_for_bit(
    make_reranker: MakeReranker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    keys = ["trainer.total_epochs=2", "data.heldout_fraction=0.2", "trainer.test_freq=2"]
    unbroken = train_reranker(make_reranker(tmp_path / "whole", *keys))
    save = trainers.loop.save_checkpoint

    def dying(folder: str, step: int, *arguments: Any) -> str:
        path = save(folder, step, *arguments)
        if step == 3:
            raise KeyboardInterrupt  # as abrupt as a process that ends here
        return path

    with monkeypatch.context() as patch:
        patch.setattr(trainers.loop, "save_checkpoint", dying)
        with pytest.raises(KeyboardInterrupt):
            train_reranker(make_reranker(tmp_path / "broken", *keys))
    resumed = train_reranker(make_reranker(tmp_path / "broken", *keys))
    expected, found = weights_at(unbroken), weights_at(resumed)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    rows, whole = read_metrics(resumed.metrics), read_metrics(unbroken.metrics)
    assert len(rows) == len(whole) > 3
    for row, other in zip(rows, whole, strict=True):
        assert {**row, "time/step": 0} == {**other, "time/step": 0}


def test_held_out_groups_are_measured_and_never_trained_on(make_reranker: MakeReranker, tmp_path: Path):
    config = make_reranker(tmp_path, "data.heldout_fraction=0.4", "trainer.test_freq=1", "trainer.total_steps=2")
    data = trainers.reranker_loop.RerankerData.read(config)
    assert data.heldout
    assert not any(is_heldout(s, 0.4) for group in data.training for s in group.positives)
    run = train_reranker(config)
    rows = read_metrics(run.metrics)
    # in every group the second candidate is a positive and the first is none
    assert [row["val/retriever/recall@1"] for row in rows] == [0.0, 0.0]
    assert all(0 <= row["val/recall@1"] <= 1 and row["val/recall@5"] == 1.0 for row in rows)


def test_the_measured_groups_have_both_sources_in_their_proportion(
    make_reranker: MakeReranker, groups_folder: Path, tmp_path: Path
):
    rows = [json.loads(line) for line in (groups_folder / "groups.jsonl").read_text().splitlines()]
    write_rows(tmp_path / "sorted.jsonl", sorted(rows, key=lambda row: row["source"] == "multi"))
    keys = [f"data.train_file={tmp_path / 'sorted.jsonl'}", "data.heldout_fraction=0.8", "data.heldout_groups=4"]
    heldout = trainers.reranker_loop.RerankerData.read(make_reranker(tmp_path, *keys)).heldout
    assert len(heldout) == 4
    assert 0 < sum(group.source == "multi" for group in heldout) < 3


def test_the_export_is_the_last_checkpoint_for_cross_encoder(make_reranker: MakeReranker, tmp_path: Path):
    run = train_reranker(make_reranker(tmp_path, "trainer.export=true", "data.query_chars=12", "trainer.total_steps=2"))
    ours = Reranker.load(run.export)
    expected = weights_at(run)
    assert all(torch.equal(value, expected[name]) for name, value in ours.state().items())
    assert (ours.form.query_chars, ours.form.max_length, ours.form.yes) == (12, 512, "y")
    query, documents = "please draw bar charts today", ["charts | Can draw. | Draw.", "forms | Can fill. | Fill."]
    scores = CrossEncoder(str(run.export), device="cpu").predict([(query, d) for d in documents])
    np.testing.assert_allclose(scores, ours.score(query, documents), rtol=0, atol=1e-5)
    assert (run.plots / "losses.png").stat().st_size > 1000


@pytest.mark.ray
@pytest.mark.deepspeed
@pytest.mark.usefixtures("ray_cluster")
def test_two_workers_on_ray_train_what_one_process_does(make_reranker: MakeReranker, tmp_path: Path):
    keys = ["optim.lr=1e-4", "data.heldout_fraction=0.2", "trainer.test_freq=2", "trainer.export=true"]
    alone = train_reranker(make_reranker(tmp_path / "alone", *keys))
    group = train_reranker(make_reranker(tmp_path / "group", *keys, "parallel.workers=2", "parallel.zero_stage=2"))
    assert {row["train/workers"] for row in read_metrics(group.metrics)} == {2}
    found = weights_at(group)
    for name, value in weights_at(alone).items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5)
    for row, other in zip(read_metrics(group.metrics), read_metrics(alone.metrics), strict=True):
        curves = {key: value for key, value in row.items() if key.startswith(("loss/", "val/", "train/acc"))}
        assert curves == pytest.approx({key: other[key] for key in curves}, rel=1e-4, abs=1e-5)
    assert Reranker.load(group.export).form == Reranker.load(alone.export).form


# -- what is refused ------------------------------------------------------------------------------------------------------


def test_a_run_is_not_resumed_with_other_groups_or_another_format(make_reranker: MakeReranker, tmp_path: Path):
    train_reranker(make_reranker(tmp_path, "trainer.total_steps=1"))
    with pytest.raises(ConfigError, match=r"data\.train_batch_size 5, this run has 4"):
        train_reranker(make_reranker(tmp_path, "data.train_batch_size=4"))
    with pytest.raises(ConfigError, match=r"format of pairs .*'body_chars': 2500.* this run has .*'body_chars': 10"):
        train_reranker(make_reranker(tmp_path, "data.body_chars=10"))


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (["data.train_file=nowhere.jsonl"], ConfigError, r"data\.train_file is 'nowhere\.jsonl': no such file"),
        (["data.corpus_file=nowhere.jsonl"], ConfigError, r"data\.corpus_file is 'nowhere\.jsonl': no such file"),
        (["data.answers=yes/no"], BackboneError, r"the answer 'yes' is \d tokens"),
        (["data.max_length=100"], ConfigError, r"data\.max_length is 100; the template takes \d+ tokens"),
        (["optim.lr=1e30", "data.train_batch_size=16"], FloatingPointError, r"loss is nan|gradient norm is (inf|nan)"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_trained_is_named(
    make_reranker: MakeReranker, tmp_path: Path, overrides: list[str], error: type[Exception], message: str
):
    with pytest.raises(error, match=message):
        train_reranker(make_reranker(tmp_path, "trainer.total_epochs=4", *overrides))


def test_a_group_without_a_positive_or_with_an_unknown_skill_is_named(
    make_reranker: MakeReranker, groups_folder: Path, tmp_path: Path
):
    rows = [json.loads(line) for line in (groups_folder / "groups.jsonl").read_text().splitlines()]
    rows[2]["candidates"][1]["weight"] = 0.0
    write_rows(tmp_path / "no-positive.jsonl", rows)
    rows[2]["candidates"][1] = {"skill_id": "unheard", "weight": 1.0}
    write_rows(tmp_path / "unknown.jsonl", rows)
    with pytest.raises(RecordError, match=r"no-positive\.jsonl:3: .*a group needs at least one positive"):
        train_reranker(make_reranker(tmp_path, f"data.train_file={tmp_path / 'no-positive.jsonl'}"))
    with pytest.raises(RecordError, match=r"unknown\.jsonl:3: .*'unheard': no such skill in the corpus"):
        train_reranker(make_reranker(tmp_path, f"data.train_file={tmp_path / 'unknown.jsonl'}"))
    assert not (tmp_path / "reranker").exists()


def test_a_damaged_checkpoint_is_refused_by_name(make_reranker: MakeReranker, tmp_path: Path):
    run = train_reranker(make_reranker(tmp_path, "trainer.total_steps=2"))
    file = Path(list_checkpoints(run.checkpoints)[-1], "model.safetensors")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"step_000002/model\.safetensors: .*truncated"):
        train_reranker(make_reranker(tmp_path, "trainer.total_steps=3"))


def test_the_fixtures_groups_can_be_read(groups_folder: Path):
    groups = read_groups(groups_folder / "groups.jsonl", set(SKILLS))
    assert Counter(group.source for group in groups) == {"single": 12, "multi": 4}
