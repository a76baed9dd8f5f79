"""Control flow: cond, while_loop, scan, and the functions built on them (map, foreach, fold).

graphkit calls each function once (while_loop's body again if sizes turn out to vary), on placeholders for its operands.
The nodes that it builds become the subgraph of an If, Loop or Scan. State may be any nesting of tuples, lists, dicts
and TensorArrays. A function can use values of the surrounding graph freely; they become explicit captures. Parameters
made inside belong to the surrounding model: all iterations share them. Everything is differentiable, at any depth.

Options of all loops:

- `recompute`: by default, a loop saves everything that its iterations computed for the backward pass. That takes memory
  proportional to their number T. With a number k, it saves only the states at the borders of blocks of k iterations,
  and computes one block at a time again: memory for T / k + k iterations. "sqrt" chooses k near sqrt(T), if T is known.
  The results are the same. With blocks of 1, only the state of each iteration is saved.
- `swap_memory`: on a GPU, values that the loop saves for the backward pass may be moved to host memory until they are
  read, as `gk.attr_scope(swap_memory=True)` allows for other nodes (see docs/gpu.md). On other devices it has no
  effect. The results are the same bits.
- `parallel_iterations`: an upper bound on iterations that run at the same time, as in TensorFlow. graphkit runs
  iterations one after the other, each on all threads, which satisfies any bound. The results are the same.
- `name`: the node's name, also in messages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UsageError
from graphkit.frontend import tree
from graphkit.frontend._leaves import (
    axes_of,
    changed_state,
    check_predicate,
    count,
    hint,
    is_computed,
    leaf,
    outputs,
    predicate,
    refuse_arrays,
    same_kind,
    same_tree,
    scanned_axes,
    stacked_axes,
    without,
)
from graphkit.frontend.scopes import attr_scope
from graphkit.ir import dims
from graphkit.ir.graph import Value
from graphkit.ir.subgraph import checkpoint, close_over, inline
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F, as_value
from graphkit.ops.control.loop_state import StableStates, may_keep, without_value
from graphkit.ops.sequence.map import element_types
from graphkit.ops.sequence.map import sequence_map as mapped_sequences
from graphkit.passes.control.block_loops import Block, in_blocks
from graphkit.passes.training.swap import MARK
from graphkit.signatures import typed

# Default of `parallel_iterations`, as in TensorFlow.
PARALLEL_ITERATIONS = 10


@typed("gk.cond")
def cond(
    pred: Any, then_fn: Callable[..., Any], else_fn: Callable[..., Any], args: Any = (), *, name: str = "cond"
) -> Any:
    """Compute then_fn(*args) if pred is true, else else_fn(*args). Each run computes only one of the two.

    Gradients flow through the branch that ran; values that only the other branch uses get zeros.

    Args:
        pred: A graph value, bool []; or a Python bool. If it is an array of `gk.nd`, cond calls only one function.
        then_fn: Function of the operands that returns a graph value, or nested tuples, lists and dicts of graph values.
        else_fn: Function that returns the same: tuples of the same length, dicts with the same keys, and values of the
            same element types at the same places. Where sizes differ, the size of the result is unknown.
        args: The operands of both functions: a tuple, or a single value.
        name: Name of the node, which error messages show.

    Returns:
        The result of the chosen function.

    Raises:
        TypeMismatch: The results of the two functions differ in structure or element types. The message names the
            value, such as `result[0]`.
        UsageError: The functions return no value.
    """
    if is_computed(pred):
        check_predicate(pred, name, "pred")
        return (then_fn if pred else else_fn)(*(args if isinstance(args, tuple) else (args,)))
    refuse_arrays(name, "if", pred, args)
    decision = predicate(as_value(pred), name, "pred")
    operands = tree.map_leaves(as_value, args if isinstance(args, tuple) else (args,))
    then_mark = checkpoint()
    then_tree = then_fn(*operands)
    else_mark = checkpoint()
    else_tree = else_fn(*operands)
    refuse_arrays(name, "if", pred, then_tree, else_tree)
    shape = tree.skeleton(then_tree)
    if shape != tree.skeleton(else_tree):
        raise TypeMismatch(
            f"{name}: then_fn returned {tree.described(shape)}, but else_fn returned "
            f"{tree.described(tree.skeleton(else_tree))}"
        )
    pairs = list(zip(tree.leaves(then_tree), tree.leaves(else_tree), strict=True))
    if not pairs:
        raise UsageError(f"{name}: the branches return no value")
    then_values = [leaf(a, like=b) for a, b in pairs]
    else_values = [leaf(b, like=a) for a, b in pairs]
    for path, a, b in zip(tree.paths(then_tree), then_values, else_values, strict=True):
        if not same_kind(a.type, b.type):
            raise TypeMismatch(
                f"{name}: result{path} is {a.type} in then_fn, but {b.type} in else_fn; cast one of them"
            )
    # Both branches take the same captures. So the first one is closed again after the second one has added its
    # captures.
    _, captured = close_over(then_values, (), then_mark)
    else_branch, captured = close_over(else_values, (), else_mark, captured, name="else")
    then_branch, captured = close_over(then_values, (), then_mark, captured, name="then")
    results = F.if_(decision, *captured, then_branch=then_branch, else_branch=else_branch, name=name)
    return tree.unflatten(shape, outputs(results))


@typed("gk.while_loop")
def while_loop(
    cond_fn: Callable[[Any], Any],
    body_fn: Callable[[Any], Any],
    state: Any,
    maximum_iterations: int | Value | None = None,
    *,
    parallel_iterations: int = PARALLEL_ITERATIONS,
    recompute: Block | None = None,
    swap_memory: bool = False,
    name: str = "while_loop",
) -> Any:
    """Repeat state = body_fn(state) while cond_fn(state) is true, at most `maximum_iterations` times.

    Args:
        cond_fn: Function of the state that returns a graph value, bool [].
        body_fn: Function of the state that returns the next state: tuples of the same length, dicts with the same keys,
            and values of the same element types at the same places. Sizes may vary from one iteration to the next; they
            are then unknown in the result.
        state: The initial state: a graph value, or nested tuples, lists and dicts of graph values. Both functions get
            it as one argument.
        maximum_iterations: An integer, or a graph value, int64 [] (default: no limit). With recompute="sqrt", it must
            be an integer or a constant.
        parallel_iterations: Accepted as in TensorFlow, but has no effect: iterations run one after another.
        recompute: Number of iterations per block: an integer, or "sqrt" (of the number of iterations). Only states
            between blocks are kept for the backward pass, which computes the other values again. Default: keep all.
        swap_memory: On a GPU, values that are kept for the backward pass may move to host memory.
        name: Name of the node, which error messages show.

    Returns:
        The last state.

    Raises:
        TypeMismatch: body_fn returns a state of another form or element type, or cond_fn does not return a boolean
            scalar. The message names the value.
    """
    _check_parallel(name, parallel_iterations)
    refuse_arrays(name, "while", state)
    shape = tree.skeleton(state)
    start = [leaf(item) for item in tree.leaves(state)]
    if not start:
        raise UsageError(f"{name}: the state contains no value")
    paths = list(tree.paths(state))
    states = StableStates([v.type for v in start], refusal=lambda i, a, b: changed_state(name, "state", paths[i], a, b))
    while True:
        iteration, going = Value(TensorType(DType.INT64, ()), "iteration"), Value(TensorType(DType.BOOL, ()), "going")
        inside = [Value(t, v.name or hint("state", p)) for t, v, p in zip(states.types, start, paths, strict=True)]
        mark = checkpoint()
        following = same_tree(name, "state", "body_fn returned", shape, body_fn(tree.unflatten(shape, inside)), inside)
        if states.hold([v.type for v in following]):
            break

    first, again = _conditions(name, lambda values: cond_fn(tree.unflatten(shape, values)), start, inside, following)
    if again.rank != 0:
        _check_next_condition(name, first, again, start, [iteration, going, *inside], mark)
    first, again = (predicate(value, name, "cond_fn's result") for value in (first, again))
    body, captured = close_over([again, *following], [iteration, going, *inside], mark, name="body")
    limit = None if maximum_iterations is None else count(maximum_iterations, name, "maximum_iterations")
    with _marked(name, swap_memory):
        found = F.loop(limit, first, *start, *captured, body=body, captures=len(captured), name=name)
    return tree.unflatten(shape, _recomputed(outputs(found), recompute))


def _conditions(
    name: str, cond_fn: Callable[[Sequence[Value]], Any], start: Sequence[Value], inside: Sequence[Value],
    following: Sequence[Value],
) -> tuple[Value, Value]:  # fmt: skip
    """Return the condition of a while_loop for the state `start`, and for the state `following`.

    inside: The state at the start of an iteration; `following` is the one that the body computes from it.
    """
    mark = checkpoint()
    placeholders = [v.like() for v in inside]
    holds = leaf(cond_fn(placeholders))
    check_predicate(holds, name, "cond_fn's result")
    condition, outer = close_over([holds], placeholders, mark, name="condition")
    (first,) = inline(condition, [*start, *outer])
    (again,) = inline(condition, [*following, *outer])
    return first, again


def _check_next_condition(
    name: str, first: Value, again: Value, start: Sequence[Value], inputs: Sequence[Value], mark: Any
) -> None:
    """Raise TypeMismatch if the condition, which has one element at first, has several after the first iteration.

    again: The condition at the end of the body, as a function of its `inputs`. mark: The checkpoint before the body.
    """
    body, captured = close_over([again], inputs, mark)
    try:
        (following,) = inline(body, [as_value(np.int64(0)), as_value(np.bool_(True)), *start, *captured])
    except TypeMismatch:
        return  # building the Loop raises it again, with the node's name
    if following.shape is not None and not all(dims.may_equal(d, 1) for d in following.shape):
        raise TypeMismatch(
            f"{name}: cond_fn's result must be a boolean scalar, but it is {first.type} before the loop and "
            f"{following.type} after one iteration, because the shape of the state changes; reduce it to one value"
        )


@typed("gk.scan")
def scan(
    fn: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    reverse: bool = False,
    *,
    axis: Any = 0,
    out_axis: Any = 0,
    length: int | Value | None = None,
    parallel_iterations: int = PARALLEL_ITERATIONS,
    recompute: Block | None = None,
    swap_memory: bool = False,
    name: str = "scan",
) -> tuple[Any, Any]:
    """Apply carry, y = fn(carry, x) to every slice x of xs, as jax.lax.scan does.

    carry, x and y are graph values, or nested tuples, lists and dicts of graph values.

    Args:
        fn: Function of (carry, x) that returns (next carry, y). The next carry has tuples of the same length, dicts
            with the same keys, and values of the same types as `init`.
        init: The first carry.
        xs: The values to slice, all of the same length along `axis`. With None, fn is called `length` times with
            x=None.
        reverse: Take the slices from the end. Each y stays at the position of its x.
        axis: Axis of xs along which slices are taken: one integer for all values, or nested like xs.
        out_axis: Axis along which the ys are stacked: one integer for all values, or nested like y.
        length: Number of calls if xs is None.
        parallel_iterations: Has no effect, because iterations run one after another. Accepted for compatibility with
            TensorFlow.
        recompute: Number of iterations per block: an integer, or "sqrt" for the square root of the number of
            iterations. Only states between blocks are kept for the backward pass, which computes the other values
            again. Default: all values are kept.
        swap_memory: On a GPU, values that are kept for the backward pass may move to host memory.
        name: Name of the node, which error messages show.

    Returns:
        The last carry, and all ys stacked.

    Raises:
        TypeMismatch: Lengths differ, or fn changes the form or a type of the carry. The message names the value.
        UsageError: fn does not return a pair, or `length` is given together with xs.
    """
    _check_parallel(name, parallel_iterations)
    refuse_arrays(name, "for", init, xs)
    sequences, paths, axes = _sequences(name, xs, length, axis)
    start = [leaf(item) for item in tree.leaves(init)]
    carry_shape = tree.skeleton(init)

    inside = [
        Value(without_value(v.type), v.name or hint("carry", p)) for v, p in zip(start, tree.paths(init), strict=True)
    ]
    elements = [
        Value(without(v.tensor, a), v.name or hint("x", p)) for v, a, p in zip(sequences, axes, paths, strict=True)
    ]
    mark = checkpoint()
    result = fn(
        tree.unflatten(carry_shape, inside), None if xs is None else tree.unflatten(tree.skeleton(xs), elements)
    )
    following = _following(name, init, inside, result)
    stacked = [leaf(item) for item in tree.leaves(result[1])]
    if not following and not stacked:
        raise UsageError(f"{name}: the function returns no value")
    body, captured = close_over([*following, *stacked], [*inside, *elements], mark, name="body")
    out_axes = stacked_axes(name, list(tree.paths(result[1])), stacked, axes_of(name, "out_axis", out_axis, result[1]))
    with _marked(name, swap_memory):
        found = F.scan(
            *start,
            *sequences,
            *captured,
            body=body,
            num_scan_inputs=len(sequences),
            scan_input_axes=axes,
            scan_input_directions=[int(reverse)] * len(sequences),
            scan_output_axes=out_axes,
            scan_output_directions=[int(reverse)] * len(stacked),
            captures=len(captured),
            name=name,
        )
    values = _recomputed(outputs(found), recompute)
    carry = tree.unflatten(carry_shape, values[: len(start)])
    return carry, tree.unflatten(tree.skeleton(result[1]), values[len(start) :])


def _sequences(name: str, xs: Any, length: int | Value | None, axis: Any) -> tuple[list[Value], list[str], list[int]]:
    """Return the sequences that a scan reads, their paths and their axes. Without xs, it reads 0, ..., length - 1."""
    if xs is None:
        if length is None:
            raise UsageError(f"{name}: without xs, give length=, the number of calls")
        return [F.range(np.int64(0), count(length, name, "length"), np.int64(1))], [""], [0]
    if length is not None:
        raise UsageError(f"{name}: length= is only for xs=None; otherwise the length of xs is used")
    sequences = [leaf(item) for item in tree.leaves(xs)]
    if not sequences:
        raise UsageError(f"{name}: xs contains no value")
    paths = list(tree.paths(xs))
    return sequences, paths, list(scanned_axes(name, paths, sequences, axes_of(name, "axis", axis, xs)))


def _following(name: str, init: Any, inside: Sequence[Value], result: Any) -> list[Value]:
    """Return the leaves of the carry that a scan's function returned. Raises an error if they do not match `init`."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise UsageError(
            f"{name}: the function must return a tuple (carry, y); it returned {tree.described(tree.skeleton(result))}"
        )
    following = same_tree(
        name, "carry", "the function returned a carry that is", tree.skeleton(init), result[0], inside
    )
    for path, before, after in zip(tree.paths(init), inside, following, strict=True):
        if not may_keep(before.type, after.type):
            raise changed_state(name, "carry", path, before.type, after.type)
    return list(following)


