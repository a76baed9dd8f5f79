"""FiniteGuard: copies a value, and sets a fault if another value, the token, is not finite.

Programs check faults before they overwrite a state, so no step waits for the guard itself.
"""

from __future__ import annotations

import math

from graphkit.errors import NotFinite
from graphkit.executor.devices.cuda.launches import THREADS, CardKernel, Fault, Given, Input, Output, launched
from graphkit.executor.devices.cuda.movement.copies import UNITS, unit_of
from graphkit.executor.devices.cuda.text.expressions import STORED
from graphkit.executor.devices.cuda.text.indexing import Coordinates, for_each
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import shape
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN

# The meaning of the values 1, 2 and 3 of the fault.
_VALUES = ("nan", "inf", "-inf")


class _Guard(CardKernel):
    def failure(self, node: Node, word: int) -> NotFinite:
        return NotFinite(f"{node.describe()}: {_VALUES[word - 1]}")


@launched("FiniteGuard", DOMAIN)
def _finite_guard(node: Node, context: KernelContext) -> CardKernel | None:
    unit, token = unit_of(node.output), node.operands[1].dtype
    if unit not in UNITS or token not in STORED:
        return None
    count = math.prod(shape(node.output))
    places = Coordinates("i", 1, count + THREADS < 1 << 31)
    given: Given = [
        (f"const {UNITS[unit]}* x", Input(0)), (f"const {STORED[token]}* token", Input(1)),
        (f"{UNITS[unit]}* y", Output(0)), ("unsigned* fault", Fault()),
        (f"{places.index} elements", places.number(count)),
    ]  # fmt: skip
    lines = [
        "if (at < elements) {", "    y[at] = x[at];", "}",
        "if (at == 0) {",
        "    const auto value = gk_read(token[0]);",
        "    if (value - value != 0) {",
        "        *fault = value != value ? 1 : value > 0 ? 2 : 3;",
        "    }",
        "}",
    ]  # fmt: skip
    # The kernel checks the token even if the copied value is empty.
    launch = for_each("guard", (max(count, 1),), places, given, lines)
    return _Guard((launch,), inplace=((0, 0),), fault="a value is not finite")
