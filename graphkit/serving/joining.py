"""Decide whether requests to a model may share a run: each row must be independent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import numpy as np

from graphkit.checks.comparison import compare, flattened
from graphkit.checks.inputs import concrete_shapes, make_feeds
from graphkit.checks.noise import EPSILON
from graphkit.errors import GraphkitError
from graphkit.executor.lower.batch import reads_shapes_alone
from graphkit.executor.lower.independence import rows_are_independent
from graphkit.ir.dims import DimExpr, symbol
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, MapType, SequenceType, TensorType, Type, dtype_of
from graphkit.model import Model
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.bind import bind
from graphkit.passes.core.sweep import run_passes

# Computes outputs by name from inputs by name.
Run: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]

# Stands for the first axis of all inputs during type inference. It contains spaces, so no file can use it.
_ROWS = "rows of a request"
# Rows of the runs that are compared: the first run has both parts.
_PARTS = (1, 2)
# Scales of the floats beside a row that must not change: the first row, the second one, ...
_SCALES = (1.0, 64.0, 0.0)
# Rounding of runs with other numbers of rows, in epsilons of the type: float16 and bfloat16; float32 and float64.
_EPSILON = {**EPSILON, DType.FLOAT64: 2.0**-52}
_HALF, _HALF_EPSILONS, _EPSILONS = 1e-4, 4.0, 256.0


def _compiled(model: Model) -> Run:
    return model.compile(threads=1).run


def why_not_joined(model: Model, run: Run, compiled: Callable[[Model], Run] = _compiled) -> str | None:
    """Return why requests to a model cannot share a run; None if they can.

    The first axis of every input must be symbolic, and every output must have the same first axis. If the operators do
    not prove that rows are independent, no operator may compute a value without batch axis from the rows, and the model
    runs on random inputs: two requests together and one by one, and a row beside several other ones. A row must keep
    the bits of all floats on the way to the outputs.

    Args:
        model: The model.
        run: Computes its outputs by name.
        compiled: Compiles a model that computes the floats on the way.
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
    if (repeated := _repeated(model)) is not None:
        return repeated
    try:
        graph = _with_rows(model)
    except GraphkitError as error:
        return f"its inputs do not share one batch axis: {error}"
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        if not _follows(value.type):
            return f"output {name!r} is {model.output_types[name]}: its first axis is not the batch of the inputs"
    if rows_are_independent(run_passes(graph, CLEANUP), _ROWS):
        return None
    if (reduced := _reduced(graph)) is not None:
        return f"its rows depend on each other: {reduced}"
    return _why_rows_depend(model, graph, run, compiled)


def _repeated(model: Model) -> str | None:
    """Return which input has the number of rows along another axis, too. Joined requests would contradict it."""
    shapes = {n: k.known_shape for n, k in model.input_types.items() if isinstance(k, TensorType)}
    rows = {name for first, *_ in shapes.values() for name in _symbols(first)}
    for name, (_, *others) in shapes.items():
        if found := sorted(rows & {symbol for size in others for symbol in _symbols(size)}):
            return f"input {name!r} is {model.input_types[name]}: {found[0]!r} is the batch axis of an input, too"
    return None


def _symbols(size: int | DimExpr) -> Collection[str]:
    return size.symbols if isinstance(size, DimExpr) else ()


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


def _reduced(graph: Graph) -> str | None:
    """Return a value that is computed from all rows together, such as a mean or the scale of a quantisation.

    Its operands have the axis of the batch, and it does not. Runs on random inputs may hide such a value: rounding to
    integers or to float16 covers its effect.
    """
    examples = {value for value in graph.inputs if _has_rows(value.type)}
    for node in graph.nodes:
        for inner in node.op.subgraphs().values():
            if (found := _reduced(inner)) is not None:
                return found
        if reads_shapes_alone(node, examples) or not any(value in examples for value in node.operands):
            continue
        for value in node.outputs:
            if isinstance(value.type, TensorType) and value.type.shape is not None and not _has_rows(value.type):
                return f"{node.op.name} {graph.node_name(node)!r} computes {value.type} from all of its rows"
        examples.update(node.outputs)
    return None


def _has_rows(kind: Type) -> bool:
    """Return whether an axis depends on the number of rows."""
    shape = kind.shape if isinstance(kind, TensorType) else None
    return shape is not None and any(isinstance(size, DimExpr) and _ROWS in size.symbols for size in shape)


