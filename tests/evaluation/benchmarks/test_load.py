"""Names, folders, files and the hub: what ``--bench`` takes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluation.benchmarks import PUBLISHED, load_benchmark, load_folder, save_benchmark


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """Stands in for the hub: ``hub[0]["folder"]`` is what a download gives; the calls are appended."""
    calls: list[dict] = [{}]

    def snapshot_download(repo_id: str, **options):
        calls.append({"repo": repo_id, **options})
        return str(calls[0]["folder"])

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return calls


@pytest.fixture
def own_files(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "mine").mkdir()
    corpus, bench = tmp_path / "mine" / "corpus.jsonl", tmp_path / "mine" / "bench.jsonl"
    corpus.write_text('{"skill_id": "a", "name": "A", "description": "Does a.", "body": ""}\n')
    bench.write_text('{"query_id": "q", "query": "Do a.", "skill_id": "a"}\n')
    return corpus, bench


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_name_is_fetched_from_the_hub_with_only_the_files_that_are_read(hub, skillret_folder):
    hub[0]["folder"] = skillret_folder
    bench = load_benchmark("skillret")
    assert bench.name == "skillret"
    assert hub[1] == {
        "repo": "anonymous-ed-benchmark/SKILLRET",
        "repo_type": "dataset",
        "revision": "v1.0-review",
        "allow_patterns": ["data/*/test.*"],
    }


def test_every_name_has_a_place_on_the_hub():
    assert list(PUBLISHED) == ["skillreason-bench", "skillret", "sra-bench", "skillbench"]
    assert all(published.repo.count("/") == 1 for published in PUBLISHED.values())


def test_a_hub_id_is_fetched_at_its_revision_and_recognized_by_its_files(hub, beir_folder):
    hub[0]["folder"] = beir_folder
    with pytest.warns(UserWarning, match="1 queries without a relevant skill"):
        bench = load_benchmark("hf:someone/tiny@v2")
    assert bench.name == "tiny"
    assert hub[1] == {"repo": "someone/tiny", "repo_type": "dataset", "revision": "v2"}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_skillreason_bench_in_the_layout_of_beir_keeps_its_counts(hub, beir_folder):
    hub[0]["folder"] = beir_folder
    bench = load_benchmark("skillreason-bench")
    assert "skillreason-bench: expected 61,228 skills (Table 1), found 3" in bench.notes


def test_skillbench_asks_for_its_pool_before_anything_is_fetched(hub):
    with pytest.raises(ValueError, match="choose with --split"):
        load_benchmark("skillbench")
    assert len(hub) == 1


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_differences_are_warnings_and_not_failures(skillret_folder):
    with pytest.warns(UserWarning, match=r"skillret: expected 4,997 queries \(Table 1\), found 3"):
        assert len(load_benchmark(skillret_folder).queries) == 3


def test_a_bench_file_goes_with_a_corpus_file(own_files):
    corpus, bench = own_files
    loaded = load_benchmark(bench, corpus)
    assert (loaded.name, loaded.qrels) == ("bench.jsonl", {"q": {"a": 1}})


def test_a_folder_with_both_files_needs_no_corpus_option(own_files):
    loaded = load_benchmark(own_files[0].parent)
    assert (loaded.name, loaded.qrels) == ("mine", {"q": {"a": 1}})


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_local_copy_is_loaded_under_its_benchmarks_name(skillreason_folder):
    with pytest.warns(UserWarning, match="3,729"):
        assert load_benchmark(f"skillreason-bench={skillreason_folder}").name == "skillreason-bench"
    with pytest.raises(FileNotFoundError, match="nowhere: no such folder; expected a local copy of skillret"):
        load_benchmark("skillret=nowhere")


def test_what_does_not_fit_together_is_refused(own_files, beir_folder):
    corpus, bench = own_files
    with pytest.raises(ValueError, match="give its skills with --corpus"):
        load_benchmark(bench)
    with pytest.raises(ValueError, match="brings its own corpus; leave out --corpus"):
        load_benchmark(beir_folder, corpus)
    with pytest.raises(ValueError, match="--split is 'test'; a bench file has none"):
        load_benchmark(bench, corpus, "test")
    with pytest.raises(ValueError, match=r"no benchmark 'skilret': expected .* one of skillreason-bench, skillret"):
        load_benchmark("skilret")
    with pytest.raises(ValueError, match="expected hf:owner/name"):
        load_benchmark("hf:tiny")


def test_a_folder_of_something_else_is_refused_with_what_it_has(tmp_path):
    (tmp_path / "photo.png").write_text("x")
    with pytest.raises(FileNotFoundError, match=r"no table corpus or skills .*the folder has: photo.png"):
        load_benchmark(tmp_path)


def test_a_benchmark_is_written_in_our_own_format_and_read_back(skillret_folder, beir_folder, tmp_path):
    for folder in (skillret_folder, beir_folder):
        loaded = load_folder(folder)
        again = load_benchmark(save_benchmark(loaded, tmp_path / "ours" / folder.name))
        assert again.qrels == loaded.qrels
        assert [query.query for query in again.queries] == [query.query for query in loaded.queries]
        assert again.corpus.documents() == loaded.corpus.documents()


def test_skills_without_a_name_or_a_text_are_written_so_that_they_can_be_read(sra_folder, tmp_path):
    file = sra_folder / "corpus" / "corpus.json"
    file.write_text(file.read_text().replace('"Else."', '""'))
    corpus = load_benchmark(save_benchmark(load_folder(sra_folder), tmp_path / "ours")).corpus
    assert corpus.get("web_0").name == "unnamed"
    assert corpus.get("web_1").description == "Other"


def test_targets_apart_from_grades_cannot_be_written(skillbench_folder, tmp_path):
    with pytest.raises(ValueError, match="our format cannot hold both"):
        save_benchmark(load_folder(skillbench_folder, split="easy"), tmp_path / "ours")
