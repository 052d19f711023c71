"""The shipped YAML files hold the numbers of Tables 15 and 16 and of E.1 and E.3, to the digit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import configs
from configs import GrpoConfig, Stage1Config, load_config
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


def test_the_schemas_defaults_are_the_0_6b_values():
    required = ["run.name=x", "model.path=x", "data.train_file=x"]
    stage1 = load_config(Stage1Config, None, required)
    paper = load_config(Stage1Config, "stage1_0.6b", [*required, "data.exclusions_file="])
    assert (stage1.loss, stage1.optim, stage1.trainer) == (paper.loss, paper.optim, paper.trainer)
    grpo = load_config(GrpoConfig, "grpo_0.6b", required)
    # how many processes train is no value of the paper's
    assert replace(grpo.actor, parallel=ParallelConfig()) == GrpoConfig().actor


@pytest.mark.parametrize(
    "path", sorted([*FOLDER.glob("stage1_*.yaml"), *FOLDER.glob("grpo_*.yaml")]), ids=lambda p: p.stem
)
def test_every_shipped_file_loads(path: Path):
    required = ["run.name=x", "model.path=x", "data.train_file=x"]
    if path.stem.startswith("stage1"):
        load_config(Stage1Config, path, required)
    else:
        load_config(GrpoConfig, path, required)
