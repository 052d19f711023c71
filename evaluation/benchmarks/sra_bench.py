"""SRA-Bench in its public layout: ``corpus/corpus.json`` and one file of instances for each of the six suites."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from data_pipeline.records import BenchQuery
from evaluation.benchmarks.base import Benchmark, Expected, Protocol, differences
from evaluation.benchmarks.tables import find_table, read_skills, read_table

NAME = "sra-bench"
PROTOCOL = Protocol("fractional recall (CHAMP and BigCodeBench have several targets), binary NDCG", macro=True)
SUITES = {
    "theoremqa": 747,
    "logicbench": 760,
    "toolqa": 1430,
    "medcalcbench": 1100,
    "champ": 223,
    "bigcodebench": 1140,
}
"""Instances by suite, in the order of the benchmark's own table."""
EXPECTED = Expected(
    queries=5400, skills=26262, words=52.3, words_without=("medcalcbench",), suites=SUITES, gold_skills=636
)


def load_sra_bench(folder: Path, split: str | None) -> Benchmark:
    """Read ``corpus/corpus.json`` (or ``corpus.json.zip``: skill_id, name, description, content) and ``instances/*.json``
    (instance_id, question, skill_annotations); a suite is called as its file.

    Args:
        folder: the data set's folder.
        split: one suite; all of them if None.

    Raises:
        RecordError: a broken instance or skill, a repeated id, an annotation that the corpus lacks.
        FileNotFoundError: a part or the suite is missing.
    """
    corpus = read_skills(find_table(folder / "corpus", "corpus"), ("skill_id", "id"), ("content", "body"))
    instances = folder / "instances"
    found = sorted(path.stem for path in instances.glob("*.json"))
    names = [name for name in SUITES if name in found] + [name for name in found if name not in SUITES]
    if split is not None:
        if split not in names:
            raise FileNotFoundError(f"{instances}: no suite {split!r}; expected one of {', '.join(names) or 'none'}")
        names = [split]
    if not names:
        raise FileNotFoundError(f"{instances}: no suite; expected files such as theoremqa.json")
    queries: list[BenchQuery] = []
    suites: dict[str, str] = {}
    for name in names:
        for row in read_table(instances / f"{name}.json"):
            query_id, targets = row.text("instance_id", "id"), row.texts("skill_annotations")
            if query_id in suites:
                raise row.error(f"duplicate id, first seen in {suites[query_id]}", "instance_id", query_id)
            lacking = next((target for target in targets if target not in corpus), None)
            if lacking is not None:
                raise row.error(f"no such skill among the {len(corpus)} of the corpus", "skill_annotations", lacking)
            suites[query_id] = name
            queries.append(BenchQuery(query_id, row.text("question"), dict.fromkeys(targets, 1), name))
    bench = Benchmark(NAME, corpus, queries, PROTOCOL, str(folder), suites=suites)
    notes = differences(bench, EXPECTED) if split is None else ()
    return replace(bench, notes=tuple(notes))
