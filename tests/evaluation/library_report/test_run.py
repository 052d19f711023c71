"""The whole report: its files, a page that is safe and complete, real requests, what the advice would change, odd libraries."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline import Skill, SkillCorpus, write_records
from data_pipeline.records import BenchQuery
from data_pipeline.skill2query.pseudo_query import PseudoQuery, write_pseudo_queries
from evaluation.library_report import LibraryConfig, LibraryReport, figures, report_library
from evaluation.library_report.run import domains_of

ATTACK = "<script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def folder(library: SkillCorpus, queries: list[PseudoQuery], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("library")
    library.to_jsonl(root / "corpus.jsonl")
    write_pseudo_queries(root / "queries.jsonl", queries)
    bench = [
        BenchQuery("q1", "repair my broken violins", {"plain/violins": 1}),
        BenchQuery("q2", "repair my broken kayaks", {"lost/shy": 1}),
    ]
    write_records(root / "bench.jsonl", bench)
    return root


@pytest.fixture(scope="module")
def report(folder: Path) -> LibraryReport:
    return report_library(
        "bm25",
        folder / "corpus.jsonl",
        folder / "out",
        bench=folder / "bench.jsonl",
        queries=folder / "queries.jsonl",
        config=LibraryConfig(try_advice=True),
    )


class Page(HTMLParser):
    """Tags, their attributes and the text of a page."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def small_report(root: Path, skills: list[Skill], **settings: Any) -> tuple[dict[str, Any], Page]:
    SkillCorpus(skills).to_jsonl(root / "corpus.jsonl")
    value = report_library("bm25", root / "corpus.jsonl", root / "out", **settings).value
    return value, Page((root / "out" / "index.html").read_text(encoding="utf-8"))


def test_the_file_holds_what_was_measured(report: LibraryReport, folder: Path):
    assert json.loads((folder / "out" / "report.json").read_text()) == report.value
    found = report.value["self_retrieval"]
    assert found["requests"] == 72
    assert found["depth"] == 2  # a tenth of 24 skills
    # 18 plain skills, minutes and everything are first for all three; the copies' requests name the copy; digest and shy for none
    assert found["recall@1"] == pytest.approx(22 / 24)
    assert sum(found["ranks"].values()) == 72
    assert report.value["findings"]["copy"] == 2
    assert report.value["findings"]["hub"] == 1


def test_real_requests_are_reported_with_what_came_first_instead(report: LibraryReport):
    found = report.value["real_requests"]
    assert (found["requests"], found["first"], found["found"]) == (2, 0.5, 0.5)
    assert [(row["query_id"], row["targets"], row["instead"]) for row in found["failed"]] == [
        ("q2", ["lost/shy"], "plain/kayaks")
    ]


def test_trying_the_advice_finds_the_skill_that_lacked_words(report: LibraryReport):
    """``digest`` gets the words of its body; its requests do not use them, so nothing changes for the others."""
    tried = report.value["advice_tried"]
    assert tried["before"]["recall@1"] == report.value["self_retrieval"]["recall@1"]
    assert {"lost/shy", "talk/digest"} <= {row["skill_id"] for row in tried["rows"]}
    assert tried["others_after"] == tried["others_before"]


def test_the_page_fetches_nothing_and_runs_nothing(report: LibraryReport, folder: Path):
    page = Page((folder / "out" / "index.html").read_text(encoding="utf-8"))
    assert not [tag for tag, _ in page.tags if tag in ("script", "link", "iframe", "object")]
    links = [value for _, attrs in page.tags for key, value in attrs.items() if key in ("src", "href") and value]
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in links)
    assert sum(tag == "img" for tag, _ in page.tags) == 3


def test_links_of_the_page_lead_somewhere(report: LibraryReport, folder: Path):
    page = Page((folder / "out" / "index.html").read_text(encoding="utf-8"))
    ids = {attrs.get("id") for _, attrs in page.tags}
    assert {str(attrs["href"])[1:] for tag, attrs in page.tags if tag == "a"} <= ids


def test_text_of_a_library_is_shown_and_never_run(tmp_path: Path):
    skills = [
        Skill(
            f"{ATTACK}/{n}",
            f"{ATTACK} {n}",
            f"Extract {ATTACK} tables from files.",
            f"# Usage\n\n- Extract {ATTACK} rows\n",
        )
        for n in range(4)
    ]
    _, page = small_report(tmp_path, skills)
    assert not [tag for tag, _ in page.tags if tag == "script"]
    assert all(not attr.startswith("on") for _, attrs in page.tags for attr in attrs)
    assert "<script>alert(1)</script>" in page.text


def test_characters_that_a_page_cannot_hold_are_replaced(tmp_path: Path):
    skills = [
        Skill(
            "a/\ud800x", "na\x00me", "Extract tables from \x1b[31m scans.", "- Extract $\\frac{tables}$ from files\n"
        ),
        Skill("b/_日本", "日本語", "表を抽出する", "- 表を抽出する\n- Convert 表 into rows of text\n"),
    ]
    rows = [
        {"skill_id": skill.skill_id, "name": skill.name, "description": skill.description, "body": skill.body}
        for skill in skills
    ]
    corpus = tmp_path / "odd.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))  # escaped, as other tools write them
    report_library("bm25", corpus, tmp_path / "out")
    text = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert not re.search("[\x00\x1b\ud800]", text)


def test_a_library_of_one_skill_is_reported(tmp_path: Path):
    value, page = small_report(
        tmp_path, [Skill("only", "only", "Extract tables from scans.", "- Extract tables from scans")]
    )
    assert value["self_retrieval"]["recall@1"] == 1
    assert value["duplicates"] == []
    assert "Nothing was found." in page.text or value["advice"]


def test_a_library_without_anything_to_ask_for_is_an_error(tmp_path: Path):
    with pytest.raises(ValueError, match="no pseudo-query for any of the 1 skills"):
        small_report(tmp_path, [Skill("a", "a", "…", "…")])


def test_an_unknown_target_of_a_bench_is_named(folder: Path, tmp_path: Path):
    write_records(tmp_path / "bench.jsonl", [BenchQuery("q9", "anything", {"nowhere": 1})])
    with pytest.raises(ValueError, match=r"bench\.jsonl: query 'q9' has target 'nowhere'"):
        report_library(
            "bm25",
            folder / "corpus.jsonl",
            tmp_path,
            bench=tmp_path / "bench.jsonl",
            queries=folder / "queries.jsonl",
        )


def test_a_bad_limit_is_named():
    with pytest.raises(ValueError, match="per_skill is 0"):
        LibraryConfig(per_skill=0)


def test_domains_come_from_the_row_or_from_the_id():
    rows = [
        Skill("a/x", "x", "d", "b"),
        Skill("a/y", "y", "d", "b", {"domain": "finance"}),
        Skill("z", "z", "d", "b", {"category": "ops"}),
        Skill("w", "w", "d", "b"),
    ]
    assert domains_of(SkillCorpus(rows)) == ["a", "finance", "ops", "library"]


def test_large_libraries_are_mapped_by_their_principal_components(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(figures, "TSNE_LIMIT", 20)
    points = np.zeros((30, 4))
    points[:, 1] = np.linspace(-3, 3, 30)  # all of the variance lies here
    placed, method = figures.layout(points)
    assert method == "principal components"
    assert np.abs(np.corrcoef(placed[:, 0], points[:, 1])[0, 1]) == pytest.approx(1)


def test_equal_vectors_have_a_place_on_the_map():
    placed, method = figures.layout(np.ones((12, 3)) / np.sqrt(3))
    assert method == "t-SNE"
    assert np.isfinite(placed).all()
