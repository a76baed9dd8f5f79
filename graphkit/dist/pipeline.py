"""The order in which the stages of a pipeline take micro-batches.

One forward, one backward: Narayanan et al., "PipeDream", SOSP 2019; with an update once all micro-batches are through,
as in Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021 (PipeDream-Flush).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from graphkit.errors import UsageError


class Pass(NamedTuple):
    """What a stage does next: one direction of one micro-batch."""

    direction: Literal["forward", "backward"]
    batch: int


def one_forward_one_backward(stages: int, stage: int, batches: int) -> list[Pass]:
    """Return the passes of one stage (0 is the first) for this number of micro-batches.

    Both directions process the micro-batches in order. At most `stages - stage` of them are between their forward and
    their backward pass at any time. The stages cannot deadlock, as long as forward passes wait only for earlier stages,
    and backward passes only for later ones. Raises UsageError if there is no such stage.
    """
    if not 0 <= stage < stages:
        raise UsageError(f"a pipeline of {stages} stages has no stage {stage}")
    ahead = min(stages - stage - 1, batches)
    order = [Pass("forward", batch) for batch in range(ahead)]
    for batch in range(ahead, batches):
        order += [Pass("forward", batch), Pass("backward", batch - ahead)]
    return order + [Pass("backward", batch) for batch in range(batches - ahead, batches)]


def sizes(samples: int, batches: int) -> list[int]:
    """The samples of each micro-batch, as equal as can be, the larger ones first; of fewer samples, as many batches."""
    count = min(samples, batches)
    return [samples // count + (index < samples % count) for index in range(count)]


def bounds(parts: Sequence[int]) -> list[slice]:
    """Where parts of these sizes lie, one behind the other."""
    ends = [sum(parts[: index + 1]) for index in range(len(parts))]
    return [slice(end - size, end) for end, size in zip(ends, parts, strict=True)]
