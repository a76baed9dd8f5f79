"""Factories that make the kernels of a node for all sizes without Python: views, attention, recurrent layers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from combinations import in_one_item
from kernel_runs import FLOATS, bit_patterns
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import graphkit as gk
from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import rule_of
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops._base import apply
from graphkit.ops.internal.attention_cache import CachedAttention
from graphkit.ops.internal.attention_gradient import FusedAttentionGrad, FusedAttentionWithStatistics
from graphkit.ops.internal.fused_attention import FusedAttention
from graphkit.ops.rnn.backward import GRURecurrence, LSTMRecurrence, RNNRecurrence
from graphkit.ops.rnn.layers import GRU, LSTM, RNN

RNG = np.random.default_rng(0)
Arrays = Sequence[np.ndarray | None]


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def factory(node: Node, threads: int = 1, used: Sequence[bool] = ()) -> native.KernelFactory:
    """The node's factory, which has to be a native one."""
    prepare = rule_of("cpu", node.op).prepare
    assert prepare is not None
    used = tuple(used) or (True,) * len(node.outputs)
    prepared = prepare(node, KernelContext(threads=threads, used_outputs=used, sizes_vary=True))
    made = getattr(prepared, "native", None)
    assert isinstance(made, native.KernelFactory)
    return made


def run(made: native.KernelFactory, arrays: Arrays, like: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of the kernel for these operands. `like`: arrays of the results' types and shapes."""
    kernel = made([None if a is None else a.shape for a in arrays], [a.shape for a in like])
    assert kernel is not None
    outputs = [np.full(a.shape, 77).astype(a.dtype) for a in like]
    kernel(list(arrays), outputs)
    return outputs


def typed(dtype: Any, *shape: int | str) -> Value:
    return Value(TensorType(str(dtype), gk.input("x", shape).tensor.shape))


# --- views --------------------------------------------------------------------------------------------

VIEWS: dict[str, tuple[list[tuple[int, ...]], list[np.ndarray], dict[str, Any]]] = {
    "Transpose": ([(2, 3, 4), (5, 1, 4), (0, 3, 4)], [], {}),
    "Transpose in an order": ([(2, 3, 4), (5, 1, 4), (0, 3, 4)], [], {"perm": (2, 0, 1)}),
    "Tile": ([(2, 3, 1), (1, 1, 4), (3, 0, 2)], [np.array([2, 1, 3])], {}),
    "DepthToSpace": ([(1, 8, 2, 3), (3, 4, 5, 1), (0, 4, 1, 1)], [], {"blocksize": 2}),
    "DepthToSpace by columns": ([(1, 8, 2, 3), (3, 4, 5, 1)], [], {"blocksize": 2, "mode": "CRD"}),
    "SpaceToDepth": ([(1, 8, 2, 4), (3, 4, 6, 2), (0, 4, 2, 2)], [], {"blocksize": 2}),
    "Slice": (
        [(9, 8, 3), (5, 7, 1), (1, 2, 3), (0, 8, 2)],
        [np.array([-1, 1]), np.array([-(2**63), 2**63 - 1]), np.array([0, -2]), np.array([-2, 3])],
        {},
    ),
}
FUNCTION_OF = {"DepthToSpace": "depth_to_space", "SpaceToDepth": "space_to_depth"}


@in_one_item("values")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("case", VIEWS)
def test_views(case: str, threads: int) -> None:
    name, (shapes, operands, attributes) = case.split()[0], VIEWS[case]
    x = gk.input("x", [f"d{i}" for i in range(len(shapes[0]))])
    node = getattr(F, FUNCTION_OF.get(name, name.lower()))(x, *operands, **attributes).node
    made = factory(node, threads)
    letters = [f"x{i}" for i in range(1 + len(operands))]
    reference = ReferenceEvaluator(helper.make_node(name, letters, ["y"], **attributes))
    for shape in shapes:
        arrays = [normal(*shape), *operands]
        (expected,) = reference.run(None, dict(zip(letters, arrays, strict=True)))
        (found,) = run(made, arrays, [expected])
        np.testing.assert_array_equal(found, expected, err_msg=f"{case} {shape}")


@in_one_item()
@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(bool), np.dtype(np.int64)], ids=str)
def test_broadcasts(dtype: np.dtype) -> None:
    x = typed(dtype, "N", 1, "M")
    repeated = np.array([2, 1, 3, 1])
    made = factory(F.expand(x, repeated).node)
    for n, m in ((1, 4), (5, 1), (0, 3), (3, 17)):
        array = bit_patterns((n, 1, m), dtype)
        expected = np.ascontiguousarray(np.broadcast_to(array, (2, n, 3, m)))
        (found,) = run(made, [array, repeated], [expected])
        assert found.tobytes() == expected.tobytes()
    with pytest.raises(native.Error, match="fewer axes"):
        made([(2, 1, 3), (4,)], [(2, 3)])


