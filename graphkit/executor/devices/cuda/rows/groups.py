"""Kernels over groups of elements along any axes: a result for each group, or elements that depend on their group.

A kernel makes one or more passes over each group. Each pass computes a partial result (`partials.cuh`), which later
passes and the final step, which writes, can use. A block processes several groups, and adjacent threads of a warp read
adjacent elements. To hide the latency of memory, a thread reads several elements before it uses the first.

If there are few groups, they are divided into slices. A launch for each pass then writes the partial results of all
slices to scratch memory, and a small launch after it combines them. The order of sums depends only on the sizes.
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

# Threads that occupy a GPU; elements that a thread reads at least before another slice is used; the most slices.
_BUSY, _LEAST, _MOST = 1 << 18, 16, 1024
# The largest number of adjacent groups of a block, if groups (not elements of a group) are adjacent in memory.
_BESIDE = 32
# The least and the most elements of a group per thread, if there are enough threads.
_FEW, _MANY = 4, 16
# Bytes of elements that a thread reads before it uses them.
_AHEAD = 64
# Up to this number of slices, each block combines their partial results itself, without a separate launch.
_JOINED = 4

_WARP = 32

# The expression with which lines read element `at` of an operand.
_READ = re.compile(r"gk_read\((\w+)\[at\]\)")


@dataclass(frozen=True)
class Pass:
    """A pass over the elements of a group, which computes a partial result.

    Attributes:
        partial: Type of the partial result, one of `partials.cuh`.
        numbers: How many numbers of type A it contains.
        lines: Lines for each element. They update the partial result `p0` (`p1` in the second pass, and so on). `at` is
            the index of the element in memory, `e` its number in the group, `g` the number of the group. Lines must
            read operands as `gk_read(x[at])`.
        ahead: Lines that run once, before the pass.
    """

    partial: str
    numbers: int
    lines: Sequence[str]
    ahead: Sequence[str] = ()


@dataclass(frozen=True)
class Work:
    """The work of a kernel over groups.

    Attributes:
        name: Name of the kernel.
        given: Parameters, as C declares them, with their arguments.
        passes: Passes over each group.
        each: Lines for each element after all passes, like those of a Pass. No other thread may read what they write.
        ahead: Lines that run once, before `each`.
        once: Lines that one thread runs for each group.
        places: Further coordinates that the lines use, with the sizes of their axes.
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
    """Groups of elements. kept: axes over groups. reduced: axes over the elements of a group. held: type A."""

    kept: Axes
    reduced: Axes
    held: DType

    @classmethod
    def over(cls, shape: Sequence[int], axes: Sequence[int], held: DType) -> Groups:
        """Return the groups of the elements along `axes` of an array that is not empty."""
        return cls(*parted(shape, axes), held)

    @property
    def short(self) -> bool:
        return self.kept.elements * self.reduced.elements + THREADS < 1 << 31

    @property
    def index(self) -> str:
        return "gk_u32" if self.short else "gk_u64"

    @property
    def by_rows(self) -> bool:
        """Whether the elements of a group are adjacent in memory. Otherwise, groups are."""
        return self.kept.strides[0][-1] != 1

    @property
    def lanes(self) -> int:
        """Number of threads of a group in a block, a power of two."""
        count, groups = self.reduced.elements, self.kept.elements
        most, least = (min(THREADS, _power(-(-count // each))) for each in (_FEW, _MANY))
        if not self.by_rows:
            return 1 if groups >= _BUSY else min(most, THREADS // min(_BESIDE, _power(self.kept.sizes[-1])))
        # Enough threads that a warp reads adjacent elements of a row.
        least = max(least, min(most, _WARP // 4))
        return max(least, min(most, _power(-(-_BUSY // groups))))

    @property
    def slices(self) -> int:
        groups, count, lanes = self.kept.elements, self.reduced.elements, self.lanes
        wanted = max(min(-(-_BUSY // (groups * lanes)), count // (_LEAST * lanes), _MOST), 1)
        return -(-count // -(-count // wanted))

    def scratch_bytes(self, work: Work) -> int:
        """Return the bytes of scratch memory that `launches` needs."""
        return self._place(work, len(work.passes)) if self.slices > 1 else 0

    def launches(self, work: Work, offset: int = 0) -> tuple[Launch, ...]:
        """Return the launches. offset: where their scratch memory begins, in bytes."""
        if self.slices == 1:
            return (self._launch(work, 0, len(work.passes), offset),)
        found = []
        for number in range(len(work.passes)):
            found.append(self._launch(work, number, number + 1, offset))
            if self._is_joined(work, number):
                found.append(self._join(work, number, offset))
        return (*found, self._launch(work, len(work.passes), len(work.passes), offset))

    def _is_joined(self, work: Work, number: int) -> bool:
        """Whether a separate launch combines the partial results of slices, instead of the launch that uses them."""
        return self.slices > _JOINED and bool(work.each or number + 1 < len(work.passes))

    def _place(self, work: Work, number: int) -> int:
        """Return where the partial results of a pass begin in scratch memory.

        The results of slices come first. If a separate launch combines them, the results of groups follow.
        """
        parts = sum(p.numbers * (self.slices + self._is_joined(work, i)) for i, p in enumerate(work.passes[:number]))
        return parts * self.held.itemsize * self.kept.elements

    def _whole(self, work: Work, number: int) -> int:
        """Return where the partial results of groups for a pass begin in scratch memory."""
        return self._place(work, number) + work.passes[number].numbers * self.held.itemsize * (
            self.kept.elements * self.slices
        )

    def kernel(self, work: Work, inplace: Sequence[tuple[int, int]] = (), fault: str = "") -> CardKernel:
        """Return a kernel that consists of these launches."""
        return CardKernel(self.launches(work), self.scratch_bytes(work), inplace, fault)

    # --- one launch -----------------------------------------------------------------------------------------------

    def _launch(self, work: Work, known: int, reached: int, offset: int) -> Launch:
        """Return a launch that makes passes `known` to `reached` (excluded).

        Scratch memory has the results of earlier passes. The last launch also writes. It makes all passes if there is
        one slice, else none.
        """
        slices = self.slices
        last = slices == 1 or known == reached
        # If no elements are written, one block handles all slices of a group.
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
        """Return lines that declare the work of a thread: group `g`, elements from `begin` to `end`, and number `lane`.

        If there is no group for a thread, `live` is false, `g` is 0, and there are no elements.
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
        """Return a loop over the elements of a thread. It reads several elements before `lines` use the first."""
        operands = list(dict.fromkeys(_READ.findall("\n".join(lines))))
        each = -(-self.reduced.elements // (self.slices * self.lanes))
        # Elements and indices of 64 bits need twice as many registers.
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
        """Return lines that compute the partial result of a pass, for the block's slice of the group."""
        kind, name = self._partial(one), f"p{number}"
        loop = ["{", *indented(self._loop(reduced, one.lines)), "}"]
        return [f"{kind} {name} = {kind}::none();", *loop, f"{name}.settle();", *self._joined(number, kind)]

    def _known(self, number: int, one: Pass, *, whole: bool, alone: bool) -> list[str]:
        """Return lines that read the partial result of a pass that earlier launches made.

        whole: The slices are already combined. alone: The threads of a group share the work of combining slices;
        otherwise, each thread combines all of them.
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
        """Return the launch that combines the partial results of slices, with one warp per group."""
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
        """Return lines that reduce the partial results of a group's threads. All threads get the result."""
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
    """Return lines that reduce `name` over adjacent threads of a warp, in their order. All threads get the result."""
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
    """Return the line that writes `value`, a float or a double, to an array of another type."""
    return f"gk_write({name}[{place}], ({'double' if kind is DType.FLOAT64 else 'float'})({value}));"


def _power(number: int) -> int:
    """Return the smallest power of two that is at least `number`."""
    return 1 << max(number - 1, 0).bit_length()


def _offset(places: Sequence[str], name: str) -> str:
    return " + ".join(f"{place} * {name}step{axis}" for axis, place in enumerate(places))
