"""Encoding a library against ``SentenceTransformer.encode`` with its defaults: the same model, documents, threads and vectors.

The two take turns in one process, so that a busy machine slows both; the ratio is the median over the rounds.

    python benchmarks/encoding.py --model FOLDER --corpus skills.jsonl.gz --threads 2
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from data_pipeline import SkillCorpus
from data_pipeline.sample_library import load_sample_corpus
from models.encoder import load_encoder
from models.encoding import token_lengths
from models.folders import write_json


def timed(call: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    """Seconds of a call, and what it returned."""
    start = time.perf_counter()
    value = call()
    return time.perf_counter() - start, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="SentenceTransformer folder, such as an export")
    parser.add_argument("--corpus", help="skills (default: the sample library)")
    parser.add_argument("--limit", type=int, help="documents to encode (default: all)")
    parser.add_argument("--max-length", type=int, help="tokens kept of a document (default: the model's own)")
    parser.add_argument("--batch-size", type=int, default=32, help="the peer's; 32 is its default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON to write")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    corpus = SkillCorpus.from_jsonl(arguments.corpus) if arguments.corpus else load_sample_corpus()
    encoder = load_encoder(arguments.model, max_length=arguments.max_length)
    documents = corpus.documents(encoder.document_format)[: arguments.limit]
    peer = SentenceTransformer(str(encoder.folder), device=encoder.device)
    peer.max_seq_length = encoder.max_length
    lengths = token_lengths(peer, documents) or []
    sides = {
        "peer": lambda texts: peer.encode(
            texts, prompt_name="document" if peer.prompts.get("document") else None, batch_size=arguments.batch_size,
            normalize_embeddings=True, show_progress_bar=False,
        ),
        "ours": lambda texts: encoder.encode_documents(texts),
    }  # fmt: skip
    for encode in sides.values():
        encode(documents[:8])  # warms up
    rounds: list[dict[str, float]] = []
    difference = 0.0
    for number in range(arguments.rounds):
        times, vectors = {}, {}
        for name in sides if number % 2 == 0 else reversed(sides):
            times[name], vectors[name] = timed(lambda encode=sides[name]: encode(documents))
        difference = max(difference, float(np.abs(vectors["ours"] - vectors["peer"]).max()))
        rounds.append(times)
        print(f"round {number + 1}: peer {times['peer']:.1f} s, ours {times['ours']:.1f} s")
    median = {name: statistics.median(row[name] for row in rounds) for name in sides}
    result = {
        "model": arguments.model,
        "device": encoder.device,
        "threads": arguments.threads,
        "documents": len(documents),
        "mean_tokens": round(statistics.mean(lengths), 1) if lengths else None,
        "max_length": encoder.max_length,
        "peer_s": round(median["peer"], 2),
        "ours_s": round(median["ours"], 2),
        "documents_per_s": round(len(documents) / median["ours"], 1),
        "ratio": round(statistics.median(row["peer"] / row["ours"] for row in rounds), 2),
        "largest_difference": difference,
    }
    print(json.dumps(result, indent=2))
    if arguments.out is not None:
        write_json(arguments.out, result)
    if difference > 1e-4:
        raise SystemExit(f"the vectors differ by {difference:.1e}; expected at most 1e-4")


if __name__ == "__main__":
    main()