def test_slices_with_bounds_that_depend_on_sizes() -> None:
    """An unknown bound follows from the other one and the sizes. Otherwise, the factory gets the starts."""
    for seed in range(300):
        rng = np.random.default_rng(seed)
        size, start, end, step = (int(rng.integers(*span)) for span in ((0, 9), (-12, 12), (-12, 12), (-3, 4)))
        x = np.arange(2 * size * 3, dtype=np.int16).reshape(2, size, 3)
        step = step or 1
        (expected,) = ReferenceEvaluator(helper.make_node("Slice", list("xseat"), ["y"])).run(
            None, {"x": x, "s": np.array([start]), "e": np.array([end]), "a": np.array([1]), "t": np.array([step])}
        )
        bounds: list[tuple[int | None, int | None]] = [(start, end), (start, None), (None, end), (None, None)]
        for axis, (first, last) in ((axis, pair) for axis in (1, -2) for pair in bounds):
            made = native.SliceFactory([(axis, first, last, step)], "int16", 1)
            reads = first is None and (last is None or step != 1)
            assert made.reads_elements == ([1] if reads else [])
            kernel = made([x.shape, (start,) if reads else (1,)], [expected.shape])
            assert kernel is not None
            found = np.empty_like(expected)
            kernel([x, None], [found])
            np.testing.assert_array_equal(found, expected, err_msg=f"{size} [{start}:{end}:{step}] {first} {last}")


def test_slices_that_shapes_do_not_decide() -> None:
    made = native.SliceFactory([(0, None, None, 1)], "float32", 1)
    for inputs in ([(5,), (0, 1)], [(5,), ()], [(5,)]):
        with pytest.raises(native.Error, match=r"one start for each axis|operand 1 is absent"):
            made(inputs, [(4,)])
    assert made([(5,), (1,)], [(4,)]) is not None
    with pytest.raises(native.Error, match="a step is 0"):
        native.SliceFactory([(0, 0, 1, 0)], "float32", 1)
    made = native.SliceFactory([(0, 2, None, 1)], "float32", 1)
    with pytest.raises(native.Error, match="no 4 elements along axis 0"):
        made([(5,)], [(4,)])
    with pytest.raises(native.Error, match="different numbers of axes"):
        made([(5,)], [(4, 1)])


# --- attention ----------------------------------------------------------------------------------------


def scores_of(q: np.ndarray, k: np.ndarray, mask: np.ndarray | None, scale: float, causal: bool) -> np.ndarray:
    scores = np.einsum("nhld,nhsd->nhls", q, k, dtype=np.float64) * scale
    if mask is not None:
        scores = np.where(mask, scores, -1e4) if mask.dtype == bool else scores + mask
    rows, keys = scores.shape[2:]
    return np.where(np.tri(rows, keys, keys - rows, dtype=bool), scores, -np.inf) if causal else scores


