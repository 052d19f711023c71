"""From skills to pseudo-queries (3.3): parse, take the style, write templates, fill, check; by rule or with a teacher."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field, replace

from tqdm import tqdm

from data_pipeline.corpus import Skill
from data_pipeline.phrases import NO_VERB
from data_pipeline.skill2query.baselines import baseline_task, baseline_templates
from data_pipeline.skill2query.filling import DEFAULTS, METHODS, STRUCTURED, GenerationConfig, fill
from data_pipeline.skill2query.graph import Capability, SkillGraph
from data_pipeline.skill2query.parsing import parse_skill
from data_pipeline.skill2query.parsing.verbs import KNOWN
from data_pipeline.skill2query.pseudo_query import PseudoQuery, Template
from data_pipeline.skill2query.style import mimic_style
from data_pipeline.skill2query.teacher_templates import graph_tasks, graph_templates
from data_pipeline.skill2query.templates import rule_templates
from data_pipeline.teacher.offline_writer import actions
from data_pipeline.teacher.task import Teacher, TeacherTask

__all__ = ["METHODS", "GenerationConfig", "GenerationCounts", "generate", "generate_for_graph"]

_ABOUT_ITSELF = re.compile(
    r"^(?:(?:expert|best|common|advanced|comprehensive|senior|complete)\s+)?(?:patterns|practices|guide|guides|guidance|library|"
    r"python library|toolkit|reference|framework|skill|expert) (?:for|to|on|in)\s+(?:working with\s+)?",
    re.I,
)
_NOT_A_TOPIC = re.compile(
    r"(?i)\b(?:you|your|are|is|has|represent|expert|skills?|plugins?|covers|this|it)\b|[$:]|^\d|n't"
)
FROM_DESCRIPTION = "description"
"""Capability id where a skill's graph has no capabilities: the pseudo-query asks for the first action of the description."""


@dataclass
class GenerationCounts:
    """What a run did, for its report. Skills are counted once, by where their pseudo-queries come from."""

    skills: int = 0
    from_capabilities: int = 0  # or, for a baseline, from what it was shown
    from_description: int = 0  # no capability that can be asked for, but an action or a topic in the description
    none: int = 0  # nothing to ask for
    queries: int = 0
    valid: int = 0
    problems: Counter[str] = field(default_factory=Counter)  # failed checks by name: name, required, type, range, enum
    failed: Counter[str] = field(default_factory=Counter)  # questions that the teacher could not answer, by reason

    def add_query(self, query: PseudoQuery) -> None:
        """Count one pseudo-query and the checks that it fails."""
        self.queries += 1
        self.valid += query.valid
        self.problems.update({problem.partition(":")[0] for problem in query.problems})

    def add_skill(self, queries: Sequence[PseudoQuery]) -> None:
        """Count one skill by its pseudo-queries."""
        self.skills += 1
        if not queries:
            self.none += 1
        elif queries[0].capability_id == FROM_DESCRIPTION:
            self.from_description += 1
        else:
            self.from_capabilities += 1


def generate_for_graph(graph: SkillGraph, config: GenerationConfig = DEFAULTS) -> list[PseudoQuery]:
    """The pseudo-queries of one skill by rule, capability after capability; no two alike.

    Empty where the graph has no capability and its description no action.

    Raises:
        ValueError: a baseline, which needs a teacher model.
    """
    _need_teacher(config, None)
    graph = _limited(graph, config)
    style = mimic_style(graph)
    made = _filled(rule_templates(graph, style, config.per_capability, config.seed), graph, config)
    if made or FROM_DESCRIPTION in (capability.node_id for capability in graph.capabilities):
        return made
    graph = _described(graph)  # none of its capabilities can be asked for
    return _filled(rule_templates(graph, style, config.per_capability, config.seed), graph, config)


def generate(
    skills: Iterable[Skill],
    config: GenerationConfig = DEFAULTS,
    teacher: Teacher | None = None,
    progress: bool = False,
    counts: GenerationCounts | None = None,
) -> Iterator[PseudoQuery]:
    """The pseudo-queries of many skills, in the skills' order; each is traceable to skill, capability, template and values.

    Args:
        teacher: a model that writes the templates. None, or the offline teacher: templates by rule (``skill2query`` only).
        counts: filled on the way.

    Raises:
        ValueError: a baseline (A.1) without a teacher model; raised at once, before the first skill.
        TeacherStopped: the endpoint cannot be worked with.
    """
    _need_teacher(config, teacher)
    counts = counts if counts is not None else GenerationCounts()
    if teacher is None or teacher.name == "offline":
        return _by_rule(skills, config, progress, counts)
    return _by_teacher(skills, config, teacher, progress, counts)


