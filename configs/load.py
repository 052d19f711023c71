"""Loading a configuration: YAML and ``key=value`` overrides over the typed schema, refused at once when wrong."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from configs.parallel import optimizer_conflict, resolve_strategy
from configs.schema import (
    GrpoConfig,
    OptimizerConfig,
    ParallelConfig,
    RerankerConfig,
    RunConfig,
    Stage1Config,
    TermConfig,
    TrackingConfig,
    TrainerConfig,
)

C = TypeVar("C")

BUILTIN_TERMS = ("margin", "gain", "length")
LOSS_AGG_MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean")
"""verl's modes but seq-mean-token-sum-norm, which divides by the padded width: micro-batches would not add up."""


class ConfigError(ValueError):
    """A configuration that cannot be run; the message names the key, its value and what would be accepted."""


def config_path(name: str | Path) -> Path:
    """A YAML file by path, or one of ours by name: ``stage1_tiny`` is ``configs/stage1_tiny.yaml``.

    Raises:
        ConfigError: neither exists; the message lists the names there are.
    """
    path = Path(name)
    if path.is_file():
        return path
    own = Path(__file__).parent / f"{path.name.removesuffix('.yaml')}.yaml"
    if own.is_file() and path.parent == Path("."):
        return own
    known = ", ".join(sorted(p.stem for p in own.parent.glob("*.yaml")))
    raise ConfigError(f"no configuration file {name}; expected a YAML file or one of: {known}")


