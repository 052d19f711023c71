"""The parser: every source of nodes in turn, one node per thing, then the edges."""

from __future__ import annotations

from dataclasses import replace

from data_pipeline.corpus import Skill
from data_pipeline.skill2query.graph import Capability, Example, SkillGraph
from data_pipeline.skill2query.parsing.capabilities import find_capabilities
from data_pipeline.skill2query.parsing.cli import command_parameters, read_command
from data_pipeline.skill2query.parsing.document import Document, read_document
from data_pipeline.skill2query.parsing.drafts import MAX_PARAMETERS, Draft
from data_pipeline.skill2query.parsing.examples import find_examples
from data_pipeline.skill2query.parsing.linking import link
from data_pipeline.skill2query.parsing.schemas import schema_nodes
from data_pipeline.skill2query.parsing.signatures import signature_parameters
from data_pipeline.skill2query.parsing.tables import list_parameters, table_parameters
from data_pipeline.skill2query.parsing.values import key_of


def parse_skill(skill: Skill) -> SkillGraph:
    """The knowledge graph of one document; the same document always gives the same graph, and none raises.

    Sources: the description, headings, lists, tables, JSON-schema and OpenAPI blocks, command lines and help texts, signatures,
    and example requests. At most ``document.MAX_BODY_CHARS`` characters of the body are read; time grows with them linearly.
    """
    document = read_document(skill)
    drafts, operations = schema_nodes(document)
    capabilities = [
        (Capability(f"c{i}", found.text, found.source, found.detail), found)
        for i, found in enumerate(find_capabilities(document, operations), start=1)
    ]
    parameters = [(draft.finish(f"p{i}"), draft) for i, draft in enumerate(_parameters(document, drafts), start=1)]
    examples = [
        (Example(f"e{i}", shown.text, shown.kind, shown.source), shown)
        for i, shown in enumerate(find_examples(document), start=1)
    ]
    return SkillGraph(
        skill_id=skill.skill_id,
        name=skill.name,
        description=skill.description,
        capabilities=tuple(node for node, _ in capabilities),
        parameters=tuple(node for node, _ in parameters),
        examples=tuple(node for node, _ in examples),
        edges=tuple(link(document, capabilities, parameters, examples)),
        metadata=dict(skill.metadata),
    )


def _parameters(document: Document, schemas: list[Draft]) -> list[Draft]:
    """Each parameter once, the most explicit declaration first: tables, schemas, lists, the command line, then signatures.

    Of more than :data:`MAX_PARAMETERS` the first stay.
    """
    hint = document.skill.metadata.get("argument-hint", "")
    hinted = read_command(f"skill {hint[:300]}", 0) if hint else ()
    merged: dict[str, Draft] = {}
    for source in (
        table_parameters(document),
        schemas,
        list_parameters(document),
        hinted,
        command_parameters(document),
        signature_parameters(document),
    ):
        for draft in source:
            if not draft.name:
                continue
            known = merged.get(key_of(draft.name))
            if known is not None:
                known.merge(draft)
            elif len(merged) < MAX_PARAMETERS:
                merged[key_of(draft.name)] = replace(draft)
    return sorted(merged.values(), key=lambda d: min(d.sections, default=0))
