"""Col2Im adds the columns of a matrix up to an image of sliding windows; Im2Col is its adjoint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, NUMERIC, TensorType
from graphkit.ops._base import DOMAIN, F, Onnx, Op, Sample, op
from graphkit.ops.axes import INT64, fresh_shape, i64, length_of
from graphkit.ops.nn.sliding_window import Window, pad_spatial, taps

# (image, block, attributes) of the samples of both directions
_CASES: tuple[tuple[tuple[int, ...], np.ndarray, dict[str, Any]], ...] = (
    ((5, 5), i64(1, 5), {}),
    ((5, 6), i64(2, 3), {"pads": (1, 0, 1, 2), "strides": (2, 1)}),
    ((6, 6), i64(2, 2), {"dilations": (1, 3), "strides": (2, 2)}),
    ((3, 4, 4), i64(2, 1, 2), {"strides": (1, 2, 1)}),
)


class ColumnBlocks(Op):
    """The window, with its ONNX attributes; `block` is the operand with its size."""

    dilations: tuple[int, ...] | None = None
    pads: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None

    def attrs(self) -> dict[str, Any]:
        return {"dilations": self.dilations, "pads": self.pads, "strides": self.strides}

    def window(self, image: Sequence[Dim], block: Sequence[Dim]) -> tuple[Window, tuple[Dim, ...]]:
        """Return the window over an image of these sizes, and its number of positions per axis. Raises TypeMismatch."""
        rank = len(image)
        strides, dilations = self.strides or (1,) * rank, self.dilations or (1,) * rank
        pads = self.pads or (0,) * (2 * rank)
        if (len(block), len(strides), len(dilations), len(pads)) != (rank, rank, rank, 2 * rank):
            raise TypeMismatch(
                f"an image with {rank} spatial axes needs {rank} block sizes, {rank} strides, {rank} dilations and "
                f"{2 * rank} pads, not {len(block)}, {len(strides)}, {len(dilations)} and {len(pads)}"
            )
        window = Window(tuple(block), strides, dilations, pads[:rank], pads[rank:])
        positions = []
        for n, begin, end, span, stride in zip(image, window.begin, window.end, window.span, strides, strict=True):
            free = n + begin + end - span
            if dims.is_static(free) and free < 0:
                raise TypeMismatch(
                    f"the block spans {span} elements of an axis, which has only {n + begin + end}: {n} and the pads "
                    f"{begin} and {end}"
                )
            positions.append(dims.floordiv(free, stride) + 1)
        return window, tuple(positions)


def _known(vector: TensorType) -> tuple[Dim, ...] | None:
    """Return the elements of a vector of sizes, new symbols for unknown ones; None if the length is unknown."""
    return vector.value if vector.value is not None else fresh_shape(length_of(vector))


def _block_of(block: Any) -> list[int]:
    return [int(b) for b in block]


@op
class Col2Im(ColumnBlocks):
    """Add the columns of x to an image: each column is one block of elements. Blocks may overlap. (PyTorch's fold.)

    x: [N, C * prod(block_shape), L], one column for each of the L positions of the block, in row-major order; the
    result is [N, C, *image_shape]. image_shape, block_shape: int64 vectors. Elements that fall into the padding are
    dropped. dilations, pads and strides are those of Conv.
    """

    inputs = ("x", "image_shape", "block_shape")
    types = {"x": NUMERIC, "image_shape": INT64, "block_shape": INT64}
    onnx = Onnx("Col2Im", since=18)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        return tuple(
            Sample(_columns_shape((2, 2, *image), block, attrs), i64(*image), block, **attrs)
            for image, block, attrs in _CASES
        )

    def infer(self, x: TensorType, image_shape: TensorType, block_shape: TensorType) -> TensorType:
        if x.shape is not None and len(x.shape) != 3:
            raise TypeMismatch(f"columns {x} are not [N, C * block, L]")
        image, block = _known(image_shape), _known(block_shape)
        if image is None or block is None:
            return TensorType(x.dtype)
        if len(image) != len(block):
            raise TypeMismatch(f"block_shape has {len(block)} sizes, but image_shape has {len(image)}")
        _, positions = self.window(image, block)
        size = dims.product(block)
        batch, rows, count = (dims.fresh(), dims.fresh(), dims.fresh()) if x.shape is None else x.shape
        if dims.is_static(rows) and dims.is_static(size) and rows % size:
            raise TypeMismatch(f"{rows} rows of {x} are not whole blocks of {size}")
        if not dims.may_equal(count, dims.product(positions)):
            raise TypeMismatch(f"{x} has {count} columns for {dims.product(positions)} positions of the block")
        return TensorType(x.dtype, (batch, dims.floordiv(rows, size), *image))

    def reference(self, xp: Any, x: Any, image_shape: Any, block_shape: Any) -> Any:
        image, block = _block_of(image_shape), _block_of(block_shape)
        window, positions = self.window(image, block)
        channels = x.shape[1] // math.prod(block)
        parts = x.reshape(x.shape[0], channels, *block, *positions)
        padded = [n + b + e for n, b, e in zip(image, window.begin, window.end, strict=True)]
        total = xp.zeros((x.shape[0], channels, *padded), dtype=x.dtype)
        for offset, index in taps(window, positions):  # type: ignore[arg-type]
            total[index] += parts[(slice(None), slice(None), *offset)]
        inner = tuple(slice(b, b + n) for b, n in zip(window.begin, image, strict=True))
        return xp.ascontiguousarray(total[(..., *inner)])

    def grad(self, node: Node, dy: Any) -> Any:
        return F.im2_col(dy, node.operands[2], **self.attrs()), None, None


@op
class Im2Col(ColumnBlocks):
    """Return the block of an image at each position as a column: the adjoint of Col2Im. (PyTorch's unfold.)

    x: [N, C, *image]; block_shape: an int64 vector; the result is [N, C * prod(block_shape), L], where L is the number
    of positions of the block. dilations, pads and strides are those of Conv.
    """

    domain = DOMAIN
    inputs = ("x", "block_shape")
    types = {"x": FLOATS, "block_shape": INT64}
    samples = lambda: tuple(Sample((2, 2, *image), block, **attrs) for image, block, attrs in _CASES)

    def infer(self, x: TensorType, block_shape: TensorType) -> TensorType:
        block = _known(block_shape)
        if x.shape is None or block is None:
            return TensorType(x.dtype, (dims.fresh(), dims.fresh(), dims.fresh()))
        if len(x.shape) != len(block) + 2:
            raise TypeMismatch(
                f"block_shape has {len(block)} sizes, one for each spatial axis, so x must have {len(block) + 2} axes, "
                f"but is {x}"
            )
        _, positions = self.window(x.shape[2:], block)
        return TensorType(x.dtype, (x.shape[0], x.shape[1] * dims.product(block), dims.product(positions)))

    def reference(self, xp: Any, x: Any, block_shape: Any) -> Any:
        block = _block_of(block_shape)
        window, positions = self.window(x.shape[2:], block)
        padded = pad_spatial(xp, x, window.begin, window.end)
        parts = xp.empty((*x.shape[:2], *block, *positions), dtype=x.dtype)
        for offset, index in taps(window, positions):  # type: ignore[arg-type]
            parts[(slice(None), slice(None), *offset)] = padded[index]
        return parts.reshape(x.shape[0], x.shape[1] * math.prod(block), math.prod(positions))

    def grad(self, node: Node, dy: Any) -> Any:
        x, block = node.operands
        return F.col2_im(dy, F.shape(x, start=2), block, **self.attrs()), None

    def expand(self, x: Any, block_shape: Any) -> Any:
        """Build a convolution, with channels as images: each filter has one weight 1, for one element of the block."""
        if x.rank is None:
            raise UnsupportedError(f"Im2Col in standard operators needs an operand of known rank, not {x}")
        size = F.reduce_prod(block_shape, keepdims=True)
        identity = F.eye_like(F.constant_of_shape(F.concat(size, size, axis=0), value=np.zeros(1, x.dtype.numpy)))
        weights = F.reshape(identity, F.concat(size, i64(1), block_shape, axis=0))
        images = F.reshape(x, F.concat(i64(-1, 1), F.shape(x, start=2), axis=0))
        columns = F.conv(images, weights, **self.attrs())
        rows = F.mul(F.shape(x, start=1, end=2), size)
        return F.reshape(columns, F.concat(F.shape(x, start=0, end=1), rows, i64(-1), axis=0))


def _columns_shape(x: tuple[int, ...], block: np.ndarray, attrs: dict[str, Any]) -> tuple[int, ...]:
    known = TensorType("int64", block.shape, tuple(_block_of(block)))
    return Im2Col(**attrs).infer(TensorType("float32", x), known).static_shape
