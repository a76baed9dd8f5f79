"""Writes TensorBoard's event files with tensorboardX: scalars, histograms, images, texts and a graph.

Records are written by the calling thread, so that an error of the file system is raised here.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.distribution import how_to_install
from graphkit.errors import MissingDependency, RuntimeFailure
from graphkit.ir.graph import Graph
from graphkit.report.png import encode
from graphkit.text import short_repr

# Number of bins of a histogram; number of values that are counted at a time.
_BINS, _PART = 64, 1 << 16

# Maximum time in seconds until a record is flushed to the file.
_FLUSH = 5.0

# Distinguishes files that a process starts in the same second. TensorBoard reads files in the order of their names.
_numbers = itertools.count()


def check_installed() -> None:
    """Raise MissingDependency if tensorboardX is not installed."""
    if importlib.util.find_spec("tensorboardX") is None:
        raise MissingDependency(
            f"writing event files for TensorBoard needs tensorboardX; install it with: {how_to_install('curves')}"
        )


class EventFile:
    """A new event file in a folder, which is created if needed. A `with` statement closes it.

    If the process is killed, all records but the last one are complete. Raises MissingDependency if tensorboardX is not
    installed, RuntimeFailure if the file cannot be written.
    """

    def __init__(self, folder: Path):
        check_installed()
        self.folder = folder
        with self._writing():
            from tensorboardX.event_file_writer import EventsWriter

            folder.mkdir(parents=True, exist_ok=True)
            self._writer = EventsWriter(str(folder / "events"), f".{os.getpid()}.{next(_numbers):06d}")
            self._flushed = 0.0
            self.flush()

    def __enter__(self) -> EventFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def starts(self, step: int) -> None:
        """Discard the records of older files in the folder from this step on, because a run resumes there."""
        from tensorboardX.proto.event_pb2 import SessionLog

        self._write(step, session_log=SessionLog(status=SessionLog.START))

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Write a scalar. It may be NaN or infinite."""
        self._value(step, tag, simple_value=float(value))

    def histogram(self, tag: str, values: np.ndarray, step: int) -> int:
        """Write a histogram of the finite values, in bins of equal width. Return how many values are not finite."""
        from tensorboardX.proto.summary_pb2 import HistogramProto

        flat = np.asarray(values).reshape(-1)
        low, high, count = math.inf, -math.inf, 0
        total = squares = 0.0
        for part in _finite_parts(flat):
            low, high, count = min(low, float(part.min())), max(high, float(part.max())), count + part.size
            with np.errstate(over="ignore"):
                total, squares = total + float(part.sum()), squares + float(np.square(part).sum())
        if count:
            counts, limits = _counted(flat, low, high)
            found = HistogramProto(
                min=low, max=high, num=count, sum=total, sum_squares=squares, bucket_limit=limits, bucket=counts
            )
            self._value(step, tag, histo=found)
        return int(flat.size - count)

    def picture(self, tag: str, image: np.ndarray, step: int) -> None:
        """Write an image: uint8 [H, W, C] with 1 or 3 channels."""
        from tensorboardX.proto.summary_pb2 import Summary

        height, width, channels = image.shape
        data = encode(np.ascontiguousarray(image))
        found = Summary.Image(height=height, width=width, colorspace=channels, encoded_image_string=data)
        self._value(step, tag, image=found)

    def text(self, tag: str, markdown: str, step: int) -> None:
        from tensorboardX import summary

        self._write(step, summary=summary.text(tag, markdown))

    def graph(self, graph: Graph) -> None:
        from graphkit.report.event_graph import graph_def

        self._write(0, graph_def=graph_def(graph).SerializeToString())

    def flush(self) -> None:
        """Flush all records to the file."""
        with self._writing():
            self._writer.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        with self._writing():
            self._writer.close()

    def _value(self, step: int, tag: str, **value: Any) -> None:
        from tensorboardX.proto.summary_pb2 import Summary

        self._write(step, summary=Summary(value=[Summary.Value(tag=tag, **value)]))

    def _write(self, step: int, **what: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        with self._writing():
            self._writer.write_event(Event(wall_time=time.time(), step=step, **what))
        if time.monotonic() - self._flushed > _FLUSH:
            self.flush()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RuntimeFailure(f"{self.folder}: events cannot be written: {error.strerror or error}") from error

    def __repr__(self) -> str:
        return short_repr(self, lambda: [repr(str(self.folder))])


def _finite_parts(flat: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the finite values as float64, in parts that need little memory. No part is empty."""
    for start in range(0, flat.size, _PART):
        part = flat[start : start + _PART].astype(np.float64)
        finite = np.isfinite(part)
        if finite.all():
            yield part
        elif finite.any():
            yield part[finite]


def _counted(flat: np.ndarray, low: float, high: float) -> tuple[list[float], list[float]]:
    """Count the finite values, from low to high. Return the count and the upper limit of each bin."""
    width = high / _BINS - low / _BINS  # not (high - low) / _BINS, because the difference may overflow
    if width <= np.spacing(max(abs(low), abs(high))):
        return [float(sum(part.size for part in _finite_parts(flat)))], [high]
    counts = np.zeros(_BINS)
    for part in _finite_parts(flat):
        places = np.clip(part / width - low / width, 0, _BINS - 1).astype(np.int64)
        counts += np.bincount(places, minlength=_BINS)
    upper = np.arange(1, _BINS + 1) / _BINS
    return counts.tolist(), (low * (1.0 - upper) + high * upper).tolist()
