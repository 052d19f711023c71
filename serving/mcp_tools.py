"""The two tools that an agent gets, free of any protocol: find skills for a request, read one of them page by page."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from data_pipeline.corpus import INDEX_TEXT
from serving.index import IndexInfo, skill_domain
from serving.library import Library, ToolRefusedError, supports_hybrid
from serving.problems import printable, shown
from serving.settings import MAX_ID_CHARS

MAX_K = 50
MAX_REQUEST_CHARS = 8192
PAGE_CHARS = 16_000
"""Characters of a document that one call returns by default: some 4,000 tokens."""
MAX_PAGE_CHARS = 50_000
DESCRIPTION_CHARS = 500
"""What a result shows of a description; the whole one stands in the document."""
LISTED_DOMAINS = 20


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class FindSkillsArguments(_Arguments):
    """What ``find_skills`` accepts."""

    request: str = Field(
        min_length=1,
        max_length=MAX_REQUEST_CHARS,
        pattern=r"\S",
        description=(
            "What the user wants done, in the user's own words and language. Pass the sentence as it was said, with its details; "
            "do not shorten it to keywords. For a task of several parts, search once for each part."
        ),
    )
    k: int = Field(5, ge=1, le=MAX_K, description="Number of skills to return, best first.")
    domain: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Only skills of this domain. Leave it out unless the user named one: a wrong domain hides the right skill.",
    )
    hybrid: bool | None = Field(
        None,
        description="Also match words literally (BM25) and fuse both rankings; helps with names, error codes and file formats. "
        "Leave it out for the server's default.",
    )
    rerank: bool | None = Field(
        None,
        description="Have a slower, more precise model order the first results. Leave it out for the server's default.",
    )


class ReadSkillArguments(_Arguments):
    """What ``read_skill`` accepts."""

    skill_id: str = Field(
        min_length=1, max_length=MAX_ID_CHARS, description="A skill_id exactly as find_skills returned it."
    )
    offset: int = Field(0, ge=0, description="First character to return: 0, or next_offset of the page before.")
    limit: int = Field(PAGE_CHARS, ge=1, le=MAX_PAGE_CHARS, description="Characters to return at most.")


class FoundSkill(BaseModel):
    """One result of ``find_skills``."""

    skill_id: str = Field(description="pass it to read_skill")
    name: str
    description: str = Field(description=f"what the skill is for, cut after {DESCRIPTION_CHARS} characters")
    domain: str | None
    score: float = Field(description="what it is ranked by; comparable within one answer only")
    scores: dict[str, float] = Field(description="by retriever: dense (cosine), bm25, fused, rerank")


class FindSkillsResult(BaseModel):
    """What ``find_skills`` returns."""

    skills: list[FoundSkill] = Field(description="best first")
    searched: int = Field(description="skills that were searched: the library, or the domain")
    index_version: str


class ReadSkillResult(BaseModel):
    """What ``read_skill`` returns."""

    skill_id: str
    name: str
    description: str
    domain: str | None
    body: str = Field(description="the document from offset on")
    offset: int
    total_chars: int = Field(description="length of the whole document")
    next_offset: int | None = Field(description="where to go on reading; null: this is the end")
    metadata: dict[str, str] = Field(description="what else is known, such as repository, path and licence")


class SkillTools:
    """``find_skills`` and ``read_skill`` over one library."""

    def __init__(self, library: Library, *, hybrid: bool = False, rerank: bool = False) -> None:
        """``hybrid`` and ``rerank`` hold where a call leaves them out.

        Raises:
            ValueError: a default that the index does not support.
        """
        self.library = library
        self._hybrid, self._rerank = hybrid, rerank
        if hybrid and not supports_hybrid(library.info):
            raise ValueError("--hybrid: the index has no fusion weight; build it with a model and --fusion-weight")
        if rerank and not library.info.has_reranker:
            raise ValueError("--rerank: the index has no reranker; build it with --reranker, or give one here")

    def call(self, name: str, arguments: dict[str, Any]) -> BaseModel:
        """The result of a tool.

        Raises:
            ToolRefusedError: arguments that do not fit, or what the library refuses.
            KeyError: no tool of that name.
        """
        model, run = {
            "find_skills": (FindSkillsArguments, self._find),
            "read_skill": (ReadSkillArguments, self._read),
        }[name]
        try:
            checked = model.model_validate(arguments)
        except ValidationError as error:
            raise ToolRefusedError(_explain(error, model)) from error
        return run(checked)  # type: ignore[arg-type]

    def _find(self, given: FindSkillsArguments) -> FindSkillsResult:
        searcher = self.library.searcher()
        info = searcher.info
        hybrid = self._hybrid if given.hybrid is None else given.hybrid
        rerank = self._rerank if given.rerank is None else given.rerank
        for name, wanted, possible in (
            ("hybrid", hybrid, supports_hybrid(info)),
            ("rerank", rerank, info.has_reranker),
        ):
            if wanted and not possible:
                raise ToolRefusedError(f"{name} is not available in this library; expected {name}: false")
        try:
            hits = searcher.search(given.request, given.k, hybrid=hybrid, rerank=rerank, domain=given.domain)
        except ValueError as error:
            raise ToolRefusedError(str(error)) from error
        return FindSkillsResult(
            skills=[
                FoundSkill(
                    skill_id=hit.skill_id,
                    name=hit.name,
                    description=_cut(hit.description, DESCRIPTION_CHARS),
                    domain=hit.domain,
                    score=round(hit.score, 4),
                    scores={name: round(value, 4) for name, value in hit.scores.items()},
                )
                for hit in hits
            ],
            searched=info.n_skills if given.domain is None else info.domains[given.domain],
            index_version=searcher.version,
        )

    def _read(self, given: ReadSkillArguments) -> ReadSkillResult:
        from serving.searcher import SkillNotFoundError

        try:
            skill = self.library.searcher().skill(given.skill_id)
        except SkillNotFoundError as error:
            raise ToolRefusedError(f"{error}; expected a skill_id that find_skills returned") from error
        total = len(skill.body)
        if given.offset > total:
            raise ToolRefusedError(
                f"offset is {given.offset}; the document has {total} characters, expected 0 to {total}"
            )
        end = given.offset + given.limit
        return ReadSkillResult(
            skill_id=skill.skill_id,
            name=skill.name,
            description=skill.description,
            domain=skill_domain(skill),
            body=skill.body[given.offset : end],
            offset=given.offset,
            total_chars=total,
            next_offset=end if end < total else None,
            metadata={
                key: _cut(value, DESCRIPTION_CHARS) for key, value in skill.metadata.items() if key != INDEX_TEXT
            },
        )


def known_domains(info: IndexInfo, limit: int = LISTED_DOMAINS) -> str:
    """The largest domains with their numbers of skills, for an agent to choose from; empty where there is none."""
    largest = sorted(info.domains.items(), key=lambda item: (-item[1], item[0]))
    named = ", ".join(f"{printable(name, 80)} ({count})" for name, count in largest[:limit])
    return named + (f" and {len(largest) - limit} more" if len(largest) > limit else "")


def _explain(error: ValidationError, model: type[BaseModel]) -> str:
    """One sentence a field: which, what is wrong, what came, and which arguments there are."""
    problems = []
    for detail in error.errors(include_url=False):
        name = ".".join(map(str, detail["loc"]))
        if detail["type"] == "extra_forbidden":
            problems.append(f"unknown argument {shown(name)}")
        elif detail["type"] == "missing":
            problems.append(f"{name} is missing")
        elif detail["type"] == "string_pattern_mismatch":
            problems.append(f"{name} is blank; expected a sentence that says what is needed")
        else:
            problems.append(f"{name}: {detail['msg']}, not {shown(str(detail['input']))}")
    return f"{'; '.join(problems)}. Expected arguments: {', '.join(model.model_fields)}"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"
