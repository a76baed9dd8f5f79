"""Convolution of data with the channels last, [N, *spatial, C].

In this layout all channels of a position are contiguous in memory, which kernels read faster. The pass `channels_last`
puts these operators into inference graphs; each is the standard operator between two transpositions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from graphkit.errors import TypeMismatch
from graphkit.ir.types import FLOATS, TensorType
from graphkit.ops._base import DOMAIN, F, Op, Sample, apply, op
from graphkit.ops.internal.fused import _EPILOGUES, Epilogue
from graphkit.ops.internal.fused_conv import FusedConv
from graphkit.ops.nn.conv import _GEOMETRIES, Convolution, ConvTranspose


def to_last(rank: int) -> tuple[int, ...]:
    """Return the permutation from [N, C, *spatial] to [N, *spatial, C]."""
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> tuple[int, ...]:
    """Return the permutation from [N, *spatial, C] to [N, C, *spatial]."""
    return (0, rank - 1, *range(1, rank - 1))


def _first(kind: TensorType | None) -> TensorType | None:
    """Return the type of the same data as [N, C, *spatial]."""
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


class ChannelsLast(Op):
    """Base of operators that transpose their operands, apply `standard()`, and transpose its first result back."""

    # Names of the operands that have the channels last.
    moved: ClassVar[tuple[str, ...]] = ("x",)

    def standard(self) -> Any:
        """Return the operator on data in the standard layout, [N, C, *spatial]."""
        raise NotImplementedError(f"{self.name}.standard")

    @property
    def moves_result(self) -> bool:
        """Whether the first result has the channels last."""
        return True

    def _moves(self, name: str) -> bool:
        """Return whether an operand has the channels last."""
        return name in self.moved

    def _placed(self, operands: Sequence[Any], move: Callable[[Any], Any]) -> list[Any]:
        names = [name.rstrip("?") for name in self.inputs]
        return [move(a) if self._moves(n) else a for n, a in zip(names, operands, strict=False)]

    def infer(self, *operands: TensorType | None) -> TensorType:
        result = _only(self.standard().infer(*self._placed(operands, _first)))
        return _last(result) if self.moves_result else result

    def reference(self, xp: Any, *operands: Any) -> Any:
        placed = self._placed(operands, lambda a: _moved(xp, a, to_first))
        result = _only(self.standard().reference(xp, *placed))
        return _moved(xp, result, to_last) if self.moves_result else result

    def expand(self, *operands: Any) -> Any:
        placed = self._placed(operands, lambda v: _transposed(v, to_first))
        result = _only(apply(self.standard(), *placed))
        return _transposed(result, to_last) if self.moves_result else result


def _only(results: Any) -> Any:
    return results[0] if isinstance(results, (list, tuple)) else results


class ChannelsLastConvolution(ChannelsLast, Convolution):
    """Base of convolutions of images with the channels last. With `filters_last`, w is [M, *kernel, C / group]."""

    filters_last: bool = False

    def _moves(self, name: str) -> bool:
        return super()._moves(name) or (self.filters_last and name == "w")


# Of samples with `filters_last`: strides, groups, one filter for each channel, three spatial axes.
_OF_LAST_FILTERS = (*_GEOMETRIES[1::2], _GEOMETRIES[4])


@op
class ChannelsLastConv(ChannelsLastConvolution, Epilogue):
    """FusedConv with x: [N, *spatial, C], residual and result: [N, *positions, M]; w: [M, C / group, *kernel].

    With `filters_last` w is [M, *kernel, C / group].
    """

    domain = DOMAIN
    per_example = ("x", "residual")
    inputs = ("x", "w", "bias?", "residual?")
    moved = ("x", "residual")
    types = {"x": FLOATS, "w": "x", "bias": "x", "residual": "x"}
    symbolic_inference = True
    inplace = ((3, 0),)
    samples = lambda: (
        *(Sample(_shape_last(x), w, **attrs) for x, w, attrs in _GEOMETRIES),
        *(Sample(_shape_last(x), _shape_last(w), **attrs, filters_last=True) for x, w, attrs in _OF_LAST_FILTERS),
        *(Sample((1, 5, 5, 3), (4, 3, 3, 3), (4,), **attrs) for attrs in _EPILOGUES),
        Sample((2, 5, 5, 3), (4, 3, 3, 3), None, (2, 5, 5, 4), pads=(1, 1, 1, 1), activation="Tanh"),
        Sample((2, 5, 5, 3), (4, 3, 1, 1), (4,), (2, 5, 5, 4), activation="Sigmoid", residual_last=True),
        Sample((2, 5, 5, 3), (4, 3, 3, 3), (4,), (2, 3, 3, 4), activation="Relu", filters_last=True),
        Sample((0, 5, 5, 3), (4, 3, 3, 3), (4,), activation="Relu"),
    )

    def standard(self) -> FusedConv:
        return FusedConv(**self.related(), **self.epilogue())


@op
class ChannelsLastConvTranspose(ChannelsLastConvolution):
    """ConvTranspose with x: [N, *spatial, C], w: [C, M / group, *kernel] -> [N, *positions, M].

    With `filters_last` w is [C, *kernel, M / group].
    """

    output_padding: tuple[int, ...] | None = None
    output_shape: tuple[int, ...] | None = None
    domain = DOMAIN
    per_example = ("x",)
    inputs = ("x", "w", "b?")
    types = {"x": FLOATS, "w": "x", "b": "x"}
    symbolic_inference = True
    samples = lambda: (
        Sample((2, 4, 5, 3), (3, 2, 3, 3), strides=(2, 2)),
        Sample((1, 3, 4, 4), (4, 3, 2, 2), (6,), group=2, pads=(1, 0, 0, 1)),
        Sample((1, 5, 2), (2, 3, 3), output_padding=(1,), strides=(2,)),
        Sample((1, 3, 4, 4), (4, 2, 2, 3), (6,), group=2, pads=(1, 0, 0, 1), filters_last=True),
    )

    def standard(self) -> ConvTranspose:
        return ConvTranspose(**self.related(), output_padding=self.output_padding, output_shape=self.output_shape)
