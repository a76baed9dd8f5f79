"""A version of a model that answers requests: its program, its queue, and its description."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.checks.inputs import concrete_shapes, make_feeds
from graphkit.checks.maps import as_table
from graphkit.errors import GraphkitError, InputError, RuntimeFailure, UnsupportedError
from graphkit.ir.origin import titled
from graphkit.ir.types import DType, MapType, SequenceType, TensorType, Type
from graphkit.model import Model
from graphkit.serving.batcher import Arrays, Batcher, Result
from graphkit.serving.changes import Change, change
from graphkit.serving.joining import why_not_joined
from graphkit.serving.protocol import Tensor
from graphkit.serving.samples import SampleInputs
from graphkit.serving.settings import Settings
from graphkit.serving.statistics import Statistics
from graphkit.serving.tensors import NAMES

logger = logging.getLogger("graphkit.serve")


class ServedModel:
    """One version of a model, compiled, with a queue and a thread.

    Args:
        name: Name under which it is served.
        version: Its version.
        model: The model.
        settings: Settings of the server.
        source: Its file or folder, for messages.
        statistics: Counts its requests and runs. They continue when the file is loaded again.
        before: A model with an equal graph, whose queue this one continues; None for a queue of its own.

    Attributes:
        inputs, outputs: Its inputs and outputs, as the protocol describes them.
        why_not_joined: Why requests do not share runs; None if they do.

    Raises:
        UnsupportedError: The protocol cannot describe an input or output, such as a sequence.
    """

    def __init__(
        self, name: str, version: str, model: Model, settings: Settings, source: Path, statistics: Statistics,
        before: ServedModel | None = None,
    ):  # fmt: skip
        self.name, self.version, self.model, self.source = name, version, model, source
        self.statistics = statistics
        self.inputs = tuple(_tensor(model, "input", n, k) for n, k in model.input_types.items())
        self.outputs = tuple(_tensor(model, "output", n, _of_maps(k)) for n, k in model.output_types.items())
        compiled = partial(
            Model.compile, device=settings.device, threads=settings.threads, max_memory=settings.max_memory,
            max_iterations=settings.max_iterations,
        )  # fmt: skip
        model.params.read_stored()  # else requests fail when the file is overwritten
        self._executor = compiled(model)
        self._on_cpu = settings.device == "cpu"
        self._max_batch = settings.max_batch
        run = partial(self._compute, timeout=settings.timeout)
        self.why_not_joined = (
            "--max-batch is 1"
            if settings.max_batch == 1
            else why_not_joined(model, run, lambda made: partial(compiled(made).run, timeout=settings.timeout))
        )
        self._warm_up(settings.timeout)
        # Random requests, on which this may depend, can show something else for other weights.
        joins, did_join = (each is None or each.why_not_joined is None for each in (self, before))
        self._before = before if joins == did_join else None
        # Whether `close` ends the queue: not if another model uses it.
        self._owns_queue = self._before is None
        self._batcher: Batcher = (
            self._before._batcher
            if self._before is not None
            else Batcher(
                self._compute, joins=self.why_not_joined is None, max_batch=settings.max_batch,
                max_delay=settings.max_delay, max_queue=settings.max_queue, executed=statistics.executed,
                name=f"graphkit-serve {name}",
            )
        )  # fmt: skip

    def queued(self) -> int:
        """Return the number of requests in the queue."""
        return len(self._batcher)

    @cached_property
    def samples(self) -> SampleInputs:
        """How images and texts become inputs. Raises InputError if the model takes neither."""
        return SampleInputs(self.model)

    def submit(self, inputs: Arrays, timeout: float) -> asyncio.Future[Result]:
        """Put a request of the running event loop into the queue. See `Batcher.submit_from_loop`."""
        return self._batcher.submit_from_loop(inputs, timeout=timeout)

    def begin(self) -> None:
        """Continue the queue of the model before, if this one does: a run in progress ends with that model."""
        if self._before is not None:
            self._batcher.replace(self._compute)
            self._owns_queue, self._before._owns_queue = True, False
            self._before = None

    def change(self, read: Model) -> Change:
        """Return how a model that was read again differs from this one. Random numbers would begin again."""
        found = change(self.model, read)
        return Change.ARRAYS if found is Change.NONE and self._executor.is_random else found

    def close(self) -> None:
        """Answer the requests in the queue, and take no more. If another model continues the queue, do nothing."""
        if self._owns_queue:
            self._batcher.close()

    def metadata(self, versions: list[str]) -> dict[str, Any]:
        """Return the metadata of the protocol. versions: of all models of this name."""
        return {
            "name": self.name, "versions": versions, "platform": "graphkit_onnx",
            "inputs": [item.description() for item in self.inputs],
            "outputs": [item.description() | _keys(self.model, item.name) for item in self.outputs],
        }  # fmt: skip

    def config(self) -> dict[str, Any]:
        """Return the configuration in the form of Triton's clients. Sizes leave out the batch axis if there is one."""
        joins = self.why_not_joined is None
        described = {"name": self.name, "platform": "graphkit_onnx", "backend": "graphkit"}
        return {
            **described, "version_policy": {"latest": {"num_versions": 1}},
            "max_batch_size": self._max_batch if joins else 0,
            "input": [_configured(item, joins) for item in self.inputs],
            "output": [_configured(item, joins) for item in self.outputs],
        }  # fmt: skip

    def _compute(self, feeds: Mapping[str, Any], timeout: float | None = None) -> dict[str, np.ndarray]:
        """Run the model. Outputs that are maps become arrays of their values, [rows, keys].

        Raises InputError if an operator refuses the values, such as an index that is out of range.
        """
        try:
            found = self._executor.run(feeds, timeout=timeout)
        except RuntimeFailure as error:
            if type(error) is not RuntimeFailure or not self._on_cpu:
                raise  # memory, time, or the device
            names = ", ".join(map(repr, feeds))
            raise InputError(f"the model cannot be computed for these values of {names}: {error}") from error
        return {name: value if isinstance(value, np.ndarray) else _values(name, value) for name, value in found.items()}

    def _warm_up(self, timeout: float) -> None:
        """Compile the programs of one row and of several, and run them, so that the first requests are not slower.

        A failure is only logged.
        """
        try:
            for rows in (1, 2) if self.why_not_joined is None else (1,):
                shapes, _ = concrete_shapes(self.model, None, rows)
                self._executor.prepare(shapes)  # before the run, whose time is limited
                self._compute(make_feeds(self.model, shapes=shapes).arrays, timeout)
        except GraphkitError as error:
            self._log_cold("the first request compiles the model, because it does not run on random inputs", error)
            return
        if self.why_not_joined is None:
            self._prepare_full_batch()

    def _prepare_full_batch(self) -> None:
        """Compile the program of a full batch. It is not run: while a model is replaced, this would delay requests."""
        try:
            shapes, _ = concrete_shapes(self.model, None, self._max_batch)
            self._executor.prepare(shapes)
        except GraphkitError as error:
            self._log_cold("the first full batch compiles its program", error)

    def _log_cold(self, event: str, error: GraphkitError) -> None:
        logger.info(event, extra={"model": self.name, "version": self.version, "error": str(error)})


