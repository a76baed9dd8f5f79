"""Bind dimension names: substitute concrete input types, and infer the types of all nodes again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from graphkit.collector import without_gc
from graphkit.errors import InputError, TypeMismatch, did_you_mean
from graphkit.ir import dims
from graphkit.ir.dims import Dim, DimExpr
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import SequenceType, TensorType, Type, same_type
from graphkit.ops import Op
from graphkit.ops._op import number_of
from graphkit.passes.core.match import is_op
from graphkit.passes.core.sweep import rewrite

if TYPE_CHECKING:
    from graphkit.ir.sweeps import NativeSweeps

# Operators whose subgraphs are bound, too.
_BRANCHES = frozenset({"If"})
# The numbers of an operator and of the types of its operands; None for an absent operand.
_Key: TypeAlias = tuple[int | None, ...]


@without_gc
def bind(graph: Graph, shapes: Mapping[str, TensorType | Sequence[Any]]) -> Graph:
    """Replace dimension names by the sizes of concrete inputs, and infer the types of all nodes again.

    `shapes` maps input names to a type or a shape. Inputs that are not in `shapes` keep their types, with the names
    replaced. Nodes whose types do not change are reused. Takes linear time.

    Raises:
        InputError: A name in `shapes` is unknown; an element type, rank or dimension differs from the declared one; or
            two dimensions with the same name differ (the message names both inputs).
        TypeMismatch: Two sizes that must be equal differ. They could not be compared before. The message names the node
            and the types of its operands.
    """
    by_name = dict(zip(graph.input_names, graph.inputs, strict=True))
    given: dict[Value, TensorType] = {}
    for name, spec in shapes.items():
        if name not in by_name:
            raise InputError(f"no input {name!r}{did_you_mean(name, by_name)}")
        declared = by_name[name].tensor
        given[by_name[name]] = spec if isinstance(spec, TensorType) else declared.with_shape(spec)
    bindings = match_shapes([(graph.name_of(v), v.tensor, t) for v, t in given.items()])
    inputs = {v: given.get(v) or substitute(v.type, bindings) for v in graph.inputs}
    return rebind(graph, inputs)


def match_shapes(inputs: Sequence[tuple[str, TensorType, TensorType]]) -> dict[str, Dim]:
    """Return the sizes of dimension names. `inputs` contains (name, declared type, actual type). Raises InputError."""
    bindings: dict[str, Dim] = {}
    origin: dict[str, str] = {}
    later: list[tuple[str, TensorType, TensorType, int]] = []
    for name, declared, actual in inputs:
        if declared.dtype is not actual.dtype:
            raise InputError(f"input {name!r} is {declared}; {actual} given")
        if declared.shape is None or actual.shape is None:
            continue
        if len(declared.shape) != len(actual.shape):
            raise InputError(f"input {name!r} is {declared}, of rank {len(declared.shape)}; {actual} given")
        for axis, (dim, size) in enumerate(zip(declared.shape, actual.shape, strict=True)):
            if not isinstance(dim, DimExpr):
                if not dims.may_equal(dim, size):
                    raise InputError(f"input {name!r} is {declared}; {actual} given: axis {axis} is {size}, not {dim}")
                continue
            symbol = plain_name(dim)
            if symbol is None:
                later.append((name, declared, actual, axis))
            elif symbol not in bindings:
                bindings[symbol], origin[symbol] = size, name
            elif not dims.may_equal(bindings[symbol], size):
                raise InputError(
                    f"dimension {symbol} is {bindings[symbol]} in input {origin[symbol]!r} and {size} in input {name!r}"
                )
    for name, declared, actual, axis in later:
        dim, size = declared.known_shape[axis], actual.known_shape[axis]
        unknown = _linear(dims.substitute(dim, bindings))
        if unknown is not None and not isinstance(size, DimExpr):
            symbol, factor, constant = unknown
            quotient, rest = divmod(size - constant, factor)
            if rest or quotient < 0:
                raise InputError(f"input {name!r} is {declared}; {actual} given: axis {axis} is {size}, not {dim}")
            bindings[symbol], origin[symbol] = quotient, name
        value = dims.substitute(dim, bindings)
        if not dims.may_equal(value, size):
            names = sorted({origin[s] for s in dim.symbols if s in origin} - {name}) if isinstance(dim, DimExpr) else []
            because = f", as {' and '.join(map(repr, names))} {'says' if len(names) == 1 else 'say'}" if names else ""
            raise InputError(
                f"input {name!r} is {declared}; {actual} given: axis {axis} is {size}, not {dim} = {value}{because}"
            )
    return bindings


def substitute(kind: Type, bindings: Mapping[str, Dim]) -> Type:
    """Return a type with dimension names replaced; the same object if it contains none of them."""
    if not isinstance(kind, TensorType):
        element = substitute(kind.element, bindings)
        bound = kind if element is kind.element else kind.with_element(element)
        if isinstance(bound, SequenceType) and isinstance(bound.length, DimExpr):
            length = dims.substitute(bound.length, dict(bindings))
            return bound if length == bound.length else SequenceType(element, length)
        return bound
    if kind.value is None and kind.is_static:
        return kind
    mentioned = [d for d in (*(kind.shape or ()), *(kind.value or ())) if isinstance(d, DimExpr)]
    if not any(s in bindings for d in mentioned for s in d.symbols):
        return kind
    return kind.substitute(dict(bindings))


def rebind(graph: Graph, types: Mapping[Value, Type]) -> Graph:
    """Return the graph with other types of its inputs, and infer all nodes again.

    `types` contains a type for each input. Raises TypeMismatch, which names the node.
    """
    inputs = {v: v.like(type=types[v]) for v in graph.inputs if not same_type(v.type, types[v])}
    known: dict[_Key, tuple[Type, ...]] = {}

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value]:
        operator = _bound_operator(node, operands)
        bound = node.with_operands(operands) if operator is None else node.rebuilt(operands, operator)
        return (_inferred(node, operands, known) if bound is None else bound).outputs

    def advance(sweeps: NativeSweeps, nodes: tuple[Node, ...], position: int, table: dict[Any, Value]) -> int:
        return sweeps.bind_until(nodes, position, _BRANCHES, table, known, _number_of)

    return rewrite(graph, rule, inputs=inputs, advance=advance)


def _number_of(operator: object) -> int | None:
    return number_of(operator) if isinstance(operator, Op) else None


def _inferred(node: Node, operands: Sequence[Value | None], known: dict[_Key, tuple[Type, ...]]) -> Node:
    """Return the node on operands of other types. `known` contains the types that were inferred for equal nodes."""
    key = _key(node, operands)
    if key is None:
        return node.rebuilt(operands)
    types = known.get(key)
    if types is not None:
        return node.with_types(operands, types)
    bound = node.rebuilt(operands)
    found = tuple([v.type for v in bound.outputs])
    if all(isinstance(kind, TensorType) and not kind.symbols and kind.shape is not None for kind in found):
        known[key] = found
    return bound


def _key(node: Node, operands: Sequence[Value | None]) -> _Key | None:
    """Return what the types of the results depend on: the numbers of the operator and of the operands' types.

    Returns None if a type is not that of a tensor of known size, or depends on names. Then inference may return new
    unknown dimensions each time. Also None for operators of control flow, which may do this for any operands.
    """
    if not isinstance(node.op, Op) or (node.op.subgraphs() and not node.op._is_numbered):
        return None
    found: list[int | None] = [number_of(node.op)]
    for value in operands:
        kind = None if value is None else value.type
        if kind is not None and (not isinstance(kind, TensorType) or kind.shape is None or kind.symbols):
            return None
        found.append(None if kind is None else kind.number)
    return tuple(found)


def _bound_operator(node: Node, operands: Sequence[Value | None]) -> Op | None:
    """Return an If operator whose branches have the types of its captures; None if nothing changes.

    The bodies of loops are not changed. Inference handles them itself. Their declared types hold for every iteration,
    and must not be replaced by the types of the first iteration.
    """
    if not is_op(node, "If") or not isinstance(node.op, Op):
        return None
    from graphkit.ops.control.views import IfView

    given = [v.type for v in IfView.of(node, operands).captures]
    branches = {
        key: _bound_branch(inner, dict(zip(inner.inputs, given, strict=True)))
        for key, inner in node.op.subgraphs().items()
    }
    changed = {key: inner for key, inner in branches.items() if inner is not node.op.subgraphs()[key]}
    return node.op.replace(**changed) if changed else None


def _bound_branch(branch: Graph, types: Mapping[Value, Type]) -> Graph:
    """Return the branch with these types of its inputs.

    If inference rejects the types, the branch is returned unchanged. A run that takes it then fails.
    """
    try:
        return rebind(branch, types)
    except TypeMismatch:
        return branch


def plain_name(dim: DimExpr) -> str | None:
    """Return the name if the expression is a single name; else None."""
    if len(dim.terms) == 1:
        monomial, coefficient = dim.terms[0]
        if coefficient == 1 and len(monomial) == 1 and monomial[0][0] == "sym":
            return str(monomial[0][1])
    return None


def _linear(dim: Dim) -> tuple[str, int, int] | None:
    """Return (name, c, k) if the expression is c*name + k; else None."""
    if not isinstance(dim, DimExpr) or len(dim.symbols) != 1:
        return None
    factor = constant = 0
    for monomial, coefficient in dim.terms:
        if monomial == ():
            constant = coefficient
        elif len(monomial) == 1 and monomial[0][0] == "sym":
            factor = coefficient
        else:
            return None
    return next(iter(dim.symbols)), factor, constant
