"""What a submitted job's processes run first: take over the environment variables that travelled beside the code.

``skillreason submit`` copies this file into the job as a package of its own, next to ``values.json``. Ray's own ``env_vars``
would do the same, but Ray writes them, values included, into its logs on every node.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def load() -> None:
    """Set the variables of ``values.json``; Ray calls it in every worker of the job (``worker_process_setup_hook``)."""
    os.environ.update(json.loads(Path(__file__).with_name("values.json").read_text(encoding="utf-8")))


def run() -> None:
    """Become the job's command, which follows on this process's command line, with the variables set."""
    load()
    os.execvp(sys.argv[1], sys.argv[1:])
