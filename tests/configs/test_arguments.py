"""The configuration among the words of a command: first, or after ``--config``."""

from __future__ import annotations

import pytest

from configs import ConfigError
from configs.arguments import split_arguments


@pytest.mark.parametrize(
    "arguments",
    [["grpo_tiny", "run.name=x"], ["--config", "grpo_tiny", "run.name=x"], ["run.name=x", "--config=grpo_tiny"]],
)
def test_a_configuration_is_given_first_or_after_config(arguments: list[str]):
    assert split_arguments(arguments) == ("grpo_tiny", ["run.name=x"])


@pytest.mark.parametrize(
    "arguments", [[], ["run.name=x"], ["--config"], ["--config", "a", "--config", "b"], ["--config=a", "--config"]]
)
def test_none_or_two_configurations_are_refused(arguments: list[str]):
    with pytest.raises(ConfigError, match="expected one: a YAML file"):
        split_arguments(arguments)


def test_config_of_a_parsed_command_line_counts_too():
    assert split_arguments(["run.name=x"], "grpo_tiny") == ("grpo_tiny", ["run.name=x"])
    with pytest.raises(ConfigError, match="2 configurations"):
        split_arguments(["--config", "other"], "grpo_tiny")