def load_config(
    schema: type[C],
    path: str | Path | None,
    overrides: Sequence[str] = (),
    check: Callable[[Any], None] | None = None,
) -> C:
    """Merge schema defaults, the YAML file and the overrides, in this order, and check the result.

    Args:
        schema: a dataclass of ``configs.schema``, or one like them that another package has.
        path: YAML file, name of one in ``configs/``, or None for the defaults alone.
        overrides: ``key=value`` pairs such as ``data.train_batch_size=32``.
        check: what refuses values that no schema can; None: :func:`validate`.

    Raises:
        ConfigError: unknown key, wrong type, missing value or impossible combination.
    """
    merged: DictConfig = OmegaConf.structured(schema)
    if path is not None:
        file = config_path(path)
        try:
            loaded = OmegaConf.load(file)
        except (YAMLError, OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: not readable as YAML: {error}") from error
        merged = _merge(merged, loaded, str(file))
    for override in overrides:
        if "=" not in override:
            raise ConfigError(f"override {override!r}; expected key=value, such as data.train_batch_size=32")
        try:
            # "key=" empties a text key; omegaconf would read a null
            parsed = OmegaConf.from_dotlist([override + "''" if override.endswith("=") else override])
        except (YAMLError, OmegaConfBaseException) as error:
            raise ConfigError(f"override {override!r}: {error}") from error
        merged = _merge(merged, parsed, f"override {override!r}")
    missing = sorted(OmegaConf.missing_keys(merged))
    if missing:
        raise ConfigError(f"{', '.join(missing)}: required and not set; give it in the YAML or as {missing[0]}=VALUE")
    config: C = OmegaConf.to_object(merged)  # type: ignore[assignment]
    (check or validate)(config)
    return config


def to_yaml(config: Any) -> str:
    """The resolved configuration as YAML, what ``config.yaml`` of a run holds."""
    return OmegaConf.to_yaml(OmegaConf.structured(config), resolve=True)


def _merge(base: DictConfig, extra: Any, source: str) -> DictConfig:
    section = _section_without_keys(base, OmegaConf.to_container(extra), "")
    if section is not None:
        key, value = section
        raise ConfigError(f"{source}: {key or 'the file'} is {value!r}; expected keys and values")
    try:
        return OmegaConf.merge(base, extra)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        key = error.full_key or "?"
        message = str(error).splitlines()[0]
        if "is not a ListConfig" in message:
            message = "expected a list, such as [a,b]"
        hint = _closest(key, base) if "not in" in message else ""
        raise ConfigError(f"{source}: {key}: {message}{hint}") from error


def _section_without_keys(base: DictConfig, extra: Any, key: str) -> tuple[str, Any] | None:
    """The first section that is given as something else than keys and values; omegaconf does not name it."""
    if not isinstance(extra, dict):
        return key, extra
    for name, value in extra.items():
        below = base.get(name)
        # what stands below a free-form mapping (a term's params) may be anything
        if isinstance(below, DictConfig) and not (_is_free(base) and _is_free(below)):
            found = _section_without_keys(below, value, f"{key}.{name}" if key else str(name))
            if found is not None:
                return found
    return None


def _is_free(node: DictConfig) -> bool:
    return OmegaConf.get_type(node) is dict


def _closest(key: str, config: DictConfig) -> str:
    names = _key_names(OmegaConf.to_container(config), "")
    found = difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    return f" (did you mean {found[0]}?)" if found else ""


def _key_names(node: Any, prefix: str) -> list[str]:
    if not isinstance(node, dict):
        return [prefix]
    below = [
        name for key, value in node.items() for name in _key_names(value, f"{prefix}.{key}" if prefix else str(key))
    ]
    return [prefix, *below] if prefix else below


# -- what no schema can say ---------------------------------------------------------------------------------------------


def validate(config: Any) -> None:
    """Refuse values that cannot work, before anything starts.

    Raises:
        ConfigError: naming the key, its value and what would be accepted.
    """
    _validate_common(config.run, config.trainer, config.tracking)
    _one_of("model.dtype", config.model.dtype, ("float32", "bfloat16"))
    _between("data.heldout_fraction", config.data.heldout_fraction, 0.0, 0.9)
    _at_least("data.train_batch_size", config.data.train_batch_size, 1)
    _at_least("trainer.export_max_length", config.trainer.export_max_length, 8)
    if isinstance(config, RerankerConfig):
        _validate_reranker(config)
        return
    _at_least("data.document_max_length", config.data.document_max_length, 8)
    _at_least("validation.max_queries", config.validation.max_queries, 1)
    _at_least("validation.max_documents", config.validation.max_documents, 1)
    if isinstance(config, Stage1Config):
        _validate_stage1(config)
    else:
        _validate_grpo(config)


def _validate_common(run: RunConfig, trainer: TrainerConfig, tracking: TrackingConfig) -> None:
    if not run.name or "/" in run.name or run.name in {".", ".."}:
        raise ConfigError(f"run.name is {run.name!r}; expected a plain folder name")
    _one_of("run.device", run.device, ("auto", "cpu", "cuda"))
    _at_least("run.threads", run.threads, 0)
    _at_least("trainer.total_epochs", trainer.total_epochs, 1)
    for key in ("total_steps", "save_freq", "test_freq", "max_restarts"):
        _at_least(f"trainer.{key}", getattr(trainer, key), 0)
    _at_least("trainer.max_ckpt_to_keep", trainer.max_ckpt_to_keep, 1)
    _one_of("tracking.wandb", tracking.wandb, ("online", "offline", "disabled"))


def _validate_optimizer(prefix: str, optim: OptimizerConfig) -> None:
    _one_of(f"{prefix}.name", optim.name, ("adamw", "adafactor"))
    _positive(f"{prefix}.lr", optim.lr)
    _one_of(f"{prefix}.schedule", optim.schedule, ("constant", "linear"))
    if len(optim.betas) != 2 or not all(0 <= b < 1 for b in optim.betas):
        raise ConfigError(f"{prefix}.betas is {optim.betas}; expected two numbers in [0, 1)")
    _at_least(f"{prefix}.weight_decay", optim.weight_decay, 0)
    _at_least(f"{prefix}.clip_grad", optim.clip_grad, 0)


def _validate_parallel(
    prefix: str, parallel: ParallelConfig, default_strategy: str, optim: tuple[str, OptimizerConfig] | None = None
) -> None:
    _at_least(f"{prefix}.workers", parallel.workers, 1)
    _between(f"{prefix}.min_workers", parallel.min_workers, 0, parallel.workers)
    _one_of(f"{prefix}.strategy", parallel.strategy, ("auto", "single", "deepspeed", "fsdp2"))
    _between(f"{prefix}.zero_stage", parallel.zero_stage, 0, 3)
    if parallel.strategy == "single" and parallel.workers > 1:
        raise ConfigError(
            f"{prefix}.strategy is 'single' and {prefix}.workers is {parallel.workers}; expected 1 worker"
        )
    if optim is not None:
        key, settings = optim
        strategy = resolve_strategy(parallel, default_strategy)
        conflict = optimizer_conflict(settings, strategy, parallel.zero_stage, optim_key=key, parallel_key=prefix)
        if conflict:
            raise ConfigError(conflict)


def _validate_pool(prefix: str, key: str, workers: int, least: int) -> None:
    _at_least(f"{prefix}.{key}", workers, 1)
    _between(f"{prefix}.min_{key}", least, 0, workers)


def _validate_stage1(config: Stage1Config) -> None:
    _validate_parallel("parallel", config.parallel, "deepspeed", ("optim", config.optim))
    for key, value in vars(config.resources).items():
        _at_least(f"resources.{key}", value, 0)
    _validate_optimizer("optim", config.optim)
    _positive("loss.tau", config.loss.tau)
    _positive("loss.kl_temperature", config.loss.kl_temperature)
    for key in (
        "lambda_raw",
        "lambda_cot",
        "lambda_kl",
        "lambda_lm",
        "kl_start_update",
        "micro_batch_tokens",
    ):
        _at_least(f"loss.{key}", getattr(config.loss, key), 0)
    if config.loss.lambda_raw + config.loss.lambda_cot + config.loss.lambda_kl + config.loss.lambda_lm == 0:
        raise ConfigError("loss.lambda_raw, lambda_cot, lambda_kl and lambda_lm are all 0; nothing would be trained")
    _one_of("loss.lm_reduction", config.loss.lm_reduction, ("token_mean", "sum"))
    _at_least("data.max_length", config.data.max_length, 8)
    _between("data.negatives_per_record", config.data.negatives_per_record, 0, 10)
    _one_of("data.sampler", config.data.sampler, ("separated", "unique_skill"))
    _one_of("data.rationale_prompt", config.data.rationale_prompt, ("", "paper", "short"))
    _at_least("data.rationale_max_length", config.data.rationale_max_length, 1)
    if config.data.rationale_max_length >= config.data.lm_max_length:
        raise ConfigError(
            f"data.rationale_max_length is {config.data.rationale_max_length}; expected less than data.lm_max_length, "
            f"{config.data.lm_max_length}"
        )


def _validate_reranker(config: RerankerConfig) -> None:
    _validate_parallel("parallel", config.parallel, "deepspeed", ("optim", config.optim))
    for key, value in vars(config.resources).items():
        _at_least(f"resources.{key}", value, 0)
    _validate_optimizer("optim", config.optim)
    data, loss = config.data, config.loss
    _at_least("data.max_candidates", data.max_candidates, 2)
    _at_least("data.max_length", data.max_length, 8)
    _at_least("data.rationale_max_length", data.rationale_max_length, 2)
    _at_least("data.heldout_groups", data.heldout_groups, 1)
    for key in ("query_chars", "description_chars", "body_chars"):
        _at_least(f"data.{key}", getattr(data, key), 0)
    _one_of("data.document_format", data.document_format, ("skillreason", "skill2query"))
    words = data.answers.split("/")
    if len(words) != 2 or words[0] == words[1] or not all(words):
        raise ConfigError(
            f"data.answers is {data.answers!r}; expected two different words with a slash, such as yes/no"
        )
    _positive("loss.tau", loss.tau)
    for key in ("lambda_distill", "lambda_lm", "micro_batch_tokens"):
        _at_least(f"loss.{key}", getattr(loss, key), 0)
    _at_least("loss.window_groups", loss.window_groups, 1)
    _one_of("loss.distill", loss.distill, ("cosine", "kl"))


def _validate_grpo(config: GrpoConfig) -> None:
    _validate_optimizer("actor.optim", config.actor.optim)
    _one_of("actor.optim.schedule", config.actor.optim.schedule, ("constant",))
    if config.rollout.n < 2:
        raise ConfigError(
            f"rollout.n is {config.rollout.n}; expected at least 2: a group of one has no relative advantage"
        )
    _one_of("rollout.name", config.rollout.name, ("auto", "hf", "vllm"))
    _positive("rollout.temperature", config.rollout.temperature)
    if not 0 < config.rollout.top_p <= 1:
        raise ConfigError(f"rollout.top_p is {config.rollout.top_p}; expected a number in (0, 1]")
    _validate_pool("rollout", "workers", config.rollout.workers, config.rollout.min_workers)
    _validate_pool("reward", "retriever_workers", config.reward.retriever_workers, config.reward.min_retriever_workers)
    _validate_parallel("actor.parallel", config.actor.parallel, "fsdp2", ("actor.optim", config.actor.optim))
    _validate_parallel("ref.parallel", config.ref.parallel, "fsdp2")
    for prefix, parallel in (("actor.parallel", config.actor.parallel), ("ref.parallel", config.ref.parallel)):
        if parallel.min_workers:
            raise ConfigError(
                f"{prefix}.min_workers is {parallel.min_workers}; expected 0: only Stage I's workers and the pools of Stage II "
                "change their number in a run"
            )
    _one_of("rollout.weight_transfer", config.rollout.weight_transfer, ("object_store", "broadcast"))
    _at_least("rollout.weight_bucket_mb", config.rollout.weight_bucket_mb, 1)
    _at_least("ref.log_prob_max_token_len", config.ref.log_prob_max_token_len, 0)
    _one_of("rollout_correction.rollout_is", config.rollout_correction.rollout_is, ("", "token", "sequence"))
    _positive("rollout_correction.rollout_is_threshold", config.rollout_correction.rollout_is_threshold)
    if config.rollout_correction.rollout_is and config.rollout.top_p < 1:
        raise ConfigError(
            f"rollout_correction.rollout_is is {config.rollout_correction.rollout_is!r} and rollout.top_p is "
            f"{config.rollout.top_p}; expected top_p 1: the engine's probabilities within a nucleus are no match for the policy's"
        )
    _at_least("rollout.max_batch_tokens", config.rollout.max_batch_tokens, 0)
    _at_least("actor.ppo_max_token_len", config.actor.ppo_max_token_len, 0)
    _at_least("reward.micro_batch_tokens", config.reward.micro_batch_tokens, 0)
    for key, value in vars(config.resources).items():
        _at_least(f"resources.{key}", value, 0)
    _at_least("data.max_prompt_length", config.data.max_prompt_length, 8)
    _at_least("data.max_response_length", config.data.max_response_length, 1)
    _at_least("data.max_query_length", config.data.max_query_length, 8)
    _positive("rollout.kv_cache_gb", config.rollout.kv_cache_gb)
    _between("rollout.gpu_memory_utilization", config.rollout.gpu_memory_utilization, 0.01, 1.0)
    needed = config.data.max_prompt_length + config.data.max_response_length
    if 0 < config.rollout.max_model_len < needed:
        raise ConfigError(
            f"rollout.max_model_len is {config.rollout.max_model_len}; expected 0 or at least data.max_prompt_length + "
            f"data.max_response_length, {needed}"
        )
    _positive("actor.clip_ratio", config.actor.clip_ratio)
    if not 1 < config.actor.clip_ratio_c < math.inf:
        raise ConfigError(f"actor.clip_ratio_c is {config.actor.clip_ratio_c}; expected more than 1")
    _at_least("actor.kl_loss_coef", config.actor.kl_loss_coef, 0)
    _at_least("actor.ppo_epochs", config.actor.ppo_epochs, 1)
    _at_least("actor.sft_coef", config.actor.sft_coef, 0)
    _one_of("actor.loss_agg_mode", config.actor.loss_agg_mode, LOSS_AGG_MODES)
    _one_of("actor.kl_loss_type", config.actor.kl_loss_type, ("low_var_kl", "k3", "kl", "k1", "mse", "k2", "abs"))
    _one_of("reward.mask_positive", config.reward.mask_positive, ("skill_id", "occurrence"))
    if config.reward.mask_exclusions and not config.data.exclusions_file:
        raise ConfigError("reward.mask_exclusions is true; data.exclusions_file must name the exclusion graph")
    validate_terms("reward.terms", config.reward.terms)


def validate_terms(prefix: str, terms: Mapping[str, TermConfig]) -> None:
    """Refuse reward terms that cannot be resolved or weighed; ``prefix`` is where they stand in the configuration.

    Raises:
        ConfigError: naming the key, its value and what would be accepted.
    """
    if not terms:
        raise ConfigError(f"{prefix} is empty; expected at least one term, such as margin")
    if all(term.weight == 0 for term in terms.values()):
        raise ConfigError(f"{prefix}.*.weight are all 0; nothing would be rewarded")
    for name, term in terms.items():
        if name == "total":
            raise ConfigError(f"{prefix}.total: the name of the weighted sum's own curve; give the term another one")
        if not math.isfinite(term.weight):
            raise ConfigError(f"{prefix}.{name}.weight is {term.weight}; expected a finite number")
        if not term.function and name not in BUILTIN_TERMS:
            raise ConfigError(
                f"{prefix}.{name}: no built-in term of this name (there are {', '.join(BUILTIN_TERMS)}); "
                f"give {prefix}.{name}.function=package.module:function"
            )
        tau = term.params.get("tau", 1.0)
        built_in = not term.function or term.function.startswith("rewards.terms:")
        if built_in and not (isinstance(tau, int | float) and tau > 0):
            raise ConfigError(f"{prefix}.{name}.params.tau is {tau!r}; expected a number above 0")
        if term.function and ":" not in term.function:
            raise ConfigError(f"{prefix}.{name}.function is {term.function!r}; expected package.module:function")


def _one_of(key: str, value: str, accepted: Sequence[str]) -> None:
    if value not in accepted:
        raise ConfigError(f"{key} is {value!r}; expected one of {', '.join(accepted)}")


def _at_least(key: str, value: float, bound: float) -> None:
    if not value >= bound:
        raise ConfigError(f"{key} is {value}; expected at least {bound}")
    if value == math.inf:
        raise ConfigError(f"{key} is {value}; expected a finite number")


def _between(key: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{key} is {value}; expected {low} to {high}")


def _positive(key: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ConfigError(f"{key} is {value}; expected a number above 0")
