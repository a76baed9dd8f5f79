"""Gradients of attention of the card, against those of the standard operators: tiles that are not full, masks, layouts,
queries that see nothing, numbers that are not finite.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import registers
from card_cases import node_of
from card_runs import kernel_of, run
from emulator import Emulator
from together import together

from graphkit.autodiff import gradient
from graphkit.executor.devices.cuda.launches import Source
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_launched
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType, type_of_array
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.ops.internal.attention_gradient import (
    FusedAttentionGrad,
    FusedAttentionWithStatistics,
    statistics_type,
)

pytestmark = pytest.mark.full

TOLERANCES = {"float16": 2e-3, "bfloat16": 1.5e-2, "float32": 4e-6, "float64": 1e-14}
Size = tuple[int, ...]  # batch, heads, queries, keys, depth, width


def drawn(size: Size, kind: str = "float32", layout: str = "NHLD", output: str = "NHLD") -> list[Any]:
    """q, k, v and dy."""
    n, h, rows, keys, depth, width = size
    rng = np.random.default_rng(sum(size))
    parts = ((rows, depth, layout), (keys, depth, layout), (keys, width, layout), (rows, width, output))
    shapes = [(n, h, count, columns) if kept == "NHLD" else (n, count, h, columns) for count, columns, kept in parts]
    return [rng.standard_normal(shape).astype(DType(kind).numpy) for shape in shapes]


def swapped(x: Any, layout: str) -> Any:
    return F.transpose(x, perm=(0, 2, 1, 3)) if layout == "NLHD" else x


def standard(op: FusedAttentionGrad, arrays: list[Any]) -> list[np.ndarray]:
    """The gradients that differentiation makes of products and a softmax, in float64. arrays: q, k, v, dy, a mask."""
    arrays = [a if a.dtype == bool else a.astype(np.float64) for a in arrays]
    inputs = [Value(type_of_array(a)) for a in arrays]
    q, k, v = (swapped(x, op.layout) for x in inputs[:3])
    scores = F.mul(F.mat_mul(q, F.transpose(k, perm=(0, 1, 3, 2))), np.float64(op.scale))
    rows, keys = scores.tensor.static_shape[2:]
    for mask in inputs[4:]:
        scores = F.where(mask, scores, np.float64(op.mask_value)) if mask.dtype is DType.BOOL else F.add(scores, mask)
    if op.causal:
        scores = F.where(np.tri(rows, keys, keys - rows, dtype=bool), scores, np.float64(-np.inf))
    y = swapped(F.mat_mul(F.softmax(scores), v), op.output_layout)
    with np.errstate(all="ignore"):
        return evaluate(Graph(inputs, gradient([y], inputs[:3], [inputs[3]])), arrays)


def computed(emulator: Emulator, op: FusedAttentionGrad, arrays: list[Any], tf32: bool = False) -> list[np.ndarray]:
    """Compute with the kernels of the forward pass and of the gradient."""
    q, k, v, dy, *mask = arrays
    forward = node_of(FusedAttentionWithStatistics(**op.attributes()), q, k, v, *mask)
    statistics = run(emulator, forward, [q, k, v, *mask], kernel=kernel_of(forward, tf32=tf32))
    given = [q, k, v, *(mask or [None]), *statistics, dy]
    gradients = node_of(op, *given)
    return run(emulator, gradients, given, kernel=kernel_of(gradients, tf32=tf32))


def check(emulator: Emulator, op: FusedAttentionGrad, arrays: list[Any]) -> list[np.ndarray]:
    found, wanted = computed(emulator, op, arrays), standard(op, arrays)
    tolerance = TOLERANCES[type_of_array(arrays[0]).dtype.value]
    for name, mine, theirs in zip("qkv", found, wanted, strict=True):
        largest = np.abs(theirs, where=np.isfinite(theirs), out=np.zeros_like(theirs)).max(initial=0)
        np.testing.assert_allclose(
            mine.astype(np.float64), theirs, rtol=5 * tolerance, atol=tolerance * max(largest, 1), err_msg=f"d{name}"
        )
    return found


SIZES = [(2, 3, 5, 7, 3, 2), (1, 1, 33, 70, 13, 17)]
MORE_SIZES = [
    (1, 1, 1, 70, 8, 5),
    (1, 2, 70, 150, 13, 17),
    (1, 1, 1, 1, 1, 1),
    (2, 1, 70, 65, 64, 64),
    (1, 2, 130, 70, 8, 40),
    (2, 1, 17, 130, 100, 128),
    (1, 1, 20, 66, 256, 256),
    (1, 1, 9, 70, 24, 300),
    (1, 1, 70, 20, 300, 7),
    (1, 2, 33, 1, 16, 16),
]
# Of these tensor cores compute half floats: one tile of others in shared memory is 64 rows, and 16.
TENSOR_SIZES = {"float16": (1, 1, 17, 66, 13, 17), "bfloat16": (1, 1, 16, 34, 100, 128)}
MORE_TENSOR_SIZES = [
    (1, 1, 16, 150, 100, 128),
    (2, 1, 70, 65, 64, 64),
    (1, 2, 130, 70, 8, 40),
    (1, 1, 70, 40, 128, 33),
    (1, 1, 16, 16, 1, 1),
    (2, 1, 17, 130, 33, 20),
    (1, 1, 20, 66, 200, 16),
    (1, 1, 20, 66, 16, 200),
    (1, 2, 16, 1, 16, 16),
]


def test_sizes(emulator: Emulator) -> None:
    for size in SIZES:
        for causal in (False, True):
            check(emulator, FusedAttentionGrad(scale=size[4] ** -0.5, causal=causal), drawn(size))


@together()
@pytest.mark.parametrize("size", MORE_SIZES, ids=str)
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_more_sizes(size: Size, kind: str, emulator: Emulator) -> None:
    for causal in (False, True):
        check(emulator, FusedAttentionGrad(scale=size[4] ** -0.5, causal=causal), drawn(size, kind))


@together()
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_floats(kind: str, emulator: Emulator) -> None:
    size = TENSOR_SIZES[kind]
    check(emulator, FusedAttentionGrad(scale=size[4] ** -0.5, causal=kind == "float16"), drawn(size, kind))


@together()
@pytest.mark.parametrize("size", MORE_TENSOR_SIZES, ids=str)
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_more_half_floats(size: Size, kind: str, emulator: Emulator) -> None:
    for causal in (False, True):
        check(emulator, FusedAttentionGrad(scale=size[4] ** -0.5, causal=causal), drawn(size, kind))


@together()
@pytest.mark.parametrize("size", [(1, 1, 17, 34, 13, 17), (2, 1, 70, 65, 64, 50), (1, 2, 40, 70, 16, 32)], ids=str)
def test_floats_by_11_bits(size: Size, emulator: Emulator) -> None:
    """The forward pass and the gradient round in the same way, so the weights of a query have the sum 1."""
    op, arrays = FusedAttentionGrad(scale=size[4] ** -0.5, causal=True), drawn(size)
    found, wanted = computed(emulator, op, arrays, tf32=True), standard(op, arrays)
    for mine, theirs in zip(found, wanted, strict=True):
        finite = np.where(np.isfinite(theirs), theirs, 0)
        np.testing.assert_allclose(mine, theirs, rtol=5e-3, atol=2e-3 * np.abs(finite).max())
    assert any((mine != theirs).any() for mine, theirs in zip(found, computed(emulator, op, arrays), strict=True))


@together()
@pytest.mark.parametrize("layout", ["NHLD", "NLHD"])
@pytest.mark.parametrize("output", ["NHLD", "NLHD"])
def test_layouts(layout: str, output: str, emulator: Emulator) -> None:
    op = FusedAttentionGrad(scale=0.5, layout=layout, output_layout=output)
    for kind in ("float32", "bfloat16"):
        check(emulator, op, drawn((2, 2, 17, 18, 6, 4), kind, layout, output))


@together()
@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_masks(kind: str, emulator: Emulator) -> None:
    """Masks are broadcast in every way that needs different strides. Replaced scores have no gradient."""
    arrays, rng = drawn((2, 3, 17, 18, 6, 4), kind), np.random.default_rng(2)
    for shape in ((17, 18), (2, 1, 1, 18), (1, 3, 17, 1)):
        added = rng.standard_normal(shape).astype(kind)
        check(emulator, FusedAttentionGrad(scale=0.25, causal=True), [*arrays, added])
        seen = np.asarray(rng.random(shape) < 0.7)
        for value in (-1e4, 2.0):
            check(emulator, FusedAttentionGrad(scale=0.25, mask_value=value), [*arrays, seen])


@together()
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_queries_that_see_nothing(kind: str, emulator: Emulator) -> None:
    """Queries without a visible key: all scores are the same number.

    If it is finite, all keys have the same weight, however large the number is. If it is minus infinity, the gradient
    of the values is NaN, and gradients that are 0 by the formula are 0.
    """
    arrays = drawn((1, 1, 18, 20, 8, 8), kind)
    seen = np.random.default_rng(0).random((18, 20)) < 0.7
    seen[3] = seen[17] = False
    for value in (-1e4, -3.3e38):
        found = check(emulator, FusedAttentionGrad(scale=0.25, mask_value=value), [*arrays, seen])
        assert (found[0][:, :, 3] == 0).all()
    dq, dk, dv = check(emulator, FusedAttentionGrad(scale=0.25), [*arrays, seen])
    assert np.isfinite(dq.astype(np.float32)).all()
    assert np.isfinite(dk.astype(np.float32)).all()
    assert np.isnan(dv.astype(np.float32)).all()
    added = np.where(seen, 0, -np.inf).astype(arrays[0].dtype)
    dq, *others = check(emulator, FusedAttentionGrad(scale=0.25), [*arrays, added])
    assert np.flatnonzero(np.isnan(dq.astype(np.float32)).any(axis=(0, 1, 3))).tolist() == [3, 17]
    assert all(np.isnan(x.astype(np.float32)).all() for x in others)
    # The first queries of more than there are keys.
    check(emulator, FusedAttentionGrad(causal=True), drawn((1, 1, 23, 18, 8, 8), kind))


@together()
@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_numbers_that_are_not_finite(kind: str, emulator: Emulator) -> None:
    """They affect the same results as by the formula. Elements after the last query and key are not read."""
    for name, number in ((0, np.nan), (1, -np.inf), (1, np.inf), (2, np.nan), (3, np.inf)):
        arrays = drawn((1, 2, 18, 20, 8, 8), kind)
        arrays[0] = np.abs(arrays[0])
        arrays[name][0, 0, 5, :] = number
        found = check(emulator, FusedAttentionGrad(scale=0.25), arrays)
        assert all(np.isfinite(x[0, 1].astype(np.float32)).all() for x in found), "the other head"


def test_scores_far_from_zero(emulator: Emulator) -> None:
    """A logarithm of the sum would have lost the weights of scores near 1e6."""
    q, k, v, dy = drawn((1, 1, 5, 7, 4, 8))
    q, k = q.round(), k.round()
    q[..., 0] = k[..., 0] = 1000.0
    found, wanted = (make(FusedAttentionGrad(), [q, k, v, dy]) for make in (partial(computed, emulator), standard))
    # The sums of the first column cancel, so it is not compared.
    np.testing.assert_allclose(found[0][..., 1:], wanted[0][..., 1:], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1][..., 1:], wanted[1][..., 1:], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[2], wanted[2], rtol=1e-5, atol=1e-6)


def test_nothing(emulator: Emulator) -> None:
    """Without queries or keys there are zeros to write, or nothing; keys without an element weigh the same."""
    for size in (
        (0, 2, 4, 4, 8, 8),
        (1, 2, 0, 4, 8, 8),
        (1, 2, 4, 0, 8, 8),
        (1, 2, 20, 33, 0, 5),
        (2, 1, 17, 18, 4, 0),
    ):
        n, h, rows, _, _, _ = size
        q, k, v, dy = drawn(size)
        for op in (FusedAttentionGrad(), FusedAttentionGrad(causal=size[3] >= rows)):
            statistics = [dy, *np.ones((2, n, h, rows), np.float32)]
            given = [q, k, v, None, *statistics, dy]
            found = run(emulator, node_of(op, *given), given)
            wanted = [np.zeros_like(x) for x in (q, k, v)]
            if size[4] == 0:
                wanted = standard(op, [q, k, v, dy])
                found = computed(emulator, op, [q, k, v, dy])
            for mine, theirs in zip(found, wanted, strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    node = node_of(FusedAttentionWithStatistics(), *drawn((1, 2, 4, 0, 8, 8))[:3])
    y, largest, total = run(emulator, node, drawn((1, 2, 4, 0, 8, 8))[:3])
    assert (y == 0).all()
    assert (largest == -np.inf).all()
    assert (total == 0).all()


def test_statistics_of_values_without_elements_are_interpreted() -> None:
    node = node_of(FusedAttentionWithStatistics(), *drawn((1, 2, 4, 5, 8, 0))[:3])
    assert make_launched("cuda", node, KernelContext()) is None
    for size in ((0, 2, 4, 5, 8, 0), (1, 2, 0, 5, 8, 8)):
        assert kernel_of(node_of(FusedAttentionWithStatistics(), *drawn(size)[:3])).launches == ()


def test_statistics_of_slices(emulator: Emulator) -> None:
    """Few queries and many keys: the second launch knows them."""
    q, k, v, _ = drawn((1, 2, 2, 600, 8, 8))
    node = node_of(FusedAttentionWithStatistics(scale=2.0), q, k, v)
    assert len(kernel_of(node).launches) == 2
    _, largest, total = run(emulator, node, [q, k, v])
    scores = 2.0 * np.einsum("nhld,nhsd->nhls", q, k).astype(np.float64)
    np.testing.assert_allclose(largest, scores.max(axis=-1), rtol=1e-6)
    np.testing.assert_allclose(total, np.exp(scores - scores.max(axis=-1, keepdims=True)).sum(axis=-1), rtol=1e-5)


def test_what_nobody_reads_is_not_made(emulator: Emulator) -> None:
    arrays = drawn((1, 1, 5, 7, 3, 2))
    q, k, v, dy = arrays
    node = node_of(FusedAttentionWithStatistics(), q, k, v)
    y, nobodys, total = run(emulator, node, [q, k, v], used=(True, False, True))
    assert nobodys is None
    largest = np.einsum("nhld,nhsd->nhls", q, k).max(axis=-1)
    given = [q, k, v, None, y, largest, total, dy]
    for used, launches in (((True, False, False), 2), ((False, False, True), 1), ((False, True, True), 3)):
        gradients = node_of(FusedAttentionGrad(), *given)
        assert len(kernel_of(gradients, used).launches) == launches
        found = run(emulator, gradients, given, used=used)
        for mine, theirs, wanted in zip(found, standard(FusedAttentionGrad(), arrays), used, strict=True):
            assert (mine is not None) == wanted
            if wanted:
                np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


# --- for cards --------------------------------------------------------------------------------------


def node(size: Size, kind: str = "float32", mask: str = "", **attributes: Any) -> Node:
    n, h, rows, keys, depth, width = size
    statistics = Value(TensorType(statistics_type(DType(kind)), (n, h, rows)))
    q, k, v, y = (
        Value(TensorType(kind, (n, h, *shape)))
        for shape in ((rows, depth), (keys, depth), (keys, width), (rows, width))
    )
    added = Value(TensorType(mask, (rows, keys))) if mask else None
    return Node(FusedAttentionGrad(**attributes), [q, k, v, added, y, statistics, statistics, y])


def test_scores_are_never_in_memory() -> None:
    """Working memory is a number for each query."""
    for keys in (1000, 100_000):
        assert kernel_of(node((1, 2, 64, keys, 64, 64))).scratch_bytes == 2 * 64 * 4


def test_large_operands_count_in_64_bits() -> None:
    for keys, index in ((1 << 10, "gk_u32"), (1 << 24, "gk_u64")):
        for launch in kernel_of(node((1, 4, 8, keys, 64, 64))).launches[1:]:
            assert index in launch.source.parameters


# Of every number of rows and columns that a thread may have.
TILES = [(64, 32, 4096, 512, 64, width) for width in (8, 32, 64, 96, 200)]
TILES += [(1, 2, 9, 4096, 37, 50), (64, 32, 1 << 17, 64, 64, 64), (64, 32, 4096, 512, 128, 128), (8, 8, 64, 64, 24, 24)]
TILES += [(64, 32, 1 << 17, 64, 128, 128), (64, 32, 4096, 512, 200, 16), (64, 32, 4096, 512, 200, 200)]


def tiles_of(kind: str) -> list[Source]:
    """Kernels with both kinds of masks of float32. The tiles of other types take turns at them."""
    sources: list[Source] = []
    kinds: list[dict[str, Any]] = [{"mask": kind}, {"causal": True, "mask": "bool"}]
    for number, size in enumerate(TILES[2:8]):
        for attributes in kinds if kind == "float32" else kinds[number % 2 :][:1]:
            made = node(size, kind, **attributes)
            operands = [x for x in made.inputs[:4] if x is not None]
            forward = Node(FusedAttentionWithStatistics(**made.op.attributes()), operands)
            for tf32 in (False, True) if kind == "float32" else (False,):
                sources += [*kernel_of(made, tf32=tf32).sources, *kernel_of(forward, tf32=tf32).sources]
    return sources


@together()
@pytest.mark.parametrize(("kind", "architecture"), registers.KINDS)
@pytest.mark.long
def test_every_tile_compiles_for_cards(kind: str, architecture: str, nvrtc: None) -> None:
    registers.check_kind(tiles_of, kind, architecture)


@together()
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_tiles_compile_for_a_card(kind: str, nvrtc: None) -> None:
    registers.check(kernel_of(node(TILES[2], kind)).sources, "sm_90")
