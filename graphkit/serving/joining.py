"""Decide whether requests to a model may share a run: each row must be independent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from graphkit.checks.comparison import compare, flattened
from graphkit.checks.inputs import concrete_shapes, make_feeds
from graphkit.checks.lower_precision import TOLERANCES
from graphkit.errors import GraphkitError
from graphkit.executor.lower.batch import batch_of
from graphkit.ir.dims import DimExpr, symbol
from graphkit.ir.graph import Graph
from graphkit.ir.types import MapType, SequenceType, TensorType, Type, dtype_of
from graphkit.model import Model
from graphkit.passes.core.bind import bind

# Computes outputs by name from inputs by name.
Run: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]

# The name of the first axis of all inputs while types are inferred. No file has it, because it is no identifier.
_ROWS = "rows of a request"
# Rows of the runs that are compared: the first run has both parts.
_PARTS = (1, 2)


def why_not_joined(model: Model, run: Run) -> str | None:
    """Return why requests to a model cannot share a run; None if they can.

    The first axis of every input must be symbolic, and every output must have the same first axis. If the operators do
    not prove that rows are independent, the model runs on random inputs: two requests together, and one by one.

    Args:
        model: The model.
        run: Computes its outputs by name.
    """
    if model.graph.updates:
        return "it keeps states between runs"
    for name, kind in model.input_types.items():
        if not isinstance(kind, TensorType) or not kind.shape:
            return f"input {name!r} is {kind} and has no batch axis"
        if not isinstance(kind.shape[0], DimExpr):
            return f"input {name!r} is {kind}: its first axis is fixed"
    if not model.inputs:
        return "it has no inputs"
    try:
        graph = _with_rows(model)
    except GraphkitError as error:
        return f"its inputs do not share one batch axis: {error}"
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        if not _follows(value.type):
            return f"output {name!r} is {model.output_types[name]}: its first axis is not the batch of the inputs"
    others = [place for place, value in enumerate(graph.inputs) if value.role != "data"]
    return None if batch_of(graph, others) is not None else _why_rows_depend(model, run)


def _with_rows(model: Model) -> Graph:
    """Return the graph with one symbol for the first axis of all inputs."""
    rows = symbol(_ROWS)
    kinds = {n: k for n, k in model.input_types.items() if isinstance(k, TensorType) and k.shape}
    return bind(model.graph, {n: TensorType(k.dtype, [rows, *k.known_shape[1:]]) for n, k in kinds.items()})


def _follows(kind: Type) -> bool:
    """Return whether the first axis, and no other one, is that of the inputs. Maps: one per row, checked by a run."""
    if isinstance(kind, SequenceType) and isinstance(kind.element, MapType):
        return True
    if not isinstance(kind, TensorType) or not kind.shape or kind.shape[0] != symbol(_ROWS):
        return False
    return not any(isinstance(size, DimExpr) and _ROWS in size.symbols for size in kind.shape[1:])


def _why_rows_depend(model: Model, run: Run) -> str | None:
    """Compare a run of two random requests together with a run of each. Return what differs."""
    total = sum(_PARTS)
    try:
        shapes, _ = concrete_shapes(model, None, total)
        feeds = make_feeds(model, shapes=shapes).arrays
        if any(len(array) != total for array in feeds.values()):
            return "its inputs have different batch axes"
        try:
            together = run(feeds)
        except GraphkitError:  # masks, and numbers of positions, may need smaller integers
            feeds = {name: array % 2 if array.dtype.kind in "iu" else array for name, array in feeds.items()}
            together = run(feeds)
        start = 0
        for size in _PARTS:
            part = slice(start, start + size)
            alone = run({name: array[part] for name, array in feeds.items()})
            if found := _difference({name: array[part] for name, array in together.items()}, alone):
                return f"random requests do not show that its rows are independent: {found}"
            start += size
    except (GraphkitError, TypeError) as error:
        return f"it does not run on random requests, so its rows may depend on each other: {error}"
    return None


def _difference(part: Mapping[str, Any], alone: Mapping[str, Any]) -> str:
    """Return which output differs by more than rounding; "" if none does.

    Rounding is compared with the largest element, because sums of other blocks round differently where terms cancel.
    """
    for (name, ours), reference in zip(part.items(), alone.values(), strict=True):
        for label, a, b in flattened(name, ours, reference):
            rtol, atol = TOLERANCES.get(dtype_of(np.asarray(b).dtype), (0.0, 0.0))
            known = np.abs(b[np.isfinite(b)]) if rtol and np.asarray(b).size else np.zeros(0)
            report = compare(label, a, b, atol=max(atol, rtol * float(known.max(initial=0.0))))
            if not report.passed or report.untested:
                why = report.untested or "it differs from that of a run without other requests"
                return f"output {label!r}: {why}"
    return ""
