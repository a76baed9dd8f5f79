"""Groups of elements along any axes that are read together, for one result each or to be changed by what was found.

Each pass over a group makes a partial result (`partials.cuh`) that later ones use, and the last one, which writes.
The threads of a group lie along it, and several groups beside each other in a block, so that neighbours in a warp read
neighbours in memory. A thread reads several elements before it works on the first of them: memory is far away. Where
there are few groups they are cut into slices: a launch for each pass leaves the partial results of all slices in
scratch, and a small one behind it joins them. The order of sums is that of the sizes alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from graphkit.executor.devices.cuda.launches import THREADS, Argument, CardKernel, Launch, Scratch, source_of
from graphkit.executor.devices.cuda.text.axes import Axes, parted
from graphkit.executor.devices.cuda.text.expressions import STORED
from graphkit.executor.devices.cuda.text.indexing import Coordinates
from graphkit.executor.devices.cuda.text.lines import indented
from graphkit.ir.types import DType

# Threads that keep a card busy, what one of them reads at least before there is another slice, and the most slices.
_BUSY, _LEAST, _MOST = 1 << 18, 16, 1024
# Groups side by side that a block has, where they lie side by side in memory.
_BESIDE = 32
# Elements of a group that a thread has at least and at most, as far as there are threads.
_FEW, _MANY = 4, 16
# Bytes of operands' elements that a thread has read before it works on them.
_AHEAD = 64
# Slices whose partial results every thread block joins by itself, without a launch for it.
_JOINED = 4

_WARP = 32

# What lines read of the element at `at` of an operand.
_READ = re.compile(r"gk_read\((\w+)\[at\]\)")


@dataclass(frozen=True)
class Pass:
    """What a thread learns of its elements.

    partial: a type of `partials.cuh`; numbers: how many A it has. lines: what is done for an element at `at` of memory,
    number `e` of group `g`, with the partial result `p0` (the second pass: `p1`, ...); an operand there is
    `gk_read(x[at])`, whatever they do. ahead: lines before, once.
    """

    partial: str
    numbers: int
    lines: Sequence[str]
    ahead: Sequence[str] = ()


@dataclass(frozen=True)
class Work:
    """What a kernel does with groups. given: the parameters, as C declares them, with what they are given.

    each: lines for an element, as those of a Pass, behind all passes; what they write there nobody else reads. ahead:
    lines before, once. once: lines for a group, of one thread. places: what is declared as parameters besides.
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
        count, groups = self.reduced.elements, self.kept.elements
        most, least = (min(THREADS, _power(-(-count // each))) for each in (_FEW, _MANY))
        if not self.by_rows:
            return 1 if groups >= _BUSY else min(most, THREADS // min(_BESIDE, _power(self.kept.sizes[-1])))
        # Neighbours in a row are neighbours in a warp.
        least = max(least, min(most, _WARP // 4))
        return max(least, min(most, _power(-(-_BUSY // groups))))

    @property
    def slices(self) -> int:
        groups, count, lanes = self.kept.elements, self.reduced.elements, self.lanes
        wanted = max(min(-(-_BUSY // (groups * lanes)), count // (_LEAST * lanes), _MOST), 1)
        return -(-count // -(-count // wanted))

    def scratch_bytes(self, work: Work) -> int:
        """What `launches` wants of scratch."""
        return self._place(work, len(work.passes)) if self.slices > 1 else 0

    def launches(self, work: Work, offset: int = 0) -> tuple[Launch, ...]:
        """offset: where the scratch of these launches begins, in bytes."""
        if self.slices == 1:
            return (self._launch(work, 0, len(work.passes), offset),)
        found = []
        for number in range(len(work.passes)):
            found.append(self._launch(work, number, number + 1, offset))
            if self._is_joined(work, number):
                found.append(self._join(work, number, offset))
        return (*found, self._launch(work, len(work.passes), len(work.passes), offset))

    def _is_joined(self, work: Work, number: int) -> bool:
        """Whether a launch joins the partial results of slices before the one that wants them, which else does."""
        return self.slices > _JOINED and bool(work.each or number + 1 < len(work.passes))

    def _place(self, work: Work, number: int) -> int:
        """Where the partial results of a pass begin in scratch: those of slices and, if they are joined, of groups."""
        parts = sum(p.numbers * (self.slices + self._is_joined(work, i)) for i, p in enumerate(work.passes[:number]))
        return parts * self.held.itemsize * self.kept.elements

    def _whole(self, work: Work, number: int) -> int:
        """Where those of groups do."""
        return self._place(work, number) + work.passes[number].numbers * self.held.itemsize * (
            self.kept.elements * self.slices
        )

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
        # Who has nothing to write for elements has a block for the slices of a group together.
        divided = 1 if last and not work.each else slices
        kept, reduced = (
            Coordinates(name, len(axes.sizes), self.short) for name, axes in (("k", self.kept), ("r", self.reduced))
        )
        groups, count = self.kept.elements, self.reduced.elements
        sizes = dict(groups=groups, count=count, slices=divided, parts=slices, length=-(-count // divided))
        sizes |= {f"kstep{axis}": stride for axis, stride in enumerate(self.kept.strides[0])}
        sizes |= {f"rstep{axis}": stride for axis, stride in enumerate(self.reduced.strides[0])}
        scratch = []
        for number, one in enumerate(work.passes[:reached] if slices > 1 else ()):
            is_whole = number < known and self._is_joined(work, number)
            place = self._whole(work, number) if is_whole else self._place(work, number)
            scratch.append((f"{self._partial(one)}* parts{number}", Scratch(offset + place)))
        places = [(kept, self.kept.sizes), (reduced, self.reduced.sizes), *work.places]
        parameters = [
            *(text for text, _ in work.given), *(text for text, _ in scratch), *(f"{self.index} {n}" for n in sizes),
            *(text for p, _ in places for text in p.parameters()),
        ]  # fmt: skip
        arguments: tuple[Argument, ...] = (
            *(a for _, a in work.given), *(a for _, a in scratch), *map(kept.number, sizes.values()),
            *(number for p, axes in places for number in p.arguments(axes)),
        )  # fmt: skip
        lines = self._own(kept)
        for number, one in enumerate(work.passes[:reached]):
            lines += one.ahead
            if number < known:
                lines += self._known(number, one, whole=self._is_joined(work, number), alone=divided < slices)
            else:
                lines += self._pass(number, one, reduced)
        if last:
            lines += [*work.ahead, *(self._loop(reduced, work.each) if work.each else [])]
            lines += ["if (lane == 0 && live && slice == 0) {", *indented(work.once), "}"] if work.once else []
        else:
            number = reached - 1
            lines += ["if (lane == 0 && live) {", f"    parts{number}[g * parts + slice] = p{number};", "}"]
        blocks = -(-groups // (THREADS // self.lanes)) * divided
        return Launch(source_of(work.name, parameters, lines), blocks, arguments)

    def _partial(self, one: Pass) -> str:
        return one.partial.replace("A", STORED[self.held])

    def _own(self, kept: Coordinates) -> list[str]:
        """The thread's group `g`, its number `lane` within it, and the elements from `begin` to `end` of it; none where
        there is no such group: `live` says so, and the group is then the first one.
        """
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
        """The lines for each of the thread's elements, of which several are read before the first is worked on."""
        operands = list(dict.fromkeys(_READ.findall("\n".join(lines))))
        each = -(-self.reduced.elements // (self.slices * self.lanes))
        # Numbers of 64 bits and their places take twice as many registers.
        ahead = _AHEAD // self.held.itemsize // (1 if self.short else 2) // (2 if self.held.itemsize == 8 else 1)
        times = min(ahead // max(len(operands), 1), _power(each // 2)) if operands else 1
        found, places = reduced.lines("e")
        at = f"{self.index} at = base + {_offset(places, 'r')};"
        one = [
            f"for (; o < end; o += {self.lanes}u) {{",
            f"    const {self.index} e = o;",
            *indented([*found, f"const {at}", *lines]),
            "}",
        ]
        if times < 2:
            return [f"for ({self.index} o = begin + lane; o < end; o += {self.lanes}u) {{", *one[1:]]
        step = f"const {self.index} e = o + {self.lanes}u * i;"
        held = [_READ.sub(lambda match: f"{match[1]}_at[i]", line) for line in lines]
        return [
            f"{self.index} o = begin + lane;",
            f"for (; o + {self.lanes * (times - 1)}u < end; o += {self.lanes * times}u) {{",
            f"    {self.index} place[{times}];",
            *(f"    decltype(gk_read({x}[0])) {x}_at[{times}];" for x in operands),
            "    #pragma unroll",
            f"    for (int i = 0; i < {times}; ++i) {{",
            *indented(indented([step, *found, f"const {at}", "place[i] = at;"])),
            *(f"        {x}_at[i] = gk_read({x}[at]);" for x in operands),
            "    }",
            "    #pragma unroll",
            f"    for (int i = 0; i < {times}; ++i) {{",
            *indented(indented([step, f"const {self.index} at = place[i];", *held])),
            "    }",
            "}",
            *one,
        ]

    def _pass(self, number: int, one: Pass, reduced: Coordinates) -> list[str]:
        """The partial result of the block's part of the group."""
        kind, name = self._partial(one), f"p{number}"
        loop = ["{", *indented(self._loop(reduced, one.lines)), "}"]
        return [f"{kind} {name} = {kind}::none();", *loop, f"{name}.settle();", *self._joined(number, kind)]

    def _known(self, number: int, one: Pass, *, whole: bool, alone: bool) -> list[str]:
        """The partial result of a pass that earlier launches made. whole: they have joined it; alone: the threads of a
        group have nothing else to do.
        """
        kind, name = self._partial(one), f"p{number}"
        if whole:
            return [f"const {kind} {name} = parts{number}[g];"]
        first, step = ("lane", f"{self.lanes}u") if alone else ("0", "1u")
        return [
            f"{kind} {name} = {kind}::none();",
            f"for ({self.index} i = {first}; i < parts; i += {step}) {{",
            f"    {name}.join(parts{number}[g * parts + i]);",
            "}",
            *(self._joined(number, kind) if alone else []),
        ]

    def _join(self, work: Work, number: int, offset: int) -> Launch:
        """What joins the partial results of slices, a warp for each group."""
        one, groups, slices = work.passes[number], self.kept.elements, self.slices
        kind, places = self._partial(one), Coordinates("i", 1, self.short)
        parameters = [f"const {kind}* parts", f"{kind}* whole", f"{self.index} groups", f"{self.index} slices"]
        arguments: tuple[Argument, ...] = (
            Scratch(offset + self._place(work, number)), Scratch(offset + self._whole(work, number)),
            places.number(groups), places.number(slices),
        )  # fmt: skip
        lines = [
            f"typedef {STORED[self.held]} A;",
            f"const {self.index} own = gk_block * {THREADS // _WARP}u + threadIdx.x / {_WARP}u;",
            f"const unsigned lane = threadIdx.x % {_WARP}u;",
            f"{kind} p = {kind}::none();",
            f"for ({self.index} i = lane; own < groups && i < slices; i += {_WARP}u) {{",
            "    p.join(parts[own * slices + i]);",
            "}",
            *_shuffled("p", kind, _WARP),
            "if (lane == 0 && own < groups) {",
            "    whole[own] = p;",
            "}",
        ]
        return Launch(source_of(f"{work.name}_joined", parameters, lines), -(-groups // (THREADS // _WARP)), arguments)

    def _joined(self, number: int, kind: str) -> list[str]:
        """What each thread of a group has becomes what all of them have."""
        lanes, name, parts = self.lanes, f"p{number}", f"all{number}"
        if lanes == 1:
            return []
        if self.by_rows:
            shuffled = _shuffled(name, kind, min(lanes, _WARP))
            if lanes <= _WARP:
                return shuffled
            warps = lanes // _WARP
            return [
                *shuffled,
                f"__shared__ {kind} {parts}[{THREADS // _WARP}];",
                f"if (threadIdx.x % {_WARP}u == 0) {{",
                f"    {parts}[threadIdx.x / {_WARP}u] = {name};",
                "}",
                "__syncthreads();",
                f"{name} = {parts}[threadIdx.x / {lanes}u * {warps}u];",
                f"for (unsigned i = 1; i < {warps}u; ++i) {{",
                f"    {name}.join({parts}[threadIdx.x / {lanes}u * {warps}u + i]);",
                "}",
            ]
        step = THREADS // lanes
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


def _shuffled(name: str, kind: str, lanes: int) -> list[str]:
    """Of neighbours in a warp, which all get the same: the lower one comes first."""
    return [
        f"for (int far = {lanes // 2}; far > 0; far /= 2) {{",
        f"    const {kind} other = gk_shuffle_part({name}, far);",
        "    const bool upper = (threadIdx.x & (unsigned)far) != 0;",
        f"    {kind} first = upper ? other : {name};",
        f"    first.join(upper ? {name} : other);",
        f"    {name} = first;",
        "}",
    ]


def written(name: str, kind: DType, place: str, value: str) -> str:
    """The line that writes `value`, a float or a double, to memory of a type."""
    return f"gk_write({name}[{place}], ({'double' if kind is DType.FLOAT64 else 'float'})({value}));"


def _power(number: int) -> int:
    """The smallest power of two that is not below."""
    return 1 << max(number - 1, 0).bit_length()


def _offset(places: Sequence[str], name: str) -> str:
    return " + ".join(f"{place} * {name}step{axis}" for axis, place in enumerate(places))
