"""Depthwise convolutions (one filter per channel) and their gradients.

If filters are narrow, a thread computes ACROSS adjacent results of a line (for several channels, if channels are last),
and reads elements that their windows share only once. Otherwise, it computes one result, or one element of the gradient
of x from the windows that contain it.

In the gradient of w, a block sums one filter over a slice of all positions; with channels last, one filter for each
thread of a warp. A thread keeps a complete filter in registers. A second launch adds slices. The order of sums depends
only on the sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from graphkit.executor.devices.cuda.launches import (
    THREADS,
    Argument,
    CardKernel,
    Input,
    Launch,
    Output,
    Scratch,
    source_of,
)
from graphkit.executor.devices.cuda.text.expressions import STORED
from graphkit.executor.devices.cuda.text.indexing import Coordinates, for_each
from graphkit.executor.devices.cuda.text.joining import WARP
from graphkit.executor.devices.cuda.text.lines import indented
from graphkit.executor.devices.cuda.windows.epilogues import NOTHING, Finish
from graphkit.executor.devices.cuda.windows.windows import Windows, nested
from graphkit.ir.types import DType

# Adjacent results of a thread in a line, and the largest filter and stride along it, so that windows fit in registers.
ACROSS, _WIDEST, _FARTHEST = 4, 9, 2
# The most elements of a filter for which a thread keeps sums, blocks that occupy a GPU, and the least positions of a
# thread.
_KEPT, _BUSY, _LEAST = 25, 512, 4
# The most channels of a thread, if channels are last.
_BESIDE = 4


def forward(windows: Windows, kind: DType, held: DType, finish: Finish = NOTHING) -> CardKernel:
    """Return the kernel of a convolution. The first operands are x: [N, C, *spatial] and w: [C, 1, *kernel].

    kind: element type in memory. held: type of sums. w has this layout even if `windows` has the channels last.
    """
    if _is_narrow(windows):
        return CardKernel((_narrow(windows, kind, held, finish, mirrored=False),), inplace=finish.inplace)
    given, lines = _one(windows, kind, held, finish, windows.elements_of)
    return CardKernel((windows.over_y("depthwise", given, lines),), inplace=finish.inplace)


def by_data(windows: Windows, kind: DType, held: DType, finish: Finish = NOTHING) -> CardKernel:
    """Return the kernel of the gradient of x. The first operands are dy: [N, C, *positions] and w: [C, 1, *kernel].

    windows: those of the convolution.
    """
    w = windows.window
    if all(s == 1 for s in w.strides):
        # With stride 1, the gradient is the convolution of dy with the mirrored filters.
        begin = tuple(span - 1 - b for span, b in zip(w.span, w.begin, strict=True))
        mirrored = replace(
            windows, spatial=windows.positions, positions=windows.spatial, window=w._replace(begin=begin)
        )
        if _is_narrow(mirrored):
            return CardKernel((_narrow(mirrored, kind, held, finish, mirrored=True),))
    given, lines = _one(windows, kind, held, finish, windows.around)
    return CardKernel((windows.over_x("depthwise_grad_data", given, lines),))


def _operands(windows: Windows, kind: DType) -> list[tuple[str, Argument]]:
    """Return the parameters of a convolution or gradient. x: the array with windows, or dy. y: the result."""
    index, number = windows.places.index, windows.places.number
    return [
        (f"const {STORED[kind]}* x", Input(0)), (f"const {STORED[kind]}* w", Input(1)),
        (f"{STORED[kind]}* y", Output(0)), (f"{index} channels", number(windows.channels)),
        (f"{index} filter", number(windows.elements)),
    ]  # fmt: skip


def _one(
    windows: Windows, kind: DType, held: DType, finish: Finish, over: Callable[[Sequence[str]], list[str]]
) -> tuple[list[tuple[str, Argument]], list[str]]:
    """Return parameters and lines of a thread that computes one result: a sum in the loops that `over` returns."""
    tap = f"channel * filter + {windows.number_in_window()}"
    lines = [
        f"typedef {STORED[held]} A;", *_channel(windows), "A v = 0;",
        *over([f"v = gk_mul_add((A)gk_read(x[from]), (A)gk_read(w[{tap}]), v);"]),
        f"const {windows.places.index} to = at;", *finish.lines, "gk_write(y[at], v);",
    ]  # fmt: skip
    return [*_operands(windows, kind), *finish.given], lines


def _channel(windows: Windows) -> list[str]:
    return [f"const {windows.places.index} channel = {'within' if windows.last else 'plane % channels'};"]


# --- lines --------------------------------------------------------------------------------------------


def _is_narrow(windows: Windows) -> bool:
    w = windows.window
    return bool(w.kernel[-1] <= _WIDEST and w.strides[-1] <= _FARTHEST and w.dilations[-1] == 1)


def _narrow(windows: Windows, kind: DType, held: DType, finish: Finish, *, mirrored: bool) -> Launch:
    """Return the launch in which a thread computes ACROSS results of a line. mirrored: read filters backwards."""
    return (_lines_beside if windows.last else _lines)(windows, kind, held, finish, mirrored=mirrored)


def _lines(windows: Windows, kind: DType, held: DType, finish: Finish, *, mirrored: bool) -> Launch:
    """Return the launch of `_narrow` for channels first."""
    line = windows.positions[-1]
    groups = replace(windows, positions=(*windows.positions[:-1], -(-line // ACROSS)), each=ACROSS)
    last, index, signed = groups.axes[-1], groups.places.index, groups.signed
    width, stride = groups.window.kernel[-1], groups.window.strides[-1]
    outer = list(groups.axes[:-1])
    before = [text for a in outer for text in groups.begun(a)]
    loops: list[tuple[str, list[str]]] = [(f"{signed} k{a} = first{a}; k{a} < last{a}; ++k{a}", []) for a in outer]
    place = "filter - 1 - (tap + k)" if mirrored else "tap + k"
    offset = "".join(f" + ({index})({groups.place(a)}) * xstep{a}" for a in outer)
    body = [
        f"const {STORED[kind]}* line = x + (plane * xplane{offset});",
        f"const {index} tap = ({index})({groups.number_along(outer)}) * {width}u;",
        f"A near[{(ACROSS - 1) * stride + width}];",
        "#pragma unroll",
        f"for (int k = 0; k < {(ACROSS - 1) * stride + width}; ++k) {{",
        f"    const bool inside = ({index})(start{last} + k) < ({index})size{last};",
        f"    near[k] = inside ? (A)gk_read(line[start{last} + k]) : (A)0;",
        "}",
        "#pragma unroll",
        f"for (int k = 0; k < {width}; ++k) {{",
        f"    const A f = gk_read(w[channel * filter + {place}]);",
        "    #pragma unroll",
        f"    for (int j = 0; j < {ACROSS}; ++j) {{",
        f"        sums[j] = gk_mul_add(near[j * {stride} + k], f, sums[j]);",
        "    }",
        "}",
    ]
    pack = min(ACROSS, 16 // kind.itemsize)
    each = ["A v = sums[j];", f"const {index} to = begin_of + j;", *finish.lines]
    lines = [
        f"typedef {STORED[held]} A;", *_channel(groups),
        f"const {signed} start{last} = p{last} * {ACROSS * stride} - begin{last};", *before,
        f"A sums[{ACROSS}] = {{}};", *nested(loops, body),
        f"const {index} begin_of = {groups.places.line} * line_of + p{last} * {ACROSS}u;",
    ]  # fmt: skip
    if line % ACROSS == 0:
        lines += [
            f"gk_pack<{STORED[kind]}, {pack}> done[{ACROSS // pack}];",
            "#pragma unroll",
            f"for (int j = 0; j < {ACROSS}; ++j) {{",
            *("    " + text for text in each), f"    gk_write(done[j / {pack}].e[j % {pack}], v);", "}",
            "#pragma unroll",
            f"for (int j = 0; j < {ACROSS}; j += {pack}) {{",
            f"    gk_store<{STORED[kind]}, {pack}>(y + begin_of + j, done[j / {pack}], {pack});", "}",
        ]  # fmt: skip
    else:
        lines += [
            "#pragma unroll",
            f"for (int j = 0; j < {ACROSS}; ++j) {{",
            f"    if (p{last} * {ACROSS} + j >= ({signed})line_of) {{", "        break;", "    }",
            *("    " + text for text in each), "    gk_write(y[to], v);", "}",
        ]  # fmt: skip
    given = [*_operands(groups, kind), *finish.given, (f"{index} line_of", groups.places.number(line))]
    return groups.over_y("depthwise_lines", given, lines)


def _lines_beside(windows: Windows, kind: DType, held: DType, finish: Finish, *, mirrored: bool) -> Launch:
    """Return the launch of `_narrow` for channels last. A thread computes several adjacent channels."""
    line, channels = windows.positions[-1], windows.channels
    beside = math.gcd(channels, min(_BESIDE, 16 // held.itemsize))
    short = (*windows.positions[:-1], -(-line // ACROSS))
    groups = replace(windows, positions=short, each=ACROSS, beside=beside)
    last, index, signed = groups.axes[-1], groups.places.index, groups.signed
    width, stride = groups.window.kernel[-1], groups.window.strides[-1]
    outer = list(groups.axes[:-1])
    before = [text for a in outer for text in groups.begun(a)]
    loops: list[tuple[str, list[str]]] = [(f"{signed} k{a} = first{a}; k{a} < last{a}; ++k{a}", []) for a in outer]
    place = "filter - 1 - (tap + k)" if mirrored else "tap + k"
    offset = "".join(f" + ({index})({groups.place(a)}) * xstep{a}" for a in outer)
    pack = f"gk_pack<{STORED[kind]}, {beside}>"
    over_channels = ["#pragma unroll", f"for (int c = 0; c < {beside}; ++c) {{"]
    body = [
        f"const {STORED[kind]}* line = x + (plane * xplane + within{offset});",
        f"const {index} tap = ({index})({groups.number_along(outer)}) * {width}u;",
        f"A near[{(ACROSS - 1) * stride + width}][{beside}];",
        "#pragma unroll",
        f"for (int k = 0; k < {(ACROSS - 1) * stride + width}; ++k) {{",
        f"    {pack} p = {{}};",
        f"    if (({index})(start{last} + k) < ({index})size{last}) {{",
        f"        p = gk_load<{STORED[kind]}, {beside}>(line + ({index})(start{last} + k) * channels, {beside});",
        "    }",
        *indented([*over_channels, "    near[k][c] = gk_read(p.e[c]);", "}"]),
        "}",
        "#pragma unroll",
        f"for (int k = 0; k < {width}; ++k) {{",
        *indented(over_channels),
        f"        const A f = gk_read(w[(within + c) * filter + {place}]);",
        "        #pragma unroll",
        f"        for (int j = 0; j < {ACROSS}; ++j) {{",
        f"            sums[j][c] = gk_mul_add(near[j * {stride} + k][c], f, sums[j][c]);",
        "        }",
        "    }",
        "}",
    ]
    each = [
        "A v = sums[j][c];", f"const {index} channel = within + c, to = begin_of + j * channels + c;", *finish.lines,
        "gk_write(done.e[c], v);",
    ]  # fmt: skip
    guard = [f"if (p{last} * {ACROSS} + j >= ({signed})line_of) {{", "    break;", "}"] if line % ACROSS else []
    lines = [
        f"typedef {STORED[held]} A;",
        f"const {signed} start{last} = p{last} * {ACROSS * stride} - begin{last};", *before,
        f"A sums[{ACROSS}][{beside}] = {{}};", *nested(loops, body),
        f"const {index} line_number = {groups.places.line_along(1 + last)};",
        f"const {index} begin_of = (line_number * line_of + p{last} * {ACROSS}u) * channels + within;",
        "#pragma unroll",
        f"for (int j = 0; j < {ACROSS}; ++j) {{",
        *indented([*guard, f"{pack} done;", *over_channels, *indented(each), "}"]),
        f"    gk_store<{STORED[kind]}, {beside}>(y + begin_of + j * channels, done, {beside});",
        "}",
    ]  # fmt: skip
    given = [*_operands(groups, kind), *finish.given, (f"{index} line_of", groups.places.number(line))]
    return groups.over_y("depthwise_lines", given, lines)


# --- the gradient by weights --------------------------------------------------------------------------


def by_weights(windows: Windows, kind: DType, held: DType, result: DType) -> CardKernel | None:
    """Return the kernel of the gradient of w, [C, 1, *kernel] of type `result`; None for too large filters.

    The first operands are x: [N, C, *spatial] and dy: [N, C, *positions].
    """
    if windows.elements > _KEPT:
        return None
    count = windows.lead * math.prod(windows.positions)
    # Number of channels of a block. The threads of a channel share its positions.
    beside = WARP if windows.last else 1
    slices = max(min(-(-_BUSY // -(-windows.channels // beside)), count // (_LEAST * THREADS // beside)), 1)
    length = -(-count // slices)
    slices = -(-count // length)
    if slices == 1:
        return CardKernel((_filters(windows, kind, held, result, Output(0), 1, length),))
    total = windows.channels * windows.elements
    launches = (
        _filters(windows, kind, held, held, Scratch(0), slices, length),
        _added(total, slices, held, result),
    )
    return CardKernel(launches, slices * total * held.itemsize)


def _filters(windows: Windows, kind: DType, held: DType, into: DType, y: Argument, slices: int, length: int) -> Launch:
    """Return the launch of filters. A block sums a slice for one channel, or, with channels last, for WARP channels."""
    taps, axes, signed, last = windows.elements, windows.axes, windows.signed, windows.last
    places = Coordinates("r", 1 + len(windows.axes), windows.short)
    index = places.index
    found, (image, *at) = places.lines("r")
    if last:
        blocks = -(-windows.channels // WARP)
        place = [
            f"const {index} tiles = (channels + {WARP - 1}u) / {WARP}u, slice = gk_block / tiles;",
            f"const {index} channel = gk_block % tiles * {WARP}u + threadIdx.x % {WARP}u;",
            f"const {index} lane = threadIdx.x / {WARP}u, lanes = {THREADS // WARP}u;",
        ]
        bases = [
            f"const {index} base = {image} * xplane + channel;",
            "const A g = gk_read(dy[r * channels + channel]);",
        ]
    else:
        blocks = windows.channels
        place = [
            f"const {index} channel = gk_block % channels, slice = gk_block / channels;",
            f"const {index} lane = threadIdx.x, lanes = {THREADS}u;",
        ]
        bases = [
            f"const {index} plane = {image} * channels + channel, base = plane * xplane;",
            f"const A g = gk_read(dy[plane * yplane + (r - {image} * yplane)]);",
        ]
    lines = [
        f"typedef {STORED[held]} A;",
        *place,
        f"const {index} first = slice * length, end = count - first < length ? count : first + length;",
        f"A sums[{taps}] = {{}};",
        f"for ({index} r = first + lane; channel < channels && r < end; r += lanes) {{",
        *indented([
            *found,
            *(f"const {signed} start{a} = ({signed}){at[a]} * stride{a} - begin{a};" for a in axes),
            *bases, *_taken(windows),
        ]),
        "}",
        *(_together_beside(taps) if last else _together(taps)),
    ]  # fmt: skip
    given: list[tuple[str, Argument]] = [
        (f"const {STORED[kind]}* x", Input(0)), (f"const {STORED[kind]}* dy", Input(1)), (f"{STORED[into]}* y", y),
        *((f"{index} {name}", places.number(number)) for name, number in (
            ("channels", windows.channels), ("length", length),
            ("count", windows.lead * math.prod(windows.positions)),
        )),
        *windows.given(), *places.given((windows.lead, *windows.positions)),
    ]  # fmt: skip
    source = source_of("depthwise_grad_weights", [text for text, _ in given], lines)
    return Launch(source, blocks * slices, tuple(argument for _, argument in given))


def _taken(windows: Windows) -> list[str]:
    """Return lines that add `g` times the window at `start`, in the plane at `base`, to the sums of the filter."""
    axes, w, index = windows.axes, windows.window, windows.places.index
    offset = " + ".join(f"({index})place{a} * xstep{a}" for a in axes)
    number = "k0"
    for a in axes[1:]:
        number = f"({number}) * {w.kernel[a]} + k{a}"
    inside = " && ".join(f"({index})place{a} < ({index})size{a}" for a in axes)
    lines = [
        f"if ({inside}) {{",
        f"    sums[{number}] = gk_mul_add(g, (A)gk_read(x[base + {offset}]), sums[{number}]);",
        "}",
    ]
    far = [f" * {d}" if d > 1 else "" for d in w.dilations]
    for a in reversed(axes):
        lines = [
            "#pragma unroll",
            f"for (int k{a} = 0; k{a} < {w.kernel[a]}; ++k{a}) {{",
            f"    const {windows.signed} place{a} = start{a} + k{a}{far[a]};",
            *indented(lines),
            "}",
        ]
    return lines


def _together(taps: int) -> list[str]:
    """Return lines that add the sums of a block's threads, by shuffles and in the order of warps, and write them."""
    warps = THREADS // WARP
    return [
        f"__shared__ A parts[{taps}][{warps}];",
        "#pragma unroll",
        f"for (int k = 0; k < {taps}; ++k) {{",
        "    A sum = sums[k];",
        f"    for (int far = {WARP // 2}; far > 0; far /= 2) {{",
        "        sum += gk_shuffle_xor(sum, far);",
        "    }",
        f"    if (threadIdx.x % {WARP}u == 0) {{",
        f"        parts[k][threadIdx.x / {WARP}u] = sum;",
        "    }",
        "}",
        "__syncthreads();",
        f"if (threadIdx.x < {taps}u) {{",
        "    A sum = 0;",
        f"    for (int warp = 0; warp < {warps}; ++warp) {{",
        "        sum += parts[threadIdx.x][warp];",
        "    }",
        f"    gk_write(y[(slice * channels + channel) * {taps}u + threadIdx.x], sum);",
        "}",
    ]


