"""Operands with data-dependent elements that determine sizes: fed, computed, and read from values of unknown size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item
from compiled_graph import Native, body, draw, value

import graphkit as gk
from graphkit.checks.samples import Case, _is_literal, dtypes_of, make_case, samples_of
from graphkit.errors import OutOfMemory, RuntimeFailure, TypeMismatch, UnsupportedError
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.registry import make_kernel
from graphkit.executor.lower import run_time_kernel
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType
from graphkit.ops import F, Op, registry
from graphkit.ops.evaluate import evaluate

pytestmark = pytest.mark.usefixtures("strict")


# --- what the registry's samples give as constants, fed ---------------------------------------------

# These have no kernel for sizes that are not known: windows are folded.
WITHOUT = {"HannWindow", "HammingWindow", "BlackmanWindow", "Col2Im", "Im2Col"}
# These have none at all: of constants they are folded.
WITHOUT |= {"OneHotEncoder", "ImageDecoder", "TfIdfVectorizer"}
# The slope of ReduceProd is made of other operators by its axes.
WITHOUT |= {"LeaveOneOutProduct"}


def is_interpreted(case: Case) -> bool:
    """Whether the case has no kernel if its operands are fed. A Cast to fewer than 8 bits has none."""
    small = {DType.INT4, DType.UINT4, DType.INT2, DType.UINT2}
    casts = case.op.name == "Cast" and not small.isdisjoint(v.dtype for v in case.graph().outputs)
    return casts or case.op.name in WITHOUT


def with_constants(cls: type[Op]) -> Iterator[Case]:
    """One case for each sample that has integers or float32 as constants."""
    for number, sample in enumerate(samples_of(cls)):
        if any(map(_is_literal, sample.inputs)):
            cases = (make_case(cls, number, dtype) for dtype in dtypes_of(cls, sample))
            yield from islice(filter(has_plain_constants, cases), 1)


def has_plain_constants(case: Case) -> bool:
    """Whether the case makes a graph with constants, all of integers or float32."""
    arrays = [a for a in case.arrays if a is not None]
    constants = [a for a, fixed in zip(case.arrays, case.is_constant, strict=True) if fixed and a is not None]
    if not constants or any(not isinstance(a, np.ndarray) or a.dtype == object for a in arrays):
        return False
    return all(a.dtype.kind in "iub" or a.dtype == np.float32 for a in constants) and case.has_tensors_only


def natively(case: Case, *, fed: bool) -> list[np.ndarray] | None:
    """The results of the case, with its constants as inputs if `fed`; None when something is interpreted."""
    graph = case.graph(all_inputs=fed)
    given = zip(case.arrays, case.is_constant, strict=True)
    arrays = [a for a, constant in given if a is not None and (fed or not constant)]
    executor = Executor(graph, ParamStore({}), threads=1)
    try:
        got = executor.run(dict(zip(graph.input_names, arrays, strict=True)))
    except UnsupportedError:
        return None
    return [np.asarray(a) for a in got.values()]


SAMPLED = [cls for cls in registry if any(with_constants(cls))]


@in_one_item()
@pytest.mark.parametrize("cls", SAMPLED, ids=lambda cls: cls.name)
@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.full)])
def test_fed_operands_run_natively_where_constants_do(cls: type[Op], part: int) -> None:
    """Every other sample of an operator by default."""
    for case in islice(with_constants(cls), part, None, 2):
        known = natively(case, fed=False)
        if known is None or any(v.dtype is DType.STRING for v in case.graph().outputs):
            continue
        got = natively(case, fed=True)
        if is_interpreted(case):
            assert got is None, f"{case.name} runs natively, and is listed as interpreted"
            continue
        assert got is not None, f"{case.name} is interpreted when its operands are fed"
        for a, b in zip(got, known, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            if a.dtype.kind not in "iub":
                np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-5, atol=1e-6)
            else:
                np.testing.assert_array_equal(a, b)


# --- Resize -------------------------------------------------------------------------------------------

X = (1, 2, 5, 6)
MODES = ("nearest", "linear", "cubic")


def image(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return (rng.standard_normal(shape or X) * 10).astype(dtype)


def floats(*elements: float) -> np.ndarray:
    return np.array(elements, np.float32)


@in_one_item()
@pytest.mark.parametrize("mode", MODES)
def test_resize_by_fed_scales_and_sizes(mode: str) -> None:
    rng = np.random.default_rng(0)
    x, scales, sizes = value("x", 1, 2, "h", "w"), value("scales", 4), value("sizes", 4, dtype="int64")
    by_scales = Native([x, scales], [F.resize(x, None, scales, mode=mode)])
    by_sizes = Native([x, sizes], [F.relu(F.resize(x, None, None, sizes, mode=mode))])
    for shape in (X, (1, 2, 7, 6), X):
        for elements in ((1, 1, 2, 1.5), (1, 1, 0.6, 2), (1, 1, 1, 1)):
            by_scales(image(rng, *shape), floats(*elements))
        for wanted in ((1, 2, 8, 9), (1, 2, 3, 1), (1, 2, 0, 4)):
            by_sizes(image(rng, *shape), np.array(wanted))


@in_one_item()
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float64", "bfloat16"])
def test_resize_of_other_types(dtype: str) -> None:
    rng = np.random.default_rng(1)
    x, scales = value("x", *X, dtype=dtype), value("scales", 4)
    for mode in MODES:
        graph = Graph([x, scales], [F.resize(x, None, scales, mode=mode)])
        feeds = {"x": np.abs(image(rng)).astype(x.dtype.numpy), "scales": floats(1, 1, 2, 1.5)}
        (got,) = Executor(graph, ParamStore({})).run(feeds).values()
        (wanted,) = evaluate(graph, list(feeds.values()))
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        tolerance = {"uint8": 1, "bfloat16": 0.1, "float16": 0.02}.get(dtype, 1e-9)
        np.testing.assert_allclose(got.astype(float), wanted.astype(float), atol=tolerance)


@in_one_item()
@pytest.mark.parametrize("mode", MODES)
def test_resize_behind_a_run_time_size(mode: str) -> None:
    """Resize by constants, by fed scales and by scales computed from the size; with a fed region of interest."""
    rng = np.random.default_rng(2)
    x, rows, scales, roi = value("x", 1, 2, "n", "w"), value("rows", "n", dtype="bool"), value("s", 4), value("roi", 8)
    kept = F.compress(x, rows, axis=2)
    both = [F.slice(F.shape(kept), np.array(part[:1]), np.array(part[1:])) for part in ((0, 2), (2, 4))]
    doubled = F.concat(both[0], F.mul(both[1], np.int64(2)), axis=0)
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 3.0}
    run = Native(
        [x, rows, scales, roi],
        [
            F.resize(kept, None, None, np.array([1, 2, 8, 9]), mode=mode),
            F.resize(kept, None, None, np.array([8, 9]), axes=(2, 3), mode=mode, keep_aspect_ratio_policy="not_larger"),
            F.resize(kept, None, floats(1, 1, 2, 1.5), mode=mode),
            F.resize(kept, None, scales, mode=mode),
            F.resize(kept, None, None, doubled, mode=mode),
            F.resize(kept, roi, scales, mode=mode, **crop),
            F.resize(kept, roi, scales, mode=mode),  # which does not read the region
        ],
    )
    for kept_rows in ([1, 1, 0, 1, 1], [0, 1, 0, 0, 0], [1, 1, 1, 1, 1]):
        region = floats(0, 0, 0.1, 0.2, 1, 1, 0.9, 1.3)
        run(image(rng), np.array(kept_rows, bool), floats(1, 1, 1.5, 0.5), region)


def test_gradients_of_resize_by_fed_scales_and_sizes() -> None:
    rng = np.random.default_rng(3)
    x, scales, sizes = value("x", *X), value("scales", 4), value("sizes", 4, dtype="int64")
    for settings, elements in (((None, scales), floats(1, 1, 2, 0.5)), ((None, None, sizes), np.array([1, 2, 3, 9]))):
        y = F.resize(x, *settings, mode="linear")
        loss = F.reduce_sum(F.mul(y, y), keepdims=False)
        Native([x, settings[-1]], gk.gradient([loss], [x]))(image(rng), elements)


def test_resize_to_what_cannot_be() -> None:
    x, scales, sizes = value("x", 5, 6), value("scales", 2), value("sizes", 2, dtype="int64")
    array = np.zeros((5, 6), np.float32)
    by_scales = Executor(Graph([x, scales], [F.resize(x, None, scales, name="grow")]), ParamStore({}))
    for wrong in (0, -1, np.nan, np.inf):
        with pytest.raises(RuntimeFailure, match=rf"^node 'grow'(?!.*'grow').*cannot be scaled by {wrong:g}"):
            by_scales.run({"x": array, "scales": floats(wrong, 1)})
    with pytest.raises(OutOfMemory, match=r"^node 'grow' Resize.* GiB"):
        by_scales.run({"x": array, "scales": floats(3e9, 3e9)})
    by_sizes = Executor(Graph([x, sizes], [F.resize(x, None, None, sizes, name="grow")]), ParamStore({}))
    with pytest.raises(RuntimeFailure, match=r"'grow'.*cannot be resized to -1"):
        by_sizes.run({"x": array, "sizes": np.array([-1, 6])})
    assert by_sizes.run({"x": array, "sizes": np.array([0, 6])}).popitem()[1].shape == (0, 6)
    with pytest.raises(TypeMismatch, match=r"axis 0 of \[0, 6\] cannot be resized to 4"):
        F.resize(value("x", 0, 6), None, None, np.array([4, 6]))


# --- behind values of run-time size --------------------------------------------------------------------

Build = Callable[..., Sequence[Any]]
Arrays = Callable[[np.random.Generator, int], Sequence[Any]]


def whole(name: str, *shape: Any, dtype: str = "int64") -> Value:
    return value(name, *shape, dtype=dtype)


def positive(k: Value) -> Value:
    return F.greater(k, np.float32(0))


def places(k: Value) -> Value:
    return F.transpose(F.non_zero(positive(k)))


def plane(k: Value) -> Value:
    return F.reshape(k, np.array([1, 1, -1, 4]))


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(9).standard_normal(shape).astype(np.float32)


def limited(k: Value) -> Value:
    flat = F.reshape(k, np.array([-1]))
    return F.reshape(F.min(F.shape(flat), np.array([5])), np.array([1]))


FIRST = np.array([0])
ROW_OF_FOUR = np.array([[0, 1, 1, 0]])
# Nodes that read k, [rows, 4], whose number of rows (at least two) depends on data; further inputs, and their feeds.
BEHIND: dict[str, tuple[Build, Sequence[Value], Arrays]] = {
    "ScatterElements": (
        lambda k, u: [
            F.scatter_elements(k, ROW_OF_FOUR, u, axis=0),
            F.scatter_elements(k, ROW_OF_FOUR, u, axis=0, reduction="add"),
        ],
        [value("u", 1, 4)],
        lambda rng, n: [image(rng, 1, 4)],
    ),
    "ScatterND": (
        lambda k, u: [
            F.scatter_nd(k, np.array([[0], [1]]), u),
            F.scatter_nd(F.neg(k), places(k), F.gather_nd(k, places(k))),
        ],
        [value("u", 2, 4)],
        lambda rng, n: [image(rng, 2, 4)],
    ),
    "GatherND": (
        lambda k: [F.gather_nd(k, np.array([[0, 1], [1, 3]])), F.gather_nd(k, places(k))],
        [],
        lambda rng, n: [],
    ),
    "GatherElements": (
        lambda k: [F.gather_elements(k, F.cast(positive(k), to="int64"), axis=1), F.gather_elements(k, ROW_OF_FOUR)],
        [],
        lambda rng, n: [],
    ),
    "TopK": (
        lambda k, most: [
            *F.top_k(k, np.array([2]), axis=1), *F.top_k(k, most, axis=0),
            *F.top_k(F.reshape(k, np.array([-1])), limited(k), axis=0),
        ],
        [whole("most", 1)],
        lambda rng, n: [np.array([2])],
    ),
    "Pad, Conv": (
        lambda k, pads: [
            F.relu(F.conv(F.pad(plane(k), pads), weights(2, 1, 2, 3), weights(2))),
            F.conv(F.pad(plane(k), np.array([0, 0, 1, 1, 0, 0, 2, 1])), weights(2, 1, 2, 3)),
            F.conv_transpose(F.pad(plane(k), pads), weights(1, 2, 2, 3), strides=(2, 2)),
        ],
        [whole("pads", 8)],
        lambda rng, n: [np.array([0, 0, 1, 1, 0, 0, n, 1])],
    ),
    "Range": (
        lambda k, a, b, s: [F.range(a, b, s), F.range(np.array(0), F.gather(F.shape(k), np.array(0)), np.array(1))],
        [whole("a"), whole("b"), whole("s")],
        lambda rng, n: [np.array(1), np.array(n + 3), np.array(2)],
    ),
    "Expand, Tile": (
        lambda k, shape, times: [F.expand(F.reshape(k, np.array([1, -1])), shape), F.tile(k, times)],
        [whole("shape", 2), whole("times", 2)],
        lambda rng, n: [np.array([n, 1]), np.array([2, n])],
    ),
    "OneHot": (
        lambda k, depth: [F.one_hot(F.cast(positive(k), to="int64"), depth, floats(0, 2), axis=0)],
        [whole("depth", 1)],
        lambda rng, n: [np.array([n])],
    ),
    "RoiAlign": (
        lambda k, x, rois: [
            F.roi_align(
                x, F.abs(k), F.constant_of_shape(F.slice(F.shape(k), FIRST, FIRST + 1), value=FIRST),
                output_height=2, output_width=2, sampling_ratio=2,
            ),
            F.roi_align(plane(k), rois, np.array([0, 0]), output_height=2, output_width=2),
        ],
        [value("x4", 1, 3, 8, 8), value("rois", 2, 4)],
        lambda rng, n: [image(rng, 1, 3, 8, 8), np.abs(image(rng, 2, 4))],
    ),
    "Split, Slice": (
        lambda k, parts, start, axes: [*F.split(k, parts, axis=1), F.slice(k, start, np.array([9]), axes)],
        [whole("parts", 2), whole("start", 1), whole("axes", 1)],
        lambda rng, n: [np.array([1, 3]), np.array([1]), np.array([n % 2])],
    ),
    "ReduceSum, CumSum": (
        lambda k, axes, axis: [F.reduce_sum(k, axes), F.reduce_mean(k, axes), F.cum_sum(k, axis)],
        [whole("axes", 1), whole("axis")],
        lambda rng, n: [np.array([n % 2]), np.array(-1 - n % 2)],
    ),
}  # fmt: skip


@in_one_item("values")
@pytest.mark.parametrize("looped", [False, True])
@pytest.mark.parametrize("name", BEHIND)
def test_behind_a_run_time_size(name: str, looped: bool) -> None:
    build, extra, arrays = BEHIND[name]
    inputs = [value("x", "n", 4), value("c", "n", dtype="bool"), *extra]
    if looped:

        def once(i: Any, going: Any, x: Any, c: Any, *rest: Any) -> list[Any]:
            return [going, *build(F.compress(x, c, axis=0), *rest)]

        step = body([v.tensor for v in inputs], once)
        made = F.loop(np.array(1), None, *inputs, body=step, captures=len(inputs))
        outputs = list(made) if isinstance(made, (list, tuple)) else [made]
    else:
        outputs = list(build(F.compress(inputs[0], inputs[1], axis=0), *extra))
    run = Native(inputs, outputs)
    rng = np.random.default_rng(7)
    for n in (6, 9, 2, 6):
        kept = rng.random(n) < 0.6
        kept[:2] = True
        run(image(rng, n, 4), kept, *arrays(rng, n))


# --- Range and OneHot ------------------------------------------------------------------------------------


@in_one_item()
@pytest.mark.parametrize("dtype", ["int16", "int32", "int64", "float32", "float64"])
def test_ranges_of_fed_bounds(dtype: str) -> None:
    a, b, s = (value(name, dtype=dtype) for name in "abs")
    graph = Graph([a, b, s], [F.range(a, b, s, name="count")])
    run = Executor(graph, ParamStore({}))
    steps = [(0, 5, 1), (5, 0, -2), (3, 3, 1), (0, 5, -1), (-7, 100, 3)]
    steps += [(0.25, 2, 0.5), (0, 1, 0.1)] if dtype.startswith("float") else []
    for bounds in steps:
        arrays = [np.array(v).astype(dtype) for v in bounds]
        (got,) = run.run(dict(zip("abs", arrays, strict=True))).values()
        (wanted,) = evaluate(graph, arrays)
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)
    with pytest.raises(RuntimeFailure, match=r"count.*delta must not be 0"):
        run.run(dict(zip("abs", (np.array(v).astype(dtype) for v in (0, 5, 0)), strict=True)))
    if dtype.startswith("float"):
        for wrong in ((0, np.nan, 1), (0, np.inf, 1), (-np.inf, 0, 1)):
            with pytest.raises(RuntimeFailure, match=r"count.*number of elements would not be finite"):
                run.run(dict(zip("abs", (np.array(v).astype(dtype) for v in wrong), strict=True)))
        with pytest.raises(OutOfMemory, match=r"count.*more bytes than can be counted"):
            run.run(dict(zip("abs", (np.array(v).astype(dtype) for v in (0, 1e30, 1)), strict=True)))
    elif dtype == "int64":
        big = np.iinfo(np.int64)
        with pytest.raises(OutOfMemory, match=r"count.*more bytes than can be counted"):
            run.run({"a": np.array(big.min), "b": np.array(big.max), "s": np.array(1)})
        (got,) = run.run({"a": np.array(big.max - 2), "b": np.array(big.max), "s": np.array(big.max)}).values()
        assert got.tolist() == [big.max - 2]


@in_one_item()
@pytest.mark.parametrize("depth_dtype", ["int64", "int32", "float32", "uint8"])
def test_one_hot_of_a_fed_depth(depth_dtype: str) -> None:
    indices, depth, values = value("i", "n", dtype="int64"), value("d", dtype=depth_dtype), value("v", 2)
    run = Native([indices, depth, values], [F.one_hot(indices, depth, values, axis=axis) for axis in (0, -1)])
    for n, size in ((5, 3), (0, 4), (7, 1), (3, 0)):
        run(np.arange(n) - 2, np.array(size).astype(depth_dtype), floats(-1, 5))
    if depth_dtype == "int64":
        with pytest.raises(RuntimeFailure, match=r"depth must be at least 0 \(it is -3\)"):
            run.executor.run({"i": np.arange(2), "d": np.array(-3), "v": floats(0, 1)})


def test_operands_of_unknown_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the rank is unknown, a node is interpreted."""
    x, shape, kept = value("x", "n"), value("shape", "k", dtype="int64"), value("kept", "k", dtype="bool")
    parts, axes = value("parts", 2, dtype="int64"), value("axes", 1, dtype="int64")
    turned = F.reshape(x, F.compress(shape, kept))
    graph = Graph([x, shape, kept, parts, axes], [*F.split(turned, parts, axis=0), F.reduce_sum(turned, axes)])
    arrays = [np.arange(12, dtype=np.float32), np.array([3, 1, 4]), np.array([True, False, True])]
    arrays += [np.array([1, 2]), np.array([1])]
    feeds = dict(zip(graph.input_names, arrays, strict=True))
    executor = Executor(graph, ParamStore({}))
    with pytest.raises(UnsupportedError, match="split"):
        executor.run(feeds)
    monkeypatch.delenv("GRAPHKIT_STRICT")
    for got, wanted in zip(executor.run(feeds).values(), evaluate(graph, arrays), strict=True):
        np.testing.assert_array_equal(got, wanted)


