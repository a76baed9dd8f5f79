"""Type inference through subgraphs: on other operand types, and for loop states that keep their type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TypeAlias

from graphkit.errors import BAD_VALUE, TypeMismatch
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.origin import titled
from graphkit.ir.types import OptionalType, SequenceType, TensorType, Type, same_type
from graphkit.ops.axes import normal_axis
from graphkit.ops.operands import fits
from graphkit.text import quantity


def output_types(graph: Graph, inputs: Sequence[Type]) -> tuple[Type, ...]:
    """Return the types of the graph's outputs for these types of inputs. Raises TypeMismatch that names the node."""
    check_operands(graph, inputs)
    work = _work.get()
    if work is not None:
        return _inferred(graph, inputs, work)
    work = _Work(_WORK + _REPEATS * sum(1 for _ in _nested(graph)))
    token = _work.set(work)
    try:
        return _inferred(graph, inputs, work)
    finally:
        _work.reset(token)


class _Work:
    """Number of nodes whose types may still be inferred."""

    __slots__ = ("left",)

    def __init__(self, left: int):
        self.left = left


# Inference is limited to _WORK + _REPEATS * nodes. Each loop infers its body several times, and so do the loops around
# it. In sound files, a node is inferred a few times per level of nesting; malicious files could need exponential time.
_WORK, _REPEATS = 10_000, 64
_work: ContextVar[_Work | None] = ContextVar("inference of subgraphs", default=None)


def _nested(graph: Graph) -> Iterator[Node]:
    pending = [graph]
    while pending:
        for node in pending.pop().nodes:
            yield node
            pending.extend(node.op.subgraphs().values())


def _inferred(graph: Graph, inputs: Sequence[Type], work: _Work) -> tuple[Type, ...]:
    table: dict[Value, Type] = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        operands = [None if v is None else table[v] for v in node.inputs]
        if all(v is None or same_type(v.type, table[v]) for v in node.inputs):
            found: Sequence[Type] = [v.type for v in node.outputs]
        else:
            work.left -= 1
            if work.left < 0:
                raise TypeMismatch(f"{node.describe()}: loops are nested too deeply for their types to be found")
            try:
                found = node.op.infer_types(operands)
            except TypeMismatch as error:
                raise TypeMismatch(f"{node.describe()}, in a subgraph: {error}") from None
            except (*BAD_VALUE, AttributeError) as error:
                where = f"{node.describe()}, in a subgraph"
                raise TypeMismatch(f"{where}: operands and attributes do not fit: {error}") from error
        table.update(zip(node.outputs, found, strict=True))
    return tuple(table[v] for v in graph.outputs)


def check_operands(graph: Graph, inputs: Sequence[Type]) -> None:
    """Raise TypeMismatch if the number, kinds or element types of the operands are not those of the graph's inputs."""
    if len(inputs) != len(graph.inputs):
        raise TypeMismatch(f"{titled(graph)} takes {quantity(len(graph.inputs), 'operand')}, {len(inputs)} given")
    for value, given in zip(graph.inputs, inputs, strict=True):
        if not _compatible(value.type, given):
            raise TypeMismatch(f"operand {given} does not fit the subgraph's input {value}")


def _compatible(declared: Type, given: Type) -> bool:
    """Return whether a value of type `given` fits the input `declared`. Compares kinds and dtypes, not shapes."""
    if isinstance(declared, TensorType) and isinstance(given, TensorType):
        return declared.dtype is given.dtype
    if isinstance(declared, OptionalType):
        return _compatible(declared.element, given.element if isinstance(given, OptionalType) else given)
    if isinstance(declared, SequenceType) and isinstance(given, SequenceType):
        return _compatible(declared.element, given.element)
    return False


def without_value(kind: Type) -> Type:
    """Return the type without known elements and lengths.

    Length 0 is kept, because the element type of an empty sequence is ignored.
    """
    if isinstance(kind, TensorType):
        return TensorType(kind.dtype, kind.shape)
    if isinstance(kind, SequenceType):
        return SequenceType(kind.element, 0 if kind.length == 0 else None)
    return kind


Refusal: TypeAlias = Callable[[int, Type, Type], Exception]


def _refused(position: int, before: Type, after: Type) -> Exception:
    return TypeMismatch(
        f"a loop state is {before} before an iteration, but {after} after it; the body must keep its element type"
    )