@typed("gk.map")
def map(
    fn: Callable[[Any], Any],
    xs: Any,
    *,
    axis: Any = 0,
    out_axis: Any = 0,
    parallel_iterations: int = PARALLEL_ITERATIONS,
    recompute: Block | None = None,
    swap_memory: bool = False,
    name: str = "map",
) -> Any:
    """Apply fn to every slice along `axis` of xs, and stack the results along `out_axis`.

    x and the result of fn are graph values, or nested tuples, lists and dicts of graph values.

    Args:
        fn: Function of one slice x.
        xs: The values to slice, all of the same length along `axis`.
        axis: Axis of xs along which slices are taken: one integer for all values, or nested like xs.
        out_axis: Axis along which the results are stacked: one integer for all values, or nested like the result.
        parallel_iterations: Has no effect, because iterations run one after another. Accepted for compatibility with
            TensorFlow.
        recompute: Number of iterations per block: an integer, or "sqrt" for the square root of the number of
            iterations. Only states between blocks are kept for the backward pass, which computes the other values
            again. Default: all values are kept.
        swap_memory: On a GPU, values that are kept for the backward pass may move to host memory.
        name: Name of the node, which error messages show.

    Returns:
        The stacked results.

    Raises:
        TypeMismatch: The lengths of xs differ. The message names the value.
        UsageError: fn returns no value.
    """
    options: dict[str, Any] = {
        "parallel_iterations": parallel_iterations, "recompute": recompute, "swap_memory": swap_memory, "name": name,
    }  # fmt: skip
    return scan(lambda carry, x: (None, fn(x)), None, xs, axis=axis, out_axis=out_axis, **options)[1]


