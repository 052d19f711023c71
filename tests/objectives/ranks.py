"""One rank of a process group that runs named cases: ``python ranks.py RANK SIZE FOLDER MODEL CASE...``.

Not a test module: ``test_engine_ranks.py`` starts it for each rank and reads what a case has written,
``FOLDER/<case>.<size>.<rank>.pt``.
A case is ``function:argument:...``. The strategy ``single`` runs on rank 0 alone, without the group.
"""

from __future__ import annotations

import datetime
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import models.token_log_probs
import objectives.engine_deepspeed
import objectives.stage1
from configs.schema import OptimizerConfig, ParallelConfig, Stage1LossConfig
from models.backbone import Backbone
from models.export import export_causal_lm, export_retriever
from objectives.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from objectives.collectives import TorchCollectives
from objectives.engine import Engine, build_engine
from objectives.engine_torch import ReplicaEngine
from objectives.stage1 import Stage1Batch, stage1_backward

RANK, SIZE, FOLDER, MODEL = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
TOKENS = 100
RATES = (1e-3, 4e-4)
LOSS = Stage1LossConfig(
    tau=0.3,
    lambda_raw=0.7,
    lambda_cot=1.3,
    lambda_kl=2.0,
    kl_temperature=2.0,
    kl_start_update=0,
    micro_batch_tokens=TOKENS,
)
SEQUENCES = [[5, 6, 7, 8, 9, 0], [3, 0], [9, 8, 7, 0], [*range(20, 60), 0], [11, 0]]


def batch_of(records: int, documents: int, seed: int) -> Stage1Batch:
    """Random sequences of very uneven lengths; a record's views begin alike, as do all prompts."""
    generator = torch.Generator().manual_seed(seed)

    def sequence(longest: int) -> list[int]:
        length = int(torch.randint(2, longest, (1,), generator=generator))
        return [*torch.randint(2, 250, (length,), generator=generator).tolist(), 0]

    masked = torch.zeros(records, documents, dtype=torch.bool)
    masked[0, -1] = documents > 2
    raw = [sequence(30) for _ in range(records)]
    privileged = [[*view[:-1], *sequence(50)] for view in raw]
    instruction = sequence(20)
    return Stage1Batch(
        raw=raw,
        privileged=privileged,
        teacher=[[*view[:-1], *sequence(10)] for view in privileged],
        documents=[sequence(50) for _ in range(documents)],
        document_ids=[str(i) for i in range(documents)],
        positive=torch.arange(records),
        masked=masked,
        prompts=[[*instruction, *sequence(30)] for _ in range(records)],
        rationales=[sequence(20) for _ in range(records)],
        weights=torch.rand(records, generator=generator) + 0.5,
    )


# The second has fewer requests, and fewer micro-batches, than there are ranks.
BATCHES = (batch_of(5, 7, seed=1), batch_of(1, 2, seed=2))


def engine_of(strategy: str, *, optim: str = "adamw", dtype: str = "float32", model: str = MODEL) -> Engine:
    """``single``, ``fsdp2`` or ``zero0`` to ``zero3``; ``optim`` empty for a frozen model."""
    config = OptimizerConfig(name=optim, lr=1.0, weight_decay=0.1) if optim else None
    if strategy == "single":
        return ReplicaEngine(Backbone.load(model, dtype=dtype), config)
    name = "deepspeed" if strategy.startswith("zero") else strategy
    parallel = ParallelConfig(workers=SIZE, strategy=name, zero_stage=int(strategy[-1]) if name == "deepspeed" else 2)
    return build_engine(Backbone.load(model, dtype=dtype), config, parallel, default_strategy="deepspeed")


def update(engine: Engine, number: int, cache: bool = True) -> dict[str, Any]:
    loss = Stage1LossConfig(**{**vars(LOSS), "gradient_cache": cache})
    terms = stage1_backward(engine, BATCHES[number], loss, update=0)
    engine.set_learning_rate(RATES[number])
    return {"terms": terms, "norm": engine.step(clip_grad=0.5), **snapshot(engine)}


