"""When two skills overlap (E.5), which others are proposed as alternatives (C.4), and how samples are spread; by hand."""

from __future__ import annotations

import pytest

from data_pipeline import Skill, SkillCorpus
from data_pipeline.overlaps import (
    AlternativeFinder,
    OverlapLimits,
    SkillTerms,
    balanced_sample,
    contains,
    jaccard,
    overlap_reason,
    stratified_sample,
)

LIMITS = OverlapLimits()
FAR = 0.0


def words(prefix: str, count: int) -> str:
    return " ".join(f"{prefix}{i}" for i in range(count))


def terms(skill_id: str, name: str, body: str = "", description: str = "") -> SkillTerms:
    return SkillTerms(Skill(skill_id, name, description, body))


def other(name: str = "delta", skill_id: str = "z/delta", body: str = "") -> SkillTerms:
    return terms(skill_id, name, body or words("other", 30))


def test_jaccard_is_shared_over_all_and_zero_for_two_empty_sets() -> None:
    assert jaccard(frozenset("abc"), frozenset("bcd")) == 2 / 4
    assert jaccard(frozenset(), frozenset()) == 0.0


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("pdf form filler", "PDF: Form-Filler", "same_name"),  # 3 of 3 after normalization
        ("pdf form filler tool", "pdf form filler kit", "same_name"),  # 3 of 5 = 0.60, the limit itself
        ("pdf form filler", "pdf form reader", ""),  # 2 of 4
    ],
)
def test_names_overlap_from_three_fifths_of_their_words(left: str, right: str, expected: str) -> None:
    a = terms("one/x", left, words("a", 30))
    assert overlap_reason(a, terms("two/y", right, words("b", 30)), FAR, LIMITS) == expected


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("acme/tools/pdf-fill", "fork/acme/tools/pdf_fill", "same_id"),  # 4 of 5 = 0.80
        ("acme/tools/pdf-fill", "other/fork/tools/pdf-fill", ""),  # 3 of 6
        ("ACME/Tools.PDF", "acme/tools/pdf", "same_id"),  # lower-cased
    ],
)
def test_ids_overlap_from_four_fifths_of_their_parts(left: str, right: str, expected: str) -> None:
    a = terms(left, "alpha", words("a", 30))
    assert overlap_reason(a, terms(right, "beta", words("b", 30)), FAR, LIMITS) == expected


@pytest.mark.parametrize(("shared", "expected"), [(18, "same_text"), (17, "")])
def test_documents_overlap_from_three_fifths_of_their_words(shared: int, expected: str) -> None:
    # a name and five words of its own on either side: 18 of 30 is 0.60, 17 of 29 less
    a = terms("one/x", "alpha", f"{words('same', shared)} {words('a', 5)}")
    b = terms("two/y", "beta", f"{words('b', 5)} {words('same', shared)}")
    assert overlap_reason(a, b, FAR, LIMITS) == expected


def test_a_body_that_stands_whole_in_the_other_is_contained_whatever_its_case_and_marks() -> None:
    inner = words("step", 20)
    a = terms("one/x", "alpha", inner.upper() + "!")
    b = terms("two/y", "beta", f"{words('before', 60)} {inner} {words('after', 60)}")
    assert overlap_reason(a, b, FAR, LIMITS) == overlap_reason(b, a, FAR, LIMITS) == "contained"


def test_a_body_of_less_than_a_hundred_characters_is_contained_in_nothing() -> None:
    assert not contains(terms("a", "a", "x" * 99), terms("b", "b", "x" * 300))
    assert contains(terms("a", "a", "x" * 100), terms("b", "b", "x" * 300))


@pytest.mark.parametrize(("cosine", "expected"), [(0.85, "near_vector"), (0.849, "")])
def test_vectors_are_near_from_the_threshold_on(cosine: float, expected: str) -> None:
    assert overlap_reason(terms("one/x", "alpha", words("a", 30)), other(), cosine, LIMITS) == expected


