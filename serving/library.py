"""An index as the agents' server holds it: opened when first asked for, and always its newest version."""

from __future__ import annotations

import dataclasses
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from serving.index import IndexInfo, read_info
from serving.versions import current_version

if TYPE_CHECKING:
    from serving.searcher import SkillSearcher

logger = logging.getLogger(__name__)


class ToolRefusedError(ValueError):
    """A call that cannot be answered; the message says what would be accepted, for the agent to read."""


class Library:
    """An index that is opened when first asked for and follows its updates; any number of threads may ask."""

    def __init__(
        self,
        root: str | Path,
        *,
        model: str | Path | None = None,
        reranker: str | Path | None = None,
        fusion_weight: float | None = None,
        device: str | None = None,
    ) -> None:
        """The options are those of :meth:`serving.searcher.SkillSearcher.open`; the models wait.

        Raises:
            IndexNotFoundError, IndexCorruptError: ``root`` holds no index.
        """
        self.root = Path(root)
        self._options = {"model": model, "reranker": reranker, "fusion_weight": fusion_weight, "device": device}
        self._searcher: SkillSearcher | None = None
        info = read_info(root)
        self._info = dataclasses.replace(
            info,
            reranker=info.reranker if reranker is None else str(reranker),
            fusion_weight=info.fusion_weight if fusion_weight is None else fusion_weight,
        )
        self._refused: str | None = None  # a version that could not be opened is not tried again at every call
        self._lock = threading.Lock()

    @property
    def info(self) -> IndexInfo:
        """The opened version; before that, the one that will be."""
        searcher = self._searcher
        return self._info if searcher is None else searcher.info

    @property
    def ready(self) -> bool:
        """Whether the models are loaded."""
        return self._searcher is not None

    def searcher(self) -> SkillSearcher:
        """The current version, opened; blocks while the models load.

        Raises:
            ToolRefusedError: the index cannot be opened. The next call tries again.
        """
        with self._lock:
            if self._searcher is None:
                logger.info(
                    "opening %s: %d skills, model %s", self.root, self._info.n_skills, self._info.model or "bm25"
                )
                from serving.searcher import SkillSearcher

                try:
                    self._searcher = SkillSearcher.open(self.root, **self._options)
                except (ValueError, OSError) as error:
                    raise ToolRefusedError(f"the skill library cannot be opened: {error}") from error
                logger.info("version %s is open", self._searcher.version)
            else:
                self._follow(self._searcher)
            return self._searcher.pinned()

    def _follow(self, searcher: SkillSearcher) -> None:
        newest = None
        try:
            newest = current_version(self.root)
            if newest not in (searcher.version, self._refused) and searcher.reload():
                logger.info("version %s is open: %d skills", searcher.version, searcher.info.n_skills)
        except (ValueError, OSError) as error:
            if newest is None or newest != self._refused:
                logger.error("version %s stays open: %s", searcher.version, error)
            self._refused = newest


def supports_hybrid(info: IndexInfo) -> bool:
    """Whether hybrid searches work: there are a model and a weight."""
    return info.model is not None and info.fusion_weight is not None