@typed("gk.sequence_map")
def sequence_map(fn: Callable[..., Any], sequence: Value, *others: Any, name: str = "sequence_map") -> Any:
    """Apply fn to every element of a sequence, and return the sequence of results.

    Args:
        fn: Function of one element, and of one argument for each of `others`. Its results may differ in shape from
            element to element. If it returns a tuple, the result is a tuple of sequences.
        sequence: A graph value of a sequence type.
        others: Further arguments. If one is a sequence, it must have the same length, and fn gets one element of it at
            a time. A tensor is passed to every call.
        name: Name of the node, which error messages show.

    Raises:
        TypeMismatch: `sequence` is not a sequence, or an argument or result of fn has a type that is not supported.
    """
    operands = [sequence, *(as_value(v) for v in others)]
    mark = checkpoint()
    own = [Value(kind, "element") for kind in element_types(operands)]
    results = fn(*own)
    several = isinstance(results, tuple)
    outputs = [as_value(v) for v in (results if several else (results,))]
    body, captured = close_over(outputs, own, mark, (), name)
    found = mapped_sequences(body, operands, captured, name)
    return found if several else found[0]


@typed("gk.foreach")
def foreach(
    body: Callable[[Any, Any], tuple[Any, Any]],
    data: Any,
    init_states: Any,
    *,
    reverse: bool = False,
    axis: Any = 0,
    out_axis: Any = 0,
    parallel_iterations: int = PARALLEL_ITERATIONS,
    recompute: Block | None = None,
    swap_memory: bool = False,
    name: str = "foreach",
) -> tuple[Any, Any]:
    """Apply output, states = body(element, states) to every slice of data; return (stacked outputs, last states).

    This is `scan` with the argument order of MXNet's `foreach`. An element, the states and the output are graph values,
    or nested tuples, lists and dicts of graph values.

    Args:
        body: Function of (element, states) that returns (output, next states). The next states have tuples of the same
            length, dicts with the same keys, and values of the same types as `init_states`.
        data: The values to slice, all of the same length along `axis`.
        init_states: The first states.
        reverse: Take the slices from the end. Each output stays at the position of its element.
        axis: Axis of data along which slices are taken: one integer for all values, or nested like data.
        out_axis: Axis along which the outputs are stacked: one integer for all values, or nested like the output.
        parallel_iterations: Has no effect, because iterations run one after another. Accepted for compatibility with
            TensorFlow.
        recompute: Number of iterations per block: an integer, or "sqrt" for the square root of the number of
            iterations. Only states between blocks are kept for the backward pass, which computes the other values
            again. Default: all values are kept.
        swap_memory: On a GPU, values that are kept for the backward pass may move to host memory.
        name: Name of the node, which error messages show.

    Returns:
        All outputs stacked, and the last states.

    Raises:
        TypeMismatch: Lengths differ, or body changes the form or a type of the states. The message names the value.
        UsageError: body does not return a pair.
    """

    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        result = body(x, carry)
        if not isinstance(result, tuple) or len(result) != 2:
            raise UsageError(
                f"{name}: the body must return a tuple (outputs, states); it returned "
                f"{tree.described(tree.skeleton(result))}"
            )
        return result[1], result[0]

    options: dict[str, Any] = {
        "parallel_iterations": parallel_iterations, "recompute": recompute, "swap_memory": swap_memory, "name": name,
    }  # fmt: skip
    last, stacked = scan(step, init_states, data, reverse, axis=axis, out_axis=out_axis, **options)
    return stacked, last


