"""The plan of a graph that is divided among devices: the plans of its parts, and the copies between devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from graphkit.ir.types import TensorType, Type

# Most runs are not described.
if TYPE_CHECKING:
    from graphkit.executor.report.plan import Plan
    from graphkit.executor.report.plan_data import Block, Operand, PlanStep


class Move(NamedTuple):
    """A value that a part gets from another device, by the name that the whole graph has for it."""

    value: str
    type: Type
    source: str


class PartPlan(NamedTuple):
    """The plan of one part, the device that it runs on, and what it gets first."""

    device: str
    plan: Plan
    moves: Sequence[Move]


def join(parts: Sequence[PartPlan]) -> Plan:
    """One plan of parts that run in this order.

    Parts of the host take turns on one arena; each part of another device has its own, behind those of the parts before
    it. Where memory is that of several parts, bytes are their sum.
    """
    from graphkit.executor.report.plan import Plan

    steps: list[PlanStep] = []
    blocks: list[Block] = []
    base = max((p.plan.arena_bytes for p in parts if p.device == "cpu"), default=0)
    for part in parts:
        begin = 0 if part.device == "cpu" else base
        if part.device != "cpu":
            base += part.plan.arena_bytes
        steps += [_copy(move, part.device) for move in part.moves]
        blocks += [_moved(block, len(steps), begin) for block in part.plan.blocks]
        steps += [_on_device(step, part.device, begin) for step in part.plan.steps]

    def total(bytes_of: Callable[[Plan], int]) -> int:
        """At one time: the largest on the host, and all others."""
        here = max((bytes_of(p.plan) for p in parts if p.device == "cpu"), default=0)
        return here + sum(bytes_of(p.plan) for p in parts if p.device != "cpu")

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


def _copy(move: Move, device: str) -> PlanStep:
    from graphkit.executor.report.plan_data import Operand, PlanStep

    kind = move.type
    nbytes = kind.nbytes if isinstance(kind, TensorType) and kind.is_static else 0
    read = Operand(move.value, str(kind), "result", None, nbytes)
    written = replace(read, place="input")
    return PlanStep(move.value, "Copy", "copy", (read,), (written,), 0, False, f"{move.source} -> {device}")


def _on_device(step: PlanStep, device: str, begin: int) -> PlanStep:
    inputs, outputs = (tuple(_shifted(v, begin) for v in values) for values in (step.inputs, step.outputs))
    return replace(step, inputs=inputs, outputs=outputs, device=device)


def _shifted(operand: Operand | None, begin: int) -> Operand | None:
    if operand is None or operand.offset is None:
        return operand
    return replace(operand, offset=operand.offset + begin)


def _moved(block: Block, steps: int, begin: int) -> Block:
    return replace(block, offset=block.offset + begin, first=block.first + steps, last=block.last + steps)
