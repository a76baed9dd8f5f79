"""The gradients of attention on tensor cores, in float16, bfloat16 or TF32, with the tiles of `backward`.

A block computes 64 rows of a gradient, with two warps for each 16 rows. For each tile of other rows, each of the two
warps computes the weights (or gradients of scores) of one half. They are rounded to the type of the operands and shared
through shared memory. Then each warp adds the rows of the tile to its half of the columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.executor.devices.cuda.attention.backward import Backward
from graphkit.executor.devices.cuda.attention.sizes import AttentionSizes
from graphkit.executor.devices.cuda.attention.tensor import (
    NARROW,
    SIDE,
    WIDEST,
    TensorTiles,
    padded,
)
from graphkit.executor.devices.cuda.attention.tiles import BESIDE
from graphkit.executor.devices.cuda.launches import Launch, source_of
from graphkit.executor.devices.cuda.text.lines import indented
from graphkit.ir.types import HALVES, DType

# Rows of a block. Each of four pairs of warps has SIDE of them.
_TALL = 4 * SIDE


@dataclass(frozen=True)
class TensorBackward(Backward, TensorTiles):
    """The kernel on tensor cores. `of` must be supported (see `computes`)."""

    @staticmethod
    def computes(of: AttentionSizes, tf32: bool) -> bool:
        """Whether this kernel supports an attention. tf32: float32 elements may be rounded to TF32."""
        known = of.kind in HALVES or (tf32 and of.kind is DType.FLOAT32)
        return known and all(0 < columns <= WIDEST // of.kind.itemsize for columns in (of.depth, of.width))

    @property
    def keys(self) -> int:
        """Number of rows of the tiles over which a block iterates: as many as shared memory and registers hold."""
        if max(padded(self.of.depth), padded(self.of.width)) * self.of.kind.itemsize > WIDEST // 2:
            return 16
        return 64 if self.of.short and self.of.kind in HALVES else 32

    @property
    def pad(self) -> int:
        """Padding of rows in shared memory, in elements, so that lanes read from different banks."""
        return 16 // self.of.kind.itemsize

    @property
    def half(self) -> int:
        """Number of columns of the result that a warp computes."""
        return padded(self.wide) // 2

    @property
    def tiles(self) -> int:
        """Number of tiles of NARROW columns in a warp's half of the weights."""
        return self.keys // 2 // NARROW

    def launch(self) -> Launch:
        given = self.given(chunks=1)
        name, end = self.other
        lines = [
            *self.place(_TALL, 2 * self.half), *self._state(),
            f"for ({self.index} {name} = first; {name} < {end}; {name} += {self.keys}u) {{",
            *indented([*self._near(), *self._products(), *self._weights(), *self._added()]), "}",
            *self._stores(),
        ]  # fmt: skip
        blocks = -(-self.count // _TALL) * self.of.batch * self.of.heads
        source = source_of(f"attention_gradient_{self.wanted}_tensor", [text for text, _ in given], lines, BESIDE)
        return Launch(source, blocks, tuple(argument for _, argument in given))

    # --- lines ----------------------------------------------------------------------------------------

    def _state(self) -> list[str]:
        """Return lines that declare shared memory and the lane's result, and read the block's rows and statistics."""
        of, tiles = self.of, self.half // NARROW
        sizes = (("depth", of.depth), ("width", of.width))
        lines = [
            f"const unsigned line = thread / 32u % 4u * {SIDE}u + thread % 32u / 4u, pair = thread % 4u * 2u;",
            f"const unsigned half = thread / 128u, half0 = half * {self.keys // 2}u;",
            f"alignas(16) __shared__ T handed[{_TALL}][{self.keys + self.pad}];",
        ]
        for i, (_, size) in enumerate(sizes):
            lines.append(f"alignas(16) __shared__ T near{i}[{self.keys}][{padded(size) + self.pad}];")
        for i, (name, (columns, size)) in enumerate(zip(self.factors, sizes, strict=False)):
            lines.append(f"alignas(16) __shared__ T rows{i}[{_TALL}][{padded(size) + self.pad}];")
            lines += self.copied(f"rows{i}", (name, *self.mine), _TALL, columns, size)
        if self.of_queries:
            lines += [
                "A base[2], share[2], sum[2];",
                "#pragma unroll",
                "for (int i = 0; i < 2; ++i) {",
                f"    const {self.index} row = row0 + line + 8u * i;",
                *indented(self.numbers_of("i")),
                "}",
            ]
        else:
            lines.append(f"__shared__ A base[{self.keys}], share[{self.keys}], sum[{self.keys}];")
        return [
            *lines,
            f"A result[{tiles}][4];",
            "#pragma unroll",
            f"for (int n = 0; n < {tiles}; ++n) {{",
            "    result[n][0] = result[n][1] = result[n][2] = result[n][3] = 0;",
            "}",
        ]

    def _near(self) -> list[str]:
        """Return lines that copy the rows of a tile to shared memory."""
        names = (self.other_factors[0], "v" if self.of_queries else "dy")
        sizes = (("depth", self.of.depth), ("width", self.of.width))
        # Wait until the rows of the previous tile have been added.
        lines = ["__syncthreads();"]
        for i, (name, (columns, size)) in enumerate(zip(names, sizes, strict=True)):
            lines += self.copied(f"near{i}", (name, *self.other), self.keys, columns, size)
        if not self.of_queries:
            lines += [
                f"if (thread < {self.keys}u) {{",
                f"    const {self.index} row = row0 + thread;",
                *indented(self.numbers_of("thread")),
                "}",
            ]
        return [*lines, "__syncthreads();"]

    def _products(self) -> list[str]:
        lines = self.product("scores", "rows0", "(near0 + half0)", self.of.depth, self.tiles)
        if self.wanted == "v":
            return lines
        return lines + self.product("spreads", "rows1", "(near1 + half0)", self.of.width, self.tiles)

    def _weights(self) -> list[str]:
        """Return lines that compute the warp's weights, and write them to shared memory."""
        index = self.index
        mine = f"const {index} {'row' if self.of_queries else 'key'} = {self.mine[0]} + line + 8u * i;"
        other = f"const {index} {'key' if self.of_queries else 'row'} = {self.other[0]} + place;"
        number = "i" if self.of_queries else "place"
        element = "[j / 2][i * 2 + j % 2]"
        return [
            "#pragma unroll",
            "for (int i = 0; i < 2; ++i) {",
            f"    {mine}",
            "    #pragma unroll",
            f"    for (int j = 0; j < {2 * self.tiles}; ++j) {{",
            "        const unsigned place = half0 + j / 2 * 8u + pair + j % 2;",
            f"        {other}",
            *indented(indented(self.weighted(f"scores{element}", f"spreads{element}", number))),
            f"        scores{element} = weight;",
            "    }",
            "    #pragma unroll",
            f"    for (int n = 0; n < {self.tiles}; ++n) {{",
            "        T low, high;",
            "        gk_write(low, scores[n][i * 2]);",
            "        gk_write(high, scores[n][i * 2 + 1]);",
            "        gk_put_two(&handed[line + 8u * i][half0 + n * 8u + pair], gk_factor(low), gk_factor(high));",
            "    }",
            "}",
            "__syncthreads();",
        ]

    def _added(self) -> list[str]:
        """Return lines that add the rows of a tile, times their weights, to the warp's half of the columns."""
        near = "near1" if self.wanted == "v" else "near0"
        stride = padded(self.wide) + self.pad
        return [
            "#pragma unroll",
            f"for (unsigned s = 0; s < {self.keys}u; s += {self.terms}u) {{",
            "    gk_u32 a[4];",
            "    gk_rows(a, &handed[line][s + pair], &handed[line + 8u][s + pair]);",
            "    #pragma unroll",
            f"    for (unsigned n = 0; n < {self.half // NARROW}u; ++n) {{",
            f"        const T* first = &{near}[s + pair][half * {self.half}u + n * 8u + thread % 32u / 4u];",
            "        gk_u32 b[2];",
            f"        gk_column(b, first, {stride}u);",
            "        gk_multiply(result[n], a, b, T());",
            "    }",
            "}",
        ]

    def _stores(self) -> list[str]:
        pack = 2 if self.wide % 2 == 0 else 1
        factor = "" if self.wanted == "v" else " * scale"
        return [
            "#pragma unroll",
            "for (int i = 0; i < 2; ++i) {",
            f"    const {self.index} row = {self.mine[0]} + line + 8u * i;",
            f"    if (row >= {self.mine[1]}) {{",
            "        break;",
            "    }",
            "    #pragma unroll",
            f"    for (int j = 0; j < {self.half // 4}; j += {pack}) {{",
            f"        const {self.index} column = half * {self.half}u + j / 2 * 8u + pair + j % 2;",
            f"        if (column < {self.columns_of_result}) {{",
            f"            gk_pack<T, {pack}> done;",
            "            #pragma unroll",
            f"            for (int e = 0; e < {pack}; ++e) {{",
            f"                gk_write(done.e[e], result[j / 2][i * 2 + j % 2 + e]{factor});",
            "            }",
            f"            gk_store<T, {pack}>(to + row * torow + column, done, {pack});",
            "        }",
            "    }",
            "}",
        ]