# --- kernels made in a run --------------------------------------------------------------------------


def test_kernels_made_in_a_run_are_made_for_sizes_that_vary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run may have another size, so the cost of making a kernel counts."""
    contexts = []

    def spy(device: str, node: Node, context: KernelContext) -> Kernel | None:
        contexts.append(context)
        return make_kernel(device, node, context)

    monkeypatch.setattr(run_time_kernel, "make_kernel", spy)
    x, keep = value("x", 1, 3, 12), value("keep", 12, dtype="bool")
    rng = np.random.default_rng(0)
    w = rng.standard_normal((5, 3, 3)).astype(np.float32)
    executor = Executor(Graph([x, keep], [F.conv(F.compress(x, keep, axis=2), w)]), ParamStore({}), threads=1)
    for kept in (12, 7, 3, 9):
        array, chosen = rng.standard_normal((1, 3, 12)).astype(np.float32), np.arange(12) < kept
        (got,) = executor(array, chosen)
        windows = np.lib.stride_tricks.sliding_window_view(array[0, :, :kept].astype(np.float64), 3, axis=1)
        np.testing.assert_allclose(got, np.einsum("clk,ock->ol", windows, w)[None], rtol=0, atol=1e-5)
    assert len(contexts) >= 4
    assert all(context.sizes_vary for context in contexts)


def test_least_recently_used_kernel_is_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each instance of a native program asks the node for kernels. It then keeps those that it got."""
    made: list[int] = []

    def spy(device: str, node: Node, context: KernelContext) -> Kernel | None:
        made.append(node.outputs[0].tensor.static_shape[0])
        return make_kernel(device, node, context)

    monkeypatch.setattr(run_time_kernel, "make_kernel", spy)
    monkeypatch.setattr(run_time_kernel, "_KEPT", 2)
    kernels = run_time_kernel.RunTimeKernel(F.exp(value("x", "n")).node, KernelContext(), frozenset())
    found = {size: kernels.make([[size]], [None]).kernel for size in (7, 12)}
    assert kernels.make([[7]], [None]).kernel is found[7]
    for size in (3, 7, 3, 12):  # 3 replaces 12, and 12 replaces 7
        kernels.make([[size]], [None])
    assert made == [7, 12, 3, 12]
    kernels.make([[7]], [None])
    assert made == [7, 12, 3, 12, 7]


