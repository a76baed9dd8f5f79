"""Operands that are repeated along axes of what a kernel goes through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from graphkit.executor.devices.cuda.launches import Argument
from graphkit.executor.devices.cuda.text.axes import merged
from graphkit.executor.devices.cuda.text.indexing import Coordinates
from graphkit.executor.devices.operands import repeating, row_major


class Repeated(NamedTuple):
    """Where the operand's element for an element `at` lies: lines, and behind them the expression `place`.

    given: parameters, and what they are given; coordinates: those that the lines go through, with their sizes.
    """

    lines: Sequence[str]
    place: str
    given: Sequence[tuple[str, Argument]] = ()
    coordinates: Sequence[tuple[Coordinates, Sequence[int]]] = ()


def repeated(name: str, operand: Sequence[int], shape: Sequence[int], short: bool, row: int = 0) -> Repeated:
    """An operand that is broadcast to `shape`. row: the size of rows, of which `e` is the number of an element.

    name: of its coordinates. short: whether indices have 32 bits.
    """
    strides = repeating(operand, shape)
    axes = merged(shape, row_major(shape), strides)
    steps = axes.strides[1]
    if not any(steps):
        return Repeated((), "0")
    if steps == axes.strides[0]:
        return Repeated((), "at")
    if steps[-1] == 1 and not any(steps[:-1]) and axes.sizes[-1] == row:
        return Repeated((), "e")
    places = Coordinates(name, len(axes.sizes), short)
    lines, found = places.lines("at")
    terms = [f"{place} * {name}step{axis}" for axis, place in enumerate(found) if steps[axis]]
    given = [(f"{places.index} {name}step{axis}", places.number(step)) for axis, step in enumerate(steps) if step]
    return Repeated(lines, " + ".join(terms), given, [(places, axes.sizes)])
