"""One script for a machine with a GPU, torch and transformers and nothing else of ours: speed, MFU, and a real short training.

Random weights of Qwen3-0.6B's shape in bf16 encode, take a Stage-I step, a GRPO step and sample rollouts, each once with shared
prefixes and packing and once plain (every sequence for itself, padded), in turns. With ``--data`` and ``--model`` both stages
then train the given backbone on real records and are evaluated. Results are written after every part.

    python benchmarks/gpu.py --out gpu.json
    python benchmarks/gpu.py --out gpu.json --model smollm2-135m --data DATA     # skills.jsonl.gz, train.jsonl, dev_bench.jsonl
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # it is not installed where this runs

import numpy as np
import torch

from configs.schema import OptimizerConfig, Stage1LossConfig
from models.backbone import Backbone
from models.generation import SamplingParams, sample_rollouts
from models.shared_prefix import distinct_tokens
from models.tiny import TinyConfig, create_tiny
from models.tokenization import ModelTokenizer
from objectives.engine_torch import ReplicaEngine
from objectives.stage1 import Stage1Batch, stage1_backward

PEAK_BF16 = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "A800": 312e12, "L40S": 362e12, "4090": 165e12}
"""Dense bf16 FLOP/s by a word of the device's name."""

SHAPES: dict[str, dict[str, int]] = {
    "0.6b": {
        "vocab_size": 151669, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    },
    "toy": {
        "vocab_size": 2048, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    },
}  # fmt: skip


