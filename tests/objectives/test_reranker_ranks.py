"""Several processes train a reranker as one does: every strategy against the single process, on gloo."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from models.reranker import Reranker
from models.tiny import TinyConfig, create_tiny

pytestmark = [pytest.mark.deepspeed, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).with_name("reranker_ranks.py")
SIZE = 2
KINDS = [
    *((strategy, "", "cosine") for strategy in ("zero0", "zero2", "zero3", "fsdp2")),
    *((strategy, "-untied", "kl") for strategy in ("zero1", "zero3")),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What both ranks have written for every case."""
    folder = tmp_path_factory.mktemp("reranker-ranks")
    shape = TinyConfig(
        vocab_size=270,
        hidden_size=24,
        intermediate_size=40,
        num_layers=2,
        num_heads=3,
        num_key_value_heads=1,
        head_dim=8,
    )
    model = create_tiny(["charts and tables"], folder / "model", shape)
    generator = torch.Generator().manual_seed(0)
    for suffix in ("", "-untied"):
        target = shutil.copytree(model, folder / "model-untied") if suffix else model
        config = AutoConfig.from_pretrained(model)
        config.tie_word_embeddings = not suffix
        causal_lm = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for name, parameter in causal_lm.named_parameters():
                if "norm" not in name:
                    parameter.normal_(0.0, 0.3, generator=generator)
        causal_lm.save_pretrained(target)
    cases = ["single::cosine", "single:-untied:kl", *(":".join(kind) for kind in KINDS)]
    ranks = []
    for rank in range(SIZE):
        command = [sys.executable, str(SCRIPT), str(rank), str(SIZE), str(folder), str(model), *cases]
        with (folder / f"{rank}.log").open("wb") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            ranks.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment))
    try:
        for process in ranks:
            process.wait(timeout=300)
    except subprocess.TimeoutExpired:
        pass  # the tests show what was not finished
    finally:
        for process in ranks:
            process.kill()
    return folder


def read(folder: Path, case: str, rank: int = 0) -> Any:
    file = folder / f"{case}.{rank}.pt"
    if not file.is_file():
        errors = [e.read_text() for e in sorted(folder.glob("*.error"))]
        logs = [log.read_text()[-2000:] for log in sorted(folder.glob("*.log"))]
        pytest.fail(f"{case} was not finished on rank {rank}:\n" + "\n".join(errors or logs))
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(("strategy", "model", "distill"), KINDS)
def test_two_updates_are_those_of_a_single_process(folder: Path, strategy: str, model: str, distill: str):
    expected = read(folder, f"single:{model}:{distill}")
    for rank in range(SIZE):
        found = read(folder, f"{strategy}:{model}:{distill}", rank)
        for update, other in zip(found["updates"], expected["updates"], strict=True):
            assert update["terms"] == pytest.approx(other["terms"], rel=1e-5, abs=1e-6)
            assert update["norm"] == pytest.approx(other["norm"], rel=1e-4)
        assert found["weights"].keys() == expected["weights"].keys()
        for name, value in expected["weights"].items():
            torch.testing.assert_close(
                found["weights"][name], value, rtol=0, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
            )
        torch.testing.assert_close(found["scores"], expected["scores"], rtol=0, atol=1e-4)


def test_the_references_differ_where_they_should(folder: Path):
    first, second = read(folder, "single::cosine"), read(folder, "single:-untied:kl")
    assert "lm_head.weight" in second["weights"]
    assert "lm_head.weight" not in first["weights"]
    assert set(first["updates"][0]["terms"]) > set(first["updates"][1]["terms"])  # the second has no rationale


@pytest.mark.parametrize("strategy", ["zero3", "fsdp2"])
def test_sharded_weights_are_exported_whole(folder: Path, strategy: str):
    expected = read(folder, "single::cosine")["weights"]
    state = Reranker.load(folder / f"{strategy}::cosine.export").state()
    for name, value in expected.items():
        torch.testing.assert_close(state[name], value, rtol=0, atol=1e-5)
