"""Padding in every mode, by index arithmetic; and its gradient, which sums over all copies of an element."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.executor.devices.cuda.launches import Argument, CardKernel, Input, launched
from graphkit.executor.devices.cuda.movement.copies import unit_of
from graphkit.executor.devices.cuda.resampling.axis import Axis
from graphkit.executor.devices.cuda.resampling.gathers import Along, Places, gathered
from graphkit.executor.devices.cuda.resampling.weighted import Resampled, resampled
from graphkit.executor.devices.geometry import known_widths, pad_maps
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import operand, shape
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.image.resampling import Taps
from graphkit.ops.tensor.pad import Pad, PadGrad


def _padded(mode: str, size: int, before: int, after: int) -> Places:
    """Return from which positions the results of a padded axis are copied; see `ops.tensor.pad.pad_sources`."""
    low, kept = max(-before, 0), size + min(after, 0) - max(-before, 0)
    period = {"wrap": kept, "reflect": max(2 * (kept - 1), 1)}.get(mode, 0)

    def places(a: int, signed: str) -> tuple[list[str], list[tuple[str, Argument]]]:
        wide = np.int32 if signed == "gk_i32" else np.int64
        if mode == "constant":
            return [f"const {signed} place{a} = i{a}_at - before{a};"], [(f"{signed} before{a}", wide(before))]
        given: list[tuple[str, Argument]] = [
            (f"{signed} before{a}", wide(max(before, 0))), (f"{signed} low{a}", wide(low)),
            (f"{signed} kept{a}", wide(kept)),
        ]  # fmt: skip
        lines = [f"const {signed} from{a} = i{a}_at - before{a};"]
        if mode == "edge":
            clipped = f"from{a} < 0 ? 0 : from{a} < kept{a} ? from{a} : kept{a} - 1"
            return [*lines, f"const {signed} place{a} = low{a} + ({clipped});"], given
        given.append((f"{signed} period{a}", wide(period)))
        lines += [
            f"const {signed} rest{a} = from{a} % period{a};",
            f"const {signed} phase{a} = rest{a} < 0 ? rest{a} + period{a} : rest{a};",
        ]
        nearer = f"(phase{a} < kept{a} ? phase{a} : period{a} - phase{a})" if mode == "reflect" else f"phase{a}"
        return [*lines, f"const {signed} place{a} = low{a} + {nearer};"], given

    return places


@launched("Pad")
def _pad(node: Node, context: KernelContext) -> CardKernel | None:
    x, y, mode = shape(node.inputs[0]), shape(node.output), operator(node, Pad).mode
    widths = known_widths(len(x), operand(node, 1), operand(node, 3))
    if widths is None:
        return None
    emptied = any(
        n and size + min(before, 0) + min(after, 0) <= 0 for size, n, (before, after) in zip(x, y, widths, strict=True)
    )
    if mode != "constant" and emptied:
        return None  # the reference raises the error
    axes = [
        Axis(size, results)
        if before == after == 0
        else Along(size, results, _padded(mode, size, before, after), outside=mode == "constant")
        for size, results, (before, after) in zip(x, y, widths, strict=True)
    ]
    value = operand(node, 2) if mode == "constant" else None
    return gathered(f"pad_{mode}", axes, unit_of(node.inputs[0]), None if value is None else ("fill[0]", Input(2)))


@launched("PadGrad", DOMAIN)
def _pad_grad(node: Node, context: KernelContext) -> CardKernel | None:
    dx = shape(node.output)
    maps = pad_maps(operator(node, PadGrad).mode, dx, operand(node, 2), operand(node, 3))
    return None if maps is None else resampled("pad_grad", node, _axes(dx, shape(node.inputs[0]), maps))


def _axes(dx: Sequence[int], dy: Sequence[int], maps: Sequence[Sequence[int] | None]) -> list[Axis]:
    return [
        Axis(results, size)
        if positions is None
        else Resampled(results, size, Taps.copies(np.array(positions, np.int64), size).transposed())
        for size, results, positions in zip(dx, dy, maps, strict=True)
    ]
