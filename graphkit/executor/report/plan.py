"""What a program will do, for people and for JSON: steps, kernels, offsets, and the numbers of the memory plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

KernelKind = Literal["native", "reference", "view", "constant"]
Place = Literal["arena", "input", "parameter", "constant", "result", "dynamic"]
BlockKind = Literal["value", "scratch"]


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor of a step: its name and type, and where it lives. `offset` is set in the arena only.

    "result" is memory of its own, made for every run (outputs) or kept between runs (new values of states);
    "dynamic" is an array whose size is known only when it has been computed: then `bytes` is 0.
    """

    name: str
    type: str
    place: Place
    offset: int | None
    bytes: int


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One node. A view and a constant take no time; `live_bytes` is what the arena holds while the step runs."""

    node: str
    op: str
    kernel: KernelKind
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand | None, ...]
    live_bytes: int
    inplace: bool


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes `offset` to `offset + bytes` of the arena from step `first` (written) to step `last` (read) of `steps`.

    "value" is the output `name` of step `first`, "scratch" the working memory of the step called `name`. `inplace`: the
    memory was taken over from an operand whose last step is `first`.
    """

    name: str
    type: str
    kind: BlockKind
    offset: int
    bytes: int
    first: int
    last: int
    inplace: bool


@dataclass(frozen=True)
class Plan:
    """The memory plan of one program. All sizes in bytes, each tensor rounded up to the alignment.

    The arena holds `blocks`: values, of which `activation_bytes` live at one step at most, and working memory, of at
    most `scratch_bytes` a step. `lower_bound` is the peak of both in the chosen order: no layout of it is smaller.
    `plain_lower_bound` is the peak in the plain topological order, `naive_bytes` what the blocks take side by side.
    `packed_bytes` is what kernels keep of parameters and constants in layouts of their own.
    """

    steps: tuple[PlanStep, ...]
    blocks: tuple[Block, ...]
    activation_bytes: int
    scratch_bytes: int
    arena_bytes: int
    lower_bound: int
    plain_lower_bound: int
    naive_bytes: int
    inplace_count: int
    parameter_bytes: int
    packed_bytes: int
    constant_bytes: int
    result_bytes: int
    peak_node: str
    inner_fallbacks: tuple[str, ...] = ()  # steps inside subgraphs, see `fallbacks`

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Nodes that run by their reference because the device has no kernel for them, as "name (Op)"."""
        return (*(f"{s.node} ({s.op})" for s in self.steps if s.kernel == "reference"), *self.inner_fallbacks)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    def to_html(self, title: str = "memory plan") -> str:
        """A page on its own that draws time against address; point at a block to see what it is."""
        from graphkit.executor.report.plan_page import page

        return page(self, title)

    def __str__(self) -> str:
        rows = [
            [
                str(number),
                step.node,
                step.op,
                step.kernel,
                _operands(step.inputs),
                _operands(step.outputs) + (" (in place)" if step.inplace else ""),
                human(step.live_bytes) if step.live_bytes else "",
            ]
            for number, step in enumerate(self.steps)
        ]
        table = format_table(["step", "node", "op", "kernel", "reads", "writes", "live"], rows)
        return f"{table}\n\n{self.summary()}"

    def summary(self) -> str:
        """The numbers, without the steps."""
        kinds = Counter(step.kernel for step in self.steps)
        saved = f", {self.naive_bytes / self.arena_bytes:.1f} times the arena" if self.arena_bytes else ""
        lines = [
            f"steps        {len(self.steps)}: " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()),
            f"arena        {human(self.arena_bytes)}: activations up to {human(self.activation_bytes)}, "
            f"working memory up to {human(self.scratch_bytes)}; {self.inplace_count} results in place",
            f"lower bound  {human(self.lower_bound)} (at {self.peak_node or 'no step'}); "
            f"in plain topological order {human(self.plain_lower_bound)}",
            f"naive        {human(self.naive_bytes)}{saved}",
            f"beside it    parameters {human(self.parameter_bytes)} (packed {human(self.packed_bytes)}), "
            f"constants {human(self.constant_bytes)}, results {human(self.result_bytes)}",
        ]
        if self.inner_fallbacks:
            lines.append(f"interpreted inside subgraphs: {', '.join(self.inner_fallbacks)}")
        return "\n".join(lines)


def human(size: int) -> str:
    """1536 -> '1.5 KiB'."""
    if size < 1024:
        return f"{size} B"
    power = min((size.bit_length() - 1) // 10, 4)
    return f"{size / (1 << 10 * power):.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Left-aligned columns under a ruled head."""
    table = [list(head), *map(list, rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _operands(operands: Sequence[Operand | None]) -> str:
    return ", ".join("-" if operand is None else f"{operand.name} {_place(operand)}" for operand in operands)


def _place(operand: Operand) -> str:
    return f"@{operand.offset}" if operand.place == "arena" else f"[{operand.place}]"
