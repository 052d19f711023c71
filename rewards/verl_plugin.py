"""The retrieval reward as a verl reward manager, loaded with ``reward.reward_manager.source=importlib``; see docs/verl.md."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayActorError, RayTaskError
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from cluster.errors import cause, last_line
from rewards.terms import RewardError
from rewards.verl_config import VerlRewardConfig, read_reward_config
from rewards.verl_scorer import RewardActor, RolloutRow, RowScore

logger = logging.getLogger(__name__)


class RetrievalRewardManager(RewardManagerBase):
    """Scores verl's rows with the frozen retriever in one named Ray actor that all reward workers share.

    verl makes one manager in each of its ``reward.num_workers`` processes. The first one starts the actor, the others find it by
    name. Rows must come from a dataset of :mod:`data_pipeline.verl_dataset`.
    """

    def __init__(
        self,
        config: Any,
        tokenizer: Any,
        compute_score: Any = None,
        reward_router_address: str | None = None,
        reward_model_tokenizer: Any = None,
    ):
        """Called by verl with its whole configuration; the last three arguments are for other managers.

        Raises:
            ConfigError: a key below ``reward.reward_kwargs`` that is unknown or cannot work.
            RewardError: the retriever could not be loaded, or a term not be imported.
            TimeoutError: the cluster does not have what the actor asks for.
        """
        super().__init__(config, tokenizer, compute_score)
        self.settings = read_reward_config(config)
        self._actor = _find_or_start_actor(self.settings)

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """The reward of one rollout, and each term for verl's own logging.

        Raises:
            RewardError: the row has not what the reward needs, its reward cannot be trained on, or the actor is gone.
        """
        row = read_row(data, self.tokenizer)
        try:
            score: RowScore = await self._actor.score.remote(row)
        except RayTaskError as error:
            raise cause(error) from None
        except RayActorError as error:
            raise RewardError(
                f"the reward's actor {self.settings.actor_name} is gone; it is started again at most "
                f"{self.settings.max_restarts} times (reward.reward_kwargs.max_restarts): {last_line(error)}"
            ) from error
        return {"reward_score": score.total, "reward_extra_info": score.info}


def read_row(data: DataProto, tokenizer: Any) -> RolloutRow:
    """What the reward needs of a verl row: candidates from ``extra_info``, the rationale and its length from the response.

    Raises:
        RewardError: a field is missing or of the wrong kind; the message names the row and the field.
    """
    item = data[len(data) - 1]  # of several outputs of one rollout verl scores the last
    fields = item.non_tensor_batch
    extra, label = _mapping(fields, "extra_info"), _mapping(fields, "reward_model")
    record_id = _text(extra, "extra_info.record_id", "?")
    positive_id = _text(label, "reward_model.ground_truth", record_id)
    negative_ids = _texts(extra, "extra_info.negative_ids", record_id)
    negatives = _texts(extra, "extra_info.negatives", record_id)
    if len(negative_ids) != len(negatives):
        raise RewardError(
            f"verl row {record_id!r}: {len(negatives)} extra_info.negatives for {len(negative_ids)} negative_ids; "
            "expected one each"
        )
    if positive_id in negative_ids:
        raise RewardError(
            f"verl row {record_id!r}: the positive {positive_id!r} is among its own extra_info.negative_ids"
        )
    prompt_width = item.batch["attention_mask"].shape[-1] - item.batch["responses"].shape[-1]
    length = int(item.batch["attention_mask"][prompt_width:].sum())
    tokens = item.batch["responses"][:length].tolist()
    return RolloutRow(
        record_id=record_id,
        query=_text(extra, "extra_info.query", record_id),
        positive_id=positive_id,
        negative_ids=negative_ids,
        documents={positive_id: _text(extra, "extra_info.positive", record_id)}
        | dict(zip(negative_ids, negatives, strict=True)),
        rationale=tokenizer.decode(tokens, skip_special_tokens=True).strip(),
        length=length,
    )


def _mapping(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = fields.get(name)
    if not isinstance(value, Mapping):
        raise RewardError(
            f"verl row: {name} is {_short(value)}; expected the fields that `skillreason verl-dataset` writes; a row has "
            f"{', '.join(sorted(fields))}"
        )
    return value


def _text(fields: Mapping[str, Any], name: str, record_id: str) -> str:
    value = fields.get(name.split(".")[-1])
    if not isinstance(value, str) or not value.strip():
        raise RewardError(f"verl row {record_id!r}: {name} is {_short(value)}; expected a non-empty string")
    return value


def _texts(fields: Mapping[str, Any], name: str, record_id: str) -> tuple[str, ...]:
    value = fields.get(name.split(".")[-1])
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str) or not len(value):
        raise RewardError(f"verl row {record_id!r}: {name} is {_short(value)}; expected a non-empty list of strings")
    for position, text in enumerate(value):
        if not isinstance(text, str) or not text.strip():
            raise RewardError(
                f"verl row {record_id!r}: {name}[{position}] is {_short(text)}; expected a non-empty string"
            )
    return tuple(value)


def _short(value: Any) -> str:
    return "missing" if value is None else repr(value)[:80]


def _find_or_start_actor(settings: VerlRewardConfig) -> Any:
    """The job's one actor of these settings, its model loaded."""
    actor: Any = (
        ray.remote(RewardActor)
        .options(
            name=settings.actor_name,
            get_if_exists=True,
            num_cpus=settings.cpus,
            num_gpus=settings.gpus,
            max_restarts=settings.max_restarts,
            max_task_retries=settings.max_restarts,  # rows in flight when the process dies are scored by the next one
        )
        .remote(settings)
    )
    loaded, deadline = actor.counts.remote().future(), time.monotonic() + settings.wait_s
    while True:
        try:
            loaded.result(timeout=min(30.0, max(0.0, deadline - time.monotonic())))
            return actor
        except RayActorError as error:
            raise RewardError(f"the reward's actor {settings.actor_name} did not start: {last_line(error)}") from error
        except TimeoutError:
            state = f"it needs {settings.gpus:g} GPUs and {settings.cpus:g} CPUs; free: {ray.available_resources()}"
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"the reward's actor {settings.actor_name} is not up after {settings.wait_s:g} s "
                    f"(reward.reward_kwargs.wait_s): {state}; verl's trainer.n_gpus_per_node must leave it its share"
                ) from None
            logger.warning("waiting for the reward's actor %s: %s", settings.actor_name, state)
