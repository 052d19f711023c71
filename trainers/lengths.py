"""Maximum lengths that are too small, refused by key before anything starts."""

from __future__ import annotations

from configs import ConfigError, GrpoConfig, Stage1Config
from models.tokenization import ModelTokenizer
from models.views import View, privileged_view, rationale_prompt, raw_view, teacher_view

_POOLING = ("pooling token", 1)


def check_lengths(config: Stage1Config | GrpoConfig, tokenizer: ModelTokenizer) -> None:
    """Refuse maximum lengths that leave no token for the request beside what is never cut, such as the instruction.

    What is never cut is the same for every record, so no record can fail where this passes. Documents have no such part.

    Raises:
        ConfigError: naming the key, its value and the least that would be accepted.
    """
    views = [raw_view(""), privileged_view("", "")]
    prompt = [rationale_prompt("", tokenizer.prompt_style)]
    if isinstance(config, Stage1Config):
        data = config.data
        _check("data.max_length", data.max_length, [*views, teacher_view("", "")], tokenizer, _POOLING)
        rationale = ("data.rationale_max_length", data.rationale_max_length)  # the rationale is always whole
        _check("data.lm_max_length", data.lm_max_length, prompt, tokenizer, rationale)
    else:
        _check("data.max_query_length", config.data.max_query_length, views, tokenizer, _POOLING)
        _check("data.max_prompt_length", config.data.max_prompt_length, prompt, tokenizer)
    if config.trainer.export:
        _check("trainer.export_max_length", config.trainer.export_max_length, [raw_view("")], tokenizer, _POOLING)


def _check(
    key: str, limit: int, views: list[View], tokenizer: ModelTokenizer, besides: tuple[str, int] = ("", 0)
) -> None:
    name, tokens = besides
    fixed = max(tokenizer.fixed_tokens(view) for view in views) + tokens
    if limit <= fixed:
        kept = f"instruction, anchor and {name}" if name else "instruction and anchor"
        raise ConfigError(
            f"{key} is {limit}; {kept} take {fixed} tokens, and one must be left for the text: expected at least {fixed + 1}"
        )
