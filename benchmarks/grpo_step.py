"""One GRPO update of given rollouts, ours against TRL's GRPOTrainer: reference log-probabilities, loss, backward, optimizer.

Both sides have the same weights, rollouts, advantages, threads and settings, and take turns, update by update. The rollouts are
the model's own: ``--groups`` prompts of ``--prompt-tokens`` tokens with eight responses of ``--response-tokens`` tokens each. The
first update, which is not timed, has responses of uneven length, so that its loss is not near zero. Losses and gradient norms
must agree in every update, or the script fails. TRL lives in an environment of its own::

    python3.11 -m venv trl && trl/bin/pip install trl==1.16.0 transformers==5.10.4 torch==2.13.0
    python benchmarks/grpo_step.py --model FOLDER --peer-python trl/bin/python [--peer-python OTHER] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from actors.policy import Policy
from actors.policy_batch import PolicyBatch
from actors.reference import Reference
from configs.schema import ActorConfig, ModelConfig, OptimizerConfig
from data_pipeline.sample_library import load_sample_corpus
from evaluation.report import align_table
from models.backbone import Backbone
from models.folders import write_json
from models.generation import SamplingParams, sample_rollouts
from objectives.policy_gradient import group_relative_advantages

RESPONSES = 8
TEMPERATURE = 0.8
LEARNING_RATE = 1e-5
LOSS_TOLERANCE = 1e-4
NORM_TOLERANCE = 1e-3
"""Relative, of the gradient norm: after several updates the rounding of two implementations has added up."""
FORMATS = (".2f", ".2f", ".2f", ".2f", ".1e", ".1e")


def sample_batch(model: str, groups: int, prompt_tokens: int, response_tokens: int) -> PolicyBatch:
    """Rollouts of the model itself, without end tokens so that all have the same length, and rewards drawn at random."""
    backbone = Backbone.load(model).eval()
    texts = [f"{skill.description} {skill.body}" for skill in load_sample_corpus()][:groups]
    prompts = backbone.tokenizer.encode_prompts(texts, prompt_tokens)
    if len(texts) < groups or any(len(prompt) != prompt_tokens for prompt in prompts):
        raise SystemExit(
            f"--groups {groups} --prompt-tokens {prompt_tokens}: the sample library has no such prompts; ask for less"
        )
    params = SamplingParams(n=RESPONSES, temperature=TEMPERATURE, top_p=1.0, max_tokens=response_tokens)
    rollouts = sample_rollouts(backbone, prompts, params, list(range(groups)))
    return PolicyBatch(
        query_ids=[str(group) for group in range(groups) for _ in range(RESPONSES)],
        prompts=[prompt for prompt in prompts for _ in range(RESPONSES)],
        responses=[rollout.tokens for group in rollouts for rollout in group],
        rewards=torch.rand(groups * RESPONSES, generator=torch.Generator().manual_seed(0)),
        ref_log_probs=[],
    )


class Ours:
    """Policy and reference in this process; with ``share`` off every row is computed whole."""

    def __init__(self, arguments: argparse.Namespace, batches: list[PolicyBatch], *, share: bool):
        self.batches = batches
        model = ModelConfig(path=arguments.model, dtype="float32")
        config = ActorConfig(
            optim=OptimizerConfig(lr=LEARNING_RATE, weight_decay=0.0, clip_grad=1.0),
            ppo_max_token_len=arguments.token_budget,
        )
        common: dict[str, Any] = {"temperature": TEMPERATURE, "threads": arguments.threads, "device": "cpu"}
        self.kl_loss_coef = config.kl_loss_coef
        self.policy = Policy(model, config, seed=0, **common)
        self.reference = Reference(model, token_budget=arguments.token_budget, **common)
        for role in (self.policy, self.reference):
            role.backbone.share_prefixes = share

    def update(self, number: int) -> dict[str, float]:
        batch = self.batches[min(number, 1)]
        start, cpu_start = time.perf_counter(), time.process_time()
        log_probs, _ = self.reference.log_probs(batch.prompts, batch.responses)
        metrics = self.policy.update(replace(batch, ref_log_probs=log_probs))
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        loss = metrics["actor/pg_loss"] + self.kl_loss_coef * metrics["actor/kl_loss"]
        norm = metrics["actor/grad_norm"]
        return {"seconds": seconds, "cpu_seconds": cpu_seconds, "loss": loss, "grad_norm": norm}


class Trl:
    """TRL in a process of its own, which waits while others compute."""

    def __init__(self, python: str, arguments: argparse.Namespace, batches: list[PolicyBatch], folder: Path):
        config = ActorConfig()
        job = {
            "model": str(Path(arguments.model).resolve()),
            "batches": [_groups(batch) for batch in batches],
            "threads": arguments.threads,
            "micro_batch": arguments.peer_batch,
            "temperature": TEMPERATURE,
            "beta": config.kl_loss_coef,
            "epsilon": config.clip_ratio,
            "lr": LEARNING_RATE,
            "clip_grad": 1.0,
            "updates": arguments.updates + 1,
        }
        file = folder / "job.json"
        file.write_text(json.dumps(job))
        self.log = folder / "trl.log"
        script = Path(__file__).with_name("grpo_step_trl.py")
        environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads), "HF_HUB_OFFLINE": "1"}
        environment.pop("PYTHONPATH", None)
        self.process = subprocess.Popen(
            [python, str(script), str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            text=True,
            env=environment,
        )
        versions = (
            "import trl, transformers, torch; print(trl.__version__, transformers.__version__, torch.__version__)"
        )
        answer = subprocess.run([python, "-c", versions], capture_output=True, text=True, check=False)
        if answer.returncode:
            raise SystemExit(f"--peer-python {python}: TRL cannot be imported there\n{answer.stderr[-2000:]}")
        self.versions = dict(zip(("trl", "transformers", "torch"), answer.stdout.split(), strict=True))

    def update(self, number: int) -> dict[str, float]:
        del number  # it counts, too
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # its log says why
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"TRL stopped:\n{self.log.read_text()[-3000:]}")
        return json.loads(line)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def _groups(batch: PolicyBatch) -> list[dict[str, Any]]:
    advantages = group_relative_advantages(batch.rewards, batch.query_ids).tolist()
    groups = [slice(start, start + RESPONSES) for start in range(0, len(batch.prompts), RESPONSES)]
    return [
        {"prompt": batch.prompts[g.start], "responses": batch.responses[g], "advantages": advantages[g]} for g in groups
    ]


def check_equal(name: str, update: int, ours: dict[str, float], theirs: dict[str, float]) -> tuple[float, float]:
    """The difference of the losses and the relative one of the gradient norms, where both are small enough."""
    loss = abs(ours["loss"] - theirs["loss"])
    norm = abs(ours["grad_norm"] - theirs["grad_norm"]) / theirs["grad_norm"]
    if not (loss <= LOSS_TOLERANCE and norm <= NORM_TOLERANCE):
        raise SystemExit(f"update {update}: ours and {name} do not compute the same: {ours} against {theirs}")
    return loss, norm


def compare(sides: dict[str, Ours | Trl], updates: int) -> dict[str, dict[str, float]]:
    """Let the sides take turns; by side the median seconds, the ratios to the first, and how far what was computed is apart."""
    timed: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    apart: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for update in tqdm(range(updates + 1), desc="updates"):
        answers = {name: side.update(update) for name, side in sides.items()}
        ours = next(iter(answers.values()))
        for name, answer in answers.items():
            apart[name].append(check_equal(name, update, ours, answer))
            if update:  # the first one warms up
                timed[name].append(answer)
    first = next(iter(timed.values()))
    return {
        name: {
            "seconds": statistics.median(answer["seconds"] for answer in answers),
            "ratio": statistics.median(a["seconds"] / o["seconds"] for a, o in zip(answers, first, strict=True)),
            "cpu_seconds": statistics.median(answer["cpu_seconds"] for answer in answers),
            "cpu_ratio": statistics.median(
                a["cpu_seconds"] / o["cpu_seconds"] for a, o in zip(answers, first, strict=True)
            ),
            "loss_difference": max(loss for loss, _ in apart[name]),
            "norm_difference": max(norm for _, norm in apart[name]),
        }
        for name, answers in timed.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of a causal LM")
    parser.add_argument("--peer-python", action="append", required=True, help="python with TRL; may be given again")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=150)
    parser.add_argument("--response-tokens", type=int, default=45)
    parser.add_argument("--updates", type=int, default=5, help="timed ones, after one to warm up")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--token-budget", type=int, default=2048, help="ours: actor.ppo_max_token_len, as grpo_small has it"
    )
    parser.add_argument("--peer-batch", type=int, default=16, help="TRL: per_device_train_batch_size")
    parser.add_argument("--out", type=Path, help="JSON to write")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    batch = sample_batch(arguments.model, arguments.groups, arguments.prompt_tokens, arguments.response_tokens)
    uneven = [response[: 1 + (37 * row) % len(response)] for row, response in enumerate(batch.responses)]
    batches = [replace(batch, responses=uneven), batch]
    sides: dict[str, Ours | Trl] = {
        "ours": Ours(arguments, batches, share=True),
        "ours, nothing shared": Ours(arguments, batches, share=False),
    }
    with tempfile.TemporaryDirectory() as scratch:
        for number, python in enumerate(arguments.peer_python):
            folder = Path(scratch, str(number))
            folder.mkdir()
            peer = Trl(python, arguments, batches, folder)
            sides[f"TRL {peer.versions['trl']}"] = peer
        try:
            result = compare(sides, arguments.updates)
        finally:
            for side in sides.values():
                if isinstance(side, Trl):
                    side.close()
    rows = [
        ["", "seconds", "against ours", "CPU seconds", "against ours", "loss differs by", "gradient norm by (relative)"]
    ]
    for name, row in result.items():
        rows.append([name, *(format(value, form) for value, form in zip(row.values(), FORMATS, strict=True))])
    print(
        f"{arguments.groups} groups of {RESPONSES} responses of {arguments.response_tokens} tokens to a prompt of "
        f"{arguments.prompt_tokens}, {arguments.threads} threads, median of {arguments.updates} updates\n\n{align_table(rows)}"
    )
    if arguments.out is not None:
        settings = {key: value for key, value in vars(arguments).items() if key not in ("out", "peer_python")}
        write_json(arguments.out, {**settings, "torch": torch.__version__, "sides": result})


if __name__ == "__main__":
    main()
