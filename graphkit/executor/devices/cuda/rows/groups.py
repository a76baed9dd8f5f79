"""Groups of elements along any axes that are read together, for one result each or to be changed by what was found.

Each pass over a group makes a partial result (`partials.cuh`) that later ones use, and the last one, which writes.
The threads of a group lie along it, and several groups beside each other in a block, so that neighbours in a warp read
neighbours in memory. Where there are few groups they are cut into slices: a launch for each pass leaves the partial
results of all slices in scratch, and those that follow join them again. The order of sums is that of the sizes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from graphkit.executor.devices.cuda.launches import THREADS, Argument, CardKernel, Launch, Scratch, source_of
from graphkit.executor.devices.cuda.text.axes import Axes, parted
from graphkit.executor.devices.cuda.text.expressions import STORED
from graphkit.executor.devices.cuda.text.indexing import Coordinates
from graphkit.ir.types import DType

# Threads that keep a card busy, what one of them reads at least before there is another slice, and the most slices.
_BUSY, _LEAST, _MOST = 1 << 16, 32, 256
# Groups side by side that a block has, where they lie side by side in memory.
_BESIDE = 32


@dataclass(frozen=True)
class Pass:
    """What a thread learns of its elements.

    partial: a type of `partials.cuh`; numbers: how many A it has. lines: what is done for an element at `at` of memory,
    number `e` of group `g`, with the partial result `p0` (the second pass: `p1`, ...). ahead: lines before, once.
    """

    partial: str
    numbers: int
    lines: Sequence[str]
    ahead: Sequence[str] = ()


@dataclass(frozen=True)
class Work:
    """What a kernel does with groups. given: the parameters, as C declares them, with what they are given.

    each: lines for an element, as those of a Pass, behind all passes. ahead: lines before, once. once: lines for a
    group, of one thread. coordinates: what is declared as parameters besides.
    """

    name: str
    given: Sequence[tuple[str, Argument]]
    passes: Sequence[Pass]
    each: Sequence[str] = ()
    ahead: Sequence[str] = ()
    once: Sequence[str] = ()
    places: Sequence[tuple[Coordinates, Sequence[int]]] = field(default=())


@dataclass(frozen=True)
class Groups:
    """kept: where groups begin; reduced: where their elements lie from there; held: the type of what is computed."""

    kept: Axes
    reduced: Axes
    held: DType

    @classmethod
    def over(cls, shape: Sequence[int], axes: Sequence[int], held: DType) -> Groups:
        """The elements along `axes` of an array that is not empty."""
        return cls(*parted(shape, axes), held)

    @property
    def short(self) -> bool:
        return self.kept.elements * self.reduced.elements + THREADS < 1 << 31

    @property
    def index(self) -> str:
        return "gk_u32" if self.short else "gk_u64"

    @property
    def by_rows(self) -> bool:
        """Whether the elements of a group lie side by side, rather than groups."""
        return self.kept.strides[0][-1] != 1

    @property
    def lanes(self) -> int:
        """Threads of a group in a block: a power of two."""
        along = min(THREADS, _power(-(-self.reduced.elements // 4)))
        if self.by_rows:
            return along
        if self.kept.elements >= _BUSY:
            return 1
        return min(along, THREADS // min(_BESIDE, _power(self.kept.sizes[-1])))

    @property
    def slices(self) -> int:
        groups, count, lanes = self.kept.elements, self.reduced.elements, self.lanes
        wanted = max(min(-(-_BUSY // (groups * lanes)), count // (_LEAST * lanes), _MOST), 1)
        return -(-count // -(-count // wanted))

    def scratch_bytes(self, work: Work) -> int:
        """What `launches` wants of scratch."""
        slices = self.slices
        if slices == 1:
            return 0
        return sum(p.numbers for p in work.passes) * self.held.itemsize * self.kept.elements * slices

    def launches(self, work: Work, offset: int = 0) -> tuple[Launch, ...]:
        """offset: where the scratch of these launches begins, in bytes."""
        if self.slices == 1:
            return (self._launch(work, 0, len(work.passes), offset),)
        steps = [(done, done + 1) for done in range(len(work.passes))] + [(len(work.passes), len(work.passes))]
        return tuple(self._launch(work, known, reached, offset) for known, reached in steps)

    def kernel(self, work: Work, inplace: Sequence[tuple[int, int]] = (), fault: str = "") -> CardKernel:
        """Of these launches alone."""
        return CardKernel(self.launches(work), self.scratch_bytes(work), inplace, fault)

    # --- one launch -----------------------------------------------------------------------------------------------

    def _launch(self, work: Work, known: int, reached: int, offset: int) -> Launch:
        """With the partial results of `known` passes from scratch, make those of passes until `reached`.

        The last launch makes none of its own, or all of them where there is but one slice, and writes.
        """
        slices = self.slices
        last = slices == 1 or known == reached
        kept, reduced = (
            Coordinates(name, len(axes.sizes), self.short) for name, axes in (("k", self.kept), ("r", self.reduced))
        )
        groups, count = self.kept.elements, self.reduced.elements
        sizes = dict(groups=groups, count=count, slices=slices, length=-(-count // slices))
        sizes |= {f"kstep{axis}": stride for axis, stride in enumerate(self.kept.strides[0])}
        sizes |= {f"rstep{axis}": stride for axis, stride in enumerate(self.reduced.strides[0])}
        scratch, place = [], offset
        for number, one in enumerate(work.passes[:reached] if slices > 1 else ()):
            scratch.append((f"{self._partial(one)}* parts{number}", Scratch(place)))
            place += one.numbers * self.held.itemsize * groups * slices
        places = [(kept, self.kept.sizes), (reduced, self.reduced.sizes), *work.places]
        parameters = [
            *(text for text, _ in work.given), *(text for text, _ in scratch), *(f"{self.index} {n}" for n in sizes),
            *(text for p, _ in places for text in p.parameters()),
        ]  # fmt: skip
        arguments: tuple[Argument, ...] = (
            *(a for _, a in work.given), *(a for _, a in scratch), *map(kept.number, sizes.values()),
            *(number for p, axes in places for number in p.arguments(axes)),
        )  # fmt: skip
        lines = self._place(kept)
        for number, one in enumerate(work.passes[:reached]):
            lines += one.ahead
            lines += self._known(number, one) if number < known else self._pass(number, one, reduced)
        if last:
            lines += [*work.ahead, *(self._loop(reduced, work.each) if work.each else [])]
            lines += ["if (lane == 0 && live && slice == 0) {", *_indented(work.once), "}"] if work.once else []
        else:
            number = reached - 1
            lines += ["if (lane == 0 && live) {", f"    parts{number}[g * slices + slice] = p{number};", "}"]
        blocks = -(-groups // (THREADS // self.lanes)) * slices
        return Launch(source_of(work.name, parameters, lines), blocks, arguments)

    def _partial(self, one: Pass) -> str:
        return one.partial.replace("A", STORED[self.held])

    def _place(self, kept: Coordinates) -> list[str]:
        """The thread's group `g`, its number `lane` within it, and the elements from `begin` to `end` of it; none where
        there is no such group: `live` says so, and the group is then the first one."""
        index, lanes, beside = self.index, self.lanes, THREADS // self.lanes
        within = (f"/ {lanes}u", f"% {lanes}u") if self.by_rows else (f"% {beside}u", f"/ {beside}u")
        lines, places = kept.lines("g")
        return [
            f"typedef {STORED[self.held]} A;",
            f"const {index} own = gk_block / slices * {beside}u + threadIdx.x {within[0]};",
            f"const {index} slice = gk_block % slices;",
            f"const {index} lane = threadIdx.x {within[1]};",
            "const bool live = own < groups;",
            f"const {index} g = live ? own : 0;",
            *lines,
            f"const {index} base = {_offset(places, 'k')};",
            f"const {index} begin = slice * length;",
            f"const {index} end = !live ? begin : (begin + length < count ? begin + length : count);",
        ]

    def _loop(self, reduced: Coordinates, lines: Sequence[str]) -> list[str]:
        found, places = reduced.lines("e")
        return [
            f"for ({self.index} e = begin + lane; e < end; e += {self.lanes}u) {{",
            *_indented([*found, f"const {self.index} at = base + {_offset(places, 'r')};", *lines]),
            "}",
        ]

    def _pass(self, number: int, one: Pass, reduced: Coordinates) -> list[str]:
        """The partial result of the block's part of the group."""
        kind, name = self._partial(one), f"p{number}"
        return [f"{kind} {name} = {kind}::none();", *self._loop(reduced, one.lines), *self._joined(number, kind)]

    def _known(self, number: int, one: Pass) -> list[str]:
        """The partial result of a pass that an earlier launch made."""
        kind, name = self._partial(one), f"p{number}"
        return [
            f"{kind} {name} = {kind}::none();",
            f"for ({self.index} i = lane; live && i < slices; i += {self.lanes}u) {{",
            f"    {name}.join(parts{number}[g * slices + i]);",
            "}",
            *self._joined(number, kind),
        ]

    def _joined(self, number: int, kind: str) -> list[str]:
        """What each thread of a group has becomes what all of them have."""
        lanes, name, parts = self.lanes, f"p{number}", f"all{number}"
        if lanes == 1:
            return []
        step = 1 if self.by_rows else THREADS // lanes
        return [
            f"__shared__ {kind} {parts}[{THREADS}];",
            f"{parts}[threadIdx.x] = {name};",
            "__syncthreads();",
            f"for (unsigned far = {lanes // 2}u; far > 0; far /= 2) {{",
            "    if (lane < far) {",
            f"        {parts}[threadIdx.x].join({parts}[threadIdx.x + far * {step}u]);",
            "    }",
            "    __syncthreads();",
            "}",
            f"{name} = {parts}[threadIdx.x - (unsigned)lane * {step}u];",
        ]


def written(name: str, kind: DType, place: str, value: str) -> str:
    """The line that writes `value`, a float or a double, to memory of a type."""
    return f"gk_write({name}[{place}], ({'double' if kind is DType.FLOAT64 else 'float'})({value}));"


def _power(number: int) -> int:
    """The smallest power of two that is not below."""
    return 1 << max(number - 1, 0).bit_length()


def _offset(places: Sequence[str], name: str) -> str:
    return " + ".join(f"{place} * {name}step{axis}" for axis, place in enumerate(places))


def _indented(lines: Sequence[str]) -> list[str]:
    return ["    " + line for line in lines]
