"""The sample library keeps its promises: enough skills, whole documents, requests that give nothing away.

The files are read with PyYAML and ``json`` alone, so that the checks do not lean on the readers they feed.
Each check gathers every offender before it fails.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfVectorizer

LIBRARY = Path(__file__).resolve().parents[2] / "data_pipeline" / "sample_library"
SKILLS = LIBRARY / "skills"
REQUESTS = LIBRARY / "requests.jsonl"

DOMAINS = {
    *("software", "data-analytics", "ai-ml", "finance", "media", "natural-sciences"),
    *("security-infrastructure", "legal-writing", "education-operations"),
}
FORK_SIMILARITY = 0.6  # unrelated skills of one family stay below 0.35
BODY_WORDS = (150, 400)
PARAMETER_COLUMNS = ["Name", "Type", "Required", "Default", "Allowed"]

KEYS = {
    "train": {"split", "record_id", "skill_id", "query", "query_capability", "implicit_query"},
    "test": {"split", "query_id", "skill_id", "query"},
}
EXPLICIT_WORDS = (25, 60)
IMPLICIT_WORDS = (18, 45)
RATIONALE_WORDS_BELOW = 32
NEAR_COPY = 0.85


@dataclass(frozen=True)
class SkillFile:
    """One SKILL.md: its place in the library, its frontmatter (empty if unreadable) and its Markdown body."""

    skill_id: str
    frontmatter: dict[str, Any]
    frontmatter_error: str
    body: str


@dataclass(frozen=True)
class Request:
    """One text that stands for a user's request, and the row and key it comes from."""

    place: str
    skill_id: str
    split: str
    key: str
    text: str


def check(offenders: list[str]) -> None:
    if offenders:
        pytest.fail(f"{len(offenders)} offender(s):\n" + "\n".join(offenders), pytrace=False)


def read_skill(path: Path) -> SkillFile:
    text, skill_id = path.read_text(encoding="utf-8"), path.parent.relative_to(SKILLS).as_posix()
    match = re.match(r"---\n(.*?)\n---\n(.*)\Z", text, flags=re.DOTALL)
    if match is None:
        return SkillFile(skill_id, {}, "no YAML block between two '---' lines at the top", text)
    try:
        loaded = yaml.safe_load(match[1])
    except yaml.YAMLError as error:
        return SkillFile(skill_id, {}, f"YAML does not parse: {error}", match[2])
    if not isinstance(loaded, dict):
        return SkillFile(skill_id, {}, "the YAML block is not a mapping", match[2])
    return SkillFile(skill_id, loaded, "", match[2])


def section(body: str, title: str) -> list[str]:
    """Return the non-blank lines under the heading ``title``; a '#' inside a code fence is no heading."""
    lines: list[str] = []
    inside = fenced = False
    for line in body.splitlines():
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        heading = None if fenced else re.fullmatch(r"#{1,2}\s+(.+?)\s*", line)
        if heading:
            inside = heading[1] == title
        elif inside and line.strip():
            lines.append(line.rstrip())
    return lines


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip())[1:-1]]


def count_words(text: str) -> int:
    """Count the tokens that hold a letter or a digit, so that table rules and bullets do not count."""
    return sum(bool(re.search(r"\w", token)) for token in text.split())


def vectorize(texts: list[str]) -> csr_matrix:
    """Return unit-length TF-IDF rows over character 3- to 5-grams, so a product of two is their cosine."""
    return TfidfVectorizer(analyzer="char", ngram_range=(3, 5)).fit_transform(texts)