@typed("gk.fold")
def fold(
    fn: Callable[[Any, Any], Any],
    init: Any,
    xs: Any,
    reverse: bool = False,
    *,
    axis: Any = 0,
    parallel_iterations: int = PARALLEL_ITERATIONS,
    recompute: Block | None = None,
    swap_memory: bool = False,
    name: str = "fold",
) -> Any:
    """Apply carry = fn(carry, x) to every slice along `axis` of xs, and return the last carry.

    carry and x are graph values, or nested tuples, lists and dicts of graph values.

    Args:
        fn: Function of (carry, x) that returns the next carry: tuples of the same length, dicts with the same keys, and
            values of the same types as `init`.
        init: The first carry.
        xs: The values to slice, all of the same length along `axis`.
        reverse: Take the slices from the end.
        axis: Axis of xs along which slices are taken: one integer for all values, or nested like xs.
        parallel_iterations: Has no effect, because iterations run one after another. Accepted for compatibility with
            TensorFlow.
        recompute: Number of iterations per block: an integer, or "sqrt" for the square root of the number of
            iterations. Only states between blocks are kept for the backward pass, which computes the other values
            again. Default: all values are kept.
        swap_memory: On a GPU, values that are kept for the backward pass may move to host memory.
        name: Name of the node, which error messages show.

    Returns:
        The last carry.

    Raises:
        TypeMismatch: Lengths differ, or fn changes the form or a type of the carry. The message names the value.
    """
    options: dict[str, Any] = {
        "parallel_iterations": parallel_iterations, "recompute": recompute, "swap_memory": swap_memory, "name": name,
    }  # fmt: skip
    return scan(lambda carry, x: (fn(carry, x), None), init, xs, reverse, axis=axis, **options)[0]


def _recomputed(results: Sequence[Value], block: Block | None) -> Sequence[Value]:
    node = results[0].node
    assert node is not None, "a loop has made it"
    return results if block is None else in_blocks(node, block)


@contextlib.contextmanager
def _marked(name: str, swap_memory: Any) -> Iterator[None]:
    """Mark nodes built in this context for swapping if `swap_memory` is True. Raises UsageError unless it is a bool."""
    if not isinstance(swap_memory, bool):
        raise UsageError(f"{name}: swap_memory must be True or False, not {swap_memory!r}")
    with attr_scope(**{MARK: True}) if swap_memory else contextlib.nullcontext():
        yield


def _check_parallel(name: str, given: Any) -> None:
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or given < 1:
        raise UsageError(f"{name}: parallel_iterations must be a positive integer, not {given!r}")
