"""Which token is pooled, what truncation spares, and the inputs of the policy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from models.tokenization import BackboneError, ModelTokenizer
from models.views import QUERY_PREFIX, RATIONALE_CUE, SUMMARY_ANCHOR, document_view, privileged_view, raw_view

LONG_REQUEST = "Draw a chart of my sales and " + "fill the form of the table " * 40
RATIONALE = "The user needs skills for chart drawing."
WORDS = ["<pad>", "<s>", "</s>", "<pool>", "a", "b", "c", "d"]


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Path) -> ModelTokenizer:
    return ModelTokenizer.load(tiny_folder)


def word_tokenizer(template: str | None = None, **special: str) -> Any:
    """A tokenizer of the ``WORDS``, id = position, with the post-processor asked for."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(WORDS[:4])
    if template:
        backend.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[(word, i) for i, word in enumerate(WORDS[:4])]
        )
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def wrap(hf: Any, **config: Any) -> ModelTokenizer:
    return ModelTokenizer(hf, SimpleNamespace(**config))


def ids(tokenizer: ModelTokenizer, text: str) -> list[int]:
    return tokenizer.hf(text, add_special_tokens=False)["input_ids"]


# -- the pooling token --------------------------------------------------------------------------------------------------


def test_the_token_that_the_tokenizer_appends_is_the_pooling_token():
    assert wrap(word_tokenizer("$A <pool>", eos_token="</s>")).pooling_token_id == 3


def test_a_tokenizer_that_appends_nothing_pools_over_its_end_token():
    assert wrap(word_tokenizer(eos_token="</s>")).pooling_token_id == 2


def test_the_pooling_token_stored_with_the_model_wins():
    assert wrap(word_tokenizer("$A </s>", eos_token="</s>"), pooling_token_id=3).pooling_token_id == 3


def test_a_tokenizer_that_appends_nothing_and_has_no_end_token_is_refused():
    with pytest.raises(BackboneError, match=r"set pooling_token_id in config\.json"):
        wrap(word_tokenizer())


@pytest.mark.parametrize(
    "template", [None, "$A </s>", "<s> $A", "<s> $A </s>"], ids=["nothing", "end", "begin", "begin and end"]
)
def test_the_saved_tokenizer_appends_exactly_the_pooling_token(template, tmp_path: Path):
    from transformers import AutoTokenizer

    wrapped = wrap(word_tokenizer(template, bos_token="<s>", eos_token="</s>"), pooling_token_id=3)
    wrapped.hf.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)("a b")["input_ids"] == [4, 5, 3]


def test_a_pad_token_equal_to_the_pooling_token_stays_usable():
    wrapped = wrap(word_tokenizer("$A <pool>", eos_token="</s>", pad_token="<pool>"))
    assert (wrapped.pad_id, wrapped.pooling_token_id, wrapped.eos_id) == (3, 3, 2)


def test_without_a_pad_token_the_pooling_token_pads():
    assert wrap(word_tokenizer("$A <pool>", eos_token="</s>")).pad_id == 3


def test_generation_stops_at_the_end_token_and_the_pooling_token():
    assert wrap(word_tokenizer("$A <pool>", eos_token="</s>")).stop_token_ids == (2, 3)


def test_one_token_in_both_roles_is_one_stop_id():
    assert wrap(word_tokenizer("$A </s>", eos_token="</s>")).stop_token_ids == (2,)


def test_the_prompt_style_comes_from_the_model_and_is_the_papers_by_default():
    hf = word_tokenizer("$A </s>", eos_token="</s>")
    assert wrap(hf).prompt_style == "paper"
    assert wrap(hf, rationale_prompt="short").prompt_style == "short"


def test_a_post_processor_survives_the_tokenizer_class_of_qwen3_embedding(tiny_folder: Path, tmp_path: Path):
    folder = shutil.copytree(tiny_folder, tmp_path / "qwen")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "Qwen2Tokenizer"}))
    model = json.loads((folder / "config.json").read_text())
    del model["pooling_token_id"]
    (folder / "config.json").write_text(json.dumps(model))
    tokenizer = ModelTokenizer.load(folder)
    assert type(tokenizer.hf).__name__ == "Qwen2Tokenizer"
    assert tokenizer.hf.convert_ids_to_tokens(tokenizer.pooling_token_id) == "<|endoftext|>"


# -- encoder inputs -----------------------------------------------------------------------------------------------------


def test_an_encoder_input_is_the_text_and_the_pooling_token(tokenizer: ModelTokenizer):
    view = raw_view("Draw a chart")
    assert tokenizer.encode_views([view], 2048) == [[*ids(tokenizer, view.text), tokenizer.pooling_token_id]]


def test_an_empty_document_is_the_pooling_token_alone(tokenizer: ModelTokenizer):
    assert tokenizer.encode_views([document_view("")], 2048) == [[tokenizer.pooling_token_id]]


def test_no_views_give_no_sequences(tokenizer: ModelTokenizer):
    assert tokenizer.encode_views([], 2048) == []


def test_an_over_long_document_loses_its_end_and_keeps_the_pooling_token(tokenizer: ModelTokenizer):
    full = ids(tokenizer, LONG_REQUEST)
    assert tokenizer.encode_views([document_view(LONG_REQUEST)], 20) == [[*full[:19], tokenizer.pooling_token_id]]


