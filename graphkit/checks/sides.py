"""The two sides of a comparison: a model and the engine that runs it, and which inputs and outputs belong together."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.checks.lower_precision import Precision, precision_of, precision_of_node, precisions_of_values
from graphkit.errors import GraphkitError, InvalidModel, UsageError, did_you_mean
from graphkit.ir.graph import Value
from graphkit.ir.types import FLOATS, DType, TensorType, Type, dtype_of
from graphkit.loading import is_onnx_file, load
from graphkit.model import Model
from graphkit.text import listed

# Engines by the names of arguments and options, and their titles in reports.
TITLES: Mapping[str, str] = {"graphkit": "graphkit", "onnxruntime": "ONNX Runtime"}


@dataclass
class Side:
    """A model in an engine.

    source: what the model was read from; None for a Model in memory. If it is an ONNX file or a ModelProto, ONNX
    Runtime runs it, otherwise an export of the model with `opset`.
    """

    engine: str
    source: Any
    given: Model | None
    opset: int | None = None
    threads: int | None = None
    device: str = "cpu"
    label: str = ""
    inputs: list[tuple[str, str]] = field(default_factory=list)  # pairs of names: of the first side, and of this one

    @property
    def title(self) -> str:
        return TITLES[self.engine]

    @property
    def name(self) -> str:
        """The name of the file, else that of the model."""
        if isinstance(self.source, (str, Path)):
            return str(self.source)
        return self.given.name if self.given is not None else str(self.source.graph.name or "model")

    @cached_property
    def model(self) -> Model:
        """The model in graphkit. Raises the errors of `gk.load`."""
        return load(self.source) if self.given is None else self.given

    @cached_property
    def file(self) -> Any:
        """The model that ONNX Runtime runs: the ONNX file or ModelProto, or an export."""
        if self.source is None or (isinstance(self.source, (str, Path)) and not is_onnx_file(self.source)):
            return self.model.to_onnx(opset=self.opset)
        return self.source

    @cached_property
    def input_types(self) -> dict[str, Type]:
        """The types of the inputs by name, as the engine sees them."""
        if self.engine == "graphkit" or self.given is not None:
            return self.model.input_types
        from graphkit.onnx_io.declarations import declared_inputs

        return declared_inputs(self.file)

    @cached_property
    def precision(self) -> Precision | None:
        """The lowest precision of the model; None if graphkit cannot read it, or it computes no floats."""
        try:
            return precision_of(self.model.graph)
        except GraphkitError:
            return None

    @cached_property
    def precisions(self) -> Mapping[str, Precision | None]:
        """The lowest precision that each output depends on, by name; empty if graphkit cannot read the model."""
        try:
            found, outputs = self._precisions, self.model.graph.outputs
            return {name: found.get(value) for name, value in zip(self.model.outputs, outputs, strict=True)}
        except GraphkitError:
            return {}

    @cached_property
    def precisions_of_values(self) -> Mapping[str, Precision | None]:
        """As `precisions`, of all results of nodes, by name."""
        try:
            name_of = self.model.graph.name_of
            return {name_of(value): precision for value, precision in self._precisions.items()}
        except GraphkitError:
            return {}

    def precision_of_node(self, name: str) -> Precision | None:
        """The precision of the node that computes a value; that of the model if graphkit has no value of this name."""
        return self._precisions_of_nodes.get(name, self.precision)

    @cached_property
    def _precisions_of_nodes(self) -> Mapping[str, Precision | None]:
        try:
            graph = self.model.graph
            return {graph.name_of(value): precision_of_node(node) for node in graph.nodes for value in node.outputs}
        except GraphkitError:
            return {}

    @cached_property
    def _precisions(self) -> Mapping[Value, Precision | None]:
        return precisions_of_values(self.model.graph)

    def feeds(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arrays of the first side under the names, and with the float types, of this side's inputs."""
        if not self.inputs:
            return dict(arrays)
        return {own: _of_type(arrays[name], self.input_types[own]) for name, own in self.inputs if name in arrays}

    @contextlib.contextmanager
    def started(self, feeds: Mapping[str, Any]) -> Iterator[Callable[[], dict[str, Any]]]:
        """Start a run; yield a function that waits for the outputs. graphkit runs the model in that call."""
        if self.engine == "graphkit":
            yield lambda: self.model.compile(device=self.device, threads=self.threads).run(feeds)
            return
        from graphkit.onnx_io.runtime_process import running

        with running(self.file, feeds, self.threads) as pending:
            yield lambda: self._of_onnx_runtime(pending.results)

    def _of_onnx_runtime(self, results: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the outputs. If ONNX Runtime refuses a model of bfloat16, the error says what can be compared."""
        try:
            return results()
        except InvalidModel as error:
            if self.precision is None or self.precision.name != str(DType.BFLOAT16):
                raise
            raise InvalidModel(
                f"{error}. ONNX Runtime has no kernels for bfloat16 on CPUs. Compare this file, in graphkit, with the "
                "float32 file that it was made from: against= (--against FLOAT32.onnx)"
            ) from error


def sides_of(
    model: Model,
    against: Any,
    engine: str | None = None,
    against_engine: str | None = None,
    *,
    source: Any = None,
    against_source: Any = None,
    opset: int | None = None,
    threads: int | None = None,
    device: str = "cpu",
) -> tuple[Side, Side]:
    """Return the two sides of a comparison. See `gk.verify` for the arguments. Raises UsageError."""
    for name in (engine, against_engine):
        if name is not None and name not in TITLES:
            raise UsageError(f"unknown engine {name!r}{did_you_mean(name, TITLES)}")
    if isinstance(against, (str, os.PathLike)) and not Path(against).exists():
        raise UsageError(f"{against}: no such file")
    first = Side(engine or "graphkit", source, model, opset, threads, device)
    if against is None:
        other = "onnxruntime" if first.engine == "graphkit" else "graphkit"
        second = Side(against_engine or other, source, model, opset, threads, device)
    else:
        found = against if isinstance(against, Model) else None
        file = against if found is None else against_source
        is_json = isinstance(file, (str, os.PathLike)) and not is_onnx_file(file)
        default = "graphkit" if file is None or is_json else "onnxruntime"
        second = Side(against_engine or default, file, found, opset, threads, device)
    first.label, second.label = first.title, second.title
    if isinstance(against, Model) or first.engine == second.engine:
        names = (first.name, second.name) if first.name != second.name else ("the first model", "the second model")
        first.label, second.label = names
        if first.engine != second.engine:
            first.label, second.label = f"{names[0]} ({first.title})", f"{names[1]} ({second.title})"
    return first, second


@dataclass(frozen=True)
class Matching:
    """Pairs of names that belong together, and notes about the others for the user."""

    pairs: list[tuple[str, str]]
    notes: tuple[str, ...] = ()


def match(
    kind: str, ours: Mapping[str, Type], theirs: Mapping[str, Type], labels: tuple[str, str], *, needed: bool
) -> Matching:
    """Match inputs or outputs by name. Match the rest by position, if counts and ranks agree.

    Args:
        kind: "input" or "output", for messages.
        ours: Types of the first side by name.
        theirs: Types of the other side by name.
        labels: Titles of the two sides.
        needed: Whether every name of the other side must be matched.

    Raises:
        UsageError: Nothing, or not everything that is needed, can be matched.
    """
    pairs = [(name, name) for name in ours if name in theirs]
    rest, other = [n for n in ours if n not in theirs], [n for n in theirs if n not in ours]
    notes = []
    by_position = list(zip(rest, other, strict=False))
    if rest and len(rest) == len(other) and all(_same_rank(ours[a], theirs[b]) for a, b in by_position):
        pairs += by_position
        notes.append(f"{kind}s matched by position: " + ", ".join(f"{a} and {b}" for a, b in by_position))
        rest = other = []
    if (other and needed) or (not pairs and (ours or theirs)):
        raise UsageError(
            f"the {kind}s cannot be matched by name or position: {labels[0]} has {listed(list(ours), 5)}; "
            f"{labels[1]} has {listed(list(theirs), 5)}"
        )
    notes += [f"{kind} {name!r} exists only in {labels[0]}: it is not compared" for name in rest]
    notes += [f"{kind} {name!r} exists only in {labels[1]}: it is not compared" for name in other]
    order = {name: i for i, name in enumerate(ours)}
    return Matching(sorted(pairs, key=lambda pair: order[pair[0]]), tuple(notes))


def input_pairs(first: Side, second: Side) -> list[tuple[Type, Type]]:
    """Return the types of the inputs that belong together. Raises UsageError if no inputs fit both sides."""
    ours, theirs, labels = first.input_types, second.input_types, (first.label, second.label)
    pairs = match("input", ours, theirs, labels, needed=True).pairs
    for name, own in pairs:
        one, other = ours[name], theirs[own]
        if not _same_rank(one, other) or _sizes_differ(one, other):
            raise UsageError(f"input {name!r} is {one} in {labels[0]}, but {other} in {labels[1]}: no array fits both")
    return [(ours[name], theirs[own]) for name, own in pairs]


def _sizes_differ(one: Type, other: Type) -> bool:
    """Whether an axis has different fixed sizes."""
    if not isinstance(one, TensorType) or not isinstance(other, TensorType):
        return False
    sizes = zip(one.shape or (), other.shape or (), strict=False)
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes)


def match_inputs(first: Side, second: Side, arrays: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Set the pairs of inputs of `second`. Return the arrays of the first side, and notes.

    If the float types of two inputs differ, the array is rounded to the narrower type, so that both sides get the same
    numbers.
    """
    found = match("input", first.input_types, second.input_types, (first.label, second.label), needed=True)
    second.inputs = found.pairs
    rounded = dict(arrays)
    for name, own in found.pairs:
        _check_fits(own, arrays[name], second)
        rounded[name] = _rounded(arrays[name], first.input_types[name], second.input_types[own])
    return rounded, found.notes


def _check_fits(name: str, array: Any, side: Side) -> None:
    kind = side.input_types[name]
    if isinstance(array, np.ndarray) and _sizes_differ(TensorType(dtype_of(array.dtype), array.shape), kind):
        raise UsageError(f"input {name!r} of {side.label} is {kind}; the array has the shape {list(array.shape)}")


def _same_rank(one: Type, other: Type) -> bool:
    if not isinstance(one, TensorType) or not isinstance(other, TensorType):
        return type(one) is type(other)
    return None in (one.rank, other.rank) or one.rank == other.rank


def _of_type(array: Any, kind: Type) -> Any:
    """Convert an array of floats to another float type; return anything else unchanged."""
    if not isinstance(array, np.ndarray) or not isinstance(kind, TensorType) or dtype_of(array.dtype) is kind.dtype:
        return array
    return array.astype(kind.dtype.numpy) if dtype_of(array.dtype) in FLOATS and kind.dtype in FLOATS else array


def _rounded(array: Any, own: Type, other: Type) -> Any:
    return _of_type(_of_type(array, other), own) if isinstance(own, TensorType) else array


def renamed(results: Mapping[str, Any], pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the results of the second side under the names of the first one."""
    return {name: results[own] for name, own in pairs}
