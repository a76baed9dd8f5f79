"""Metrics of a server for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from graphkit.named_tuples import NamedTuple

CONTENT_TYPE = CONTENT_TYPE_LATEST

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class ModelMetrics(NamedTuple):
    """The metrics of one version of a model. They are objects of prometheus_client."""

    answered: Any
    failed: Any
    request_seconds: Any
    queue_seconds: Any
    run_seconds: Any
    batch_rows: Any


class Metrics:
    """The metrics of one server. They are not in the registry of the process, so that several servers do not clash."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        labels = ("model", "version")

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"graphkit_{name}", text, labels, buckets=buckets, registry=self._registry)

        self._requests = Counter(
            "graphkit_inference_requests", "Requests for a run, by outcome.", (*labels, "outcome"),
            registry=self._registry,
        )  # fmt: skip
        self._request_seconds = histogram(
            "request_seconds", "Seconds from the head of a request to its answer.", _SECONDS
        )
        self._queue_seconds = histogram("queue_seconds", "Seconds that a request waited for its run.", _SECONDS)
        self._run_seconds = histogram("run_seconds", "Seconds of a run.", _SECONDS)
        self._batch_rows = histogram("batch_rows", "Rows of a run.", _ROWS)
        self._queued = Gauge("graphkit_queued_requests", "Requests in the queue.", labels, registry=self._registry)
        self._ready = Gauge("graphkit_model_ready", "1 if the model is loaded.", labels, registry=self._registry)
        self.in_progress = Gauge(
            "graphkit_http_requests_in_progress", "HTTP requests in progress.", registry=self._registry
        )
        self.pending_bytes = Gauge(
            "graphkit_http_pending_bytes", "Bytes of the bodies in progress.", registry=self._registry
        )
        self._responses = Counter(
            "graphkit_http_responses", "HTTP responses, by status.", ("status",), registry=self._registry
        )
        self._of_status: dict[int, Any] = {}

    def count_response(self, status: int) -> None:
        """Count an HTTP response."""
        counter = self._of_status.get(status)
        if counter is None:
            counter = self._of_status[status] = self._responses.labels(str(status))
        counter.inc()

    def of_model(self, name: str, version: str) -> ModelMetrics:
        """Return the metrics of one version of a model."""
        return ModelMetrics(
            self._requests.labels(name, version, "answered"), self._requests.labels(name, version, "failed"),
            *(each.labels(name, version) for each in (
                self._request_seconds, self._queue_seconds, self._run_seconds, self._batch_rows,
            )),
        )  # fmt: skip

    def set_ready(self, name: str, version: str, queued: Callable[[], int] | None) -> None:
        """Set whether a model is loaded. queued: returns the length of its queue; None if it is not loaded."""
        self._ready.labels(name, version).set(queued is not None)
        self._queued.labels(name, version).set_function(queued if queued is not None else lambda: 0)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)