def _together_beside(taps: int) -> list[str]:
    """Return lines that add the sums of a block's warps, in their order, and write them."""
    return [
        f"__shared__ A parts[{THREADS}];",
        "#pragma unroll",
        f"for (int k = 0; k < {taps}; ++k) {{",
        "    parts[threadIdx.x] = sums[k];",
        "    __syncthreads();",
        f"    if (threadIdx.x < {WARP}u && channel < channels) {{",
        "        A sum = 0;",
        f"        for (int warp = 0; warp < {THREADS // WARP}; ++warp) {{",
        f"            sum += parts[threadIdx.x + {WARP}u * warp];",
        "        }",
        f"        gk_write(y[(slice * channels + channel) * {taps}u + k], sum);",
        "    }",
        "    __syncthreads();",
        "}",
    ]


def _added(count: int, slices: int, held: DType, into: DType) -> Launch:
    """Return the launch that adds slices of `count` elements in scratch memory."""
    places = Coordinates("i", 1, count * slices + THREADS < 1 << 31)
    lines = [
        f"{STORED[held]} sum = 0;",
        f"for ({places.index} slice = 0; slice < slices; ++slice) {{",
        "    sum += parts[slice * count + at];",
        "}",
        "gk_write(y[at], sum);",
    ]
    given: list[tuple[str, Argument]] = [
        (f"const {STORED[held]}* parts", Scratch(0)), (f"{STORED[into]}* y", Output(0)),
        (f"{places.index} slices", places.number(slices)),
    ]  # fmt: skip
    return for_each("add_slices", (count,), places, given, lines)