def snapshot(engine: Engine) -> dict[str, Any]:
    state = {f"{name}/{key}": value for name, values in engine.full_optimizer_state() for key, value in values.items()}
    return {
        "weights": {name: value.clone() for name, value in engine.full_parameters()},
        "moments": {key: torch.as_tensor(value).clone() for key, value in state.items()},
    }


# -- cases: what each returns is saved -----------------------------------------------------------------------------------


def updates(strategy: str, cache: str = "cache", model: str = MODEL) -> Any:
    """Two updates, with a checkpoint between them."""
    engine = engine_of(strategy, model=model)
    first = update(engine, 0, cache == "cache")
    if model == MODEL and cache == "cache":
        save_checkpoint(FOLDER / f"{strategy}-on-{1 if strategy == 'single' else SIZE}", 1, engine, {"note": strategy})
    engine.encode(SEQUENCES, TOKENS)  # a forward pass without a backward, as in-training recall makes
    return {"first": first, "second": update(engine, 1, cache == "cache"), "kind": type(engine).__name__}


def updates_untied(strategy: str, cache: str) -> Any:
    """The same for a model whose head is a parameter of its own, which most passes do not reach."""
    return updates(strategy, cache, f"{MODEL}-untied")


def unreached(strategy: str) -> Any:
    """An update in which no rank's loss reaches the head."""
    engine = engine_of(strategy, model=f"{MODEL}-untied")
    stage1_backward(engine, BATCHES[0], Stage1LossConfig(**{**vars(LOSS), "lambda_lm": 0.0}), update=0)
    engine.set_learning_rate(0.01)
    engine.step(clip_grad=0.5)
    return snapshot(engine)


def second_backward(strategy: str) -> Any:
    """Two backward passes without a forward pass between them."""
    engine = engine_of(strategy)
    losses = [engine.response_log_probs([[4, 5]], [[token, 1]])[0].sum() for token in (6, 7)]
    engine.backward(losses[0])
    return {"raised": caught(RuntimeError, lambda: engine.backward(losses[1]))}


def resume(strategy: str, source: str) -> Any:
    """The second update, from a checkpoint that another strategy or number of ranks has written after the first."""
    engine = engine_of(strategy)
    progress = load_checkpoint(FOLDER / source / "step_000001", engine)
    return {"loaded": snapshot(engine), "second": update(engine, 1), "progress": progress}


def resume_before_any_update(strategy: str) -> Any:
    """A checkpoint of a model that has no optimizer state yet."""
    path = save_checkpoint(FOLDER / f"fresh-{strategy}-on-{SIZE}", 0, engine_of(strategy), {})
    engine = engine_of(strategy)
    load_checkpoint(path, engine)
    return {"first": update(engine, 0)}


def adafactor(strategy: str) -> Any:
    engine = engine_of(strategy, optim="adafactor")
    return {"first": update(engine, 0), "second": update(engine, 1)}


def bfloat16(strategy: str) -> Any:
    return update(engine_of(strategy, dtype="bfloat16"), 0)


def bad_gradient(strategy: str) -> Any:
    """One rank alone has a loss of nan; then the first update, as if nothing had been."""
    engine = engine_of(strategy)
    before = snapshot(engine)["weights"]
    prompts, responses = [[4, 5]], [[6, 1]]
    log_probs, _, _ = engine.response_log_probs(prompts, responses)
    engine.backward(log_probs.sum() * (float("nan") if RANK == SIZE - 1 else 1.0))
    raised = caught(FloatingPointError, lambda: engine.step(1.0))
    return {"raised": raised, "before": before, "after": snapshot(engine)["weights"], "first": update(engine, 0)}


