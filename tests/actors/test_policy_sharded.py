"""The update of 2 and 4 processes is that of one: gradients, moments, weights and metrics, whatever shards them."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from actors.policy import Policy
from actors.policy_batch import PolicyBatch, whole_share
from actors.reference import Reference
from actors.transport import policy_proto, scores_in_order, sequence_proto
from configs.schema import ActorConfig, ModelConfig, OptimizerConfig, ParallelConfig

RANKS = """
import multiprocessing, pickle, sys
from pathlib import Path
import torch.distributed as dist
import objectives.engine_deepspeed, objectives.engine_fsdp2, objectives.policy_gradient
from actors.policy import Policy
from actors.reference import Reference
from actors.transport import scores_proto, sequences_of, share_of

def work(rank, size, folder):
    store = dist.FileStore(str(folder / f"store{size}"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    model, cases, sequences = pickle.loads((folder / f"cases{size}.pkl").read_bytes())
    out = {}
    for name, (config, protos) in cases.items():
        policy = Policy(model, config, temperature=0.8, threads=1, device="cpu", seed=0)
        metrics = [policy.update_share(share_of(proto[rank])) for proto in protos]
        state = {
            n: {k: v.numpy().copy() for k, v in s.items() if k != "step"} for n, s in policy.engine.full_optimizer_state()
        }
        weights = {n: tensor.numpy().copy() for n, tensor in policy.engine.full_parameters()}
        out[name] = metrics, (policy.version, weights), state
        reference = Reference(model, temperature=0.8, token_budget=30, threads=1, device="cpu", parallel=config.parallel)
        scores = reference.log_probs(*sequences_of(sequences[rank]))[0]
        out[(*name, "reference")] = scores_proto(scores, sequences[rank], 0.5 + rank)
    (folder / f"out{size}-{rank}.pkl").write_bytes(pickle.dumps(out))
    dist.barrier()
    dist.destroy_process_group()

for size in map(int, sys.argv[2:]):
    fork = multiprocessing.get_context("fork")  # the imports take far longer than the work
    processes = [fork.Process(target=work, args=(rank, size, Path(sys.argv[1]))) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * size
"""

SFT = {"sft_prompts": [[5, 6, 7], [50], [8, 9]], "sft_rationales": [[70, 71, 72, 1], [73, 1], [74, 75, 1]]}
CASES: dict[str, dict[str, Any]] = {
    "plain": {"ppo_max_token_len": 20},
    "epochs": {"ppo_max_token_len": 30, "ppo_epochs": 2, "sft_coef": 0.3, "kl_loss_coef": 0.1},
    "few": {},
}
STRATEGIES = {
    "fsdp2": ParallelConfig(strategy="fsdp2"),
    "zero2": ParallelConfig(strategy="deepspeed", zero_stage=2),
}
SIZES = (2, 4)
BOTH = pytest.mark.parametrize("strategy", ["fsdp2", pytest.param("zero2", marks=pytest.mark.deepspeed)])
Outcome = tuple[list[dict[str, float]], tuple[int, dict[str, np.ndarray]], dict[str, dict[str, np.ndarray]]]
"""Metrics of each update, version and weights, and the optimizer's moments."""


def actor(case: str, parallel: ParallelConfig) -> ActorConfig:
    optim = OptimizerConfig(lr=1e-3, weight_decay=0.0, clip_grad=0.5)
    return ActorConfig(optim=optim, parallel=parallel, **CASES[case])


def make_batches(make_batch: Callable[..., PolicyBatch], policy: Policy, case: str) -> list[PolicyBatch]:
    """Seven rollouts in groups of 3, 2 and 2, in two orders: no number of workers divides them. Or three, of one group."""
    if case == "few":
        return [make_batch(policy, [0, 1, 2])]
    sft = SFT if case == "epochs" else {}
    first, second = (
        make_batch(policy, [7, 0, 3, 2, 4, 6, 1], **sft),
        make_batch(policy, [1, 6, 4, 2, 3, 0, 7], -0.2, **sft),
    )
    sampled = [values - 0.05 * np.arange(len(values), dtype=np.float32) for values in first.ref_log_probs]
    return [dataclasses.replace(first, rollout_log_probs=sampled), second]


@dataclasses.dataclass
class Alone:
    """What one process makes of each case, and the batches it was given."""

    batches: dict[str, list[PolicyBatch]]
    outcomes: dict[str, Outcome]
    reference: list[np.ndarray]


@pytest.fixture(scope="module")
def alone(model_config: ModelConfig, make_batch: Callable[..., PolicyBatch]) -> Alone:
    batches, outcomes = {}, {}
    for case in CASES:
        config = actor(case, ParallelConfig())
        policy = Policy(model_config, config, temperature=0.8, threads=0, device="cpu", seed=0)
        batches[case] = make_batches(make_batch, policy, case)
        metrics = [policy.update(batch) for batch in batches[case]]
        state = {
            name: {key: np.asarray(value) for key, value in values.items() if key != "step"}
            for name, values in policy.engine.full_optimizer_state()
        }
        weights = {name: tensor.numpy().copy() for name, tensor in policy.engine.full_parameters()}
        outcomes[case] = metrics, (policy.version, weights), state
    reference = Reference(model_config, temperature=0.8, token_budget=30, threads=0, device="cpu")
    batch = batches["plain"][0]
    return Alone(batches, outcomes, reference.log_probs(batch.prompts, batch.responses)[0])


@pytest.fixture(scope="module")
def together(model_config: ModelConfig, alone: Alone, tmp_path_factory) -> dict[int, list[dict[Any, Any]]]:
    """What each of 2 and each of 4 processes has at the end, by case and strategy; one group of processes for all cases."""
    folder = tmp_path_factory.mktemp("ranks")
    batch = alone.batches["plain"][0]
    for size in SIZES:
        cases = {
            (case, strategy): (
                actor(case, dataclasses.replace(parallel, workers=size)),
                [policy_proto(whole_share(batch), size).chunk(size) for batch in alone.batches[case]],
            )
            for case in CASES
            for strategy, parallel in STRATEGIES.items()
        }
        sequences = sequence_proto(batch.prompts, batch.responses, size)[0].chunk(size)
        (folder / f"cases{size}.pkl").write_bytes(pickle.dumps((model_config, cases, sequences)))
    (folder / "ranks.py").write_text(RANKS)
    subprocess.run([sys.executable, folder / "ranks.py", folder, *map(str, SIZES)], check=True, timeout=240)
    return {
        size: [pickle.loads((folder / f"out{size}-{rank}.pkl").read_bytes()) for rank in range(size)] for size in SIZES
    }


@pytest.mark.parametrize("size", SIZES)
@BOTH
@pytest.mark.parametrize("case", list(CASES))
def test_weights_and_moments_are_those_of_one_process(alone: Alone, together, size: int, strategy: str, case: str):
    _, (version, weights), state = alone.outcomes[case]
    for out in together[size]:
        _, (own_version, own_weights), own_state = out[case, strategy]
        assert own_version == version == len(alone.batches[case])
        assert own_weights.keys() == weights.keys()
        for name, values in weights.items():
            np.testing.assert_allclose(own_weights[name], values, rtol=0, atol=1e-5, err_msg=name)
            for key, moment in state[name].items():
                limit = 1e-5 * max(np.abs(moment).max(), 1e-3)
                np.testing.assert_allclose(own_state[name][key], moment, rtol=0, atol=limit, err_msg=f"{name} {key}")


@pytest.mark.parametrize("size", SIZES)
@BOTH
@pytest.mark.parametrize("case", list(CASES))
def test_every_process_reports_the_metrics_of_the_whole_batch(
    alone: Alone, together, size: int, strategy: str, case: str
):
    expected = alone.outcomes[case][0]
    for out in together[size]:
        for own, whole in zip(out[case, strategy][0], expected, strict=True):
            del own["time/update"]
            assert own == pytest.approx({k: v for k, v in whole.items() if k != "time/update"}, rel=2e-5, abs=1e-6)


@pytest.mark.parametrize("size", SIZES)
@BOTH
def test_the_reference_scores_each_rollout_as_one_process_does(alone: Alone, together, size: int, strategy: str):
    batch = alone.batches["plain"][0]
    rows = sequence_proto(batch.prompts, batch.responses, size)[1]
    answers = [out["plain", strategy, "reference"] for out in together[size]]
    scores, seconds = scores_in_order(answers, rows, [len(r) for r in batch.responses])
    for own, expected in zip(scores, alone.reference, strict=True):
        np.testing.assert_allclose(own, expected, rtol=0, atol=1e-5)
    assert seconds == 0.5 + size - 1  # of the slowest
