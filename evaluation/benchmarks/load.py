"""A benchmark by name, by local folder or from the Hugging Face hub; the layout of a folder is recognized by its files."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

from data_pipeline.corpus import SkillCorpus
from data_pipeline.records import read_bench, write_records
from evaluation.benchmarks import skillbench, skillreason_bench, skillret, sra_bench
from evaluation.benchmarks.base import OPEN_PROTOCOL, Benchmark, differences
from evaluation.benchmarks.beir import is_beir, load_beir
from evaluation.benchmarks.tables import TABLE_SUFFIXES, find_table


@dataclass(frozen=True)
class Published:
    """Where a benchmark lies on the hub, and the files of it that are read."""

    repo: str
    revision: str | None
    files: tuple[str, ...]


PUBLISHED = {
    skillreason_bench.NAME: Published("donghongjiang/skillreason-bench", None, ("*.json*", "*.parquet", "qrels/*")),
    # Table 1 counts version 1.0 of SkillRet; the head of the data set is a later one.
    skillret.NAME: Published("anonymous-ed-benchmark/SKILLRET", "v1.0-review", ("data/*/test.*",)),
    sra_bench.NAME: Published("WeihangSu/SRA-Bench", None, ("corpus/*", "instances/*")),
    skillbench.NAME: Published(
        "pipizhao/SkillRouter-Eval-Core", None, ("tasks.jsonl", "relevance.json", "easy/*", "hard/*")
    ),
}
"""The named benchmarks."""


def load_benchmark(bench: str | Path, corpus: str | Path | None = None, split: str | None = None) -> Benchmark:
    """Load a benchmark and warn (UserWarning) of every count that differs from the published one.

    Args:
        bench: a name of :data:`PUBLISHED` (fetched from the hub), ``NAME=FOLDER`` (a local copy of it), ``hf:owner/name`` with
            or without ``@revision``, a local folder, or a bench file of our own format.
        corpus: the skills (JSONL, gzipped JSONL, Parquet); needed for a bench file, and only there.
        split: SkillBench: ``easy`` or ``hard``; SRA-Bench: one suite; BEIR and SkillRet: the split, ``test`` if None.

    Raises:
        ValueError: no such benchmark, or what its loader refuses; the message names file, row and key.
        FileNotFoundError: a file or folder is missing.
        OSError: the hub cannot be reached.
    """
    text = str(bench)
    path = Path(bench)
    name = ""
    if not path.exists() and "=" in text and text.split("=", 1)[0] in PUBLISHED:
        name, _, place = text.partition("=")
        path = Path(place)
        if not path.is_dir():
            raise FileNotFoundError(f"{path}: no such folder; expected a local copy of {name}")
    if path.is_file() or (not path.exists() and corpus is not None):
        if split is not None:
            raise ValueError(f"--split is {split!r}; a bench file has none")
        return _own_format(path, corpus)
    if corpus is not None:
        raise ValueError(f"{text} brings its own corpus; leave out --corpus, or give a bench file")
    if not path.is_dir():
        if text == skillbench.NAME:  # before a download of hundreds of megabytes
            skillbench.check_pool(text, split)
        path, name = fetch(text)
    loaded = load_folder(path, name, split)
    for note in loaded.notes:
        warnings.warn(note, stacklevel=2)
    return loaded


def load_folder(folder: Path, name: str = "", split: str | None = None) -> Benchmark:
    """The benchmark in a local folder; ``name`` for a layout that several benchmarks share, the folder's own if empty."""
    if skillbench.is_skillbench(folder):
        return skillbench.load_skillbench(folder, split)
    if (folder / "instances").is_dir() and (folder / "corpus").is_dir():
        return sra_bench.load_sra_bench(folder, split)
    if skillret.root_of(folder) is not None:
        return skillret.load_skillret(folder, split)
    called = name or folder.resolve().name
    if is_beir(folder):
        loaded = load_beir(folder, called, split)
        if called != skillreason_bench.NAME:
            return loaded
        notes = (*loaded.notes, *differences(loaded, skillreason_bench.EXPECTED))
        return replace(loaded, protocol=skillreason_bench.PROTOCOL, notes=notes)
    ours = [path for path in folder.glob("bench.*") if path.name.endswith(TABLE_SUFFIXES[:3])]
    if (
        name != skillreason_bench.NAME
        and ours
        and split is None
        and not (folder / skillreason_bench.COLUMNS_FILE).exists()
    ):
        return replace(_own_format(ours[0], find_table(folder, "corpus")), name=called, source=str(folder))
    return skillreason_bench.load_skillreason_bench(folder, called, split)


def fetch(text: str) -> tuple[Path, str]:
    """Download what ``text`` names (a name, or ``hf:owner/name[@revision]``); its folder in the hub's cache, and its name.

    Raises:
        ValueError: neither a known name nor a hub id.
        OSError: the hub cannot be reached, or has no such data set or revision.
    """
    from huggingface_hub import snapshot_download

    if text.startswith("hf:"):
        repo, _, revision = text.removeprefix("hf:").partition("@")
        if repo.count("/") != 1 or not all(repo.split("/")):
            raise ValueError(f"{text}: expected hf:owner/name or hf:owner/name@revision")
        name = next((known for known, published in PUBLISHED.items() if published.repo == repo), repo.split("/")[1])
        return Path(snapshot_download(repo, repo_type="dataset", revision=revision or None)), name
    if text not in PUBLISHED:
        raise ValueError(
            f"no benchmark {text!r}: expected a folder, a bench file with --corpus, hf:owner/name, or one of "
            f"{', '.join(PUBLISHED)}"
        )
    published = PUBLISHED[text]
    folder = snapshot_download(
        published.repo, repo_type="dataset", revision=published.revision, allow_patterns=list(published.files)
    )
    return Path(folder), text


def save_benchmark(benchmark: Benchmark, folder: str | Path) -> Path:
    """Write ``corpus.jsonl.gz`` and ``bench.jsonl`` of our own format, for what takes such files.

    That format wants a name, and a description or a body: a skill without a name is called "unnamed", one that has nothing but
    a name gets it as its description.

    Raises:
        ValueError: the benchmark has targets apart from its grades (SkillBench), which our format cannot say.
    """
    if benchmark.targets:
        raise ValueError(
            f"{benchmark.name} has targets that are not simply its grades above 0; our format cannot hold both"
        )
    root = Path(folder)
    skills = [skill if skill.name.strip() else replace(skill, name="unnamed") for skill in benchmark.corpus]
    skills = [s if s.description.strip() or s.body.strip() else replace(s, description=s.name) for s in skills]
    SkillCorpus(skills).to_jsonl(root / "corpus.jsonl.gz")
    write_records(root / "bench.jsonl", benchmark.queries)
    return root


def _own_format(bench: Path, corpus: str | Path | None) -> Benchmark:
    if corpus is None:
        raise ValueError(f"{bench} is a bench file; give its skills with --corpus")
    skills = SkillCorpus.from_jsonl(corpus)
    queries = read_bench(bench)
    lacking = [
        (query.query_id, skill_id)
        for query in queries
        for skill_id, grade in query.qrels.items()
        if grade > 0 and skill_id not in skills
    ]
    if lacking:
        query_id, skill_id = lacking[0]
        raise ValueError(
            f"{bench}: query {query_id!r} has target {skill_id!r}, which {corpus} lacks ({len(lacking)} such targets); "
            f"expected every target among its {len(skills)} skills"
        )
    return Benchmark(bench.name, skills, queries, OPEN_PROTOCOL, f"{bench} and {corpus}")
