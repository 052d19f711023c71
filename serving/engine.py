"""What a search replica does: named indexes, batches of searches, new versions. It knows nothing of HTTP or Ray."""

from __future__ import annotations

import dataclasses
import difflib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from serving.problems import Problem, unknown
from serving.settings import MAX_ID_CHARS, ServeSettings

if TYPE_CHECKING:
    from data_pipeline import Skill
    from serving.searcher import SkillSearcher

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SearchJob:
    """Queries with the same options, answered from one version of one index."""

    index: str
    queries: tuple[str, ...]
    k: int = 10
    hybrid: bool = False
    rerank: bool = False
    rerank_depth: int = 20
    domain: str | None = None

    @property
    def options(self) -> tuple[Any, ...]:
        """What jobs must share to be one call of the searcher."""
        return (self.index, self.k, self.hybrid, self.rerank, self.rerank_depth, self.domain)


@dataclass(frozen=True)
class JobResult:
    """One ranking a query: hits as plain dictionaries (the fields of ``SearchHit``)."""

    version: str
    rankings: list[list[dict[str, Any]]]


@dataclass(frozen=True)
class BatchOutcome:
    """Answers to a batch, in order, the seconds that each phase took for the whole batch, and how often it was sent again."""

    results: list[JobResult | Problem]
    phases: dict[str, float]
    retries: int = 0


@dataclass(frozen=True)
class IndexStatus:
    """One index of one replica."""

    version: str
    info: dict[str, Any]
    reloads: int
    failed_reloads: int
    error: str | None
    """Why the newest version could not be opened, while an older one serves."""


@dataclass(frozen=True)
class EngineStatus:
    """One replica; ``replica`` is its name, such as Ray Serve's replica id."""

    replica: str
    indexes: dict[str, IndexStatus]


@dataclass
class _Served:
    searcher: SkillSearcher
    reloads: int = 0
    failed_reloads: int = 0
    error: str | None = None


