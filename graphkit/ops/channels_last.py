"""Convolution and pooling of data with the channels last, [N, *spatial, C].

Kernels read all channels of a position as one piece of memory there. The pass `channels_last` puts these operators into
graphs for inference; each stands for the standard operator between two transpositions.
"""

from __future__ import annotations

from typing import Any

from graphkit.errors import TypeMismatch
from graphkit.ir.types import FLOATS, TensorType
from graphkit.ops._base import DOMAIN, F, Sample, apply, op
from graphkit.ops.conv import _GEOMETRIES, ConvTranspose, _Convolution
from graphkit.ops.fused import _EPILOGUES, FusedConv, _Epilogue
from graphkit.ops.pool import _POOLS, AveragePool, MaxPool, _AveragePool, _Pool


def to_last(rank: int) -> tuple[int, ...]:
    """The permutation from [N, C, *spatial] to [N, *spatial, C]."""
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> tuple[int, ...]:
    """The permutation from [N, *spatial, C] to [N, C, *spatial]."""
    return (0, rank - 1, *range(1, rank - 1))


def _first(kind: TensorType | None) -> TensorType | None:
    """The type of the same data with the channels in their standard place."""
    if kind is None or kind.shape is None:
        return kind
    if len(kind.shape) < 3:
        raise TypeMismatch(f"{kind} has no spatial axis")
    return TensorType(kind.dtype, [kind.shape[i] for i in to_first(len(kind.shape))])


def _last(kind: TensorType) -> TensorType:
    return kind if kind.shape is None else TensorType(kind.dtype, [kind.shape[i] for i in to_last(len(kind.shape))])


def _moved(xp: Any, x: Any, order: Any) -> Any:
    return None if x is None else xp.ascontiguousarray(xp.transpose(x, order(x.ndim)))


def _transposed(x: Any, order: Any) -> Any:
    return None if x is None else F.transpose(x, perm=order(x.rank))


def _shape_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(shape[i] for i in to_last(len(shape)))


@op
class ChannelsLastConv(_Epilogue, _Convolution):
    """FusedConv with x: [N, *spatial, C], residual and result: [N, *positions, M]; w: [M, C / group, *kernel]."""

    domain = DOMAIN
    inputs = ("x", "w", "bias?", "residual?")
    types = {"x": FLOATS, "w": "x", "bias": "x", "residual": "x"}
    inplace = ((3, 0),)
    samples = (
        *(Sample(_shape_last(x), w, **attrs) for x, w, attrs in _GEOMETRIES),
        *(Sample((1, 5, 5, 3), (4, 3, 3, 3), (4,), **attrs) for attrs in _EPILOGUES),
        Sample((2, 5, 5, 3), (4, 3, 3, 3), None, (2, 5, 5, 4), pads=(1, 1, 1, 1), activation="Tanh"),
        Sample((2, 5, 5, 3), (4, 3, 1, 1), (4,), (2, 5, 5, 4), activation="Sigmoid", residual_last=True),
        Sample((0, 5, 5, 3), (4, 3, 3, 3), (4,), activation="Relu"),
    )

    def standard(self) -> FusedConv:
        """The operator on data in their standard place."""
        return FusedConv(**self.related(), **self.epilogue())

    def infer(
        self, x: TensorType, w: TensorType, bias: TensorType | None = None, residual: TensorType | None = None
    ) -> TensorType:
        placed: Any = _first(x)
        return _last(self.standard().infer(placed, w, bias, _first(residual)))

    def reference(self, xp: Any, x: Any, w: Any, bias: Any = None, residual: Any = None) -> Any:
        y = self.standard().reference(xp, _moved(xp, x, to_first), w, bias, _moved(xp, residual, to_first))
        return _moved(xp, y, to_last)

    def expand(self, x: Any, w: Any, bias: Any = None, residual: Any = None) -> Any:
        operands = (_transposed(x, to_first), w, bias, _transposed(residual, to_first))
        return _transposed(apply(self.standard(), *operands), to_last)


@op
class ChannelsLastConvTranspose(_Convolution):
    """ConvTranspose with x: [N, *spatial, C], w: [C, M / group, *kernel] -> [N, *positions, M]."""

    output_padding: tuple[int, ...] | None = None
    output_shape: tuple[int, ...] | None = None
    domain = DOMAIN
    inputs = ("x", "w", "b?")
    types = {"x": FLOATS, "w": "x", "b": "x"}
    samples = (
        Sample((2, 4, 5, 3), (3, 2, 3, 3), strides=(2, 2)),
        Sample((1, 3, 4, 4), (4, 3, 2, 2), (6,), group=2, pads=(1, 0, 0, 1)),
        Sample((1, 5, 2), (2, 3, 3), output_padding=(1,), strides=(2,)),
    )

    def standard(self) -> ConvTranspose:
        """The operator on data in their standard place."""
        return ConvTranspose(**self.related(), output_padding=self.output_padding, output_shape=self.output_shape)

    def infer(self, x: TensorType, w: TensorType, b: TensorType | None = None) -> TensorType:
        placed: Any = _first(x)
        return _last(self.standard().infer(placed, w, b))

    def reference(self, xp: Any, x: Any, w: Any, b: Any = None) -> Any:
        y = self.standard().reference(xp, _moved(xp, x, to_first), w, b)
        return _moved(xp, y, to_last)

    def expand(self, x: Any, w: Any, b: Any = None) -> Any:
        return _transposed(apply(self.standard(), _transposed(x, to_first), w, b), to_last)


@op
class ChannelsLastMaxPool(_Pool):
    """MaxPool of x: [N, *spatial, C] -> [N, *positions, C], without the positions of the maxima."""

    domain = DOMAIN
    inputs = ("x",)
    samples = tuple(Sample(_shape_last(shape), **geometry) for shape, geometry in _POOLS)

    def infer(self, x: TensorType) -> TensorType:
        placed: Any = _first(x)
        return _last(MaxPool(**self.related()).infer(placed)[0])

    def reference(self, xp: Any, x: Any) -> Any:
        return _moved(xp, MaxPool(**self.related()).reference(xp, _moved(xp, x, to_first))[0], to_last)

    def expand(self, x: Any) -> Any:
        return _transposed(_only(apply(MaxPool(**self.related()), _transposed(x, to_first))), to_last)


@op
class ChannelsLastAveragePool(_AveragePool):
    """AveragePool of x: [N, *spatial, C] -> [N, *positions, C]."""

    domain = DOMAIN
    inputs = ("x",)
    samples = tuple(
        Sample(_shape_last(shape), **geometry, count_include_pad=flag)
        for shape, geometry in _POOLS
        for flag in (False, True)
    )

    def infer(self, x: TensorType) -> TensorType:
        placed: Any = _first(x)
        return _last(AveragePool(**self.related()).infer(placed))

    def reference(self, xp: Any, x: Any) -> Any:
        return _moved(xp, AveragePool(**self.related()).reference(xp, _moved(xp, x, to_first)), to_last)

    def expand(self, x: Any) -> Any:
        return _transposed(apply(AveragePool(**self.related()), _transposed(x, to_first)), to_last)


def _only(results: Any) -> Any:
    return results[0] if isinstance(results, (list, tuple)) else results
