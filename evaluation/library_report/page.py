"""The report as one self-contained HTML page: every text escaped, every picture inside, nothing fetched, no script."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from evaluation.library_report.findings import LABELS
from models.folders import atomic_write_text

SHOWN = {"advice": 60, "confusable": 40, "duplicates": 40, "hubs": 20, "failed": 30, "domains": 15}
"""Rows of a list on the page; all of them are in report.json."""
_QUOTE = 240


def write_page(path: str | Path, value: Mapping[str, Any], plots: Mapping[str, Path]) -> None:
    """Render the report ``value`` with its PNG files."""
    atomic_write_text(path, render(value, plots))


def render(value: Mapping[str, Any], plots: Mapping[str, Path]) -> str:
    """The page. Text of the library is data: it is escaped, and characters that UTF-8 or HTML cannot hold are replaced."""
    # no template of the user's is rendered, and every value is escaped
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"percent": _percent, "count": lambda n: f"{n:,}", "short": _short, "figure": _figure}
    template = environment.from_string(
        resources.files(__package__ or __name__).joinpath("page.html").read_text(encoding="utf-8")
    )
    images = {name: _data_uri(path) for name, path in plots.items()}
    page = template.render(report=value, images=images, labels=LABELS, limits=SHOWN)
    return "".join(c if c in "\n\t" or c.isprintable() or c in "\u200d\xa0" else "\ufffd" for c in page)


def _data_uri(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _figure(number: float) -> str:
    return f"{number:,.0f}"


def _short(text: str, width: int = _QUOTE) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1].rstrip()}…"
