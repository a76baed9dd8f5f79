"""The steps of a recording: conditional kernels are expanded, and independent steps share launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphkit.executor.devices.bound_steps import BoundStep, Choice, Conditional, Recorded, Repetition
from graphkit.executor.devices.cuda.horizontal_fusion import fused


def expanded(steps: Sequence[Recorded]) -> list[Recorded]:
    """Return steps with the same results, in a valid order.

    Independent steps share launches, and conditional kernels are replaced by the steps that they record. Shared
    launches read tables, which this function copies to the GPU.
    """
    found: list[Recorded] = []
    for step in _fused(steps):
        if isinstance(step, Choice):
            found.append(step._replace(then=expanded(step.then), otherwise=expanded(step.otherwise)))
        elif isinstance(step, Repetition):
            found.append(step._replace(steps=expanded(step.steps)))
        elif isinstance(step.kernel, Conditional):
            found += expanded([*step.kernel.recorded(step.inputs, step.outputs, step.scratch)])
        else:
            found.append(step)
    return found


def has_conditions(steps: Sequence[Recorded]) -> bool:
    """Return whether expanded steps contain conditions."""
    return any(not isinstance(step, BoundStep) for step in steps)


def _fused(steps: Sequence[Recorded]) -> Iterator[Recorded]:
    """Yield the steps. Those between two conditions are fused (see `horizontal_fusion`)."""
    together: list[BoundStep] = []
    for step in steps:
        if isinstance(step, BoundStep):
            together.append(step)
        else:
            yield from fused(together)
            together = []
            yield step
    yield from fused(together)
