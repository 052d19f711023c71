"""The exclusion graph and the negatives of D.1 at the paper's size, against bare FAISS and bare set operations.

Embeddings are given (random, clustered, with planted near copies), texts are random words of real lengths. Both sides do the
same work in the same process; each side's peak memory is its own process's.

    python benchmarks/data_scale.py --skills 65714 --requests 92565
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

WORDS = 30_000
CLUSTERS = 400
CATEGORIES = 300


def embeddings(count: int, dimension: int, seed: int, near_copies: float) -> np.ndarray:
    """Unit rows ``[count, dimension]`` around cluster centres; a share of them lies close to its predecessor."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(7).standard_normal((CLUSTERS, dimension), dtype=np.float32)
    owner = generator.integers(CLUSTERS, size=count)
    rows = generator.standard_normal((count, dimension), dtype=np.float32)
    rows += 0.9 * centres[owner]
    copies = np.flatnonzero(generator.random(count) < near_copies)
    copies = copies[copies > 0]
    rows[copies] = rows[copies - 1] + 0.3 * rows[copies]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def texts(count: int, seed: int) -> list[tuple[str, str, str]]:
    """Name, description and body of each skill: Zipf-distributed words; bodies of 200 to 1,200 words (real ones: about 900)."""
    generator = np.random.default_rng(seed)
    letters = random.Random(seed)
    words = ["".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=letters.randint(2, 11))) for _ in range(WORDS)]
    weights = 1.0 / np.arange(1, WORDS + 1)
    stream = generator.choice(WORDS, size=2_000_000, p=weights / weights.sum())
    out = []
    for number in range(count):
        length = int(generator.integers(200, 1200))
        start = int(generator.integers(len(stream) - length - 40))
        row = [words[w] for w in stream[start : start + length + 40]]
        out.append((f"skill-{number}", " ".join(row[:40]), " ".join(row[40:])))
    return out


def ours(arguments: argparse.Namespace) -> dict[str, float]:
    """The library's own path: neighbours, graph, query neighbours, negatives."""
    from data_pipeline import Skill, SkillCorpus
    from data_pipeline.exclusions import build_exclusion_graph, nearest_neighbours
    from data_pipeline.negatives import NegativeMiner, category_from_prefix
    from retrieval import DenseIndex

    skills, requests = _vectors(arguments)
    rows = texts(arguments.skills, 1)
    corpus = SkillCorpus(
        [Skill(f"c{i % CATEGORIES}/{name}", name, text, body, {}) for i, (name, text, body) in enumerate(rows)]
    )
    del rows
    seconds: dict[str, float] = {}
    clock = _Clock(seconds)
    index = DenseIndex(corpus.ids, skills)
    neighbours = nearest_neighbours(corpus.ids, skills, progress=True, index=index)
    clock.lap("neighbours of skills")
    graph = build_exclusion_graph(corpus, skills, neighbours, encoder="given", progress=True)
    clock.lap("exclusion graph")
    ranked = index.search(requests, 50, progress=True).ids
    clock.lap("neighbours of requests")
    miner = NegativeMiner(
        {s.skill_id: category_from_prefix(s) for s in corpus},
        graph.adjacency,
        dict(zip(corpus.ids, neighbours.ids, strict=True)),
    )
    found = 0
    for number, ranking in enumerate(ranked):
        mined = miner.mine(f"r{number}", corpus.ids[number % len(corpus)], ranking)
        found += len(getattr(mined, "ids", ()))
    clock.lap("negatives")
    return {**seconds, "pairs": float(len(graph.edges)), "negatives mined": float(found)}


