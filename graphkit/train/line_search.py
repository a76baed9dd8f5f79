"""A line search for the strong Wolfe conditions, as in PyTorch's L-BFGS (Nocedal, Wright: algorithms 3.5 and 3.6)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from graphkit.named_tuples import NamedTuple

_DECREASE, _CURVATURE, _MOST_STEPS = 1e-4, 0.9, 25


class Point(NamedTuple):
    """A point on the line. slope: derivative of the loss along the direction."""

    t: float
    loss: float
    gradient: np.ndarray
    slope: float


def strong_wolfe(evaluate: Callable[[float], Point], start: Point, t: float, scale: float, tolerance: float) -> Point:
    """Return a point that meets the strong Wolfe conditions if one is found, else the best point.

    Args:
        scale: The largest absolute element of the direction.
        tolerance: The search ends if the width of the bracket times `scale` is below this.
    """
    bracket, steps, done = _bracket(evaluate, start, t)
    if len(bracket) == 1:
        return bracket[0]
    low, high = bracket if bracket[0].loss <= bracket[1].loss else bracket[::-1]
    stuck = False
    while not done and steps < _MOST_STEPS and abs(high.t - low.t) * scale >= tolerance:
        ends = sorted((low.t, high.t))
        # The order changes how the interpolation rounds: begin with the smaller t.
        first, second = (low, high) if low.t <= high.t else (high, low)
        t, stuck = _inside(_interpolated(first, second, *ends), ends, stuck)
        new = evaluate(t)
        steps += 1
        if new.loss > start.loss + _DECREASE * t * start.slope or new.loss >= low.loss:
            high = new
            if new.loss < low.loss:
                low, high = high, low
            continue
        done = abs(new.slope) <= -_CURVATURE * start.slope
        if not done and new.slope * (high.t - low.t) >= 0:
            high = low
        low = new
    return low


def _bracket(evaluate: Callable[[float], Point], start: Point, t: float) -> tuple[list[Point], int, bool]:
    """Return (points, number of steps, whether the search is complete).

    One point meets the conditions, or two points enclose such a point. After _MOST_STEPS steps, the points are the
    start and the last point.
    """
    previous, new = start, evaluate(t)
    for steps in range(_MOST_STEPS):
        is_higher = steps > 1 and new.loss >= previous.loss
        if new.loss > start.loss + _DECREASE * new.t * start.slope or is_higher:
            return [previous, new], steps, False
        if abs(new.slope) <= -_CURVATURE * start.slope:
            return [new], steps, True
        if new.slope >= 0:
            return [previous, new], steps, False
        nearest, farthest = new.t + 0.01 * (new.t - previous.t), new.t * 10
        t = _interpolated(previous, new, nearest, farthest)
        previous, new = new, evaluate(t)
    return [start, new], _MOST_STEPS, True


def _inside(t: float, ends: list[float], stuck: bool) -> tuple[float, bool]:
    """Return the step length, moved away from the ends of the bracket if the search is slow.

    stuck: whether the last step was near an end, too.
    """
    low, high = ends
    margin = 0.1 * (high - low)
    if min(high - t, t - low) >= margin:
        return t, False
    if stuck or t >= high or t <= low:
        return (high - margin if abs(t - high) < abs(t - low) else low + margin), False
    return t, True


def _interpolated(first: Point, second: Point, lowest: float, highest: float) -> float:
    """Return the step length at the minimum of the cubic through two points, clamped to `lowest` and `highest`.

    If the cubic has no minimum, return the middle between these bounds.
    """
    a, b = first, second
    d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = d1 * d1 - a.slope * b.slope
    if not square >= 0:
        return (lowest + highest) / 2
    root = math.sqrt(square)
    if a.t <= b.t:
        found = b.t - (b.t - a.t) * ((b.slope + root - d1) / (b.slope - a.slope + 2 * root))
    else:
        found = a.t - (a.t - b.t) * ((a.slope + root - d1) / (a.slope - b.slope + 2 * root))
    return min(max(found, lowest), highest)
