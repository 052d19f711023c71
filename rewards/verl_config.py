"""The keys below ``reward.reward_kwargs`` with which a verl user sets our reward."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from configs import ConfigError
from configs.load import validate_terms
from configs.schema import TermConfig
from rewards.terms import BUILTIN_TERMS

SECTION = "reward.reward_kwargs"


@dataclass
class VerlRewardConfig:
    """What can be set in verl. Keys that ``GrpoConfig`` also has mean the same there."""

    retriever_path: str = ""  # frozen reward retriever, a causal LM folder; empty: actor_rollout_ref.model.path
    dtype: str = "bfloat16"  # compute precision; weights are float32
    terms: dict[str, TermConfig] = field(default_factory=dict)  # empty: margin, gain and length, each with weight 1
    pool_file: str = ""  # a corpus whose documents join every row's own candidates
    exclusions_file: str = ""  # exclusion graph; neighbours of the positive leave its negatives
    max_query_length: int = 2048
    document_max_length: int = 2048
    micro_batch_tokens: int = 16384  # padded tokens of one forward pass; 0: all at once
    device: str = "auto"  # auto, cpu or cuda
    threads: int = 1  # torch threads of the actor
    cpus: float = 0.0  # Ray resources of the actor; verl reserves GPUs for itself first
    gpus: float = 0.0
    max_restarts: int = 3  # times Ray starts the actor anew after its process died
    wait_s: float = 1800.0  # how long to wait for the actor's resources and its model

    @property
    def actor_name(self) -> str:
        """The Ray name of the actor: the same in every process of a job, another for other settings."""
        text = OmegaConf.to_yaml(OmegaConf.structured(self), sort_keys=True)
        return f"skillreason_reward_{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"


def read_reward_config(config: Any) -> VerlRewardConfig:
    """Our keys out of verl's whole configuration (a ``DictConfig``), with defaults filled in.

    Raises:
        ConfigError: an unknown key, a value that cannot work, or keys of verl under which it would not call our manager.
    """
    reward = config.reward
    if reward.custom_reward_function.path is not None:
        raise ConfigError(
            f"reward.custom_reward_function.path is {reward.custom_reward_function.path!r}; expected null: this manager computes "
            f"the reward itself, and a function of yours goes into {SECTION}.terms"
        )
    if reward.reward_model.enable:
        raise ConfigError(
            "reward.reward_model.enable is true; expected false: verl would score with its reward model instead"
        )
    given = {} if reward.get("reward_kwargs") is None else reward.reward_kwargs
    if not isinstance(given, Mapping):
        raise ConfigError(f"{SECTION} is {given!r}; expected keys and values")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(VerlRewardConfig), OmegaConf.create(dict(given)))
    except OmegaConfBaseException as error:
        key, names = str(error.full_key or ""), [f.name for f in dataclasses.fields(VerlRewardConfig)]
        near = difflib.get_close_matches(key, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
        raise ConfigError(f"{SECTION}.{key}: {str(error).splitlines()[0]} ({hint})") from error
    settings: VerlRewardConfig = OmegaConf.to_object(merged)  # type: ignore[assignment]
    settings.terms = settings.terms or {name: TermConfig() for name in BUILTIN_TERMS}
    settings.retriever_path = settings.retriever_path or str(config.actor_rollout_ref.model.path)
    _check(settings)
    return settings


def _check(settings: VerlRewardConfig) -> None:
    smallest = {"max_query_length": 8, "document_max_length": 8, "wait_s": 1}
    for key in ("micro_batch_tokens", "threads", "cpus", "gpus", "max_restarts"):
        smallest[key] = 0
    for key, bound in smallest.items():
        value = getattr(settings, key)
        if not bound <= value < math.inf:
            raise ConfigError(f"{SECTION}.{key} is {value}; expected at least {bound}")
    for key, accepted in (("device", ("auto", "cpu", "cuda")), ("dtype", ("float32", "bfloat16"))):
        if getattr(settings, key) not in accepted:
            raise ConfigError(f"{SECTION}.{key} is {getattr(settings, key)!r}; expected one of {', '.join(accepted)}")
    validate_terms(f"{SECTION}.terms", settings.terms)
