"""Seconds of an update against the number of workers, what Ray adds to them, and how long a run takes to recover from a loss.

Every process gets one thread, so that figures of the same call compare on a machine with a core for each worker. A variant is a
run of its own; its first updates are left out. "update" is the median of ``time/step``; "between" is the median time from one row
of ``metrics.jsonl`` to the next, and so holds logging and the talk with the driver as well. The last variant is run again, and
one of its workers is killed: "recovery" is the time from the last update before to the first of the new group.

    python benchmarks/scaling.py stage1 --model runs/demo/backbone --records runs/demo/data/stage1.jsonl
    python benchmarks/scaling.py grpo --model runs/demo/stage1/export/causal_lm --records runs/demo/data/stage2.jsonl
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import re
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
import torch

from actors.policy import Policy
from actors.reference import Reference
from actors.retriever import RewardRetriever
from actors.reward import EmbeddedScorer, RequestEmbedder, RewardRequest
from actors.rollout import RolloutWorker, engine_config, sampling_params
from configs import GrpoConfig, Stage1Config, load_config
from data_pipeline.records import read_stage2
from models.tokenization import ModelTokenizer
from trainers.batches import BatchSchedule
from trainers.events import EventLog
from trainers.grpo import GrpoLoop, train_grpo
from trainers.recovery import Account
from trainers.run_folder import RunFolder
from trainers.stage1 import train_stage1
from trainers.tracking import read_metrics

STAGE1 = {
    "in this process": [],
    "Ray, 1 worker": ["parallel.strategy=deepspeed", "parallel.zero_stage=0"],
    "Ray, 2 workers, replicas": ["parallel.workers=2", "parallel.zero_stage=0"],
    "Ray, 2 workers, ZeRO-2": ["parallel.workers=2", "parallel.zero_stage=2"],
    "Ray, 2 workers, ZeRO-3": ["parallel.workers=2", "parallel.zero_stage=3"],
    "Ray, 2 workers, FSDP2": ["parallel.workers=2", "parallel.strategy=fsdp2"],
}
GRPO = {
    "Ray, 1 policy worker": [],
    "Ray, 2 policy workers, FSDP2": ["actor.parallel.workers=2"],
    "Ray, 2 policy workers, ZeRO-2": ["actor.parallel.workers=2", "actor.parallel.strategy=deepspeed"],
    "Ray, 2 rollout workers": ["rollout.workers=2"],
    "Ray, 2 of each": ["actor.parallel.workers=2", "rollout.workers=2", "reward.retriever_workers=2"],
}
"""Variants and the keys that make them."""


@dataclass(frozen=True)
class Timing:
    """One variant: seconds, medians over the updates after the warm-up; ``ratio`` is to the first variant's."""

    variant: str
    update: float
    between: float
    ratio: float
    between_ratio: float


class Watch(threading.Thread):
    """Notes when rows of a run's metrics appear, and acts once after one of them."""

    def __init__(self, run: RunFolder, act_after: int = 0, act: Callable[[], None] | None = None):
        super().__init__(daemon=True)
        self.run_folder, self.act_after, self.act = run, act_after, act
        self.seen: dict[int, float] = {}
        self.ended = threading.Event()

    def run(self) -> None:
        size = -1
        while not self.ended.wait(0.002):
            file = self.run_folder.metrics
            if not file.is_file() or file.stat().st_size == size:
                continue
            size = file.stat().st_size
            for row in read_metrics(file):
                self.seen.setdefault(row["step"], time.perf_counter())
            if self.act is not None and self.act_after in self.seen:
                self.act()
                self.act = None


class Pids(logging.Handler):
    """The process ids of the group that was started last, from the driver's log."""

    def __init__(self) -> None:
        super().__init__()
        self.pids: list[int] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "training on" in record.getMessage():
            self.pids = [int(pid) for pid in re.findall(r"process (\d+)", record.getMessage())]