def read_rows() -> tuple[list[dict[str, Any]], list[str]]:
    """Return the well-formed rows of the requests file, each with its ``id``, and the faults of the rest."""
    rows: list[dict[str, Any]] = []
    offenders: list[str] = []
    for number, line in enumerate(REQUESTS.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            offenders.append(f"line {number}: not JSON ({error})")
            continue
        split = row.get("split") if isinstance(row, dict) else None
        wanted = KEYS.get(str(split))
        if wanted is None:
            offenders.append(f"line {number}: split is {split!r}, 'train' or 'test' is expected")
        elif set(row) != wanted:
            offenders.append(f"line {number}: keys {sorted(row)}, expected {sorted(wanted)}")
        elif empty := [key for key in row if not (isinstance(row[key], str) and row[key].strip())]:
            offenders.append(f"line {number}: {', '.join(sorted(empty))} must be non-empty text")
        else:
            rows.append({**row, "id": row["record_id" if split == "train" else "query_id"]})
    return rows, offenders


@pytest.fixture(scope="module")
def skills() -> list[SkillFile]:
    return [read_skill(path) for path in sorted(SKILLS.rglob("SKILL.md"))]


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return read_rows()[0]


@pytest.fixture(scope="module")
def requests(rows: list[dict[str, Any]]) -> list[Request]:
    return [
        Request(f"{row['id']}.{key}", row["skill_id"], row["split"], key, row[key])
        for row in rows
        for key in ("query", "implicit_query")
        if key in row
    ]


def test_nine_domains_with_at_least_twelve_skills_each(skills: list[SkillFile]) -> None:
    found = Counter(skill.skill_id.split("/")[0] for skill in skills)
    offenders = [f"{d}: {found[d]} skills, at least 12 expected" for d in sorted(DOMAINS) if found[d] < 12]
    offenders += [f"{d}: an unknown domain" for d in sorted(found.keys() - DOMAINS)]
    check(offenders if len(skills) >= 108 else [*offenders, f"{len(skills)} in all, at least 108 expected"])


def test_a_skill_lies_two_folders_deep(skills: list[SkillFile]) -> None:
    ids = [skill.skill_id for skill in skills]
    check([f"{skill_id}: expected <domain>/<skill>" for skill_id in ids if skill_id.count("/") != 1])


def test_frontmatter_is_yaml_with_a_name_and_a_description(skills: list[SkillFile]) -> None:
    offenders = [f"{s.skill_id}: {s.frontmatter_error}" for s in skills if s.frontmatter_error]
    for skill in skills:
        for key in ("name", "description"):
            value = skill.frontmatter.get(key)
            if not skill.frontmatter_error and not (isinstance(value, str) and value.strip()):
                offenders.append(f"{skill.skill_id}: {key} is {value!r}, non-empty text is expected")
    check(offenders)


def test_name_is_kebab_case_and_equals_the_folder(skills: list[SkillFile]) -> None:
    offenders = []
    for skill in skills:
        name, folder = skill.frontmatter.get("name"), skill.skill_id.split("/")[-1]
        if name != folder or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", folder):
            offenders.append(f"{skill.skill_id}: name is {name!r}, the folder's kebab-case name is expected")
    check(offenders)


def test_body_has_150_to_400_words(skills: list[SkillFile]) -> None:
    low, high = BODY_WORDS
    counts = [(skill.skill_id, count_words(skill.body)) for skill in skills]
    check([f"{name}: {n} words, {low}-{high} expected" for name, n in counts if not low <= n <= high])


@pytest.mark.parametrize(("title", "least"), [("Capabilities", 3), ("Examples", 2)])
def test_section_is_a_bullet_list(skills: list[SkillFile], title: str, least: int) -> None:
    offenders = []
    for skill in skills:
        bullets = [line for line in section(skill.body, title) if re.match(r"[-*+] +\S", line)]
        if len(bullets) < least:
            offenders.append(f"{skill.skill_id}: {len(bullets)} '{title}' bullets, at least {least} expected")
    check(offenders)


def test_parameters_table_has_the_five_columns(skills: list[SkillFile]) -> None:
    offenders = []
    for skill in skills:
        table = [cells(line) for line in section(skill.body, "Parameters") if line.lstrip().startswith("|")]
        if len(table) < 3 or table[0] != PARAMETER_COLUMNS:
            got = table[0] if table else "no table"
            offenders.append(f"{skill.skill_id}: {got}, expected {PARAMETER_COLUMNS} and at least one row")
            continue
        for row in table[2:]:
            if len(row) != len(PARAMETER_COLUMNS) or not all(row) or row[2].lower() not in {"yes", "no"}:
                offenders.append(f"{skill.skill_id}: row {row}: five filled cells, Required yes or no expected")
    check(offenders)


def test_the_library_has_six_forks(skills: list[SkillFile]) -> None:
    vectors = vectorize([skill.body for skill in skills])
    cosine = np.triu((vectors @ vectors.T).toarray(), k=1)
    near = np.argwhere(cosine >= FORK_SIMILARITY)
    pairs = [f"{skills[i].skill_id} ~ {skills[j].skill_id}" for i, j in near]
    check([] if len(pairs) >= 6 else [f"{len(pairs)} near copies, at least 6 expected", *pairs])


def test_every_row_of_the_requests_file_is_well_formed() -> None:
    check(read_rows()[1])


def test_row_ids_are_unique(rows: list[dict[str, Any]]) -> None:
    check([f"{name}: {n} rows" for name, n in Counter(row["id"] for row in rows).items() if n > 1])


def test_each_skill_has_two_training_rows_and_one_test_row(skills: list[SkillFile], rows: list[dict[str, Any]]) -> None:
    found = Counter((row["skill_id"], row["split"]) for row in rows)
    known = {skill.skill_id for skill in skills}
    offenders = [
        f"{skill_id}: {found[skill_id, split]} {split} rows, {n} expected"
        for skill_id in sorted(known)
        for split, n in (("train", 2), ("test", 1))
        if found[skill_id, split] != n
    ]
    offenders += [f"{row['id']}: no skill {row['skill_id']!r}" for row in rows if row["skill_id"] not in known]
    check(offenders)


def test_requests_keep_their_word_limits(requests: list[Request]) -> None:
    offenders = []
    for request in requests:
        explicit = request.split == "train" and request.key == "query"
        low, high = EXPLICIT_WORDS if explicit else IMPLICIT_WORDS
        n = len(request.text.split())
        if not low <= n <= high:
            offenders.append(f"{request.place}: {n} words, {low}-{high} expected")
    check(offenders)


def test_rationale_is_one_sentence_of_the_pattern_under_32_words(rows: list[dict[str, Any]]) -> None:
    offenders = []
    for row in rows:
        if row["split"] == "train":
            text = row["query_capability"]
            pattern = re.fullmatch(r"The user needs skills for \S.*[^\s.!?]\.", text)
            if pattern is None or re.search(r"[.!?]\s", text):
                offenders.append(f"{row['id']}: {text!r}, expected 'The user needs skills for ….'")
            if (n := len(text.split())) >= RATIONALE_WORDS_BELOW:
                offenders.append(f"{row['id']}: {n} words, fewer than {RATIONALE_WORDS_BELOW} expected")
    check(offenders)


def test_a_request_names_neither_its_skill_nor_the_word_skill(requests: list[Request]) -> None:
    offenders = []
    for request in requests:
        spelled = r"[-\s]+".join(map(re.escape, request.skill_id.split("/")[-1].split("-")))
        if match := re.search(rf"\b(?:{spelled}|skills?)\b", request.text, flags=re.IGNORECASE):
            offenders.append(f"{request.place} ({request.skill_id}): contains {match[0]!r}")
    check(offenders)


def test_all_request_texts_are_different(requests: list[Request]) -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for request in requests:
        places[" ".join(request.text.casefold().split())].append(request.place)
    check([f"{', '.join(at)}: {text!r}" for text, at in places.items() if len(at) > 1])


def test_no_test_request_is_a_near_copy_of_a_training_request(requests: list[Request]) -> None:
    train, test = ([r for r in requests if r.split == split] for split in ("train", "test"))
    vectors = vectorize([request.text for request in test + train])
    cosine = (vectors[: len(test)] @ vectors[len(test) :].T).toarray()
    near = np.argwhere(cosine >= NEAR_COPY)
    check([f"{test[i].place} and {train[j].place}: cosine {cosine[i, j]:.2f}" for i, j in near])