def _need_teacher(config: GenerationConfig, teacher: Teacher | None) -> None:
    if config.method != STRUCTURED and (teacher is None or teacher.name == "offline"):
        raise ValueError(
            f"method {config.method} needs a teacher model, because it reads no structure (A.1); give one (kind openai or "
            f"anthropic), or use method {STRUCTURED}, which works by rule"
        )


def _by_rule(
    skills: Iterable[Skill], config: GenerationConfig, progress: bool, counts: GenerationCounts
) -> Iterator[PseudoQuery]:
    total = len(skills) if isinstance(skills, Sized) else None
    for skill in tqdm(skills, total=total, desc="pseudo-queries", unit="skill", disable=not progress):
        graph = _limited(parse_skill(skill), config)
        queries = generate_for_graph(graph, config)
        counts.add_skill(queries)
        for query in queries:
            counts.add_query(query)
            yield query


def _by_teacher(
    skills: Iterable[Skill], config: GenerationConfig, teacher: Teacher, progress: bool, counts: GenerationCounts
) -> Iterator[PseudoQuery]:
    """Tasks are made as the teacher takes them; ``asked`` holds those without an answer, and whether each is its skill's last."""
    asked: deque[tuple[TeacherTask | None, SkillGraph, bool]] = deque()

    def tasks() -> Iterator[TeacherTask]:
        for skill in skills:
            graph = _limited(parse_skill(skill), config)
            own = (
                list(graph_tasks(graph, mimic_style(graph), graph.capabilities, config.per_capability))
                if config.method == STRUCTURED
                else [baseline_task(skill, graph, config)]
            )
            if not own:
                asked.append((None, graph, True))
            for number, task in enumerate(own, start=1):
                asked.append((task, graph, number == len(own)))
                yield task

    found: list[PseudoQuery] = []  # of the skill whose answers are coming in
    for result in teacher.run(tasks(), progress):
        _skip_unasked(asked, counts)
        task, graph, last = asked.popleft()
        if result.value is None or task is None:
            counts.failed[result.reason] += 1
        elif config.method == STRUCTURED:
            found += _filled(graph_templates(task, result.value, teacher.name), graph, config)
        else:
            found += _filled(baseline_templates(graph, config.method, result.value, teacher.name), graph, config)
        if last:
            counts.add_skill(found)
            for query in found:
                counts.add_query(query)
                yield query
            found = []
    _skip_unasked(asked, counts)


def _skip_unasked(asked: deque[tuple[TeacherTask | None, SkillGraph, bool]], counts: GenerationCounts) -> None:
    """Count the skills at the front about which nothing was asked."""
    while asked and asked[0][0] is None:
        asked.popleft()
        counts.add_skill([])


def _limited(graph: SkillGraph, config: GenerationConfig) -> SkillGraph:
    """The graph with as many capabilities as are wanted, or with its description's action as the one that it lacks."""
    if graph.capabilities:
        return replace(graph, capabilities=graph.capabilities[: config.max_capabilities or None])
    return _described(graph)


def _described(graph: SkillGraph) -> SkillGraph:
    """The graph with what its description is about as its only capability, or as it is where that says nothing."""
    bare = Skill(graph.skill_id, graph.name, graph.description, "")
    found = [_topic(action) for action in actions(bare)]
    action = next((action for action in found if action), "")
    return replace(graph, capabilities=(Capability(FROM_DESCRIPTION, action, "description"),)) if action else graph


def _topic(action: str) -> str:
    """An action as it is; a phrase without a verb as something to work on; empty where it is about the document or its author."""
    if not action.startswith(NO_VERB):
        return action
    phrase = _ABOUT_ITSELF.sub("", action.removeprefix(NO_VERB)).split(",")[0]
    phrase = re.split(r" (?:Use|including|that|which|covering)\b", phrase)[0]
    if phrase.partition(" ")[0] in KNOWN:
        return phrase
    usable = 2 <= len(phrase.split()) <= 9 and not _NOT_A_TOPIC.search(phrase)
    return f"work on {phrase}" if usable else ""


def _filled(templates: Iterable[Template], graph: SkillGraph, config: GenerationConfig) -> list[PseudoQuery]:
    found: dict[str, PseudoQuery] = {}
    for template in templates:
        for query in fill(template, graph, config):
            found.setdefault(query.query.lower(), query)
    return list(found.values())