def time_stage1(arguments: argparse.Namespace, folder: Path) -> tuple[list[Timing], dict[str, Any]]:
    """Run every variant once, and the last one again with a worker that is killed."""

    def config(name: str, keys: list[str]) -> Stage1Config:
        common = [
            f"run.root={folder}",
            f"run.name={name}",
            "run.device=cpu",
            "run.threads=1",
            f"model.path={arguments.model}",
            f"data.train_file={arguments.records}",
            "data.heldout_fraction=0",
            f"trainer.total_steps={arguments.updates}",
            "trainer.total_epochs=1000",
            "trainer.test_freq=0",
            "trainer.export=false",
            "tracking.wandb=disabled",
        ]
        return load_config(Stage1Config, arguments.config, [*common, *arguments.overrides, *keys])

    timings: list[Timing] = []
    for number, (variant, keys) in enumerate(STAGE1.items()):
        loaded = config(f"variant-{number}", [*keys, "trainer.save_freq=0"])
        watch = Watch(RunFolder.of(loaded.run))
        watch.start()
        run = train_stage1(loaded)
        watch.ended.set()
        watch.join()
        steps = [row["time/step"] for row in read_metrics(run.metrics)][arguments.warm_up :]
        times = [watch.seen[step] for step in sorted(watch.seen)][arguments.warm_up :]
        update, between = (
            statistics.median(steps),
            statistics.median(b - a for a, b in itertools.pairwise(times)),
        )
        first = timings[0] if timings else Timing(variant, update, between, 1.0, 1.0)
        timings.append(Timing(variant, update, between, update / first.update, between / first.between))
        print(f"{variant}: {update:.3f} s an update", flush=True)

    pids = Pids()
    logging.getLogger("trainers.launch").addHandler(pids)
    loaded = config("killed", [*STAGE1["Ray, 2 workers, ZeRO-2"], "trainer.save_freq=5"])
    watch = Watch(RunFolder.of(loaded.run), arguments.updates // 2, lambda: os.kill(pids.pids[1], signal.SIGKILL))
    watch.start()
    run = train_stage1(loaded)
    watch.ended.set()
    watch.join()
    return timings, read_metrics(run.events)[0]


class InProcess:
    """Stage II's roles as plain objects of this process, for :class:`trainers.grpo.GrpoLoop`: what a step costs without Ray."""

    def __init__(self, config: GrpoConfig):
        params, engine = sampling_params(config), engine_config(config)
        common: dict[str, Any] = {"threads": config.resources.threads, "device": config.run.device}
        self.worker = RolloutWorker(config.model, engine, params, **common)
        temperature = config.rollout.temperature
        self.policy = Policy(config.model, config.actor, temperature=temperature, seed=config.run.seed, **common)
        budget = config.actor.ppo_max_token_len
        self.model = Reference(config.model, temperature=temperature, token_budget=budget, **common)
        retriever = RewardRetriever(config.model, token_budget=config.reward.micro_batch_tokens, **common)
        lengths = {"max_query_length": config.data.max_query_length}
        lengths["document_max_length"] = config.data.document_max_length
        self.embedder = RequestEmbedder(retriever.encode, **lengths)
        self.scorer = EmbeddedScorer(config.reward)
        self.reference = self.reward = self
        self.version = 0

    def generate(self, prompts: Any, seeds: Any) -> Any:
        return self.worker.generate(prompts, seeds, self.version).groups

    def push_weights(self) -> int:
        self.version += 1
        self.worker.engine.load_weights(self.version, self.policy.engine.full_parameters())
        return self.version

    def log_probs(self, prompts: Any, responses: Any) -> Any:
        answer = self.model.log_probs(prompts, responses)
        return SimpleNamespace(result=lambda: answer)

    def score(self, request: RewardRequest) -> Any:
        return self.scorer.score_embedded(request, self.embedder.embed(request))


def time_grpo(arguments: argparse.Namespace, folder: Path) -> list[Timing]:
    """An update in this process, then one of every variant on Ray."""

    def config(name: str, keys: list[str]) -> GrpoConfig:
        common = [
            f"run.root={folder}",
            f"run.name={name}",
            "run.device=cpu",
            "resources.threads=1",
            "resources.policy_cpus=0.5",
            f"model.path={arguments.model}",
            f"data.train_file={arguments.records}",
            "data.heldout_fraction=0",
            f"trainer.total_steps={arguments.updates}",
            "trainer.total_epochs=1000",
            "trainer.test_freq=0",
            "trainer.save_freq=0",
            "trainer.export=false",
            "tracking.wandb=disabled",
        ]
        return load_config(GrpoConfig, arguments.config, [*common, *arguments.overrides, *keys])

    loaded = config("in-process", [])
    records = read_stage2(loaded.data.train_file)
    run = RunFolder.of(loaded.run)
    roles: Any = InProcess(loaded)
    tokenizer = ModelTokenizer.load(loaded.model.path)
    schedule = BatchSchedule.of(loaded, records, None)
    loop = GrpoLoop(loaded, run, roles, tokenizer, schedule, None, {}, Account(EventLog(run.events)))
    steps = []
    for batch in schedule.after(0):
        loop.step(batch.records, batch.step)
        steps.append(loop.timeline.curves()["time/step"])
    loop.scoring.shutdown()
    first = statistics.median(steps[arguments.warm_up :])
    timings = [Timing("in this process", first, first, 1.0, 1.0)]
    print(f"in this process: {first:.3f} s an update", flush=True)
    for number, (variant, keys) in enumerate(GRPO.items()):
        loaded = config(f"variant-{number}", keys)
        watch = Watch(RunFolder.of(loaded.run))
        watch.start()
        rows = read_metrics(train_grpo(loaded).metrics)[arguments.warm_up :]
        watch.ended.set()
        watch.join()
        update = statistics.median(row["time/step"] for row in rows)
        times = [watch.seen[step] for step in sorted(watch.seen)][arguments.warm_up :]
        between = statistics.median(b - a for a, b in itertools.pairwise(times))
        timings.append(Timing(variant, update, between, update / first, between / first))
        parts = {key: statistics.median(row[key] for row in rows) for key in sorted(rows[0]) if key.startswith("time/")}
        print(
            f"{variant}: {update:.3f} s an update; " + ", ".join(f"{k[5:]} {v:.3f}" for k, v in parts.items()),
            flush=True,
        )
    return timings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(dest="stage", required=True)
    for name, schema, text in (
        ("stage1", "stage1_tiny", "Stage I: in this process, and in groups on Ray Train"),
        ("grpo", "grpo_tiny", "Stage II: in this process, and with groups and pools on Ray"),
    ):
        stage = stages.add_parser(name, help=text)
        stage.add_argument("--model", required=True, help="folder of the backbone")
        stage.add_argument("--records", required=True, help="records of the stage")
        stage.add_argument("--config", default=schema, help="the configuration that gives shapes and losses")
        stage.add_argument("--updates", type=int, default=20, help="updates of a variant")
        stage.add_argument("--warm-up", type=int, default=4, help="first updates that do not count")
        stage.add_argument("--out", type=Path, help="JSON file for the figures")
        stage.add_argument("overrides", nargs="*", metavar="key=value", help="configuration overrides")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S")

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        event: dict[str, Any] = {}
        if arguments.stage == "stage1":
            timings, event = time_stage1(arguments, Path(folder))
        else:
            torch.set_num_threads(1)
            timings = time_grpo(arguments, Path(folder))
    ray.shutdown()
    print("\n| variant | update | between | update, ratio | between, ratio |\n|---|---|---|---|---|")
    for t in timings:
        print(f"| {t.variant} | {t.update:.3f} s | {t.between:.3f} s | {t.ratio:.2f} | {t.between_ratio:.2f} |")
    if event:
        print(f"\nrecovery: {event['seconds']} s, {event['updates_lost']} updates made again ({event['detail']})")
    if arguments.out:
        figures = {"timings": [asdict(t) for t in timings], "recovery": event}
        arguments.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
