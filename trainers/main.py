"""What ``python -m trainers.<stage> CONFIG key=value ...`` does: load the configuration, train, report."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from typing import TypeVar

from configs import GrpoConfig, RerankerConfig, Stage1Config, load_config
from configs.errors import EXPECTED_ERRORS
from trainers.interrupt import EXIT_CODE, Interrupted
from trainers.run_folder import RunFolder

C = TypeVar("C", Stage1Config, RerankerConfig, GrpoConfig)


def main(schema: type[C], train: Callable[[C], RunFolder], argv: list[str] | None = None) -> None:
    """Command line of one trainer; exits 1 on a named error and 130 when interrupted."""
    module = sys.modules["__main__"].__spec__
    parser = argparse.ArgumentParser(
        prog=f"python -m {module.name}" if module else None,
        epilog="example: CONFIG may be a file or a name such as stage1_tiny; overrides: run.name=mine optim.lr=1e-5",
    )
    parser.add_argument("config", help="YAML file, or the name of one in configs/")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S")
    try:
        run = train(load_config(schema, arguments.config, arguments.overrides))
    except Interrupted as stopped:
        print(stopped.message, file=sys.stderr)
        sys.exit(stopped.code)
    except KeyboardInterrupt:
        print("interrupted; the last checkpoint, if any, stands", file=sys.stderr)
        sys.exit(EXIT_CODE)
    except EXPECTED_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    print(f"done: {run.root}")
