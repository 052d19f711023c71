"""A fake encoder that counts its work, and a real but tiny SentenceTransformer folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest


class HashEncoder:
    """Unit vectors made from each text's digest; remembers which documents it was asked to encode."""

    def __init__(self, fingerprint: str = "weights-1", dimension: int = 6) -> None:
        self.name = "hash"
        self.fingerprint = fingerprint
        self.dimension = dimension
        self.encoded: list[str] = []

    def vector(self, text: str) -> np.ndarray:
        seed = hashlib.sha256(f"{self.fingerprint}|{text}".encode()).digest()
        values = np.frombuffer(seed, dtype=np.uint8)[: self.dimension].astype(np.float32) - 127.5
        return values / np.linalg.norm(values)

    def encode_queries(self, requests: Sequence[str], batch_size: int = 32, progress: bool = False) -> np.ndarray:
        return np.array([self.vector(text) for text in requests], dtype=np.float32).reshape(-1, self.dimension)

    def encode_documents(self, documents: Sequence[str], batch_size: int = 32, progress: bool = False) -> np.ndarray:
        self.encoded.extend(documents)
        return self.encode_queries(documents)


@pytest.fixture
def hash_encoder() -> type[HashEncoder]:
    return HashEncoder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Save a random two-layer BERT as a SentenceTransformer folder, with the prompts and length limit asked for."""

    def save(prompts: dict[str, str] | None = None, max_seq_length: int = 16) -> Path:
        import torch
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
        from transformers import BertConfig, BertModel, BertTokenizer

        base = tmp_path_factory.mktemp("bert")
        words = "find convert pdf table chart query document the a to of in skill : [UNK] [CLS] [SEP] [PAD] [MASK]"
        (base / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words.split()[:14]]))
        BertTokenizer(str(base / "vocab.txt")).save_pretrained(base)
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=19,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=64,
        )
        BertModel(config).save_pretrained(base)
        transformer = Transformer(str(base), max_seq_length=max_seq_length)
        model = SentenceTransformer(modules=[transformer, Pooling(16, "mean")], prompts=prompts, device="cpu")
        folder = tmp_path_factory.mktemp("model") / "tiny"
        model.save(str(folder), create_model_card=False)
        return folder

    return save
