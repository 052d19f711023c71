"""Loading a configuration: precedence, and refusals that name the key and what would be accepted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from configs import ConfigError, GrpoConfig, RerankerConfig, Stage1Config, load_config, to_yaml
from configs.load import config_path

REQUIRED = ["run.name=r", "model.path=m", "data.train_file=t"]


def stage1(*overrides: str, path: str | Path | None = None) -> Stage1Config:
    return load_config(Stage1Config, path, [*REQUIRED, *overrides])


def grpo(*overrides: str) -> GrpoConfig:
    return load_config(GrpoConfig, "grpo_0.6b", [*REQUIRED, *overrides])


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


# -- precedence and forms -----------------------------------------------------------------------------------------------


def test_the_file_wins_over_defaults_and_overrides_win_over_the_file(tmp_path: Path):
    path = write(tmp_path / "c.yaml", "loss: {tau: 0.1, lambda_kl: 3.0}\n")
    config = stage1("loss.tau=0.2", path=path)
    assert (config.loss.tau, config.loss.lambda_kl, config.loss.lambda_lm) == (0.2, 3.0, 0.2)


def test_the_last_of_two_overrides_wins():
    assert stage1("loss.tau=0.1", "loss.tau=0.2").loss.tau == 0.2


def test_an_override_may_set_one_number_of_a_term_and_add_a_term():
    terms = grpo("reward.terms.margin.params.tau=0.1", "reward.terms.mine.function=package.module:f").reward.terms
    assert terms["margin"].params == {"tau": 0.1}
    assert terms["margin"].weight == 1.0
    assert terms["mine"].function == "package.module:f"


def test_numbers_are_converted_to_the_keys_type():
    config = stage1("optim.lr=1", "loss.gradient_cache=false", "data.train_batch_size=32")
    assert (config.optim.lr, type(config.optim.lr)) == (1.0, float)
    assert config.loss.gradient_cache is False
    assert config.data.train_batch_size == 32


def test_our_configurations_go_by_name():
    assert config_path("stage1_4b") == config_path("stage1_4b.yaml")
    assert load_config(Stage1Config, "stage1_4b").optim.name == "adafactor"


def test_a_file_that_does_not_exist_is_refused_with_the_known_names(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml; expected a YAML file or one of: .*grpo_0\.6b.*stage1_4b"):
        load_config(Stage1Config, tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("config", [stage1("loss.tau=0.07"), grpo("reward.terms.mine.function=a.b:c")])
def test_a_written_configuration_reads_back_as_it_was(config, tmp_path: Path):
    path = write(tmp_path / "config.yaml", to_yaml(config))
    assert load_config(type(config), path) == config


def test_an_override_without_a_value_empties_a_text_key():
    assert load_config(Stage1Config, "stage1_4b", ["data.exclusions_file="]).data.exclusions_file == ""


# -- unknown keys, types, missing values --------------------------------------------------------------------------------


def test_an_unknown_key_of_the_file_is_refused_with_a_suggestion(tmp_path: Path):
    path = write(tmp_path / "c.yaml", "loss: {lamda_kl: 3.0}\n")
    with pytest.raises(ConfigError, match=r"c\.yaml: loss\.lamda_kl: .* \(did you mean loss\.lambda_kl\?\)"):
        stage1(path=path)


def test_an_unknown_key_of_an_override_is_refused_with_a_suggestion():
    with pytest.raises(ConfigError, match=r"'rollout\.temprature=1': .* \(did you mean rollout\.temperature\?\)"):
        grpo("rollout.temprature=1")


def test_an_unknown_key_of_a_term_is_refused_with_a_suggestion():
    with pytest.raises(ConfigError, match=r"did you mean reward\.terms\.margin\.weight\?"):
        grpo("reward.terms.margin.wieght=2")


def test_a_key_of_the_other_stage_is_refused():
    with pytest.raises(ConfigError, match=r"rollout: Key 'rollout' not in 'Stage1Config'"):
        stage1("rollout.n=4")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.train_batch_size=many", r"data\.train_batch_size: Value 'many' .* Integer"),
        ("data.train_batch_size=", r"data\.train_batch_size: Value '' .* Integer"),
        ("data.train_batch_size=2.5", r"data\.train_batch_size: Value '2\.5' .* Integer"),
        ("loss.tau=warm", r"loss\.tau: Value 'warm' .* Float"),
        ("loss.gradient_cache=maybe", r"loss\.gradient_cache: Value 'maybe' .* bool"),
        ("optim.lr=null", r"optim\.lr: Incompatible value 'None'"),
        ("loss=3", r"loss is 3; expected keys and values"),
        ("model=qwen", r"model is 'qwen'; expected keys and values"),
    ],
)
def test_a_wrong_type_names_the_key_and_the_value(override: str, message: str):
    with pytest.raises(ConfigError, match=message):
        stage1(override)


def test_a_section_without_keys_in_the_file_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"c\.yaml: optim is \['adamw'\]; expected keys and values"):
        stage1(path=write(tmp_path / "c.yaml", "optim: [adamw]\n"))


def test_a_free_parameter_of_a_term_may_change_its_form():
    config = grpo(
        "reward.terms.mine={function: 'a.b:c', params: {bands: {low: 1}}}", "reward.terms.mine.params.bands=3"
    )
    assert config.reward.terms["mine"].params == {"bands": 3}


@pytest.mark.parametrize("text", ["- 1\n- 2\n", "[unclosed\n"])
def test_a_file_that_is_no_mapping_is_refused_by_name(tmp_path: Path, text: str):
    with pytest.raises(ConfigError, match=r"c\.yaml: "):
        stage1(path=write(tmp_path / "c.yaml", text))


def test_every_missing_value_is_named():
    with pytest.raises(ConfigError, match=r"data\.train_file, model\.path, run\.name: required and not set"):
        load_config(Stage1Config, None)


def test_an_override_without_an_equals_sign_shows_the_form():
    with pytest.raises(ConfigError, match=r"'data\.train_batch_size'; expected key=value"):
        stage1("data.train_batch_size")


# -- impossible values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.name=a/b", r"run\.name is 'a/b'; expected a plain folder name"),
        ("run.device=tpu", r"run\.device is 'tpu'; expected one of auto, cpu, cuda"),
        ("run.threads=-1", r"run\.threads is -1; expected at least 0"),
        ("model.dtype=float16", r"model\.dtype is 'float16'; expected one of float32, bfloat16"),
        ("data.heldout_fraction=1.0", r"data\.heldout_fraction is 1\.0; expected 0\.0 to 0\.9"),
        ("data.train_batch_size=0", r"data\.train_batch_size is 0; expected at least 1"),
        ("data.document_max_length=1", r"data\.document_max_length is 1; expected at least 8"),
        ("data.max_length=1", r"data\.max_length is 1; expected at least 8"),
        ("data.negatives_per_record=11", r"data\.negatives_per_record is 11; expected 0 to 10"),
        ("data.rationale_max_length=512", r"data\.rationale_max_length is 512; expected less than data\.lm_max_length"),
        ("loss.tau=0", r"loss\.tau is 0\.0; expected a number above 0"),
        ("loss.tau=nan", r"loss\.tau is nan; expected a number above 0"),
        ("loss.kl_temperature=-1", r"loss\.kl_temperature is -1\.0"),
        ("loss.lambda_kl=-5", r"loss\.lambda_kl is -5\.0; expected at least 0"),
        ("loss.lm_reduction=mean", r"loss\.lm_reduction is 'mean'; expected one of token_mean, sum"),
        ("optim.name=sgd", r"optim\.name is 'sgd'; expected one of adamw, adafactor"),
        ("optim.lr=0", r"optim\.lr is 0\.0; expected a number above 0"),
        ("optim.lr=inf", r"optim\.lr is inf; expected a number above 0"),
        ("optim.betas=[0.9]", r"optim\.betas is \[0\.9\]; expected two numbers in \[0, 1\)"),
        ("optim.betas=[0.9,1.0]", r"optim\.betas is \[0\.9, 1\.0\]"),
        ("optim.clip_grad=-1", r"optim\.clip_grad is -1\.0; expected at least 0"),
        ("trainer.total_epochs=0", r"trainer\.total_epochs is 0; expected at least 1"),
        ("trainer.save_freq=-1", r"trainer\.save_freq is -1; expected at least 0"),
        ("trainer.max_ckpt_to_keep=0", r"trainer\.max_ckpt_to_keep is 0; expected at least 1"),
        ("tracking.wandb=on", r"tracking\.wandb is .*; expected one of online, offline, disabled"),
    ],
)
def test_an_impossible_stage1_value_names_its_key(override: str, message: str):
    with pytest.raises(ConfigError, match=message):
        stage1(override)


def test_a_loss_without_any_term_is_refused():
    with pytest.raises(ConfigError, match=r"lambda_lm are all 0; nothing would be trained"):
        stage1("loss.lambda_raw=0", "loss.lambda_cot=0", "loss.lambda_kl=0", "loss.lambda_lm=0")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.n=1", r"rollout\.n is 1; expected at least 2: a group of one has no relative advantage"),
        ("rollout.name=sglang", r"rollout\.name is 'sglang'; expected one of auto, hf, vllm"),
        ("rollout.temperature=0", r"rollout\.temperature is 0\.0; expected a number above 0"),
        ("rollout.top_p=0", r"rollout\.top_p is 0\.0; expected a number in \(0, 1\]"),
        ("rollout.top_p=1.1", r"rollout\.top_p is 1\.1"),
        ("rollout.workers=0", r"rollout\.workers is 0; expected at least 1"),
        ("data.max_prompt_length=1", r"data\.max_prompt_length is 1; expected at least 8"),
        ("data.max_response_length=0", r"data\.max_response_length is 0; expected at least 1"),
        ("actor.optim.lr=-1", r"actor\.optim\.lr is -1\.0"),
        ("actor.clip_ratio=0", r"actor\.clip_ratio is 0\.0; expected a number above 0"),
        ("actor.clip_ratio_c=1", r"actor\.clip_ratio_c is 1\.0; expected more than 1"),
        ("actor.kl_loss_coef=-0.1", r"actor\.kl_loss_coef is -0\.1; expected at least 0"),
        ("actor.kl_loss_type=full", r"actor\.kl_loss_type is 'full'; expected one of low_var_kl"),
        ("actor.loss_agg_mode=mean", r"actor\.loss_agg_mode is 'mean'; expected one of token-mean"),
        ("actor.loss_agg_mode=seq-mean-token-sum-norm", r"actor\.loss_agg_mode"),
        ("actor.sft_coef=-1", r"actor\.sft_coef is -1\.0; expected at least 0"),
        ("actor.ppo_epochs=0", r"actor\.ppo_epochs is 0; expected at least 1"),
        ("reward.mask_positive=id", r"reward\.mask_positive is 'id'; expected one of skill_id, occurrence"),
        ("reward.terms.bonus.weight=1", r"reward\.terms\.bonus: no built-in .*margin, gain, length.*bonus\.function="),
        ("reward.terms.mine.function=f", r"reward\.terms\.mine\.function is 'f'; expected package\.module:function"),
    ],
)
def test_an_impossible_grpo_value_names_its_key(override: str, message: str):
    with pytest.raises(ConfigError, match=message):
        grpo(override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.max_candidates=1", "data.max_candidates is 1; expected at least 2"),
        ("data.answers=yes", "expected two different words with a slash, such as yes/no"),
        ("data.answers=no/no", "data.answers is 'no/no'"),
        ("data.document_format=html", "data.document_format is 'html'; expected one of skillreason, skill2query"),
        ("data.body_chars=-1", "data.body_chars is -1"),
        ("data.train_batch_size=0", "data.train_batch_size is 0"),
        ("loss.tau=0", "loss.tau is 0.0; expected a number above 0"),
        ("loss.lambda_distill=-1", "loss.lambda_distill is -1.0"),
        ("loss.distill=mse", "loss.distill is 'mse'; expected one of cosine, kl"),
        ("loss.window_groups=0", "loss.window_groups is 0; expected at least 1"),
        ("optim.lr=0", "optim.lr is 0.0"),
        ("parallel.strategy=single", "parallel.workers is 8; expected 1 worker"),
    ],
)
def test_an_impossible_reranker_value_names_its_key(override: str, message: str):
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(RerankerConfig, "reranker_0.6b", [override])


def test_masking_exclusions_without_a_graph_is_refused():
    with pytest.raises(ConfigError, match=r"reward\.mask_exclusions is true; data\.exclusions_file must name"):
        grpo("reward.mask_exclusions=true", "data.exclusions_file=")


def test_a_reward_without_terms_is_refused():
    with pytest.raises(ConfigError, match=r"reward\.terms is empty"):
        load_config(GrpoConfig, None, REQUIRED)
