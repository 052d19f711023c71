"""The real skills: files load, every request gets its ten negatives, near copies are found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from data_pipeline import (
    BuiltRecords,
    SeparatedBatchSampler,
    SkillCorpus,
    build_records,
    read_bench,
    read_training_requests,
)
from data_pipeline.trigrams import copy_text

DATA = Path(os.environ.get("SKILLREASON_DATA", Path(__file__).resolve().parents[2].parent / "shared/data"))
pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(
        not (DATA / "skills.jsonl.gz").exists(), reason=f"needs the real skills in {DATA}; set SKILLREASON_DATA"
    ),
]


@pytest.fixture(scope="module")
def corpus() -> SkillCorpus:
    return SkillCorpus.from_jsonl(DATA / "skills.jsonl.gz")


@pytest.fixture(scope="module")
def built(corpus: SkillCorpus) -> BuiltRecords:
    return build_records(read_training_requests(DATA / "train.jsonl"), corpus)


def test_the_files_load(corpus: SkillCorpus) -> None:
    assert len(corpus) == 1744
    for name in ("dev_bench.jsonl", "dev_bench_hard.jsonl"):
        queries = read_bench(DATA / name)
        assert len(queries) == 120
        assert all(len(query.qrels) == 1 and next(iter(query.qrels)) in corpus for query in queries)


def test_every_request_gets_ten_negatives(built: BuiltRecords) -> None:
    assert (len(built.stage1), len(built.stage2)) == (960, 960)
    assert all(len(record.negative_ids) == 10 for record in built.stage1)


def test_the_text_gate_finds_the_copies_that_brute_force_finds(corpus: SkillCorpus, built: BuiltRecords) -> None:
    # A third of one repository against another keeps the test short; set sizes rule most pairs out before any is compared.
    def trigrams(repository: str) -> dict[str, set[str]]:
        texts = {skill.skill_id: copy_text(skill) for skill in corpus if skill.skill_id.startswith(repository)}
        return {skill_id: {text[i : i + 3] for i in range(len(text) - 2)} for skill_id, text in texts.items()}

    others = trigrams("antigravity/")
    lefts = dict(sorted(trigrams("wshobson/").items())[::3])
    expected = set()
    for left, mine in lefts.items():
        for right, theirs in others.items():
            small, large = sorted((len(mine), len(theirs)))
            if small > 0.6 * large and len(mine & theirs) > 0.6 * len(mine | theirs):
                expected.add(frozenset((left, right)))
    found = {
        frozenset((edge.a, edge.b))
        for edge in built.exclusions.edges
        if edge.kind == "copy" and ((edge.a in lefts and edge.b in others) or (edge.b in lefts and edge.a in others))
    }
    assert len(expected) > 5
    assert found == expected


def test_batches_of_64_have_few_collisions(built: BuiltRecords) -> None:
    sampler = SeparatedBatchSampler(built.stage1, 64, exclusions=built.exclusions)
    assert len(sampler) == 15
    assert sampler.collisions < 20
