"""FoldedBatchNorm: the weights and the bias of a product that computes a batch normalisation, too."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.types import DType, TensorType
from graphkit.ops._base import DOMAIN, F, Op, Rand, Sample, op

_VECTOR = (3,)
_POSITIVE = Rand(_VECTOR, 0.5, 2.0)


@op
class FoldedBatchNorm(Op):
    """Fold a batch normalisation into the weights and the bias of the matrix product or convolution before it.

    With factor = scale / sqrt(var + epsilon), new_weights = weights * factor and new_bias = shift - (mean - bias) *
    factor. The passes create this operator for batch normalisation at inference.

    Attributes:
        axis: The axis of `weights` that counts the channels of the result.
        epsilon: Added to the variance.

    Operands:
        weights: The weights of the product: float32 or float64.
        scale, shift, mean, var: Those of the batch normalisation, [channels].
        bias: The bias of the product, [channels]; absent: zero.

    Returns:
        new_weights, of the shape of `weights`, and new_bias, [channels].
    """

    axis: int
    epsilon: float = 1e-5
    domain = DOMAIN
    inputs = ("weights", "scale", "shift", "mean", "var", "bias?")
    outputs = ("new_weights", "new_bias")
    types = {
        "weights": {DType.FLOAT32, DType.FLOAT64}, "scale": "weights", "shift": "weights", "mean": "weights",
        "var": "weights", "bias": "weights",
    }  # fmt: skip
    # grad=False: it is made after differentiation.
    samples = lambda: (
        Sample((3, 2, 2, 2), _VECTOR, _VECTOR, _VECTOR, _POSITIVE, axis=0, grad=False),
        Sample((2, 3), _VECTOR, _VECTOR, _VECTOR, _POSITIVE, _VECTOR, axis=1, epsilon=0.25, grad=False),
        Sample((2, 3, 1), _VECTOR, _VECTOR, _VECTOR, _POSITIVE, _VECTOR, axis=1, grad=False),
        Sample((0, 3), _VECTOR, _VECTOR, _VECTOR, _POSITIVE, axis=1, grad=False),
    )

    def infer(self, weights: TensorType, *vectors: TensorType | None) -> tuple[TensorType, TensorType]:
        channels = None if weights.shape is None else weights.shape[self.axis]
        for vector in vectors:
            if vector is None or vector.shape is None:
                continue
            if len(vector.shape) != 1 or (channels is not None and not dims.may_equal(vector.shape[0], channels)):
                raise TypeMismatch(f"{vector} must have one element for each of {channels} channels of {weights}")
        return TensorType(weights.dtype, weights.shape), TensorType(
            weights.dtype, None if channels is None else (channels,)
        )

    def reference(
        self, xp: Any, weights: Any, scale: Any, shift: Any, mean: Any, var: Any, bias: Any = None
    ) -> tuple[Any, Any]:
        factor = scale / xp.sqrt(var + weights.dtype.type(self.epsilon))
        column = factor.reshape(-1, *(1 for _ in range(self.axis + 1, weights.ndim)))
        centred = mean if bias is None else mean - bias
        return weights * column, shift - centred * factor

    def expand(self, weights: Any, scale: Any, shift: Any, mean: Any, var: Any, bias: Any = None) -> tuple[Any, Any]:
        factor = scale / F.sqrt(var + self.epsilon)
        column = F.unsqueeze(factor, np.arange(1, weights.rank - self.axis)) if weights.rank > self.axis + 1 else factor
        centred = mean if bias is None else mean - bias
        return weights * column, shift - centred * factor