def test_a_sum_of_sizes_beside_a_size_of_its_own() -> None:
    x, keep, other = value("x", 6, 2), value("keep", 6, dtype="bool"), value("other", 6, dtype="bool")
    some = F.compress(x, keep, axis=0)
    both = F.concat([some, F.compress(x, F.not_(keep), axis=0)], axis=0)
    graph = Graph([x, keep, other], [F.concat([both, F.compress(x, other, axis=0)], axis=1)])
    executor = Executor(graph, ParamStore({}), threads=1)
    array, every = draw(np.random.default_rng(0), 6, 2), np.ones(6, bool)
    for chosen in (np.arange(6) < 2, every, ~every):
        (got,) = executor(array, chosen, every)
        np.testing.assert_array_equal(got, np.hstack([np.vstack([array[chosen], array[~chosen]]), array]))
    with pytest.raises(RuntimeFailure, match="Concat"):
        executor(array, every, ~every)


@in_one_item()
@pytest.mark.parametrize("size", [15, "n"])
@pytest.mark.parametrize("last", ["known", "the rest"])
def test_a_reshape_to_the_shape_of_a_branch(size: int | str, last: str) -> None:
    """It is native: one of the unknown sizes of its result is taken for all that is left."""
    x, y, first = value("x", size), value("y", "a", "b"), value("first", dtype="bool")
    sizes = F.shape(gk.cond(first, lambda: F.neg(y), lambda: F.concat([y, y], axis=0)))
    wanted = sizes if last == "known" else F.concat([F.gather(sizes, np.array([0])), np.array([-1])], axis=0)
    run = Native([x, y, first], [F.reshape(F.neg(x), wanted)])
    rng = np.random.default_rng(0)
    for rows, is_first in ((3, True), (5, True)):
        run(draw(rng, 15), draw(rng, rows, 15 // rows), is_first)
    assert not run.executor.plan.fallbacks
    with pytest.raises(RuntimeFailure, match="reshape"):
        run(draw(rng, 15), draw(rng, 4, 3), True)


@in_one_item()
@pytest.mark.parametrize("columns", [1, 4])
def test_expand_along_an_axis_that_a_run_finds_of_size_one(columns: int) -> None:
    """Sizes above 1 determine the result. If a run has size 1, the elements of the shape are needed."""
    x, w, k, rows = value("x", 3, 4), value("w", 5, 4), value("k", 1, dtype="int64"), value("rows", 1, dtype="int64")
    zero, one = np.array([0]), np.array([1])
    wanted = F.shape(F.slice(w, zero, rows, zero))
    run = Native([x, w, k, rows], [F.expand(F.slice(x, zero, k, one), wanted)])
    rng = np.random.default_rng(0)
    run(draw(rng, 3, 4), draw(rng, 5, 4), np.array([columns]), np.array([3]))
    assert not run.executor.plan.fallbacks


def test_reshape_of_a_run_time_size_to_a_known_shape() -> None:
    """One unknown size of the operand takes the elements that the others leave."""
    x, keep = value("x", 3, "n", 4), value("keep", "n", dtype="bool")
    run = Native([x, keep], [F.reshape(F.compress(x, keep, axis=1), np.array([2, 5, 6]))])
    rng = np.random.default_rng(0)
    for n in (5, 9):
        run(draw(rng, 3, n, 4), np.arange(n) < 5)
    assert not run.executor.plan.fallbacks
    with pytest.raises(RuntimeFailure, match=r"Reshape|reshape"):
        run(draw(rng, 3, 5, 4), np.arange(5) < 4)


@pytest.mark.parametrize("swapped", [False, True])
def test_products_of_run_time_sizes(swapped: bool) -> None:
    """If one operand's batch or summed size is unknown, the size of the other operand is used."""
    x, w = value("x", 9, 7, 11), value("w", 3, 5, 8)
    batches, terms = value("batches", 9, dtype="bool"), value("terms", 11, dtype="bool")
    some = F.compress(F.compress(x, batches, axis=0), terms, axis=2)  # [?, 7, ?]
    other = [F.transpose(w, perm=[0, 2, 1]), F.transpose(some, perm=[0, 2, 1])] if swapped else [some, w]
    run = Native([x, batches, terms, w], [F.mat_mul(*other)])
    rng = np.random.default_rng(0)
    run(draw(rng, 9, 7, 11), np.arange(9) < 3, np.arange(11) % 2 == 1, draw(rng, 3, 5, 8))
    assert not run.executor.plan.fallbacks
