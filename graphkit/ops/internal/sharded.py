"""Reduce-scatter, where each rank gets a slice of the sums, and all-gather of the slices, as start and wait operators.

AllReduceWait, under the same key, waits for either (Rajbhandari et al., "ZeRO", SC 2020, section 5).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir.types import ANY, NUMERIC, DType, TensorType
from graphkit.ops._base import DOMAIN, F, Op, Sample, op
from graphkit.ops.internal.collective import Summed


@op
class ReduceScatterStart(Summed):
    """Start a reduce-scatter of each x: after ReduceScatterWait, each rank has its slice of the sums over all ranks.

    All ranks use the same `key`. The results lie next to each other in memory, and are cut into slices as one array
    (`graphkit.dist.collectives.layout`). Outside of the slice of this rank, their elements are undefined. The numpy
    reference and an exported ONNX file sum over this process only.
    """

    key: str
    samples = lambda: (Sample((2, 3), (5,), key="a", onnx=False), Sample((0, 2), key="b", onnx=False))


@op
class ReduceScatterWait(Op):
    """Wait for the reduce-scatter with this key.

    sums: all results of ReduceScatterStart. The result is the number 0, int64 []. Operators that read the sums must
    depend on this result, for example with ControlDependency, so that they run later.
    """

    key: str
    domain = DOMAIN
    inputs = ("sums*",)
    outputs = ("done",)
    types = {"sums": ANY}
    collective = True
    samples = lambda: (Sample((2, 3), (5,), key="a", onnx=False),)

    def infer(self, *sums: TensorType) -> TensorType:
        return TensorType(DType.INT64, ())

    def reference(self, xp: Any, *sums: Any) -> Any:
        return xp.zeros((), np.int64)

    def expand(self, *sums: Any) -> Any:
        return F.constant(value=np.zeros((), np.int64))


@op
class AllGatherStart(Op):
    """Start an all-gather of arrays whose slices lie on different ranks; AllReduceWait waits for the results.

    All ranks use the same `key`. sizes: the number of elements of each array. pieces: vectors, the parts of these
    arrays that this rank has. Piece i contains the elements begins[i] to ends[i] - 1 of one array; the attribute `of`
    gives the index of this array, of[i]. The numpy reference and an exported ONNX file give 0 where this process has no
    piece.
    """

    key: str
    sizes: tuple[int, ...]
    of: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    domain = DOMAIN
    inputs = ("pieces*",)
    outputs = ("wholes*",)
    types = {"pieces": NUMERIC}
    collective = True
    samples = lambda: (
        Sample((3,), (2,), key="a", sizes=(5, 4, 2), of=(0, 1), begins=(2, 0), ends=(5, 2), onnx=False),
        Sample((0,), key="b", sizes=(0,), of=(0,), begins=(0,), ends=(0,), onnx=False),
    )

    def infer(self, *pieces: TensorType) -> tuple[TensorType, ...]:
        for piece, of, begin, end in self._places(pieces):
            if piece.dtype is not pieces[0].dtype or (piece.shape is not None and len(piece.shape) != 1):
                raise TypeMismatch(f"pieces must be vectors of one dtype, not {', '.join(map(str, pieces))}")
            if not 0 <= begin <= end <= self.sizes[of] or (piece.is_static and piece.static_shape != (end - begin,)):
                raise TypeMismatch(f"{piece} is not elements {begin} to {end} of {self.sizes[of]}")
        return tuple(TensorType(pieces[0].dtype, (size,)) for size in self.sizes)

    def _places(self, pieces: Sequence[Any]) -> Iterator[tuple[Any, int, int, int]]:
        return zip(pieces, self.of, self.begins, self.ends, strict=True)

    def reference(self, xp: Any, *pieces: Any) -> tuple[Any, ...]:
        wholes = [xp.zeros(size, pieces[0].dtype) for size in self.sizes]
        for piece, of, begin, end in self._places(pieces):
            wholes[of][begin:end] = piece
        return tuple(wholes)

    def expand(self, *pieces: Any) -> Any:
        found = {of: (piece, begin, end) for piece, of, begin, end in self._places(pieces)}
        dtype, wholes = pieces[0].dtype.numpy, []
        for index, size in enumerate(self.sizes):
            piece, begin, end = found.get(index, (None, 0, 0))
            if piece is None:
                wholes.append(F.constant(value=np.zeros(size, dtype)))
                continue
            zeros = [F.constant(value=np.zeros(count, dtype)) for count in (begin, size - end)]
            wholes.append(F.concat(zeros[0], piece, zeros[1], axis=0))
        return tuple(wholes)
