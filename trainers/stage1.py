"""Stage I: teach the retriever from the teacher's capability reasoning, in this process or in a group of them on Ray.

``python -m trainers.stage1 CONFIG [key=value ...]`` runs it, also as a Ray job; ``skillreason train stage1`` is the same.
"""

from __future__ import annotations

import logging
from typing import Any

from configs import Stage1Config
from models.tokenization import ModelTokenizer
from trainers.launch import run_stage
from trainers.lengths import check_lengths
from trainers.run_folder import RunFolder, check_input_files, run_identity
from trainers.session import Session
from trainers.stage1_loop import Stage1Data, Stage1Loop, train_in_group

logger = logging.getLogger(__name__)


def train_stage1(config: Stage1Config) -> RunFolder:
    """Run Stage I to its end, or go on from the newest checkpoint of the run's folder.

    One worker without sharding trains in this process. Otherwise ``parallel.workers`` processes do, on the Ray cluster this
    process is connected to, that of ``RAY_ADDRESS`` (a Ray job's), or one of its own on this machine; the run's folder must
    then lie on storage that all nodes share. The batch of an update is the configuration's, whatever the number of processes.

    Raises:
        ConfigError, RecordError, BackboneError, CheckpointError: before the first update, naming what is wrong.
        FloatingPointError: a loss or gradient that is not finite; the last checkpoint stands.
        GroupLost: processes were lost more than ``trainer.max_restarts`` times, or there was no room for them.
        Interrupted: after Ctrl-C, with the checkpoint of the last complete update written.
    """
    check_input_files(config)
    data = Stage1Data.read(config)
    tokenizer = ModelTokenizer.load(config.model.path)
    tokenizer.prompt_style = config.data.rationale_prompt or tokenizer.prompt_style
    check_lengths(config, tokenizer)
    if config.loss.lambda_kl > 0 and data.schedule.total <= config.loss.kl_start_update:
        logger.warning(
            "loss.kl_start_update is %d and the run has %d updates: the KL term of eq. 5 is never switched on",
            config.loss.kl_start_update,
            data.schedule.total,
        )

    def loop_of(config: Any, device: str, session: Session | None, identity: dict[str, Any]) -> Stage1Loop:
        return Stage1Loop(config, data, device, session, identity)

    return run_stage(
        config,
        run_identity(config, data.training),
        data.schedule.total,
        title="Stage I",
        loop_of=loop_of,
        in_group=train_in_group,
    )


if __name__ == "__main__":
    from trainers.main import main

    main(Stage1Config, train_stage1)
