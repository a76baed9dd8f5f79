"""Scatters: elements or slices are replaced, or combined with updates, by index. The gradient of Gather is one of them.

With a reduction, the target of each index is a key, and `sorting` sorts the updates by key; the sort is stable. The
result begins as a copy of the operand, or as zeros. Then the thread of the first update of each key combines all
updates of that key in their order, and writes the result once. If a key has very many updates, a first launch combines
chunks that contain only this key, so that no thread combines more than a few times the square root of all updates. The
result does not depend on the order of threads, so it has the same bits every time.

Without a reduction, updates are written directly, because indices must not repeat. In deterministic runs, they may
repeat: the same sort selects the last update of each element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.executor.devices.cuda.launches import THREADS, CardKernel, Given, Input, Launch, Output, Scratch, launched
from graphkit.executor.devices.cuda.movement.addressing import INDEX_TYPES, Address, ElementAddress, TupleAddress
from graphkit.executor.devices.cuda.movement.copies import UNITS, unit_of
from graphkit.executor.devices.cuda.movement.sorting import Sorted, aligned, sort
from graphkit.executor.devices.cuda.text.expressions import STORED, held_type
from graphkit.executor.devices.cuda.text.indexing import Coordinates, for_each, for_each_run
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import around, shape
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import DType
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.tensor.gather import GatherGrad
from graphkit.ops.tensor.scatter import ScatterElements, ScatterND

_JOINS = {
    "add": "gk_add(a, b)",
    "mul": "gk_mul(a, b)",
    "max": "gk_maximum(a, b)",
    "min": "gk_minimum(a, b)",
}
# With fewer updates, there are no chunks.
_LEAST_CHUNKED = 512


@dataclass(frozen=True)
class Scatter:
    """A scatter into slices.

    Attributes:
        node: The node.
        address: The slice that each update changes.
        outer: Number of repetitions of the scatter.
        inner: Elements of a slice.
        base: The operand whose copy the result begins as; None for zeros.
        updates: Position of the operand with the updates.
    """

    node: Node
    address: Address
    outer: int
    inner: int
    base: Input | None
    updates: int

    @property
    def dtype(self) -> DType:
        return self.node.output.dtype

    def kernel(self, reduction: str, deterministic: bool) -> CardKernel | None:
        """Return the kernel.

        None for unsupported types, for too many updates for the sort, and for updates of an empty result.
        """
        unit = unit_of(self.node.output)
        if unit not in UNITS:
            return None
        slices = self.outer * self.address.targets
        if slices * self.inner == 0:
            # Indices must be in range even if the result is empty.
            return None if self.address.count else CardKernel(())
        begun = self._begun(unit)
        if self.address.count == 0:
            return CardKernel((begun,), inplace=self._inplace)
        if reduction == "none" and not deterministic:
            launches = [begun, self._replaced(unit)]
            return CardKernel(tuple(launches), inplace=self._inplace, fault=self.address.fault)
        if max(self.address.count, self.address.targets) + THREADS >= 1 << 31:
            return None
        if reduction != "none" and (self.dtype not in STORED or self.dtype is DType.BOOL):
            return None
        ordered = sort(self.address.count, self.address.targets, 0)
        launches = [begun, self._keys(), *ordered.launches]
        end = ordered.scratch_bytes
        if reduction == "none":
            launches.append(self._replaced_by_last(unit, ordered))
        else:
            combined = _Combined(self, ordered, _JOINS[reduction])
            launches += combined.launches()
            end += combined.scratch_bytes
        return CardKernel(tuple(launches), scratch_bytes=end, inplace=self._inplace, fault=self.address.fault)

    @property
    def _inplace(self) -> Sequence[tuple[int, int]]:
        return () if self.base is None else ((self.base.position, 0),)

    def places(self, *sizes: int) -> Coordinates:
        """Return coordinates for loops of these sizes, with indices that reach all elements of result and updates."""
        slices = self.outer * max(self.address.targets, self.address.count)
        return Coordinates("i", len(sizes), max(math.prod(sizes), slices * self.inner) + 4 * THREADS < 1 << 31)

    def _begun(self, unit: int) -> Launch:
        """Return the launch that initialises the result. It does nothing if the result overwrites its operand."""
        kind, count, width = UNITS[unit], self.outer * self.address.targets * self.inner, 16 // unit
        given: Given = [(f"{kind}* y", Output(0))]
        if self.base is None:
            lines = [f"gk_pack<{kind}, {width}> zero = {{}};", "gk_store(y + first, zero, left);"]
        else:
            given.append((f"const {kind}* x", self.base))
            load = f"gk_load<{kind}, {width}>(x + first, left)"
            lines = ["if (x == y) {", "    return;", "}", f"gk_store(y + first, {load}, left);"]
        return for_each_run("begun", count, width, given, lines)

    def _keys(self) -> Launch:
        """Return the launch that writes the key (slice) of each update. An index out of range gets key 0."""
        address = self.address
        places = self.places(*address.sizes)
        found, coordinates = places.lines("at")
        lines = [*found, *address.lines(places, "at", coordinates, "target = 0;"), "keys[at] = (gk_u32)target;"]
        return for_each("keys", address.sizes, places, [("gk_u32* keys", Scratch(0)), *address.given(places)], lines)

    def _moved(self, unit: int) -> tuple[int, Given]:
        """Return the number of units of up to 16 bytes in a slice, and the parameters for source and target."""
        times = math.gcd(16 // unit, self.inner)
        kind = UNITS[unit * times]
        return self.inner // times, [(f"const {kind}* updates", Input(self.updates)), (f"{kind}* y", Output(0))]

    def _replaced(self, unit: int) -> Launch:
        """Return the launch that writes slices directly."""
        inner, given = self._moved(unit)
        sizes = (*self.address.sizes, inner)
        places = self.places(*sizes)
        found, (*coordinates, place) = places.lines("at")
        last = f"isize{len(sizes) - 1}"
        lines = [
            *found,
            f"const {places.index} pick = at / {last};" if inner > 1 else f"const {places.index} pick = at;",
            *self.address.lines(places, "pick", coordinates, "return;"),
            f"y[target * {last} + {place}] = updates[at];",
        ]
        return for_each("replaced", sizes, places, [*given, *self.address.given(places)], lines)

    def _replaced_by_last(self, unit: int, ordered: Sorted) -> Launch:
        """Return the launch that writes the last update of each key."""
        inner, given = self._moved(unit)
        sizes = self.address.count, inner
        places = self.places(*sizes)
        given += [("const gk_u32* keys", ordered.keys), ("const gk_u32* order", ordered.places)]
        given.append(("gk_u32 picks", np.uint32(self.address.count)))
        found, (pick, place) = places.lines("at")
        lines = [
            *found,
            f"const gk_u32 j = {pick};",
            "if (j + 1 < picks && keys[j + 1] == keys[j]) {", "    return;", "}",
            f"const {places.index} to = keys[j], from = order[j];",
            f"y[to * isize1 + {place}] = updates[from * isize1 + {place}];",
        ]  # fmt: skip
        return for_each("replaced_by_last", sizes, places, given, lines)


@dataclass(frozen=True)
class _Combined:
    """Updates in the order of their keys, combined by the expression `join` of `a` and `b`."""

    scatter: Scatter
    ordered: Sorted
    join: str

    @property
    def held(self) -> DType:
        return held_type(self.scatter.dtype)

    @property
    def width(self) -> int:
        """Adjacent elements of a thread, up to 16 bytes in the type in which they are combined."""
        return math.gcd(16 // self.held.itemsize, self.scatter.inner)

    @property
    def length(self) -> int:
        """Updates of a chunk: about the square root of all updates; 0 without chunks."""
        count = self.scatter.address.count
        return 1 << (count.bit_length() + 1) // 2 if count >= _LEAST_CHUNKED else 0

    @property
    def chunks(self) -> int:
        """Number of complete chunks."""
        return self.scatter.address.count // self.length if self.length else 0

    @property
    def scratch_bytes(self) -> int:
        scatter = self.scatter
        return aligned(scatter.outer * self.chunks * scatter.inner * self.held.itemsize)

    def launches(self) -> list[Launch]:
        return [*([self._of_chunks()] if self.chunks else []), self._whole()]

    def _given(self, places: Coordinates) -> Given:
        stored, scatter = STORED[self.scatter.dtype], self.scatter
        return [
            (f"const {stored}* updates", Input(scatter.updates)),
            ("const gk_u32* keys", self.ordered.keys), ("const gk_u32* order", self.ordered.places),
            ("gk_u32 picks", np.uint32(scatter.address.count)), ("gk_u32 length", np.uint32(self.length)),
            *([(f"{STORED[self.held]}* parts", Scratch(self.ordered.scratch_bytes))] if self.chunks else []),
        ]  # fmt: skip

    def _updates(self, places: Coordinates, block: str, place: str) -> str:
        """Return the address of the thread's elements in update number k of the sorted order."""
        return f"updates + ((({block}) * picks + order[k]) * isize2 + {place}) * {self.width}u"

    def _types(self) -> list[str]:
        width, held, stored = self.width, STORED[self.held], STORED[self.scatter.dtype]
        return [f"typedef {held} A;", f"typedef gk_pack<{stored}, {width}> S;", f"typedef gk_pack<A, {width}> P;"]

    def _joined(self, value: str) -> list[str]:
        """Return lines that combine each element e of `part` with the expression `value`."""
        return [
            "#pragma unroll",
            f"for (int e = 0; e < {self.width}; ++e) {{",
            f"    const A a = part.e[e], b = {value};",
            f"    part.e[e] = {self.join};",
            "}",
        ]

    def _each(self, head: str, address: str, kind: str, value: str) -> list[str]:
        lines = [f"const {kind} p = *reinterpret_cast<const {kind}*>({address});", *self._joined(value)]
        return ["#pragma unroll 4", f"for ({head}) {{", *("    " + line for line in lines), "}"]

    def _of_chunks(self) -> Launch:
        """Return the launch that combines the updates of each chunk with only one key. It skips other chunks."""
        sizes = self.scatter.outer, self.chunks, self.scatter.inner // self.width
        places = self.scatter.places(*sizes)
        found, (block, chunk, place) = places.lines("at")
        update = self._updates(places, block, place)
        lines = [
            *self._types(), *found,
            f"const gk_u32 first = {chunk} * length, end = first + length;",
            "if (keys[first] != keys[end - 1]) {", "    return;", "}",
            "P part;",
            "{", "    const gk_u32 k = first;", f"    const S p = *reinterpret_cast<const S*>({update});",
            f"    for (int e = 0; e < {self.width}; ++e) {{", "        part.e[e] = gk_read(p.e[e]);", "    }", "}",
            *self._each("gk_u32 k = first + 1; k < end; ++k", update, "S", "gk_read(p.e[e])"),
            f"*reinterpret_cast<P*>(parts + at * {self.width}u) = part;",
        ]  # fmt: skip
        return for_each("chunks", sizes, places, self._given(places), lines)

    def _whole(self) -> Launch:
        """Return the launch in which the thread of a key's first update combines all its updates with the result."""
        scatter, stored = self.scatter, STORED[self.scatter.dtype]
        sizes = scatter.outer, scatter.address.count, scatter.inner // self.width
        places = scatter.places(*sizes)
        index = places.index
        found, (block, pick, place) = places.lines("at")
        update = self._updates(places, block, place)
        given: Given = [
            (f"{stored}* y", Output(0)), *([(f"const {stored}* x", scatter.base)] if scatter.base else []),
            (f"{index} targets", places.number(scatter.address.targets)), *self._given(places),
        ]  # fmt: skip
        begun = ["P part = {};"]
        if scatter.base is not None:
            begun = [
                "const S old = *reinterpret_cast<const S*>(x + to);", "P part;",
                f"for (int e = 0; e < {self.width}; ++e) {{", "    part.e[e] = gk_read(old.e[e]);", "}",
            ]  # fmt: skip
        lines = [
            *self._types(), *found, f"const gk_u32 j = {pick};",
            "if (j != 0 && keys[j - 1] == keys[j]) {", "    return;", "}",
            *_END,
            f"const {index} to = (({block} * targets + keys[j]) * isize2 + {place}) * {self.width}u;",
            *begun, "gk_u32 k = j;",
        ]  # fmt: skip
        if self.chunks:
            part = f"parts + ((({block}) * {index}(picks / length) + k / length) * isize2 + {place}) * {self.width}u"
            lines += [
                "const gk_u32 aligned = (j + length - 1) / length * length, head = aligned < end ? aligned : end;",
                *self._each("; k < head; ++k", update, "S", "gk_read(p.e[e])"),
                *self._each("; k + length <= end; k += length", part, "P", "p.e[e]"),
            ]
        lines += [
            *self._each("; k < end; ++k", update, "S", "gk_read(p.e[e])"),
            "S result;",
            f"for (int e = 0; e < {self.width}; ++e) {{", "    gk_write(result.e[e], part.e[e]);", "}",
            "*reinterpret_cast<S*>(y + to) = result;",
        ]  # fmt: skip
        return for_each("combined", sizes, places, given, lines)


