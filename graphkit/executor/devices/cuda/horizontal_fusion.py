"""Horizontal fusion: independent launches of one source, whose addresses never change, become one launch.

For example, the updates of all parameters become one launch. A step joins an earlier launch of the same source if no
step between them uses its memory. The arguments of all parts of a launch are in a table; each block reads those of its
part.
"""

from __future__ import annotations

import bisect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np

from graphkit.executor.devices.bound_steps import BoundStep
from graphkit.executor.devices.cuda.launches import (
    Argument,
    CardKernel,
    Launch,
    Memory,
    Source,
    Table,
)
from graphkit.executor.devices.device import address_of
from graphkit.named_tuples import NamedTuple

# A step joins an earlier launch only if that launch is among this many latest groups of steps.
REACH = 64

# A launch with more blocks is not fused, because it uses the whole GPU.
MOST_BLOCKS = 1 << 16

# A range of addresses: the first, and the end (excluded).
_Range = tuple[int, int]


class BoundLaunch(NamedTuple):
    """A launch, and the memory of its arguments."""

    launch: Launch
    memory: Memory


class _Memory:
    """Bytes that steps read or write, as disjoint ranges in order."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, one: _Range) -> None:
        begin, end = one
        first = bisect.bisect_left(self._ends, begin)
        last = bisect.bisect_right(self._begins, end)
        if first < last:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
        self._begins[first:last], self._ends[first:last] = [begin], [end]

    def meets(self, one: _Range) -> bool:
        begin, end = one
        at = bisect.bisect_right(self._ends, begin)
        return at < len(self._begins) and self._begins[at] < end


class _Use(NamedTuple):
    """The memory that a step reads and writes."""

    reads: tuple[_Range, ...]
    writes: tuple[_Range, ...]


class _Group:
    """Steps that can run at the same time."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self._reads, self._writes = _Memory(), _Memory()

    def add(self, step: int, use: _Use) -> None:
        self.steps.append(step)
        for one in use.reads:
            self._reads.add(one)
        for one in use.writes:
            self._writes.add(one)

    def conflicts_with(self, use: _Use) -> bool:
        """Whether one of these steps must run before a step that uses this memory."""
        written = any(map(self._writes.meets, (*use.reads, *use.writes)))
        return written or any(map(self._reads.meets, use.writes))


class OwnLaunches(ABC):
    """A kernel that consists of launches, which use only the memory that it is called with.

    chosen: the launches. fault: memory of the fault that they may set. tables: arrays that they read in every run.
    """

    can_be_recorded = True

    def __init__(self, chosen: CardKernel, fault: Any, tables: Mapping[Table, Any]):
        self.chosen, self._fault, self._tables = chosen, fault, tables

    @abstractmethod
    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None: ...

    @abstractmethod
    def beside(self, kernel: CardKernel) -> OwnLaunches:
        """Return an executable `kernel` on the same device, for launches that belong to several nodes."""

    def memory(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Memory:
        return Memory(inputs, outputs, scratch, self._fault, self._tables)


class Step(NamedTuple):
    """A step of a recording: the arrays that it reads and writes (None: absent), and its launch, if it is one launch.

    waits: it may use other memory, too. Steps before it do not move after it, or the reverse.
    """

    reads: Sequence[Any]
    writes: Sequence[Any]
    launch: BoundLaunch | None = None
    waits: bool = False

    @property
    def source(self) -> Source | None:
        """The source of its launch, if it can share a launch."""
        if self.launch is None or self.launch.launch.blocks > MOST_BLOCKS:
            return None
        return self.launch.launch.source


def fused(steps: Sequence[BoundStep]) -> list[BoundStep]:
    """Return steps with the same results in a valid order. Independent steps share launches."""
    found = [*map(_step, steps)]
    return [_as_one(steps[group[0]], [found[number].launch for number in group]) for group in side_by_side(found)]


def _step(bound: BoundStep) -> Step:
    kernel, writes = bound.kernel, (*bound.outputs, bound.scratch)
    if not isinstance(kernel, OwnLaunches):
        return Step(bound.inputs, writes, waits=True)
    match kernel.chosen.launches:
        case (Launch() as launch,):
            memory = kernel.memory(bound.inputs, bound.outputs, bound.scratch)
            return Step(bound.inputs, writes, BoundLaunch(launch, memory))
        case _:  # several, or a library's
            return Step(bound.inputs, writes)


def _as_one(first: BoundStep, launches: Sequence[BoundLaunch | None]) -> BoundStep:
    """Return one step that runs all launches of a group. first: the first step of the group."""
    parts = [launch for launch in launches if launch is not None]
    if len(parts) < 2:
        return first
    assert isinstance(first.kernel, OwnLaunches), "others have no launch"
    return BoundStep(first.kernel.beside(joined(parts)), (), (), None)


def side_by_side(steps: Sequence[Step]) -> list[list[int]]:
    """Return groups of steps, in a valid order. O(n log n).

    The steps of a group are independent and have launches of one source; a group may be a single step.
    """
    groups: list[_Group] = []
    latest: dict[Source, int] = {}
    for number, step in enumerate(steps):
        use, source = _Use(_ranges(step.reads), _ranges(step.writes)), step.source
        if step.waits:
            latest.clear()
        place = None if source is None else latest.get(source)
        if place is None or len(groups) - place > REACH or any(g.conflicts_with(use) for g in groups[place:]):
            place = len(groups)
            groups.append(_Group())
            if source is not None:
                latest[source] = place
        groups[place].add(number, use)
    return [group.steps for group in groups]


def _ranges(arrays: Iterable[Any]) -> tuple[_Range, ...]:
    found = ((address_of(a), a.nbytes) for a in arrays if a is not None)
    return tuple((address, address + nbytes) for address, nbytes in found if nbytes)


def joined(parts: Sequence[BoundLaunch]) -> CardKernel:
    """Return launches of one source as a kernel without operands. Its table contains their memory."""
    source = parts[0].launch.source
    blocks = [part.launch.blocks for part in parts]
    rows = np.array(
        [
            (first, *(_word(part.memory, argument) for argument in part.launch.arguments))
            for first, part in zip(accumulate(blocks, initial=0), parts, strict=False)
        ],
        np.uint64,
    )
    part_of = np.repeat(np.arange(len(parts), dtype=np.uint32), blocks)
    return CardKernel((Launch(of_parts(source), sum(blocks), (Table(rows), Table(part_of))),))


def _word(memory: Memory, argument: Argument) -> int:
    """Return an argument as 8 bytes: an address, or a number in the first bytes."""
    if isinstance(argument, np.generic):
        return int.from_bytes(argument.tobytes().ljust(8, b"\0"), "little")
    return address_of(memory.of(argument))


@cache
def of_parts(source: Source) -> Source:
    """Return a source that reads its parameters from a table: each row begins with the part's first block."""
    lines = [
        f"const gk_u64* row = rows + (gk_u64)part_of[gk_block] * {len(source.declared) + 1}u;",
        "const gk_u32 all = gk_block;",
        "{",
        "    const gk_u32 gk_block = all - (gk_u32)row[0];",
    ]
    for place, (kind, declared) in enumerate(zip(source.parameters, source.declared, strict=True), 1):
        lines.append(f"    {declared} = *({kind} const*)(row + {place});")
    lines += [*("    " + line for line in source.lines), "}"]
    return Source(f"{source.name}_parts", ("const gk_u64* rows", "const gk_u32* part_of"), tuple(lines), source.beside)
