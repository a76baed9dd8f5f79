"""Plans: what a program will do, as text, HTML and JSON: steps, kernels, offsets and memory use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from graphkit.executor.report.plan_data import Operand, PlanData, PlanStep
from graphkit.executor.report.plan_page import page
from graphkit.text import format_table, human, listed, short_repr


class Plan(PlanData):
    """The memory plan of one program, as text, plain data or an HTML page."""

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Interpreted nodes, for which the device has no kernel, as "name (Op)"."""
        return (*(f"{s.node} ({s.op})" for s in self.steps if s.kernel == "interpreted"), *self.inner_fallbacks)

    @property
    def copies(self) -> tuple[PlanStep, ...]:
        """Copies from one device to another in a run, if the graph runs on several."""
        return tuple(step for step in self.steps if step.kernel == "copy")

    def copied_bytes(self) -> dict[str, int]:
        """Bytes that a run copies, by "one device -> another"."""
        found: Counter[str] = Counter()
        for step in self.copies:
            found[step.device] += sum(operand.bytes for operand in step.outputs if operand is not None)
        return dict(found)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data for JSON."""
        former = {"staged_because": self.staging_reason, "host_looks": self.host_conditions}
        return asdict(self) | former

    def to_html(self, title: str = "memory plan") -> str:
        """Return a self-contained page that draws time against address. Point at a block for details."""
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
        columns = ["step", "node", "op", "kernel", "reads", "writes", "live"]
        if any(step.device for step in self.steps):
            columns.append("device")
            rows = [[*row, step.device] for row, step in zip(rows, self.steps, strict=True)]
        table = format_table(columns, rows)
        return f"{table}\n\n{self.summary()}"

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield ""
        kinds = Counter(step.kernel for step in self.steps)
        yield f"{len(self.steps)} steps ({listed((f'{n} {kind}' for kind, n in kinds.most_common()), len(kinds), 9)})"
        yield f"arena {human(self.arena_bytes)}"
        yield f"parameters {human(self.parameter_bytes)}"
        yield f"results {human(self.result_bytes)}"

    def summary(self) -> str:
        """Return the memory use and counts as text, without the steps."""
        kinds = Counter(step.kernel for step in self.steps)
        saved = f", {self.naive_bytes / self.arena_bytes:.1f} times the arena" if self.arena_bytes else ""
        lines = [
            f"steps        {len(self.steps)}: " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()),
            f"arena        {human(self.arena_bytes)}: activations up to {human(self.activation_bytes)}, "
            f"working memory up to {human(self.scratch_bytes)}; {self.inplace_count} results in place",
            f"lower bound  {human(self.lower_bound)} (at {self.peak_node or 'no step'}); "
            f"in plain topological order {human(self.plain_lower_bound)}",
            f"naive        {human(self.naive_bytes)}{saved}",
            f"not in arena parameters {human(self.parameter_bytes)} (packed {human(self.packed_bytes)}), "
            f"constants {human(self.constant_bytes)}, results {human(self.result_bytes)}",
        ]
        if self.examples is not None:
            lines.append(
                f"batch        {self.examples[1]} examples, {self.examples[0]} at a time, in {self.arenas} arenas"
            )
        if self.copies:
            listed = ", ".join(f"{human(nbytes)} {direction}" for direction, nbytes in self.copied_bytes().items())
            lines.append(f"copies       {len(self.copies)}: {listed}")
        if self.host_bytes:
            swapped = sum(v is not None and v.place == "host" for step in self.steps for v in step.outputs)
            lines.append(f"swapped      {swapped} values, {human(self.host_bytes)} of pinned host memory")
        if self.staging_reason:
            lines.append(f"all-reduces  through host memory: {self.staging_reason}")
        if self.host_conditions:
            lines.append(f"conditions   the host reads those of {'; '.join(self.host_conditions)}")
        if self.inner_fallbacks:
            lines.append(f"interpreted inside subgraphs: {', '.join(self.inner_fallbacks)}")
        return "\n".join(lines)


def _operands(operands: Sequence[Operand | None]) -> str:
    """Return the operands of a step as text, such as `x [input], h @64`."""
    return ", ".join("-" if operand is None else f"{operand.name} {_place(operand)}" for operand in operands)


def _place(operand: Operand) -> str:
    """Return the offset in the arena, or the kind of memory."""
    return f"@{operand.offset}" if operand.place == "arena" else f"[{operand.place}]"
