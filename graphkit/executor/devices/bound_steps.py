"""Steps of a device with arrays of its own: kernels with their arrays, and steps that a value chooses or repeats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from graphkit.errors import RuntimeFailure


class ArrayKernel(Protocol):
    """Computes one node from and to arrays of a device; `scratch` is working memory, None for who asked for none.

    can_be_recorded: whether a call does nothing but queue work, the same for the same arrays.
    """

    can_be_recorded: bool

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None: ...


class BoundStep(NamedTuple):
    """A kernel with what it is called with, memory that stays."""

    kernel: ArrayKernel
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    scratch: Any

    def run(self) -> None:
        self.kernel(self.inputs, self.outputs, self.scratch)


class NotRecorded(RuntimeFailure):
    """A device refuses a recording; the message says why."""


class Choice(NamedTuple):
    """Steps of which a run takes the first where an element of `condition` is not zero, bool or integers, and else the
    second.
    """

    condition: Any
    then: Sequence[Recorded]
    otherwise: Sequence[Recorded]


class Repetition(NamedTuple):
    """Steps that a run takes again and again: as long as `flag` holds behind them, and fewer than `limit` times.

    They are not taken at all where `going` does not hold, and once an element of `faults` is set, uint32, not again.
    trips: how often they were taken before, which is written here; most: where they would be taken more often than
    that, they are not, and `fault` is 1, uint32 of one element. going and flag are bool, limit, trips and most int64,
    of one element each; where None is given, nothing bounds the steps in that way.
    """

    steps: Sequence[Recorded]
    trips: Any
    going: Any
    limit: Any
    flag: Any
    most: Any
    fault: Any
    faults: Any


Recorded: TypeAlias = BoundStep | Choice | Repetition


class Conditional(ABC):
    """A kernel of which a device's recording has other steps than its calls: when it is called, the host looks at
    values.
    """

    can_be_recorded: bool

    @abstractmethod
    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None: ...

    @abstractmethod
    def recorded(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Iterator[Recorded]:
        """What a recording has for a call. Steps on arrays of one device, that copy nothing from the host or to it."""
