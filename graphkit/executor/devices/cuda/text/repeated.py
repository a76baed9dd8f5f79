"""Broadcast operands of a kernel: the address of the element that belongs to an element of the result."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.executor.devices.cuda.launches import Argument
from graphkit.executor.devices.cuda.text.axes import merged
from graphkit.executor.devices.cuda.text.indexing import Coordinates
from graphkit.executor.devices.operands import repeating, row_major
from graphkit.named_tuples import NamedTuple


class Repeated(NamedTuple):
    """The index of the operand's element for element `at` of the result.

    Attributes:
        lines: Lines of the kernel.
        place: The expression of the index, which may be used after `lines`.
        given: Parameters that the lines need, with their arguments.
        coordinates: Coordinates that the lines use, with the sizes of their axes.
    """

    lines: Sequence[str]
    place: str
    given: Sequence[tuple[str, Argument]] = ()
    coordinates: Sequence[tuple[Coordinates, Sequence[int]]] = ()


def repeated(name: str, operand: Sequence[int], shape: Sequence[int], short: bool, row: int = 0) -> Repeated:
    """Return the index of the element of an operand that is broadcast to `shape`.

    Args:
        name: Name of the coordinates in the kernel.
        operand: Shape of the operand.
        shape: Shape of the result.
        short: Whether indices have 32 bits.
        row: Size of the rows if the kernel has the position of the element in its row in the variable `e`; else 0.
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
