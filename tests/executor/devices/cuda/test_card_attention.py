"""Attention of the card beyond the operator's samples: tiles that are not full, slices, masks, layouts, odd numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import registers
from card_cases import node_of
from card_runs import own_kernel_of as kernel_of
from card_runs import run_own as run
from emulator import Emulator
from together import together

from graphkit.executor.devices.cuda.launches import Source
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops.evaluate import run_node
from graphkit.ops.internal.fused_attention import FusedAttention

pytestmark = pytest.mark.full

SIZES = [  # batch, heads, queries, keys, depth, width
    (1, 1, 1, 1, 1, 1),
    (2, 3, 5, 7, 3, 2),
    (1, 2, 33, 97, 13, 17),
    (2, 1, 70, 65, 64, 64),
    (1, 2, 130, 70, 8, 40),
    (3, 1, 17, 130, 100, 128),
    (1, 1, 20, 66, 256, 256),
    (1, 1, 9, 70, 24, 300),
    (1, 2, 1, 700, 16, 16),
    (1, 1, 3, 1100, 5, 33),
]
# Those of half floats are multiplied by tensor cores, but for few queries and wide ones.
HALVES = [
    (2, 3, 5, 7, 3, 2),
    (2, 1, 70, 130, 64, 48),
    (1, 1, 9, 70, 24, 300),
    (1, 2, 16, 1, 1, 1),
    (1, 2, 130, 140, 33, 13),
    (1, 1, 40, 70, 128, 128),
    (1, 1, 20, 50, 16, 300),
    (1, 1, 20, 50, 200, 16),
]
TOLERANCES = {"float16": 3e-3, "bfloat16": 2e-2, "float32": 2e-6, "float64": 1e-14}
TF32 = 2e-3


def drawn(size: tuple[int, ...], kind: str = "float32", layout: str = "NHLD") -> list[Any]:
    n, h, rows, keys, depth, width = size
    rng = np.random.default_rng(sum(size))
    found = []
    for count, columns in ((rows, depth), (keys, depth), (keys, width)):
        shape = (n, h, count, columns) if layout == "NHLD" else (n, count, h, columns)
        found.append(rng.standard_normal(shape).astype(DType(kind).numpy))
    return found


def wide(op: FusedAttention, arrays: list[Any]) -> np.ndarray:
    """The reference in float64."""
    given = [a if a.dtype == bool else a.astype(np.float64) for a in arrays]
    with np.errstate(all="ignore"):
        (result,) = run_node(node_of(op, *given), given)
    return np.asarray(result)


def check(emulator: Emulator, op: FusedAttention, arrays: list[Any], tf32: bool = False) -> np.ndarray:
    node = node_of(op, *arrays)
    found = run(emulator, node, arrays, tf32)
    tolerance = TF32 if tf32 else TOLERANCES[node.output.dtype.value]
    np.testing.assert_allclose(found.astype(np.float64), wide(op, arrays), rtol=5 * tolerance, atol=tolerance)
    return found


@together()
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_sizes(size: tuple[int, ...], causal: bool, emulator: Emulator) -> None:
    """Causal queries may be more than keys: the first ones see nothing, and are NaN."""
    found = check(emulator, FusedAttention(scale=size[4] ** -0.5, causal=causal), drawn(size))
    lost = max(size[2] - size[3], 0) if causal else 0
    assert np.isnan(found[:, :, :lost]).all()
    assert np.isfinite(found[:, :, lost:]).all()


TYPES = ["float16", "bfloat16", "float64"]


@together()
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("size", HALVES, ids=str)
def test_types(size: tuple[int, ...], kind: str, emulator: Emulator) -> None:
    check(emulator, FusedAttention(scale=0.25, causal=True), drawn((*size[:3], max(size[2:4]), *size[4:]), kind))


@together()
@pytest.mark.parametrize("size", [size for size in HALVES if size[2] >= 16], ids=str)
def test_floats_by_11_bits(size: tuple[int, ...], emulator: Emulator) -> None:
    """Tensor cores multiply rows of up to 64 elements. NaN and masks have the same effect as in full precision."""
    n, h, rows, keys, depth, width = size
    arrays, op = drawn((n, h, rows, max(rows, keys), depth, width)), FusedAttention(scale=0.25, causal=True)
    by_tensor_cores = "attention_tensor" in kernel_of(node_of(op, *arrays), tf32=True).sources[0].entry
    assert by_tensor_cores == (depth <= 64)
    found = check(emulator, op, arrays, tf32=True)
    assert by_tensor_cores == (found.tobytes() != run(emulator, node_of(op, *arrays), arrays).tobytes())
    mask = np.where(np.arange(max(rows, keys)) % 7, 0.5, -np.inf).astype(np.float32)
    arrays[0][0, 0, 3, 0] = np.nan
    found = check(emulator, op, [*arrays, mask], tf32=True)
    assert np.isnan(found[0, 0, 3]).all()


def test_a_factor_is_the_nearest_number_of_11_bits(emulator: Emulator) -> None:
    """If a query sees one key, the result is that key's value, rounded."""
    q, k, v = drawn((1, 1, 16, 1, 8, 64))
    v[0, 0, 0, :6] = [1 + 2**-11, 1 - 2**-12, -(2 - 2**-12), np.inf, 1e-40, np.float32(3.0e38)]
    found = run(emulator, node_of(FusedAttention(), q, k, v), [q, k, v], tf32=True)
    bits = v.view(np.uint32)
    wanted = np.where(np.isinf(v), bits, (bits + 0x1000) & 0xFFFFE000).astype(np.uint32).view(np.float32)
    np.testing.assert_array_equal(found, np.broadcast_to(wanted, found.shape))


