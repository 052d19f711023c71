"""The token interface of a backbone: encoder inputs that end in the pooling token, rationale prompts and rationales."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.views import DEFAULT_FORMAT, View, rationale_prompt


class BackboneError(ValueError):
    """A checkpoint that cannot serve as a backbone; the message names the folder and what is wrong with it."""


class ModelTokenizer:
    """A Hugging Face tokenizer that appends the model's pooling token, and cuts over-long input where it may be cut.

    Attributes:
        hf: the transformers tokenizer; with special tokens it appends the pooling token by itself, so that an exported folder
            pools where training did.
        pooling_token_id: token whose hidden state is the embedding; always the last one of an encoded sequence.
        own_post_processor: what the tokenizer appended by itself when it was loaded; for exports that pool nothing.
        pad_id: id used for padding. Masks never come from comparing ids with it: for Qwen3-Embedding both ids are one.
        eos_id: the token that ends a rationale.
        stop_token_ids: ids at which generation stops.
        prompt_style: which rationale prompt the model was trained on, see :func:`models.views.rationale_prompt`.
        document_format: how its documents are put together, see :func:`models.views.serialize_document`.
    """

    def __init__(self, hf: Any, config: Any):
        """Wrap a transformers tokenizer with its model's config (which may hold ``pooling_token_id``)."""
        self.hf = hf
        self.pooling_token_id = _find_pooling_token(config, hf)
        self.own_post_processor = hf.backend_tokenizer.post_processor
        _append_pooling_token(hf, self.pooling_token_id)
        self.pad_id: int = hf.pad_token_id if hf.pad_token_id is not None else self.pooling_token_id
        self.eos_id: int = hf.eos_token_id if hf.eos_token_id is not None else self.pooling_token_id
        self.stop_token_ids = tuple(dict.fromkeys([self.eos_id, self.pooling_token_id]))
        self.prompt_style: str = getattr(config, "rationale_prompt", None) or "paper"
        self.document_format: str = getattr(config, "document_format", None) or DEFAULT_FORMAT

    @classmethod
    def load(cls, path: str | Path) -> ModelTokenizer:
        """Load the tokenizer of a local folder or hub id, without its weights.

        Raises:
            BackboneError: no such folder, or no tokenizer in it.
        """
        from transformers import AutoConfig, AutoTokenizer

        source = str(path)
        looks_local = source.startswith((".", "/", "~")) or Path(source).exists() or source.count("/") != 1
        if looks_local and not (Path(source) / "config.json").is_file():
            raise BackboneError(f"{source}: no config.json; expected a Hugging Face model folder or a hub id")
        try:
            config = AutoConfig.from_pretrained(source, trust_remote_code=False)
            hf = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise BackboneError(f"{source}: no usable tokenizer and config: {error}") from error
        # transformers makes an empty tokenizer of the architecture's class where a folder has none
        if not hf("a", add_special_tokens=False)["input_ids"]:
            raise BackboneError(
                f"{source}: the tokenizer has no vocabulary; expected a tokenizer.json beside config.json"
            )
        return cls(hf, config)

    def encode_views(self, views: Sequence[View], max_length: int) -> list[list[int]]:
        """Token ids of encoder inputs, each ending in the pooling token and at most ``max_length`` long.

        Over-long input loses the end of the request or document body, then of the rationale; the instruction, the anchor and
        the pooling token stay.

        Raises:
            ValueError: instruction, anchor and pooling token alone exceed ``max_length``.
        """
        encoded = self._ids([v.text for v in views])
        return [
            [*self._fit(view, ids, max_length - 1), self.pooling_token_id]
            for view, ids in zip(views, encoded, strict=True)
        ]

    def encode_prompts(self, requests: Sequence[str], max_length: int) -> list[list[int]]:
        """Token ids of the rationale prompts (raw text, no special tokens): rollouts and the LM branch share them."""
        views = [rationale_prompt(request, self.prompt_style) for request in requests]
        encoded = self._ids([v.text for v in views])
        return [self._fit(view, ids, max_length) for view, ids in zip(views, encoded, strict=True)]

    def encode_rationales(self, rationales: Sequence[str], max_length: int) -> list[list[int]]:
        """Token ids of teacher rationales with their end token, at most ``max_length`` long, the end token included."""
        return [[*ids[: max_length - 1], self.eos_id] for ids in self._ids(rationales)]

    def fixed_tokens(self, view: View) -> int:
        """Tokens of an input that are never cut; the pooling token comes on top of them in encoder inputs."""
        return sum(len(ids) for ids in self._ids([view.prefix, view.label, view.suffix]))

    def decode(self, responses: Sequence[Sequence[int]]) -> list[str]:
        """The text of generated rationales: special tokens removed, outer white space stripped."""
        return [self.hf.decode(list(r), skip_special_tokens=True).strip() for r in responses]

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        return self.hf(list(texts), add_special_tokens=False)["input_ids"] if texts else []

    def _fit(self, view: View, ids: list[int], room: int) -> list[int]:
        if len(ids) <= room:
            return ids
        if not view.label and not view.suffix:
            fixed = len(self._ids([view.prefix])[0]) if view.prefix else 0
            if fixed > room:
                raise _no_room(room, fixed)
            return ids[:room]
        prefix, content, label, analysis, suffix = self._ids(
            [view.prefix, view.content, view.label, view.analysis, view.suffix]
        )
        free = room - len(prefix) - len(label) - len(suffix)
        if free < 0:
            raise _no_room(room, room - free)
        analysis = analysis[:free]
        content = content[: free - len(analysis)]
        return [*prefix, *content, *label, *analysis, *suffix]


def _no_room(room: int, fixed: int) -> ValueError:
    return ValueError(f"a maximum of {room} tokens leaves no room for the request: instruction and anchor take {fixed}")


def _find_pooling_token(config: Any, hf: Any) -> int:
    """The id stored with the model; else the token the tokenizer appends by itself; else its end-of-sequence token."""
    stored = getattr(config, "pooling_token_id", None)
    if stored is not None:
        return int(stored)
    bare = hf("a", add_special_tokens=False)["input_ids"]
    full = hf("a", add_special_tokens=True)["input_ids"]
    if full[:-1][-len(bare) :] == bare:  # with or without a token in front
        return int(full[-1])
    if hf.eos_token_id is None:
        raise BackboneError(
            f"{hf.name_or_path}: the tokenizer appends no token and has no eos_token; set pooling_token_id in config.json"
        )
    return int(hf.eos_token_id)


def _append_pooling_token(hf: Any, pooling_token_id: int) -> None:
    """Make the tokenizer itself append the pooling token (a leading special token, where it adds one, is dropped)."""
    from tokenizers import processors

    bare = hf("a", add_special_tokens=False)["input_ids"]
    if hf("a", add_special_tokens=True)["input_ids"] == [*bare, pooling_token_id]:
        return
    token = hf.convert_ids_to_tokens(pooling_token_id)
    hf.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {token}", special_tokens=[(token, pooling_token_id)]
    )
