"""Stage II as a whole, with real Ray actors: what is logged, who has which weights, and what stops a run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import ray
import torch
from safetensors.torch import load_file

from actors.launch import Roles, launch_roles
from actors.policy_batch import PolicyBatch
from actors.rollout import RolloutBatch
from configs import ConfigError, to_yaml
from data_pipeline.records import read_stage2
from models.tokenization import ModelTokenizer
from objectives.checkpoint import list_checkpoints
from rewards import RewardError
from trainers.batches import BatchSchedule
from trainers.events import EventLog
from trainers.grpo import GrpoLoop, rollout_seed, train_grpo
from trainers.interrupt import Interrupted
from trainers.recovery import Account
from trainers.run_folder import RunFolder
from trainers.tracking import read_metrics
from trainers.validation import split_heldout

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

WEIGHTS = {"margin": 1.0, "gain": 1.0, "length": 1.0, "pattern": 0.2, "wide": 0.5}


def weights_of(folder: str | Path) -> dict[str, torch.Tensor]:
    return load_file(Path(folder) / "model.safetensors")


def test_every_curve_is_logged(unbroken: RunFolder):
    rows = read_metrics(unbroken.metrics)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    curves = {f"reward/{term}/{what}" for term in (*WEIGHTS, "total") for what in ("mean", "std")}
    curves |= {"actor/pg_loss", "actor/kl_loss", "actor/entropy", "actor/grad_norm"}
    curves |= {"actor/pg_clipfrac", "actor/pg_clipfrac_lower"}
    curves |= {"response/length_mean", "response/length_max", "response/clip_ratio", "sampler/collisions"}
    curves |= {"rollout_corr/log_prob_diff_mean", "rollout_corr/log_prob_diff_max"}
    curves |= {
        f"time/{part}" for part in ("rollout", "reward", "reference", "update", "weight_sync", "step", "overlap_saved")
    }
    curves |= {"pool/rollout_members", "pool/retriever_members", "pool/redispatched"}
    curves |= {"recovery/lost", "recovery/restarts", "recovery/seconds_lost"}
    for row in rows:
        assert curves <= row.keys()
        assert row["actor/entropy"] > 0
        assert 1 <= row["response/length_mean"] <= row["response/length_max"] <= 12
    assert [row["step"] for row in rows if "val/recall@10" in row] == [2, 4, 5]


def test_the_total_is_the_weighted_sum_of_the_terms_whoever_wrote_them(unbroken: RunFolder):
    for row in read_metrics(unbroken.metrics):
        expected = sum(weight * row[f"reward/{term}/mean"] for term, weight in WEIGHTS.items())
        assert row["reward/total/mean"] == pytest.approx(expected, abs=1e-5)
        assert row["reward/wide/mean"] != 0.0


def test_the_policy_starts_at_the_reference_and_leaves_it(unbroken: RunFolder):
    kl = [row["actor/kl_loss"] for row in read_metrics(unbroken.metrics)]
    assert kl[0] == pytest.approx(0.0, abs=1e-6)
    assert min(kl[1:]) > 1e-5


def test_the_frozen_retriever_encodes_a_document_once_a_run(unbroken: RunFolder):
    rows = read_metrics(unbroken.metrics)
    assert rows[0]["retrieval/documents_encoded"] == rows[0]["retrieval/pool_documents"] > 0
    assert sum(row["retrieval/documents_encoded"] for row in rows) <= 12  # there are twelve skills


def test_what_a_run_leaves(unbroken: RunFolder, tiny_folder: Path):
    checkpoints = list_checkpoints(unbroken.checkpoints)
    assert [Path(c).name for c in checkpoints] == ["step_000002", "step_000004", "step_000005"]
    steps = [weights_of(c) for c in checkpoints]
    assert any(not torch.equal(steps[0][name], steps[2][name]) for name in steps[0])
    exported = weights_of(unbroken.causal_lm)
    assert all(torch.equal(exported[name], value) for name, value in steps[2].items())
    assert (unbroken.export / "modules.json").is_file()
    assert (unbroken.export / "retrieval.json").is_file()
    for name in ("rewards.png", "policy.png", "timeline.png"):
        assert (unbroken.plots / name).read_bytes().startswith(b"\x89PNG")


def test_reward_and_reference_run_at_the_same_time(unbroken: RunFolder):
    rows = read_metrics(unbroken.timeline)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    for row in rows:
        assert all(len(intervals) == 1 for intervals in row["spans"].values())
        spans = {part: intervals[0] for part, intervals in row["spans"].items()}
        assert spans["reward"][0] < spans["reference"][1]
        assert spans["reference"][0] < spans["reward"][1]
        assert spans["rollout"][1] <= min(spans["reward"][0], spans["reference"][0])
        assert max(spans["reward"][1], spans["reference"][1]) <= spans["update"][0]
        assert spans["update"][1] <= spans["weight_sync"][0]


def test_a_run_that_lost_its_last_updates_goes_on_to_the_same_weights(
    unbroken: RunFolder, make_five_updates, tmp_path: Path
):
    # What a crash after the fifth update leaves: it is logged, and its weights are lost. The run goes on with all roles in the
    # policy's bundle and engines that sleep during the update, which changes no number.
    config = make_five_updates(tmp_path, "resources.colocate=true", "rollout.sleep=true")
    run = RunFolder.of(config.run)
    shutil.copytree(unbroken.root, run.root)
    shutil.rmtree(Path(run.checkpoints) / "step_000005")
    shutil.rmtree(run.export)
    train_grpo(config)
    resumed, whole = Path(run.checkpoints) / "step_000005", Path(unbroken.checkpoints) / "step_000005"
    assert is_equal(weights_of(resumed), weights_of(whole))
    assert is_equal(load_file(resumed / "optimizer.safetensors"), load_file(whole / "optimizer.safetensors"))
    rows, whole_rows = read_metrics(run.metrics), read_metrics(unbroken.metrics)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["step"] for row in read_metrics(run.timeline)] == [1, 2, 3, 4, 5]
    for key, value in whole_rows[4].items():
        # the cache of document embeddings starts empty in a new process
        if not key.startswith(("time/", "pool/")) and key != "retrieval/documents_encoded":
            assert rows[4][key] == value, key


# -- the roles ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def roles(ray_cluster, make_grpo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Roles]:
    """All roles, with two rollout workers."""
    keys = ["rollout.workers=2", "resources.wait_s=0"]
    started = launch_roles(make_grpo(tmp_path_factory.mktemp("roles"), *keys), lambda *_, **__: None)
    started.wait_ready()
    yield started
    started.stop()


@pytest.fixture
def loop(roles: Roles, make_grpo, tmp_path: Path, tiny_folder: Path) -> GrpoLoop:
    """The training loop over these roles, in a new run folder, with far more updates than a test waits for."""
    config = make_grpo(tmp_path, "rollout.workers=2", "trainer.total_steps=0", "trainer.total_epochs=500")
    training, _ = split_heldout(read_stage2(config.data.train_file), config.data.heldout_fraction)
    schedule = BatchSchedule(training, batch_size=4, epochs=500, max_steps=0, seed=42, exclusions=None)
    run = RunFolder.of(config.run)
    tokenizer = ModelTokenizer.load(tiny_folder)
    return GrpoLoop(config, run, roles, tokenizer, schedule, None, {}, Account(EventLog(run.events)))


def worker_weights(worker) -> dict[str, torch.Tensor]:
    call = worker.__ray_call__.remote(lambda self: {k: v.numpy() for k, v in self.engine.backbone.state().items()})
    state = cast(dict[str, np.ndarray], ray.get(call))
    return {name: torch.tensor(array) for name, array in state.items()}


def policy_weights(roles: Roles) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in roles.policy.publish_weights("float32").parameters()}


def is_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(value, right[name]) for name, value in left.items())


def test_every_role_is_a_process_of_its_own(roles: Roles):
    handles = [*roles.rollouts.handles().values(), *roles.retrievers.handles().values(), roles.reward.handle]
    pids: list[int] = ray.get([handle.__ray_call__.remote(lambda self: os.getpid()) for handle in handles])
    assert len(handles) == 4
    assert len({*pids, *roles.policy.pids(), *roles.reference.pids(), os.getpid()}) == 7


def test_every_prompt_gets_its_group_with_samples_of_its_own(roles: Roles, loop: GrpoLoop):
    prompts = loop.tokenizer.encode_prompts([f"please plan delivery route {i}" for i in range(5)], 64)
    seeds = [rollout_seed(42, 1, f"r{i}") for i in range(5)]
    roles.push_weights()
    together = roles.generate(prompts, seeds)
    version = roles.weights.version
    worker = next(iter(roles.rollouts.handles().values()))
    calls = [worker.generate.remote([prompt], [seed], version) for prompt, seed in zip(prompts, seeds, strict=True)]
    alone = [batch.groups[0] for batch in cast(list[RolloutBatch], ray.get(calls))]
    tokens = [[rollout.tokens for rollout in group] for group in together]
    assert tokens == [[rollout.tokens for rollout in group] for group in alone]  # whoever drew them, and beside whom
    assert [len(group) for group in tokens] == [3] * 5
    assert len({tuple(rollout) for group in tokens for rollout in group}) > 10


def test_every_rollout_worker_has_the_policys_weights_after_a_step(roles: Roles, loop: GrpoLoop):
    version = roles.push_weights()
    before = policy_weights(roles)
    loop.step(loop.schedule.records[:4], 1)
    after = policy_weights(roles)
    assert not is_equal(after, before)
    assert roles.weights.version == version + 1
    for worker in roles.rollouts.handles().values():
        assert is_equal(worker_weights(worker), after)


def test_a_worker_that_missed_a_push_fails_the_step(roles: Roles, loop: GrpoLoop):
    version = roles.push_weights()
    loop.step(loop.schedule.records[:4], 1)
    first, second = roles.rollouts.handles().items()
    older = roles.weights.push(dict([first]))  # the second one keeps this
    roles.policy.update(one_rollout())
    roles.weights.push(dict([first]))
    expected = f"holds weights of version {older.version}, the policy is at {version + 2}: a weight push was lost"
    with pytest.raises(RuntimeError, match=expected):
        loop.step(loop.schedule.records[:4], 2)
    roles.push_weights()
    loop.step(loop.schedule.records[:4], 2)
    assert second[0] in roles.rollouts.handles()


def one_rollout() -> PolicyBatch:
    """The smallest update there is."""
    scores = [np.zeros(2, dtype=np.float32)] * 2
    return PolicyBatch(["a", "a"], [[5, 6]] * 2, [[7, 1], [8, 1]], torch.tensor([0.0, 1.0]), scores)


def test_ctrl_c_ends_the_step_and_leaves_a_checkpoint(loop: GrpoLoop):
    loop.saving.every = 0

    def press() -> None:
        deadline = time.monotonic() + 120
        while not read_metrics(loop.run.metrics) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press, daemon=True)
    presser.start()
    with pytest.raises(Interrupted) as stopped:
        loop.run_to_end()
    presser.join()
    steps = [row["step"] for row in read_metrics(loop.run.metrics)]
    assert steps == list(range(1, len(steps) + 1))
    assert [Path(c).name for c in list_checkpoints(loop.run.checkpoints)] == [f"step_{steps[-1]:06d}"]
    assert stopped.value.code == 130
    assert f"stopped at update {steps[-1]} of {loop.schedule.total}; run it again to go on" in str(stopped.value)


# -- what is refused ----------------------------------------------------------------------------------------------------


def test_resources_that_the_cluster_lacks_are_refused_at_once(make_grpo, tmp_path: Path):
    start = time.monotonic()
    keys = ["resources.policy_cpus=90", "resources.rollout_cpus=4.5", "rollout.workers=2", "resources.wait_s=0"]
    with pytest.raises(ConfigError, match=r"needs 99 CPUs in bundles of 90 and 4\.5 .*; the cluster has \S+ of 4 free"):
        train_grpo(make_grpo(tmp_path, *keys))
    with pytest.raises(
        ConfigError, match=r"needs 0\.5 GPUs in bundles of 0\.5 \(reference 1\); the cluster has 0 of 0 free"
    ):
        train_grpo(make_grpo(tmp_path, "resources.reference_gpus=0.5", "resources.wait_s=0"))
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("function", ["no_such_module:reward", "rewards.terms:no_such_function"])
def test_a_reward_that_cannot_be_imported_is_refused_at_once(make_grpo, tmp_path: Path, function: str):
    start = time.monotonic()
    with pytest.raises(RewardError, match=rf"reward\.terms\.mine\.function is '{function}'"):
        train_grpo(make_grpo(tmp_path, f"reward.terms.mine.function={function}"))
    assert time.monotonic() - start < 10


NAN_TERM = """
from __future__ import annotations

