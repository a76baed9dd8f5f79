"""Updates by index on the card: repeated indices, chunks of one key, all types, in place, indices outside."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from card_cases import node_of
from emulator import Emulator
from stand_in import Card
from together import together

import graphkit as gk
from graphkit.executor.devices.cuda.launches import CardKernel
from graphkit.executor.devices.cuda.movement.sorting import sort
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_launched
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import registry
from graphkit.ops._base import DOMAIN
from graphkit.ops.evaluate import run_node


def kernel_of(node: Node, deterministic: bool = False) -> CardKernel:
    kernel = make_launched("cuda", node, KernelContext(deterministic=deterministic))
    assert isinstance(kernel, CardKernel)
    return kernel


def run(emulator: Emulator, node: Node, arrays: list[Any], deterministic: bool = False) -> np.ndarray:
    """Run with both orders of threads; return the result. Elements around it must not be written."""
    kernel, y = kernel_of(node, deterministic), node.output
    found = []
    for order in (0, 1):
        around = np.full(y.tensor.nbytes + 128, 0x5A, np.uint8)
        result = around[64:-64].view(y.dtype.numpy).reshape(y.tensor.static_shape)
        assert not emulator.run(kernel, arrays, [result], order=order)
        assert (around[:64] == 0x5A).all()
        assert (around[-64:] == 0x5A).all()
        found.append(result)
    assert found[0].tobytes() == found[1].tobytes(), "what comes out depends on which thread comes first"
    return found[0]


# --- the sort ---------------------------------------------------------------------------------------


@together()
@pytest.mark.parametrize(
    ("count", "bound"),
    [(1, 1), (5, 3), (300, 1), (1024, 1 << 31), (1025, 1), (1025, 257), (5000, 70_000), (3000, 1 << 31)],
)
def test_equal_keys_keep_their_order(count: int, bound: int, emulator: Emulator) -> None:
    begin = 256
    done = sort(count, bound, begin)
    keys = np.random.default_rng(count).integers(0, bound, count).astype(np.uint32)
    for order in (0, 1):
        scratch = np.full(done.scratch_bytes, 0xA5, np.uint8)
        scratch[begin : begin + 4 * count] = keys.view(np.uint8)
        emulator.run(CardKernel(done.launches, done.scratch_bytes), [], [], scratch, order=order)
        words = [scratch[piece.offset :][: 4 * count].view(np.uint32) for piece in (done.keys, done.places)]
        wanted = np.argsort(keys, kind="stable")
        np.testing.assert_array_equal(words[1], wanted)
        np.testing.assert_array_equal(words[0], keys[wanted])
        assert (scratch[:begin] == 0xA5).all()


def test_a_sort_of_very_many_keys_counts_few_chunks() -> None:
    done = sort((1 << 31) - 1, 50_000, 0)
    assert len(done.launches) == 4
    assert max(launch.blocks for launch in done.launches) <= 256
    assert done.scratch_bytes < (16 << 31) + (1 << 20)


# --- the gradient of Gather -------------------------------------------------------------------------


def rows_summed(x: tuple[int, ...], axis: int, indices: np.ndarray, dy: np.ndarray) -> np.ndarray:
    total = np.zeros(x)
    np.add.at(total, (*(slice(None),) * (axis % len(x)), indices), dy.astype(np.float64))
    return total


@together()
@pytest.mark.parametrize(
    ("x", "axis", "picks", "dtype"),
    [
        ((500, 24), 0, 3000, "float32"),
        ((50, 7), 0, 700, "float32"),
        ((3, 60, 8), 1, 600, "float16"),
        ((3, 60, 8), 1, 600, "bfloat16"),
        ((5, 300), -1, 1300, "float64"),
        ((1, 6), 0, 1024, "float16"),
        ((40,), 0, 513, "float32"),
        ((2, 9, 3), 1, 30, "float64"),
        ((400, 3), 0, 2, "float32"),
    ],
)
def test_rows_of_one_index_are_summed(x: Any, axis: int, picks: int, dtype: str, emulator: Emulator) -> None:
    rng = np.random.default_rng(picks)
    indices = rng.integers(-x[axis], x[axis], picks)
    indices[rng.random(picks) < 0.5] = 0  # as what sequences are filled up with
    at = axis % len(x)
    dy = rng.standard_normal((*x[:at], picks, *x[at + 1 :])).astype(dtype)
    node = node_of(registry.get(DOMAIN, "GatherGrad")(axis=axis), dy, np.zeros(x, dtype), indices)
    found = run(emulator, node, [dy, None, indices])
    wanted = rows_summed(x, axis, indices, dy)
    close = {"float32": 1e-6, "float64": 1e-14, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    size = rows_summed(x, axis, indices, np.abs(dy))
    assert (np.abs(found.astype(np.float64) - wanted) <= close * size).all()


def test_an_embedding_of_a_large_vocabulary() -> None:
    """Working memory and launches do not grow with the table. Each element of the result is written once."""
    picks, size, width = 8192, 50_000, 768
    given = [("float32", (picks, width)), ("float32", (size, width)), ("int64", (picks,))]
    node = Node(registry.get(DOMAIN, "GatherGrad")(), [Value(TensorType(*kind)) for kind in given])
    kernel = kernel_of(node)
    assert [launch.source.entry.rsplit("_", 1)[0] for launch in kernel.launches] == [
        "gk_begun", "gk_keys", *["gk_sort_count", "gk_sort_place"] * 2, "gk_chunks", "gk_combined",
    ]  # fmt: skip
    assert kernel.scratch_bytes < 1 << 20
    # A thread for each 16 bytes of the table, and of the rows.
    assert kernel.launches[0].blocks == size * width // 4 // 256
    assert kernel.launches[-1].blocks == picks * width // 4 // 256


def test_one_key_alone_is_combined_in_few_steps() -> None:
    """No thread adds up all updates where they meet in one row."""
    picks = 1 << 20
    given = [("float32", (picks, 4)), ("float32", (1, 4)), ("int64", (picks,))]
    node = Node(registry.get(DOMAIN, "GatherGrad")(), [Value(TensorType(*kind)) for kind in given])
    of_chunks = kernel_of(node).launches[-2]
    assert "chunks" in of_chunks.source.entry
    assert np.uint32(1 << 11) in [a for a in of_chunks.arguments if isinstance(a, np.uint32)]


# --- scatters ---------------------------------------------------------------------------------------


@together(full=lambda dtype, reduction: (dtype in ("float32", "int8")) != (reduction in ("add", "max")))
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64"])
@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
def test_slices_are_combined(reduction: str, dtype: str, emulator: Emulator) -> None:
    rng = np.random.default_rng(0)
    for x_shape, lead, depth in (((7, 5, 6), (4, 10), 2), ((30, 4), (700,), 1)):
        x = rng.integers(1, 4, x_shape).astype(dtype)
        indices = np.stack([rng.integers(-n, n, lead) for n in x_shape[:depth]], axis=-1)
        updates = rng.integers(1, 3, (*lead, *x_shape[depth:])).astype(dtype)
        node = node_of(registry.get("", "ScatterND")(reduction=reduction), x, indices, updates)
        found = run(emulator, node, [x, indices, updates])
        with np.errstate(over="ignore"):
            np.testing.assert_allclose(found, run_node(node, [x, indices, updates])[0], rtol=1e-6)


@together()
@pytest.mark.parametrize("seed", range(10))
def test_random_elements(seed: int, emulator: Emulator) -> None:
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    x_shape = tuple(draw.choice((1, 2, 5, 9)) for _ in range(draw.randrange(1, 5)))
    axis = draw.randrange(-len(x_shape), len(x_shape))
    at = axis % len(x_shape)
    shape = tuple(draw.choice((1, 7, 90)) if i == at else draw.randrange(1, n + 1) for i, n in enumerate(x_shape))
    x, updates = rng.standard_normal(x_shape).astype(np.float32), rng.standard_normal(shape).astype(np.float32)
    indices = rng.integers(-x_shape[at], x_shape[at], shape).astype(draw.choice((np.int32, np.int64)))
    node = node_of(registry.get("", "ScatterElements")(axis=axis, reduction="add"), x, indices, updates)
    found = run(emulator, node, [x, indices, updates])
    np.testing.assert_allclose(found, run_node(node, [x, indices, updates])[0], rtol=1e-4, atol=1e-5)
    taken = node_of(registry.get("", "GatherElements")(axis=axis), x, indices)
    np.testing.assert_array_equal(run(emulator, taken, [x, indices]), run_node(taken, [x, indices])[0])


@together()
@pytest.mark.parametrize("seed", range(12))
def test_random_tuples_are_taken(seed: int, emulator: Emulator) -> None:
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    x_shape = tuple(draw.choice((1, 2, 3, 8)) for _ in range(draw.randrange(2, 5)))
    batch = draw.randrange(0, len(x_shape))
    depth = draw.randrange(0, len(x_shape) - batch + 1)
    lead = (*x_shape[:batch], *(draw.choice((1, 4)) for _ in range(draw.randrange(0, 3))))
    if len(lead) == batch:
        lead = (*lead, 2)
    sizes = x_shape[batch : batch + depth]
    indices = np.stack([rng.integers(-n, n, lead) for n in sizes], axis=-1) if depth else np.zeros((*lead, 0), int)
    x = rng.standard_normal(x_shape).astype(draw.choice((np.float32, np.float16, np.complex128)))
    node = node_of(registry.get("", "GatherND")(batch_dims=batch), x, indices)
    np.testing.assert_array_equal(run(emulator, node, [x, indices]), run_node(node, [x, indices])[0])


def test_nan_wins(emulator: Emulator) -> None:
    x = np.zeros(4, np.float32)
    updates = np.tile(np.array([1, -1, 2, -2], np.float32), 200)
    updates[401] = np.nan
    indices = np.arange(800).reshape(-1, 1) % 4
    for reduction in ("max", "min", "add", "mul"):
        node = node_of(registry.get("", "ScatterND")(reduction=reduction), x, indices, updates)
        assert np.isnan(run(emulator, node, [x, indices, updates])).tolist() == [False, True, False, False]


@together()
@pytest.mark.parametrize("dtype", ["float32", "bool", "complex128"])
def test_replaced(dtype: str, emulator: Emulator) -> None:
    """At once where indices do not repeat; the last update, where runs are to be deterministic."""
    rng = np.random.default_rng(0)
    x, updates = rng.integers(0, 2, (30, 6)).astype(dtype), rng.integers(0, 2, (20, 6)).astype(dtype)
    once = rng.permutation(30)[:20].reshape(-1, 1)
    node = node_of(registry.get("", "ScatterND")(), x, once, updates)
    for deterministic in (False, True):
        found = run(emulator, node, [x, once, updates], deterministic)
        np.testing.assert_array_equal(found, run_node(node, [x, once, updates])[0])
    again = rng.integers(-3, 3, (20, 1))
    found = run(emulator, node, [x, again, updates], deterministic=True)
    np.testing.assert_array_equal(found, run_node(node, [x, again, updates])[0])
    elements = rng.integers(0, 3, (20, 6))
    node = node_of(registry.get("", "ScatterElements")(), x, elements, updates)
    found = run(emulator, node, [x, elements, updates], deterministic=True)
    np.testing.assert_array_equal(found, run_node(node, [x, elements, updates])[0])


@together()
@pytest.mark.parametrize("reduction", ["none", "add"])
def test_in_the_operands_place(reduction: str, emulator: Emulator) -> None:
    rng = np.random.default_rng(1)
    x, updates = rng.standard_normal((11, 5)).astype(np.float32), rng.standard_normal((3, 5)).astype(np.float32)
    indices = np.array([[4], [-1], [0]])
    node = node_of(registry.get("", "ScatterND")(reduction=reduction), x, indices, updates)
    (wanted,) = run_node(node, [x, indices, updates])
    kernel = kernel_of(node)
    assert list(kernel.inplace) == [(0, 0)]
    emulator.run(kernel, [x, indices, updates], [x])
    np.testing.assert_array_equal(x, wanted)


@together()
@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("deterministic", [False, True])
def test_indices_outside(deterministic: bool, kind: Any, emulator: Emulator) -> None:
    x, updates = np.zeros((9, 4), np.float32), np.ones((6, 4), np.float32)
    indices = np.zeros((6, 4), kind)
    scatter = registry.get("", "ScatterElements")
    operators = [(node_of(scatter(reduction=r), x, indices, updates), [x, indices, updates]) for r in ("none", "add")]
    operators.append((node_of(registry.get("", "GatherElements")(), x, indices), [x, indices]))
    flat = indices[:, 0]
    operators.append((node_of(registry.get(DOMAIN, "GatherGrad")(), updates, x, flat), [updates, None, flat]))
    if kind is np.int64:
        pairs = indices[:, :2]
        operators += [
            (node_of(registry.get("", "GatherND")(), x, pairs), [x, pairs]),
            (
                node_of(registry.get("", "ScatterND")(), x, pairs, updates[:, 0].copy()),
                [x, pairs, updates[:, 0].copy()],
            ),
        ]
    emulator.compile(source for node, _ in operators for source in kernel_of(node, deterministic).sources)
    for node, arrays in operators:
        kernel = kernel_of(node, deterministic)
        assert "an index is outside" in kernel.fault
        for outside in (9, -10, np.iinfo(kind).min, np.iinfo(kind).max):
            indices[3, 0] = outside
            found = [None if a is None else np.ascontiguousarray(a) for a in arrays]
            assert emulator.run(kernel, found, [np.empty(node.output.tensor.static_shape, np.float32)])
        indices[3, 0] = 8
        found = [None if a is None else np.ascontiguousarray(a) for a in arrays]
        assert not emulator.run(kernel, found, [np.empty(node.output.tensor.static_shape, np.float32)])


def test_nothing_is_updated(emulator: Emulator) -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    none = np.zeros((0, 1), np.int64)
    for reduction in ("none", "add"):
        updates = np.zeros((0, 3), np.float32)
        node = node_of(registry.get("", "ScatterND")(reduction=reduction), x, none, updates)
        np.testing.assert_array_equal(run(emulator, node, [x, none, updates]), x)
    empty = np.zeros((4, 0), np.float32)
    one, no = np.array([[9]]), np.zeros((1, 0), np.float32)
    # Whether its index is outside is the reference's to say; of a gather the card looks.
    assert make_launched("cuda", node_of(registry.get("", "ScatterND")(), empty, one, no), KernelContext()) is None
    for index, is_outside in ((9, True), (4, True), (3, False), (-4, False), (-5, True)):
        at = np.array([[index]])
        kernel = make_launched("cuda", node_of(registry.get("", "GatherND")(), empty, at), KernelContext())
        assert isinstance(kernel, CardKernel)
        emulator.compile(kernel.sources)
        assert emulator.run(kernel, [empty, at], [no]) is is_outside


def test_large_operands() -> None:
    """Elements are counted in 64 bits where there are many; slices have to be fewer than 2^31 to be sorted."""
    scatter = registry.get("", "ScatterND")(reduction="add")

    def node(rows: int, width: int) -> Node:
        kinds = [("float32", (rows, width)), ("int64", (1000, 1)), ("float32", (1000, width))]
        return Node(scatter, [Value(TensorType(*kind)) for kind in kinds])

    assert "gk_u64" in kernel_of(node(1 << 22, 1 << 10)).launches[-1].source.parameters
    assert make_launched("cuda", node(1 << 32, 1), KernelContext()) is None


def test_booleans_are_not_combined() -> None:
    x, indices = np.zeros(4, bool), np.zeros((2, 1), np.int64)
    node = node_of(registry.get("", "ScatterND")(reduction="max"), x, indices, x[:2])
    assert make_launched("cuda", node, KernelContext()) is None


# --- in a program -----------------------------------------------------------------------------------


def test_an_embedding_is_trained(card: Card) -> None:
    """With dropout, whose masks are the processor's: the losses are, too."""

    def network() -> gk.Model:
        words = gk.input("words", ["N", 6], dtype="int64")
        rows = gk.nn.embedding(words, 40, 8, name="table")
        hidden = gk.nn.dropout(gk.flatten(rows), 0.5)
        return gk.Model({"y": gk.nn.linear(hidden, 3, name="fc")})

    data = np.random.default_rng(0).integers(0, 40, (16, 6)), np.arange(16) % 3
    losses = {}
    for device in ("cpu", "cuda"):
        trainer = gk.Trainer(network(), "softmax_cross_entropy", gk.optim.Adam(0.01), device=device)
        losses[device] = [float(trainer.step(*data)) for _ in range(5)]
    assert {"Gather", "GatherGrad", "Dropout"} <= set(card.launched)
    np.testing.assert_allclose(losses["cuda"], losses["cpu"], rtol=1e-4)
