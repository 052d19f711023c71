"""Duplicates, weak descriptions, words and advice: each finding where the library has it, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from data_pipeline import Skill, SkillCorpus
from data_pipeline.corpus import INDEX_TEXT
from data_pipeline.skill2query.pseudo_query import PseudoQuery
from data_pipeline.tfidf import TfidfSvdEncoder
from evaluation.library_report.advice import Adviser
from evaluation.library_report.descriptions import Weak, as_read, weak_descriptions
from evaluation.library_report.duplicates import Cluster, duplicate_clusters
from evaluation.library_report.findings import Advice
from evaluation.library_report.reach import Reach, confusions, hubs, own_requests, self_retrieval
from evaluation.library_report.wording import Wording, overlap
from retrieval.bm25 import BM25Index


@pytest.fixture(scope="module")
def clusters(library: SkillCorpus) -> list[Cluster]:
    return duplicate_clusters(
        library, TfidfSvdEncoder(library.documents()).encode_documents(library.documents()), "tfidf"
    )


@pytest.fixture(scope="module")
def reach(library: SkillCorpus, queries: list[PseudoQuery]) -> Reach:
    retriever = BM25Index(library.ids, library.documents())
    return self_retrieval(library, retriever, own_requests(library, queries, 10, 1000))


@pytest.fixture(scope="module")
def advice(
    library: SkillCorpus, queries: list[PseudoQuery], clusters: list[Cluster], reach: Reach
) -> dict[str, Advice]:
    adviser = Adviser(library, Wording(library), own_requests(library, queries, 10, 1000), reach)
    found = adviser.advise(clusters, confusions(reach), hubs(reach)[0], weak_descriptions(library))
    return {library.ids[item.skill]: item for item in found}


def kinds(advice: dict[str, Advice], skill_id: str) -> set[str]:
    return {finding.kind for finding in advice[skill_id].findings}


def action(advice: dict[str, Advice], skill_id: str, kind: str) -> str:
    return next(finding.action for finding in advice[skill_id].findings if finding.kind == kind)


# -- near-duplicates ----------------------------------------------------------------------------------------------------


def test_only_the_copies_are_near_duplicates(clusters: list[Cluster]):
    of_copies = [cluster for cluster in clusters if "money/cash-a" in cluster.skills]
    assert [cluster.skills for cluster in of_copies] == [("money/cash-a", "money/cash-b")]
    assert of_copies[0].closest > 0.9


def test_three_forks_are_one_cluster():
    body = " ".join(f"Measure the {i}th panel and write the {i}th voltage into the log." for i in range(30))
    forks = [Skill(f"f{n}", f"panel-{n}", "Log solar panels.", f"{body} Fork {n}.") for n in range(3)]
    other = [Skill(f"o{n}", f"other-{n}", text, text) for n, text in enumerate(("Bake bread.", "Tune a violin."))]
    corpus = SkillCorpus([*forks, *other])
    embeddings = TfidfSvdEncoder(corpus.documents()).encode_documents(corpus.documents())
    assert [cluster.skills for cluster in duplicate_clusters(corpus, embeddings, "tfidf")] == [("f0", "f1", "f2")]


def test_one_skill_has_no_duplicate():
    corpus = SkillCorpus([Skill("a", "a", "Bake bread.", "")])
    assert duplicate_clusters(corpus, np.array([[1.0, 0.0]]), "any") == []


# -- descriptions -------------------------------------------------------------------------------------------------------

LONG = (
    "Extract tables from scanned statements, "
    + "check every total against the ledger and " * 7
    + "reconcile payments, refunds, fees, taxes, currencies, branches and "
    + "flag odd rows."
)


@pytest.mark.parametrize(
    "description, expected",
    [
        ("", [("missing", 0)]),
        ("  \n", [("missing", 0)]),
        ("PDF tools!", [("repeats_name", 0)]),
        ("Extract tables.", [("short", 2)]),
        ("A comprehensive senior authority for spreadsheets, ledgers, statements and budgets", [("no_capability", 0)]),
        ("Extract tables, figures and footnotes from scanned bank statements into spreadsheets.", []),
        (LONG, [("cut", len(LONG))]),
    ],
)
def test_weaknesses_of_one_description(description: str, expected: list[tuple[str, int]]):
    corpus = SkillCorpus([Skill("a", "pdf-tools", description, "body")])
    assert [(weak.kind, weak.amount) for weak in weak_descriptions(corpus)] == expected


def test_a_description_that_four_skills_share_is_boilerplate():
    shared = "Use this skill whenever the user works with files of type"
    names = ("alpha", "beta", "gamma", "delta")
    corpus = SkillCorpus(
        [
            *(Skill(name, name, f"{shared} {name} to extract and convert many old tables.", "") for name in names),
            Skill("own", "own", "Convert handwritten laboratory notebooks into searchable dated protocols.", ""),
        ]
    )
    # 11 words of the phrase and "alpha to extract and convert many old tables": 8; "to extract … tables" is shared, too
    found = [weak for weak in weak_descriptions(corpus) if weak.kind == "boilerplate"]
    assert [weak.skill for weak in found] == [0, 1, 2, 3]
    assert {weak.others for weak in found} == {3}
    assert {weak.amount for weak in found} == {round(100 * 18 / 19)}


def test_an_own_index_text_is_not_cut():
    corpus = SkillCorpus([Skill("a", "pdf-tools", LONG, "body", {INDEX_TEXT: "anything"})])
    assert weak_descriptions(corpus) == []


def test_no_english_verb_is_asked_of_other_languages():
    corpus = SkillCorpus(
        [Skill("a", "pdf", "Извлекает таблицы из отсканированных документов банка и сверяет итоги", "")]
    )
    assert weak_descriptions(corpus) == []


# -- words --------------------------------------------------------------------------------------------------------------


def test_only_words_that_the_rival_lacks_distinguish(library: SkillCorpus):
    wording = Wording(library)
    minutes, digest = library.get("talk/minutes"), library.get("talk/digest")
    assert set(wording.only_here(minutes, [digest])) == {"minutes", "speakers", "agenda"}
    assert set(wording.only_here(digest, [minutes])) == {"digest", "newsletter"}


def test_missing_words_are_in_the_body_and_not_in_the_description(library: SkillCorpus):
    assert Wording(library).missing(library.get("lost/shy")) == ["contracts", "quickly", "translate"]


def test_words_of_failed_requests_come_first(library: SkillCorpus):
    assert Wording(library).missing(library.get("lost/shy"), ["notarize deeds"], limit=2) == ["deeds", "notarize"]


def test_code_is_not_suggested():
    skill = Skill(
        "a", "a", "Draw charts.", "```\nxyzzy xyzzy\n```\nquartz quartz [plugh plugh](http://frobnicate.example)"
    )
    corpus = SkillCorpus([skill, Skill("b", "b", "Bake bread.", "")])
    assert Wording(corpus).missing(skill) == ["plugh", "quartz"]


def test_overlap_is_the_share_of_the_own_words():
    left, right = Skill("a", "chart", "draws red bars", ""), Skill("b", "chart", "bars", "")
    assert overlap(left, right) == pytest.approx(2 / 4)
    assert overlap(right, left) == pytest.approx(1)


# -- advice -------------------------------------------------------------------------------------------------------------


def test_each_finding_is_where_the_library_has_it(advice: dict[str, Advice]):
    assert "copy" in kinds(advice, "money/cash-a") & kinds(advice, "money/cash-b")
    assert "unreachable" in kinds(advice, "lost/shy")
    assert "hub" in kinds(advice, "wide/everything")
    assert {skill_id for skill_id, item in advice.items() if any(f.kind == "hub" for f in item.findings)} == {
        "wide/everything"
    }
    assert {skill_id for skill_id, item in advice.items() if any(f.kind == "copy" for f in item.findings)} == {
        "money/cash-a",
        "money/cash-b",
    }


def test_the_confusable_pair_is_found_and_told_apart(library: SkillCorpus, reach: Reach, advice: dict[str, Advice]):
    pair = next(pair for pair in confusions(reach) if library.ids[pair.b] == "talk/digest")
    assert (library.ids[pair.a], pair.a_to_b, pair.b_to_a) == ("talk/minutes", 0, 3)
    assert "never_first" in kinds(advice, "talk/digest") or "unreachable" in kinds(advice, "talk/digest")
    assert "newsletter" in advice["talk/digest"].terms


def test_an_unreachable_skill_gets_the_words_of_its_body(advice: dict[str, Advice]):
    found = advice["lost/shy"]
    assert (found.requests, found.first, found.found) == (3, 0, 0)
    assert {"translate", "contracts"} <= set(found.terms)


def test_copies_are_to_be_merged(advice: dict[str, Advice]):
    assert action(advice, "money/cash-a", "copy").startswith("Merge with “money/cash-b”")
    assert "revolver" in action(advice, "money/cash-b", "copy")


def test_impact_is_own_failures_and_requests_taken(library: SkillCorpus, reach: Reach, advice: dict[str, Advice]):
    taken = sum(count for (_, first), count in reach.stolen().items() if library.ids[first] == "talk/minutes")
    assert advice["talk/minutes"].taken == taken >= 3
    assert advice["talk/minutes"].impact == advice["talk/minutes"].requests - advice["talk/minutes"].first + taken
    assert [item.impact for item in advice.values()] == sorted((item.impact for item in advice.values()), reverse=True)


@pytest.fixture
def advise() -> Callable[[list[Skill], list[Weak]], list[Advice]]:
    """Advice on skills that no request was made for."""

    def run(skills: list[Skill], weak: list[Weak]) -> list[Advice]:
        corpus = SkillCorpus(skills)
        reach = self_retrieval(corpus, BM25Index(corpus.ids, corpus.documents()), [])
        return Adviser(corpus, Wording(corpus), [], reach).advise([], [], [], weak)

    return run


def test_a_taken_name_is_to_be_changed(advise: Callable[[list[Skill], list[Weak]], list[Advice]]):
    skills = [
        Skill("x/report", "Report", "Render quarterly dashboards.", ""),
        Skill("y/report", "report", "Render incident timelines.", ""),
    ]
    found = [f for item in advise(skills, []) for f in item.findings if f.kind == "same_name"]
    assert [finding.action for finding in found] == [
        "Rename it after what sets it apart: dashboards, quarterly.",
        "Rename it after what sets it apart: incident, timelines.",
    ]


def test_copies_are_not_told_to_be_renamed(library: SkillCorpus):
    skills = [Skill(f"{fork}/cash", "cash", library[18].description, library[18].body) for fork in ("x", "y")]
    corpus = SkillCorpus([*skills, library[20], library[21]])
    documents = corpus.documents()
    clusters = duplicate_clusters(corpus, TfidfSvdEncoder(documents).encode_documents(documents), "tfidf")
    reach = self_retrieval(corpus, BM25Index(corpus.ids, documents), [])
    found = Adviser(corpus, Wording(corpus), [], reach).advise(clusters, [], [], [])
    assert {finding.kind for item in found[:2] for finding in item.findings} == {"copy", "no_requests"}


def test_the_part_that_is_not_read_begins_with_a_whole_word():
    skill = Skill("a", "a", "x" * 295 + " wholeword and more", "")
    assert as_read(skill) == ("x" * 295, " wholeword and more")
    assert as_read(Skill("a", "a", "y" * 400, "")) == ("y" * 300, "y" * 100)


def test_a_missing_description_is_to_be_written_from_the_body(
    advise: Callable[[list[Skill], list[Weak]], list[Advice]],
):
    skills = [Skill("a", "a", "", "Translate translate deeds deeds."), Skill("b", "b", "Bake bread.", "")]
    found = [f for item in advise(skills, [Weak(0, "missing")]) for f in item.findings if f.kind == "missing"]
    assert [finding.action for finding in found] == ["Write one. Its body offers: deeds, translate."]


def test_a_skill_without_a_request_says_nothing_to_ask_for(advise: Callable[[list[Skill], list[Weak]], list[Advice]]):
    assert [f.kind for item in advise([Skill("a", "a", "x", "y")], []) for f in item.findings] == ["no_requests"]
