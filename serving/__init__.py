"""A trained retriever in use: an index of a library on disk, and searches in it from Python, HTTP and MCP.

::

    from serving import SkillSearcher

    searcher = SkillSearcher.open("library.index")
    searcher.search("our checkout test fails now and then", k=5)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serving.index_build import build_index
    from serving.index_update import update_index
    from serving.searcher import SearchHit, SkillNotFoundError, SkillSearcher

__all__ = ["SearchHit", "SkillNotFoundError", "SkillSearcher", "build_index", "update_index"]

_MODULES = {
    "SearchHit": "serving.searcher",
    "SkillNotFoundError": "serving.searcher",
    "SkillSearcher": "serving.searcher",
    "build_index": "serving.index_build",
    "update_index": "serving.index_update",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: NumPy and torch take seconds."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
