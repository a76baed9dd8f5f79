"""Elements repeated or in another order: tiling, blocks of channels as pixels, reversal of sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UsageError
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node
from graphkit.ir.types import ANY, MAX_KNOWN_ELEMENTS, TensorType
from graphkit.ops._base import F, Onnx, Op, Sample, op
from graphkit.ops.axes import INT64, contiguous, fresh_shape, i64, length_of, shape_text
from graphkit.ops.known_elements import index_array, known_array, moved


@op
class Tile(Op):
    """Repeat x `repeats[i]` times along axis i; repeats: int64 vector with one element per axis of x."""

    inputs = ("x", "repeats")
    types = {"x": ANY, "repeats": INT64}
    symbolic_inference = True
    onnx = Onnx("Tile", since=13)
    samples = lambda: (
        Sample((2, 3), i64(2, 2)),
        Sample((2, 3), i64(1, 3)),
        Sample((2, 1, 2), i64(3, 1, 2)),
        Sample((2, 3), i64(0, 2)),
        Sample((0, 2), i64(2, 1)),
    )

    def infer(self, x: TensorType, repeats: TensorType) -> TensorType:
        count = length_of(repeats)
        if x.shape is None:
            return TensorType(x.dtype, fresh_shape(count))
        if count is not None and count != len(x.shape):
            raise TypeMismatch(f"repeats needs one number per axis of {shape_text(x.shape)}; it has {count}")
        if repeats.value is None:
            return TensorType(x.dtype, fresh_shape(len(x.shape)))
        if not all(dims.may_reach(r, 0) for r in repeats.value):
            raise TypeMismatch(f"repeats must not be negative: {repeats}")
        shape = [size * r for size, r in zip(x.shape, repeats.value, strict=True)]
        size, value = dims.product(shape), None
        if dims.is_static(size) and size <= MAX_KNOWN_ELEMENTS:
            value = moved(self.reference, known_array(x), index_array(repeats))
        return TensorType(x.dtype, shape, value)

    def reference(self, xp: Any, x: Any, repeats: Any) -> Any:
        return xp.tile(x, tuple(repeats.tolist()))

    def grad(self, node: Node, dy: Any) -> Any:
        # In memory, the result is [r0, n0, r1, n1, ...]: sum over the copies r0, r1, ...
        x, repeats = node.operands
        pair = [F.unsqueeze(v, i64(1)) for v in (repeats, F.shape(x))]
        blocks = F.reshape(dy, F.reshape(F.concat(*pair, axis=1), i64(-1)), allowzero=True)
        rank = x.rank
        if rank is not None:
            axes: Any = i64(*range(0, 2 * rank, 2))
        else:
            axes = F.range(np.int64(0), F.mul(F.size(repeats), np.int64(2)), np.int64(2))
        return F.reduce_sum(blocks, axes, keepdims=False, noop_with_empty_axes=True), None


def _check_mode(mode: str) -> None:
    if mode not in ("DCR", "CRD"):
        raise UsageError(f"mode must be 'DCR' or 'CRD', not {mode!r}")


def _divides(divisor: int, size: Dim) -> bool:
    """Return whether `size` may be a multiple of `divisor`."""
    return dims.may_equal(dims.floordiv(size, divisor) * divisor, size)


@op
class DepthToSpace(Op):
    """Rearrange blocks of channels to blocks of pixels: [N, C*b*b, H, W] to [N, C, H*b, W*b].

    mode "DCR": the channels are ordered (row, column, C); "CRD": (C, row, column).
    """

    blocksize: int
    mode: str = "DCR"
    per_example = ("x",)
    inputs = ("x",)
    types = {"x": ANY}
    symbolic_inference = True
    onnx = Onnx("DepthToSpace", since=28)
    samples = lambda: (
        Sample((1, 8, 2, 3), blocksize=2),
        Sample((2, 8, 2, 1), blocksize=2, mode="CRD"),
        Sample((1, 9, 1, 2), blocksize=3),
        Sample((0, 4, 2, 2), blocksize=2),
    )

    def infer(self, x: TensorType) -> TensorType:
        _check_mode(self.mode)
        if x.shape is None:
            return TensorType(x.dtype, fresh_shape(4))
        b = self.blocksize
        if len(x.shape) != 4 or not _divides(b * b, x.shape[1]):
            raise TypeMismatch(f"DepthToSpace takes [N, C*{b}*{b}, H, W], not {shape_text(x.shape)}")
        n, c, h, w = x.shape
        return TensorType(x.dtype, [n, dims.floordiv(c, b * b), h * b, w * b])

    def reference(self, xp: Any, x: Any) -> Any:
        n, c, h, w = x.shape
        b = self.blocksize
        depth = c // (b * b)
        if self.mode == "DCR":
            blocks = xp.transpose(x.reshape(n, b, b, depth, h, w), (0, 3, 4, 1, 5, 2))
        else:
            blocks = xp.transpose(x.reshape(n, depth, b, b, h, w), (0, 1, 4, 2, 5, 3))
        return contiguous(xp, blocks).reshape(n, depth, h * b, w * b)

    def grad(self, node: Node, dy: Any) -> Any:
        return F.space_to_depth(dy, blocksize=self.blocksize, mode=self.mode)


@op
class SpaceToDepth(Op):
    """Rearrange blocks of pixels to channels, the inverse of DepthToSpace: [N, C, H*b, W*b] to [N, C*b*b, H, W]."""

    blocksize: int
    mode: str = "DCR"
    per_example = ("x",)
    inputs = ("x",)
    types = {"x": ANY}
    symbolic_inference = True
    onnx = Onnx("SpaceToDepth", since=28)
    samples = lambda: (
        Sample((1, 2, 4, 6), blocksize=2),
        Sample((2, 2, 4, 2), blocksize=2, mode="CRD"),
        Sample((1, 1, 3, 6), blocksize=3),
        Sample((0, 1, 2, 2), blocksize=2),
    )

    def infer(self, x: TensorType) -> TensorType:
        _check_mode(self.mode)
        if x.shape is None:
            return TensorType(x.dtype, fresh_shape(4))
        b = self.blocksize
        if len(x.shape) != 4 or not all(_divides(b, size) for size in x.shape[2:]):
            raise TypeMismatch(f"SpaceToDepth takes [N, C, H*{b}, W*{b}], not {shape_text(x.shape)}")
        n, c, h, w = x.shape
        return TensorType(x.dtype, [n, c * (b * b), dims.floordiv(h, b), dims.floordiv(w, b)])

    def reference(self, xp: Any, x: Any) -> Any:
        n, c, height, width = x.shape
        b = self.blocksize
        h, w = height // b, width // b
        order = (0, 3, 5, 1, 2, 4) if self.mode == "DCR" else (0, 1, 3, 5, 2, 4)
        blocks = xp.transpose(x.reshape(n, c, h, b, w, b), order)
        return contiguous(xp, blocks).reshape(n, c * b * b, h, w)

    def grad(self, node: Node, dy: Any) -> Any:
        return F.depth_to_space(dy, blocksize=self.blocksize, mode=self.mode)


@op
class ReverseSequence(Op):
    """Reverse the first `sequence_lens[b]` steps of batch entry b; the other steps stay.

    x: rank >= 2; sequence_lens: int64 vector with one element per batch entry. One of `batch_axis` and `time_axis` is
    0, the other 1.
    """

    batch_axis: int = 1
    time_axis: int = 0
    inputs = ("x", "sequence_lens")
    types = {"x": ANY, "sequence_lens": INT64}
    checks_values = True
    onnx = Onnx("ReverseSequence", since=28)
    samples = lambda: (
        Sample((4, 3), i64(4, 2, 1)),
        Sample((3, 4), i64(1, 0, 4), batch_axis=0, time_axis=1),
        Sample((3, 2, 2), i64(3, 2)),
    )

    def infer(self, x: TensorType, sequence_lens: TensorType) -> TensorType:
        if {self.batch_axis, self.time_axis} != {0, 1}:
            raise TypeMismatch(f"batch_axis {self.batch_axis} and time_axis {self.time_axis} are not 0 and 1")
        batch = length_of(sequence_lens)
        if x.shape is not None and (
            len(x.shape) < 2 or (batch is not None and not dims.may_equal(x.shape[self.batch_axis], batch))
        ):
            raise TypeMismatch(f"lengths {sequence_lens} do not fit the batch axis of {shape_text(x.shape)}")
        return TensorType(x.dtype, x.shape)

    def reference(self, xp: Any, x: Any, sequence_lens: Any) -> Any:
        batch_first = x if self.batch_axis == 0 else xp.swapaxes(x, 0, 1)
        steps = xp.arange(batch_first.shape[1])[None, :]
        lengths = sequence_lens[:, None]
        source = xp.where(steps < lengths, lengths - 1 - steps, steps)
        moved_steps = batch_first[xp.arange(batch_first.shape[0])[:, None], source]
        return contiguous(xp, moved_steps if self.batch_axis == 0 else xp.swapaxes(moved_steps, 0, 1))

    def grad(self, node: Node, dy: Any) -> Any:
        return F.reverse_sequence(dy, node.operands[1], batch_axis=self.batch_axis, time_axis=self.time_axis), None
