"""The reranker: a causal LM that reads a request with one document and scores it by logit(yes) − logit(no) (E.5)."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from models.backbone import Backbone
from models.batching import pad_right, plan_micro_batches
from models.export import Exportable
from models.folders import atomic_folder, write_json
from models.reranker_format import FORMAT_FILE, PairTokenizer, RerankerFormat, answer_token_ids, read_format
from models.tokenization import ModelTokenizer

TOKEN_BUDGET = 32768
"""Padded tokens scored at once; twenty candidates of a usual library fit."""


class Reranker(Backbone):
    """A backbone whose answer position scores a pair.

    ``Reranker.load`` takes an export of ours, or any causal LM by folder or hub id, such as Qwen/Qwen3-Reranker-0.6B; with
    ``form=`` another format than the one stored with it. It raises BackboneError where yes or no is not one token.

    Attributes:
        form: template, truncation and answers.
        answer_ids: token ids of yes and no.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: ModelTokenizer,
        *,
        compute_dtype: torch.dtype = torch.float32,
        source: str = "",
        share_prefixes: bool = True,
        form: RerankerFormat | None = None,
    ):
        super().__init__(model, tokenizer, compute_dtype=compute_dtype, source=source, share_prefixes=share_prefixes)
        self.form = form or read_format(source, tokenizer)
        self.answer_ids = answer_token_ids(tokenizer, self.form, source)
        self.pairs = PairTokenizer(tokenizer, self.form)
        self.answer_score = AnswerScore(model.get_output_embeddings(), *self.answer_ids)

    def pair_scores(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """r(q, s) of E.5, ``[B, 1]`` in float32, of right-padded pairs that end at the answer position."""
        return self.answer_score(_last(self.hidden_states(input_ids, attention_mask), attention_mask))

    @torch.inference_mode()
    def score(
        self,
        query: str,
        documents: Sequence[str],
        *,
        token_budget: int = TOKEN_BUDGET,
        share_prefix: bool = True,
    ) -> np.ndarray:
        """r(q, s) of one request with each document, float32 ``[n]``.

        What all pairs begin with, the template and the request, is computed once: its keys and values serve every document.

        Args:
            documents: serialized ones, see :meth:`RerankerFormat.document`.
            token_budget: padded tokens of one forward pass.
            share_prefix: false computes every pair as a whole; the scores are the same up to rounding.
        """
        sequences = self.pairs.pairs(query, documents)
        shared = common_prefix(sequences) if share_prefix and len(sequences) > 1 else 0
        cache = self._prefix_cache(sequences[0][:shared]) if shared else None
        if cache is None:
            shared = 0
        out = torch.empty(len(sequences))
        for rows in plan_micro_batches([len(s) for s in sequences], token_budget):
            ids, mask = pad_right([sequences[r][shared:] for r in rows], self.tokenizer.pad_id, self.device)
            hidden = self.hidden_states(ids, mask) if cache is None else self._after(cache, ids)
            out[rows] = self.answer_score(_last(hidden, mask))[:, 0].cpu()
        return out.numpy()

    def _prefix_cache(self, prefix: list[int]) -> Any:
        """Keys and values of the tokens that all pairs begin with; None where a layer keeps something else than all of them."""
        from transformers.cache_utils import DynamicCache, DynamicLayer

        cache = DynamicCache(config=self.model.config)
        if any(type(layer) is not DynamicLayer for layer in cache.layers):
            return None
        with self.autocast():
            self.model.base_model(
                input_ids=torch.tensor([prefix], device=self.device), past_key_values=cache, use_cache=True
            )
        return cache

    def _after(self, prefix: Any, ids: torch.Tensor) -> torch.Tensor:
        """Final hidden states ``[B, T, d]`` in float32 of what follows the cached prefix in each row, right-padded."""
        from transformers.cache_utils import DynamicCache

        cache = DynamicCache(config=self.model.config)
        layers: list[Any] = cache.layers
        for layer, known in zip(layers, prefix.layers, strict=True):
            layer.lazy_initialization(known.keys, known.values)
            # views: the layer itself joins them with the new keys and values, and that is the only copy
            layer.keys = known.keys.expand(len(ids), -1, -1, -1)
            layer.values = known.values.expand(len(ids), -1, -1, -1)
        with self.autocast():
            output = self.model.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
        return output.last_hidden_state.float()


class AnswerScore(nn.Module):
    """logit(yes) − logit(no) from hidden states ``[B, d]``: ``[B, 1]``, in float32 whatever the transformer's precision.

    It owns the head's weight for the reason that :class:`models.token_log_probs.TokenLogProbs` does: ZeRO-3 gathers it with the
    call.
    """

    bias: torch.Tensor | None

    def __init__(self, head: Any, yes: int, no: int):
        super().__init__()
        self.weight = head.weight
        self.register_parameter("bias", getattr(head, "bias", None))
        self.yes, self.no = yes, no

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            rows = self.weight[[self.yes, self.no]].float()
            logits = hidden.float() @ rows.T
        if self.bias is not None:
            logits = logits + self.bias[[self.yes, self.no]].float()
        return logits[:, :1] - logits[:, 1:]


def common_prefix(sequences: Sequence[Sequence[int]]) -> int:
    """How many tokens all sequences begin with; each keeps at least its last one for itself."""
    shortest = min(len(s) for s in sequences) - 1
    first = sequences[0]
    return next((i for i in range(shortest) if any(s[i] != first[i] for s in sequences)), max(shortest, 0))


def _last(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """``[B, d]`` hidden states of each row's last real token, of a right-padded batch."""
    return hidden[torch.arange(len(hidden), device=hidden.device), mask.sum(dim=1) - 1]


def export_reranker(source: Exportable, form: RerankerFormat, out: str | Path) -> Path:
    """Write a folder that ``CrossEncoder(path)`` of sentence-transformers, transformers and :meth:`Reranker.load` load.

    ``CrossEncoder.predict`` gives the same scores for ``(request, serialized document)``, in float32 weights. It cuts an
    over-long pair at the same token; only a request that fills the whole input is cut differently.
    """
    backbone = source.gather_backbone()
    if backbone is None:
        return Path(out)
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder.modules import LogitScore, Transformer

    tokenizer = backbone.tokenizer
    answer_ids = answer_token_ids(tokenizer, form, backbone.source)
    backbone.model.config.pooling_token_id = tokenizer.pooling_token_id
    logits = {"method": "forward", "method_output_name": "logits"}
    modalities: Any = {"text": logits, "message": {**logits, "format": "flat"}}  # what a pair becomes
    limit = min(form.max_length, getattr(backbone.model.config, "max_position_embeddings", form.max_length))
    with tempfile.TemporaryDirectory() as scratch:
        backbone.model.save_pretrained(scratch)
        _save_tokenizer(tokenizer, form, scratch)
        transformer = Transformer(
            scratch,
            transformer_task="text-generation",
            max_seq_length=limit,
            modality_config=modalities,
            module_output_name="causal_logits",
        )
        score = LogitScore(true_token_id=answer_ids[0], false_token_id=answer_ids[1])
        model = CrossEncoder(modules=[transformer, score], activation_fn=nn.Identity(), device="cpu")
        with atomic_folder(out) as folder:
            model.save(str(folder), create_model_card=False)
            write_json(folder / FORMAT_FILE, form.to_json(answer_ids))
    return Path(out)


def _save_tokenizer(tokenizer: ModelTokenizer, form: RerankerFormat, folder: str) -> None:
    """With the pair's template, and without the pooling token, which would follow the answer position elsewhere."""
    hf = tokenizer.hf
    before = hf.chat_template, hf.backend_tokenizer.post_processor
    try:
        hf.chat_template, hf.backend_tokenizer.post_processor = form.chat_template(), tokenizer.own_post_processor
        hf.save_pretrained(folder)
    finally:
        hf.chat_template, hf.backend_tokenizer.post_processor = before
