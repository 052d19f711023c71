"""One step of Stage I, ours against what one would use instead: loss and gradients of the same batch, from the same weights.

``--losses raw`` takes eq. 2 alone, against sentence-transformers' ``CachedMultipleNegativesRankingLoss`` with the fastest of
several mini-batch sizes, and against its plain ``MultipleNegativesRankingLoss``, which keeps all activations. ``--losses all``
takes eq. 7 (raw, privileged, alignment and rationale losses) against a gradient-cached implementation that computes view by view.
The sides run in processes of their own and take turns; losses and gradient norms must agree, or the script fails::

    python benchmarks/stage1_step.py --model FOLDER --records stage1.jsonl --losses raw [--out FILE]
    python benchmarks/stage1_step.py --model FOLDER --records stage1.jsonl --losses all [--out FILE]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stage1_step_sides import Setup, serve
from tqdm import tqdm

from configs.schema import Stage1DataConfig, Stage1LossConfig
from data_pipeline.records import Stage1Record, read_stage1
from evaluation.report import align_table
from models.folders import write_json

TOLERANCE = 1e-4
"""Of the losses, and relative of the gradient norms."""
MINI_BATCHES = (16, 32, 64)


class Process:
    """A side in a process of its own, which waits while others compute."""

    def __init__(self, name: str, setup: Setup):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(name, setup, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.connection.recv()

    def step(self, option: int = 0) -> dict[str, float]:
        self.connection.send(option)
        return self.connection.recv()

    def close(self) -> float:
        """End it; its peak memory in GiB."""
        self.connection.send(None)
        return self.connection.recv()


def choose_records(
    records: Sequence[Stage1Record], count: int, negatives: int, *, distinct: bool
) -> list[Stage1Record]:
    """The first records; ``distinct`` leaves out those that have a document in common with one before."""
    chosen: list[Stage1Record] = []
    seen: set[str] = set()
    for record in records:
        documents = {record.positive_id, *record.negative_ids[:negatives]}
        if len(chosen) < count and not (distinct and documents & seen):
            chosen.append(record)
            seen |= documents
    if len(chosen) < count:
        raise SystemExit(f"only {len(chosen)} records without a common document; ask for less than --batch {count}")
    return chosen


def compare(turns: dict[str, tuple[Process, int]], repeats: int) -> dict[str, dict[str, float]]:
    """Let the sides take turns; by side the median seconds, the ratio to the first, and how far what was computed is apart."""
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    apart: dict[str, list[tuple[float, float]]] = {name: [] for name in turns}
    for _ in tqdm(range(repeats), desc="steps"):
        answers = {name: process.step(option) for name, (process, option) in turns.items()}
        ours = next(iter(answers.values()))
        for name, answer in answers.items():
            loss = abs(answer["loss"] - ours["loss"])
            norm = abs(answer["grad_norm"] - ours["grad_norm"]) / ours["grad_norm"]
            if not (loss <= TOLERANCE and norm <= TOLERANCE):
                raise SystemExit(f"ours and {name} do not compute the same: {ours} against {answer}")
            seconds[name].append(answer["seconds"])
            apart[name].append((loss, norm))
    first = next(iter(seconds.values()))
    return {
        name: {
            "seconds": statistics.median(times),
            "ratio": statistics.median(time / own for time, own in zip(times, first, strict=True)),
            "loss_difference": max(loss for loss, _ in apart[name]),
            "norm_difference": max(norm for _, norm in apart[name]),
        }
        for name, times in seconds.items()
    }


def fastest(process: Process, options: Sequence[int]) -> int:
    """The option whose step takes least, each tried once."""
    times = {option: process.step(option)["seconds"] for option in tqdm(options, desc="the peer's mini-batch size")}
    return min(times, key=lambda option: times[option])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of a causal LM")
    parser.add_argument("--records", required=True, help="stage1.jsonl of skillreason records")
    parser.add_argument("--losses", choices=("raw", "all"), required=True)
    parser.add_argument("--batch", type=int, default=64, help="records")
    parser.add_argument("--negatives", type=int, default=1, help="explicit ones of each record")
    parser.add_argument("--max-length", type=int, default=160, help="tokens of a request's views")
    parser.add_argument("--document-max-length", type=int, default=96)
    parser.add_argument("--token-budget", type=int, default=Stage1LossConfig.micro_batch_tokens)
    parser.add_argument("--rationale-prompt", choices=("paper", "short"), default="paper")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON to write")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)  # read by the processes that are started
    raw = arguments.losses == "raw"
    only_raw: dict[str, Any] = {"lambda_cot": 0.0, "lambda_kl": 0.0, "lambda_lm": 0.0} if raw else {}
    setup = Setup(
        model=arguments.model,
        records=choose_records(read_stage1(arguments.records), arguments.batch, arguments.negatives, distinct=raw),
        data=Stage1DataConfig(
            max_length=arguments.max_length,
            document_max_length=arguments.document_max_length,
            negatives_per_record=arguments.negatives,
        ),
        loss=Stage1LossConfig(kl_start_update=0, micro_batch_tokens=arguments.token_budget, **only_raw),
        prompt_style=arguments.rationale_prompt,
        threads=arguments.threads,
    )
    ours = Process("ours", setup)
    peer = Process("sentence-transformers" if raw else "view by view", setup)
    if raw:
        best = fastest(peer, [size for size in MINI_BATCHES if size <= arguments.batch])
        turns = {
            "ours": (ours, 0),
            f"CachedMultipleNegativesRankingLoss, mini-batches of {best}": (peer, best),
            "MultipleNegativesRankingLoss": (peer, 0),
        }
    else:
        turns = {"ours": (ours, 0), "view by view": (peer, 0)}
    result = compare(turns, arguments.repeats)
    memory = {"ours": ours.close(), "peer": peer.close()}
    rows = [["", "seconds", "against ours", "difference of the loss", "of the gradient norm, relative"]]
    for name, row in result.items():
        rows.append(
            [name, *(format(v, form) for v, form in zip(row.values(), (".2f", ".2f", ".1e", ".1e"), strict=True))]
        )
    print(
        f"{arguments.batch} records with {arguments.negatives} negatives, losses: {arguments.losses}, {arguments.threads} "
        f"threads, median of {arguments.repeats} steps, in turns; peak memory of the processes {memory['ours']:.1f} and "
        f"{memory['peer']:.1f} GiB\n\n{align_table(rows)}"
    )
    if arguments.out is not None:
        settings = {key: str(value) if key == "out" else value for key, value in vars(arguments).items()}
        write_json(arguments.out, {**settings, "sides": result, "peak_memory_gib": memory})


if __name__ == "__main__":
    main()