def bad_loss(strategy: str) -> Any:
    """One rank alone has a rationale loss that is not finite."""
    engine = engine_of(strategy)
    original = objectives.stage1.rationale_lm_loss
    if RANK == 0:
        objectives.stage1.rationale_lm_loss = lambda *args: original(*args) * float("inf")  # type: ignore[assignment]
    raised = caught(FloatingPointError, lambda: stage1_backward(engine, BATCHES[0], LOSS, update=0))
    objectives.stage1.rationale_lm_loss = original
    return {"raised": raised, "first": update(engine, 0)}


def encode(strategy: str) -> Any:
    engine = engine_of(strategy, optim="")
    counts: list[int] = []
    return {
        "all": engine.encode(SEQUENCES, 60, counts.append),
        "one": engine.encode(SEQUENCES[:1], 60),
        "counts": counts,
    }


def frozen(strategy: str) -> Any:
    with torch.no_grad():
        log_probs, _, mask = engine_of(strategy, optim="").response_log_probs(SEQUENCES[:3], SEQUENCES[1:4], 0.8)
    return {"log_probs": log_probs, "mask": mask}


def export(strategy: str) -> Any:
    engine = engine_of(strategy)
    update(engine, 0)
    export_causal_lm(engine, FOLDER / f"{strategy}-{SIZE}-causal-lm")
    export_retriever(engine, FOLDER / f"{strategy}-{SIZE}-retriever", 64)
    return {"embeddings": engine.encode(SEQUENCES, 0)}


def exchange() -> Any:
    """Every collective, with this rank's own values."""
    ranks = TorchCollectives("cpu")
    rows = torch.full((RANK * 2, 3), float(RANK), requires_grad=True)
    return {
        "rows": ranks.gather_rows(rows),
        "sum": ranks.sum(torch.tensor([1.0, RANK])),
        "max": ranks.max_int(10 - RANK),
        "objects": ranks.gather_objects({"rank": RANK}),
        "broadcast": ranks.broadcast(f"from {RANK}"),
        "tensor": ranks.broadcast_tensor(torch.tensor([RANK + 7.0])),
    }


def unwritable() -> Any:
    """Rank 0 cannot write a checkpoint, and cannot read one; every rank is told."""
    engine = engine_of("zero0")
    (FOLDER / "a-file").write_text("not a folder")
    return {
        "save": caught(Exception, lambda: save_checkpoint(FOLDER / "a-file" / "run", 1, engine, {})),
        "load": caught(CheckpointError, lambda: load_checkpoint(FOLDER / "nowhere", engine)),
    }


def caught(kind: type[Exception], call: Callable[[], Any]) -> str:
    try:
        call()
    except kind as error:
        return f"{type(error).__name__}: {error}"
    return ""


CASES: Mapping[str, Callable[..., Any]] = {
    case.__name__: case
    for case in (
        updates,
        updates_untied,
        unreached,
        second_backward,
        resume,
        resume_before_any_update,
        adafactor,
        bfloat16,
        bad_gradient,
        bad_loss,
        encode,
        frozen,
        export,
        exchange,
        unwritable,
    )
}


def main() -> None:
    torch.set_num_threads(1)
    models.token_log_probs.LOGIT_CHUNK = 8  # so that logits are recomputed in the backward pass
    if SIZE == 4:
        objectives.engine_deepspeed.PERSISTENT_ELEMENTS = 0  # or ZeRO-3 would keep all of a small model on every rank
    store = dist.FileStore(str(FOLDER / f"store-{SIZE}"), SIZE)
    timeout = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=SIZE, timeout=timeout)
    for case in sys.argv[5:]:
        name, *arguments = case.split(":")
        if "single" in arguments and RANK > 0:
            continue
        try:
            torch.save(CASES[name](*arguments), FOLDER / f"{case}.{SIZE}.{RANK}.pt")
        except Exception:
            (FOLDER / f"{case}.{SIZE}.{RANK}.error").write_text(traceback.format_exc())
            os._exit(1)  # the other ranks would wait for this one
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
