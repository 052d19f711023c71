"""Several processes train as one does: every strategy against the single process, on gloo with real process groups."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModelForCausalLM

from models.backbone import Backbone
from models.tiny import TinyConfig, create_tiny
from models.views import document_view

pytestmark = [pytest.mark.deepspeed, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).with_name("ranks.py")
STRATEGIES = ["zero0", "zero1", "zero2", "zero3", "fsdp2"]
PATIENCE = 280  # seconds for each of the two groups; they take some 30 on two idle cores
SHARDED = ["zero3", "fsdp2"]
UNTIED = ["zero1", *SHARDED]

# What a checkpoint of the four ranks becomes on two, and what one of a single process becomes on four.
RESUMED = {
    2: [
        ("zero0", "zero1-on-4"),
        ("zero1", "zero0-on-4"),
        ("zero2", "zero3-on-4"),
        ("zero3", "fsdp2-on-4"),
        ("fsdp2", "zero2-on-4"),
    ],
    4: [("zero2", "single-on-1"), ("zero3", "single-on-1"), ("fsdp2", "single-on-1")],
}
CASES = {
    4: [
        "updates:single:cache",
        "updates_untied:single:cache",
        *(f"updates:{s}:cache" for s in STRATEGIES),
        *(f"updates_untied:{s}:cache" for s in UNTIED),
        *(f"resume:{s}:{source}" for s, source in RESUMED[4]),
        *(f"encode:{s}" for s in SHARDED),
        "exchange",
    ],
    2: [
        *(f"updates:{s}:{cache}" for s in STRATEGIES for cache in ("cache", "no-cache")),
        *(f"unreached:{s}" for s in ("single", *UNTIED)),
        "second_backward:zero3",
        *(f"resume:{s}:{source}" for s, source in RESUMED[2]),
        *(f"resume:single:{s}-on-4" for s in STRATEGIES),
        *(f"resume_before_any_update:{s}" for s in ("zero2", *SHARDED)),
        *(f"bad_gradient:{s}" for s in STRATEGIES),
        *(f"bad_loss:{s}" for s in ("zero2", *SHARDED)),
        *(f"{case}:{s}" for s in ("single", *SHARDED) for case in ("encode", "frozen", "bfloat16")),
        *(f"export:{s}" for s in ("zero2", *SHARDED)),
        *(f"adafactor:{s}" for s in ("single", "zero0")),
        "unwritable",
    ],
}
RUNS = [(4, f"updates:{s}:cache") for s in STRATEGIES] + [
    (2, f"updates:{s}:{cache}") for s in STRATEGIES for cache in ("cache", "no-cache")
]


class Groups:
    """Runs a group of four ranks, then one of two, and holds what their cases have written."""

    def __init__(self, folder: Path, model: Path):
        self.folder = folder
        for size, cases in CASES.items():
            ranks = [self._start(size, rank, model, cases) for rank in range(size)]
            try:
                for process in ranks:
                    process.wait(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                pass  # the tests show what was not finished
            finally:
                for process in ranks:
                    process.kill()

    def _start(self, size: int, rank: int, model: Path, cases: list[str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(SCRIPT), str(rank), str(size), str(self.folder), str(model), *cases]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{size}.{rank}.log").open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)

    def __call__(self, size: int, case: str, rank: int = 0) -> Any:
        file = self.folder / f"{case}.{size}.{rank}.pt"
        if not file.is_file():
            errors = [e.read_text() for e in sorted(self.folder.glob(f"*.{size}.*.error"))]
            logs = [log.read_text()[-2000:] for log in sorted(self.folder.glob(f"{size}.*.log"))]
            pytest.fail(f"{case} was not finished on rank {rank} of {size}:\n" + "\n".join(errors or logs))
        return torch.load(file, weights_only=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Groups:
    """A model of two layers, its twin with a head of its own, and the groups that train them."""
    folder = tmp_path_factory.mktemp("ranks")
    shape = TinyConfig(
        vocab_size=256,
        hidden_size=24,
        intermediate_size=40,
        num_layers=2,
        num_heads=3,
        num_key_value_heads=1,
        head_dim=8,
    )
    model = create_tiny(["charts and tables"], folder / "model", shape)
    generator = torch.Generator().manual_seed(0)
    for tied in (True, False):
        target = model if tied else shutil.copytree(model, folder / "model-untied")
        config = AutoConfig.from_pretrained(model)
        config.tie_word_embeddings = tied
        causal_lm = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for name, parameter in causal_lm.named_parameters():
                if "norm" not in name:
                    parameter.normal_(0.0, 0.3, generator=generator)
        causal_lm.save_pretrained(target)
    return Groups(folder, model)


def assert_equal(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 1e-5) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=0.0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


def first_moments(update: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in update["moments"].items() if name.endswith("/exp_avg")}


# -- updates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "case"), RUNS)
def test_terms_and_gradient_norm_equal_the_single_process(run: Groups, size: int, case: str):
    expected = run(4, "updates:single:cache")
    for rank in range(size):
        actual = run(size, case, rank)
        for number in ("first", "second"):
            assert actual[number]["terms"] == pytest.approx(expected[number]["terms"], rel=1e-5, abs=1e-6)
            assert actual[number]["norm"] == pytest.approx(expected[number]["norm"], rel=1e-5)


@pytest.mark.parametrize(("size", "case"), RUNS)
def test_gradients_equal_the_single_process(run: Groups, size: int, case: str):
    # after one update AdamW's first moment is a tenth of the gradient, clipped to a norm of 0.5
    expected = first_moments(run(4, "updates:single:cache")["first"])
    assert_equal(first_moments(run(size, case)["first"]), expected, tolerance=1e-7)
    assert max(float(value.abs().max()) for value in expected.values()) > 1e-3


@pytest.mark.parametrize(("size", "case"), RUNS)
def test_weights_after_two_updates_equal_the_single_process_on_every_rank(run: Groups, size: int, case: str):
    expected = run(4, "updates:single:cache")
    for rank in range(size):
        actual = run(size, case, rank)
        assert_equal(actual["first"]["weights"], expected["first"]["weights"])
        assert_equal(actual["second"]["weights"], expected["second"]["weights"])
    moved = expected["second"]["weights"]["model.norm.weight"] - expected["first"]["weights"]["model.norm.weight"]
    assert moved.abs().max() > 1e-4


@pytest.mark.parametrize("strategy", UNTIED)
def test_a_head_that_only_some_passes_reach_is_trained_alike(run: Groups, strategy: str):
    expected, actual = run(4, "updates_untied:single:cache"), run(4, f"updates_untied:{strategy}:cache")
    assert "lm_head.weight" in expected["first"]["weights"]
    for number in ("first", "second"):
        assert_equal(first_moments(actual[number]), first_moments(expected[number]), tolerance=1e-7)
        assert_equal(actual[number]["weights"], expected[number]["weights"])


@pytest.mark.parametrize("strategy", UNTIED)
def test_a_head_that_no_pass_reaches_decays_alike(run: Groups, strategy: str):
    expected, actual = run(2, "unreached:single"), run(2, f"unreached:{strategy}")
    # where a gradient is as small as its rounding, AdamW's first update of 0.01 an element shows the rounding
    assert_equal(actual["weights"], expected["weights"], tolerance=1e-4)
    before = load_file(run.folder / "model-untied" / "model.safetensors")["lm_head.weight"]
    torch.testing.assert_close(actual["weights"]["lm_head.weight"], before * (1 - 0.01 * 0.1))


def test_zero_3_refuses_a_backward_pass_that_would_overwrite_another(run: Groups):
    for rank in range(2):
        assert "needs a forward pass of its own" in run(2, "second_backward:zero3", rank)["raised"]


def test_the_strategies_are_what_they_are_called(run: Groups):
    kinds = {s: run(4, f"updates:{s}:cache")["kind"] for s in STRATEGIES}
    assert set(kinds.values()) == {"ReplicaEngine", "DeepSpeedEngine", "Fsdp2Engine"}
    assert kinds["zero3"] == "DeepSpeedEngine"
    assert kinds["fsdp2"] == "Fsdp2Engine"


def test_adafactor_on_replicas_equals_the_single_process_with_factored_moments(run: Groups):
    expected, actual = run(2, "adafactor:single"), run(2, "adafactor:zero0")
    for number in ("first", "second"):
        assert_equal(actual[number]["weights"], expected[number]["weights"])
        assert_equal(actual[number]["moments"], expected[number]["moments"])
    assert actual["first"]["moments"]["model.embed_tokens.weight/exp_avg_sq_col"].shape == (24,)


@pytest.mark.parametrize("strategy", SHARDED)
def test_bfloat16_is_for_computation_alone(run: Groups, strategy: str):
    expected, actual = run(2, "bfloat16:single"), run(2, f"bfloat16:{strategy}")
    full = run(4, "updates:single:cache")["first"]["terms"]
    assert actual["terms"]["loss/total"] == pytest.approx(expected["terms"]["loss/total"], rel=0.02)
    assert actual["terms"]["loss/total"] != full["loss/total"]
    assert {value.dtype for value in (*actual["weights"].values(), *first_moments(actual).values())} == {torch.float32}


# -- numbers that are not finite ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_gradient_that_is_not_finite_on_one_rank_raises_on_every_rank_and_changes_nothing(run: Groups, strategy: str):
    for rank in range(2):
        result = run(2, f"bad_gradient:{strategy}", rank)
        assert result["raised"].startswith("FloatingPointError: the gradient norm is ")
        assert_equal(result["after"], result["before"], tolerance=0.0)


@pytest.mark.parametrize(
    "case", [f"bad_gradient:{s}" for s in STRATEGIES] + [f"bad_loss:{s}" for s in ("zero2", *SHARDED)]
)
def test_gradients_are_dropped_with_the_update(run: Groups, case: str):
    expected = run(4, "updates:single:cache")["first"]
    result = run(2, case)["first"]
    assert_equal(first_moments(result), first_moments(expected), tolerance=1e-7)
    assert_equal(result["weights"], expected["weights"])


@pytest.mark.parametrize("strategy", ["zero2", *SHARDED])
def test_a_loss_that_is_not_finite_on_one_rank_raises_on_every_rank(run: Groups, strategy: str):
    for rank in range(2):
        raised = run(2, f"bad_loss:{strategy}", rank)["raised"]
        assert raised == "FloatingPointError: the rationale LM loss is inf"


# -- checkpoints --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "strategy", "source"),
    [(size, *pair) for size, pairs in RESUMED.items() for pair in pairs]
    + [(2, "single", f"{s}-on-4") for s in STRATEGIES],
)
def test_a_checkpoint_of_other_strategy_and_ranks_goes_on_alike(run: Groups, size: int, strategy: str, source: str):
    expected = run(4, "updates:single:cache")
    written = run(4, f"updates:{source.partition('-')[0]}:cache")["first"]
    actual = run(size, f"resume:{strategy}:{source}")
    assert_equal(actual["loaded"]["weights"], written["weights"], tolerance=0.0)
    assert_equal(actual["loaded"]["moments"], written["moments"], tolerance=0.0)
    assert actual["progress"] == {"note": source.partition("-")[0], "step": 1}
    assert_equal(actual["second"]["weights"], expected["second"]["weights"])
    assert_equal(first_moments(actual["second"]), first_moments(expected["second"]), tolerance=1e-7)


@pytest.mark.parametrize("strategy", ["zero2", *SHARDED])
def test_a_checkpoint_from_before_the_first_update_begins_alike(run: Groups, strategy: str):
    expected = run(4, "updates:single:cache")["first"]
    actual = run(2, f"resume_before_any_update:{strategy}")["first"]
    assert_equal(actual["weights"], expected["weights"])
    assert_equal(actual["moments"], expected["moments"])


def test_every_rank_hears_of_a_folder_that_rank_zero_cannot_use(run: Groups):
    first, second = (run(2, "unwritable", rank) for rank in range(2))
    assert first["save"].startswith("CheckpointWriteError")
    assert "NotADirectoryError" in first["save"]
    assert second["save"] == first["save"]
    assert "no state.json" in first["load"]
    assert second["load"] == first["load"]


# -- forward passes and exports -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "strategy"), [(2, "zero3"), (2, "fsdp2"), (4, "zero3"), (4, "fsdp2")])
def test_encoding_over_ranks_keeps_the_order_and_the_values(run: Groups, size: int, strategy: str):
    expected = run(2, "encode:single")
    for rank in range(size):
        actual = run(size, f"encode:{strategy}", rank)
        torch.testing.assert_close(actual["all"], expected["all"], rtol=0.0, atol=1e-6)
        torch.testing.assert_close(actual["one"], expected["one"], rtol=0.0, atol=1e-6)
    assert sum(sum(run(size, f"encode:{strategy}", rank)["counts"]) for rank in range(size)) == 5
    assert expected["all"].std() > 0.1


@pytest.mark.parametrize("strategy", SHARDED)
def test_a_frozen_model_in_shards_has_the_same_log_probabilities(run: Groups, strategy: str):
    torch.testing.assert_close(run(2, f"frozen:{strategy}"), run(2, "frozen:single"), rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("strategy", ["zero2", *SHARDED])
def test_exports_from_shards_are_the_trained_model(run: Groups, strategy: str):
    expected = run(4, "updates:single:cache")["first"]["weights"]
    folder = run.folder / f"{strategy}-2-causal-lm"
    backbone = Backbone.load(folder)
    assert_equal(backbone.state(), expected)
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]
    retriever = SentenceTransformer(str(run.folder / f"{strategy}-2-retriever"), device="cpu")
    texts = ["a chart", "a table and a chart"]
    tokens = backbone.tokenizer.encode_views([document_view(text) for text in texts], 64)
    expected_embeddings = backbone.encode(tokens, 0).numpy()
    np.testing.assert_allclose(retriever.encode_document(texts), expected_embeddings, atol=1e-5)


# -- collectives --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", range(4))
def test_every_rank_gets_what_all_of_them_gave(run: Groups, rank: int):
    result = run(4, "exchange", rank)
    assert result["rows"].tolist() == [[1.0] * 3] * 2 + [[2.0] * 3] * 4 + [[3.0] * 3] * 6
    assert not result["rows"].requires_grad
    assert result["sum"].tolist() == [4.0, 6.0]
    assert result["max"] == 10
    assert result["objects"] == [{"rank": r} for r in range(4)]
    assert result["broadcast"] == "from 0"
    assert result["tensor"].tolist() == [7.0]
