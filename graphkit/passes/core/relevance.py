"""Which graphs a pass may change: conditions that are cheaper than importing and running the pass.

Each function returns False for graphs that the pass does not change, apart from their subgraphs. `CONDITIONS` lists
them by pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import TypeAlias

from graphkit.ir.graph import Graph, Node
from graphkit.ir.types import HALVES, TensorType
from graphkit.passes.core._index import PASSES

Condition: TypeAlias = Callable[[Graph], bool]

# Conditions that look at each node are evaluated for graphs up to this size. For larger graphs, importing a pass takes
# little of the time.
_SMALL = 64

# Operators that change only the shape: the elements stay in the same order.
RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
# The operators that `simplify` looks for, without those whose operands or readers decide.
_SIMPLIFIED = frozenset(PASSES["simplify"][1] or ()) - {*RESHAPES, "Transpose", "Constant"}
# Operators that `simplify` removes if a constant operand does not change the other one.
ARITHMETIC = frozenset({"Mul", "Div", "Add", "Sub"})
# Functions with which formulas of activations multiply.
_GATES = ("Clip", "HardSigmoid", "Sigmoid", "Tanh")
# Matrix products, operators before them that they can contain (transposes and constant factors), and those after them.
PRODUCTS = ("MatMul", "Gemm", "FusedMatMul")
FACTORS = frozenset({"Transpose", "Mul", "Div"})
_FOLLOWING = frozenset(itertools.chain(*PASSES["fuse_matmul"][2]))


def _tensor_types(graph: Graph) -> Collection[TensorType]:
    """Return the types of all tensors in the graph. Many values share one object."""
    by_identity = {id(v.type): v.type for node in graph.nodes for v in node.outputs}
    by_identity.update((id(v.type), v.type) for v in graph.inputs)
    return [kind for kind in by_identity.values() if isinstance(kind, TensorType)]


def _computes_halves(graph: Graph) -> bool:
    return any(kind.dtype in HALVES for kind in graph.cached(_tensor_types))


def _has_unknown_rank(graph: Graph) -> bool:
    return any(kind.shape is None for kind in graph.cached(_tensor_types))


def _has_composite(graph: Graph) -> bool:
    return any(getattr(kind, "composite", False) for kind in {type(node.op) for node in graph.nodes})


def _has_equal_operands(graph: Graph) -> bool:
    """Return whether two nodes have operators of the same name and the same operands, or are equal constants."""
    keys = {(node.op.name, node.inputs) if node.inputs else (node.op, ()) for node in graph.nodes}
    return len(keys) < len(graph.nodes)


def _has_constant_results(graph: Graph) -> bool:
    """Return whether all operands of a node are constants, or inference knows elements of its results."""
    if "If" in graph.operators:
        return True
    for node in graph.nodes:
        if node.op.name == "Constant" and not node.op.domain:
            continue
        for value in node.outputs:
            if getattr(value.type, "value", None) is not None:
                return True
        for operand in node.inputs:
            if operand is not None and (operand.node is None or operand.node.op.name != "Constant"):
                break
        else:
            return True
    return False


def _bounds_or_gates(graph: Graph) -> bool:
    """Return whether the graph contains bounds that are not one Clip, or a product with a gate (see `_GATES`)."""
    if not graph.operators.isdisjoint(("Max", "Min")):
        return True
    for node in graph.nodes:
        if node.op.name in ("Mul", "Div") and _reads(node, _GATES):
            return True
        if node.op.name == "Clip" and (len(node.operands) < 3 or _reads(node, ("Relu",))):
            return True
    return False


def _reads_softmax(graph: Graph) -> bool:
    """Return whether a node reads the result of a Softmax, or the graph contains attention operators."""
    if any("Attention" in name for name in graph.operators):
        return True
    return any(_reads(node, ("Softmax",)) for node in graph.nodes)


def _moves_transposes(graph: Graph) -> bool:
    """Return whether a Transpose, a Reshape or a pointwise node reads the result of a Transpose."""
    for node in graph.nodes:
        is_mover = node.op.name in ("Transpose", "Reshape") or getattr(node.op, "pointwise", False)
        if is_mover and _reads(node, ("Transpose",)):
            return True
    return False


def _follows_products(graph: Graph) -> bool:
    """Return whether a node that `fuse_matmul` can fuse is next to a product."""
    for node in graph.nodes:
        name = node.op.name
        if (name in PRODUCTS and _reads(node, FACTORS)) or (name in _FOLLOWING and _reads(node, PRODUCTS)):
            return True
    return False


def _simplifies(graph: Graph) -> bool:
    """Return whether a rule of `simplify` may apply: to a chain, a constant operand, or other operators."""
    if not graph.operators.isdisjoint(_SIMPLIFIED):
        return True
    for node in graph.nodes:
        if node.op.name == "Transpose":
            if keeps_order(node) or _reads(node, ("Transpose",)):
                return True
        elif node.op.name in RESHAPES:
            if _is_redundant(node):
                return True
        elif node.op.name in ARITHMETIC and _reads(node, ("Constant",)):
            return True
    return False


def _merges_reshapes(graph: Graph) -> bool:
    """Return whether the graph contains a chain of reshapes, a Transpose like a reshape, or a computed target."""
    for node in graph.nodes:
        if (node.op.name in RESHAPES and _is_redundant(node)) or keeps_order(node):
            return True
        if node.op.name == "Reshape" and not node.op.domain and node.operands[1].tensor.constants is None:
            return True
    return False


def keeps_order(node: Node) -> bool:
    """Return whether a node is a Transpose that keeps the order of all axes with more than one element."""
    if node.op.name != "Transpose" or node.op.domain:
        return False
    perm, shape = node.op.attributes().get("perm"), node.operands[0].tensor.shape
    if shape is None:
        return False
    moved = [axis for axis in (range(len(shape))[::-1] if perm is None else perm) if shape[axis] != 1]
    return moved == sorted(moved)


def _is_redundant(node: Node) -> bool:
    """Return whether a reshape reads another one, or keeps the type of its operand."""
    if node.op.domain:
        return False
    return node.operands[0].type == node.output.type or _reads(node, RESHAPES)


def _reads(node: Node, names: Collection[str]) -> bool:
    """Return whether an operand is the result of an operator with one of these names."""
    for value in node.inputs:
        made = None if value is None else value.node
        if made is not None and made.op.name in names:
            return True
    return False


def _has_small_image(graph: Graph) -> bool:
    """Return whether a Conv has an axis that is not certainly large enough for all taps to read data."""
    return any(_exceeds_image(node) for node in graph.nodes if node.op.name == "Conv" and not node.op.domain)


def _exceeds_image(node: Node) -> bool:
    """Return False if each axis contains a whole window, at the first position that reads no padding before it."""
    image, filters = (v.tensor.shape for v in node.operands[:2])
    if image is None or filters is None:
        return True
    given, axes = node.op.attributes(), len(filters) - 2
    strides, dilations = (given.get(name) or (1,) * axes for name in ("strides", "dilations"))
    for size, taps, stride, dilation in zip(image[2:], filters[2:], strides, dilations, strict=True):
        if isinstance(size, int) and isinstance(taps, int) and size >= (taps - 1) * dilation + stride:
            continue
        return True
    return False


def _has_pointwise_nodes(graph: Graph) -> bool:
    """Return whether the graph contains two pointwise nodes or more."""
    return sum(bool(getattr(node.op, "pointwise", False)) for node in graph.nodes) > 1


def _if_small(condition: Condition) -> Condition:
    """Return the condition for small graphs. For larger ones it returns True: the pass decides."""
    return lambda graph: len(graph.nodes) > _SMALL or graph.cached(condition)


# Passes that are not listed may change any graph with their operators.
CONDITIONS: dict[str, Condition] = {
    "widen_halves": _computes_halves,
    "known_ranks": _has_unknown_rank,
    "expand_composites": _has_composite,
    "simplify": _if_small(_simplifies),
    "cse": _if_small(_has_equal_operands),
    "fold": _if_small(_has_constant_results),
    "fuse_attention": _if_small(_reads_softmax),
    "fuse_attention_gradient": _if_small(_reads_softmax),
    "repeat_heads": _if_small(_reads_softmax),
    "eliminate_transpose": _if_small(_moves_transposes),
    "eliminate_reshape": _if_small(_merges_reshapes),
    "fuse_activation": _if_small(_bounds_or_gates),
    "fuse_matmul": _if_small(_follows_products),
    "drop_outer_taps": _if_small(_has_small_image),
    "fuse_pointwise": _if_small(_has_pointwise_nodes),
}
