"""Parameters and masks of all attention kernels that work in tiles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphkit.executor.devices.cuda.attention.sizes import AttentionSizes, Strides
from graphkit.executor.devices.cuda.launches import Given, Input, Output, Scratch
from graphkit.executor.devices.cuda.text.expressions import STORED, held_type
from graphkit.executor.devices.cuda.text.indexing import Coordinates
from graphkit.executor.devices.cuda.text.lines import indented
from graphkit.ir.types import DType

# The least number of blocks that must fit on a multiprocessor.
BESIDE = 2


@dataclass(frozen=True)
class Tiles:
    """An attention kernel. All sizes but `depth` must be above 0.

    guard: A word of type `unsigned`. If it is 0, the kernel does nothing.
    """

    of: AttentionSizes
    guard: Scratch | None = None

    @property
    def held(self) -> DType:
        return held_type(self.of.kind)

    @property
    def short(self) -> bool:
        """Whether indices have 32 bits."""
        return self.of.short

    @property
    def index(self) -> str:
        return "gk_u32" if self.short else "gk_u64"

    @property
    def signed(self) -> str:
        return "gk_i32" if self.short else "gk_i64"

    # --- parameters -----------------------------------------------------------------------------------

    def numbers(self, **named: int) -> Given:
        places = Coordinates("", 1, self.short)
        return [(f"{self.index} {name}", places.number(value)) for name, value in named.items()]

    def strides(self, name: str, strides: Strides) -> Given:
        return self.numbers(**{f"{name}batch": strides.batch, f"{name}head": strides.head, f"{name}row": strides.row})

    def operands(self) -> Given:
        """Return the parameters for q, k, v and the mask, their strides, and all sizes but the batch."""
        of, kind, held = self.of, STORED[self.of.kind], STORED[self.held]
        found: Given = [(f"const {kind}* {name}", Input(i)) for i, name in enumerate("qkv")]
        for name, strides in (("q", of.q), ("k", of.k), ("v", of.v)):
            found += self.strides(name, strides)
        found += self.numbers(heads=of.heads, rows=of.rows, keys=of.keys, depth=of.depth, width=of.width)
        if of.sharing > 1:
            found += self.numbers(sharing=of.sharing)
        found.append((f"{held} scale", self._held(of.op.scale)))
        if of.mask is not None and of.mask_kind is not None:
            found.append((f"const {STORED[of.mask_kind]}* mask", Input(3)))
            found += self.numbers(**{f"mask{axis}": stride for axis, stride in enumerate(of.mask)})
        if of.mask is not None and of.mask_is_boolean:
            with np.errstate(over="ignore"):
                # Rounded to the type of the operands.
                found.append((f"{held} hidden", self._held(float(of.kind.numpy.type(of.op.mask_value)))))
        return found

    def _held(self, value: float) -> np.generic:
        return np.float64(value) if self.held is DType.FLOAT64 else np.float32(value)

    def statistics(self) -> Given:
        """Return the parameters for the statistics that are results."""
        names = zip(("row_largest", "row_total"), self.of.statistics, strict=True)
        kind = STORED[self.held]
        return [(f"{kind}* {name}", Output(i)) for i, (name, wanted) in enumerate(names, 1) if wanted]

    def recorded(self, chosen: str, line: str, largest: str, total: str) -> list[str]:
        """Return lines that write these statistics of query number `line`, if `chosen` is true."""
        values = {"row_largest": largest, "row_total": total}
        lines = [f"{name}[{line}] = {values[name]};" for name in (text.split()[-1] for text, _ in self.statistics())]
        return [f"if ({chosen}) {{", *indented(lines), "}"] if lines else []

    def guarded(self) -> tuple[Given, list[str]]:
        """Return the parameter of the guard, and the first lines of the kernel, which check it."""
        if self.guard is None:
            return [], []
        return [("const unsigned* guard", self.guard)], ["if (*guard == 0) {", "    return;", "}"]

    # --- masks ----------------------------------------------------------------------------------------

    def heads(self) -> list[str]:
        """Return lines that set the pointers to the head of the block, number `whole`."""
        own = "head / sharing" if self.of.sharing > 1 else "head"
        return [
            f"const {self.index} head = whole % heads, batch = whole / heads;",
            "q += batch * qbatch + head * qhead;",
            f"k += batch * kbatch + {own} * khead;",
            f"v += batch * vbatch + {own} * vhead;",
            *(["mask += batch * mask0 + head * mask1;"] if self.of.mask is not None else []),
        ]

    def seen(self, tall: int) -> list[str]:
        """Return lines that declare `end`: the end of the keys that a tile of `tall` queries sees."""
        lines = [f"{self.index} end = keys;"]
        if self.of.op.causal:
            lines += [
                # The last query of the tile sees keys before this one.
                f"const {self.signed} behind_last = ({self.signed})(row0 + {tall}u) + "
                f"(({self.signed})keys - ({self.signed})rows);",
                f"const {self.index} seen = behind_last > 0 ? ({self.index})behind_last : 0;",
                "end = seen < end ? seen : end;",
            ]
        return lines

    def limit(self) -> list[str]:
        """Return a line that declares `limit`: query `row` sees only keys before it. The mask is not considered."""
        if not self.of.op.causal:
            return [f"const {self.index} limit = end;"]
        signed = self.signed
        return [
            f"const {signed} last = ({signed})row + (({signed})keys - ({signed})rows);",
            f"const {self.index} limit = last < 0 ? 0 : ({self.index})last < end ? ({self.index})last + 1 : end;",
        ]

    def masked(self) -> list[str]:
        """Return lines that apply the mask to `score`, that of `row` and `key`."""
        if self.of.mask is None:
            return []
        element = "mask[row * mask2 + key * mask3]"
        change = f"score = {element} != 0 ? score : hidden;"
        if not self.of.mask_is_boolean:
            change = f"score += gk_read({element});"
        return ["if (row < rows && key < limit) {", f"    {change}", "}"]