# Lines that find the end of the run of equal keys that begins at j: exponential search, then binary search.
_END = [
    "const gk_u32 key = keys[j];",
    "gk_u32 far = 1;",
    "while (j + far < picks && keys[j + far] == key) {",
    "    far *= 2;",
    "}",
    "gk_u32 last = j + far / 2, end = j + far < picks ? j + far : picks;",
    "while (end - last > 1) {",
    "    const gk_u32 middle = last + (end - last) / 2;",
    "    if (keys[middle] == key) {",
    "        last = middle;",
    "    } else {",
    "        end = middle;",
    "    }",
    "}",
]


def _index_type(value: Value | None) -> str:
    assert value is not None
    return INDEX_TYPES[value.dtype]


@launched("GatherGrad", DOMAIN)
def _gather_grad(node: Node, context: KernelContext) -> CardKernel | None:
    _, x, indices = (shape(v) for v in node.inputs)
    axis = operator(node, GatherGrad).axis
    if not x:
        return None
    address = TupleAddress.of_axis(x, axis, math.prod(indices), _index_type(node.inputs[2]), 2)
    outer, _, inner = around(x, axis)
    return Scatter(node, address, outer, inner, None, 0).kernel("add", context.deterministic)


@launched("ScatterElements")
def _scatter_elements(node: Node, context: KernelContext) -> CardKernel | None:
    op = operator(node, ScatterElements)
    x, indices, updates = (shape(v) for v in node.inputs)
    address = ElementAddress.of(x, indices, op.axis, _index_type(node.inputs[1]), 1)
    if address is None or indices != updates:
        return None
    return Scatter(node, address, 1, 1, Input(0), 2).kernel(op.reduction, context.deterministic)


@launched("ScatterND")
def _scatter_nd(node: Node, context: KernelContext) -> CardKernel | None:
    op = operator(node, ScatterND)
    x, indices, updates = (shape(v) for v in node.inputs)
    depth = indices[-1]
    address = TupleAddress.of(x, indices, 0, "gk_i64", 1)
    if address is None or updates != (*indices[:-1], *x[depth:]):
        return None
    scatter = Scatter(node, address, 1, math.prod(x[depth:]), Input(0), 2)
    return scatter.kernel(op.reduction, context.deterministic)
