"""Work that a cluster shares: encoding texts and mining negatives, in chunks, with results in the order of the input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from tqdm import tqdm

from data_pipeline.corpus import SkillCorpus
from data_pipeline.pipeline.config import EncodingConfig
from data_pipeline.pipeline.dag import PipelineError
from data_pipeline.tfidf import TfidfSvdEncoder

ENCODE_CHUNK = 512
MINE_CHUNK = 2048
T = TypeVar("T")
R = TypeVar("R")


class PipelineEncoder:
    """The configured encoder of skills and requests, on this process or on ``encoding.workers`` Ray actors.

    TF-IDF/SVD is fitted on the corpus and always stays in this process.

    Attributes:
        name, fingerprint: see :class:`models.encoder.Encoder`.
        fits_threshold: whether the 0.85 gate was made for vectors of this kind (it was not for TF-IDF/SVD).
    """

    def __init__(self, config: EncodingConfig, corpus: SkillCorpus, seed: int, progress: bool = False):
        self.config = config
        self.progress = progress
        self.fits_threshold = bool(config.encoder)
        self._encoder: Any
        if config.encoder:
            from models.encoder import load_encoder

            self._encoder = load_encoder(config.encoder)
        else:
            self._encoder = TfidfSvdEncoder(corpus.documents(), seed=seed)
        self.name: str = self._encoder.name
        self.fingerprint: str = self._encoder.fingerprint

    def encode_documents(self, texts: Sequence[str], batch_size: int = 0, progress: bool = False) -> np.ndarray:
        """Unit rows ``[n, d]``, float32."""
        return self._encode("encode_documents", texts)

    def encode_queries(self, texts: Sequence[str], batch_size: int = 0, progress: bool = False) -> np.ndarray:
        """Unit rows ``[n, d]``, float32."""
        return self._encode("encode_queries", texts)

    def _encode(self, method: str, texts: Sequence[str]) -> np.ndarray:
        if self.config.workers == 1 or not self.config.encoder or len(texts) <= ENCODE_CHUNK:
            return getattr(self._encoder, method)(texts, self.config.batch_size, self.progress)
        ray = _connected_ray()
        from ray.util import ActorPool

        remote = ray.remote(EncodeWorker).options(num_cpus=self.config.worker_cpus, num_gpus=self.config.worker_gpus)
        actors = [remote.remote(self.config.encoder, self.config.batch_size) for _ in range(self.config.workers)]
        chunks = [texts[i : i + ENCODE_CHUNK] for i in range(0, len(texts), ENCODE_CHUNK)]
        parts = ActorPool(actors).map(lambda actor, chunk: actor.encode.remote(method, list(chunk)), chunks)
        try:
            return np.concatenate(list(tqdm(parts, total=len(chunks), desc=method, disable=not self.progress)))
        finally:
            for actor in actors:
                ray.kill(actor)


class EncodeWorker:
    """One copy of the encoder, as a Ray actor."""

    def __init__(self, encoder: str, batch_size: int):
        from models.encoder import load_encoder

        self.encoder = load_encoder(encoder)
        self.batch_size = batch_size

    def encode(self, method: str, texts: list[str]) -> np.ndarray:
        """Unit rows of one chunk."""
        return getattr(self.encoder, method)(texts, self.batch_size)


def map_chunks(
    function: Callable[[Any, Sequence[T]], list[R]],
    shared: Any,
    items: Sequence[T],
    config: EncodingConfig,
    *,
    chunk: int = MINE_CHUNK,
    description: str = "",
    progress: bool = False,
) -> list[R]:
    """``function(shared, items)`` chunk by chunk: in this process, or as Ray tasks of which ``encoding.workers`` run at once.

    Args:
        function: an importable function that gives one result an item.
        shared: what every task reads; it travels once.
    """
    chunks = [items[i : i + chunk] for i in range(0, len(items), chunk)]
    out: list[R] = []
    with tqdm(total=len(items), desc=description, disable=not progress) as bar:
        if config.workers == 1 or len(chunks) < 2:
            for part in chunks:
                out += function(shared, part)
                bar.update(len(part))
            return out
        ray = _connected_ray()
        task = ray.remote(function).options(num_cpus=config.worker_cpus)
        reference = ray.put(shared)
        running = [task.remote(reference, part) for part in chunks[: config.workers]]
        for number, part in enumerate(chunks):
            out += ray.get(running[number])
            bar.update(len(part))
            if len(running) < len(chunks):
                running.append(task.remote(reference, chunks[len(running)]))
    return out


def _connected_ray() -> Any:
    import ray

    if not ray.is_initialized():
        raise PipelineError(
            "encoding.workers is above 1 and this process is connected to no Ray cluster; call ray.init() first"
        )
    return ray