def random_backbone(shape: str, device: str, dtype: str) -> Backbone:
    """A Qwen3 of a shape of :data:`SHAPES` with random weights, and the tokenizer of a tiny one."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    with tempfile.TemporaryDirectory() as scratch:
        folder = create_tiny(["what do you want done?"], Path(scratch) / "tiny", TinyConfig(vocab_size=300))
        tokenizer = ModelTokenizer.load(str(folder))
    settings: dict[str, Any] = {**SHAPES[shape], "tie_word_embeddings": True, "max_position_embeddings": 32768}
    config = Qwen3Config(**settings)
    with torch.device(device):
        model = Qwen3ForCausalLM(config).float().eval()
    model.config.use_cache = False
    compute = {"bfloat16": torch.bfloat16, "float32": torch.float32}[dtype]
    return Backbone(model, tokenizer, compute_dtype=compute, source=f"random {shape}")


class Bench:
    """Times both ways of one computation on one model, and keeps the results."""

    def __init__(self, backbone: Backbone, rounds: int):
        self.backbone = backbone
        self.rounds = rounds
        config = backbone.model.config
        embedding = config.vocab_size * config.hidden_size
        self.layers = sum(p.numel() for p in backbone.model.parameters()) - embedding
        self.embedding = embedding
        name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
        self.peak = next((flops for word, flops in PEAK_BF16.items() if word in name), None)

    def compare(self, call: Callable[[], float]) -> dict[str, Any]:
        """Seconds with and without sharing, in turns, after a warm-up of each; ``call`` returns what must be equal."""
        seconds: dict[bool, list[float]] = {True: [], False: []}
        values: dict[bool, float] = {}
        memory: dict[bool, float] = {}
        for number in range(self.rounds + 1):
            for shared in (True, False):
                self.backbone.share_prefixes = shared
                if torch.cuda.is_available():
                    torch.cuda.reset_peak_memory_stats()
                start = self._now()
                values[shared] = call()
                if number:
                    seconds[shared].append(self._now() - start)
                if torch.cuda.is_available():
                    memory[shared] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        self.backbone.share_prefixes = True
        return {
            "shared_s": round(statistics.median(seconds[True]), 5),
            "plain_s": round(statistics.median(seconds[False]), 5),
            "ratio": round(statistics.median(p / s for s, p in zip(seconds[True], seconds[False], strict=True)), 2),
            "values": [values[True], values[False]],
            "peak_gib": [memory[True], memory[False]] if memory else None,
        }

    def rates(self, row: dict[str, Any], tokens: int, distinct: int, flops: float) -> dict[str, Any]:
        """Adds tokens a second (all sequences' tokens, shared or not) and MFU (of the arithmetic that is really needed)."""
        row |= {"tokens": tokens, "distinct_tokens": distinct}
        row["tokens_per_s"] = {side: round(tokens / row[f"{side}_s"]) for side in ("shared", "plain")}
        row["mfu"] = None
        if self.peak:
            row["mfu"] = {side: round(flops / row[f"{side}_s"] / self.peak, 4) for side in ("shared", "plain")}
        return row

    def _now(self) -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()


def draw(rng: np.random.Generator, count: int, low: int, high: int, vocabulary: int) -> list[list[int]]:
    """``count`` random sequences of ``low`` to ``high`` tokens."""
    return [rng.integers(3, vocabulary, size=rng.integers(low, high + 1)).tolist() for _ in range(count)]


def encoding(bench: Bench, scale: float) -> dict[str, Any]:
    """Documents of uneven lengths, without gradients."""
    rng = np.random.default_rng(0)
    documents = draw(rng, max(8, int(512 * scale)), 100, 800, bench.backbone.model.config.vocab_size)
    row = bench.compare(lambda: float(bench.backbone.encode(documents, 65536).sum()))
    tokens = sum(map(len, documents))
    return bench.rates(row, tokens, tokens, 2.0 * bench.layers * tokens)


def stage1(bench: Bench, scale: float) -> dict[str, Any]:
    """Forward and backward of all four losses; requests of 40 to 80 tokens, rationales of 25 to 45, ten documents a record."""
    rng = np.random.default_rng(1)
    n, vocabulary = max(4, int(48 * scale)), bench.backbone.model.config.vocab_size
    head, anchor, teacher = draw(rng, 3, 30, 30, vocabulary)
    requests = [head + request for request in draw(rng, n, 40, 80, vocabulary)]
    rationales = draw(rng, n, 25, 45, vocabulary)
    documents = draw(rng, 10 * n, 100, 500, vocabulary)
    pool = [bench.backbone.tokenizer.pooling_token_id]
    both = list(zip(requests, rationales, strict=True))
    batch = Stage1Batch(
        raw=[r + pool for r in requests],
        privileged=[r + c + anchor + pool for r, c in both],
        teacher=[r + c + teacher + pool for r, c in both],
        documents=documents,
        document_ids=[str(i) for i in range(len(documents))],
        positive=torch.arange(n) * 10,
        masked=torch.zeros(n, len(documents), dtype=torch.bool),
        prompts=requests,
        rationales=rationales,
        weights=torch.ones(n),
    )
    engine = ReplicaEngine(bench.backbone, OptimizerConfig())
    config = Stage1LossConfig(micro_batch_tokens=32768)

    def step() -> float:
        engine.zero_grad()
        return stage1_backward(engine, batch, config, update=config.kl_start_update)["loss/total"]

    row = bench.compare(step)
    engine.zero_grad()
    sequences = [*batch.raw, *batch.privileged, *batch.teacher, *documents, *(r + c for r, c in both)]
    tokens, distinct = sum(map(len, sequences)), distinct_tokens(sequences)
    written = sum(map(len, rationales))
    return bench.rates(row, tokens, distinct, 6.0 * (bench.layers * distinct + bench.embedding * written))


def grpo(bench: Bench, scale: float) -> dict[str, Any]:
    """Forward and backward of a batch of groups: prompts of 150 tokens, eight responses of 45 each."""
    rng = np.random.default_rng(2)
    groups, vocabulary = max(2, int(28 * scale)), bench.backbone.model.config.vocab_size
    prompts = [p for p in draw(rng, groups, 150, 150, vocabulary) for _ in range(8)]
    responses = draw(rng, 8 * groups, 45, 45, vocabulary)
    advantages = torch.from_numpy(rng.standard_normal(len(responses))).float().to(bench.backbone.device)
    sequences = [p + r for p, r in zip(prompts, responses, strict=True)]

    def step() -> float:
        bench.backbone.zero_grad()
        loss = 0.0
        for rows in bench.backbone.plan(sequences, 16384)[0]:
            found, _, mask = bench.backbone.response_log_probs(
                [prompts[r] for r in rows], [responses[r] for r in rows], 0.8
            )
            part = -(advantages[rows][:, None] * torch.exp(found - found.detach()) * mask).sum() / (45 * len(responses))
            part.backward()
            loss += float((found.detach() * mask).sum()) / (45 * len(responses))
        return loss

    row = bench.compare(step)
    bench.backbone.zero_grad()
    tokens, distinct = sum(map(len, sequences)), distinct_tokens(sequences)
    return bench.rates(row, tokens, distinct, 6.0 * (bench.layers * distinct + bench.embedding * 45 * len(responses)))


def rollouts(bench: Bench, scale: float) -> dict[str, Any]:
    """Eight samples of 45 tokens a prompt: one prefill a prompt, against ``generate(num_return_sequences=8)``."""
    rng = np.random.default_rng(3)
    backbone = bench.backbone
    prompts = draw(rng, max(2, int(16 * scale)), 150, 150, backbone.model.config.vocab_size)
    params = SamplingParams(n=8, max_tokens=45)
    ids = torch.tensor(prompts, device=backbone.device)
    seconds: dict[str, list[float]] = {"ours": [], "generate": []}
    for number in range(bench.rounds + 1):
        for side in seconds:
            start = bench._now()
            if side == "ours":
                sample_rollouts(backbone, prompts, params, list(range(len(prompts))))
            else:
                with torch.inference_mode(), backbone.autocast():
                    backbone.model.generate(
                        ids, do_sample=True, temperature=0.8, top_p=0.95, top_k=0, num_return_sequences=8,
                        min_new_tokens=45, max_new_tokens=45, pad_token_id=0, use_cache=True,
                    )  # fmt: skip
            if number:
                seconds[side].append(bench._now() - start)
    median = {side: statistics.median(values) for side, values in seconds.items()}
    tokens = 8 * 45 * len(prompts)
    return {
        **{f"{side}_s": round(value, 4) for side, value in median.items()},
        "tokens_per_s": {side: round(tokens / value) for side, value in median.items()},
        "ratio": round(median["generate"] / median["ours"], 2),
    }


PARTS: dict[str, Callable[[Bench, float], dict[str, Any]]] = {
    "encoding": encoding,
    "stage1": stage1,
    "grpo": grpo,
    "rollouts": rollouts,
}


def environment() -> dict[str, Any]:
    """What the figures depend on."""
    import transformers

    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cuda": torch.version.cuda,
    }


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="0.6b")
    parser.add_argument("--scale", type=float, default=1.0, help="sizes of the batches, as a share of the usual")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", action="append", choices=[*PARTS, "training"], help="only these (repeatable)")
    parser.add_argument("--model", help="folder of a pretrained causal LM, for the training")
    parser.add_argument("--data", type=Path, help="folder of skills, training and test requests, for the training")
    parser.add_argument("--updates", type=int, nargs=2, default=(60, 16), help="of Stage I and of Stage II")
    parser.add_argument("--seconds", type=float, default=460, help="no part begins after so many")
    arguments = parser.parse_args(argv)
    begun = time.perf_counter()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    dtype = "bfloat16" if device == "cuda" else "float32"
    result: dict[str, Any] = {"environment": environment(), "shape": arguments.shape, "dtype": dtype, "parts": {}}
    wanted = arguments.part or [*PARTS, "training"]

    def record(name: str, run: Callable[[], dict[str, Any]]) -> None:
        spent = time.perf_counter() - begun
        if spent > arguments.seconds:
            result["parts"][name] = {"skipped": f"{spent:.0f} s were spent"}
        else:
            try:
                result["parts"][name] = {**run(), "part_s": round(time.perf_counter() - begun - spent, 1)}
            except Exception as error:  # a part that fails must not cost the others: device time is lent
                result["parts"][name] = {"failed": f"{type(error).__name__}: {error}"}
        print(name, json.dumps(result["parts"][name]), flush=True)
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")

    if any(name in PARTS for name in wanted):
        bench = Bench(random_backbone(arguments.shape, device, dtype), arguments.rounds)
        for name in (name for name in PARTS if name in wanted):
            record(name, lambda name=name: PARTS[name](bench, arguments.scale))
        del bench
    if "training" in wanted:
        from gpu_training import train

        if arguments.model and arguments.data:
            left = arguments.seconds - (time.perf_counter() - begun)
            first, second = arguments.updates
            record("training", lambda: train(arguments.model, arguments.data, device, first, second, left))
        else:
            record("training", lambda: {"skipped": "no --model and --data"})
    return result


if __name__ == "__main__":
    main()