@together()
@pytest.mark.parametrize("layout", ["NHLD", "NLHD"])
@pytest.mark.parametrize("output", ["NHLD", "NLHD"])
@pytest.mark.parametrize("size", [(2, 3, 37, 70, 12, 20), (2, 2, 3, 600, 8, 12)], ids=["whole", "slices"])
def test_layouts(layout: str, output: str, size: tuple[int, ...], emulator: Emulator) -> None:
    op = FusedAttention(scale=0.5, layout=layout, output_layout=output)
    for kind in ("float32", "bfloat16"):
        check(emulator, op, drawn(size, kind, layout=layout))


@together()
@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize(("rows", "keys"), [(1, 70), (1, 700), (3, 40), (20, 70)])
@pytest.mark.parametrize("layout", ["NHLD", "NLHD"])
def test_heads_that_share_keys(layout: str, rows: int, keys: int, kind: str, emulator: Emulator) -> None:
    """With one query each they are the rows of one head, which reads its keys once."""
    q, _, _ = drawn((2, 6, rows, keys, 16, 8), kind, layout)
    _, k, v = drawn((2, 2, rows, keys, 16, 8), kind, layout)
    check(emulator, FusedAttention(scale=0.25, causal=True, layout=layout, output_layout=layout), [q, k, v])
    rng = np.random.default_rng(2)
    for shape in ((keys,), (6, 1, keys), (2, 6, rows, keys), (2, 1, rows, 1)):
        seen = np.asarray(rng.random(shape) < 0.7)
        check(emulator, FusedAttention(scale=0.25, mask_value=-1e4, layout=layout), [q, k, v, seen])
    (launch, *_) = kernel_of(node_of(FusedAttention(layout=layout), q, k, v)).launches
    assert ("gk_u32 sharing" in launch.source.declared) == (rows > 1)


MASKS = [
    (37, 101),
    (1, 101),
    (37, 1),
    (101,),
    (2, 1, 1, 101),
    (1, 3, 1, 101),
    (2, 3, 37, 101),
    (3, 37, 101),
    (),
    (1, 1),
]


