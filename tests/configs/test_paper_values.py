"""The shipped YAML files hold the numbers of Tables 15 to 17 and of E.1, E.3 and E.5, to the digit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import configs
from configs import GrpoConfig, RerankerConfig, Stage1Config, load_config
from configs.schema import ParallelConfig

FOLDER = Path(configs.__file__).parent


@pytest.mark.parametrize(
    ("name", "model", "optimizer", "lr"),
    [
        ("stage1_0.6b", "Qwen/Qwen3-Embedding-0.6B", "adamw", 2e-5),
        ("stage1_4b", "Qwen/Qwen3-Embedding-4B", "adafactor", 1e-5),
    ],
)
def test_stage1_holds_table_15(name: str, model: str, optimizer: str, lr: float):
    config = load_config(Stage1Config, name)
    assert config.model.path == model
    assert config.model.dtype == "bfloat16"
    assert (config.optim.name, config.optim.lr) == (optimizer, lr)
    assert config.data.train_batch_size == 256
    assert config.data.negatives_per_record == 10
    assert (config.data.max_length, config.data.document_max_length) == (2048, 2048)
    assert (config.data.lm_max_length, config.data.rationale_max_length) == (512, 96)
    assert config.trainer.total_epochs == 1
    assert config.loss.tau == 0.05
    assert (config.loss.lambda_raw, config.loss.lambda_cot) == (1.0, 1.0)
    assert (config.loss.lambda_kl, config.loss.kl_temperature) == (5.0, 1.0)
    assert config.loss.kl_start_update == 30
    assert config.loss.lambda_lm == 0.2
    assert config.loss.gradient_cache is True


@pytest.mark.parametrize("name", ["grpo_0.6b", "grpo_4b"])
def test_grpo_holds_table_16(name: str):
    config = load_config(GrpoConfig, name)
    assert config.model.dtype == "bfloat16"
    assert (config.actor.optim.name, config.actor.optim.lr) == ("adamw", 2e-6)
    assert config.data.train_batch_size == 112
    assert (config.data.max_prompt_length, config.data.max_response_length) == (1024, 192)
    assert (config.rollout.n, config.rollout.temperature, config.rollout.top_p) == (8, 0.8, 0.95)
    assert (config.actor.clip_ratio, config.actor.clip_ratio_c) == (0.2, 3.0)
    assert config.actor.kl_loss_coef == 0.001
    assert config.actor.sft_coef == 0.0
    assert config.actor.ppo_epochs == 1
    assert config.trainer.total_epochs == 1


@pytest.mark.parametrize("name", ["grpo_0.6b", "grpo_4b"])
def test_the_reward_holds_e_3(name: str):
    terms = load_config(GrpoConfig, name).reward.terms
    assert {key: (term.weight, term.params) for key, term in terms.items()} == {
        "margin": (1.0, {"tau": 0.05}),
        "gain": (1.0, {"tau": 0.05}),
        "length": (1.0, {"budget": 128, "rate": 0.01, "cap": 0.4}),
    }


@pytest.mark.parametrize(
    ("name", "model"),
    [("reranker_0.6b", "Qwen/Qwen3-Reranker-0.6B"), ("reranker_4b", "Qwen/Qwen3-Reranker-4B")],
)
def test_the_reranker_holds_table_17_and_e_5(name: str, model: str):
    config = load_config(RerankerConfig, name)
    assert (config.model.path, config.model.dtype) == (model, "bfloat16")
    assert (config.data.train_batch_size, config.data.max_candidates, config.data.max_length) == (128, 20, 4096)
    assert (config.optim.name, config.optim.lr) == ("adamw", 1e-5)
    assert config.trainer.total_epochs == 1
    assert (config.loss.lambda_distill, config.loss.lambda_lm, config.loss.tau) == (1.0, 0.2, 1.0)
    assert (config.loss.window_groups, config.parallel.workers) == (1, 8)  # one group a device; 16 local steps make 128
    assert config.data.document_format == "skillreason"
    assert (config.data.query_chars, config.data.description_chars, config.data.body_chars) == (0, 300, 2500)


def test_skill2querys_reranker_holds_c_2_2_and_c_3_2():
    config = load_config(RerankerConfig, "reranker_skill2query", ["model.path=x"])
    assert config.data.instruction == (
        "Given a task description, judge whether the skill document is relevant and useful for completing the task"
    )
    assert (config.data.query_chars, config.data.description_chars, config.data.body_chars) == (1500, 500, 2000)
    assert (config.data.max_length, config.data.max_candidates, config.data.document_format) == (
        4096,
        10,
        "skill2query",
    )
    assert (config.loss.tau, config.loss.lambda_distill, config.loss.lambda_lm) == (1.0, 0.0, 0.0)


def test_the_schemas_defaults_are_the_0_6b_values():
    required = ["run.name=x", "model.path=x", "data.train_file=x"]
    stage1 = load_config(Stage1Config, None, required)
    paper = load_config(Stage1Config, "stage1_0.6b", [*required, "data.exclusions_file="])
    assert (stage1.loss, stage1.optim, stage1.trainer) == (paper.loss, paper.optim, paper.trainer)
    reranker = load_config(RerankerConfig, None, [*required, "data.corpus_file=x"])
    paper = load_config(RerankerConfig, "reranker_0.6b", [*required, "data.corpus_file=x"])
    assert (reranker.data, reranker.loss, reranker.optim) == (paper.data, paper.loss, paper.optim)
    grpo = load_config(GrpoConfig, "grpo_0.6b", required)
    # how many processes train is no value of the paper's
    assert replace(grpo.actor, parallel=ParallelConfig()) == GrpoConfig().actor


@pytest.mark.parametrize(
    "path",
    sorted(p for stage in ("stage1", "grpo", "reranker") for p in FOLDER.glob(f"{stage}_*.yaml")),
    ids=lambda p: p.stem,
)
def test_every_shipped_file_loads(path: Path):
    required = ["run.name=x", "model.path=x", "data.train_file=x"]
    if path.stem.startswith("stage1"):
        load_config(Stage1Config, path, required)
    elif path.stem.startswith("reranker"):
        load_config(RerankerConfig, path, [*required, "data.corpus_file=x"])
    else:
        load_config(GrpoConfig, path, required)