def test_an_over_long_request_loses_its_end_and_keeps_instruction_and_pooling_token(tokenizer: ModelTokenizer):
    full = ids(tokenizer, QUERY_PREFIX + LONG_REQUEST)
    room = len(ids(tokenizer, QUERY_PREFIX)) + 10
    (cut,) = tokenizer.encode_views([raw_view(LONG_REQUEST)], room)
    assert cut == [*full[: room - 1], tokenizer.pooling_token_id]


def test_a_sequence_of_exactly_the_limit_is_not_cut(tokenizer: ModelTokenizer):
    view = privileged_view("Draw a chart", RATIONALE)
    full = ids(tokenizer, view.text)
    assert tokenizer.encode_views([view], len(full) + 1) == [[*full, tokenizer.pooling_token_id]]


def test_truncation_of_a_privileged_view_takes_only_the_end_of_the_request(tokenizer: ModelTokenizer):
    prefix, request = ids(tokenizer, QUERY_PREFIX), ids(tokenizer, LONG_REQUEST)
    tail = [
        *ids(tokenizer, "\nQuery analysis:"),
        *ids(tokenizer, RATIONALE),
        *ids(tokenizer, f"\n{SUMMARY_ANCHOR}"),
        tokenizer.pooling_token_id,
    ]
    limit = len(prefix) + 7 + len(tail)
    (cut,) = tokenizer.encode_views([privileged_view(LONG_REQUEST, RATIONALE)], limit)
    assert cut == [*prefix, *request[:7], *tail]


def test_the_rationale_is_cut_only_when_the_request_is_gone(tokenizer: ModelTokenizer):
    prefix, rationale = ids(tokenizer, QUERY_PREFIX), ids(tokenizer, LONG_REQUEST)
    label, anchor = ids(tokenizer, "\nQuery analysis:"), ids(tokenizer, f"\n{SUMMARY_ANCHOR}")
    limit = len(prefix) + len(label) + 5 + len(anchor) + 1
    (cut,) = tokenizer.encode_views([privileged_view("Draw a chart", LONG_REQUEST)], limit)
    assert cut == [*prefix, *label, *rationale[:5], *anchor, tokenizer.pooling_token_id]


@pytest.mark.parametrize("view", [raw_view(LONG_REQUEST), privileged_view(LONG_REQUEST, RATIONALE)])
def test_a_limit_that_cannot_hold_instruction_and_anchor_is_refused(tokenizer: ModelTokenizer, view):
    with pytest.raises(ValueError, match="leaves no room for the request"):
        tokenizer.encode_views([view], 9)


# -- the policy's inputs ------------------------------------------------------------------------------------------------


def test_a_rationale_prompt_carries_no_special_token(tokenizer: ModelTokenizer):
    (prompt,) = tokenizer.encode_prompts(["Draw a chart"], 512)
    assert prompt == ids(tokenizer, "USER TASK:\nDraw a chart\n\nQUERY ANALYSIS:\n")
    assert not set(prompt) & set(tokenizer.hf.all_special_ids)


def test_an_over_long_prompt_loses_the_end_of_the_request_and_keeps_instruction_and_cue(tokenizer: ModelTokenizer):
    start, cue = ids(tokenizer, "USER TASK:\n"), ids(tokenizer, RATIONALE_CUE)
    (prompt,) = tokenizer.encode_prompts([LONG_REQUEST], len(start) + 6 + len(cue))
    assert prompt == [*start, *ids(tokenizer, LONG_REQUEST)[:6], *cue]


def test_a_rationale_ends_in_its_end_token(tokenizer: ModelTokenizer):
    assert tokenizer.encode_rationales([RATIONALE], 96) == [[*ids(tokenizer, RATIONALE), tokenizer.eos_id]]


def test_an_over_long_rationale_keeps_its_end_token_within_the_limit(tokenizer: ModelTokenizer):
    (cut,) = tokenizer.encode_rationales([LONG_REQUEST], 12)
    assert cut == [*ids(tokenizer, LONG_REQUEST)[:11], tokenizer.eos_id]


def test_an_empty_rationale_is_its_end_token(tokenizer: ModelTokenizer):
    assert tokenizer.encode_rationales([""], 96) == [[tokenizer.eos_id]]


def test_decoding_drops_special_tokens_and_outer_white_space(tokenizer: ModelTokenizer):
    tokens = [*ids(tokenizer, f" {RATIONALE}\n"), tokenizer.eos_id]
    assert tokenizer.decode([tokens, [tokenizer.eos_id]]) == [RATIONALE, ""]


# -- refusals -----------------------------------------------------------------------------------------------------------


def test_a_missing_folder_is_named(tmp_path: Path):
    with pytest.raises(BackboneError, match=f"{tmp_path}/nowhere: no config.json"):
        ModelTokenizer.load(tmp_path / "nowhere")


def test_a_folder_without_a_tokenizer_is_named(tiny_folder: Path, tmp_path: Path):
    shutil.copy(tiny_folder / "config.json", tmp_path)
    with pytest.raises(BackboneError, match=str(tmp_path)):
        ModelTokenizer.load(tmp_path)
