"""Products of 8 bits on a card: how elements are rounded, and how the library is asked."""

from __future__ import annotations

import gc
import math
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from card_cases import cases_of, node_of
from card_runs import run
from emulator import Emulator
from host_arrays import through_the_library
from stand_in_library import STREAM, CublasLt
from together import together

from graphkit.errors import RuntimeFailure
from graphkit.executor.devices.cuda import card
from graphkit.executor.devices.cuda.launches import Product
from graphkit.executor.devices.cuda.libraries import cublaslt
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_launched
from graphkit.ir.types import DType
from graphkit.ops.evaluate import run_node
from graphkit.ops.internal.float8 import SLICES, AbsoluteMaxima, Float8MatMul, ScaledFloat8, largest

E4M3, E5M2 = DType.FLOAT8E4M3FN, DType.FLOAT8E5M2
# Behind the leading one.
DIGITS = {E4M3: 3, E5M2: 2}


def float_bits(words: Any) -> np.ndarray:
    return np.asarray(words, np.uint32).view(np.float32)


def numbers_near_ties(to: DType) -> np.ndarray:
    """Return the numbers of a format, the midpoints between them, and the floats next to each of these."""
    numbers = np.arange(256, dtype=np.uint8).view(to.numpy).astype(np.float32)
    finite = np.sort(numbers[np.isfinite(numbers)])
    halfway = (finite[1:] + finite[:-1]) / 2
    beyond = np.float32(2.0) * finite[[0, -1]] - finite[[1, -2]]
    exact = np.concatenate([numbers, halfway, beyond, (beyond + finite[[0, -1]]) / 2])
    beside = [np.nextafter(exact, np.float32(limit)) for limit in (-np.inf, np.inf)]
    tiny = float_bits([0, 1, 2, 0x7FFFFF, 0x800000, 0x80000001, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800001, 0xFFC12345])
    return np.concatenate([exact, *beside, tiny]).astype(np.float32)


@together()
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("to", [E4M3, E5M2])
def test_every_bfloat16_and_floats_around_ties(to: DType, emulator: Emulator) -> None:
    """If the factor is 1, the bits are those of ml_dtypes: infinity and overflow too. A GPU drops the sign of NaN."""
    maxima = np.zeros(SLICES, np.float32)
    maxima[7] = largest(to)
    halves = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16).reshape(256, 256)
    floats = numbers_near_ties(to)
    drawn = np.random.default_rng(0).integers(0, 1 << 32, 5000, np.uint64).astype(np.uint32)
    for x in (halves, np.concatenate([floats, float_bits(drawn)])[None, :]):
        rows, _, scale = run(emulator, node_of(ScaledFloat8(to=to), x, maxima), [x, maxima], used=(True, False, True))
        assert scale == 1
        wanted = x.astype(np.float32).astype(to.numpy)
        found, invalid = rows[:, : x.shape[1]], np.isnan(wanted.astype(np.float32))
        np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), invalid)
        np.testing.assert_array_equal(found.view(np.uint8)[~invalid], wanted.view(np.uint8)[~invalid])
        assert not rows[:, x.shape[1] :].view(np.uint8).any()


def rounded(emulator: Emulator, x: np.ndarray, to: DType) -> tuple[np.ndarray, np.ndarray, float]:
    """Both kernels, each against its reference, bit for bit."""
    first = node_of(AbsoluteMaxima(), x)
    (maxima,) = run(emulator, first, [x])
    np.testing.assert_array_equal(maxima, *run_node(first, [x]))
    second = node_of(ScaledFloat8(to=to), x, maxima)
    found, wanted = run(emulator, second, [x, maxima]), run_node(second, [x, maxima])
    for one, other in zip(found, wanted, strict=True):
        assert one.tobytes() == np.asarray(other).tobytes()
    rows, columns, scale = found
    n, m = x.shape[-1], math.prod(x.shape[:-1])
    np.testing.assert_array_equal(columns[:, :m].T.astype(np.float32), rows[..., :n].reshape(m, n).astype(np.float32))
    return rows[..., :n].astype(np.float32), columns, float(scale)


@together()
@pytest.mark.parametrize("to", [E4M3, E5M2])
@pytest.mark.parametrize("size", [0.0, 3e-45, 1e-39, 1e-30, 0.37, 1.0, 6e4, 3.4028235e38])
def test_the_largest_element_is_the_largest_number(to: DType, size: float, emulator: Emulator) -> None:
    """And comes back; others are off by half of a last digit. Its factor and the factor's reciprocal are normal."""
    x = np.array([[-1.0, 0.3, 0.001, 0.0, 0.9999]], np.float32) * np.float32(size)
    rows, _, scale = rounded(emulator, x, to)
    tiny = float(np.finfo(np.float32).tiny)
    assert tiny <= scale < np.inf
    if size > 1e-35:
        assert rows[0, 0] == -largest(to)
        np.testing.assert_allclose(scale * float(rows[0, 0]), -size, rtol=1e-6)
    elif size == 0:
        assert scale == 1
    error = np.abs(scale * rows.astype(np.float64) - x.astype(np.float64))
    smallest = float(ml_dtypes.finfo(to.numpy).smallest_subnormal)
    assert (error <= np.maximum(2.0 ** -(DIGITS[to] + 1) * np.abs(x), scale * smallest / 2) * (1 + 1e-6)).all()


