"""Comparison of arrays: errors over all elements, and whether they are within the tolerances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.checks.lower_precision import TOLERANCES, Precision
from graphkit.checks.maps import as_table
from graphkit.checks.noise import Noise
from graphkit.errors import RuntimeFailure
from graphkit.ir.types import FLOATS, DType, dtype_of
from graphkit.text import quantity, short_repr


@dataclass(frozen=True)
class OutputReport:
    """Comparison of one output: errors over all elements, and the tolerances that would have passed.

    `needed_atol` is the smallest atol that passes with the given rtol; `needed_rtol` the smallest rtol with the given
    atol (infinite if a reference element is zero, or if NaNs or shapes differ). `criterion` is the test that decided:
    "tolerance", or "noise" if that failed and both engines were compared with double precision (`noise`).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    passed: bool
    max_abs: float
    mean_abs: float
    max_rel: float
    rtol: float
    atol: float
    needed_rtol: float
    needed_atol: float
    mismatches: int
    reason: str = ""
    criterion: str = "tolerance"
    noise: Noise | None = None
    # Why nothing was compared: it has no elements, or they are all NaN in both engines.
    untested: str = ""

    @property
    def verdict(self) -> str:
        """The verdict: "PASSED", "FAILED", or "NOT TESTED" if there was nothing to compare."""
        return "FAILED" if not self.passed else "NOT TESTED" if self.untested else "PASSED"

    @property
    def formula(self) -> str:
        return f"|a-b| <= {self.atol:g} + {self.rtol:g} * |b|"

    def __repr__(self) -> str:
        return short_repr(self, lambda: [str(self)])

    def __str__(self) -> str:
        line = f"{self.name} {self.dtype}{list(self.shape)}: max {self.max_abs:.3g} mean {self.mean_abs:.3g} "
        line += f"rel {self.max_rel:.3g}  {self.formula}  {self.verdict}"
        if self.noise is not None:
            line += f" by noise: {self.noise}" if self.passed else f"; {self.noise}"
        if self.untested:
            line += f" ({self.untested})"
        if not self.passed:
            line += (
                f" ({self.reason or quantity(self.mismatches, 'element')}; would pass with atol={self.needed_atol:.3g}"
            )
            line += f" or rtol={self.needed_rtol:.3g})"
        return line


def compare_outputs(
    ours: Mapping[str, Any],
    reference: Mapping[str, Any],
    rtol: float | None = None,
    atol: float | None = None,
    *,
    by_magnitude: bool = False,
    lower: Precision | None = None,
    sides: tuple[str, str] = ("graphkit", "the reference"),
) -> tuple[OutputReport, ...]:
    """Compare outputs in order, under the names in `ours`; sequences element by element. See `compare`."""
    if len(ours) != len(reference):
        raise RuntimeFailure(f"{sides[0]} returned {quantity(len(ours), 'output')}, {sides[1]} {len(reference)}")
    pairs = zip(ours.items(), reference.values(), strict=True)
    flat = [item for (name, a), b in pairs for item in flattened(name, a, b)]
    return tuple(compare(n, x, y, rtol, atol, by_magnitude=by_magnitude, lower=lower, sides=sides) for n, x, y in flat)


