"""Control flow: cond, while_loop, scan, and what is made of them (map, foreach, fold).

Each function is called once (while_loop's body again when sizes turn out to vary), on values that stand for its
operands; what it builds becomes the subgraph of an If, Loop or Scan. State may be any nesting of tuples, lists and
dicts. Values of the surrounding graph can be used inside freely; they become explicit captures. Parameters made
inside belong to the surrounding model, one for all iterations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UsageError
from graphkit.frontend import tree
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Value
from graphkit.ir.subgraph import checkpoint, close_over, inline
from graphkit.ir.types import DType, TensorType, Type
from graphkit.ops import F, as_value


def cond(
    pred: Any, then_fn: Callable[..., Any], else_fn: Callable[..., Any], args: Any = (), *, name: str = "cond"
) -> Any:
    """then_fn(*args) if pred else else_fn(*args), decided when the graph runs; only one branch is computed.

    pred: a boolean scalar. Both functions return trees of the same nesting and element types; where sizes differ, the
    result's size is unknown. Raises TypeMismatch, naming the leaf, when they do not fit.
    """
    decision = _predicate(as_value(pred), name, "pred")
    operands = tree.map_leaves(as_value, args if isinstance(args, tuple) else (args,))
    then_mark = checkpoint()
    then_tree = then_fn(*operands)
    else_mark = checkpoint()
    else_tree = else_fn(*operands)
    shape = tree.skeleton(then_tree)
    if shape != tree.skeleton(else_tree):
        raise TypeMismatch(f"{name}: then_fn returns {shape}, else_fn returns {tree.skeleton(else_tree)}; * is a value")
    pairs = list(zip(tree.leaves(then_tree), tree.leaves(else_tree), strict=True))
    if not pairs:
        raise UsageError(f"{name}: the branches return no value")
    then_values = [_leaf(a, like=b) for a, b in pairs]
    else_values = [_leaf(b, like=a) for a, b in pairs]
    for path, a, b in zip(tree.paths(then_tree), then_values, else_values, strict=True):
        if not _same_kind(a.type, b.type):
            raise TypeMismatch(f"{name}: result{path} is {a.type} in then_fn and {b.type} in else_fn")
    # The branches share one list of captures: close the first one again over what the second one added.
    _, captured = close_over(then_values, (), then_mark)
    else_branch, captured = close_over(else_values, (), else_mark, captured, name="else")
    then_branch, captured = close_over(then_values, (), then_mark, captured, name="then")
    results = F.if_(decision, *captured, then_branch=then_branch, else_branch=else_branch, name=name)
    return tree.unflatten(shape, _outputs(results))


def while_loop(
    cond_fn: Callable[[Any], Any],
    body_fn: Callable[[Any], Any],
    state: Any,
    max_iterations: int | Value | None = None,
    *,
    name: str = "while_loop",
) -> Any:
    """Repeat state = body_fn(state) while cond_fn(state) holds, at most `max_iterations` times; return the state.

    `state` is one tree, given whole to both functions; cond_fn returns a boolean scalar. The body keeps the
    nesting and element types; sizes may vary from one iteration to the next, and are unknown then.
    """
    shape = tree.skeleton(state)
    start = [_leaf(leaf) for leaf in tree.leaves(state)]
    if not start:
        raise UsageError(f"{name}: the state holds no value")
    paths = list(tree.paths(state))
    types = [_carried(v.type) for v in start]
    varying: set[Dim] = set()
    while True:
        iteration, going = Value(TensorType(DType.INT64, ()), "iteration"), Value(TensorType(DType.BOOL, ()), "going")
        inside = [Value(t, v.name or _hint("state", p)) for t, v, p in zip(types, start, paths, strict=True)]
        mark = checkpoint()
        following = _same_tree(name, "body_fn", shape, body_fn(tree.unflatten(shape, inside)), inside)
        widened = [_widened(name, p, t, v.type, varying) for p, t, v in zip(paths, types, following, strict=True)]
        if all(a is b for a, b in zip(types, widened, strict=True)):
            break
        types = widened

    # The condition is built once and stands twice: before the loop, and at the end of the body.
    predicate_mark = checkpoint()
    placeholders = [v.like() for v in inside]
    holds = _predicate(_leaf(cond_fn(tree.unflatten(shape, placeholders))), name, "cond_fn's result")
    predicate, outer = close_over([holds], placeholders, predicate_mark, name="condition")
    (first,) = inline(predicate, [*start, *outer])
    (again,) = inline(predicate, [*following, *outer])
    body, captured = close_over([again, *following], [iteration, going, *inside], mark, name="body")
    limit = None if max_iterations is None else _count(max_iterations, name, "max_iterations")
    results = F.loop(limit, first, *start, *captured, body=body, captures=len(captured), name=name)
    return tree.unflatten(shape, _outputs(results))


def scan(
    fn: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    reverse: bool = False,
    *,
    axis: int = 0,
    out_axis: int = 0,
    length: int | Value | None = None,
    name: str = "scan",
) -> tuple[Any, Any]:
    """carry, y = fn(carry, x) for every x along `axis` of xs; return the last carry and ys stacked along `out_axis`.

    `init` and `xs` are trees; all leaves of xs have one length. fn keeps the carry's nesting and types. With
    `reverse` the elements are taken from the end, and each y stands where its x stood. With xs=None, fn is called
    with x=None, `length` times.
    """
    counter = None
    if xs is None:
        if length is None:
            raise UsageError(f"{name}: without xs, length= says how often to call the function")
        counter = F.range(np.int64(0), _count(length, name, "length"), np.int64(1))
    elif length is not None:
        raise UsageError(f"{name}: length= is for xs=None; the length of xs decides here")
    sequences = [_leaf(leaf) for leaf in tree.leaves(xs)] if counter is None else [counter]
    if not sequences:
        raise UsageError(f"{name}: xs holds no value")
    paths = [""] if xs is None else list(tree.paths(xs))
    axes = _scanned_axes(name, paths, sequences, axis)
    start = [_leaf(leaf) for leaf in tree.leaves(init)]
    carry_shape = tree.skeleton(init)

    inside = [
        Value(_carried(v.type), v.name or _hint("carry", p)) for v, p in zip(start, tree.paths(init), strict=True)
    ]
    elements = [
        Value(_without(v.tensor, a), v.name or _hint("x", p)) for v, a, p in zip(sequences, axes, paths, strict=True)
    ]
    mark = checkpoint()
    result = fn(
        tree.unflatten(carry_shape, inside), None if xs is None else tree.unflatten(tree.skeleton(xs), elements)
    )
    if not isinstance(result, tuple) or len(result) != 2:
        raise UsageError(f"{name}: the function returns (carry, y), not {tree.skeleton(result)}; * is a value")
    following = _same_tree(name, "the function's carry", carry_shape, result[0], inside)
    for path, before, after in zip(tree.paths(init), inside, following, strict=True):
        if not _fits(before.type, after.type):
            raise TypeMismatch(f"{name}: carry{path} is {before.type} before and {after.type} after one element")
    stacked = [_leaf(leaf) for leaf in tree.leaves(result[1])]
    if not following and not stacked:
        raise UsageError(f"{name}: the function returns no value")
    body, captured = close_over([*following, *stacked], [*inside, *elements], mark, name="body")
    results = _outputs(
        F.scan(
            *start,
            *sequences,
            *captured,
            body=body,
            num_scan_inputs=len(sequences),
            scan_input_axes=axes,
            scan_input_directions=[int(reverse)] * len(sequences),
            scan_output_axes=[out_axis] * len(stacked),
            scan_output_directions=[int(reverse)] * len(stacked),
            captures=len(captured),
            name=name,
        )
    )
    carry = tree.unflatten(carry_shape, results[: len(start)])
    return carry, tree.unflatten(tree.skeleton(result[1]), results[len(start) :])


def map(fn: Callable[[Any], Any], xs: Any, *, axis: int = 0, out_axis: int = 0, name: str = "map") -> Any:
    """fn applied to every element along `axis` of xs; the results stacked along `out_axis`."""
    return scan(lambda carry, x: (None, fn(x)), None, xs, axis=axis, out_axis=out_axis, name=name)[1]


def foreach(
    body: Callable[[Any, Any], tuple[Any, Any]], data: Any, states: Any, *, name: str = "foreach"
) -> tuple[Any, Any]:
    """output, states = body(element, states) for every element of data; return (stacked outputs, last states)."""

    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        result = body(x, carry)
        if not isinstance(result, tuple) or len(result) != 2:
            raise UsageError(f"{name}: the body returns (outputs, states), not {tree.skeleton(result)}; * is a value")
        return result[1], result[0]

    carry, outputs = scan(step, states, data, name=name)
    return outputs, carry


def fold(
    fn: Callable[[Any, Any], Any], init: Any, xs: Any, reverse: bool = False, *, axis: int = 0, name: str = "fold"
) -> Any:
    """carry = fn(carry, x) for every element along `axis` of xs; return the last carry."""
    return scan(lambda carry, x: (fn(carry, x), None), init, xs, reverse, axis=axis, name=name)[0]


# --- leaves and their types -------------------------------------------------------------------------


def _leaf(leaf: Any, like: Any = None) -> Value:
    return as_value(leaf, like if isinstance(like, Value) else None)


def _hint(what: str, path: str) -> str:
    """A name for a leaf without one: state['h'][0] is called state_h_0."""
    return "_".join([what, *re.findall(r"\w+", path)])


def _outputs(results: Any) -> list[Value]:
    return list(results) if isinstance(results, tuple) else [results]


def _predicate(value: Value, name: str, what: str) -> Value:
    """A boolean with one element."""
    wanted = value.tensor
    if wanted.dtype is not DType.BOOL or (
        wanted.shape is not None and any(not dims.may_equal(d, 1) for d in wanted.shape)
    ):
        raise TypeMismatch(f"{name}: {what} must be a boolean scalar, not {value}")
    return value if wanted.rank == 0 else F.reshape(value, np.zeros(0, np.int64))


def _count(given: int | Value, name: str, what: str) -> Value:
    value = as_value(given)
    if value.dtype not in (DType.INT64, DType.INT32) or value.rank not in (0, None):
        raise TypeMismatch(f"{name}: {what} must be an integer scalar, not {value}")
    return value if value.dtype is DType.INT64 else F.cast(value, to=DType.INT64)


def _same_kind(a: Type, b: Type) -> bool:
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        return a.dtype is b.dtype
    return type(a) is type(b)


def _carried(given: Type) -> Type:
    """A loop-carried value's type: its elements change, so they are not known."""
    return given.with_value(None) if isinstance(given, TensorType) else given


