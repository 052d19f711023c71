"""The keys that a verl user sets: what they default to, and which ones are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from configs import ConfigError
from configs.schema import TermConfig
from rewards.verl_config import VerlRewardConfig, read_reward_config


def verl_config(reward_kwargs: Any = None, **reward: Any) -> Any:
    """As much of verl's configuration as the reward reads."""
    defaults: dict[str, Any] = {"custom_reward_function": {"path": None}, "reward_model": {"enable": False}}
    if reward_kwargs is not None:
        defaults["reward_kwargs"] = reward_kwargs
    return OmegaConf.create({"reward": defaults | reward, "actor_rollout_ref": {"model": {"path": "models/policy"}}})


def test_without_keys_the_paper_s_terms_count_and_the_policy_s_first_weights_retrieve():
    settings = read_reward_config(verl_config())
    assert settings.terms == {name: TermConfig(weight=1.0) for name in ("margin", "gain", "length")}
    assert settings.retriever_path == "models/policy"


def test_terms_that_are_given_are_the_whole_list():
    mine = {"function": "my.module:mine", "weight": 0.5, "params": {"scale": 2.0}}
    settings = read_reward_config(verl_config({"terms": {"margin": {"params": {"tau": 0.1}}, "mine": mine}}))
    assert settings.terms == {
        "margin": TermConfig(params={"tau": 0.1}),
        "mine": TermConfig(0.5, "my.module:mine", {"scale": 2.0}),
    }


@pytest.mark.parametrize(
    "given, problem",
    [
        ({"retriver_path": "x"}, r"reward\.reward_kwargs\.retriver_path: .*did you mean retriever_path\?"),
        ({"xyz": 1}, r"reward\.reward_kwargs\.xyz: .*there are retriever_path, dtype, terms"),
        ({"terms": {"margin": {"wait": 1}}}, r"reward\.reward_kwargs\.terms\.margin\.wait"),
        ({"gpus": "many"}, r"reward\.reward_kwargs\.gpus: .*many"),
        ("margin", r"reward\.reward_kwargs is 'margin'; expected keys and values"),
        ([1], r"reward\.reward_kwargs is \[1\]; expected keys and values"),
        ({"max_query_length": 7}, r"reward\.reward_kwargs\.max_query_length is 7; expected at least 8"),
        ({"gpus": -1}, r"reward\.reward_kwargs\.gpus is -1"),
        ({"wait_s": 0}, r"reward\.reward_kwargs\.wait_s is 0"),
        ({"device": "tpu"}, r"reward\.reward_kwargs\.device is 'tpu'; expected one of auto, cpu, cuda"),
        ({"dtype": "int8"}, r"reward\.reward_kwargs\.dtype is 'int8'; expected one of float32, bfloat16"),
        ({"terms": {"margin": {"weight": 0}}}, r"reward\.reward_kwargs\.terms\.\*\.weight are all 0"),
        ({"terms": {"margin": {"weight": float("nan")}}}, r"terms\.margin\.weight is nan"),
        ({"terms": {"margin": {"params": {"tau": 0}}}}, r"terms\.margin\.params\.tau is 0; expected a number above 0"),
    ],
)
def test_a_wrong_key_is_refused_by_name(given: Any, problem: str):
    with pytest.raises(ConfigError, match=problem):
        read_reward_config(verl_config(given))


@pytest.mark.parametrize(
    "reward, problem",
    [
        ({"custom_reward_function": {"path": "mine.py"}}, r"custom_reward_function\.path is 'mine\.py'; expected null"),
        ({"reward_model": {"enable": True}}, r"reward_model\.enable is true; expected false"),
    ],
)
def test_keys_under_which_verl_would_not_ask_us_are_refused(reward: dict[str, Any], problem: str):
    with pytest.raises(ConfigError, match=problem):
        read_reward_config(verl_config(**reward))


def test_the_actor_is_one_for_equal_settings_and_another_for_others():
    names = {read_reward_config(verl_config({"dtype": dtype})).actor_name for dtype in ("float32", "float32")}
    assert len(names) == 1
    assert VerlRewardConfig(dtype="bfloat16").actor_name != VerlRewardConfig(dtype="float32").actor_name
