"""Attention by cuDNN: the cases that use it, the cases that do not, and the existence of plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from card_cases import CardCase, node_of
from emulator import Emulator
from host_arrays import card_with, through_the_library
from plans import needs_cudnn, without_a_plan
from stand_in_cudnn import STREAM, Graph, numerical_note
from together import together

from graphkit.executor.devices.cuda import card
from graphkit.executor.devices.cuda.launches import Attention, CardKernel, Launch
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_launched
from graphkit.ir.types import DType
from graphkit.ops.evaluate import run_node
from graphkit.ops.internal.fused_attention import FusedAttention


def drawn(size: tuple[int, ...], kind: str = "float16", layout: str = "NHLD", sharing: int = 1) -> list[Any]:
    """sharing: heads of q that have one of k and v."""
    n, h, rows, keys, depth, width = size
    rng = np.random.default_rng(sum(size))
    shapes = ((h, rows, depth), (h // sharing, keys, depth), (h // sharing, keys, width))
    order = [(n, heads, a, b) if layout == "NHLD" else (n, a, heads, b) for heads, a, b in shapes]
    return [rng.standard_normal(shape).astype(DType(kind).numpy) for shape in order]


def kernel_of(op: FusedAttention, arrays: list[Any]) -> CardKernel:
    kernel = make_launched("cuda", node_of(op, *arrays), KernelContext())
    assert isinstance(kernel, CardKernel)
    return kernel


def asked(kernel: CardKernel) -> list[Attention]:
    return [work for work in kernel.launches if isinstance(work, Attention)]


def wide(op: FusedAttention, arrays: list[Any]) -> np.ndarray:
    given = [a.astype(np.float64) for a in arrays]
    with np.errstate(all="ignore"):
        return np.asarray(run_node(node_of(op, *given), given)[0])


def run(emulator: Emulator, op: FusedAttention, arrays: list[Any]) -> np.ndarray:
    kernel = kernel_of(op, arrays)
    assert len(asked(kernel)) == 1
    y = np.full(node_of(op, *arrays).output.tensor.static_shape, 77, arrays[0].dtype)
    assert not emulator.run(kernel, arrays, [y])
    return y.astype(np.float64)


SIZES = [(1, 1, 1, 1, 8, 8), (2, 3, 5, 7, 16, 8), (1, 2, 1, 600, 64, 64), (2, 2, 33, 40, 8, 24)]


@together()
@pytest.mark.parametrize("layout", ["NHLD", "NLHD"])
@pytest.mark.parametrize("output", ["NHLD", "NLHD"])
@pytest.mark.parametrize("causal", [False, True])
def test_graphs_say_what_attention_is(layout: str, output: str, causal: bool, library: Any) -> None:
    """The library, by its documentation, computes the reference's results from them."""
    for size, sharing in [*((size, 1) for size in SIZES), ((2, 6, 1, 9, 16, 8), 3), ((2, 4, 5, 9, 16, 8), 2)]:
        op = FusedAttention(scale=0.25, causal=causal, layout=layout, output_layout=output)
        arrays = drawn(size, layout=layout, sharing=sharing)
        kernel = kernel_of(op, arrays)
        alone = kernel._replace(launches=tuple(asked(kernel)), otherwise=None)
        found = through_the_library(CardCase("attention", node_of(op, *arrays), arrays, alone), STREAM)
        np.testing.assert_allclose(found, wide(op, arrays), rtol=3e-3, atol=3e-3)


def test_what_the_library_is_not_asked_for() -> None:
    """Masks, queries without visible keys, unsupported heads and types, and scales that overflow do not use it."""
    size = (1, 2, 5, 9, 16, 16)
    q, k, v = drawn(size)
    for op, arrays in (
        (FusedAttention(), [q, k, v, np.ones((5, 9), bool)]),
        (FusedAttention(), [q, k, v, np.ones((5, 9), np.float16)]),
        (FusedAttention(), drawn(size, "float32")),
        (FusedAttention(), drawn((1, 2, 5, 9, 12, 16))),
        (FusedAttention(), drawn((1, 2, 5, 9, 16, 20))),
        (FusedAttention(), drawn((1, 2, 5, 9, 264, 8))),
        (FusedAttention(), drawn((1, 2, 5, 9, 0, 8))),
        (FusedAttention(causal=True), drawn((1, 2, 9, 5, 16, 16))),
        (FusedAttention(scale=100.0), [q, k, v]),
        (FusedAttention(scale=float("nan")), [q, k, v]),
    ):
        kernel = kernel_of(op, arrays)
        assert all(isinstance(launch, Launch) for launch in kernel.launches)
        assert kernel.otherwise is None
    for kind in ("float16", "bfloat16"):
        assert len(asked(kernel_of(FusedAttention(causal=True), drawn(size, kind)))) == 1


