"""Lines of a kernel that convert indices to addresses: of elements along an axis, or of slices by tuples of indices."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from graphkit.executor.devices.cuda.launches import Fault, Given, Input
from graphkit.executor.devices.cuda.text.axes import merged
from graphkit.executor.devices.cuda.text.indexing import Coordinates
from graphkit.executor.devices.operands import row_major
from graphkit.ir.types import DType

INDEX_TYPES = {DType.INT32: "gk_i32", DType.INT64: "gk_i64"}


@dataclass(frozen=True)
class Address(ABC):
    """Indices, or tuples of indices, each of which selects a slice of an operand.

    Attributes:
        sizes: Axes of the array of indices (or tuples), merged where possible.
        targets: Number of slices of the operand.
        kind: C type of the indices.
        position: Position of the operand with the indices.
        shape: Shape of the operand from which slices are selected, for the message of a fault.
    """

    sizes: tuple[int, ...]
    targets: int
    kind: str
    position: int
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.sizes)

    @property
    @abstractmethod
    def fault(self) -> str:
        """The error message for an index that is out of range."""

    def given(self, places: Coordinates) -> Given:
        """Return the parameters that the lines need, including `fault`, with their arguments."""
        return [
            (f"const {self.kind}* indices", Input(self.position)), ("unsigned* fault", Fault()),
            *((f"{places.index} {name}", places.number(size)) for name, size in self.numbers().items()),
        ]  # fmt: skip

    @abstractmethod
    def numbers(self) -> dict[str, int]:
        """Return the sizes and strides that the lines need, by name."""

    def lines(self, places: Coordinates, at: str, coordinates: Sequence[str], otherwise: str) -> list[str]:
        """Return lines that declare `target`: the slice that index (or tuple) number `at` selects.

        coordinates: those of `at` in `sizes`. otherwise: the statement that follows if an index is out of range and the
        fault is set.
        """
        found = self.found(places, at, coordinates)
        return [*found, "if (!known) {", "    *fault = 1;", f"    {otherwise}", "}"]

    @abstractmethod
    def found(self, places: Coordinates, at: str, coordinates: Sequence[str]) -> list[str]:
        """Return lines that declare `target`, and `known`: whether all indices are in range."""


@dataclass(frozen=True)
class ElementAddress(Address):
    """Indices along `axis` of an operand, as those of GatherElements. Each selects one element."""

    axis: int
    steps: tuple[int, ...]

    @staticmethod
    def of(x: Sequence[int], indices: Sequence[int], axis: int, kind: str, position: int) -> ElementAddress | None:
        """Return the address; None if another axis than `axis` is longer in `indices` than in x."""
        if not x or any(n > size for i, (n, size) in enumerate(zip(indices, x, strict=True)) if i != axis % len(x)):
            return None
        axis %= len(x)
        strides = [0 if i == axis else stride for i, stride in enumerate(row_major(x))]
        walk = merged(indices, strides)
        return ElementAddress(walk.sizes, math.prod(x), kind, position, tuple(x), axis, walk.strides[0])

    @property
    def fault(self) -> str:
        return f"an index is outside axis {self.axis} of {list(self.shape)}"

    def numbers(self) -> dict[str, int]:
        along = {"size": self.shape[self.axis], "stride": row_major(self.shape)[self.axis]}
        return along | {f"step{i}": step for i, step in enumerate(self.steps) if step}

    def found(self, places: Coordinates, at: str, coordinates: Sequence[str]) -> list[str]:
        terms = [f"{place} * step{i}" for i, place in enumerate(coordinates) if self.steps[i]]
        return [
            f"gk_i64 index = indices[{at}];",
            "index += index < 0 ? (gk_i64)size : 0;",
            "const bool known = index >= 0 && index < (gk_i64)size;",
            f"{places.index} target = {' + '.join([f'({places.index})index * stride', *terms])};",
        ]


@dataclass(frozen=True)
class TupleAddress(Address):
    """Tuples of indices (GatherND). The first `batch` axes are those of the operand; a tuple indexes the next axes.

    depth: length of a tuple. `sizes` is [size of all batch axes, tuples per batch].
    """

    batch: int
    depth: int

    @staticmethod
    def of(x: Sequence[int], indices: Sequence[int], batch: int, kind: str, position: int) -> TupleAddress | None:
        """Return the address; None if the batch axes of x and of the indices differ."""
        if tuple(x[:batch]) != tuple(indices[:batch]):
            return None
        depth = indices[-1]
        sizes = math.prod(x[:batch]), math.prod(indices[batch:-1])
        return TupleAddress(sizes, math.prod(x[: batch + depth]), kind, position, tuple(x), batch, depth)

    @staticmethod
    def of_axis(x: Sequence[int], axis: int, count: int, kind: str, position: int) -> TupleAddress:
        """Return the address for `count` indices along one axis (Gather)."""
        axis %= len(x)
        return TupleAddress((1, count), x[axis], kind, position, tuple(x), axis, 1)

    @property
    def fault(self) -> str:
        if self.depth == 1:
            return f"an index is outside axis {self.batch} of {list(self.shape)}"
        last = self.batch + self.depth - 1
        return f"an index is outside its axis, one of {self.batch} to {last} of {list(self.shape)}"

    def numbers(self) -> dict[str, int]:
        return {f"size{k}": self.shape[self.batch + k] for k in range(self.depth)}

    def found(self, places: Coordinates, at: str, coordinates: Sequence[str]) -> list[str]:
        lines = ["bool known = true;", f"{places.index} target = {coordinates[0]};"]
        for k in range(self.depth):
            lines += [
                f"gk_i64 index{k} = indices[{at} * {self.depth}u + {k}u];",
                f"index{k} += index{k} < 0 ? (gk_i64)size{k} : 0;",
                f"known = known && index{k} >= 0 && index{k} < (gk_i64)size{k};",
                f"target = target * size{k} + ({places.index})index{k};",
            ]
        return lines
