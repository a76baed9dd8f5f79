"""What indices point at: elements along an axis, and slices at tuples of indices, as lines of a kernel."""

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
    """Where each of several indices, or tuples of them, points: at one of `targets` slices of an operand.

    sizes: of the walk over them, in the order in which they lie. kind: the C type of the indices, which are the operand
    at `position`. shape: the operand that they point into, for the message of a fault.
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
        """What is wrong where an index is out of range."""

    def given(self, places: Coordinates) -> Given:
        """The parameters that the lines need, with their arguments; `fault` among them."""
        return [
            (f"const {self.kind}* indices", Input(self.position)), ("unsigned* fault", Fault()),
            *((f"{places.index} {name}", places.number(size)) for name, size in self.numbers().items()),
        ]  # fmt: skip

    @abstractmethod
    def numbers(self) -> dict[str, int]:
        """Sizes and strides that the lines need."""

    def lines(self, places: Coordinates, at: str, coordinates: Sequence[str], otherwise: str) -> list[str]:
        """Lines behind which `target` is the slice that index, or tuple, number `at` points at.

        coordinates: of `at` among the sizes. otherwise: what is done behind the fault where an index is out of range.
        """
        found = self.found(places, at, coordinates)
        return [*found, "if (!known) {", "    *fault = 1;", f"    {otherwise}", "}"]

    @abstractmethod
    def found(self, places: Coordinates, at: str, coordinates: Sequence[str]) -> list[str]:
        """Lines for `target`, and for `known`: whether all indices are in range."""


@dataclass(frozen=True)
class ElementAddress(Address):
    """Indices along `axis` of an operand, one for each element of a tensor of its rank; each points at one element."""

    axis: int
    steps: tuple[int, ...]

    @staticmethod
    def of(x: Sequence[int], indices: Sequence[int], axis: int, kind: str, position: int) -> ElementAddress | None:
        """None where there are more indices along another axis than x has elements."""
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
    """Tuples of indices into the axes behind `batch` axes that they share with the operand; [batch, tuples] of them."""

    batch: int
    depth: int

    @staticmethod
    def of(x: Sequence[int], indices: Sequence[int], batch: int, kind: str, position: int) -> TupleAddress | None:
        """None where the axes that are shared differ."""
        if tuple(x[:batch]) != tuple(indices[:batch]):
            return None
        depth = indices[-1]
        sizes = math.prod(x[:batch]), math.prod(indices[batch:-1])
        return TupleAddress(sizes, math.prod(x[: batch + depth]), kind, position, tuple(x), batch, depth)

    @staticmethod
    def of_axis(x: Sequence[int], axis: int, count: int, kind: str, position: int) -> TupleAddress:
        """`count` single indices along one axis."""
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
