"""TRL's side of ``grpo_step.py``: GRPOTrainer's own training step on given rollouts; it runs in TRL's environment, without ours.

``python grpo_step_trl.py JOB.json`` reads a line before each update and answers with one JSON line after it: the update's
seconds, its loss and its gradient norm. Rollouts come through ``rollout_func`` and advantages through a reward function, so
everything after sampling is the trainer's own: padding, reference log-probabilities, loss, backward, clipping, optimizer. What it
spends in those two functions and on decoding the responses is not counted.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # what libraries print goes to stderr: stdout holds the answers alone

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402  # pyright: ignore[reportMissingImports]


class Trainer(GRPOTrainer):
    """GRPOTrainer that keeps its losses and the seconds it spends on what is not compared."""

    loss = 0.0
    not_counted = 0.0

    def _generate(self, *args: Any) -> Any:
        start = time.perf_counter()
        out = super()._generate(*args)
        self.not_counted += time.perf_counter() - start
        return out

    def _calculate_rewards(self, *args: Any) -> Any:
        start = time.perf_counter()
        out = super()._calculate_rewards(*args)
        self.not_counted += time.perf_counter() - start
        return out

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        self.loss += float(loss.detach())
        return loss


class OneByOne(TrainerCallback):
    """Waits for a line before each update and answers after it."""

    trainer: Trainer
    start = seconds = cpu_start = cpu_seconds = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if not sys.stdin.readline():
            sys.exit()
        self.trainer.loss = self.trainer.not_counted = 0.0
        self.start, self.cpu_start = time.perf_counter(), time.process_time()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds = time.perf_counter() - self.start - self.trainer.not_counted
        self.cpu_seconds = time.process_time() - self.cpu_start

    def on_log(self, *_: Any, logs: dict[str, Any], **__: Any) -> None:
        if "grad_norm" in logs:
            answer = {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds, "loss": self.trainer.loss}
            answer["grad_norm"] = logs["grad_norm"]
            print(json.dumps(answer), file=ANSWERS)


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(job["threads"])
    batches: list[list[dict[str, Any]]] = job["batches"]
    groups = batches[-1]
    size = len(groups[0]["responses"])

    def rollouts(prompts: list[str], trainer: Trainer) -> dict[str, Any]:
        groups = batches[min(trainer.state.global_step, len(batches) - 1)]
        seen: Counter[str] = Counter()
        out: dict[str, Any] = {"prompt_ids": [], "completion_ids": [], "logprobs": None, "given": []}
        for prompt in prompts:
            group = groups[int(prompt)]
            out["prompt_ids"].append(group["prompt"])
            out["completion_ids"].append(group["responses"][seen[prompt]])
            out["given"].append(group["advantages"][seen[prompt]])
            seen[prompt] += 1
        return out

    def advantage(given: list[float], **_: Any) -> list[float]:
        return given

    count = size * len(groups)
    settings: dict[str, Any] = {
        "output_dir": tempfile.mkdtemp(),
        "model_init_kwargs": {"dtype": "float32"},
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,  # on by default: a third more to compute
        "pad_to_multiple_of": None,
        "per_device_train_batch_size": job["micro_batch"],
        "gradient_accumulation_steps": count // job["micro_batch"],
        "generation_batch_size": count,
        "num_generations": size,
        "max_completion_length": max(len(r) for g in groups for r in g["responses"]),
        "temperature": job["temperature"],
        "beta": job["beta"],
        "epsilon": job["epsilon"],
        "loss_type": "dapo",  # the mean over the tokens of the whole batch, as verl's token-mean
        "scale_rewards": "none",  # what is given are advantages, whose mean in a group is zero
        "learning_rate": job["lr"],
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": job["clip_grad"],
        "max_steps": job["updates"],
        "num_train_epochs": job["updates"],
        "shuffle_dataset": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    known = {field.name for field in fields(GRPOConfig)}
    callback = OneByOne()
    trainer = Trainer(
        model=job["model"],
        reward_funcs=advantage,
        args=GRPOConfig(**{key: value for key, value in settings.items() if key in known}),
        train_dataset=Dataset.from_dict({"prompt": [str(index) for index in range(len(groups))]}),
        rollout_func=rollouts,
        callbacks=[callback],
    )
    callback.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    main()
