"""Exports: a folder that ``SentenceTransformer(path)`` loads, and a full causal LM for transformers and vLLM."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Protocol

from models.backbone import Backbone
from models.folders import atomic_folder
from models.views import QUERY_PREFIX


class Exportable(Protocol):
    """A backbone, or the processes that hold one together."""

    def gather_backbone(self) -> Backbone | None:
        """The whole model in the process that writes, None in the others; all of them call it."""
        ...


def export_retriever(source: Exportable, out: str | Path, max_length: int = 4096) -> Path:
    """Write the encoder with its prompts: last-token pooling over the appended pooling token, then L2 normalization.

    ``encode_query`` prepends the instruction, ``encode_document`` nothing. Weights are float32.

    Args:
        max_length: tokens kept of an input, the pooling token included; 4,096 in the paper's evaluations.
    """
    backbone = source.gather_backbone()
    if backbone is None:
        return Path(out)
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    _store_format(backbone)
    limit = min(max_length, getattr(backbone.model.config, "max_position_embeddings", max_length))
    with tempfile.TemporaryDirectory() as scratch:
        backbone.model.base_model.save_pretrained(scratch)
        backbone.tokenizer.hf.save_pretrained(scratch)
        transformer = Transformer(
            scratch,
            max_seq_length=limit,
            # said outright, for a tokenizer with a chat template would have every text wrapped in it
            modality_config={"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
            module_output_name="token_embeddings",
        )
        pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode="lasttoken")
        model = SentenceTransformer(
            modules=[transformer, pooling, Normalize()],
            prompts={"query": QUERY_PREFIX, "document": ""},
            similarity_fn_name="cosine",
            device="cpu",
        )
        with atomic_folder(out) as folder:
            model.save(str(folder), create_model_card=False)
    return Path(out)


def export_causal_lm(source: Exportable, out: str | Path) -> Path:
    """Write the whole causal LM, tokenizer and generation settings: what Stage II, transformers and vLLM load."""
    backbone = source.gather_backbone()
    if backbone is None:
        return Path(out)
    tokenizer = backbone.tokenizer
    _store_format(backbone)
    backbone.model.generation_config.eos_token_id = list(tokenizer.stop_token_ids)
    backbone.model.generation_config.pad_token_id = tokenizer.pad_id
    with atomic_folder(out) as folder:
        backbone.model.save_pretrained(folder)
        tokenizer.hf.save_pretrained(folder)
    return Path(out)


def _store_format(backbone: Backbone) -> None:
    """Keep in config.json what the tokenizer cannot say: pooling token, rationale prompt and document format trained on."""
    backbone.model.config.pooling_token_id = backbone.tokenizer.pooling_token_id
    backbone.model.config.rationale_prompt = backbone.tokenizer.prompt_style
    backbone.model.config.document_format = backbone.tokenizer.document_format
