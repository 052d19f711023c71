"""Prometheus metrics of a server.

One HTTP process counts every request, whatever the number of search replicas: with its answers a replica sends the seconds of
each phase, and when asked its own state. So nothing has to be summed; what belongs to a replica (versions, reloads) has its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serving.engine import BatchOutcome, EngineStatus

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
PHASES = ("queue", "encode", "search", "rerank")


class ServingMetrics:
    """Counters and histograms in a registry of their own."""

    def __init__(self, statuses: Callable[[], Iterable[EngineStatus]], waiting: Callable[[], int]) -> None:
        disable_created_metrics()  # a second series for each, which nobody asks for
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "skillreason_requests", "HTTP requests.", ("route", "method", "status"), registry=self.registry
        )
        self.errors = Counter("skillreason_errors", "Requests refused or failed.", ("code",), registry=self.registry)
        self.request_seconds = Histogram(
            "skillreason_request_seconds", "Whole requests.", ("route",), buckets=_SECONDS, registry=self.registry
        )
        self.phase_seconds = Histogram(
            "skillreason_phase_seconds",
            "Phases of a search: queue is observed once a request, the others once a batch that has the phase.",
            ("phase",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.batch_queries = Histogram(
            "skillreason_batch_queries", "Queries of a batch.", buckets=_SIZES, registry=self.registry
        )
        self.retries = Counter(
            "skillreason_batch_retries", "Batches sent again after a replica was lost.", registry=self.registry
        )
        Gauge("skillreason_waiting_queries", "Queries that wait for a replica.", registry=self.registry).set_function(
            waiting
        )
        self.registry.register(_ReplicaCollector(statuses))
        for phase in PHASES:
            self.phase_seconds.labels(phase)

    def observe_batch(self, outcome: BatchOutcome, waits: Sequence[float], queries: int) -> None:
        """Count one batch (``serving.batching.Batcher``'s ``on_batch``)."""
        self.batch_queries.observe(queries)
        self.retries.inc(outcome.retries)
        for seconds in waits:
            self.phase_seconds.labels("queue").observe(seconds)
        for phase, seconds in outcome.phases.items():
            self.phase_seconds.labels(phase).observe(seconds)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)


class _ReplicaCollector(Collector):
    """What the replicas said last about themselves."""

    def __init__(self, statuses: Callable[[], Iterable[EngineStatus]]) -> None:
        self._statuses = statuses

    def collect(self) -> Iterator[Metric]:
        statuses = list(self._statuses())
        yield GaugeMetricFamily("skillreason_replicas", "Search replicas that answer.", value=len(statuses))
        labels = ("index", "replica")
        version = GaugeMetricFamily("skillreason_index_info", "Always 1.", labels=(*labels, "version"))
        skills = GaugeMetricFamily("skillreason_index_skills", "Skills of an index.", labels=labels)
        reloads = CounterMetricFamily("skillreason_index_reloads", "Newer versions opened.", labels=labels)
        failed = CounterMetricFamily(
            "skillreason_index_reload_failures", "Newer versions that could not be opened.", labels=labels
        )
        for status in statuses:
            for name, index in status.indexes.items():
                here = (name, status.replica)
                version.add_metric((*here, index.version), 1)
                skills.add_metric(here, index.info["n_skills"])
                reloads.add_metric(here, index.reloads)
                failed.add_metric(here, index.failed_reloads)
        yield from (version, skills, reloads, failed)