@together()
@pytest.mark.parametrize("shape", MASKS, ids=str)
@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_masks(shape: tuple[int, ...], kind: str, emulator: Emulator) -> None:
    arrays, rng = drawn((2, 3, 37, 101, 20, 12), kind), np.random.default_rng(2)
    added = rng.standard_normal(shape).astype(kind)
    check(emulator, FusedAttention(scale=0.25, causal=True), [*arrays, added])
    check(emulator, FusedAttention(scale=0.25), [*arrays, added.astype(np.float32)])
    seen = np.asarray(rng.random(shape) < 0.7)
    for value in (-1e4, -np.inf, 2.0):
        check(emulator, FusedAttention(scale=0.25, mask_value=value), [*arrays, seen])


def test_keys_that_are_hidden_tile_by_tile(emulator: Emulator) -> None:
    """From some queries the first tiles, from others the last ones, all from the third."""
    for rows, keys, kind in ((8, 400, "float32"), (8, 600, "float32"), (18, 300, "float16")):
        arrays, mask = drawn((1, 1, rows, keys, 16, 16), kind), np.ones((rows, keys), bool)
        mask[0, : keys - 1], mask[1, 1:], mask[2, 90:300], mask[3] = False, False, False, False
        found = check(emulator, FusedAttention(), [*arrays, mask])
        assert np.isnan(found).any(axis=(0, 1, 3)).tolist() == [i == 3 for i in range(rows)]
        added = np.where(mask, 0, -np.inf).astype(kind)
        check(emulator, FusedAttention(), [*arrays, added])


@together()
@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("keys", [30, 700], ids=["whole", "slices"])
def test_scores_that_are_not_finite(keys: int, kind: str, emulator: Emulator) -> None:
    """NaN and +inf make a row NaN, -inf is a weight of 0; other rows know nothing of it."""
    q, k, v = drawn((1, 1, 20, keys, 8, 8), kind)
    mask = np.zeros((20, keys), kind)
    mask[3, keys - 2], mask[5, 2], mask[6, 7], mask[7] = np.nan, np.inf, -np.inf, -np.inf
    q[0, 0, 9, 3] = np.nan
    found = check(emulator, FusedAttention(), [q, k, v, mask])
    assert np.flatnonzero(np.isnan(found).any(axis=(0, 1, 3))).tolist() == [3, 5, 7, 9]
    if kind == "float32":
        check(emulator, FusedAttention(scale=100.0), [q * 100, k, v])


def test_values_that_are_not_finite(emulator: Emulator) -> None:
    """A weight of 0 makes NaN of them."""
    q, k, v = drawn((1, 1, 5, 30, 8, 8))
    v[0, 0, 3, 2], v[0, 0, 4, 5] = np.nan, np.inf
    mask = np.ones((5, 30), bool)
    mask[0, 4] = False
    found = check(emulator, FusedAttention(), [q, k, v, mask])
    assert np.isnan(found[0, 0, :, 2]).all()
    assert np.isinf(found[0, 0, 1:, 5]).all()


def test_a_replaced_score_is_of_the_operands_type(emulator: Emulator) -> None:
    """-1e9 is minus infinity in float16, so that a query that sees nothing is NaN."""
    mask = np.zeros((4, 6), bool)
    for kind, lost in (("float16", True), ("bfloat16", False), ("float32", False)):
        arrays = [*drawn((1, 1, 4, 6, 8, 8), kind), mask]
        found = run(emulator, node_of(FusedAttention(mask_value=-1e9), *arrays), arrays).astype(np.float32)
        wanted = np.nan if lost else arrays[2].astype(np.float32).mean(axis=2, keepdims=True)
        np.testing.assert_allclose(found, np.broadcast_to(wanted, found.shape), rtol=2e-2, atol=1e-2)


