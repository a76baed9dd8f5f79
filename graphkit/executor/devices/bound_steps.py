"""Steps of a device with its own memory: kernels with their arrays, and steps that values choose or repeat."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias

from graphkit.errors import RuntimeFailure
from graphkit.named_tuples import NamedTuple


class ArrayKernel(Protocol):
    """Computes one node on arrays of a device.

    `can_be_recorded` is true if a call only queues work, and always the same work for the same arrays. The argument
    `scratch` is working memory, or None if the kernel needs none.
    """

    can_be_recorded: bool

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None: ...


class BoundStep(NamedTuple):
    """A kernel and the arrays that it is called with, whose memory is kept."""

    kernel: ArrayKernel
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    scratch: Any

    def run(self) -> None:
        self.kernel(self.inputs, self.outputs, self.scratch)


class NotRecorded(RuntimeFailure):
    """The device cannot record these steps; the message says why."""


class Choice(NamedTuple):
    """Runs `then` if any element of `condition` is not zero, otherwise `otherwise`.

    `condition` is an array of bool or integers.
    """

    condition: Any
    then: Sequence[Recorded]
    otherwise: Sequence[Recorded]


class Repetition(NamedTuple):
    """Repeats steps while `flag` is true after them. All arrays but `faults` have one element.

    Args:
        steps: The steps.
        trips: int64. Before each repetition, the number of earlier ones is written here.
        condition: bool. If it is false, the steps do not run at all. None: they do.
        limit: int64. The largest number of repetitions. None: any.
        flag: bool, written by the steps. None: it stays true.
        most: int64. If there would be more repetitions, they stop, and `fault` is set.
        fault: uint32. Set to 1 if there would be more than `most` repetitions.
        faults: uint32. The steps are not repeated once one of these is set.
    """

    steps: Sequence[Recorded]
    trips: Any
    condition: Any
    limit: Any
    flag: Any
    most: Any
    fault: Any
    faults: Any


Recorded: TypeAlias = BoundStep | Choice | Repetition


class Conditional(ABC):
    """A kernel that a recording replaces by other steps (`recorded`), which the device chooses or repeats.

    If the kernel is called instead, the host reads values to choose the steps.
    """

    can_be_recorded: bool

    @abstractmethod
    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None: ...

    @abstractmethod
    def recorded(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Iterator[Recorded]:
        """Return the steps of a recording for a call. They copy nothing from the host or to it."""
