"""SRA-Bench's public layout: suites, several targets, the zipped corpus, and broken instances."""

from __future__ import annotations

import json
import zipfile

import pytest

from evaluation.benchmarks import load_folder


def test_instances_become_queries_by_suite(sra_folder):
    bench = load_folder(sra_folder)
    assert bench.name == "sra-bench"
    assert bench.suite_queries() == {"theoremqa": ["theoremqa_00000"], "champ": ["champ_00000", "champ_00001"]}
    assert bench.qrels["champ_00000"] == {"champ_0": 1, "champ_1": 1}
    assert bench.protocol.macro
    assert bench.corpus.get("champ_0").body == "More pigeons than holes."


def test_a_skill_without_a_name_is_taken_as_it_is(sra_folder):
    assert load_folder(sra_folder).corpus.get("web_0").document == " | Something from the web. | Hello."


def test_every_count_that_differs_is_named(sra_folder):
    notes = load_folder(sra_folder).notes
    assert "sra-bench: expected 5,400 queries (Table 1), found 3" in notes
    assert "sra-bench: expected 26,262 skills (Table 1), found 5" in notes
    assert "sra-bench: expected 636 different target skills (Table 1), found 3" in notes
    assert "sra-bench: expected 223 queries of champ (Table 1), found 2" in notes
    assert "sra-bench: expected 1,140 queries of bigcodebench (Table 1), found 0" in notes


def test_the_published_suites_add_up():
    from evaluation.benchmarks.sra_bench import EXPECTED, SUITES

    assert sum(SUITES.values()) == EXPECTED.queries == 5400


def test_a_zipped_corpus_is_read(sra_folder):
    plain = load_folder(sra_folder).corpus
    file = sra_folder / "corpus" / "corpus.json"
    with zipfile.ZipFile(file.with_suffix(".json.zip"), "w") as archive:
        archive.write(file, "corpus.json")
        archive.writestr("__MACOSX/._corpus.json", "junk")
    file.unlink()
    assert list(load_folder(sra_folder).corpus) == list(plain)


def test_one_suite_is_chosen_by_name(sra_folder):
    bench = load_folder(sra_folder, split="champ")
    assert len(bench.queries) == 2
    assert bench.notes == ()
    with pytest.raises(FileNotFoundError, match="no suite 'chess'; expected one of theoremqa, champ"):
        load_folder(sra_folder, split="chess")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"skill_annotations": ["champ_9"]}, r"champ.json:2: skill_annotations = 'champ_9': no such skill among the 5"),
        ({"skill_annotations": []}, r"champ.json:2: skill_annotations = \[\]: expected a list of one or more"),
        (
            {"instance_id": "champ_00000"},
            r"champ.json:2: instance_id = 'champ_00000': duplicate id, first seen in champ",
        ),
        ({"question": 5.5}, r"champ.json:2: question = 5.5: expected text"),
    ],
)
def test_a_broken_instance_is_named(sra_folder, edit, message):
    file = sra_folder / "instances" / "champ.json"
    rows = json.loads(file.read_text())
    rows[1] |= edit
    file.write_text(json.dumps(rows))
    with pytest.raises(ValueError, match=message):
        load_folder(sra_folder)


def test_a_truncated_file_is_named(sra_folder):
    (sra_folder / "instances" / "champ.json").write_text('[{"instance_id": ')
    with pytest.raises(ValueError, match=r"champ.json:1: not valid JSON"):
        load_folder(sra_folder)