@together()
@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("size", [(1, 2, 20, 40, 16, 24), (1, 1, 3, 600, 8, 8)], ids=["whole", "slices"])
def test_numbers_that_are_not_finite(position: int, size: tuple[int, ...], emulator: Emulator) -> None:
    """They are graphkit's own kernel's, whatever the library makes of them; wherever they stand."""
    op = FusedAttention(scale=0.25)
    for value in (np.nan, np.inf, -np.inf):
        for place in (0, -1):
            arrays = drawn(size)
            np.testing.assert_allclose(run(emulator, op, arrays), wide(op, arrays), rtol=3e-3, atol=3e-3)
            arrays[position].reshape(-1)[place] = value
            expected = wide(op, arrays)
            assert not np.isfinite(expected).all()
            np.testing.assert_allclose(run(emulator, op, arrays), expected, rtol=3e-3, atol=3e-3)


def test_scores_that_may_overflow(emulator: Emulator) -> None:
    """Products of large bfloat16 are infinite in float32, and differences of these NaN."""
    arrays = drawn((1, 1, 4, 6, 8, 8), "bfloat16")
    arrays[0][0, 0, 2] = arrays[1][0, 0, 1] = 1e30
    kernel = kernel_of(FusedAttention(), arrays)
    assert kernel.otherwise is not None
    y, own = (np.full((1, 1, 4, 8), 77, arrays[0].dtype) for _ in range(2))
    emulator.run(kernel, arrays, [y])
    emulator.run(kernel.otherwise, arrays, [own])
    assert y.tobytes() == own.tobytes()
    assert np.isnan(y[0, 0, 2].astype(np.float32)).all()


def test_the_guard_is_cleared_for_each_run(emulator: Emulator) -> None:
    """In the same scratch memory."""
    op, arrays = FusedAttention(), drawn((1, 1, 4, 6, 8, 8))
    bad = [arrays[0] * np.float16(np.nan), *arrays[1:]]
    kernel = kernel_of(op, arrays)
    scratch, y = np.full(kernel.scratch_bytes, 0xA5, np.uint8), np.empty((1, 1, 4, 8), np.float16)
    for given, finite in ((bad, False), (arrays, True), (bad, False)):
        emulator.run(kernel, given, [y], scratch=scratch)
        assert bool(np.isfinite(y).all()) == finite
        assert scratch[:4].any() != finite


def test_what_the_library_has_no_plan_for_is_the_cards_own(library: Any) -> None:
    op, arrays = FusedAttention(), drawn((1, 2, 5, 9, 16, 16))
    node, kernel = node_of(op, *arrays), kernel_of(op, arrays)
    launched = card._Launched(card_with(STREAM), node, kernel, None)
    assert launched.chosen is kernel
    wanted = {numerical_note.NONDETERMINISTIC, numerical_note.REDUCED_PRECISION_REDUCTION}
    assert wanted <= Graph.made[-1].unwanted
    assert not {numerical_note.TENSOR_CORE, numerical_note.DOWN_CONVERT_INPUTS} & Graph.made[-1].unwanted
    for Graph.alternatives, Graph.least_workspace in ((0, 0), (1, 1 << 60)):
        with pytest.warns(RuntimeWarning, match=r"FusedAttention.*: no engine; graphkit's own kernel"):
            launched = card._Launched(card_with(STREAM), node, kernel, None)
        assert launched.chosen is kernel.otherwise
    assert kernel.otherwise is not None
    assert kernel.scratch_bytes >= kernel.otherwise.scratch_bytes


@together()
@pytest.mark.full
@needs_cudnn
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_cudnn_itself_has_plans(architecture: str, tmp_path: Path) -> None:
    """For heads of every kind that it is asked for, on cards that are not here."""
    none, asked_for = without_a_plan("attention", architecture, tmp_path)
    assert not none
    assert asked_for > 400