def test_nothing(emulator: Emulator) -> None:
    """No result: nothing to do. No key: zeros. Keys without an element: all weigh the same."""
    for size in ((0, 2, 4, 4, 8, 8), (1, 0, 4, 4, 8, 8), (1, 2, 0, 4, 8, 8), (1, 2, 4, 4, 8, 0)):
        assert kernel_of(node_of(FusedAttention(), *drawn(size))).launches == ()
    assert (check(emulator, FusedAttention(), drawn((2, 3, 4, 0, 8, 5))) == 0).all()
    check(emulator, FusedAttention(), drawn((2, 1, 4, 130, 0, 5)))


def node(size: tuple[int, ...], kind: str = "float32", **attributes: Any) -> Node:
    n, h, rows, keys, depth, width = size
    shapes = (n, h, rows, depth), (n, h, keys, depth), (n, h, keys, width)
    return Node(FusedAttention(**attributes), [Value(TensorType(kind, shape)) for shape in shapes])


def test_few_tiles_are_cut_into_slices() -> None:
    for size, launches in (((1, 1, 1, 4096, 64, 64), 2), ((1, 1, 1, 500, 64, 64), 1), ((8, 16, 512, 4096, 64, 64), 1)):
        kernel = kernel_of(node(size))
        assert len(kernel.launches) == launches
        assert (kernel.scratch_bytes > 0) == (launches == 2)


def test_scores_are_never_in_memory() -> None:
    """Working memory does not grow with keys."""
    for rows in (1, 1000, 4000):
        kernel = kernel_of(node((1, 2, rows, 100_000, 64, 64)))
        assert kernel.scratch_bytes <= 512 * 16 * 8 * 70 * 4


def test_large_operands_count_in_64_bits() -> None:
    for keys, index in ((1 << 10, "gk_u32"), (1 << 24, "gk_u64")):
        launch, *_ = kernel_of(node((1, 4, 8, keys, 64, 64))).launches
        assert index in launch.source.parameters


def test_one_text_for_all_sizes() -> None:
    entries = {kernel_of(node(size)).sources[0].entry for size in ((1, 2, 30, 90, 8, 32), (2, 1, 25, 40, 12, 24))}
    assert len(entries) == 1


# Of every number of rows and columns that a thread may have.
TILES = [(64, 32, 4096, 512, 64, width) for width in (8, 32, 64, 96, 200)]
TILES += [(1, 2, 9, 4096, 37, 50), (64, 32, 1 << 17, 64, 64, 64), (64, 32, 4096, 512, 128, 128), (8, 8, 64, 64, 24, 24)]
TILES += [(64, 32, 1 << 17, 64, 128, 128), (64, 32, 4096, 512, 200, 16), (64, 32, 4096, 512, 200, 200)]


def tiles_of(kind: str) -> list[Source]:
    """Kernels with and without a bound on the keys, and with masks: the tiles take turns at the types of masks.

    Those of other types than float32 take turns at the bound, too.
    """
    sources: list[Source] = []
    bounds: list[dict[str, Any]] = [{}, {"causal": True}]
    for number, size in enumerate(TILES):
        for attributes in bounds if kind == "float32" else bounds[number % 2 :][:1]:
            for tf32 in (False, True) if kind == "float32" else (False,):
                sources += kernel_of(node(size, kind, **attributes), tf32).sources
        q, k, v = node(size, kind).operands
        mask = Value(TensorType(("bool", kind, "float32")[number % 3], size[2:4]))
        sources += kernel_of(Node(FusedAttention(causal=True), [q, k, v, mask])).sources
    return sources


@together()
@pytest.mark.parametrize(("kind", "architecture"), registers.KINDS)
@pytest.mark.long
def test_every_tile_compiles_for_cards(kind: str, architecture: str, nvrtc: None) -> None:
    registers.check_kind(tiles_of, kind, architecture)


@together()
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_tiles_compile_for_a_card(kind: str, nvrtc: None) -> None:
    kernels = [kernel_of(node(size, kind), tf32) for size in TILES[2:4] for tf32 in (False, True)]
    registers.check([source for kernel in kernels for source in kernel.sources], "sm_90")
