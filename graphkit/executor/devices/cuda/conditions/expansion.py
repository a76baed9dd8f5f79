"""The steps of a recording: conditional kernels are expanded, and independent steps share launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphkit.executor.devices.bound_steps import BoundStep, Choice, Conditional, Recorded, Repetition
from graphkit.executor.devices.cuda.horizontal_fusion import fused


def expanded(steps: Sequence[Recorded]) -> list[Recorded]:
    """The same work, in an order that it may be done in: steps that do not wait for each other share launches, those of
    conditional kernels are what these record. It makes tables, which a card copies at once.
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
    """Yield the steps, with those between two conditions fused."""
    together: list[BoundStep] = []
    for step in steps:
        if isinstance(step, BoundStep):
            together.append(step)
        else:
            yield from fused(together)
            together = []
            yield step
    yield from fused(together)
