"""How the threads of one row put their partial results together: by shuffles, and for blocks by shared memory."""

from __future__ import annotations

from graphkit.executor.devices.cuda.launches import THREADS

WARP = 32


def threads_for(count: int) -> int:
    """How many threads work on a row of so many elements: a warp, or a block."""
    return WARP if count <= 8 * WARP else THREADS


def joined(name: str, join: str, together: int) -> list[str]:
    """Lines behind which the variable `name` of every thread is the join of all `together` of them: 1, a warp, a block.

    join: an expression of partial results `a` and `b`. Their type is A. A kernel that joins twice uses two names.
    """

    def over(first: int) -> list[str]:
        return [
            f"for (int far = {first}; far > 0; far /= 2) {{",
            f"    const A a = {name}, b = gk_shuffle_xor({name}, far);",
            f"    {name} = {join};",
            "}",
        ]

    if together == 1:
        return []
    if together == WARP:
        return over(WARP // 2)
    warps = together // WARP
    return [
        *over(WARP // 2),
        f"__shared__ A {name}_parts[{warps}];",
        f"if (threadIdx.x % {WARP}u == 0) {{",
        f"    {name}_parts[threadIdx.x / {WARP}u] = {name};",
        "}",
        "__syncthreads();",
        f"{name} = {name}_parts[threadIdx.x % {warps}u];",
        *over(warps // 2),
    ]