def compare(
    name: str,
    ours: Any,
    reference: Any,
    rtol: float | None = None,
    atol: float | None = None,
    *,
    by_magnitude: bool = False,
    lower: Precision | None = None,
    sides: tuple[str, str] = ("graphkit", "the reference"),
) -> OutputReport:
    """Compare one array with its reference by |a-b| <= atol + rtol*|b|.

    by_magnitude: the default of atol is at most rtol times the largest finite |b|, so that small arrays are compared.
    lower: the lower precision of two models; its tolerances are the defaults, and float types may differ.
    sides: how an error calls the two.
    """
    a, b = np.asarray(ours), np.asarray(reference)
    dtype = dtype_of(a.dtype)
    default = TOLERANCES.get(dtype, (0.0, 0.0)) if lower is None else lower.tolerances
    rtol = default[0] if rtol is None or dtype not in FLOATS else rtol
    scaled = by_magnitude and atol is None
    atol = default[1] if atol is None or dtype not in FLOATS else atol
    mixed = lower is not None and dtype in FLOATS and dtype_of(b.dtype) in FLOATS
    if a.shape != b.shape or (dtype is not dtype_of(b.dtype) and not mixed):
        reason = f"{sides[0]} returned {dtype}{list(a.shape)}, {sides[1]} {dtype_of(b.dtype)}{list(b.shape)}"
        inf = float("inf")
        return OutputReport(
            name, str(dtype), a.shape, False, inf, inf, inf, rtol, atol, inf, inf, max(a.size, 1), reason
        )
    error, size = errors(a, b, dtype)
    if scaled:
        atol = min(atol, rtol * _largest(size))
    with np.errstate(all="ignore"):
        excess = error - rtol * size
        relative = np.where(error == 0, 0.0, error / size)
        needed_rtol = np.where(error <= atol, 0.0, (error - atol) / size)
    mismatches = int(np.sum(~(excess <= atol)))
    return OutputReport(
        name,
        str(dtype),
        a.shape,
        mismatches == 0,
        _largest(error),
        float(error.mean()) if error.size else 0.0,
        _largest(relative),
        rtol,
        atol,
        _largest(needed_rtol),
        max(_largest(excess), 0.0),
        mismatches,
        untested=_untested(b),
    )


def _untested(reference: np.ndarray) -> str:
    """Why comparing with these elements proves nothing; "" if it proves something."""
    if not reference.size:
        return "it has no elements"
    if reference.dtype.kind in "fc" and np.isnan(reference).all():
        return "all elements are NaN in both engines"
    return ""


def errors(a: np.ndarray, b: np.ndarray, dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """|a-b| and |b| in float64 (magnitudes of complex numbers); |a-b| is infinite where NaNs or infinities differ."""
    if dtype is DType.STRING or dtype is DType.BOOL:
        unequal = (a != b).astype(np.float64)
        return unequal, np.zeros_like(unequal)
    wide = np.complex128 if dtype in (DType.COMPLEX64, DType.COMPLEX128) else np.float64
    x, y = a.astype(wide), b.astype(wide)
    with np.errstate(all="ignore"):
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        if dtype.is_integer:
            same = a == b
        error = np.where(same, 0.0, np.abs(x - y))
        # Integers beyond 2**53 may differ although they are equal as float64.
        error = np.where(~same & (error == 0), 1.0, error)
        error = np.where(np.isfinite(x) & np.isfinite(y) | same, error, np.inf)
        size = np.where(np.isfinite(y), np.abs(y), 0.0)
    return error, size


def _largest(values: np.ndarray) -> float:
    return float(np.max(values)) if values.size else 0.0


def flattened(name: str, ours: Any, reference: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, ours, reference): sequences element by element, as `name[i]`; maps as their keys and values."""
    tables = as_table(ours), as_table(reference)
    if tables[0] is not None and tables[1] is not None:
        yield f"{name} (keys)", tables[0].keys, tables[1].keys
        if np.array_equal(tables[0].keys, tables[1].keys):
            yield name, tables[0].values, tables[1].values
    elif ours is None or reference is None:
        yield f"{name} (present)", np.array(ours is not None), np.array(reference is not None)
    elif isinstance(ours, (list, tuple)) or isinstance(reference, (list, tuple)):
        a, b = list(ours), list(reference)
        if len(a) != len(b):
            yield f"{name} (length)", np.array(len(a)), np.array(len(b))
        for i, (x, y) in enumerate(zip(a, b, strict=False)):
            yield from flattened(f"{name}[{i}]", x, y)
    else:
        yield name, ours, reference
