"""The operator, and which kernel computes it.

Of half floats without a mask it is cuDNN's. Its documentation has the formula, which says what becomes of finite scores
of queries that each see a key, and nothing of others; no plan of it has the note that it passes NaN on. So operands
with an element that is not finite, or so large that a score may overflow, are found before, and then graphkit's own
kernel computes all once more; queries that see nothing are known from the sizes. What a mask hides only a run tells:
attention with one is the own kernel's.
"""

from __future__ import annotations

from graphkit.executor.devices.cuda.attention.flash import Flash
from graphkit.executor.devices.cuda.attention.sizes import FEW, Attended
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

# Heads that the library knows: multiples of so many elements, up to so many.
_MULTIPLE, _WIDEST = 8, 256
# Operands below the limit and scales up to that: scores stay below 2^56 * 2^56 * 256 * 16 = 2^124.
_LIMIT, _LARGEST_SCALE = "0x1p56f", 16.0
# What the library may take.
_WORKSPACE = 1 << 20
# Elements of each operand that a thread looks at.
_RUN = 8


@launched("FusedAttentionWithStatistics", DOMAIN)
def _with_statistics(node: Node, context: KernelContext) -> CardKernel | None:
    _, largest, total = (*context.used_outputs, True, True, True)[:3]
    of = Attended.of(node, (largest, total))
    # A result without columns has statistics still: there is no kernel for these alone.
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
    of = Attended.of(node)
    if of.results == 0:
        return CardKernel(())
    if of.keys == 0:
        return CardKernel((_nothing(of),))
    own = _own(of, context.tf32)
    return _by_library(of, own) if _is_known(of) else own


def _own(of: Attended, tf32: bool, guard: Scratch | None = None) -> CardKernel:
    """Of few queries most of a tile would be empty, and there would be few tiles."""
    if TensorFlash.computes(of, tf32) and of.rows >= FEW:
        return TensorFlash(of, guard).kernel()
    return Flash(of, guard).kernel()


def _nothing(of: Attended) -> Launch:
    """The sums of no values."""
    return for_each(
        "attention_of_nothing", (of.results,), Coordinates("i", 1, of.short),
        [(f"{STORED[of.kind]}* y", Output(0))], [f"y[at] = {STORED[of.kind]}();"],
    )  # fmt: skip


def _statistics_of_nothing(of: Attended) -> list[Launch]:
    """Minus infinity, and the sum of nothing."""
    values = ("gk_limits<{0}>::lowest()", "({0})0")
    kind = STORED[held_type(of.kind)]
    return [
        for_each(
            "attention_statistics_of_nothing", (of.queries,), Coordinates("i", 1, of.short),
            [(f"{kind}* to", Output(i))], [f"to[at] = {value.format(kind)};"],
        )
        for i, (value, wanted) in enumerate(zip(values, of.statistics, strict=True), 1) if wanted
    ]  # fmt: skip


def _is_known(of: Attended) -> bool:
    """Whether it is one that the library's documentation has."""
    columns = (of.depth, of.width)
    return (
        of.kind in HALVES
        and of.mask is None
        and all(0 < n <= _WIDEST and n % _MULTIPLE == 0 for n in columns)
        and not (of.op.causal and of.keys < of.rows)
        and abs(of.op.scale) <= _LARGEST_SCALE
    )


def _by_library(of: Attended, own: CardKernel) -> CardKernel:
    """With `own` for what the library has no plan for, and behind it for operands that it is not asked for."""
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


def _unusual(of: Attended, guard: Scratch) -> tuple[Launch, Launch]:
    """Set the guard where an operand has an element that is not below the limit."""
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
