"""The reference evaluator: runs a graph node by node through `Op.reference`. Slow and simple; it defines results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np

from graphkit.errors import BAD_VALUE, GraphkitError, LimitReached, OutOfMemory, RuntimeFailure, lacks_memory
from graphkit.ir import limits
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.origin import titled
from graphkit.ir.types import HALVES, TensorType, Type, type_of_array
from graphkit.ops._base import Op, operator
from graphkit.ops.tensor.constants import Constant
from graphkit.ops.xp import Namespace, numpy_xp
from graphkit.text import quantity


class Observer(Protocol):
    """Receives the evaluator's events. Subgraphs of a node are reported between its `begins` and `ran`."""

    def enters(self, graph: Graph) -> None: ...

    def begins(self, node: Node) -> None: ...

    def ran(self, node: Node, operands: Sequence[Any], results: Sequence[Any]) -> None: ...


_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)


@contextlib.contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Inside this context, `observer` receives the events of every node that is evaluated."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def evaluate(graph: Graph, inputs: Sequence[Any], xp: Namespace = numpy_xp) -> list[Any]:
    """Return the outputs for one array per graph input."""
    return evaluate_with_updates(graph, inputs, xp)[0]


def evaluate_with_updates(graph: Graph, inputs: Sequence[Any], xp: Namespace = numpy_xp) -> tuple[list[Any], list[Any]]:
    """Return the outputs and, in the order of `graph.updates`, the new values of states."""
    if len(inputs) != len(graph.inputs):
        raise RuntimeFailure(f"{titled(graph)} takes {quantity(len(graph.inputs), 'input')}, {len(inputs)} given")
    table: dict[Value, Any] = dict(zip(graph.inputs, inputs, strict=True))
    observer = _observer.get()
    if observer is not None:
        observer.enters(graph)
    for node, spent in zip(graph.nodes, graph.spent, strict=True):
        operands = [None if v is None else table[v] for v in node.inputs]
        if observer is not None:
            observer.begins(node)
        made = run_node(node, operands, xp)
        if observer is not None:
            observer.ran(node, operands, made)
        table.update(zip(node.outputs, made, strict=True))
        for value in spent:
            del table[value]
    return [table[v] for v in graph.outputs], [table[new] for _, new in graph.updates]


def run_node(node: Node, operands: Sequence[Any], xp: Namespace = numpy_xp) -> tuple[Any, ...]:
    """Run the reference of one node; outputs have the inferred dtypes. float16 and bfloat16 are computed in float32.

    Errors of the reference become a RuntimeFailure that names the node. Before the node runs, OutOfMemory is raised if
    the results would exceed the memory limit (see `graphkit.ir.limits`).
    """
    op = operator(node, Op)
    if isinstance(op, Constant):  # its array exists, and has the node's type
        return (op.reference(xp),)
    admit(node, op, operands)
    if op.reference_in_float32 and _has_halves(node) and not op.subgraphs():
        operands = [_widen(v, x) for v, x in zip(node.inputs, operands, strict=True)]
    try:
        with np.errstate(all="ignore"):
            result = _computed(op, xp, operands)
    except Exception as error:
        raise failure_of(node, error) from error
    outputs = result if isinstance(result, tuple) else (result,)
    if len(outputs) != len(node.outputs):
        raise RuntimeFailure(f"{node.describe()}: {len(outputs)} results for {len(node.outputs)} outputs")
    return tuple(_typed(xp, v, x) for v, x in zip(node.outputs, outputs, strict=True))


def _has_halves(node: Node) -> bool:
    for values in (node.inputs, node.outputs):
        for value in values:
            if value is not None and isinstance(value.type, TensorType) and value.type.dtype in HALVES:
                return True
    return False


def _computed(op: Op, xp: Namespace, operands: Sequence[Any]) -> Any:
    """Call the reference. If it works only with numpy (`on_host`), copy operands to host memory and results back."""
    if not op.on_host or xp.is_numpy:
        return op.reference(xp, *operands)
    return _moved(xp.asarray, op.reference(numpy_xp, *(_moved(xp.to_host, x) for x in operands)))


def _moved(move: Callable[[Any], Any], given: Any) -> Any:
    """Apply `move` to an array, or to all arrays of a sequence. Maps are always in host memory, and stay."""
    if given is None or isinstance(given, dict):
        return given
    return type(given)(_moved(move, x) for x in given) if isinstance(given, (list, tuple)) else move(given)


def admit(node: Node, op: Op, operands: Sequence[Any]) -> None:
    """Raise OutOfMemory if results would exceed the memory limit, LimitReached after the deadline. Both name the node.

    Sizes that are unknown in the node's type are inferred again from the operands. Sizes that remain unknown are not
    counted: they depend on the elements of large operands, and the results are about as large as those.
    """
    try:
        limits.check_time()
        limits.require_memory(_result_bytes(node, op, operands), "its results")
    except (OutOfMemory, LimitReached) as error:
        raise type(error)(f"{node.describe()}: {error}") from None


def _result_bytes(node: Node, op: Op, operands: Sequence[Any]) -> int:
    total, is_open = _static_bytes(v.type for v in node.outputs)
    if is_open and not op.subgraphs() and all(x is None or isinstance(x, np.ndarray) for x in operands):
        # If inference rejects the operands, the reference raises the error.
        with contextlib.suppress(GraphkitError, *BAD_VALUE):
            total, _ = _static_bytes(op.infer_types([None if x is None else type_of_array(x) for x in operands]))
    return total


def _static_bytes(kinds: Iterable[Type]) -> tuple[int, bool]:
    """Return the bytes of the tensors of known size, and whether there are tensors of unknown size."""
    total, is_open = 0, False
    for kind in kinds:
        if isinstance(kind, TensorType):
            if kind.is_static:
                total += kind.nbytes
            else:
                is_open = True
    return total, is_open


def failure_of(node: Node, error: Exception) -> GraphkitError:
    """Return the error to raise for an error in a node, with the node's name.

    graphkit's own errors keep their class; others become OutOfMemory or RuntimeFailure.
    """
    if isinstance(error, GraphkitError):
        return type(error)(f"{node.describe()}: {error}")
    if lacks_memory(error):
        return OutOfMemory(f"{node.describe()}: {str(error) or 'no memory'}")
    return RuntimeFailure(f"{node.describe()}: {type(error).__name__}: {error}")


def _widen(value: Value | None, array: Any) -> Any:
    if value is not None and array is not None and isinstance(value.type, TensorType) and value.type.dtype in HALVES:
        with np.errstate(invalid="ignore"):  # converting a signalling NaN warns
            return array.astype(np.float32)
    return array


def _typed(xp: Namespace, value: Value, result: Any) -> Any:
    if not isinstance(value.type, TensorType):
        return result
    array = xp.asarray(result)
    wanted = value.type.dtype.numpy
    return array if array.dtype == wanted else array.astype(wanted)
