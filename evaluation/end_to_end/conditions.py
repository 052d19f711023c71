"""Which skills a downstream model is shown: none, the annotated ones, or the first ones of a retrieval system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from evaluation.end_to_end.tasks import TaskSet
from evaluation.results import read_result

Kind = Literal["none", "gold", "retrieved"]
NAMES = {"none": "No skills", "gold": "Gold skills"}


@dataclass(frozen=True)
class Condition:
    """A row of Table 5.

    Attributes:
        name: how tables call it.
        kind: where its skills come from.
        source: the result file or model; empty for the other two.
        skills: ids by instance, in the order in which they are shown.
    """

    name: str
    kind: Kind
    source: str
    skills: Mapping[str, Sequence[str]] = field(hash=False)


def fixed_condition(kind: str, tasks: TaskSet) -> Condition:
    """``none``, or ``gold``: every annotated skill of an instance, in the order of the release.

    Raises:
        ValueError: another name.
    """
    if kind not in NAMES:
        raise ValueError(f"condition is {kind!r}; expected one of {', '.join(NAMES)}")
    skills = {task.instance_id: task.gold_ids if kind == "gold" else () for task in tasks.tasks}
    return Condition(NAMES[kind], "gold" if kind == "gold" else "none", "", skills)


def retrieved_condition(
    system: str, tasks: TaskSet, top_k: int = 1, cache_dir: str | Path | None = None, progress: bool = False
) -> Condition:
    """The ``top_k`` first skills of a system.

    Args:
        system: a result of ``skillreason evaluate`` on the same benchmark, or what that command takes as ``--model``; ``NAME=``
            may stand in front.
        tasks: the instances.
        top_k: skills shown.
        cache_dir: the embedding cache of a model.
        progress: show progress bars.

    Raises:
        ValueError: a result of other requests or skills, or a model that cannot be opened.
        FileNotFoundError: neither a file nor a model.
    """
    if top_k < 1:
        raise ValueError(f"top-k is {top_k}; expected at least 1")
    name, source = _split(system)
    if source.endswith(".json") or Path(source).is_file():
        result = read_result(source)
        lists = dict(zip(result.query_ids, result.ranking.ids, strict=True))
        lacking = [task.instance_id for task in tasks.tasks if task.instance_id not in lists]
        if lacking:
            raise ValueError(
                f"{source}: no request {lacking[0]!r} ({len(lacking)} of {len(tasks.tasks)} instances are missing); expected a "
                "result of skillreason evaluate on the same benchmark"
            )
        name = name or result.model
    else:
        from retrieval.retriever import document_format, open_retriever

        corpus = tasks.corpus
        texts = corpus.documents(document_format(source))
        retriever = open_retriever(source, corpus.ids, texts, cache_dir=cache_dir, progress=progress)
        found = retriever.search([task.question for task in tasks.tasks], top_k)
        lists = {task.instance_id: ids for task, ids in zip(tasks.tasks, found.ids, strict=True)}
        name = name or source
    skills = {task.instance_id: tuple(lists[task.instance_id][:top_k]) for task in tasks.tasks}
    for instance, ids in skills.items():
        strange = next((skill_id for skill_id in ids if skill_id not in tasks.corpus), None)
        if strange is not None:
            raise ValueError(
                f"{source}: request {instance!r} lists skill {strange!r}, which {tasks.source} lacks; expected a result on the "
                "same corpus"
            )
    return Condition(name, "retrieved", source, skills)


def _split(system: str) -> tuple[str, str]:
    """``NAME=SOURCE``; a source alone may hold an equals sign, where it exists as it is."""
    if Path(system).exists() or "=" not in system:
        return "", system
    name, _, source = system.partition("=")
    if not name.strip() or not source.strip():
        raise ValueError(f"system is {system!r}; expected SOURCE or NAME=SOURCE")
    return name.strip(), source.strip()
