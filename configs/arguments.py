"""The configuration and its overrides among the words of a command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from configs.load import ConfigError


def split_arguments(arguments: Sequence[str], config: str | None = None) -> tuple[str, list[str]]:
    """Configuration and overrides from ``CONFIG key=value …`` or ``--config CONFIG key=value …``.

    Args:
        config: what ``--config`` gave, where the command line has already been parsed.

    Raises:
        ConfigError: no configuration, or two.
    """
    rest: list[str] = []
    given = [config] if config else []
    waiting = False
    for argument in arguments:
        if waiting or argument.startswith("--config="):
            given.append(argument.removeprefix("--config="))
            waiting = False
        elif argument == "--config":
            waiting = True
        else:
            rest.append(argument)
    if not given and rest and "=" not in rest[0]:
        given.append(rest.pop(0))
    if len(given) != 1 or waiting:
        raise ConfigError(
            f"{len(given)} configurations in {shlex.join(arguments) or 'an empty command'}; expected one: a YAML file, or the "
            "name of one in configs/, as first argument or after --config"
        )
    return given[0], rest
