"""Sampling rationales: ours, which computes a prompt once for its eight samples, against transformers' ``generate``.

Both have the same weights, threads, prompts (requests of the sample library in the rollout prompt) and sampling parameters, and
take turns. Two cases: ``fixed``, in which every rationale has ``--tokens`` tokens on both sides, and ``stopping``, in which they
end where the model ends them; ``generate`` goes on with finished rows until the last one ends, ours drops them. As the two draw
from different random streams, the second case is also compared by token. ``generate`` samples for all prompts in one batch,
padded on the left, or for ``--peer-prompts`` at once.

Before anything is timed: greedy decoding gives the same tokens on both sides, and the log-probabilities that come with sampled
tokens are those of a plain forward pass over prompt and response::

    python benchmarks/rollouts.py --model FOLDER [--prompts 8] [--threads 2] [--out FILE]
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from tqdm import tqdm

from data_pipeline.sample_library import load_sample_requests
from evaluation.report import align_table
from models.backbone import Backbone
from models.batching import pad_left
from models.folders import write_json
from models.generation import Rollout, SamplingParams, sample_rollouts

SAMPLES = 8
TEMPERATURE, TOP_P = 0.8, 0.95
LOG_PROB_TOLERANCE = 1e-4


def generate(
    backbone: Backbone, prompts: list[list[int]], params: SamplingParams, seed: int, together: int
) -> list[list[list[int]]]:
    """Responses ``[Q][n]`` of transformers' ``generate``, cut after their end token."""
    torch.manual_seed(seed)
    stops = set(params.stop_token_ids)
    out: list[list[list[int]]] = []
    for start in range(0, len(prompts), together):
        ids, mask = pad_left(prompts[start : start + together], backbone.tokenizer.pad_id)
        sampling = (
            {"do_sample": False}
            if params.temperature == 0
            else {
                "do_sample": True,
                "temperature": params.temperature,
                "top_p": params.top_p,
                "top_k": 0,
            }
        )
        with torch.inference_mode():
            found = backbone.model.generate(
                ids,
                attention_mask=mask,
                num_return_sequences=params.n,
                max_new_tokens=params.max_tokens,
                eos_token_id=list(params.stop_token_ids) or None,
                pad_token_id=backbone.tokenizer.pad_id,
                use_cache=True,
                **sampling,
            )
        rows = [_until_stop(row, stops) for row in found[:, ids.shape[1] :].tolist()]
        out += [rows[i : i + params.n] for i in range(0, len(rows), params.n)]
    return out


def _until_stop(tokens: list[int], stops: set[int]) -> list[int]:
    for place, token in enumerate(tokens):
        if token in stops:
            return tokens[: place + 1]
    return tokens


def ours(backbone: Backbone, prompts: list[list[int]], params: SamplingParams, seed: int) -> list[list[Rollout]]:
    return sample_rollouts(backbone, prompts, params, [seed + index for index in range(len(prompts))])


def check_equal(backbone: Backbone, prompts: list[list[int]], tokens: int, together: int) -> float:
    """The largest difference between log-probabilities of sampled tokens and a plain forward pass.

    Raises:
        SystemExit: it is too large, or greedy decoding differs from that of ``generate``.
    """
    greedy = SamplingParams(n=1, temperature=0.0, max_tokens=tokens)
    mine = [[r.tokens for r in group] for group in ours(backbone, prompts, greedy, 0)]
    if mine != generate(backbone, prompts, greedy, 0, together):
        raise SystemExit("greedy decoding gives other tokens than generate")
    params = SamplingParams(SAMPLES, TEMPERATURE, TOP_P, tokens, backbone.tokenizer.stop_token_ids)
    largest = 0.0
    for prompt, group in zip(prompts, ours(backbone, prompts, params, 1), strict=True):
        for rollout in group:
            with torch.inference_mode():
                logits = backbone.model(torch.tensor([[*prompt, *rollout.tokens]])).logits[0, len(prompt) - 1 : -1]
            expected = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(rollout.tokens)[:, None]).squeeze(1)
            largest = max(largest, float((expected - torch.tensor(rollout.log_probs)).abs().max()))
    if largest > LOG_PROB_TOLERANCE:
        raise SystemExit(f"log-probabilities of sampled tokens differ by {largest} from a plain forward pass")
    return largest


def compare(
    backbone: Backbone, prompts: list[list[int]], params: SamplingParams, repetitions: int, together: int
) -> dict[str, float]:
    """Medians of seconds and of tokens, and of the ratio of seconds in turns, per token where lengths differ."""
    turns: list[tuple[float, int, float, int]] = []
    for repetition in tqdm(range(repetitions + 1), desc="stopping" if params.stop_token_ids else "fixed"):
        start = time.perf_counter()
        theirs = generate(backbone, prompts, params, repetition, together)
        middle = time.perf_counter()
        mine = ours(backbone, prompts, params, repetition)
        end = time.perf_counter()
        if repetition:  # the first one warms up
            counts = sum(len(r) for group in theirs for r in group), sum(len(r.tokens) for group in mine for r in group)
            turns.append((middle - start, counts[0], end - middle, counts[1]))
    return {
        "generate_seconds": statistics.median(t[0] for t in turns),
        "generate_tokens": statistics.median(t[1] for t in turns),
        "ours_seconds": statistics.median(t[2] for t in turns),
        "ours_tokens": statistics.median(t[3] for t in turns),
        "ratio": statistics.median(t[0] / t[2] for t in turns),
        "ratio_by_token": statistics.median((t[0] / t[1]) / (t[2] / t[3]) for t in turns),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder or hub id of a causal LM")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--max-prompt-tokens", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=45, help="of a rationale; at most as many where it may stop")
    parser.add_argument("--repetitions", type=int, default=5, help="timed ones, after one to warm up")
    parser.add_argument("--peer-prompts", type=int, default=0, help="prompts of a batch of generate; 0: all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON to write")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    backbone = Backbone.load(arguments.model).eval()
    requests, _ = load_sample_requests()
    texts = [request.query for request in requests][: arguments.prompts]
    prompts = backbone.tokenizer.encode_prompts(texts, arguments.max_prompt_tokens)
    together = arguments.peer_prompts or len(prompts)
    largest = check_equal(backbone, prompts, arguments.tokens, together)
    fixed = SamplingParams(SAMPLES, TEMPERATURE, TOP_P, arguments.tokens)
    stopping = SamplingParams(SAMPLES, TEMPERATURE, TOP_P, arguments.tokens, backbone.tokenizer.stop_token_ids)
    cases = {
        name: compare(backbone, prompts, params, arguments.repetitions, together)
        for name, params in (("fixed", fixed), ("stopping", stopping))
    }
    rows = [["", "generate, s", "tokens", "ours, s", "tokens", "ratio", "ratio by token"]]
    for name, row in cases.items():
        rows.append([name, *(format(value, ".0f" if "tokens" in key else ".2f") for key, value in row.items())])
    lengths = [len(prompt) for prompt in prompts]
    print(
        f"{len(prompts)} prompts of {min(lengths)} to {max(lengths)} tokens, {SAMPLES} samples each, {arguments.threads} threads"
    )
    print(f"same greedy tokens; log-probabilities within {largest:.1e} of a plain forward pass\n\n{align_table(rows)}")
    if arguments.out is not None:
        settings = {key: value for key, value in vars(arguments).items() if key != "out"}
        write_json(
            arguments.out, {**settings, "prompt_tokens": lengths, "log_prob_difference": largest, "cases": cases}
        )


if __name__ == "__main__":
    main()
