"""SKILL.md files, well-formed and not."""

from __future__ import annotations

import pytest

from data_pipeline.cleaning import RawSkill
from data_pipeline.skill_md import parse_skill_md


def parse(data: bytes) -> RawSkill:
    return parse_skill_md(data, "a/x", "lib/a/x/SKILL.md", "a/x/SKILL.md")


def test_frontmatter_and_body() -> None:
    raw = parse(b"---\nname: x\ndescription: >\n  does\n  things\nlicense: MIT\n---\n\n# X\n\n---\nrule\n")
    assert (raw.skill_id, raw.name, raw.description) == ("a/x", "x", "does things\n")
    assert raw.body == "\n# X\n\n---\nrule\n"
    assert raw.metadata == {"license": "MIT", "path": "a/x/SKILL.md"}
    assert raw.problem is None


def test_windows_line_ends_and_byte_order_mark() -> None:
    raw = parse(b"\xef\xbb\xbf---\r\nname: x\r\ndescription: d\r\n---\r\nBody\r\n")
    assert (raw.name, raw.description, raw.body) == ("x", "d", "Body\n")


def test_plain_values_and_flat_lists_become_metadata() -> None:
    raw = parse(
        b"---\nname: 2048\nversion: 1.5\nallowed-tools: [Bash, Read]\nnested: {a: {b: c}}\ndate: 2024-05-06\n---\nB\n"
    )
    assert raw.name == "2048"
    assert raw.metadata == {
        "version": "1.5",
        "allowed-tools": "Bash, Read",
        "date": "2024-05-06",
        "path": "a/x/SKILL.md",
    }


def test_a_file_without_frontmatter_has_no_name() -> None:
    raw = parse(b"# Only a body\n")
    assert (raw.name, raw.body, raw.problem) == (None, "# Only a body\n", None)


def test_empty_frontmatter_has_no_name() -> None:
    raw = parse(b"---\n---\nBody\n")
    assert (raw.name, raw.body, raw.problem) == (None, "Body\n", None)


@pytest.mark.parametrize(
    "data, reason, detail",
    [
        (b"---\nname: x\ndescription: d\n", "malformed_frontmatter", "no closing '---'"),
        (b"---\nname: x: y: z\n---\nB\n", "malformed_frontmatter", "not valid YAML"),
        (b"---\n- a\n- b\n---\nB\n", "malformed_frontmatter", "frontmatter is a list"),
        (b"---\nname: [a, b]\n---\nB\n", "malformed_frontmatter", "name is a list"),
        (b"---\nname: x\ndate: 2024-13-45\n---\nB\n", "malformed_frontmatter", "month must be in 1..12"),
        (b"---\nname: !!python/object/apply:os.getcwd []\n---\nB\n", "malformed_frontmatter", "not valid YAML"),
        (b"---\nname: x\n---\n\xff\xfe\n", "unreadable", "not UTF-8"),
        (b"---\nname: " + b"[" * 5000 + b"\n---\nB\n", "malformed_frontmatter", "not valid YAML"),
    ],
)
def test_what_is_wrong_is_said_not_raised(data: bytes, reason: str, detail: str) -> None:
    problem = parse(data).problem
    assert problem is not None
    assert problem[0].value == reason
    assert detail in problem[1]


def test_aliases_that_expand_a_millionfold_stay_small() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [" + ", ".join([f"*a{i - 1}"] * 10) + "]" for i in range(1, 9)]
    raw = parse(("---\nname: x\ndescription: d\n" + "\n".join(levels) + "\n---\nBody\n").encode())
    assert sum(len(value) for value in raw.metadata.values()) < 200
