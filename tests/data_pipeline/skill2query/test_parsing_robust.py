"""No document breaks the parser, the same one gives the same graph, and time grows with its length."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline import Skill, SkillCorpus
from data_pipeline.skill2query import SkillGraph, graph_statistics, parse_skill
from data_pipeline.skill2query.parsing.capabilities import MAX_CAPABILITIES
from data_pipeline.skill2query.parsing.document import MAX_BODY_CHARS, plain, read_document
from data_pipeline.skill2query.parsing.drafts import MAX_PARAMETERS
from data_pipeline.skill2query.parsing.schemas import load

PIECES = st.sampled_from(
    [
        *(
            "# ",
            "## Parameters\n",
            "## Usage\n",
            "- ",
            "1. ",
            "> ",
            "```",
            "```json\n",
            "```yaml\n",
            "```python\n",
            "```bash\n",
            "\n",
            "\n\n",
        ),
        *(
            "| Parameter | Type |\n|---|---|\n",
            "| a | b |\n",
            "|",
            "`",
            "**",
            "[x](y)",
            "<a>",
            "--width 9",
            "--mode {a,b}",
            " default: 5",
            "\\",
        ),
        *(
            "def f(a: int = 5, b=",
            "parser.add_argument(",
            "interface XOptions {",
            "properties:",
            '{"properties": {"a": {"type": "',
            '"enum": [1,',
        ),
        *(
            "paths:\n  /a:\n    get:\n",
            "&a [*a, *a]",
            "draw the maps",
            "merging layers",
            'user: "do it"',
            "(",
            ")",
            "[",
            "]",
            "{",
            "}",
            "é漢字\u202e",
            "\ud800",
        ),
        *(
            "\x00",
            "\t",
            "between 1 and 10",
            "1e999",
            "0x" + "f" * 60,
            "!!python/object:os.system",
            "2024-99-99",
            "~~~\n",
            "=====\n",
        ),
    ]
)


def checked(graph: SkillGraph) -> SkillGraph:
    """The graph, if it is one: limits, unique ids, edges between nodes, and JSON that gives it back."""
    assert len(graph.capabilities) <= MAX_CAPABILITIES
    assert len(graph.parameters) <= MAX_PARAMETERS
    ids = [node.node_id for node in (*graph.capabilities, *graph.parameters, *graph.examples)]
    assert len(ids) == len(set(ids))
    assert {end for edge in graph.edges for end in (edge.source, edge.target)} <= {"skill", *ids}
    assert all(c.text[0].islower() and len(c.text.split()) > 1 for c in graph.capabilities)
    assert SkillGraph.from_dict(json.loads(json.dumps(graph.to_dict(), allow_nan=False))) == graph
    return graph


@settings(max_examples=200, deadline=None)
@given(description=st.text(max_size=300), body=st.lists(PIECES | st.text(max_size=30), max_size=60).map("".join))
def test_any_text_gives_a_graph(description: str, body: str):
    skill = Skill("a/b", "b", description, body)
    graph = parse_skill(skill)
    if not any(0xD800 <= ord(c) < 0xE000 for c in description):  # kept as it is, and JSON has no form for it
        checked(graph)
    assert parse_skill(skill) == graph


@pytest.mark.parametrize(
    "body",
    [
        "> " * 5000 + "deep",
        "- " * 5000 + "deep",
        "".join("  " * i + "- item\n" for i in range(300)),
        "```yaml\nproperties:\n" + "".join("  " * i + "a:\n" for i in range(200)),
        "```json\n" + '{"properties":' * 3000,
        "```json\n" + "[" * 19000,
        "```yaml\nproperties: " + "[" * 5000,
        "```yaml\nproperties: 0x" + "f" * 6000,
        "```python\ndef f(" + "(" * 1400 + "): pass",
        "```python\ndef f(a=" + "-" * 1400 + "1): pass",
        "```python\nx.add_argument('--a', default=" + "[" * 300 + "]" * 300 + ")",
        "```",
        "| a " * 4000 + "|\n" + "|---" * 4000 + "|\n",
        "| Parameter | Type |\n|---|---|\n" + "| `a` | int |\n" * 2500,
    ],
)
def test_what_is_built_to_break_a_parser(body: str):
    checked(parse_skill(Skill("a/b", "b", "Draws maps.", body)))


def test_a_yaml_bomb_is_not_unfolded():
    levels = "\n".join(f"k{i}: &k{i} [{', '.join([f'*k{i - 1}'] * 9)}]" for i in range(1, 12))
    assert load(f"properties:\nk0: &k0 [x]\n{levels}", "yaml") is None


def test_yaml_makes_no_objects():
    assert load("properties: !!python/object/apply:os.getcwd []", "yaml") is None


ADVERSARIAL = {
    "stars": "*" * 50,
    "words": "merge layers and ",
    "quotes": '"a" such as ',
    "open quotes": '" such as ',
    "ticks": "`a`, ",
    "pipes": "a|",
    "links": "[a](",
    "brackets": "[[((",
    "flags": "```bash\ntool --a b --c\n```\n",
    "defs": "```python\ndef f(a: int = (\n```\n",
    "arguments": "```python\nx.add_argument('--a'\n```\n",
    "interfaces": "```ts\ninterface AOptions {\n```\n",
    "tables": "| Parameter | Type |\n|---|---|\n| `a` | int |\n\n",
    "items": "- `a` (string): one of a, b, c\n",
    "headings": "## Draw maps\n",
    "spaces": " " * 40 + "x",
    "digits": "1" * 40 + "-",
    "html": "<a <b ",
}


def seconds(pattern: str, chars: int) -> float:
    """The fastest of three parses of a pattern that fills so many characters; above both lines only the machine's noise."""
    skill = Skill("a/b", "b", (pattern * chars)[:2500], (pattern * chars)[:chars])
    times = []
    for _ in range(3):
        start = time.process_time()
        parse_skill(skill)
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.parametrize("name", sorted(ADVERSARIAL))
def test_time_grows_with_the_length_and_not_with_its_square(name: str):
    short, long = (seconds(ADVERSARIAL[name], chars) for chars in (MAX_BODY_CHARS // 8, MAX_BODY_CHARS))
    # Eight times the text takes 8 times as long where time is linear, and 64 times where it is quadratic.
    assert long < 24 * short + 0.03, f"{short:.4f} s, then {long:.4f} s"


def test_no_more_than_the_cap_is_read():
    body = "x" * MAX_BODY_CHARS + "\n\n## Draw maps\n"
    assert parse_skill(Skill("a/b", "b", "", body)).capabilities == ()


def test_plain_text_has_no_markup():
    assert (
        plain("**Draw** [maps](https://example.org/a_b) with `tool_x` and <b>care</b> 🎉 ")
        == "Draw maps with tool_x and care 🎉"
    )


def test_sections_know_what_is_around_them():
    body = "intro\n# Title\n## First\n### Inner\ntext\n\n**Options:**\n- a\n## Second\n"
    document = read_document(Skill("a/b", "b", "", body))
    assert [(s.title, s.parents) for s in document.sections] == [
        ("b", ()),
        ("Title", (0,)),
        ("First", (0, 1)),
        ("Inner", (0, 1, 2)),
        ("Options", (0, 1, 2, 3)),
        ("Second", (0, 1)),
    ]


@pytest.mark.data
def test_real_documents_give_what_they_hold(data_dir: Path):
    skills = list(SkillCorpus.from_jsonl(data_dir / "skills.jsonl.gz"))[::8]
    counts = graph_statistics([checked(parse_skill(skill)) for skill in skills])
    assert counts["documents"] == len(skills)
    # Read by eye, nearly all documents say what they do, and a third or more name inputs.
    assert counts["capabilities"]["documents"] > 0.9 * len(skills)
    assert counts["parameters"]["documents"] > 0.3 * len(skills)
    assert counts["examples"]["documents"] > 0.6 * len(skills)
