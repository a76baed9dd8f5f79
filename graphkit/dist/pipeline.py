"""The order in which the stages of a pipeline process micro-batches.

One forward, one backward: Narayanan et al., "PipeDream", SOSP 2019. The update comes after all micro-batches, as in
Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021 (PipeDream-Flush).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from graphkit.errors import UsageError
from graphkit.named_tuples import NamedTuple


class Pass(NamedTuple):
    direction: Literal["forward", "backward"]
    batch: int


def one_forward_one_backward(stages: int, stage: int, batches: int) -> list[Pass]:
    """Return the passes of one stage (0 is the first) for this number of micro-batches.

    Both directions process the micro-batches in order. At most `stages - stage` of them are between forward and
    backward pass. The stages cannot deadlock as long as forward passes wait only for earlier stages, and backward
    passes only for later ones. Raises UsageError if there is no such stage.
    """
    if not 0 <= stage < stages:
        raise UsageError(f"a pipeline of {stages} stages has no stage {stage}")
    ahead = min(stages - stage - 1, batches)
    order = [Pass("forward", batch) for batch in range(ahead)]
    for batch in range(ahead, batches):
        order += [Pass("forward", batch), Pass("backward", batch - ahead)]
    return order + [Pass("backward", batch) for batch in range(batches - ahead, batches)]


def sizes(samples: int, batches: int) -> list[int]:
    """Return the number of samples of each micro-batch, at least 1, larger ones first. They differ by at most 1."""
    count = min(samples, batches)
    return [samples // count + (index < samples % count) for index in range(count)]


def bounds(parts: Sequence[int]) -> list[slice]:
    ends = [sum(parts[: index + 1]) for index in range(len(parts))]
    return [slice(end - size, end) for end, size in zip(ends, parts, strict=True)]
