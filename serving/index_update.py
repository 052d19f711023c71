"""Bring an index up to date with its library, once or for as long as it is watched; only what changed is encoded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from data_pipeline.corpus import SkillCorpus
from data_pipeline.ingest import skill_files
from serving.index import IndexInfo, SkillIndex, absolute_path, load_model, open_index
from serving.index_build import BuildSettings, Built, write_version
from serving.index_plan import Library, UpdatePlan, plan_update, read_library
from serving.versions import KEEP, IndexBusyError, check_keep, current_version, writing

if TYPE_CHECKING:
    from models.encoder import SentenceTransformerEncoder

MAX_REMOVED = 0.5
"""Share of an index that an update removes without being told that it may."""


class RemovalRefusedError(ValueError):
    """An update would remove most of the index: more likely a folder that is not there yet than a library that shrank."""


@dataclass(frozen=True)
class Updated:
    """What an update found, and the version that it wrote; None where there was nothing to do, or nothing was to be done."""

    plan: UpdatePlan
    built: Built | None


class IndexUpdater:
    """Updates an index from one library, any number of times; the model is loaded when it is first needed and stays.

    Args:
        root: the index.
        skills, corpus: the library, see :func:`read_library`.
        model: where the index's model is now, if not where it was.
        device, batch_size, cache_dir, keep, wait: see :func:`serving.index_build.build_index`.
    """

    def __init__(
        self,
        root: str | Path,
        skills: Sequence[str | Path] = (),
        *,
        corpus: str | Path | None = None,
        model: str | Path | None = None,
        device: str | None = None,
        cache_dir: str | Path | None = None,
        batch_size: int = 32,
        keep: int = KEEP,
        wait: float = 0.0,
        progress: bool = False,
    ) -> None:
        check_keep(keep)
        self.root, self.skills, self.corpus = Path(root), list(skills), corpus
        self._model, self._device, self._cache_dir = model, device, cache_dir
        self._batch_size, self._keep, self._wait, self._progress = batch_size, keep, wait, progress
        self._encoder: SentenceTransformerEncoder | None = None

    def update(self, *, dry_run: bool = False, allow_removals: bool = False) -> Updated:
        """Write a new version where the library differs from the index; readers see it when it is complete.

        Args:
            dry_run: find out what would be done, and write nothing.
            allow_removals: more than half of the index may go.

        Raises:
            RemovalRefusedError: more than half of the index would go.
            IndexNotFoundError, IndexCorruptError, IndexBusyError, ModelMismatchError: see :mod:`serving.index`.
            ValueError, FileNotFoundError: see :func:`read_library`.
        """
        current_version(self.root)  # before the library is read, and before a lock is put where no index is
        library = read_library(self.skills, self.corpus)
        if dry_run:
            return Updated(plan_update(open_index(self.root), library), None)
        with writing(self.root, self._wait):
            index = open_index(self.root)
            plan = plan_update(index, library)
            if len(plan.removed) > MAX_REMOVED * len(index.skills) and not allow_removals:
                raise RemovalRefusedError(
                    f"{len(plan.removed)} of {len(index.skills)} skills are not in {', '.join(library.source)} any more, "
                    f"{plan.removed[0]!r} among them; more than half is removed with --allow-removals only"
                )
            if plan.empty:
                return Updated(plan, None)
            return Updated(plan, self._write(index, plan.skills, library))

    def watch(
        self,
        interval: float,
        on_update: Callable[[Updated], None],
        on_error: Callable[[Exception], None],
        stop: threading.Event | None = None,
    ) -> None:
        """Update now, and again whenever the library's files have changed and then stayed as they are for ``interval`` seconds.

        Args:
            on_update: called with every update, also with one that found nothing to do.
            on_error: called with what a user can put right; the index stays as it is, and the watching goes on.
            stop: ends the watching when it is set.

        Raises:
            ValueError: ``interval`` is not positive.
        """
        from configs.errors import EXPECTED_ERRORS

        if interval <= 0:
            raise ValueError(f"interval is {interval}; expected a positive number of seconds")
        stop = stop or threading.Event()
        done, seen = None, _files(self.skills, self.corpus)
        while not stop.is_set():
            now = _files(self.skills, self.corpus)
            if now == seen and now != done:
                try:
                    on_update(self.update())
                    done = now
                except EXPECTED_ERRORS as error:
                    on_error(error)
                    # The same files would give the same error; another writer's end would not show in them.
                    done = done if isinstance(error, IndexBusyError) else now
            seen = now
            stop.wait(interval)

    def _write(self, index: SkillIndex, skills: SkillCorpus, library: Library) -> Built:
        info = index.info
        encoder = self._encoder_of(info)
        model = info.model if self._model is None else absolute_path(self._model)
        requested = str(info.vectors.get("requested", "auto"))
        return write_version(
            self.root,
            skills,
            encoder,
            model if encoder is not None else None,
            BuildSettings(requested, info.fusion_weight, info.reranker, info.encoder_options),
            previous=index,
            source=library.source,
            cache_dir=self._cache_dir,
            batch_size=self._batch_size,
            keep=self._keep,
            progress=self._progress,
        )

    def _encoder_of(self, info: IndexInfo) -> SentenceTransformerEncoder | None:
        if info.model is None:
            return None
        if self._encoder is None or self._encoder.fingerprint != info.fingerprint:
            self._encoder = load_model(info, self._model, self._device)
        return self._encoder


def update_index(
    root: str | Path,
    skills: Sequence[str | Path] = (),
    *,
    corpus: str | Path | None = None,
    dry_run: bool = False,
    allow_removals: bool = False,
    model: str | Path | None = None,
    device: str | None = None,
    cache_dir: str | Path | None = None,
    batch_size: int = 32,
    keep: int = KEEP,
    wait: float = 0.0,
    progress: bool = False,
) -> Updated:
    """Bring an index up to date once; see :class:`IndexUpdater` and its :meth:`~IndexUpdater.update`."""
    updater = IndexUpdater(
        root,
        skills,
        corpus=corpus,
        model=model,
        device=device,
        cache_dir=cache_dir,
        batch_size=batch_size,
        keep=keep,
        wait=wait,
        progress=progress,
    )
    return updater.update(dry_run=dry_run, allow_removals=allow_removals)


def _files(skills: Sequence[str | Path], corpus: str | Path | None) -> frozenset[tuple[str, int, int]]:
    """Name, time and size of every file that the library is read from; those that vanish meanwhile are left out."""
    found = set()
    for path in map(Path, [*skills, *([corpus] if corpus is not None else [])]):
        for file in skill_files(path) if path.is_dir() else [path]:
            try:
                status = file.stat()
            except OSError:
                continue
            found.add((str(file), status.st_mtime_ns, status.st_size))
    return frozenset(found)