CALLS = []


def breaks_at_the_second_batch(batch):
    CALLS.append(1)
    values = [0.0] * len(batch.rationales)
    if len(CALLS) == 2:
        values[4] = float("nan")
    return values
"""


def test_a_nan_of_a_custom_term_ends_the_run_by_name_and_the_last_checkpoint_stands(make_grpo, tmp_path: Path):
    # As users start it: a cluster of the run's own, and the term in a module of the folder they are in.
    (tmp_path / "brittle_reward.py").write_text(NAN_TERM)
    config = make_grpo(
        tmp_path, "reward.terms.brittle.function=brittle_reward:breaks_at_the_second_batch", "trainer.save_freq=1"
    )
    file = tmp_path / "grpo.yaml"
    file.write_text(to_yaml(config))
    result = subprocess.run(
        [sys.executable, "-m", "trainers.grpo", str(file)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    run = RunFolder.of(config.run)
    schedule_ids = {r.record_id for r in read_stage2(config.data.train_file)}
    assert result.returncode == 1, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert "reward term 'brittle' gave nan for rollout 4 of query '" in line
    assert line.split("of query '")[1].split("'")[0] in schedule_ids
    assert "Traceback" not in result.stderr
    assert [Path(c).name for c in list_checkpoints(run.checkpoints)] == ["step_000001"]
    assert [row["step"] for row in read_metrics(run.metrics)] == [1]
