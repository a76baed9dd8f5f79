"""Merge and cancel transposes. Move them behind pointwise nodes, so that more of them can be merged."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import F
from graphkit.ops.tensor.layout import Transpose
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import first, ints, is_op, permutation, producer
from graphkit.passes.core.sweep import Readers, fuse


def _transposed_twice(graph: Graph) -> Node | None:
    for node in graph.nodes:
        inner = producer(node.inputs[0], "Transpose") if is_op(node, "Transpose") else None
        if inner is not None and permutation(inner) is not None:
            return node
    return None


@graph_pass(
    requires=[Property.LAYER_NORMS_FUSED, Property.SCANS_ALONG_FIRST_AXIS],
    ensures=[Property.TRANSPOSES_MERGED],
    check=_transposed_twice,
    at=["Transpose"],
)
def eliminate_transpose(graph: Graph) -> Graph:
    """Move transposes from the operands of pointwise nodes to their results, and merge transposes of transposes.

    A transpose is moved only if all transposed operands have the same permutation and no other readers. The other
    operands must be scalars, or vectors along the last axis.

    Reshape(Transpose(Reshape(x))) is simplified, too, if the reshapes only flatten and restore the axes before the last
    two, and the transpose exchanges the last two. Takes linear time.
    """
    return fuse(graph, _rule, at=(), after=("Transpose",))


def _rule(node: Node, readers: Readers) -> Sequence[Value] | None:
    if is_op(node, "Transpose"):
        return _merged(node)
    if is_op(node, "Reshape"):
        return _unflattened(node)
    if getattr(node.op, "pointwise", False) and len(node.outputs) == 1:
        return _moved_behind(node, readers)
    return None


def _merged(node: Node) -> Sequence[Value] | None:
    outer, inner = permutation(node), producer(node.inputs[0], "Transpose")
    before = None if inner is None else permutation(inner)
    if inner is None or before is None or outer is None:
        return None
    joint = tuple(before[axis] for axis in outer)
    if joint == tuple(range(len(joint))):
        return (first(inner),)
    return _transposed(first(inner), joint, node)


def _unflattened(node: Node) -> Sequence[Value] | None:
    """Simplify Reshape(Transpose(Reshape(x))) to Transpose(x); None if that is not possible.

    The reshapes must only flatten and restore the axes before the last two.
    """
    exchange = producer(node.inputs[0], "Transpose")
    flattening = None if exchange is None else producer(exchange.inputs[0], "Reshape")
    if exchange is None or flattening is None or permutation(exchange) != (0, 2, 1):
        return None
    x = first(flattening)
    shape, flat, result = (v.tensor.shape for v in (x, flattening.output, node.output))
    if shape is None or flat is None or result is None or len(shape) < 3 or shape[-2:] != flat[-2:]:
        return None
    if result != (*shape[:-2], shape[-1], shape[-2]):
        return None
    lead = len(shape) - 2
    return _merged_into(x, (*range(lead), lead + 1, lead), node, exchange.name)


def _merged_into(x: Value, perm: Sequence[int], like: Node, name: str) -> Sequence[Value]:
    """Return x transposed by `perm`. If x is the result of a Transpose, merge both into one."""
    inner = producer(x, "Transpose")
    before = None if inner is None else permutation(inner)
    if inner is None or before is None:
        return _transposed(x, perm, like, name)
    return _transposed(first(inner), tuple(before[axis] for axis in perm), like, name)


def _transposed(x: Value, perm: Sequence[int], like: Node, name: str = "") -> Sequence[Value]:
    """Return x transposed by `perm`, which replaces the output of `like`."""
    names = [v.name for v in like.outputs]
    return Node(Transpose(perm=perm), (x,), name or like.name, like.meta, output_names=names).outputs


def _moved_behind(node: Node, readers: Readers) -> Sequence[Value] | None:
    perm: tuple[int, ...] | None = None
    transpose: Node | None = None
    for value in node.operands:
        found = producer(value, "Transpose")
        if found is None:
            continue
        its = permutation(found)
        if its is None or not readers.has_one_use(value) or perm not in (None, its):
            return None
        perm, transpose = its, found
    if perm is None or transpose is None or node.output.rank != len(perm):
        return None
    sources = [None if v is None else _untransposed(v, perm, node) for v in node.inputs]
    if any(v is not None and source is None for v, source in zip(node.inputs, sources, strict=True)):
        return None
    moved = Node(node.op, sources, node.name, node.meta)
    return _transposed(moved.output, perm, node, transpose.name)


def _untransposed(value: Value, perm: tuple[int, ...], node: Node) -> Value | None:
    """Return the operand that corresponds to `value` if the transpose comes after the pointwise node; None if there is
    none.
    """
    found = producer(value, "Transpose")
    if found is not None:
        return first(found)
    if value.shape in ((), (1,)):
        return value
    if value.rank != 1 or node.op.name == "Clip":
        return None
    behind = len(perm) - 1 - perm[-1]
    column: Value = F.unsqueeze(value, ints(*range(1, 1 + behind))) if behind else value
    return column
