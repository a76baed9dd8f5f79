"""The launches that set the values of conditional nodes from arrays of the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.executor.devices.bound_steps import Choice, Repetition
from graphkit.executor.devices.cuda.horizontal_fusion import BoundLaunch
from graphkit.executor.devices.cuda.launches import THREADS, Argument, Input, Launch, Memory, Source, source_of

# Sets the values of a choice's nodes. condition: an array of `count` bytes; true if one of them is not 0. wanted: bit 0
# if there is a node `then`, bit 1 if there is a node `otherwise`.
CHOOSES = source_of(
    "chooses",
    ["const gk_u8* condition", "gk_u32 count", "gk_u64 then", "gk_u64 otherwise", "gk_u32 wanted"],
    [
        "__shared__ gk_u32 holds;",
        "if (threadIdx.x == 0) {",
        "    holds = 0;",
        "}",
        "__syncthreads();",
        f"for (gk_u32 i = threadIdx.x; i < count; i += {THREADS}u) {{",
        "    if (condition[i] != 0) {",
        "        holds = 1;",
        "    }",
        "}",
        "__syncthreads();",
        "if (threadIdx.x == 0) {",
        "    if (wanted & 1u) {",
        "        cudaGraphSetConditional(then, holds);",
        "    }",
        "    if (wanted & 2u) {",
        "        cudaGraphSetConditional(otherwise, 1u - holds);",
        "    }",
        "}",
    ],
)

# Counts the iterations of a repetition, and sets the value of its node: whether another iteration follows. given: bit 0
# if there is a `flag`, bit 1 if there is a `limit`.
REPEATS = source_of(
    "repeats",
    [
        "const gk_u8* flag", "const gk_i64* limit", "gk_u32 given", "gk_i64* trips", "gk_u32 first",
        "const gk_i64* most", "gk_u32* fault", "const gk_u32* faults", "gk_u32 count", "gk_u64 handle",
    ],
    [
        "__shared__ gk_u32 met;",
        "if (threadIdx.x == 0) {",
        "    met = 0;",
        "}",
        "__syncthreads();",
        f"for (gk_u32 i = threadIdx.x; i < count; i += {THREADS}u) {{",
        "    if (faults[i] != 0) {",
        "        met = 1;",
        "    }",
        "}",
        "__syncthreads();",
        "if (threadIdx.x == 0) {",
        "    const gk_i64 done = first ? 0 : (gk_i64)((gk_u64)*trips + 1u);",
        "    *trips = done;",
        "    bool goes = met == 0;",
        "    goes = goes && (!(given & 1u) || *flag != 0) && (!(given & 2u) || done < *limit);",
        "    if (goes && done >= *most) {",
        "        *fault = 1;",
        "        goes = false;",
        "    }",
        "    cudaGraphSetConditional(handle, goes);",
        "}",
    ],
)  # fmt: skip

# All sources of this module.
SETTING = (CHOOSES, REPEATS)


def choosing(choice: Choice, then: int | None, otherwise: int | None) -> BoundLaunch:
    """Return the launch that sets the nodes of both branches. then, otherwise: their handles; None without a node."""
    wanted = np.uint32((then is not None) + 2 * (otherwise is not None))
    given = [choice.condition, np.uint32(choice.condition.nbytes)]
    return _setting(CHOOSES, [*given, np.uint64(then or 0), np.uint64(otherwise or 0), wanted])


def beginning(repeated: Repetition, handle: int) -> BoundLaunch:
    """Return the launch that sets the node of a repetition before its first iteration."""
    return _repeating(repeated, repeated.condition, handle, first=True)


def continuing(repeated: Repetition, handle: int) -> BoundLaunch:
    """Return the launch that sets the node of a repetition at the end of each iteration."""
    return _repeating(repeated, repeated.flag, handle, first=False)


def _repeating(repeated: Repetition, flag: Any, handle: int, *, first: bool) -> BoundLaunch:
    given = np.uint32((flag is not None) + 2 * (repeated.limit is not None))
    # The kernel does not read an absent array, but needs some address for it.
    flag, limit = (repeated.most if array is None else array for array in (flag, repeated.limit))
    count = np.uint32(len(repeated.faults))
    return _setting(
        REPEATS,
        [flag, limit, given, repeated.trips, np.uint32(first), repeated.most, repeated.fault, repeated.faults, count,
         np.uint64(handle)],
    )  # fmt: skip


def _setting(source: Source, given: Sequence[Any]) -> BoundLaunch:
    arrays = [value for value in given if not isinstance(value, np.generic)]
    positions = iter(range(len(arrays)))
    arguments: list[Argument] = [v if isinstance(v, np.generic) else Input(next(positions)) for v in given]
    return BoundLaunch(Launch(source, 1, tuple(arguments)), Memory(arrays, (), None, None, {}))
