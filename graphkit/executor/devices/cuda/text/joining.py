"""Reductions and scans over the threads of a block: by warp shuffles, and then through shared memory.

Partial results are combined in a fixed order of the threads, so a result has the same bits every time.
"""

from __future__ import annotations

from graphkit.executor.devices.cuda.launches import THREADS

WARP = 32


def joined(name: str, join: str) -> list[str]:
    """Return lines that reduce the variable `name` over a block. Every thread gets the result in the same variable.

    join: an expression of partial results `a` and `b`. Their type is A.
    """
    warps = THREADS // WARP

    def over(first: int) -> list[str]:
        return [
            f"for (int far = {first}; far > 0; far /= 2) {{",
            f"    const A a = {name}, b = gk_shuffle_xor({name}, far);",
            f"    {name} = {join};",
            "}",
        ]

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


def scanned(name: str, join: str) -> list[str]:
    """Return lines that compute the inclusive scan of the variable `name` over a block, in the same variable.

    They also declare `{name}_before`, the exclusive scan (undefined in thread 0), and `{name}_whole`, the reduction
    over all threads. The lines may be used in a loop.

    join: an expression of partial results `a`, which comes first, and `b`. Their type is A.
    """
    warps = THREADS // WARP
    return [
        f"__shared__ A {name}_parts[{warps}];",
        f"for (int far = 1; far < {WARP}; far *= 2) {{",
        f"    const A a = gk_shuffle_up({name}, far), b = {name};",
        f"    {name} = (int)(threadIdx.x % {WARP}u) < far ? b : {join};",
        "}",
        f"A {name}_before = gk_shuffle_up({name}, 1);",
        f"if (threadIdx.x % {WARP}u == {WARP - 1}u) {{",
        f"    {name}_parts[threadIdx.x / {WARP}u] = {name};",
        "}",
        "__syncthreads();",
        f"A {name}_whole = {name}_parts[0], {name}_warps = {name}_whole;",
        f"for (int warp = 1; warp < {warps}; ++warp) {{",
        f"    const A a = {name}_whole, b = {name}_parts[warp];",
        f"    {name}_whole = {join};",
        f"    {name}_warps = warp < (int)(threadIdx.x / {WARP}u) ? {name}_whole : {name}_warps;",
        "}",
        f"if (threadIdx.x >= {WARP}u) {{",
        f"    const A a = {name}_warps;",
        "    {",
        f"        const A b = {name};",
        f"        {name} = {join};",
        "    }",
        f"    const A b = {name}_before;",
        f"    {name}_before = threadIdx.x % {WARP}u == 0 ? a : {join};",
        "}",
        "__syncthreads();",
    ]