class StableStates:
    """Find the most precise types of loop states that an iteration keeps.

    Each trial replaces sizes that change by unknown ones.

    `types` are the candidates, at first those of the initial states without known elements. Infer the iteration on
    them, and pass the resulting types to `hold`. The search ends, because each trial but the last makes a size or a
    rank unknown. From trial number `trials` on, a tensor that still changes loses its rank at once, so that few trials
    suffice. `refusal(position, before, after)` is raised for a state whose element type or kind changes.
    """

    def __init__(self, initial: Sequence[Type], *, refusal: Refusal = _refused, trials: int | None = None):
        self.types: tuple[Type, ...] = tuple(map(without_value, initial))
        self._refusal = refusal
        self._left = trials
        # Sizes that are already unknown: they cover every size after an iteration.
        self._unknown: set[Dim] = set()

    def hold(self, after: Sequence[Type]) -> bool:
        """Return whether `types` cover the types `after` an iteration. If they do not, widen `types`."""
        if self._left is not None:
            self._left -= 1
        pairs = enumerate(zip(self.types, after, strict=True))
        widened = tuple(self._widened(i, before, made) for i, (before, made) in pairs)
        stable = all(map(same_type, widened, self.types))
        self.types = widened
        return stable

    def _widened(self, position: int, before: Type, after: Type) -> Type:
        try:
            wide = _widen(before, after, self._unknown)
        except TypeMismatch:
            raise self._refusal(position, before, after) from None
        if wide != before and self._left is not None and self._left <= 0 and isinstance(wide, TensorType):
            return TensorType(wide.dtype)
        return wide


def stable_types(initial: Sequence[Type], step: Callable[[Sequence[Type]], Sequence[Type]]) -> tuple[Type, ...]:
    """Return the most precise types of loop states that an iteration keeps. step: returns the types after an iteration.

    Raises TypeMismatch for a state whose element type or kind changes.
    """
    states = StableStates(initial)
    while not states.hold(step(states.types)):
        pass
    return states.types


def _widen(before: Type, after: Type, unknown: set[Dim]) -> Type:
    """Return a type that covers both. Dimensions in `unknown` cover any size. Raises TypeMismatch if there is none."""
    if isinstance(before, TensorType) and isinstance(after, TensorType) and before.dtype is after.dtype:
        if before.shape is None or after.shape is None or len(before.shape) != len(after.shape):
            return TensorType(before.dtype)
        shape: list[Dim] = []
        for a, b in zip(before.shape, after.shape, strict=True):
            if a != b and a not in unknown:
                a = dims.fresh()
                unknown.add(a)
            shape.append(a)
        return TensorType(before.dtype, shape)
    if isinstance(before, SequenceType) and isinstance(after, SequenceType):
        if before.length == 0 or after.length == 0:
            # The shapes in the element type of an empty sequence are ignored; the rest must match.
            _widen(before.element, after.element, set())
            element = (after if before.length == 0 else before).element
            return SequenceType(element, 0 if before.length == after.length else None)
        return SequenceType(_widen(before.element, after.element, unknown))
    if isinstance(before, OptionalType) or isinstance(after, OptionalType):
        held, given = (t.element if isinstance(t, OptionalType) else t for t in (before, after))
        return OptionalType(_widen(held, given, unknown))
    raise TypeMismatch(f"no type covers both {before} and {after}")


def may_keep(before: Type, after: Type) -> bool:
    """Return whether a state with these types before and after an iteration can keep its type for some sizes."""
    if isinstance(before, TensorType) and isinstance(after, TensorType):
        return before.dtype is after.dtype and fits(before.shape, after.shape)
    return before == after


def after_loop(states: Sequence[Type], initial: Sequence[Type]) -> tuple[Type, ...]:
    """Types of the final values. Unknown dimensions get other names than they have inside an iteration."""
    known = {d for t in initial for d in _dims_of(t)}
    renamed: dict[str, Dim] = {}
    for kind in states:
        for dim in _dims_of(kind):
            if dim not in known and isinstance(dim, dims.DimExpr):
                renamed.update((s, dims.fresh()) for s in dim.symbols if s.startswith("?") and s not in renamed)
    return tuple(_substituted(t, renamed) for t in states)


def _dims_of(kind: Type) -> tuple[Dim, ...]:
    return kind.shape or () if isinstance(kind, TensorType) else _dims_of(kind.element)


def _substituted(kind: Type, bindings: dict[str, Dim]) -> Type:
    if isinstance(kind, TensorType):
        return kind.substitute(bindings) if bindings else kind
    return kind.with_element(_substituted(kind.element, bindings))


def stacked_type(kind: Type, axis: int, count: Dim) -> Type:
    """Return the type of one scan output: `count` tensors of type `kind` along a new axis.

    If `kind` is a sequence or an optional, the result is a sequence of them. Gradients need this; files do not contain
    it.
    """
    if not isinstance(kind, TensorType):
        return SequenceType(without_value(kind), count)
    if kind.shape is None:
        return TensorType(kind.dtype)
    place = normal_axis(axis, len(kind.shape) + 1)
    return TensorType(kind.dtype, (*kind.shape[:place], count, *kind.shape[place:]))