def _of_maps(kind: Type) -> Type:
    """Return the type of the array that replaces a list of maps."""
    if isinstance(kind, SequenceType) and isinstance(kind.element, MapType):
        values = kind.element.element
        return TensorType(values.dtype if isinstance(values, TensorType) else DType.FLOAT32, ["rows", "keys"])
    return kind


def _keys(model: Model, name: str) -> dict[str, Any]:
    """Return the keys of maps that become the columns of a matrix, as parameters of its metadata."""
    node = model.graph.find(name).node
    if node is None or node.op.name != "ZipMap":
        return {}
    labels = next(filter(None, (node.op.attributes().get(key) for key in _LABELS)), ())
    return {"parameters": {"keys": sorted(labels)}}


# Attributes of ZipMap.
_LABELS = ("classlabels_strings", "classlabels_int64s")


def _values(name: str, value: Any) -> np.ndarray:
    table = as_table(value)
    if table is None:
        raise RuntimeFailure(f"output {name!r} consists of maps with different keys, so it cannot become a matrix")
    return table.values


def _tensor(model: Model, what: str, name: str, kind: Type) -> Tensor:
    if not isinstance(kind, TensorType) or kind.dtype not in NAMES:
        raise UnsupportedError(
            f"{titled(model.graph, 'model')}: {what} {name!r} is {kind}, which the Open Inference Protocol cannot "
            "describe; serve a part of the model with other inputs and outputs (graphkit extract)"
        )
    shape = kind.shape
    sizes = None if shape is None else tuple(size if isinstance(size, int) else -1 for size in shape)
    return Tensor(name, kind.dtype, sizes)


def _configured(item: Tensor, joins: bool) -> dict[str, Any]:
    name = NAMES[item.dtype]
    sizes = None if item.shape is None else list(item.shape[1:] if joins else item.shape)
    return {
        "name": item.name, "data_type": f"TYPE_{'STRING' if name == 'BYTES' else name}", "dims": sizes,
    }  # fmt: skip
