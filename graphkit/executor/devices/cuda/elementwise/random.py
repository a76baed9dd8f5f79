"""Random numbers, the same as those of the references and of the CPU, for any number of threads.

A thread computes the four words of one block of Philox, and from them four elements, or two that need two words each.
Uniform numbers, masks and Bernoulli results have the same bits as on the CPU. Normal numbers are computed in float32
unless the result is float64, and agree to a few units in the last place. Each operand is read once, and each result
written once, in accesses of up to 16 bytes. Nodes with their own seed are interpreted: they use numpy's generator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from graphkit.executor.devices.cuda.launches import (
    THREADS,
    CardKernel,
    Fault,
    Given,
    Input,
    Launch,
    Output,
    launched,
    source_of,
)
from graphkit.executor.devices.cuda.text.expressions import STORED, held_type
from graphkit.executor.devices.cuda.text.indexing import Coordinates
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import operand
from graphkit.executor.devices.randomness import Draw, draw, dropout_draw, linear, never_trains
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import FLOATS, DType
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import DOMAIN
from graphkit.ops.math.philox import FOLD_STREAM

# Words of a block of Philox, and the largest number of words of a node: with more, the block number would overflow.
_WORDS, _MOST_WORDS = 4, 1 << 34


class _Drawing(NamedTuple):
    """The random elements of a node. each: number of elements per thread. rng: position of the generator's operand."""

    source: Draw
    elements: int
    each: int
    rng: int

    def launch(self, name: str, given: Given, lines: Sequence[str]) -> Launch:
        """Return the launch with these lines, which compute `left` elements, beginning with element `at`."""
        count = Coordinates("i", 1, self.elements + _WORDS * THREADS < 1 << 31)
        index = count.index
        given = [*given, *self._state(), (f"{index} count", count.number(self.elements))]
        place = [
            f"const {index} block = ({index})gk_block * {THREADS}u + threadIdx.x;",
            f"const {index} at = block * {self.each}u;",
            "if (at >= count) {",
            "    return;",
            "}",
            f"const int left = count - at < {self.each}u ? (int)(count - at) : {self.each};",
        ]
        source = source_of(name, [text for text, _ in given], [*place, *lines])
        return Launch(source, -(-self.elements // (THREADS * self.each)), tuple(value for _, value in given))

    def _state(self) -> Given:
        if self.source.has_operand:
            state: Given = [("const gk_u64* rng", Input(self.rng))]
        else:
            state = [("gk_u64 seed", np.uint64(self.source.seed)), ("gk_u64 step", np.uint64(self.source.step))]
        return [*state, ("gk_u32 stream", np.uint32(self.source.stream))]

    @property
    def words(self) -> str:
        """The expression of the thread's block of random words."""
        state = "rng[0], rng[1]" if self.source.has_operand else "seed, step"
        return f"gk_philox({state}, stream, (gk_u32)block)"


def _drawing(node: Node, source: Draw | None, elements: int, bits: int, rng: int) -> _Drawing | None:
    """Return the random elements of a node; None if the node has its own seed, or needs too many words.

    bits: number of random bits of an element, 24 or 53.
    """
    words = 1 if bits == 24 else 2
    if source is None or elements * words > _MOST_WORDS:
        return None
    return _Drawing(source, elements, _WORDS // words, rng)


def _bits(dtype: DType) -> int:
    return 53 if dtype is DType.FLOAT64 else 24


def _fill(node: Node, normal: bool, rng: int) -> CardKernel | None:
    y = node.output
    elements = math.prod(y.tensor.static_shape)
    drawing = _drawing(node, draw(node), elements, _bits(y.dtype), rng)
    if drawing is None or y.dtype not in STORED:
        return None
    if elements == 0:
        return CardKernel(())
    kind, each, wide = STORED[y.dtype], drawing.each, y.dtype is DType.FLOAT64
    if not normal:
        number = "gk_fraction53(w.w[2 * k], w.w[2 * k + 1])" if wide else "gk_fraction24(w.w[k])"
        numbers = []
    elif wide:
        number, numbers = "z[k]", ["double z[2];", "gk_normals(w, z);"]
    else:
        number = "(double)z[k]"
        numbers = ["float z[4];", "gk_normals(w.w[0], w.w[1], z);", "gk_normals(w.w[2], w.w[3], z + 2);"]
    lines = [
        f"const gk_words w = {drawing.words};", *numbers,
        f"{kind} r[{each}];",
        "#pragma unroll", f"for (int k = 0; k < {each}; ++k) {{",
        f"    gk_round_to(r[k], first + second * {number});",
        "}",
        f"gk_run<{kind}, {each}>::store(y + at, left, r);",
    ]  # fmt: skip
    first, second = map(np.float64, linear(node))
    given: Given = [(f"{kind}* y", Output(0)), ("double first", first), ("double second", second)]
    return CardKernel((drawing.launch("normal" if normal else "uniform", given, lines),))


def _register(name: str, normal: bool) -> None:
    @launched(name)
    def of_shape(node: Node, context: KernelContext) -> CardKernel | None:
        return _fill(node, normal, rng=0)

    @launched(f"{name}Like")
    def like(node: Node, context: KernelContext) -> CardKernel | None:
        return _fill(node, normal, rng=1)


_register("RandomUniform", normal=False)
_register("RandomNormal", normal=True)


def _held(dtype: DType) -> str:
    """Return the C type in which elements are computed."""
    return STORED[held_type(dtype)]


@launched("Bernoulli")
def _bernoulli(node: Node, context: KernelContext) -> CardKernel | None:
    x, y = node.inputs[0], node.output
    assert x is not None
    elements = math.prod(x.tensor.static_shape)
    drawing = _drawing(node, draw(node), elements, _bits(x.dtype), 1)
    if drawing is None or x.dtype not in STORED or y.dtype not in STORED:
        return None
    if elements == 0:
        return CardKernel(())
    source, target, each = STORED[x.dtype], STORED[y.dtype], drawing.each
    number = "gk_fraction53(w.w[2 * k], w.w[2 * k + 1])" if each == 2 else "gk_fraction24(w.w[k])"
    # A float represents a fraction of 24 bits exactly.
    lines = [
        f"typedef {_held(x.dtype)} A;",
        f"const gk_words w = {drawing.words};",
        f"{source} p[{each}];", f"{target} r[{each}];",
        f"gk_run<{source}, {each}>::load(x + at, left, p);",
        "#pragma unroll", f"for (int k = 0; k < {each}; ++k) {{",
        f"    gk_write(r[k], ({_held(y.dtype)})((A){number} < gk_read(p[k])));",
        "}",
        f"gk_run<{target}, {each}>::store(y + at, left, r);",
    ]  # fmt: skip
    given: Given = [(f"const {source}* x", Input(0)), (f"{target}* y", Output(0))]
    return CardKernel((drawing.launch("bernoulli", given, lines),))


@launched("Dropout")
def _dropout(node: Node, context: KernelContext) -> CardKernel | None:
    x, ratio = operand(node, 0), operand(node, 1)
    assert x is not None
    elements = math.prod(x.tensor.static_shape)
    drawing = _drawing(node, dropout_draw(node), elements, 24, 3)
    known = [v.dtype for v in (x, ratio) if v is not None]
    if drawing is None or not all(kind in STORED and kind in FLOATS for kind in known):
        return None
    y, mask = (*context.used_outputs, True, True)[: len(node.outputs)]
    if elements == 0 or not (y or mask):
        return CardKernel(())
    kind, each = STORED[x.dtype], drawing.each
    given: Given = [(f"const {kind}* x", Input(0)), (f"{kind}* y", Output(0))] if y else []
    given += [("gk_u8* mask", Output(1))] if mask else []
    lines = [f"typedef {_held(x.dtype)} A;"]
    if y:
        lines += [f"{kind} r[{each}];", f"gk_run<{kind}, {each}>::load(x + at, left, r);"]
    lines += [f"gk_u8 kept[{each}];", "#pragma unroll", f"for (int k = 0; k < {each}; ++k) {{", "    kept[k] = 1;", "}"]
    faulty = False
    if not never_trains(node):
        given.append(("const gk_u8* training", Input(2)))
        rate, lines_of_rate, faulty = _rate(ratio, given)
        lines += ["if (*training) {", *("    " + line for line in [*lines_of_rate, *_dropped(drawing, rate, y)]), "}"]
    lines += [f"gk_run<{kind}, {each}>::store(y + at, left, r);"] if y else []
    lines += [f"gk_run<gk_u8, {each}>::store(mask + at, left, kept);"] if mask else []
    fault = "the ratio is outside [0, 1]" if faulty else ""
    return CardKernel((drawing.launch("dropout", given, lines),), inplace=((0, 0),), fault=fault)


def _rate(ratio: Value | None, given: Given) -> tuple[str, list[str], bool]:
    """Return the expression of the ratio, lines that set the fault if it is invalid, and whether they may set it."""
    if ratio is None:
        return "0.5", [], False
    given += [(f"const {STORED[ratio.dtype]}* ratio", Input(1)), ("unsigned* fault", Fault())]
    lines = [
        "const double rate = gk_read(*ratio);",
        "if (!(rate >= 0 && rate <= 1)) {",
        "    *fault = 1;",
        "    return;",
        "}",
    ]
    return "rate", lines, True


def _dropped(drawing: _Drawing, rate: str, y: bool) -> list[str]:
    """Return lines that drop elements: they clear them in `kept` and, if `y`, in `r`, and scale the others.

    The lines compare integers, which is exact, because the random fractions have 24 bits.
    """
    drop = [
        "const A x = gk_read(r[k]);",
        "gk_write(r[k], kept[k] ? x * scale : (A)0);",
    ]
    return [
        f"const gk_u32 least = (gk_u32)ceil({rate} * 0x1p24);",
        *([f"const A scale = (A)({rate} == 1 ? 0.0 : 1.0 / (1.0 - {rate}));"] if y else []),
        f"const gk_words w = {drawing.words};",
        "#pragma unroll",
        f"for (int k = 0; k < {drawing.each}; ++k) {{",
        "    kept[k] = w.w[k] >> 8 >= least;",
        *(("    " + line for line in drop) if y else ()),
        "}",
    ]


@launched("RngFoldIn", DOMAIN)
def _rng_fold_in(node: Node, context: KernelContext) -> CardKernel | None:
    """Return the kernel of RngFoldIn. Only one thread computes."""
    index = node.inputs[1]
    assert index is not None
    if math.prod(index.tensor.static_shape) != 1:
        return None
    parameters = ["const gk_u64* rng", f"const {STORED[index.dtype]}* index", "gk_u64* y", "gk_u32 stream"]
    lines = [
        "if (threadIdx.x == 0) {",
        "    const gk_words w = gk_philox(rng[0], rng[1], stream, (gk_u32)*index);",
        "    y[0] = w.w[0] | (gk_u64)w.w[1] << 32;",
        "    y[1] = w.w[2] | (gk_u64)w.w[3] << 32;",
        "}",
    ]
    source = source_of("fold_in", parameters, lines)
    return CardKernel((Launch(source, 1, (Input(0), Input(1), Output(0), np.uint32(FOLD_STREAM))),))
