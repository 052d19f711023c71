"""Peak memory of Stage I at several batch sizes, against the sum of its parts: it grows with the micro-batch, not with the batch.

Each point is one update of eq. 7 in a fresh process whose optimizer has its state: the peak of its resident set less what it
holds besides the weights when model and batch have been read (on a GPU: ``torch.cuda.max_memory_allocated``). The parts are
weights, gradients, AdamW's state, the largest parameter's gradient of one backward pass before it is added, the embeddings of the
batch with their gradients, and the larger of two: the activations of a micro-batch of the encoder, or those of one of the
rationale loss with its logits. Activations are what autograd is seen to keep for the largest micro-batch.

    python benchmarks/stage1_memory.py --model FOLDER --records stage1.jsonl [--out FILE]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from configs.schema import OptimizerConfig, Stage1DataConfig, Stage1LossConfig
from data_pipeline.records import read_stage1
from evaluation.report import align_table
from models.backbone import Backbone
from models.folders import write_json
from models.token_log_probs import LOGIT_CHUNK
from objectives.engine_torch import ReplicaEngine
from objectives.stage1 import Stage1Batch, Stage1Collator, stage1_backward

MIB = 2**20


@dataclass(frozen=True)
class Point:
    """One measurement: a batch of ``records`` in micro-batches of ``token_budget`` tokens."""

    model: str
    file: str
    records: int
    token_budget: int
    negatives: int
    max_length: int
    document_max_length: int
    rationale_prompt: str
    threads: int


def measure(point: Point) -> dict[str, float]:
    """Peak and parts of an update in MiB, and the tokens of the batch; in a process that has done nothing else."""
    torch.set_num_threads(point.threads)
    data = Stage1DataConfig(
        max_length=point.max_length,
        document_max_length=point.document_max_length,
        negatives_per_record=point.negatives,
    )
    loss = Stage1LossConfig(kl_start_update=0, micro_batch_tokens=point.token_budget)
    records = read_stage1(point.file)[: point.records]
    if len(records) < point.records:
        raise ValueError(f"{point.file}: {len(records)} records; expected at least the largest batch, {point.records}")
    on_gpu = torch.cuda.is_available()
    backbone = Backbone.load(point.model, device="cuda" if on_gpu else "cpu").eval()
    backbone.tokenizer.prompt_style = point.rationale_prompt
    batch = Stage1Collator(backbone, data)(records)
    besides = _resident() - _bytes(backbone)
    engine = ReplicaEngine(backbone, OptimizerConfig())
    engine.step(clip_grad=1.0)  # of gradients that are all zero: it makes the optimizer's state
    stage1_backward(engine, batch, loss, update=0)
    engine.step(clip_grad=1.0)
    peak = torch.cuda.max_memory_allocated() if on_gpu else _peak() - besides
    return {"tokens": _tokens(backbone, batch), "peak": peak / MIB, **parts(backbone, batch, loss)}


def parts(backbone: Backbone, batch: Stage1Batch, config: Stage1LossConfig) -> dict[str, float]:
    """What an update cannot do without, in MiB."""
    weights = float(_bytes(backbone))
    encoded = [*batch.raw, *batch.privileged, *batch.teacher, *batch.documents]
    written = [[*p, *r[:-1]] for p, r in zip(batch.prompts, batch.rationales, strict=True)]
    budget = config.micro_batch_tokens
    encoding = _saved(
        backbone, lambda: backbone.token_states([encoded[i] for i in _largest(backbone, encoded, budget)])
    )
    writing = _saved(backbone, lambda: backbone.token_states([written[i] for i in _largest(backbone, written, budget)]))
    rows = min(LOGIT_CHUNK, sum(len(batch.rationales[i]) for i in _largest(backbone, written, budget)))
    logits = 4.0 * rows * backbone.model.config.vocab_size * 4  # with their log-softmax and two more of their size
    return {
        "weights": weights / MIB,
        "gradients": weights / MIB,
        "optimizer": 2 * weights / MIB,
        "in flight": max(p.numel() for p in backbone.model.parameters()) * 4.0 / MIB,
        "embeddings": 2 * 4.0 * len(encoded) * backbone.hidden_size / MIB,
        "micro-batch": max(encoding, writing + logits) / MIB,
    }


def _largest(backbone: Backbone, sequences: list[list[int]], budget: int) -> list[int]:
    return max(backbone.plan(sequences, budget)[0], key=lambda rows: sum(len(sequences[r]) for r in rows))


def _tokens(backbone: Backbone, batch: Stage1Batch) -> float:
    views = [*batch.raw, *batch.privileged, *batch.teacher, *batch.documents]
    return float(
        sum(map(len, views)) + sum(len(p) + len(r) for p, r in zip(batch.prompts, batch.rationales, strict=True))
    )


def _saved(backbone: Backbone, forward: Callable[[], Any]) -> float:
    """Bytes that autograd keeps for the backward pass of a computation, each storage once, weights apart."""
    known = {p.untyped_storage().data_ptr() for p in backbone.model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage  # held, or its address would be used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        forward()
    return float(sum(storage.nbytes() for storage in kept.values()))


def _bytes(backbone: Backbone) -> int:
    return sum(p.numel() * p.element_size() for p in backbone.model.parameters())


def _resident() -> int:
    """Bytes of memory in use now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of a causal LM")
    parser.add_argument("--records", required=True, help="stage1.jsonl of skillreason records")
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 64, 128, 256], help="records of an update")
    parser.add_argument("--token-budgets", type=int, nargs="+", default=[2048, 8192], help="loss.micro_batch_tokens")
    parser.add_argument("--negatives", type=int, default=1, help="explicit ones of each record")
    parser.add_argument("--max-length", type=int, default=160, help="tokens of a request's views")
    parser.add_argument("--document-max-length", type=int, default=64)
    parser.add_argument("--rationale-prompt", choices=("paper", "short"), default="short")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, help="JSON to write")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)  # read by the processes that are started
    points = [
        Point(
            model=arguments.model,
            file=arguments.records,
            records=records,
            token_budget=budget,
            negatives=arguments.negatives,
            max_length=arguments.max_length,
            document_max_length=arguments.document_max_length,
            rationale_prompt=arguments.rationale_prompt,
            threads=arguments.threads,
        )
        for budget in arguments.token_budgets
        for records in arguments.batches
    ]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        measured = list(tqdm(pool.imap(measure, points), total=len(points), desc="updates"))
    names = ["weights", "gradients", "optimizer", "in flight", "embeddings", "micro-batch"]
    rows = [["token budget", "records", "tokens", *names, "sum", "peak", "peak / sum"]]
    for point, values in zip(points, measured, strict=True):
        total = sum(values[name] for name in names)
        cells = [*(values[name] for name in names), total, values["peak"]]
        ratio = values["peak"] / total
        rows.append([str(point.token_budget), str(point.records), f"{values['tokens']:.0f}"])
        rows[-1] += [*(f"{cell:.0f}" for cell in cells), f"{ratio:.2f}"]
    print(f"MiB, {arguments.threads} threads\n\n{align_table(rows)}")
    if arguments.out is not None:
        both = [{**vars(point), **values} for point, values in zip(points, measured, strict=True)]
        write_json(arguments.out, {"points": both})


if __name__ == "__main__":
    main()