# -- alternatives -------------------------------------------------------------------------------------------------------


def propose(*skills: Skill, dense: dict[str, float] | None = None) -> dict[str, list[str]]:
    target = Skill("home/target", "frost alert", "", words("target", 40), {"repo": "garden"})
    far = Skill("far/away", "tax return", "", words("tax", 40), {"repo": "office"})
    return AlternativeFinder(SkillCorpus([target, far, *skills]), LIMITS).propose("home/target", dense or {}, 0.8)


def test_nothing_alike_proposes_nothing_and_never_the_target_itself() -> None:
    assert propose() == {}


def test_an_equal_name_in_other_letters_is_a_signal() -> None:
    assert propose(Skill("x/y", "Frost-Alert!", "", words("y", 40)))["x/y"] == ["name", "overlap"]


def test_an_equal_document_under_another_name_is_a_signal() -> None:
    found = propose(Skill("x/y", "cold watch", "", words("target", 40).upper()))["x/y"]
    assert found == ["document", "rare_words", "overlap"]


def test_the_same_repository_counts_with_a_similar_name_only() -> None:
    alike = Skill("x/y", "frost alert plus", "", words("y", 40), {"repository": "garden"})
    unlike = Skill("x/z", "seed order", "", words("z", 40), {"repo": "garden"})
    assert propose(alike, unlike) == {"x/y": ["repository", "overlap"]}


def test_three_words_that_hardly_any_other_skill_has_are_a_signal_and_two_are_not() -> None:
    three = Skill("x/y", "cold watch", "", f"target1 target2 target3 {words('y', 40)}")
    two = Skill("x/z", "seed order", "", f"target4 target5 {words('z', 40)}")
    assert propose(three, two) == {"x/y": ["rare_words"]}


def test_words_of_many_skills_are_not_rare() -> None:
    many = [Skill(f"x/{i}", f"number{i}", "", f"target1 target2 target3 {words(f'w{i}a', 40)}") for i in range(3)]
    assert propose(*many) == {}  # with the target's that makes four


def test_a_near_vector_is_proposed_from_the_given_cosine_on() -> None:
    near = Skill("x/y", "cold watch", "", words("y", 40))
    assert propose(near, dense={"x/y": 0.8, "far/away": 0.79}) == {"x/y": ["dense"]}


def test_a_dense_neighbour_that_holds_the_whole_body_is_marked_as_containing_it() -> None:
    outer = Skill("x/y", "cold watch", "", f"{words('y', 80)} {words('target', 40)}")
    assert "contained" in propose(outer, dense={"x/y": 0.1})["x/y"]


# -- samples -------------------------------------------------------------------------------------------------------------


def test_a_balanced_sample_takes_one_of_each_domain_in_turn_until_they_run_out() -> None:
    ids = ["a1", "a2", "a3", "a4", "b1", "c1", "c2"]
    domains = ["a", "a", "a", "a", "b", "c", "c"]
    order = [0.4, 0.3, 0.2, 0.1, 0.5, 0.9, 0.8]
    # rounds: a4 b1 c2 | a3 c1; of a domain the smallest draws, returned in input order
    assert balanced_sample(ids, domains, 5, order) == ["a3", "a4", "b1", "c1", "c2"]
    assert balanced_sample(ids, domains, 99, order) == ids


def test_a_stratified_sample_gives_each_stratum_its_share() -> None:
    ids = [f"a{i}" for i in range(6)] + [f"b{i}" for i in range(3)] + ["c0"]
    strata = ["a"] * 6 + ["b"] * 3 + ["c"]
    order = [i / 10 for i in range(10)]
    # of 5: 3.0, 1.5 and 0.5; the one left over goes to the largest remainder, and of equal ones to the first name
    assert stratified_sample(ids, strata, 5, order) == ["a0", "a1", "a2", "b0", "b1"]
    assert stratified_sample(ids, strata, 99, order) == ids
    assert stratified_sample([], [], 3, []) == []