def _why_rows_depend(model: Model, graph: Graph, run: Run, compiled: Callable[[Model], Run]) -> str | None:
    """Run random requests, alone and with others. Return what differs."""
    try:
        shapes, _ = concrete_shapes(model, None, sum(_PARTS))
        if any(shape[0] != sum(_PARTS) for shape in shapes.values()):
            return "its inputs have different batch axes"
        between = compiled(_between(model, graph))
        try:
            found = _compared(model, shapes, run, between, small=False)
        except GraphkitError:  # masks, and numbers of positions, may need smaller integers
            found = _compared(model, shapes, run, between, small=True)
    except (GraphkitError, TypeError) as error:
        return f"it does not run on random requests, so its rows may depend on each other: {error}"
    return f"random requests do not show that its rows are independent: {found}" if found else None


def _between(model: Model, graph: Graph) -> Model:
    """Return a model that computes all tensors of the outputs, and floats on the way to them, with a row per request.

    An integer or a truth value may hide that a float differs.
    """
    outputs = set(graph.outputs)
    wanted: dict[str, Value] = {
        f"value {graph.name_of(value)}": value
        for node in graph.nodes
        for value in node.outputs
        if isinstance(value.type, TensorType) and value.type.dtype.is_float and value not in outputs
    } | dict(zip(graph.output_names, graph.outputs, strict=True))
    kept = {
        name: value for name, value in wanted.items() if isinstance(value.type, TensorType) and _follows(value.type)
    }
    return Model.from_graph(graph.replace(outputs=list(kept.values()), output_names=list(kept)), model.params.entries())


def _compared(model: Model, shapes: Mapping[str, Any], run: Run, between: Run, *, small: bool) -> str:
    """Compare the rows of runs on several random requests; return what differs, or "". small: integers are 0 or 1."""

    def feeds(seed: int) -> dict[str, np.ndarray]:
        made = make_feeds(model, shapes=shapes, seed=seed).arrays
        return {name: array % 2 if small and array.dtype.kind in "iu" else array for name, array in made.items()}

    given = feeds(0)
    together = run(given)
    start = 0
    for size in _PARTS:
        part = slice(start, start + size)
        alone = run({name: array[part] for name, array in given.items()})
        if found := _difference({name: array[part] for name, array in together.items()}, alone):
            return found
        start += size
    values = between(given)
    for row, scale in enumerate(_SCALES):
        others = {name: _with_row(array, given[name], row, scale) for name, array in feeds(row + 1).items()}
        changed = between(others)
        for name, array in values.items():
            if not _same(array[row], changed[name][row]):
                return f"a row of {name!r} changes with the other rows"
    return ""


def _with_row(array: np.ndarray, given: np.ndarray, row: int, scale: float) -> np.ndarray:
    """Return other rows around a row of a request. scale: of their floats."""
    found = array * array.dtype.type(scale) if dtype_of(array.dtype).is_float else array.copy()
    found[row] = given[row]
    return found


def _same(first: Any, second: Any) -> bool:
    """Return whether two values have the same bits, because runs of one shape use the same kernels."""
    a, b = np.asarray(first), np.asarray(second)
    if a.dtype.kind == "O" or b.dtype.kind == "O":
        return np.array_equal(a, b)
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def _difference(part: Mapping[str, Any], alone: Mapping[str, Any]) -> str:
    """Return which output differs by more than rounding; "" if none does.

    Rounding is compared with the largest element, because sums of other blocks round differently where terms cancel.
    """
    for (name, ours), reference in zip(part.items(), alone.values(), strict=True):
        for label, a, b in flattened(name, ours, reference):
            epsilon = _EPSILON.get(dtype_of(np.asarray(b).dtype), 0.0)
            known = np.abs(b[np.isfinite(b)]) if epsilon and np.asarray(b).size else np.zeros(0)
            rtol = epsilon * (_HALF_EPSILONS if epsilon > _HALF else _EPSILONS)
            report = compare(label, a, b, rtol=rtol, atol=rtol * float(known.max(initial=0.0)))
            if not report.passed or report.untested:
                why = report.untested or "it differs from that of a run without other requests"
                return f"output {label!r}: {why}"
    return ""