def softmax(scores: np.ndarray) -> np.ndarray:
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def close(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


SIZES = [(2, 4, 6), (1, 1, 9), (3, 17, 17), (1, 40, 70)]
MASKS = {"no mask": None, "added": "float32", "chosen": "bool"}


def mask_at(kind: str, rows: int, keys: int) -> np.ndarray | None:
    if kind == "chosen":
        return np.tri(rows, keys, 0, dtype=bool)
    return None if kind == "no mask" else normal(rows, keys)


@in_one_item()
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", MASKS)
def test_attention_and_its_gradient(kind: str, causal: bool, last: bool) -> None:
    layout = "NLHD" if last else "NHLD"
    options: dict[str, Any] = {
        "scale": 0.5, "causal": causal, "mask_value": -1e4, "layout": layout, "output_layout": layout,
    }  # fmt: skip
    q, k, v = (
        typed("float32", *(("N", n, 3, d) if last else ("N", 3, n, d))) for n, d in (("L", 5), ("S", 5), ("S", 2))
    )
    mask = None if (dtype := MASKS[kind]) is None else typed(dtype, "L", "S")
    y, largest, total = apply(FusedAttentionWithStatistics(**options), q, k, v, mask)
    gradient = factory(apply(FusedAttentionGrad(**options), q, k, v, mask, y, largest, total, y)[0].node)
    plain, scored = factory(apply(FusedAttention(**options), q, k, v, mask).node), factory(y.node)
    turned = (lambda a: np.ascontiguousarray(np.swapaxes(a, 1, 2))) if last else (lambda a: a)
    for n, rows, keys in SIZES:
        a, b, c, dy = normal(n, 3, rows, 5), normal(n, 3, keys, 5), normal(n, 3, keys, 2), normal(n, 3, rows, 2)
        given = mask_at(kind, rows, keys)
        scores = scores_of(a, b, given, 0.5, causal)
        p = softmax(scores)
        out, most = (p @ c).astype(np.float32), scores.max(axis=-1).astype(np.float32)
        sums = np.exp(scores - scores.max(axis=-1, keepdims=True)).sum(axis=-1).astype(np.float32)
        operands = [*map(turned, (a, b, c)), given]
        close(run(plain, operands, [turned(out)]), [turned(out)])
        close(run(scored, operands, [turned(out), most, sums]), [turned(out), most, sums])
        dp = dy @ np.swapaxes(c, 2, 3)
        ds = p * (dp - (dp * p).sum(axis=-1, keepdims=True))
        ds = np.where(given, ds, 0) if kind == "chosen" else ds
        expected = [ds @ b * 0.5, np.swapaxes(ds, 2, 3) @ a * 0.5, np.swapaxes(p, 2, 3) @ dy]
        expected = [turned(e.astype(np.float32)) for e in expected]
        close(run(gradient, [*operands, turned(out), most, sums, turned(dy)], expected), expected)


@in_one_item()
@pytest.mark.parametrize("kind", MASKS)
def test_attention_over_a_cache(kind: str) -> None:
    q, k, v = typed("float32", "N", 6, "L", 5), typed("float32", "N", 2, "L", 5), typed("float32", "N", 2, "L", 4)
    past = typed("float32", "N", 2, "P", 5), typed("float32", "N", 2, "P", 4)
    mask = None if (dtype := MASKS[kind]) is None else typed(dtype, "L", "P+L")
    y = apply(CachedAttention(scale=0.5, mask_value=-1e4), q, k, v, *past, mask)[0]
    whole, alone = factory(y.node), factory(y.node, used=[True, False, False])
    for n, rows, before in ((2, 1, 6), (1, 3, 0), (2, 7, 20)):
        a, b, c = normal(n, 6, rows, 5), normal(n, 2, rows, 5), normal(n, 2, rows, 4)
        olds = normal(n, 2, before, 5), normal(n, 2, before, 4)
        given = mask_at(kind, rows, before + rows)
        keys, values = (np.concatenate(pair, axis=2) for pair in zip(olds, (b, c), strict=True))
        p = softmax(scores_of(a, np.repeat(keys, 3, axis=1), given, 0.5, False))
        expected = [(p @ np.repeat(values, 3, axis=1)).astype(np.float32), keys, values]
        operands = [a, b, c, *olds, given]
        close(run(whole, operands, expected), expected)
        # A kernel may omit results that no node reads.
        kernel = alone([None if o is None else o.shape for o in operands], [e.shape for e in expected])
        found = np.zeros_like(expected[0])
        assert kernel is not None
        kernel(operands, [found, None, None])
        close([found], expected[:1])


def test_attention_of_other_types_has_no_kernel() -> None:
    q = typed("float64", "N", 2, "L", 4)
    made = factory(apply(FusedAttention(), q, q, q).node)
    assert made([(1, 2, 3, 4)] * 3, [(1, 2, 3, 4)]) is None


# --- recurrent layers ---------------------------------------------------------------------------------

LAYERS: dict[str, tuple[type, type, int, int]] = {
    "RNN": (RNN, RNNRecurrence, 1, 1),
    "GRU": (GRU, GRURecurrence, 3, 2),
    "LSTM": (LSTM, LSTMRecurrence, 4, 3),
}
# Each takes alpha and beta.
FUNCTIONS = ("HardSigmoid", "Affine", "ScaledTanh")


def by_onnx_runtime(name: str, arrays: Arrays, results: int, **attributes: Any) -> list[np.ndarray]:
    """The results of one node of opset 14, which is computed by ONNX Runtime."""
    types = {"float32": TensorProto.FLOAT, "int32": TensorProto.INT32}
    names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    feeds = {n: a for n, a in zip(names, arrays, strict=True) if a is not None}
    inputs = [helper.make_tensor_value_info(n, types[a.dtype.name], a.shape) for n, a in feeds.items()]
    outputs = [f"y{i}" for i in range(results)]
    shown = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    graph = helper.make_graph([helper.make_node(name, names, outputs, **attributes)], "g", inputs, shown)
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    found: list[np.ndarray] = onnxruntime.InferenceSession(file.SerializeToString()).run(None, feeds)
    return found


@in_one_item()
@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layers(name: str, direction: str, lengths: bool) -> None:
    layer, recurrence, gates, functions = LAYERS[name]
    directions = 2 if direction == "bidirectional" else 1
    options: dict[str, Any] = {"hidden_size": 5, "direction": direction}
    if lengths:
        options |= {
            "activations": FUNCTIONS[:functions] * directions,
            "activation_alpha": (0.25, 0.5, 0.75)[:functions] * directions,
            "activation_beta": (0.5, 0.125, 1.5)[:functions] * directions,
        }
    w, r, b = normal(directions, gates * 5, 3), normal(directions, gates * 5, 5), normal(directions, gates * 10)
    weights = [a * np.float32(0.3) for a in (w, r, b)]
    operands = [typed("float32", "T", "N", 3), *(typed("float32", *a.shape) for a in weights)]
    operands += [typed("int32", "N")] if lengths else []
    both = [factory(apply(kind(**options), *operands)[0].node) for kind in (layer, recurrence)]
    states = 2 if name == "LSTM" else 1
    for steps, batch in ((4, 3), (1, 1), (9, 2), (6, 5)):
        arrays: list[np.ndarray] = [normal(steps, batch, 3), *weights]
        if lengths:
            arrays.append(RNG.integers(1, steps + 1, batch, dtype=np.int32))
        expected = by_onnx_runtime(name, arrays, 1 + states, **options)
        close(run(both[0], arrays, expected), expected)
        saved = [np.zeros((directions, steps, batch, n * 5), np.float32) for n in (gates, *[1] * states)]
        found = run(both[1], arrays, [*expected, *saved])
        close(found[: 1 + states], expected)
        if direction == "forward":
            # The state before a step is the result of the step before it.
            before = found[1 + states + 1][0]
            assert not before[0].any()
            for n in range(batch):
                going = steps if not lengths else int(arrays[4][n])
                np.testing.assert_array_equal(before[1:going, n], found[0][: going - 1, 0, n])


def test_pointwise_kernels_of_one_factory_share_their_steps() -> None:
    """The steps depend on how operands are broadcast. Each kernel equals the first one of another factory."""

    def add_and_double() -> native.PointwiseFactory:
        instructions = [("add", [0, 1], ""), ("mul", [3, 2], "")]
        two = np.float32(2).tobytes()
        return native.PointwiseFactory(
            "AddMul", ["float32", "float32"], [("float32", two)], instructions, [(4, "float32")], "", 1
        )

    rng = np.random.default_rng(0)
    shared = add_and_double()
    for _ in range(200):
        n, m = (int(rng.choice([1, 2, 3, 7, 64, 300])) for _ in range(2))
        pairs = [((n, m), b) for b in ((n, m), (m,), (n, 1), (1,), ())]
        a, b = pairs[rng.integers(len(pairs))][:: rng.choice([-1, 1])]
        x, y = rng.standard_normal(a, np.float32), rng.standard_normal(b, np.float32)
        expected = (x + y) * np.float32(2)
        made, alone = (f([x.shape, y.shape], [expected.shape]) for f in (shared, add_and_double()))
        assert made is not None
        assert alone is not None
        assert (made.inplace, made.scratch_bytes) == (alone.inplace, alone.scratch_bytes)
        found = np.empty_like(expected)
        made([x, y], [found])
        np.testing.assert_array_equal(found, expected)
