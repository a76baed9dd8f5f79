"""Gathers of elements and slices by index, and ReverseSequence. A thread copies up to 16 adjacent bytes of the result.

Within a slice, elements that are adjacent in the result are adjacent in the operand. All threads of a slice read its
index.
"""

from __future__ import annotations

import math

from graphkit.executor.devices.cuda.launches import THREADS, CardKernel, Fault, Given, Input, Output, launched
from graphkit.executor.devices.cuda.movement.addressing import INDEX_TYPES, ElementAddress, TupleAddress
from graphkit.executor.devices.cuda.movement.copies import UNITS, unit_of
from graphkit.executor.devices.cuda.text.indexing import Coordinates, for_each
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import around, shape
from graphkit.ir.graph import Node
from graphkit.ops._base import operator
from graphkit.ops.tensor.gather import Gather, GatherElements, GatherND
from graphkit.ops.tensor.rearrangement import ReverseSequence


@launched("Gather")
def _gather(node: Node, context: KernelContext) -> CardKernel | None:
    x, indices = (shape(v) for v in node.inputs)
    axis = operator(node, Gather).axis
    assert node.inputs[1] is not None
    kind, unit = INDEX_TYPES[node.inputs[1].dtype], unit_of(node.output)
    if unit not in UNITS or not x:
        return None
    outer, _, inner = around(x, axis)
    return _slices("gather", TupleAddress.of_axis(x, axis, math.prod(indices), kind, 1), outer, inner, unit)


@launched("GatherND")
def _gather_nd(node: Node, context: KernelContext) -> CardKernel | None:
    x, indices = (shape(v) for v in node.inputs)
    batch = operator(node, GatherND).batch_dims
    address = TupleAddress.of(x, indices, batch, "gk_i64", 1)
    unit = unit_of(node.output)
    if unit not in UNITS or address is None:
        return None
    return _slices("gather_nd", address, 1, math.prod(x[batch + address.depth :]), unit)


def _slices(name: str, address: TupleAddress, outer: int, inner: int, unit: int) -> CardKernel | None:
    """Return the kernel that gathers slices of `inner` elements of `unit` bytes.

    outer: number of repetitions of the gather; 1 if the address has batch axes.
    """
    batch, picks = address.sizes
    if outer * address.count * inner == 0:
        return _checked(name, address) if address.count else CardKernel(())
    times = math.gcd(16 // unit, inner)
    inner, kind = inner // times, UNITS[unit * times]
    sizes = outer * batch, picks, inner
    places = Coordinates("i", 3, outer * max(address.count, address.targets) * inner + THREADS < 1 << 31)
    found, (block, pick, place) = places.lines("at")
    if batch == 1:
        number, own, from_slice = pick, "0", f"({block} * targets + target)"
    else:
        number, own, from_slice = f"{block} * isize1 + {pick}", block, "target"
    lines = [
        *found,
        f"const {places.index} number = {number};",
        *address.lines(places, "number", (own, pick), "return;"),
        f"y[at] = x[{from_slice} * isize2 + {place}];",
    ]
    given: Given = [
        (f"const {kind}* x", Input(0)), (f"{kind}* y", Output(0)),
        (f"{places.index} targets", places.number(address.targets)), *address.given(places),
    ]  # fmt: skip
    return CardKernel((for_each(name, sizes, places, given, lines),), fault=address.fault)


def _checked(name: str, address: TupleAddress) -> CardKernel:
    """Return the kernel for slices without elements. It only checks that indices are in range."""
    places = Coordinates("i", len(address.sizes), max(address.count, address.targets) + THREADS < 1 << 31)
    found, coordinates = places.lines("at")
    lines = [*found, *address.lines(places, "at", coordinates, "return;"), "(void)target;"]
    return CardKernel(
        (for_each(f"{name}_checked", address.sizes, places, address.given(places), lines),), fault=address.fault
    )


@launched("GatherElements")
def _gather_elements(node: Node, context: KernelContext) -> CardKernel | None:
    x, indices = (shape(v) for v in node.inputs)
    assert node.inputs[1] is not None
    kind, unit = INDEX_TYPES[node.inputs[1].dtype], unit_of(node.output)
    address = ElementAddress.of(x, indices, operator(node, GatherElements).axis, kind, 1)
    if unit not in UNITS or address is None:
        return None
    if address.count == 0:
        return CardKernel(())
    places = Coordinates("i", len(address.sizes), max(address.count, address.targets) + THREADS < 1 << 31)
    found, coordinates = places.lines("at")
    lines = [*found, *address.lines(places, "at", coordinates, "return;"), "y[at] = x[target];"]
    given: Given = [(f"const {UNITS[unit]}* x", Input(0)), (f"{UNITS[unit]}* y", Output(0))]
    launch = for_each("gather_elements", address.sizes, places, [*given, *address.given(places)], lines)
    return CardKernel((launch,), fault=address.fault)


@launched("ReverseSequence")
def _reverse_sequence(node: Node, context: KernelContext) -> CardKernel | None:
    x, unit = shape(node.inputs[0]), unit_of(node.output)
    if unit not in UNITS:
        return None
    if math.prod(x) == 0:
        return None if x[0] and x[1] else CardKernel(())
    inner = math.prod(x[2:])
    times = math.gcd(16 // unit, inner)
    sizes, kind = (*x[:2], inner // times), UNITS[unit * times]
    places = Coordinates("i", 3, math.prod(sizes) + THREADS < 1 << 31)
    index = places.index
    found, (first, second, place) = places.lines("at")
    batch_first = operator(node, ReverseSequence).batch_axis == 0
    batch, step = (first, second) if batch_first else (second, first)
    steps = x[1] if batch_first else x[0]
    source = f"{batch} * isize1 + from" if batch_first else f"from * isize1 + {batch}"
    lines = [
        *found,
        f"const gk_i64 length = lengths[{batch}];",
        "if (length > (gk_i64)steps) {",
        "    *fault = 1;",
        "    return;",
        "}",
        f"const {index} from = (gk_i64){step} < length ? ({index})length - 1 - {step} : {step};",
        f"y[at] = x[({source}) * isize2 + {place}];",
    ]
    given: Given = [
        (f"const {kind}* x", Input(0)), ("const gk_i64* lengths", Input(1)), (f"{kind}* y", Output(0)),
        ("unsigned* fault", Fault()), (f"{index} steps", places.number(steps)),
    ]  # fmt: skip
    launch = for_each("reverse_sequence", sizes, places, given, lines)
    return CardKernel((launch,), fault=f"a sequence is longer than the {steps} steps of {list(x)}")