def _same_tree(name: str, what: str, shape: tree.Skeleton, result: Any, like: Sequence[Value]) -> list[Value]:
    """The leaves of `result`, which must have the nesting `shape` and the element types of `like`."""
    found = tree.skeleton(result)
    if found != shape:
        raise TypeMismatch(f"{name}: {what} has the nesting {found}, and the state {shape}; * is a value")
    values = [_leaf(leaf, before) for leaf, before in zip(tree.leaves(result), like, strict=True)]
    for path, before, after in zip(tree.paths(result), like, values, strict=True):
        if not _same_kind(before.type, after.type):
            raise TypeMismatch(f"{name}: state{path} is {before.type} before and {after.type} after one iteration")
    return values


def _fits(before: Type, after: Type) -> bool:
    """Whether a carry may keep its type."""
    if not isinstance(before, TensorType) or not isinstance(after, TensorType):
        return before == after
    if before.shape is None or after.shape is None:
        return True
    return len(before.shape) == len(after.shape) and all(
        dims.may_equal(a, b) for a, b in zip(before.shape, after.shape, strict=True)
    )


def _widened(name: str, path: str, before: Type, after: Type, varying: set[Dim]) -> Type:
    """`before` with every size that an iteration changes replaced by a new name; `before` itself when none changes.

    `varying` collects those names: they may change freely, so repeated widening ends.
    """
    if not isinstance(before, TensorType) or not isinstance(after, TensorType):
        if before != after:
            raise TypeMismatch(f"{name}: state{path} is {before} before and {after} after one iteration")
        return before
    if before.shape is None:
        return before
    if after.shape is None or len(before.shape) != len(after.shape):
        return TensorType(before.dtype)
    sizes = [d if d == new or d in varying else dims.fresh() for d, new in zip(before.shape, after.shape, strict=True)]
    fresh = {new for new, old in zip(sizes, before.shape, strict=True) if new is not old}
    varying |= fresh
    return TensorType(before.dtype, sizes) if fresh else before


def _scanned_axes(name: str, paths: Sequence[str], sequences: Sequence[Value], axis: int) -> list[int]:
    """The axis to scan in each sequence, as ONNX wants it: not negative where the rank is known."""
    axes = []
    for path, value in zip(paths, sequences, strict=True):
        rank = value.tensor.rank
        if rank is not None and not -rank <= axis < rank:
            raise TypeMismatch(f"{name}: xs{path} is {value}, which has no axis {axis} to scan")
        axes.append(axis if rank is None else axis % rank)
    known = [
        (p, v.tensor.shape[a], v) for p, v, a in zip(paths, sequences, axes, strict=True) if v.tensor.shape is not None
    ]
    for path, size, value in known[1:]:
        if not dims.may_equal(size, known[0][1]):
            raise TypeMismatch(f"{name}: xs{known[0][0]} is {known[0][2]} and xs{path} is {value}: the lengths differ")
    return axes


def _without(given: TensorType, axis: int) -> TensorType:
    if given.shape is None:
        return TensorType(given.dtype)
    return TensorType(given.dtype, [d for i, d in enumerate(given.shape) if i != axis])
