"""Measure rounding noise: how far the results of two engines are from the same graph in double precision.

No tolerance holds for every model: sums of thousands of terms that cancel lose more digits than 1e-4 allows. But any
model can be required to have no larger error than the other engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.ir.types import DType, dtype_of
from graphkit.named_tuples import NamedTuple

# Element types narrower than double precision, and their epsilon: the distance from 1 to the next number.
EPSILON: Mapping[DType, float] = {DType.FLOAT32: 2.0**-23, DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7}
# graphkit's error may be at most this factor times ONNX Runtime's error.
FACTOR = 2.0
# ONNX Runtime's error may be at most this factor times graphkit's. Beyond, it does not compute the same function.
OTHER_FACTOR = 16.0
# If the precisions of two models differ, both errors may be at most this factor times the measured effect of rounding
# to the lower precision.
LOWER_FACTOR = 4.0
# An element's error is compared with the other engine's largest error among the elements whose magnitude is at most
# _LARGER times its own. There are at least _NEIGHBOURS of these.
_LARGER, _NEIGHBOURS = 4.0, 64

# Names of the two sides, if these are the two engines.
ENGINES = ("graphkit", "ONNX Runtime")


@dataclass(frozen=True)
class Noise:
    """Errors of one output of graphkit and of ONNX Runtime, compared with double precision, and the verdict.

    Attributes:
        passed: The verdict.
        max_abs: Largest error of graphkit, over the elements that are not within the tolerances.
        mean_abs: Mean error of graphkit, over all elements.
        other_max_abs: Largest error of ONNX Runtime, over all elements.
        other_mean_abs: Mean error of ONNX Runtime, over all elements.
        reason: Why the output failed, or "".
        names: The two engines or models. `max_abs` and `mean_abs` belong to the first one.
    """

    passed: bool
    max_abs: float
    mean_abs: float
    other_max_abs: float
    other_mean_abs: float
    reason: str = ""
    names: tuple[str, str] = ENGINES

    def __str__(self) -> str:
        return (
            f"from double precision: {self.names[0]} max {self.max_abs:.3g} mean {self.mean_abs:.3g}, "
            f"{self.names[1]} max {self.other_max_abs:.3g} mean {self.other_mean_abs:.3g}"
        )


@dataclass(frozen=True)
class Spread:
    """How far random rounding moves an output: `highest` distance of each element, and `mean` distance."""

    highest: np.ndarray
    mean: float


class Spreads(NamedTuple):
    """Measured effects of rounding.

    tensors: every node's errors are proportional to the largest element of its tensor.
    steps: they are proportional to each element, in models that quantise; None for other models.
    """

    tensors: Spread
    steps: Spread | None


def judge(
    ours: np.ndarray,
    other: np.ndarray,
    truth: np.ndarray,
    suspects: np.ndarray,
    spreads: Spreads | None = None,
    names: tuple[str, str] = ENGINES,
) -> Noise:
    """Judge whether two arrays of one type are about equally far from `truth`, the result in double precision.

    suspects: mask of the elements that failed the tolerances.

    The error of each suspect of `ours` may be FACTOR times the largest error of `other` on elements of about that
    magnitude or smaller. The same limit holds for the mean errors. The error of `other` is limited in the same way,
    with OTHER_FACTOR: if it is larger, `other` computes another function. NaN and infinities must be where `truth` has
    them.

    spreads: measured effects of rounding, which raise the limits: both spreads that of `other`, `steps` also that of
    `ours`.
    """
    size = np.where(np.isfinite(truth), np.abs(truth), 0.0)
    mine, theirs = _error(ours, truth), _error(other, truth)
    step = EPSILON[dtype_of(ours.dtype)]
    beside_ours, beside_other = Spread(theirs, _mean(theirs)), Spread(mine, _mean(mine))
    if spreads is not None:
        beside_ours = _larger(beside_ours, spreads.steps)
        beside_other = _larger(_larger(beside_other, spreads.steps), spreads.tensors)
    ours_fit = _fits(mine, beside_ours, size, suspects, FACTOR, step)
    other_fits = _fits(theirs, beside_other, size, suspects, OTHER_FACTOR, step)
    reason = ""
    if not other_fits:
        reason = f"{names[1]} is further from double precision than rounding explains: it computes another function"
    elif not ours_fit:
        reason = f"{names[0]} is more than {FACTOR:g} times as far from double precision as {names[1]}"
    return Noise(not reason, _max(mine[suspects]), _mean(mine), _max(theirs), _mean(theirs), reason, names)


def judge_lower(
    ours: np.ndarray,
    other: np.ndarray,
    truth: np.ndarray,
    suspects: np.ndarray,
    spread: Spread,
    epsilon: float,
    names: tuple[str, str],
) -> Noise:
    """Judge two arrays of models with different precisions by their distances from `truth`.

    Both errors may be at most LOWER_FACTOR times `spread`: how far random errors of the lower precision move the
    result. epsilon: of the lower precision. The other arguments are those of `judge`.
    """
    size = np.where(np.isfinite(truth), np.abs(truth), 0.0)
    distances = _error(ours, truth), _error(other, truth)
    fit = [_fits(error, spread, size, suspects, LOWER_FACTOR, epsilon) for error in distances]
    wrong = next((name for name, fits in zip(names, fit, strict=True) if not fits), None)
    reason = "" if wrong is None else f"{wrong} is further from double precision than the lower precision explains"
    mine, theirs = distances
    return Noise(not reason, _max(mine[suspects]), _mean(mine), _max(theirs), _mean(theirs), reason, names)


def _larger(one: Spread, other: Spread | None) -> Spread:
    return one if other is None else Spread(np.fmax(one.highest, other.highest), max(one.mean, other.mean))


def _fits(error: np.ndarray, other: Spread, size: np.ndarray, suspects: np.ndarray, factor: float, step: float) -> bool:
    """Whether `error` is at most `factor` * `other` + `step` * `size`, at every suspect and in the mean."""
    if _mean(error) > factor * other.mean + step * _mean(size):
        return False
    order = np.argsort(size, axis=None)
    ordered = size.ravel()[order]
    highest = np.maximum.accumulate(np.where(np.isfinite(other.highest), other.highest, 0.0).ravel()[order])
    sizes = size[suspects]
    reach = np.searchsorted(ordered, _LARGER * sizes, side="right")
    allowed = factor * highest[np.maximum(reach, min(_NEIGHBOURS, len(ordered))) - 1] + step * sizes
    return bool((error[suspects] <= allowed).all())


def _error(array: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """|array - truth|; 0 where both are NaN or the same infinity, infinite where NaNs or infinities differ."""
    wide = array.astype(np.float64)
    with np.errstate(all="ignore"):
        same = (wide == truth) | (np.isnan(wide) & np.isnan(truth))
        error = np.where(same, 0.0, np.abs(wide - truth))
    return np.where(same | np.isfinite(error), error, np.inf)


def _max(values: np.ndarray) -> float:
    return float(values.max()) if values.size else 0.0


def _mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else 0.0


def measurable(array: np.ndarray, truth: Any) -> bool:
    """Whether `truth` can measure the rounding of `array`: a type narrower than float64, and the same shape."""
    return dtype_of(array.dtype) in EPSILON and isinstance(truth, np.ndarray) and truth.shape == array.shape
