"""What a section is about, told by its heading: capabilities, parameters, examples, or nothing that the skill does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache

from data_pipeline.skill2query.parsing.document import Document


class Kind(StrEnum):
    """What a heading promises; it may promise several."""

    CAPABILITY = "capability"
    NEGATIVE = "negative"  # what the skill is not for, and what goes wrong
    PARAMETER = "parameter"
    EXAMPLE = "example"
    SIDE = "side"  # installation, references, rules, output: about the document or the way of working
    STEP = "step"  # a step of a procedure


def _any(patterns: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_PATTERNS = {
    Kind.CAPABILITY: _any(
        (
            r"capabilit|\bfeatures?$|\bwhat (?:this|it|the|i|you)\b.*\b(?:do|does|can|provides?|covers?|build|get)\b",
            r"when to (?:use|apply|invoke|activate)|\buse (?:this|when|it|for|cases?)\b|\bfocus areas\b|\bcompetenc|\babilit",
            r"\bkey functions?\b|\byou can\b|\bpurpose$|\bservices$|\bresponsibilit|\bexpertise$|\bscope$|\bwhat it does\b",
            r"^(?:core |main |available |supported |key |common )?(?:operations|functions|actions|tasks|workflows|modes|skills)$",
            r"\bhow (?:i|it|this skill) (?:can )?helps?\b|\bactivat|\btriggers?$|\bwhen user\b",
        )
    ),
    Kind.NEGATIVE: _any(
        (
            r"\bnot\b|\bdon['’]?ts?\b|\bnever\b|\bavoid|anti-?patterns?|limitations?\b|mistakes?\b|pitfalls?|"
            r"troubleshoot|red flags?",
            r"\bknown issues?\b|\bcommon (?:issues?|errors?|problems?)\b|^errors?$|\bwarnings?\b|sharp edges?|❌|\bexcuses?\b",
            r"out of scope|\bskip\b|\bforbidden|\bprohibited|\bwrong\b|\bbad\b|\bgotchas?\b|\bcritical rules\b|"
            r"\bunless\b|\binstead\b",
            r"\bwithout\b.*\bskill\b|\bhand ?off\b|\bescalat|\bother skills\b",
        )
    ),
    Kind.PARAMETER: _any(
        (
            r"\bparam(?:eter)?s?\b|\barguments?\b|\bargs\b|\boptions\b|\binputs?\b|\bflags\b|\bfields\b|\bproperties\b|\bprops\b",
            r"\bconfiguration\b|\bsettings\b|\battributes\b|\bvariables\b|\brequired information\b|\bschema\b",
        )
    ),
    Kind.EXAMPLE: _any(
        (
            r"\bexample (?:requests?|prompts?|quer|usage|interact|convers|phras|trigger|input|commands?)|"
            r"^examples?$|\busage\b|\btriggers?\b",
            r"\bprompts?\b|\binteractions?\b|\bphrases\b|\bsample (?:requests?|prompts?|quer)|\btry it\b|\bactivation\b",
            r"\buser (?:says|asks|requests?)\b|\bwhen to use\b|\buse (?:this|when)\b|\bhow to (?:use|invoke)\b|"
            r"\bsay\b|\buse cases?\b",
        )
    ),
    Kind.SIDE: _any(
        (
            r"install|\bset ?up\b|prerequisite|\brequirements?$|\bresources?\b|\breferences?\b|\brelated\b|licen[sc]e|changelog",
            r"table of contents|\bsee also\b|\bnext steps\b|\bbest practices?\b|\bdos\b|\btips\b|checklist|"
            r"\boutput\b|\bcommunication\b",
            r"\bdependenc|\bsafety\b|\bnotes?\b|\bversion|\bconventions?\b|\bprinciples?\b|\brules?\b|"
            r"\bguidelines?\b|\bsummary\b",
            r"\boverview\b|\bintroduction\b|\bcredits\b|\bcontribut|\bsupport$|\bgetting (?:help|started)\b|"
            r"\bintegration with\b|\bdelegat",
            r"\bquestions?\b|\bbehaviou?ral\b|\btraits\b|\bconstraints?\b|\bvalidation\b|\bsuccess\b|\bstructure\b|\bdirectory\b",
            r"\bknowledge base\b|\bbefore (?:you|starting)\b|\bhow (?:this|to use this) skill\b|\bself-|"
            r"\bcontext\b|\bmetrics?\b|\bremember\b",
            r"\bexamples?$|\btemplate\b|\bsecurity notes\b|\bload\b|\bbundled\b|\bshortcuts?\b|\bcheat ?sheet\b|"
            r"\bverification\b|\bcriteria\b",
        )
    ),
    Kind.STEP: _any(
        (
            r"^(?:step|phase|stage)\s*\d|^\d+(?:\.\d+)*[.):]\s|\bprocess$|\bworkflow$|\bsteps$|\bmethodology$|\bapproach$",
            r"\binstructions$|\bprocedure$",
        )
    ),
}


@lru_cache(maxsize=16384)
def kinds_of(title: str) -> frozenset[str]:
    """Everything that a heading promises."""
    return frozenset(kind for kind, pattern in _PATTERNS.items() if pattern.search(title))


def is_of(document: Document, number: int, *wanted: Kind) -> bool:
    """Whether the heading of a section, or of one around it below the document's title, promises one of these."""
    return any(not kinds.isdisjoint(wanted) for kinds in promises(document, number))


def promises(document: Document, number: int) -> list[frozenset[str]]:
    """What the headings promise from the outermost section below the document's title to the section itself."""
    known = document.promises.get(number)
    if known is None:
        known = [kinds_of(section.title[:120]) for section in document.chain(number) if section.level > 1]
        document.promises[number] = known
    return known


def lists_capabilities(document: Document, number: int) -> bool:
    """Whether the section lists what the skill does: its own heading says so, or the one around it and its own nothing else."""
    chain = promises(document, number)
    if not chain or any(Kind.NEGATIVE in kinds for kinds in chain):
        return False
    if Kind.CAPABILITY in chain[-1]:
        return True
    return len(chain) > 1 and Kind.CAPABILITY in chain[-2] and Kind.SIDE not in chain[-1]


def of_title(document: Document, number: int) -> frozenset[str]:
    """What the section's own heading promises; nothing for the document's title."""
    section = document.sections[number]
    return kinds_of(section.title[:120]) if section.level > 1 else frozenset()
