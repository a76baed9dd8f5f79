"""Steps on values that lie in slots and whose shapes only a run tells: no kernel has to be made for these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphkit.executor.lower.emit import ABSENT, Emitter, Where
from graphkit.executor.lower.region import Region
from graphkit.executor.memory.placement import has_fixed_size, has_run_time_size
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import DType


def slot_step(node: Node) -> SizesStep | RowStep | None:
    """The step of a Shape of a value in a slot, and of a Gather of one of its rows; None for everything else."""
    x = node.inputs[0] if node.inputs else None
    if node.op.domain or x is None or not has_run_time_size(x) or x.rank is None:
        return None
    op: Any = node.op
    if op.name == "Shape":
        first, last, _ = slice(op.start, op.end).indices(x.rank)
        return SizesStep(first, max(first, last))
    place = node.inputs[1] if op.name == "Gather" else None
    if place is None or op.axis % x.rank or place.tensor.shape != () or not has_fixed_size(node.output):
        return None
    return RowStep(x, place)


@dataclass(frozen=True)
class SizesStep:
    """Writes the sizes of the axes from `first` to before `last`."""

    first: int
    last: int
    scratch_bytes: int = 0
    regions: Mapping[str, Region] = field(default_factory=dict)

    def emit(
        self, emitter: Emitter, builder: Any, name: str, inputs: Sequence[Where], outputs: Sequence[Where], base: int
    ) -> None:
        if outputs[0] != ABSENT:
            builder.sizes(name, inputs[0][0], self.first, self.last, outputs[0])


@dataclass(frozen=True)
class RowStep:
    """Copies the row of `x` that `place` tells, from the end when it is negative."""

    x: Value
    place: Value
    scratch_bytes: int = 0
    regions: Mapping[str, Region] = field(default_factory=dict)

    def emit(
        self, emitter: Emitter, builder: Any, name: str, inputs: Sequence[Where], outputs: Sequence[Where], base: int
    ) -> None:
        wide = self.place.dtype is DType.INT64
        if outputs[0] != ABSENT:
            builder.row(name, inputs[0][0], self.x.dtype.itemsize, inputs[1], wide, outputs[0])
