"""Elements and slices that are taken by index: a thread for up to 16 bytes of the result, side by side.

What lies side by side in the result lies side by side in the operand as far as a slice goes. Each index is read by the
threads of its slice.
"""

from __future__ import annotations

import math

from graphkit.executor.devices.cuda.addressing import INDEX_TYPES, ElementAddress, TupleAddress
from graphkit.executor.devices.cuda.indexing import Coordinates, for_each
from graphkit.executor.devices.cuda.launches import THREADS, Argument, CardKernel, Input, Output
from graphkit.executor.devices.cuda.movement import UNITS, unit_of
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import shape
from graphkit.executor.devices.registry import register_launched
from graphkit.ir.graph import Node
from graphkit.ops._base import operator
from graphkit.ops.tensor.gather import GatherElements, GatherND


@register_launched("cuda", "", "GatherElements")
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
    given: list[tuple[str, Argument]] = [(f"const {UNITS[unit]}* x", Input(0)), (f"{UNITS[unit]}* y", Output(0))]
    launch = for_each("gather_elements", address.sizes, places, [*given, *address.given(places)], lines)
    return CardKernel((launch,), fault=address.fault)


@register_launched("cuda", "", "GatherND")
def _gather_nd(node: Node, context: KernelContext) -> CardKernel | None:
    x, indices = (shape(v) for v in node.inputs)
    batch = operator(node, GatherND).batch_dims
    address = TupleAddress.of(x, indices, batch, "gk_i64", 1)
    unit = unit_of(node.output)
    if unit not in UNITS or address is None:
        return None
    inner = math.prod(x[batch + address.depth :])
    if address.count * inner == 0:
        # Indices out of range are an error of empty slices, too.
        return None if address.count else CardKernel(())
    times = math.gcd(16 // unit, inner)
    inner, unit = inner // times, unit * times
    places = Coordinates("i", 3, max(address.count, address.targets) * inner + THREADS < 1 << 31)
    found, (block, pick, place) = places.lines("at")
    lines = [
        *found,
        f"const {places.index} tuple = {block} * isize1 + {pick};",
        *address.lines(places, "tuple", (block, pick), "return;"),
        f"y[at] = x[target * isize2 + {place}];",
    ]
    given: list[tuple[str, Argument]] = [(f"const {UNITS[unit]}* x", Input(0)), (f"{UNITS[unit]}* y", Output(0))]
    launch = for_each("gather_nd", (*address.sizes, inner), places, [*given, *address.given(places)], lines)
    return CardKernel((launch,), fault=address.fault)