@together()
@pytest.mark.parametrize("to", [E4M3, E5M2])
def test_elements_that_are_not_finite(to: DType, emulator: Emulator) -> None:
    """They do not count as the largest element, and are kept."""
    x = np.ones((3, 20), np.float32)
    x[0, 3], x[1, 5], x[2, 7] = np.nan, np.inf, -np.inf
    rows, _, scale = rounded(emulator, x, to)
    assert scale == np.float32(1) / np.float32(largest(to))
    assert np.isnan(rows[0, 3])
    assert [rows[1, 5], rows[2, 7]] == [np.inf, -np.inf] if to is E5M2 else np.isnan([rows[1, 5], rows[2, 7]]).all()
    assert (rows[x == 1] == largest(to)).all()
    rows, _, scale = rounded(emulator, np.full((1, 2), np.nan, np.float32), to)
    assert scale == 1
    assert np.isnan(rows).all()


@together()
@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [
        *((np.float32, sizes) for sizes in [(1, 1), (130, 72), (2, 65, 67), (64, 64), (3, 0, 8)]),
        (ml_dtypes.bfloat16, (130, 72)),
        (ml_dtypes.bfloat16, (70, 67)),
    ],
)
def test_sizes(sizes: tuple[int, ...], dtype: Any, emulator: Emulator) -> None:
    """Whole and partial tiles, rows that are aligned to 16 bytes or not, and empty arrays."""
    x = np.random.default_rng(1).standard_normal(sizes).astype(dtype)
    rounded(emulator, x, E4M3)


@pytest.mark.full
def test_slices_that_are_longer_than_the_least(emulator: Emulator) -> None:
    x = np.random.default_rng(4).standard_normal((300, 1001), np.float32)
    rounded(emulator, x, E5M2)


def test_only_what_is_read_is_written(emulator: Emulator) -> None:
    x, maxima = np.random.default_rng(2).standard_normal((33, 40)).astype(np.float32), np.full(SLICES, 2.0, np.float32)
    node = node_of(ScaledFloat8(to=E5M2), x, maxima)
    wanted = run_node(node, [x, maxima])
    for used in ((True, False, False), (False, True, False), (False, False, True)):
        for found, other in zip(run(emulator, node, [x, maxima], used), wanted, strict=True):
            assert found is None or found.tobytes() == np.asarray(other).tobytes()


# --- the library ------------------------------------------------------------------------------------


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> CublasLt:
    made = CublasLt()
    monkeypatch.setattr(cublaslt, "_bindings", lambda: made)
    monkeypatch.setattr(cublaslt, "_handle", lambda card: made.create())
    return made


def test_descriptors_say_what_the_product_is(bindings: CublasLt) -> None:
    """The library, by its documentation, computes the reference's results from them."""
    seen = 0
    for case in cases_of(Float8MatMul):
        if any(isinstance(launch, Product) for launch in case.kernel.launches):
            (expected,) = run_node(case.node, case.arrays)
            found = through_the_library(case, STREAM).astype(np.float32)
            np.testing.assert_allclose(found, expected.astype(np.float32), rtol=2.0**-7, err_msg=case.name)
            seen += 1
    assert seen >= 4
    gc.collect()
    assert all("handle" in facts for facts in bindings.alive.values()), "descriptors are left"


def factor(*sizes: int, to: DType = E4M3) -> np.ndarray:
    return np.ones(sizes, to.numpy)


def test_a_product_that_the_library_has_no_way_for(bindings: CublasLt) -> None:
    bindings.alternatives = 0
    case = next(case for case in cases_of(Float8MatMul) if case.arrays[0].dtype == E5M2.numpy)
    message = (
        r"Float8MatMul.*: cuBLASLt 12\.9\.2 cannot multiply \[3, 16\] by \[16, 16\] of float8_e5m2 and float8_e4m3fn"
    )
    with pytest.raises(RuntimeFailure, match=message):
        through_the_library(case, STREAM)


@together()
@pytest.mark.parametrize("rounded_to", [(E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)])
def test_the_product_of_what_was_rounded(rounded_to: tuple[DType, DType], emulator: Emulator) -> None:
    """Is near that of the matrices, as near as its digits are."""
    rng = np.random.default_rng(3)
    sides = [
        rng.standard_normal(sizes).astype(np.float32) * scale for sizes, scale in (((40, 96), 1e-3), ((32, 96), 50))
    ]
    operands: list[Any] = []
    for x, to in zip(sides, rounded_to, strict=True):
        given = [x, np.full(SLICES, np.abs(x).max())]
        rows, _, scale = run_node(node_of(ScaledFloat8(to=to), *given), given)
        operands += [rows, np.asarray(scale)]
    node = node_of(Float8MatMul(), *operands)
    (y,) = run(emulator, node, operands)
    exact = sides[0] @ sides[1].T
    error = np.linalg.norm(y.astype(np.float32) - exact) / np.linalg.norm(exact)
    assert 1e-3 < error < 2.0 ** -(min(DIGITS[to] for to in rounded_to) + 1)


@together()
@pytest.mark.parametrize(("digits", "capability"), [("89", (8, 9)), ("90", (9, 0)), ("120", (12, 0))])
def test_what_a_card_says_it_can_do(digits: str, capability: tuple[int, int]) -> None:
    device = object.__new__(card.CudaDevice)
    device.number = 0
    described = SimpleNamespace(compute_capability=digits)
    device._cupy = SimpleNamespace(cuda=SimpleNamespace(Device=lambda number: described))
    assert (device.capability, device.architecture) == (capability, f"sm_{digits}")


@together()
@pytest.mark.parametrize(("k", "n"), [(24, 16), (32, 12)])
def test_sizes_that_the_library_does_not_take(k: int, n: int) -> None:
    """Have no kernel: programs make no such product."""
    one = np.array(1.0, np.float32)
    node = node_of(Float8MatMul(), factor(4, k), one, factor(n, k), one)
    assert make_launched("cuda", node, KernelContext()) is None
