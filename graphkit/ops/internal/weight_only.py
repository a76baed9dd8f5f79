"""Matrix products with weights of few bits, made from MatMul and the dequantisation of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.types import BYTES, DType, TensorType
from graphkit.ops._base import DOMAIN, F, Op, Rand, Sample, op
from graphkit.ops.linalg.matmul import MatMul
from graphkit.ops.operands import fits
from graphkit.ops.quant.linear import DequantizeLinear

_F32 = frozenset({DType.FLOAT32})


def _weights(columns: int, terms: int, low: int, high: int, dtype: str) -> Rand:
    return Rand((columns, terms), low, high, dtype)


@op
class WeightOnlyMatMul(Op):
    """Multiply a by quantised weights: a @ transpose((w - zero_point) * scale).

    a: [..., terms]; w: [columns, terms]; scale and zero_point: [columns, blocks], one number for each block of
    `block_size` terms. `bits` is the number of bits of an element of w, 4 or 8; w is stored as uint8 or int8.
    """

    block_size: int
    bits: int = 8
    domain = DOMAIN
    symbolic_inference = True
    inputs = ("a", "w", "scale", "zero_point?")
    types = {"a": _F32, "w": BYTES, "scale": _F32, "zero_point": "w"}
    samples = lambda: (
        Sample((3, 16), _weights(5, 16, 0, 15, "uint8"), Rand((5, 2), 0.1, 1.0, "float32"),
               _weights(5, 2, 0, 15, "uint8"), block_size=8, bits=4, grad=False),
        Sample((2, 1, 20), _weights(18, 20, -8, 7, "int8"), Rand((18, 3), 0.1, 1.0, "float32"),
               block_size=8, bits=4, grad=False),
        Sample((7, 13), _weights(33, 13, -128, 127, "int8"), Rand((33, 1), 0.01, 0.1, "float32"),
               block_size=13, grad=False),
        Sample((24,), _weights(4, 24, 0, 255, "uint8"), Rand((4, 6), 0.01, 0.02, "float32"),
               _weights(4, 6, 100, 150, "uint8"), block_size=4, grad=False),
        Sample((0, 8), _weights(4, 8, 0, 15, "uint8"), Rand((4, 1), 0.1, 1.0, "float32"),
               block_size=8, bits=4, grad=False),
    )  # fmt: skip

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        return inputs[0].rank > 1 and self._has_examples(("a",), inputs, batched)

    def infer(
        self, a: TensorType, w: TensorType, scale: TensorType, zero_point: TensorType | None = None
    ) -> TensorType:
        if self.bits not in (4, 8) or self.block_size < 1:
            raise TypeMismatch(f"bits must be 4 or 8, and block_size at least 1, not {self.bits} and {self.block_size}")
        if w.shape is not None:
            if len(w.shape) != 2:
                raise TypeMismatch(f"w {w} is not a matrix")
            wanted = (w.shape[0], dims.ceildiv(w.shape[1], self.block_size))
            for parameter in (scale, zero_point):
                if parameter is not None and not fits(parameter.shape, wanted):
                    raise TypeMismatch(f"{parameter} does not fit blocks of {self.block_size} along the rows of {w}")
        turned = None if w.shape is None else (w.shape[1], w.shape[0])
        return TensorType(DType.FLOAT32, MatMul().infer(a, TensorType(DType.FLOAT32, turned)).shape)

    def reference(self, xp: Any, a: Any, w: Any, scale: Any, zero_point: Any = None) -> Any:
        weights = DequantizeLinear(axis=1, block_size=self.block_size).reference(xp, w, scale, zero_point)
        return xp.matmul(a, weights.T)

    def expand(self, a: Any, w: Any, scale: Any, zero_point: Any = None) -> Any:
        weights = F.dequantize_linear(w, scale, zero_point, axis=1, block_size=self.block_size)
        return F.mat_mul(a, F.transpose(weights, perm=(1, 0)))
