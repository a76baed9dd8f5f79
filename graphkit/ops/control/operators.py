"""Control flow: If, Loop, Scan. Subgraphs are Graph-valued attributes whose captures are explicit operands.

Types pass through a subgraph by inferring its nodes again on the operand types. A loop state has no known value, and a
dimension that an iteration may change is unknown (see loop_state.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from graphkit.errors import RuntimeFailure, TypeMismatch
from graphkit.ir import dims, limits
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import BOOLS, DType, TensorType, Type, dtype_of, join
from graphkit.ops._base import F, Onnx, Op, Sample, op
from graphkit.ops.axes import INT64, normal_axis
from graphkit.ops.control.loop_state import (
    after_loop,
    check_operands,
    output_types,
    stable_types,
    stacked_type,
    without_value,
)
from graphkit.ops.evaluate import evaluate
from graphkit.ops.held import bytes_of
from graphkit.ops.operands import fits

_FLAG = TensorType(DType.BOOL, ())


def _check_flag(kind: Type, what: str) -> None:
    if not isinstance(kind, TensorType) or kind.dtype is not DType.BOOL or not _scalar(kind):
        raise TypeMismatch(f"{what} must be a bool scalar, not {kind}")


def _scalar(kind: TensorType) -> bool:
    return fits(kind.shape, ()) or fits(kind.shape, (1,))


# --- arrays ---------------------------------------------------------------------------------------


def _flag(value: Any) -> bool:
    return bool(value.reshape(()))


def _array_type(array: Any, declared: Type) -> Type:
    """Return the type of a value at run time. The element type of a sequence or an optional is the declared one."""
    if isinstance(declared, TensorType):
        return TensorType(dtype_of(array.dtype), array.shape)
    return declared


def _stack(xp: Any, arrays: Sequence[Any], axis: int, declared: Type, empty: Callable[[], TensorType]) -> Any:
    """Stack a scan output along a new axis. Without iterations, unknown dimensions of the empty result are 0."""
    if not isinstance(declared, TensorType):
        return list(arrays)
    if arrays:
        shapes = {a.shape for a in arrays}
        if len(shapes) > 1:
            raise RuntimeFailure(f"a scan output changes its shape between iterations: {sorted(shapes)}")
        place = normal_axis(axis, arrays[0].ndim + 1)
        limits.require_memory(len(arrays) * arrays[0].nbytes, "a scan output")
        return xp.stack(list(arrays), axis=place)
    kind = empty()
    shape = [d if isinstance(d, int) else 0 for d in kind.shape or ()]
    shape.insert(normal_axis(axis, len(shape) + 1), 0)
    return xp.zeros(shape, dtype=kind.dtype.numpy)


# --- operators ------------------------------------------------------------------------------------


def _if_samples() -> tuple[Sample, ...]:
    def branch(build: Callable[..., list[Any]], *types: TensorType) -> Graph:
        inputs = [Value(t) for t in types]
        return Graph(inputs, build(*inputs))

    matrix = TensorType(DType.FLOAT32, (2, 3))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    same: dict[str, Any] = {
        "then_branch": branch(lambda a: [F.add(a, a), F.neg(a)], matrix),
        "else_branch": branch(lambda a: [F.mul(a, a), a], matrix),
    }
    other_shapes: dict[str, Any] = {
        "then_branch": branch(lambda a: [F.constant(value=np.zeros((2, 5), np.float32))], matrix),
        "else_branch": branch(lambda a: [F.exp(a)], matrix),
    }
    return (
        Sample(np.array(True), x, **same),
        Sample(np.array([False]), x, **same),
        Sample(np.array(False), x, **other_shapes),
    )


@op
class If(Op):
    """Run then_branch if cond is true, else else_branch.

    cond: bool []. captures: the values of the outer graph that the branches read; both branches get all of them as
    inputs. The outputs of the chosen branch are the results; both branches have the same number of outputs. If cond is
    constant, the results have the types of the chosen branch; otherwise types that include those of both, with unknown
    sizes where they differ.
    """

    then_branch: Graph
    else_branch: Graph
    inputs = ("cond", "captures*")
    outputs = ("ys*",)
    types = {"cond": BOOLS}
    onnx = Onnx("If", since=25, hidden=("captures",))
    samples = staticmethod(_if_samples)

    def infer(self, cond: TensorType, *captures: Type) -> tuple[Type, ...]:
        _check_flag(cond, "cond")
        if len(self.then_branch.outputs) != len(self.else_branch.outputs):
            raise TypeMismatch(
                f"the branches have {len(self.then_branch.outputs)} and {len(self.else_branch.outputs)} outputs"
            )
        if cond.constants is not None:
            return output_types(self._branch(bool(cond.constants[0])), captures)
        found: list[tuple[Type, ...]] = []
        refused = None
        for branch in (self.then_branch, self.else_branch):
            check_operands(branch, captures)
            try:
                found.append(output_types(branch, captures))
            except TypeMismatch as error:  # invalid for these sizes: the run fails only if it takes this branch
                refused = error
        if not found:
            raise refused or TypeMismatch("neither branch fits")
        return found[0] if len(found) == 1 else tuple(join(a, b) for a, b in zip(*found, strict=True))

    def _branch(self, cond: bool) -> Graph:
        return self.then_branch if cond else self.else_branch

    def reference(self, xp: Any, cond: Any, *captures: Any) -> Any:
        return tuple(evaluate(self._branch(_flag(cond)), captures, xp))


def _loop_samples() -> tuple[Sample, ...]:
    def body(state: Sequence[TensorType], build: Callable[..., list[Any]]) -> Graph:
        count, keep = Value(TensorType(DType.INT64, ())), Value(_FLAG)
        states = [Value(t) for t in state]
        return Graph([count, keep, *states], build(count, keep, *states))

    vector = TensorType(DType.FLOAT32, (3,))
    x = np.array([1.0, 2.0, -1.0], np.float32)
    half = np.array(0.5, np.float32)

    double = body([vector, vector], lambda i, c, s, w: [c, F.add(s, w), F.mul(s, w)])
    grow = body(
        [TensorType(DType.FLOAT32, (dims.symbol("n"),))],
        lambda i, c, s: [F.less(i, np.array(2)), F.concat(s, F.constant(value=half.reshape(1)), axis=0)],
    )
    counted = body([TensorType(DType.INT64, ())], lambda i, c, s: [c, F.add(s, i), F.add(s, s)])
    return (
        Sample(np.array(3), np.array(True), x, x, body=double, captures=1),
        Sample(np.array(3), None, x, x, body=double, captures=1),
        Sample(np.array(0), None, x, x, body=double, captures=1),
        Sample(np.array(5), np.array(False), x, x, body=double, captures=1),
        Sample(None, np.array(True), x, body=grow),
        Sample(None, None, x, body=grow),
        Sample(np.array([4]), None, np.array(1), body=counted),
    )


@op
class Loop(Op):
    """Repeat a subgraph while a condition is true, at most m times.

    m: int64 [], the maximum number of iterations (no limit by default). cond: bool [], the condition before the first
    iteration (true by default). values: first the initial state, then the captured values: values of the outer graph
    that the body reads in each iteration. Their number is the attribute `captures`. body: (iteration, cond, *state,
    *captured values) -> (cond, *state, *scan outputs), where iteration is int64 [] from 0. The returned condition
    decides about the next iteration, also if `cond` is absent, as in ONNX Runtime.

    The results are the last state, then each scan output of all iterations, stacked along a new first axis. recompute:
    for the gradient, store only the state of each iteration, and compute everything else again. ONNX has no such
    attribute.
    """

    body: Graph
    captures: int = 0
    recompute: bool = False
    inputs = ("m?", "cond?", "values*")
    outputs = ("ys*",)
    types = {"m": INT64, "cond": BOOLS}
    onnx = Onnx("Loop", since=25, hidden=("captures", "recompute"))
    samples = staticmethod(_loop_samples)

    def infer(self, m: TensorType | None = None, cond: TensorType | None = None, *values: Type) -> tuple[Type, ...]:
        if m is not None and not _scalar(m):
            raise TypeMismatch(f"the trip count must be a scalar, not {m}")
        if cond is not None:
            _check_flag(cond, "cond")
        states = self._states(len(values))
        initial, captured = values[:states], values[states:]
        # An iteration runs only while the condition is true.
        entry = [_iteration_type(self.body), TensorType(DType.BOOL, _flag_shape(self.body), (1,))]

        def step(state: Sequence[Type]) -> tuple[Type, ...]:
            return output_types(self.body, [*entry, *state, *captured])

        stable = stable_types(initial, lambda state: step(state)[1 : 1 + states])
        after = step(stable)
        _check_flag(after[0], "the condition that the body returns")
        count = self._trips(m, cond, after[0])
        stacked = tuple(stacked_type(t, 0, count) for t in after[1 + states :])
        return (*after_loop(stable, initial), *stacked)

    def _states(self, values: int) -> int:
        states = values - self.captures
        if states < 0 or len(self.body.inputs) != 2 + values or len(self.body.outputs) < 1 + states:
            raise TypeMismatch(
                f"the body has {len(self.body.inputs)} inputs and {len(self.body.outputs)} outputs;"
                f" {values} values are given, of which {self.captures} are captures"
            )
        return states

    @staticmethod
    def _trips(m: TensorType | None, cond: TensorType | None, again: Type) -> Dim:
        """Return the number of iterations if it is known before the loop runs, else a new unknown dimension."""
        if cond is not None and cond.constants == (0,):
            return 0
        starts = cond is None or cond.constants is not None
        goes_on = isinstance(again, TensorType) and again.constants == (1,)
        if m is None or m.value is None or not starts or not goes_on:
            return dims.fresh()
        (count,) = m.value
        return max(count, 0) if isinstance(count, int) else count

    def reference(self, xp: Any, m: Any = None, cond: Any = None, *values: Any) -> Any:
        states = self._states(len(values))
        state, captured = list(values[:states]), values[states:]
        limit = None if m is None else int(m.reshape(()))
        going = cond is None or _flag(cond)
        shape, flag_shape = _iteration_type(self.body).static_shape, _flag_shape(self.body)
        scanned: list[list[Any]] = [[] for _ in self.body.outputs[1 + states :]]
        trip = collected_bytes = 0
        while going and (limit is None or trip < limit):
            limits.check_iterations(trip)
            entry = [xp.full(shape, trip, dtype=xp.int64), xp.ones(flag_shape, dtype=bool)]
            again, *results = evaluate(self.body, [*entry, *state, *captured], xp)
            going = _flag(again)
            state = results[:states]
            for collected, item in zip(scanned, results[states:], strict=True):
                collected.append(item)
            collected_bytes += sum(map(bytes_of, results[states:]))
            limits.require_held(collected_bytes, "the scan outputs")
            trip += 1

        def empty(index: int) -> TensorType:
            given = [_array_type(a, v.type) for a, v in zip(values, self.body.inputs[2:], strict=True)]
            found = output_types(self.body, [*(v.type for v in self.body.inputs[:2]), *given])[1 + states + index]
            assert isinstance(found, TensorType)
            return found

        rows = [v.type for v in self.body.outputs[1 + states :]]
        stacks = [_stack(xp, s, 0, rows[i], partial(empty, i)) for i, s in enumerate(scanned)]
        return (*state, *stacks)


def _iteration_type(body: Graph) -> TensorType:
    """Return the type of the iteration number: an int64 scalar, or [1], as some exporters declare it."""
    return TensorType(DType.INT64, (1,) if body.inputs[0].shape == (1,) else ())


def _flag_shape(body: Graph) -> tuple[int, ...]:
    return (1,) if body.inputs[1].shape == (1,) else ()


def _scan_samples() -> tuple[Sample, ...]:
    def body(types: Sequence[TensorType], build: Callable[..., list[Any]]) -> Graph:
        inputs = [Value(t) for t in types]
        return Graph(inputs, build(*inputs))

    row, scalar = TensorType(DType.FLOAT32, (3,)), TensorType(DType.FLOAT32, ())
    xs = np.arange(12, dtype=np.float32).reshape(4, 3)
    start = np.array([1.0, -1.0, 0.5], np.float32)
    total = body([row, row], lambda s, x: (lambda t: [t, t])(F.add(s, x)))
    pair = body([row, row, scalar, row], lambda s, x, y, w: [F.add(s, F.mul(x, w)), F.mul(x, y), F.add(x, y)])
    ys = np.array([[2.0, 3.0, 4.0, 5.0]], np.float32)[0]
    # onnx=False: onnx's evaluator has neither axes, nor directions, nor empty scans.
    return (
        Sample(start, xs, body=total, num_scan_inputs=1),
        Sample(start, xs.T.copy(), body=total, num_scan_inputs=1, scan_input_axes=(-1,), onnx=False),
        Sample(start, xs, body=total, num_scan_inputs=1, scan_input_directions=(1,), onnx=False),
        Sample(
            start, xs, ys, start, body=pair, num_scan_inputs=2, captures=1, scan_input_directions=(0, 1),
            scan_output_axes=(-1, 1), scan_output_directions=(1, 0), onnx=False,
        ),
        Sample(start, np.zeros((0, 3), np.float32), body=total, num_scan_inputs=1, onnx=False),
        Sample(start, xs, ys, start, body=pair, num_scan_inputs=2, captures=1),
    )  # fmt: skip


@op
class Scan(Op):
    """Apply a subgraph to successive slices of the scan inputs, and pass a state from one iteration to the next.

    values: the initial state, then `num_scan_inputs` scan inputs, then the captures: the last `captures` operands,
    which are values of the outer graph that the body reads. body: (*state, *slices, *captures) -> (*state, *scan
    outputs). The results are the last state, then each scan output stacked along a new axis. scan_input_axes and
    scan_output_axes (0 by default) may be negative. A direction of 1 reads the input, or writes the output, from the
    end. recompute: as in Loop.
    """

    body: Graph
    num_scan_inputs: int
    scan_input_axes: tuple[int, ...] | None = None
    scan_input_directions: tuple[int, ...] | None = None
    scan_output_axes: tuple[int, ...] | None = None
    scan_output_directions: tuple[int, ...] | None = None
    captures: int = 0
    recompute: bool = False
    inputs = ("values*",)
    outputs = ("ys*",)
    onnx = Onnx("Scan", since=25, hidden=("captures", "recompute"))
    samples = staticmethod(_scan_samples)

    def _split(self, values: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Split a list of one item per operand into those of states, scan inputs and captures."""
        count, scanned, body = len(values), self.num_scan_inputs, self.body
        states = count - scanned - self.captures
        if states < 0 or scanned < 1 or len(body.inputs) != count or len(body.outputs) < states:
            raise TypeMismatch(
                f"the body has {len(body.inputs)} inputs and {len(body.outputs)} outputs; {count} values are given,"
                f" of which {scanned} are scanned and {self.captures} are captures"
            )
        return values[:states], values[states : states + scanned], values[states + scanned :]

    @staticmethod
    def _per(given: tuple[int, ...] | None, count: int, what: str) -> tuple[int, ...]:
        """Return an attribute with one entry per scan operand, 0 by default."""
        if given is None:
            return (0,) * count
        if len(given) != count:
            raise TypeMismatch(
                f"{what} needs {count} entries, one per operand or output that it describes; it has {len(given)}"
            )
        return given

    def _directions(self, given: tuple[int, ...] | None, count: int, what: str) -> tuple[int, ...]:
        directions = self._per(given, count, what)
        if any(d not in (0, 1) for d in directions):
            raise TypeMismatch(f"{what} must consist of 0 and 1, not {directions}")
        return directions

    def infer(self, *values: Type) -> tuple[Type, ...]:
        initial, scanned, captured = self._split(values)
        self._directions(self.scan_input_directions, len(scanned), "scan_input_directions")
        outputs = len(self.body.outputs) - len(initial)
        self._directions(self.scan_output_directions, outputs, "scan_output_directions")
        slices: list[Type] = []
        lengths: list[Dim] = []
        for kind, axis in zip(scanned, self._per(self.scan_input_axes, len(scanned), "scan_input_axes"), strict=True):
            if not isinstance(kind, TensorType):
                raise TypeMismatch(f"only tensors can be scanned, not {kind}")
            if kind.shape is None:
                slices.append(TensorType(kind.dtype))
                continue
            place = normal_axis(axis, len(kind.shape))
            lengths.append(kind.shape[place])
            slices.append(TensorType(kind.dtype, kind.shape[:place] + kind.shape[place + 1 :]))

        def step(state: Sequence[Type]) -> tuple[Type, ...]:
            return output_types(self.body, [*state, *slices, *(without_value(t) for t in captured)])

        stable = stable_types(initial, lambda state: step(state)[: len(initial)])
        after = step(stable)[len(initial) :]
        if other := [t for t in after if not isinstance(t, TensorType)]:
            raise TypeMismatch(f"only tensors can be stacked, not {other[0]}")
        count = _common_length(lengths)
        axes = self._per(self.scan_output_axes, outputs, "scan_output_axes")
        stacked = tuple(stacked_type(t, axis, count) for t, axis in zip(after, axes, strict=True))
        return (*after_loop(stable, initial), *stacked)

    def reference(self, xp: Any, *values: Any) -> Any:
        state, scanned, captured = self._split(values)
        axes = self._per(self.scan_input_axes, len(scanned), "scan_input_axes")
        backwards = self._directions(self.scan_input_directions, len(scanned), "scan_input_directions")
        leading = [xp.moveaxis(x, axis, 0) for x, axis in zip(scanned, axes, strict=True)]
        lengths = {x.shape[0] for x in leading}
        if len(lengths) > 1:
            raise RuntimeFailure(f"the scan inputs must have one length, but have {sorted(lengths)}")
        (length,) = lengths
        outputs: list[list[Any]] = [[] for _ in self.body.outputs[len(state) :]]
        collected_bytes = 0
        for i in range(length):
            limits.check_iterations(i)
            slices = [xp.array(x[-1 - i if b else i]) for x, b in zip(leading, backwards, strict=True)]
            results = evaluate(self.body, [*state, *slices, *captured], xp)
            for collected, item in zip(outputs, results[len(state) :], strict=True):
                collected.append(item)
            collected_bytes += sum(map(bytes_of, results[len(state) :]))
            limits.require_held(collected_bytes, "the scan outputs")
            state = results[: len(state)]

        def empty(index: int) -> TensorType:
            given = [*state, *(xp.zeros(x.shape[1:], dtype=x.dtype) for x in leading), *captured]
            types = [_array_type(a, v.type) for a, v in zip(given, self.body.inputs, strict=True)]
            found = output_types(self.body, types)[len(state) + index]
            assert isinstance(found, TensorType)
            return found

        directions = self._directions(self.scan_output_directions, len(outputs), "scan_output_directions")
        axes = self._per(self.scan_output_axes, len(outputs), "scan_output_axes")
        stacks = [
            _stack(xp, s[::-1] if d else s, a, self.body.outputs[len(state) + i].type, partial(empty, i))
            for i, (s, a, d) in enumerate(zip(outputs, axes, directions, strict=True))
        ]
        return (*state, *stacks)


def _common_length(lengths: Sequence[Dim]) -> Dim:
    """Return the length of all scan inputs, an integer if one is known. Raises TypeMismatch if they differ."""
    if not lengths:
        return dims.fresh()
    common = next((n for n in lengths if isinstance(n, int)), lengths[0])
    if not all(dims.may_equal(common, n) for n in lengths):
        raise TypeMismatch(f"the scan inputs must have one length, but have {', '.join(map(str, lengths))}")
    return common
