"""Connecting to a Ray cluster, and checking that it can hold what a run reserves."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

import ray

from configs import ConfigError, GrpoConfig


@contextlib.contextmanager
def ray_session() -> Iterator[None]:
    """Use the cluster this process is connected to, or that of ``RAY_ADDRESS`` (a Ray job has it), or one on this machine.

    Without an address Ray would join whatever cluster was once started on the machine, whose processes run in another
    folder; a run that nobody pointed at a cluster gets one of its own, and it ends with the run.
    """
    if ray.is_initialized():
        yield
        return
    ray.init(
        address=os.environ.get("RAY_ADDRESS", "local"),
        include_dashboard=False if "RAY_ADDRESS" not in os.environ else None,
        log_to_driver=False,
        logging_level=logging.WARNING,
    )
    try:
        yield
    finally:
        ray.shutdown()


def check_resources(config: GrpoConfig) -> None:
    """Refuse a placement that this cluster cannot hold, before an actor waits for ever.

    Raises:
        ConfigError: naming what is needed and what the cluster has.
    """
    res, members = config.resources, config.rollout.workers
    needed = {
        "CPU": res.policy_cpus + res.reference_cpus + res.retriever_cpus + res.rollout_cpus * members,
        "GPU": res.policy_gpus + res.reference_gpus + res.retriever_gpus + res.rollout_gpus * members,
    }
    total = ray.cluster_resources()
    for kind, amount in needed.items():
        if amount > total.get(kind, 0.0) + 1e-9:
            raise ConfigError(
                f"the roles need {amount:g} {kind}s (resources.*), the cluster has {total.get(kind, 0.0):g}; "
                "lower resources.* or add nodes"
            )