class SearchEngine:
    """Named searchers. ``search`` may run while ``reload`` opens a newer version: what began on the old one ends on it."""

    def __init__(
        self,
        settings: ServeSettings,
        replica: str = "local",
        open_searcher: Callable[[str], SkillSearcher] | None = None,
    ) -> None:
        """Open every index; errors name the index and its folder (ValueError)."""
        self.replica = replica
        _set_threads(settings.threads)
        self._served: dict[str, _Served] = {}
        self._reloading = threading.Lock()
        self._watcher: threading.Thread | None = None
        self._stop = threading.Event()
        self._busy_since: float | None = None
        for name, folder in settings.indexes.items():
            try:
                self._served[name] = _Served((open_searcher or _opener(settings))(folder))
            except (ValueError, OSError) as error:
                raise ValueError(f"index {name!r} ({folder}): {error}") from error

    @property
    def busy_seconds(self) -> float:
        """How long the search that is under way has been running; 0 where none is."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def search(self, jobs: Sequence[SearchJob]) -> BatchOutcome:
        """Answer jobs together: one encoder pass for each index, one search for each set of options. Call it from one thread."""
        self._busy_since = time.monotonic()
        try:
            return self._search(jobs)
        finally:
            self._busy_since = None

    def _search(self, jobs: Sequence[SearchJob]) -> BatchOutcome:
        phases: dict[str, float] = {}
        results: list[JobResult | Problem | None] = [self._refusal(job) for job in jobs]
        for name in dict.fromkeys(job.index for job in jobs):
            mine = [place for place, job in enumerate(jobs) if job.index == name and results[place] is None]
            if not mine:
                continue
            searcher = self._served[name].searcher.pinned()  # a reload meanwhile changes nothing of these searches
            try:
                answers = _answer_together(searcher, [jobs[place] for place in mine], phases)
            except Exception as error:
                logger.exception("a search of index %r failed", name)
                answers = [_failure(error)] * len(mine)
            for place, answer in zip(mine, answers, strict=True):
                results[place] = answer
        assert all(result is not None for result in results)
        return BatchOutcome([result for result in results if result is not None], phases)

    def skill(self, index: str, skill_id: str) -> Skill | Problem:
        """A whole document, or why there is none."""
        from serving.searcher import SkillNotFoundError

        refusal = self._refusal(SearchJob(index, ()))
        if refusal is not None:
            return refusal
        if len(skill_id) > MAX_ID_CHARS:
            message = f"skill_id has {len(skill_id)} characters; expected at most {MAX_ID_CHARS}"
            return Problem(404, "unknown_skill", message, "skill_id")
        try:
            return self._served[index].searcher.skill(skill_id)
        except SkillNotFoundError as error:
            return unknown("skill", skill_id, error.close).in_field("skill_id")

    def status(self) -> EngineStatus:
        """Versions and counts, without touching a disk."""
        return EngineStatus(
            self.replica,
            {
                name: IndexStatus(
                    served.searcher.version,
                    _plain(served.searcher.info),
                    served.reloads,
                    served.failed_reloads,
                    served.error,
                )
                for name, served in self._served.items()
            },
        )

    def reload(self) -> None:
        """Open newer versions of the indexes; one that cannot be opened is reported, and the old one goes on serving."""
        with self._reloading:
            for name, served in self._served.items():
                try:
                    changed = served.searcher.reload()
                except Exception as error:
                    if served.error != str(error):  # said once, not at every look
                        logger.error("index %r keeps version %s: %s", name, served.searcher.version, error)
                        served.failed_reloads += 1
                    served.error = str(error)
                    continue
                served.error = None
                if changed:
                    served.reloads += 1
                    logger.info("index %r now serves version %s", name, served.searcher.version)

    def watch(self, every_s: float) -> None:
        """Look for new versions in a thread of its own until ``close``."""

        def look() -> None:
            while not self._stop.wait(every_s):
                self.reload()

        self._watcher = threading.Thread(target=look, name="watch indexes", daemon=True)
        self._watcher.start()

    def close(self) -> None:
        """End the watching thread."""
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join(timeout=10)

    def _refusal(self, job: SearchJob) -> Problem | None:
        if job.index not in self._served:
            names = list(self._served)
            close = difflib.get_close_matches(job.index, names, 3, 0.5)
            return unknown("index", job.index, close, f"expected one of {', '.join(names)}").in_field("index")
        info = self._served[job.index].searcher.info
        if job.domain is not None and job.domain not in info.domains:
            close = difflib.get_close_matches(job.domain, info.domains, 3, 0.5)
            known = sorted(info.domains, key=lambda name: -info.domains[name])[:10]
            accepted = f"the index has {', '.join(known)}" if known else "this index has no domains"
            return unknown("domain", job.domain, close, accepted).in_field("domain")
        if job.rerank and not info.has_reranker:
            message = f"index {job.index!r} is served without a reranker; expected rerank: false"
            return Problem(409, "no_reranker", message, "rerank")
        return None


def _answer_together(
    searcher: SkillSearcher, jobs: Sequence[SearchJob], phases: dict[str, float]
) -> list[JobResult | Problem]:
    """One encoder pass for all queries, then one search for each set of options."""
    results: list[JobResult | Problem | None] = [None] * len(jobs)
    queries = list(dict.fromkeys(query for job in jobs for query in job.queries))
    started = time.perf_counter()
    embeddings = searcher.encode(queries)
    _add(phases, "encode", started)
    row = {query: position for position, query in enumerate(queries)}
    by_options: dict[tuple[Any, ...], list[int]] = {}
    for place, job in enumerate(jobs):
        by_options.setdefault(job.options, []).append(place)
    for places in by_options.values():
        job = jobs[places[0]]
        asked = [query for place in places for query in jobs[place].queries]
        vectors = None if embeddings is None else embeddings[[row[query] for query in asked]]
        try:
            rankings = searcher.search_batch(
                asked,
                job.k,
                hybrid=job.hybrid,
                rerank=job.rerank,
                rerank_depth=job.rerank_depth,
                domain=job.domain,
                embeddings=vectors,
                timings=phases,
            )
        except ValueError as error:  # what this index cannot do, named by the searcher
            for place in places:
                results[place] = Problem(409, "refused_by_index", str(error))
            continue
        found = iter([dataclasses.asdict(hit) for hit in ranking] for ranking in rankings)
        for place in places:
            results[place] = JobResult(searcher.version, [next(found) for _ in jobs[place].queries])
    return [result for result in results if result is not None]


def _opener(settings: ServeSettings) -> Callable[[str], SkillSearcher]:
    from serving.searcher import SkillSearcher

    return lambda folder: SkillSearcher.open(folder, reranker=settings.reranker)


def _set_threads(threads: int) -> None:
    """CPU threads of torch and FAISS in this process, where they are given."""
    if threads < 1:
        return
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import faiss
    import torch

    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)


def _failure(error: Exception) -> Problem:
    """What a client learns of a defect: its kind, not its text, which may hold paths; the log has all of it."""
    return Problem(500, "internal", f"the search failed ({type(error).__name__}); the server's log says where")


def _plain(info: Any) -> dict[str, Any]:
    return {**dataclasses.asdict(info), "has_reranker": info.has_reranker}


def _add(phases: dict[str, float], name: str, started: float) -> None:
    phases[name] = phases.get(name, 0.0) + time.perf_counter() - started


def newest(statuses: Iterable[EngineStatus], index: str) -> IndexStatus | None:
    """The replica's state of an index that was built last; None where no replica answers."""
    found = [status.indexes[index] for status in statuses if index in status.indexes]
    return max(found, key=lambda one: str(one.info["built_at"]), default=None)
