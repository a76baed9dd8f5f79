"""The operator FusedAttention, and the choice of its kernel.

cuDNN computes attention of float16 and bfloat16 without a mask. Its documentation defines the result only for finite
scores and queries that see at least one key, and no plan of cuDNN promises to propagate NaN. So a launch before it
checks for elements that are not finite, or so large that a score may overflow. If there are any, graphkit's own kernel
computes everything again. Whether queries see no key is known from the sizes, except with a mask, whose elements are
known only in a run. So graphkit's own kernel computes attention with a mask.
"""

from __future__ import annotations

from graphkit.executor.devices.cuda.attention.flash import Flash
from graphkit.executor.devices.cuda.attention.sizes import FEW, AttentionSizes
from graphkit.executor.devices.cuda.attention.tensor import TensorFlash
from graphkit.executor.devices.cuda.launches import (
    THREADS,
    Argument,
    Attention,
    CardKernel,
    Heads,
    Input,
    Launch,
    Output,
    Scratch,
    launched,
)
from graphkit.executor.devices.cuda.movement.sorting import aligned
from graphkit.executor.devices.cuda.text.expressions import STORED, float_type, held_type
from graphkit.executor.devices.cuda.text.indexing import Coordinates, for_each
from graphkit.executor.devices.kernel import KernelContext
from graphkit.ir.graph import Node
from graphkit.ir.types import HALVES
from graphkit.ops._base import DOMAIN

# Sizes of heads that the library supports: multiples of the first number, up to the second.
_MULTIPLE, _WIDEST = 8, 256
# With operands below the limit, and scales up to the largest, scores stay below 2^56 * 2^56 * 256 * 16 = 2^124.
_LIMIT, _LARGEST_SCALE = "0x1p56f", 16.0
# Bytes of the library's workspace.
_WORKSPACE = 1 << 20
# Elements of each operand that a thread checks.
_RUN = 8


@launched("FusedAttentionWithStatistics", DOMAIN)
def _with_statistics(node: Node, context: KernelContext) -> CardKernel | None:
    _, largest, total = (*context.used_outputs, True, True, True)[:3]
    of = AttentionSizes.of(node, (largest, total))
    # If v has no columns, the result is empty, but statistics are not. There is no kernel for statistics alone.
    if float_type(of.kind) is None or (of.width == 0 and of.queries > 0):
        return None
    if of.results == 0:
        return CardKernel(())
    if of.keys == 0:
        return CardKernel((_nothing(of), *_statistics_of_nothing(of)))
    return _own(of, context.tf32)


@launched("FusedAttention", DOMAIN)
def _attention(node: Node, context: KernelContext) -> CardKernel | None:
    if float_type(node.output.dtype) is None:
        return None
    of = AttentionSizes.of(node)
    if of.results == 0:
        return CardKernel(())
    if of.keys == 0:
        return CardKernel((_nothing(of),))
    own = _own(of, context.tf32)
    return _by_library(of, own) if _is_known(of) else own


def _own(of: AttentionSizes, tf32: bool, guard: Scratch | None = None) -> CardKernel:
    """Return graphkit's own kernel. With few queries, tensor cores are not used: most of a tile would be empty."""
    if TensorFlash.computes(of, tf32) and of.rows >= FEW:
        return TensorFlash(of, guard).kernel()
    return Flash(of, guard).kernel()


def _nothing(of: AttentionSizes) -> Launch:
    """Return the launch for attention without keys. The result is zeros."""
    return for_each(
        "attention_of_nothing", (of.results,), Coordinates("i", 1, of.short),
        [(f"{STORED[of.kind]}* y", Output(0))], [f"y[at] = {STORED[of.kind]}();"],
    )  # fmt: skip


def _statistics_of_nothing(of: AttentionSizes) -> list[Launch]:
    """Return the launches for the statistics of attention without keys: minus infinity (largest score) and 0 (sum)."""
    values = ("gk_limits<{0}>::lowest()", "({0})0")
    kind = STORED[held_type(of.kind)]
    return [
        for_each(
            "attention_statistics_of_nothing", (of.queries,), Coordinates("i", 1, of.short),
            [(f"{kind}* to", Output(i))], [f"to[at] = {value.format(kind)};"],
        )
        for i, (value, wanted) in enumerate(zip(values, of.statistics, strict=True), 1) if wanted
    ]  # fmt: skip


def _is_known(of: AttentionSizes) -> bool:
    """Whether the library supports attention with these sizes, and its documentation defines the result."""
    columns = (of.depth, of.width)
    return (
        of.kind in HALVES
        and of.mask is None
        and all(0 < n <= _WIDEST and n % _MULTIPLE == 0 for n in columns)
        and not (of.op.causal and of.keys < of.rows)
        and abs(of.op.scale) <= _LARGEST_SCALE
    )


def _by_library(of: AttentionSizes, own: CardKernel) -> CardKernel:
    """Return the kernel that uses the library.

    `own` replaces it if the library has no plan. For unusual operands, graphkit's kernel runs after the library.
    """
    guard, working = Scratch(0), Scratch(aligned(4))
    again = _own(of, False, guard)
    n, h = of.batch, of.heads
    work = Attention(
        of.kind,
        q=Heads(Input(0), (n, h, of.rows, of.depth), (*of.q, 1)),
        k=Heads(Input(1), (n, of.groups, of.keys, of.depth), (*of.k, 1)),
        v=Heads(Input(2), (n, of.groups, of.keys, of.width), (*of.v, 1)),
        y=Heads(Output(0), (n, h, of.rows, of.width), (*of.y, 1)),
        scale=of.op.scale, causal=of.op.causal, workspace=_WORKSPACE, working=working,
    )  # fmt: skip
    size = max(working.offset + _WORKSPACE, again.scratch_bytes, own.scratch_bytes)
    return CardKernel((*_unusual(of, guard), work, *again.launches), size, otherwise=own)


def _unusual(of: AttentionSizes, guard: Scratch) -> tuple[Launch, Launch]:
    """Return the launches that set the guard if an operand has an element that is not below the limit, or NaN."""
    kind = STORED[of.kind]
    runs = -(-max(of.counts) // _RUN)
    places = Coordinates("i", 1, _RUN * (runs + THREADS) < 1 << 31)
    given: list[tuple[str, Argument]] = [("unsigned* guard", guard)]
    lines = [f"typedef {kind} T;", f"const {places.index} first = at * {_RUN}u;", "bool unusual = false;"]
    for position, (name, count) in enumerate(zip("qkv", of.counts, strict=True)):
        given += [(f"const {kind}* {name}", Input(position)), (f"{places.index} {name}count", places.number(count))]
        lines += [
            f"if (first < {name}count) {{",
            f"    T x[{_RUN}];",
            f"    gk_run<T, {_RUN}>::load({name} + first, {name}count - first < {_RUN}u ? (int)({name}count - first) "
            f": {_RUN}, x);",
            "    #pragma unroll",
            f"    for (int e = 0; e < {_RUN}; ++e) {{",
            f"        unusual = unusual || !(gk_abs(gk_read(x[e])) < {_LIMIT});",
            "    }",
            "}",
        ]
    lines += ["if (unusual) {", "    *guard = 1;", "}"]
    cleared = for_each("attention_guard", (1,), Coordinates("i", 1, True), given[:1], ["*guard = 0;"])
    return cleared, for_each("attention_unusual", (runs,), places, given, lines)