def bare(arguments: argparse.Namespace) -> dict[str, float]:
    """The least that must be done: two FAISS searches, the Jaccard of Python sets, and sets of forbidden positions."""
    import faiss

    skills, requests = _vectors(arguments)
    rows = texts(arguments.skills, 1)
    seconds: dict[str, float] = {}
    clock = _Clock(seconds)
    index = faiss.IndexFlatIP(arguments.dimension)
    index.add(skills)
    scores, positions = index.search(skills, 51)
    clock.lap("neighbours of skills")
    pairs = {
        (min(i, int(j)), max(i, int(j)))
        for i in range(len(skills))
        for j, score in zip(positions[i], scores[i], strict=True)
        if j != i and score > 0.85
    }
    folded = {i: f"{rows[i][0]} {rows[i][1]} {rows[i][2][:4000]}" for i in {i for pair in pairs for i in pair}}
    sets = {i: {text[k : k + 3] for k in range(len(text) - 2)} for i, text in folded.items()}
    excluded: dict[int, set[int]] = {}
    for a, b in pairs:
        _ = len(sets[a] & sets[b]) / len(sets[a] | sets[b])
        excluded.setdefault(a, set()).add(b)
        excluded.setdefault(b, set()).add(a)
    clock.lap("exclusion graph")
    _, ranked = index.search(requests, 50)
    clock.lap("neighbours of requests")
    generator = random.Random(42)
    category = [list(range(c, len(skills), CATEGORIES)) for c in range(CATEGORIES)]
    found = 0
    for number in range(len(requests)):
        positive = number % len(skills)
        forbidden = {positive, *excluded.get(positive, ())}
        sources: tuple[tuple[Any, int], ...] = ((positions[positive].tolist(), 4), (ranked[number].tolist(), 3))
        for source, wanted in sources:
            chosen = [j for j in source if j not in forbidden][:wanted]
            forbidden.update(chosen)
            found += len(chosen)
        own = category[positive % CATEGORIES]
        for members, wanted in ((own, 2), (None, 1)):
            while wanted:
                j = generator.choice(members) if members else generator.randrange(len(skills))
                if j not in forbidden and (members or j % CATEGORIES != positive % CATEGORIES):
                    forbidden.add(j)
                    found += 1
                    wanted -= 1
    clock.lap("negatives")
    return {**seconds, "pairs": float(len(pairs)), "negatives mined": float(found)}


class _Clock:
    def __init__(self, seconds: dict[str, float]):
        self.seconds, self.last = seconds, time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name], self.last = now - self.last, now


def _vectors(arguments: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    return (
        embeddings(arguments.skills, arguments.dimension, 1, near_copies=0.03),
        embeddings(arguments.requests, arguments.dimension, 2, near_copies=0.0),
    )


STEPS = ("neighbours of skills", "exclusion graph", "neighbours of requests", "negatives")


def main() -> None:
    """Run both sides in processes of their own and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--skills", type=int, default=65_714)
    parser.add_argument("--requests", type=int, default=92_565)
    parser.add_argument("--dimension", type=int, default=1024)
    parser.add_argument("--side", choices=("ours", "bare"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="JSON with both sides' figures")
    arguments = parser.parse_args()
    if arguments.side:
        result = {"ours": ours, "bare": bare}[arguments.side](arguments)
        result["peak GB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(json.dumps(result))
        return
    sides = {}
    for side in ("bare", "ours"):
        command = [sys.executable, __file__, "--side", side]
        for key in ("skills", "requests", "dimension"):
            command += [f"--{key}", str(getattr(arguments, key))]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        sides[side] = json.loads(done.stdout.splitlines()[-1])
    print(f"{arguments.skills} skills, {arguments.requests} requests, {arguments.dimension} dimensions")
    print(f"{'':<26}{'bare':>12}{'ours':>12}{'ratio':>8}")
    for side in sides.values():
        side["total s"] = sum(side[step] for step in STEPS)
    for key in (*STEPS, "total s", "peak GB", "pairs", "negatives mined"):
        left, right = sides["bare"][key], sides["ours"][key]
        print(f"{key:<26}{left:>12.2f}{right:>12.2f}{right / left if left else float('nan'):>8.2f}")
    if arguments.out:
        arguments.out.write_text(json.dumps(sides, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
