"""What a reward actor that does not answer costs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError

from actors import reward_role
from actors.members import RoleError
from actors.reward_role import RewardRole

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


def scorer_class(folder: Path, always: bool) -> Any:
    class Scorer:
        def score_embedded(self, request: Any, embeddings: Any) -> str:
            first = not (folder / "asked").exists()
            (folder / "asked").touch()
            if first or always:
                time.sleep(600)
            return "scored"

    return ray.remote(num_cpus=0, max_restarts=0)(Scorer)


@pytest.fixture
def make_role(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """``make(always)``: a role whose actor hangs over the first batch, or over all, and its events."""
    monkeypatch.setattr(reward_role, "SCORE_S", 1.5)
    monkeypatch.setattr(reward_role, "replace", lambda request, **_: request)

    def make(always: bool) -> tuple[RewardRole, list[str], list[Any]]:
        cls, told, handles = scorer_class(tmp_path, always), [], []

        def create() -> Any:
            handles.append(cls.remote())
            ray.get(handles[-1].__ray_ready__.remote())
            return handles[-1]

        retrievers: Any = None
        role = RewardRole(
            create, retrievers, lambda event, *_, **__: told.append(event), max_query_length=8, document_max_length=8
        )
        monkeypatch.setattr(role._embedder, "embed", lambda request: None)
        return role, told, handles

    return make


def test_a_batch_that_a_hung_actor_had_is_scored_by_a_new_one(make_role: Any):
    role, told, handles = make_role(False)
    assert role.score({}) == "scored"
    assert told == ["hung"]
    with pytest.raises(RayActorError):  # the hung one does not go on beside it
        ray.get(handles[0].score_embedded.remote({}, None), timeout=10)
    ray.kill(role.handle)


def test_a_batch_over_which_every_actor_hangs_ends_the_run(make_role: Any):
    role, told, _ = make_role(True)
    with pytest.raises(RoleError, match="the reward role was lost 3 times over one batch: no answer"):
        role.score({})
    assert told == ["hung", "hung"]
    ray.kill(role.handle)
