"""Remove nodes that return one of their operands unchanged, and merge chains of casts, transposes, reshapes, slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from graphkit.ir.types import DType, broadcast_shapes
from graphkit.onnx_io.editing.document import Node
from graphkit.onnx_io.editing.rules import Round, const_all, loses_other_outputs, reshape_target
from graphkit.onnx_io.tensors import to_array

# Returns the name of the operand that a node returns unchanged; "" if there is none.
_Rule: TypeAlias = Callable[[Round, Node], str]
# Changes a node so that it reads the operand of the node before it.
_Merge: TypeAlias = Callable[[Round, Node, Node], bool]

# Conversions that keep every value.
_EXACT = {
    DType.BFLOAT16: (DType.FLOAT32, DType.FLOAT64),
    DType.FLOAT16: (DType.FLOAT32, DType.FLOAT64),
    DType.FLOAT32: (DType.FLOAT64,),
    DType.BOOL: (DType.UINT8, DType.INT8, DType.INT32, DType.INT64),
    DType.INT32: (DType.INT64, DType.FLOAT64),
}
# The result depends on the elements and the target shape only.
_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")

_MAX_CHAIN = 8

# Operand numbers that may be the neutral one, and its value.
_NEUTRAL = {"Add": ((0, 1), 0), "Mul": ((0, 1), 1), "Sub": ((1,), 0), "Div": ((1,), 1), "Pow": ((1,), 1)}


def identities(round: Round) -> None:
    """Remove nodes that do nothing."""
    for scope in round.each_scope():
        kept = []
        for node in scope.nodes:
            rule = _RULES.get(node.kind)
            source = "" if rule is None or loses_other_outputs(node, round.uses) else rule(round, node)
            if not source or not round.replace(scope, node.outputs[0], source):
                kept.append(node)
        scope.nodes = kept


def _first(round: Round, node: Node) -> str:
    return node.inputs[0]


def _same_type(round: Round, node: Node) -> str:
    return node.inputs[0] if round.same(node.inputs[0], node.outputs[0]) else ""


def _reshape(round: Round, node: Node) -> str:
    """A reshape, or several in a row, whose result has the type of the first operand."""
    source = node.inputs[0]
    for _ in range(_MAX_CHAIN):
        if round.same(source, node.outputs[0]):
            return source
        first = round.producer(source, *_RESHAPES)
        if first is None:
            break
        source = first.inputs[0]
    return ""


def _dropout(round: Round, node: Node) -> str:
    """Dropout at inference. Before opset 7, an attribute said so."""
    if round.document.opset < 7:
        return node.inputs[0] if node.attribute("is_test", 0) else ""
    training = round.ints(node.inputs[2]) if node.input(2) else (0,)
    return node.inputs[0] if training == (0,) else ""


def _transpose(round: Round, node: Node) -> str:
    return _same_type(round, node) if _moves_only_ones(round, node) else ""


def _moves_only_ones(round: Round, node: Node) -> bool:
    """Whether a transposition moves only axes of size 1, so that it is a reshape."""
    kind = round.type(node.inputs[0])
    if kind is None:
        return False
    perm = node.attribute("perm") or list(range(len(kind.known_shape)))[::-1]
    moved = [axis for axis in perm if kind.known_shape[axis] != 1]
    return moved == sorted(moved)


def _slice(round: Round, node: Node) -> str:
    if node.input(4):
        steps = round.ints(node.inputs[4])
        if steps is None or any(step != 1 for step in steps):
            return ""
    return _same_type(round, node)


def _pad(round: Round, node: Node) -> str:
    pads = round.ints(node.inputs[1]) if node.input(1) else node.attribute("pads", node.attribute("paddings"))
    return node.inputs[0] if pads and not any(pads) else ""


def _only(round: Round, node: Node) -> str:
    return node.inputs[0] if len(node.inputs) == 1 else ""


def _split(round: Round, node: Node) -> str:
    return _same_type(round, node) if sum(map(bool, node.outputs)) == 1 else ""


def _neutral(round: Round, node: Node) -> str:
    places, value = _NEUTRAL[node.kind]
    return _beside(round, node, places, value) or (_negated_twice(round, node) if node.kind == "Mul" else "")


def _beside(round: Round, node: Node, places: tuple[int, ...], value: int) -> str:
    """The other operand, if one operand is the constant `value` and does not change the shape."""
    for place in places:
        other, array = node.inputs[1 - place], round.array(node.inputs[place])
        if array is None or not const_all(array, value):
            continue
        kind = round.type(other)
        fits = array.size == 1 and (array.ndim == 0 or (kind is not None and array.ndim <= len(kind.known_shape)))
        if fits or round.same(other, node.outputs[0]):
            return other
    return ""


def _negated_twice(round: Round, node: Node) -> str:
    """The operand of two nodes in a row, Neg or products with -1, which change its sign twice."""
    once = _negated(round, node)
    inner = round.producer(once, "Neg", "Mul") if once else None
    return "" if inner is None else _negated(round, inner)


def _negated(round: Round, node: Node) -> str:
    return node.inputs[0] if node.kind == "Neg" else _beside(round, node, (0, 1), -1)


def _where(round: Round, node: Node) -> str:
    condition = round.array(node.inputs[0])
    if condition is None or not condition.size or condition.any() != condition.all():
        return ""
    chosen = node.inputs[1 if condition.all() else 2]
    return chosen if round.same(chosen, node.outputs[0]) else ""


def _resize(round: Round, node: Node) -> str:
    """Resize and Upsample by 1 in each dimension."""
    if node.attribute("coordinate_transformation_mode", b"") == b"tf_crop_and_resize":
        return ""
    place = {"Upsample": 1, "Resize": 1 if round.document.opset < 11 else 2}[node.kind]
    scales = round.array(node.input(place)) if node.input(place) else node.attribute("scales")
    if scales is None or not np.size(scales) or not np.all(np.asarray(scales) == 1):
        return ""
    return _same_type(round, node)


_RULES: Mapping[str, _Rule] = {
    "Identity": _first,
    "Dropout": _dropout,
    "Cast": _same_type,
    "CastLike": _same_type,
    "Expand": _same_type,
    "Squeeze": _reshape,
    "Unsqueeze": _reshape,
    "Flatten": _reshape,
    "Reshape": _reshape,
    "Tile": _same_type,
    "Transpose": _transpose,
    "Slice": _slice,
    "Pad": _pad,
    "Concat": _only,
    "Sum": _only,
    "Max": _only,
    "Min": _only,
    "Mean": _only,
    "Split": _split,
    "Where": _where,
    "Resize": _resize,
    "Upsample": _resize,
    **dict.fromkeys(_NEUTRAL, _neutral),
    "Neg": _negated_twice,
}


def chains(round: Round) -> None:
    """Merge two consecutive nodes. Other nodes may read the first one, too."""
    for scope in round.each_scope():
        for node in scope.nodes:
            merge = _MERGES.get(node.kind)
            if merge is None or not node.inputs:
                continue
            first = round.producers.get(round.input(node, 0))
            if first is not None and merge(round, first, node):
                round.changes += 1


def _read_before(round: Round, first: Node, second: Node) -> bool:
    """Let the second node read the operand of the first one."""
    second.inputs[0] = first.inputs[0]
    return True


def _merge_casts(round: Round, first: Node, second: Node) -> bool:
    source, between = round.type(first.inputs[0]), round.type(first.outputs[0])
    if first.kind != "Cast" or source is None or between is None:
        return False
    return between.dtype in _EXACT.get(source.dtype, ()) and _read_before(round, first, second)


def _merge_transposes(round: Round, first: Node, second: Node) -> bool:
    kind = round.type(first.outputs[0])
    if first.kind in _RESHAPES and _moves_only_ones(round, second):
        return _becomes_reshape(round, first, second)
    if first.kind != "Transpose" or kind is None:
        return False
    reverse = list(range(len(kind.known_shape)))[::-1]
    before, after = first.attribute("perm") or reverse, second.attribute("perm") or reverse
    second.set_attribute("perm", [before[axis] for axis in after])
    return _read_before(round, first, second)


def _merge_reshapes(round: Round, first: Node, second: Node) -> bool:
    """A 0 in the target of a Reshape copies a size of the operand, so it must have the same size in both."""
    if first.kind not in _RESHAPES and not (first.kind == "Transpose" and _moves_only_ones(round, first)):
        return False
    if second.kind != "Reshape" or round.document.opset < 5:
        return _becomes_reshape(round, first, second)
    target = round.ints(second.inputs[1])
    before, between = round.type(first.inputs[0]), round.type(first.outputs[0])
    if target is None or second.inputs[1] not in round.document.initializers or before is None or between is None:
        return False
    if not second.attribute("allowzero", 0):
        old, new = between.known_shape, before.known_shape
        for axis, size in enumerate(target):
            if size == 0 and not (axis < min(len(old), len(new)) and old[axis] == new[axis]):
                return False
    return _read_before(round, first, second)


def _becomes_reshape(round: Round, first: Node, second: Node) -> bool:
    """Two reshapes become one Reshape if its target is known except for one size, or for sizes that stay."""
    document = round.document
    before, after = round.type(first.inputs[0]), round.type(second.outputs[0])
    if document.opset < 5 or before is None or after is None or round.uses[first.outputs[0]] != 1:
        return False
    target = reshape_target(before.known_shape, after.known_shape)
    if target is None:
        return False
    del second.proto.attribute[:]
    second.proto.op_type = second.kind = "Reshape"
    second.inputs = [first.inputs[0], document.add(np.array(target, np.int64), f"{second.outputs[0]}_shape")]
    return True


def _merge_slices(round: Round, first: Node, second: Node) -> bool:
    """Slices of different axes become one. Starts, ends, axes and steps must be constants."""
    if first.kind != "Slice" or round.document.opset < 10 or round.uses[first.outputs[0]] != 1:
        return False
    kind = round.type(first.inputs[0])
    parts = [_bounds(round, node) for node in (first, second)]
    if kind is None or parts[0] is None or parts[1] is None:
        return False
    rank = len(kind.known_shape)
    axes = [[axis % rank for axis in part[2]] for part in parts if part]
    if set(axes[0]) & set(axes[1]):
        return False
    rows = [[*parts[0][i], *parts[1][i]] for i in range(4)]
    rows[2] = [*axes[0], *axes[1]]
    document = round.document
    names = [document.add(np.array(row, np.int64), f"{second.outputs[0]}_slice") for row in rows]
    second.inputs = [first.inputs[0], *names]
    return True


def _bounds(round: Round, node: Node) -> list[tuple[int, ...]] | None:
    """Starts, ends, axes and steps of a Slice, if they are constants."""
    given = [round.ints(node.inputs[i]) if node.input(i) in round.document.initializers else None for i in range(1, 5)]
    starts, ends, axes, steps = given
    if starts is None or ends is None or any(node.input(i) and given[i - 1] is None for i in (3, 4)):
        return None
    return [starts, ends, axes or tuple(range(len(starts))), steps or (1,) * len(starts)]


_MERGES: Mapping[str, _Merge] = {
    "Cast": _merge_casts,
    "Transpose": _merge_transposes,
    **dict.fromkeys(_RESHAPES, _merge_reshapes),
    "Slice": _merge_slices,
}


# Operators with two operands that broadcast.
_BROADCASTING = frozenset(
    {"Add", "Sub", "Mul", "Div", "Pow", "PRelu", "And", "Or", "Xor", "Equal", "Less", "Greater", "Where", "Max", "Min"}
)


def broadcasts(round: Round) -> None:
    """Remove an Expand if its reader broadcasts to the same shape by itself."""
    if round.document.opset < 8:
        return
    for scope in round.each_scope():
        for node in scope.nodes:
            out = round.type(node.outputs[0]) if node.kind in _BROADCASTING else None
            if out is None:
                continue
            for place in range(1 if node.kind == "PRelu" else 0, len(node.inputs)):
                expand = round.producer(node.inputs[place], "Expand")
                if expand is None:
                    continue
                inputs = [*node.inputs[:place], expand.inputs[0], *node.inputs[place + 1 :]]
                kinds = [round.type(name) for name in inputs]
                shapes = [kind.shape for kind in kinds if kind is not None]
                if len(shapes) == len(kinds) and broadcast_shapes(shapes) == out.shape:
                    node.inputs = inputs
                    round.changes += 1


def zero_states(round: Round) -> None:
    """Remove initial states of recurrent operators that are zeros, which is the default."""
    for scope in round.each_scope():
        for node in scope.nodes:
            for place in {"LSTM": (6, 5), "GRU": (5,), "RNN": (5,)}.get(node.kind, ()):
                if node.input(place) and _is_zero(round, node.inputs[place]):
                    node.inputs[place] = ""
                    round.changes += 1
            while node.inputs and not node.inputs[-1] and node.kind in ("LSTM", "GRU", "RNN"):
                node.inputs.pop()


def _is_zero(round: Round, name: str) -> bool:
    source = round.producer(name, "ConstantOfShape", "Expand")
    if source is None:
        return const_all(round.array(name), 0)
    if source.kind == "Expand":
        return const_all(round.array(source.inputs[0]), 0)
    value = source.attribute("value")
    return value is None or const_all(to_array(value, "value"), 0)
