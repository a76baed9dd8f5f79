"""Combine the plans of the parts of a graph that runs on several devices, with the copies between devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from graphkit.ir.types import TensorType, Type
from graphkit.named_tuples import NamedTuple

# Imported when a plan is made, because most runs need none.
if TYPE_CHECKING:
    from graphkit.executor.report.plan import Plan
    from graphkit.executor.report.plan_data import Block, Operand, PlanStep


class DeviceCopy(NamedTuple):
    """A value that is copied to a part from another device.

    Attributes:
        value: Its name in the whole graph.
        type: Its type.
        source: The device that it is copied from.
    """

    value: str
    type: Type
    source: str


class PartPlan(NamedTuple):
    """The plan of one part, its device, and the copies before it runs."""

    device: str
    plan: Plan
    copies: Sequence[DeviceCopy]


def join_plans(parts: Sequence[PartPlan]) -> Plan:
    """Return one plan for parts that run in this order.

    The parts on the CPU share one arena. Each other part has its own arena. In the joined plan, the arenas lie one
    behind the other, and sizes are sums over the arenas.
    """
    from graphkit.executor.report.plan import Plan

    steps: list[PlanStep] = []
    blocks: list[Block] = []
    base = max((p.plan.arena_bytes for p in parts if p.device == "cpu"), default=0)
    for part in parts:
        begin = 0 if part.device == "cpu" else base
        if part.device != "cpu":
            base += part.plan.arena_bytes
        steps += [_copy_step(copy, part.device) for copy in part.copies]
        blocks += [_shifted_block(block, len(steps), begin) for block in part.plan.blocks]
        steps += [_shifted_step(step, part.device, begin) for step in part.plan.steps]

    def total(bytes_of: Callable[[Plan], int]) -> int:
        """Return the bytes that all parts take at one time: the maximum over parts on the CPU, plus all others."""
        on_cpu = max((bytes_of(p.plan) for p in parts if p.device == "cpu"), default=0)
        return on_cpu + sum(bytes_of(p.plan) for p in parts if p.device != "cpu")

    largest = max(parts, key=lambda p: p.plan.arena_bytes).plan
    return Plan(
        steps=tuple(steps),
        blocks=tuple(blocks),
        activation_bytes=total(lambda plan: plan.activation_bytes),
        scratch_bytes=total(lambda plan: plan.scratch_bytes),
        arena_bytes=base,
        lower_bound=total(lambda plan: plan.lower_bound),
        plain_lower_bound=total(lambda plan: plan.plain_lower_bound),
        naive_bytes=sum(p.plan.naive_bytes for p in parts),
        inplace_count=sum(p.plan.inplace_count for p in parts),
        parameter_bytes=sum(p.plan.parameter_bytes for p in parts),
        packed_bytes=sum(p.plan.packed_bytes for p in parts),
        constant_bytes=sum(p.plan.constant_bytes for p in parts),
        result_bytes=sum(p.plan.result_bytes for p in parts),
        host_bytes=sum(p.plan.host_bytes for p in parts),
        peak_node=largest.peak_node,
        inner_fallbacks=tuple(name for p in parts for name in p.plan.inner_fallbacks),
        host_conditions=tuple(step for p in parts for step in p.plan.host_conditions),
    )


def _copy_step(copy: DeviceCopy, device: str) -> PlanStep:
    """Return the step that copies a value to `device`."""
    from graphkit.executor.report.plan_data import Operand, PlanStep

    kind = copy.type
    nbytes = kind.nbytes if isinstance(kind, TensorType) and kind.is_static else 0
    read = Operand(copy.value, str(kind), "result", None, nbytes)
    written = replace(read, place="input")
    return PlanStep(copy.value, "Copy", "copy", (read,), (written,), 0, False, f"{copy.source} -> {device}")


def _shifted_step(step: PlanStep, device: str, begin: int) -> PlanStep:
    """Return a step of a part in the joined plan. begin: offset of the part's arena."""
    inputs, outputs = (tuple(_shifted(v, begin) for v in values) for values in (step.inputs, step.outputs))
    return replace(step, inputs=inputs, outputs=outputs, device=device)


def _shifted(operand: Operand | None, begin: int) -> Operand | None:
    if operand is None or operand.offset is None:
        return operand
    return replace(operand, offset=operand.offset + begin)


def _shifted_block(block: Block, steps: int, begin: int) -> Block:
    """Return a block of a part in the joined plan.

    Args:
        block: The block.
        steps: Number of steps before the part.
        begin: Offset of the part's arena.
    """
    return replace(block, offset=block.offset + begin, first=block.first + steps, last=block.last + steps)
