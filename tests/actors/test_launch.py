"""In which order the roles are awaited, and what is said of those that do not come: stand-ins for groups and pools."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from actors.launch import Roles
from actors.members import RoleError
from configs.schema import GrpoConfig

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


class Pool:
    """Has its one member as soon as it is tended; notes whether the policy was up by then."""

    def __init__(self, name: str, told: list[tuple[str, bool]], loading: Any):
        self.name, self.least, self.told, self.loading = name, 1, told, loading
        self.members = 0

    def tend(self) -> None:
        done, _ = ray.wait([self.loading], timeout=0)
        self.told.append((self.name, bool(done)))
        self.members = 1

    def size(self) -> int:
        return self.members

    wait_ready = tend


class Reward:
    """The reward actor's handle; ``ready`` raises what it is told to."""

    def __init__(self, error: Exception | None = None):
        def ready() -> None:
            if error is not None:
                raise error

        self.ready = ray.remote(num_cpus=0, max_retries=0)(ready)


def roles(told: list[tuple[str, bool]], loading: Any, colocated: bool, reward: Reward) -> Roles:
    retrievers, rollouts = Pool("retriever", told, loading), Pool("rollout", told, loading)
    return Roles(
        config=GrpoConfig(),
        placement=SimpleNamespace(plan=SimpleNamespace(colocated=colocated)),  # type: ignore[arg-type]
        policy=SimpleNamespace(starting=[loading]),  # type: ignore[arg-type]
        reference=SimpleNamespace(starting=[]),  # type: ignore[arg-type]
        rollouts=rollouts,  # type: ignore[arg-type]
        reward=SimpleNamespace(handle=reward, retrievers=retrievers),  # type: ignore[arg-type]
        weights=SimpleNamespace(),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("colocated", [True, False])
def test_on_shared_gpus_the_rollout_workers_start_when_all_others_are_at_rest(colocated: bool):
    told: list[tuple[str, bool]] = []
    loading = ray.remote(num_cpus=0)(lambda: time.sleep(1.5)).remote()
    roles(told, loading, colocated, Reward()).wait_ready()
    assert ("retriever", False) in told
    assert (("rollout", False) in told) is not colocated
    assert ("rollout", True) in told


def test_what_the_reward_actor_raises_is_said_of_it():
    started = roles([], ray.put(None), False, Reward(ImportError("no module named judge")))
    with pytest.raises(RoleError, match="the reward role did not start: no module named judge"):
        started.wait_ready()
