"""Counts of requests and runs of a model: Triton's statistics, and metrics for Prometheus."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from graphkit.serving.batcher import Executed, Times
from graphkit.serving.metrics import Metrics

_NANOSECONDS = 1e9


class _Duration:
    """How often something happened, and how long it took in total."""

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds

    def to_json(self) -> dict[str, int]:
        return {"count": self.count, "ns": round(self.seconds * _NANOSECONDS)}


# The fields of `Times`, and what Triton calls them.
_PARTS = {"queue": "queue", "join": "compute_input", "run": "compute_infer", "split": "compute_output"}


class Statistics:
    """Counts of one version of a model. Any thread may call the methods.

    name, version: of the model. metrics: of the server; they count the same.
    """

    def __init__(self, name: str, version: str, metrics: Metrics):
        self._name, self._version = name, version
        self._metrics = metrics.of_model(name, version)
        self._lock = threading.Lock()
        self._ended = {"success": _Duration(), "fail": _Duration()}
        self._parts = {part: _Duration() for part in _PARTS}
        self._runs: Counter[int] = Counter()
        self._run_seconds: dict[int, Times] = {}
        self._rows = 0
        self._last = 0

    def executed(self, run: Executed) -> None:
        """Count a run."""
        size = run.rows
        with self._lock:
            self._runs[size] += 1
            before = self._run_seconds.get(size, Times(0.0, 0.0, 0.0, 0.0))
            self._run_seconds[size] = Times(*(a + b for a, b in zip(before, run.times, strict=True)))
            self._rows += size
        self._metrics.batch_rows.observe(size)
        self._metrics.run_seconds.observe(run.times.run)

    def answered(self, seconds: float, times: Times) -> None:
        """Count a request that was answered. seconds: from its head to its answer."""
        with self._lock:
            self._ended["success"].add(seconds)
            for part, spent in zip(self._parts.values(), times, strict=True):
                part.add(spent)
            self._last = round(time.time() * 1000)
        self._metrics.answered.inc()
        self._metrics.request_seconds.observe(seconds)
        self._metrics.queue_seconds.observe(times.queue)

    def failed(self, seconds: float) -> None:
        """Count a request that failed."""
        with self._lock:
            self._ended["fail"].add(seconds)
        self._metrics.failed.inc()

    def to_json(self) -> dict[str, Any]:
        """Return the counts in the form of Triton's statistics extension."""
        with self._lock:
            parts = {_PARTS[part]: spent.to_json() for part, spent in self._parts.items()}
            ended: Mapping[str, Any] = {kind: spent.to_json() for kind, spent in self._ended.items()}
            none = {"count": 0, "ns": 0}
            return {
                "name": self._name, "version": self._version, "last_inference": self._last,
                "inference_count": self._rows, "execution_count": sum(self._runs.values()),
                "inference_stats": {**ended, **parts, "cache_hit": none, "cache_miss": none},
                "batch_stats": [self._of_size(size, count) for size, count in sorted(self._runs.items())],
            }  # fmt: skip

    def _of_size(self, size: int, count: int) -> dict[str, Any]:
        spent = self._run_seconds[size]._asdict()
        parts = {
            name: {"count": count, "ns": round(spent[part] * _NANOSECONDS)}
            for part, name in _PARTS.items()
            if part != "queue"
        }
        return {"batch_size": size, **parts}
