"""A library of twenty-four skills whose duplicates, confusable pair, unreachable skill and hub are known."""

from __future__ import annotations

import pytest

from data_pipeline import Skill, SkillCorpus
from data_pipeline.skill2query.pseudo_query import Form, PseudoQuery

SUBJECTS = (
    "tomatoes", "invoices", "telescopes", "violins", "passports", "bicycles", "reactors", "glaciers", "novels", "sandwiches",
    "satellites", "carpets", "vaccines", "orchards", "bridges", "puppets", "ledgers", "kayaks",
)  # fmt: skip
"""One skill each, found by its own request and by no other's."""


def pseudo_query(skill_id: str, number: int, text: str) -> PseudoQuery:
    return PseudoQuery(
        f"{skill_id}/{number}", skill_id, text, f"c{number}", text, f"t{number}", text, Form.IMPERATIVE, {}
    )


def plain(subject: str) -> Skill:
    return Skill(
        f"plain/{subject}",
        f"{subject}-care",
        f"Inspect damaged {subject}, repair broken {subject} and catalogue rare {subject}.",
        " ".join(subject[i:] + subject[:i] for i in range(len(subject))) + f" box {subject}",  # trigrams of its own
    )


@pytest.fixture(scope="session")
def library() -> SkillCorpus:
    """Rows 0 to 17 are plain; 18 and 19 copies; 20 and 21 confusable; 22 unreachable; 23 a hub."""
    copied = "Forecast weekly cash from open receivables, list every shortfall and draft a borrowing plan."
    body = " ".join(f"step {i} compares receivables against payroll number {i}" for i in range(40))
    return SkillCorpus(
        [
            *(plain(subject) for subject in SUBJECTS),
            Skill("money/cash-a", "cash-a", copied, body),
            Skill("money/cash-b", "cash-b", copied, body + " revolver revolver"),
            Skill(
                "talk/minutes",
                "minutes",
                "Summarize recorded meetings into decisions.",
                "Speakers speakers agenda agenda.",
            ),
            Skill(
                "talk/digest",
                "digest",
                "Summarize recorded meetings into decisions.",
                "Newsletter newsletter subscribers.",
            ),
            Skill(
                "lost/shy",
                "shy",
                "Helps with various things.",
                "Translate translate contracts contracts quickly quickly.",
            ),
            Skill("wide/everything", "everything", f"Use for {', '.join(SUBJECTS)}.", "Anything goes here and there."),
        ]
    )


@pytest.fixture(scope="session")
def queries(library: SkillCorpus) -> list[PseudoQuery]:
    """Three requests a skill in its own words; those of ``digest`` speak of minutes, those of ``shy`` of the plain skills."""
    own = {
        "money/cash-a": "forecast weekly cash from receivables cash-a",
        "money/cash-b": "draft a borrowing plan from receivables revolver cash-b",
        "talk/minutes": "summarize recorded meetings speakers agenda minutes",
        "talk/digest": "summarize recorded meetings agenda speakers",
        "lost/shy": "inspect damaged violins tomatoes ledgers",
        "wide/everything": "everything anything goes here",
    }
    out = []
    for skill in library:
        text = own.get(skill.skill_id) or f"repair broken {skill.name.removesuffix('-care')} box"
        out += [pseudo_query(skill.skill_id, n, f"{text} {word}") for n, word in enumerate(("please", "today", "soon"))]
    return out
