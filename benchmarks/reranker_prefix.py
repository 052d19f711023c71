"""What the shared prompt prefix saves: one request with twenty candidates, its prefix computed once or in every pair.

``python benchmarks/reranker_prefix.py --model FOLDER [--corpus FILE] [--out FILE]``
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from data_pipeline.corpus import SkillCorpus
from data_pipeline.sample_library import load_sample_corpus
from models.folders import write_json
from models.reranker import Reranker, common_prefix
from models.reranker_format import RerankerFormat

CANDIDATES = 20
WORDS = "please sort the invoices of last quarter by customer and tell me which of them have not been paid yet because"


def milliseconds(reranker: Reranker, query: str, documents: list[str], *, share: bool) -> float:
    """Of one request with its candidates."""
    synchronize(reranker)
    start = time.perf_counter()
    reranker.score(query, documents, share_prefix=share)
    synchronize(reranker)
    return 1000 * (time.perf_counter() - start)


def synchronize(reranker: Reranker) -> None:
    if reranker.device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="folder or hub id of a causal LM")
    parser.add_argument("--corpus", help="skills (default: the sample library)")
    parser.add_argument("--requests", type=int, default=5, help="requests of each length")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--body-chars", type=int, default=RerankerFormat.body_chars, help="of a document's body")
    parser.add_argument("--answers", default="yes/no")
    parser.add_argument("--out", type=Path, help="JSON to write")
    arguments = parser.parse_args()
    corpus = SkillCorpus.from_jsonl(arguments.corpus) if arguments.corpus else load_sample_corpus()
    yes, no = arguments.answers.split("/")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    form = RerankerFormat(body_chars=arguments.body_chars, yes=yes, no=no)
    reranker = Reranker.load(arguments.model, dtype=arguments.dtype, device=device, form=form)
    generator = np.random.default_rng(20260720)
    texts = [form.document(skill.name, skill.description, skill.body) for skill in corpus]
    rows = []
    for words in tqdm((20, 100, 400), desc="request lengths"):
        query = " ".join((WORDS.split() * 40)[:words])
        queries = [f"{number} {query}" for number in range(arguments.requests)]
        chosen = [[texts[i] for i in generator.choice(len(texts), CANDIDATES, replace=False)] for _ in queries]
        pairs = reranker.pairs.pairs(queries[0], chosen[0])
        both = [reranker.score(queries[0], chosen[0], share_prefix=share) for share in (True, False)]  # warms up, too
        # in turn, so that another process that slows the machine down slows both
        times = [
            [milliseconds(reranker, query, documents, share=share) for share in (False, True)]
            for query, documents in zip(queries, chosen, strict=True)
        ]
        rows.append(
            {
                "request_words": words,
                "prefix_tokens": common_prefix(pairs),
                "pair_tokens": round(statistics.mean(len(p) for p in pairs)),
                "unshared_ms": round(statistics.median(apart for apart, _ in times), 1),
                "shared_ms": round(statistics.median(shared for _, shared in times), 1),
                "speed_up": round(statistics.median(apart / shared for apart, shared in times), 2),
                "largest_difference": float(np.abs(both[0] - both[1]).max()),
            }
        )
    result = {"model": arguments.model, "device": device, "dtype": arguments.dtype, "threads": torch.get_num_threads()}
    result |= {"candidates": CANDIDATES, "requests": arguments.requests, "rows": rows}
    print(json.dumps(result, indent=2))
    if arguments.out is not None:
        write_json(arguments.out, result)


if __name__ == "__main__":
    main()
