"""Seconds of a weight push against the model's size: object store and broadcast, against one dictionary through the driver.

The policy's worker and the rollout workers (transformers engine, float32) are Ray actors of this machine with one thread each. A
push is over when every worker could generate from the new weights. One warm-up, then the median of the repeats.

    python benchmarks/weight_push.py tiny=runs/demo/untrained small=~/.cache/skillreason/backbones/smollm2-135m-l4
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import torch
from tqdm import tqdm

from actors.rollout import RolloutWorker
from actors.weight_buckets import Bucket, fill_buckets
from actors.weight_sync import WeightPublisher, WeightSync, WeightUpdate
from configs.schema import ModelConfig, RolloutConfig
from models.backbone import Backbone
from models.generation import SamplingParams

TRANSFERS = ("driver", "object_store", "broadcast")


class PolicyWorker(WeightPublisher):
    """A policy of one worker that only gives its weights away."""

    def __init__(self, path: str, bucket_mb: int):
        torch.set_num_threads(1)
        self.backbone = Backbone.load(path)
        super().__init__(lambda: iter(self.backbone.state().items()), rank=0, bucket_mb=bucket_mb, device="cpu")

    def size(self) -> int:
        return sum(tensor.numel() for tensor in self.backbone.state().values())

    def whole(self) -> Bucket:
        """All weights as the result of the call, as they travel without a weight sync."""
        (bucket,) = fill_buckets(self.backbone.state().items(), 4096, "float32")
        return bucket.as_array()


class Pending:
    def __init__(self, reference: Any, value: int):
        self.reference, self.value = reference, value

    def result(self) -> int:
        ray.get(self.reference)
        return self.value


class Source:
    """What :class:`WeightSync` asks of the policy; every push is a new version."""

    def __init__(self, worker: Any):
        self.worker = worker
        self.version = 0

    def weight_device(self) -> str:
        return "cpu"

    def publish_weights(self, dtype: str) -> WeightUpdate:
        self.version += 1
        update: Any = ray.get(self.worker.publish.remote(self.version, dtype))
        return update

    def open_weight_group(self) -> tuple[str, int]:
        address: Any = ray.get(self.worker.open_group.remote())
        return address

    def start_join_weight_group(self, size: int, backend: str) -> Pending:
        return Pending(self.worker.join_group.remote(size, backend), 0)

    def start_broadcast_weights(self, dtype: str) -> Pending:
        self.version += 1
        return Pending(self.worker.broadcast.remote(self.version, dtype), self.version)


def pusher(transfer: str, policy: Any, workers: dict[str, Any]) -> Callable[[], None]:
    """A function that makes one push."""
    if transfer != "driver":
        sync = WeightSync(Source(policy), RolloutConfig(weight_transfer=transfer))
        return lambda: sync.push(workers) and None

    def through_the_driver() -> None:
        update = WeightUpdate(1, (ray.put(ray.get(policy.whole.remote())),))
        ray.get([worker.load_weights.remote(update) for worker in workers.values()])

    return through_the_driver


def measure(name: str, path: str, arguments: argparse.Namespace, bar: Any) -> list[dict[str, Any]]:
    """One row a transfer."""
    policy = ray.remote(PolicyWorker).options(num_cpus=0).remote(path, arguments.bucket_mb)
    model, params = ModelConfig(path=path, dtype="float32"), SamplingParams(n=1)
    workers = {
        f"rollout-{i}": ray.remote(RolloutWorker)
        .options(num_cpus=0)
        .remote(model, RolloutConfig(name="hf"), params, threads=1, device="cpu")
        for i in range(arguments.workers)
    }
    parameters: Any = ray.get(policy.size.remote())
    ray.get([worker.ready.remote() for worker in workers.values()])
    rows = []
    for transfer in TRANSFERS:
        push = pusher(transfer, policy, workers)
        seconds = []
        for _ in range(arguments.repeats + 1):
            start = time.perf_counter()
            push()
            seconds.append(time.perf_counter() - start)
            bar.update()
        median = statistics.median(seconds[1:])
        megabytes = parameters * 4 / 2**20
        rows.append(
            {
                "model": name,
                "parameters": parameters,
                "MiB": megabytes,
                "transfer": transfer,
                "first_s": seconds[0],
                "median_s": median,
                "min_s": min(seconds[1:]),
                "max_s": max(seconds[1:]),
                "MiB_per_s": megabytes / median,
            }
        )
    actors: list[Any] = [policy, *workers.values()]
    for actor in actors:
        ray.kill(actor)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME=FOLDER", help="causal LM folders, smallest first")
    parser.add_argument("--workers", type=int, default=2, help="rollout workers")
    parser.add_argument("--repeats", type=int, default=5, help="pushes after the warm-up")
    parser.add_argument("--bucket-mb", type=int, default=64, help="rollout.weight_bucket_mb")
    parser.add_argument("--object-store-mb", type=int, default=2048, help="size of Ray's object store")
    parser.add_argument("--out", type=Path, help="also write the rows as JSON")
    arguments = parser.parse_args()

    models = [text.partition("=")[::2] for text in arguments.models]
    for name, folder in models:
        if not (Path(folder).expanduser() / "config.json").is_file():
            parser.error(f"{name}={folder}: expected the folder of a causal LM, with a config.json")
    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        object_store_memory=arguments.object_store_mb * 2**20,
        log_to_driver=False,
    )
    rows: list[dict[str, Any]] = []
    total = len(models) * len(TRANSFERS) * (arguments.repeats + 1)
    with tqdm(total=total, unit="push", dynamic_ncols=True) as bar:
        for name, folder in models:
            bar.set_description(name)
            rows += measure(name, str(Path(folder).expanduser()), arguments, bar)
    ray.shutdown()

    print(f"{arguments.workers} rollout workers, buckets of {arguments.bucket_mb} MiB, median of {arguments.repeats}")
    columns = ("model", "parameters", "MiB", "transfer", "first s", "median s", "min s", "max s", "MiB/s")
    print("{:<10} {:>12} {:>6} {:<13} {:>8} {:>9} {:>7} {:>7} {:>7}".format(*columns))
    for row in rows:
        print("{:<10} {:>12,} {:>6.0f} {:<13} {:>8.3f} {:>9.3f} {:>7.3f} {:>7.3f} {:>7.0f}".format(*row.values()))
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
