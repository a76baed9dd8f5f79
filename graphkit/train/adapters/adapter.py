"""The adapter of one layer: its parameters, and the nodes that add it to the layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.frontend import initializers
from graphkit.frontend import layers as nn
from graphkit.ir import context
from graphkit.ir.graph import Node, Value
from graphkit.ir.names import Names
from graphkit.ir.types import HALVES, DType, TensorType
from graphkit.ops import F, operator
from graphkit.ops.linalg.matmul import Gemm
from graphkit.ops.nn.conv import Conv
from graphkit.ops.pointwise import scalar_like
from graphkit.train.adapter_marks import LORA
from graphkit.train.adapters.layers import Layer
from graphkit.train.adapters.settings import Lora

A, B, MAGNITUDE = "lora_A.weight", "lora_B.weight", "lora_magnitude_vector"
# Lower limit for the length of a row of W + scaling * B A: a zero row with a zero magnitude has the gain 0, not 0 / 0.
SHORTEST = 1e-30
_INHERITED = (context.GROUP, "recompute", "swap_memory")


class Adapter:
    """The parameters of an adapter, and the nodes that add it to a layer.

    Attributes:
        a: A, [rank, inputs], or [rank, channels, *kernel] of a convolution.
        b: B, [outputs, rank], or [outputs, rank, 1, ...] of a convolution.
        magnitude: The trained length of each row, [outputs], or [1, outputs, 1, ...] of a convolution; None without
            DoRA.
    """

    def __init__(
        self, layer: Layer, scaling: float, dropout: float, a: Value, b: Value, magnitude: Value | None = None
    ):
        self.layer, self.scaling, self.dropout = layer, scaling, dropout
        self.a, self.b, self.magnitude = a, b, magnitude

    @classmethod
    def of(cls, layer: Layer, settings: Lora, names: Names) -> Adapter:
        weight = layer.weight.dtype
        dtype = DType.FLOAT32 if weight in HALVES else weight
        ones = (1,) * (len(layer.input_shape) - 1)

        def parameter(name: str, shape: tuple[int, ...], init: Any) -> Value:
            label = f"{layer.name}.{name}"
            if names.take(label) != label:
                raise UsageError(f"gk.lora: the model already has a parameter {label!r}; rename it")
            attrs = {"init": initializers.of(init).to_dict()}
            return Value(TensorType(dtype, shape), label, role="parameter", attrs=attrs)

        a = parameter(A, (settings.rank, *layer.input_shape), initializers.FanInUniform())
        b = parameter(B, (layer.outputs, settings.rank, *ones), "zeros")
        magnitude = parameter(MAGNITUDE, cls._magnitude_shape(layer), "ones") if settings.dora else None
        return cls(layer, settings.scaling, settings.dropout, a, b, magnitude)

    def inside(self, values: Sequence[Value]) -> Adapter:
        """Return the adapter for a node in a body. values: inputs of the body that capture A and B."""
        return Adapter(self.layer, self.scaling, self.dropout, values[0], values[1], self.magnitude)

    @property
    def parameters(self) -> tuple[Value, ...]:
        return (self.a, self.b) if self.magnitude is None else (self.a, self.b, self.magnitude)

    def wide(self, value: Value) -> Value:
        """Cast a value to the dtype of the adapter (float32 for float16 and bfloat16 layers)."""
        return value if value.dtype is self.a.dtype else F.cast(value, to=self.a.dtype)

    def added_to(self, base: Node, gain: Value | None = None) -> Value:
        """Return the result of a layer with the adapter.

        The node of the result has the metadata LORA. If you follow first operands from this node, you reach `base`.

        Args:
            base: The node of the layer, with operands in the new graph.
            gain: With DoRA: the result of the method `gain` (default: its result for the weight that `base` reads).
        """
        inherited = {key: base.meta[key] for key in _INHERITED if key in base.meta}
        scope = context.current()
        with context.entered(scope._replace(attrs={**scope.attrs, **inherited})):
            data, weight = base.inputs[:2]
            assert data is not None
            assert weight is not None
            x = self.wide(data)
            if self.dropout:
                x = nn.dropout(x, self.dropout, name=f"{self.layer.name}.lora_dropout")
            change = self._change(base, x)
            if self.magnitude is not None:
                change = self._scaled(base, x, change, self.gain(weight) if gain is None else gain)
            with context.entered(scope._replace(attrs={**scope.attrs, **inherited, LORA: self.layer.name})):
                total = F.add(self.wide(base.output), change, name=f"{self.layer.name}.lora")
                found: Value = F.cast(total, to=base.output.dtype) if total.dtype is not base.output.dtype else total
            return found

    def _change(self, base: Node, x: Value) -> Value:
        """Return scaling * B A x."""
        name = self.layer.name
        if isinstance(base.op, Conv):
            small = F.conv(x, self.a, **base.op.related(), name=f"{name}.lora_A")
            return _times(F.conv(small, self.b, name=f"{name}.lora_B"), self.scaling)
        factor = operator(base, Gemm).alpha if isinstance(base.op, Gemm) else 1.0
        small = F.mat_mul(x, F.transpose(self.a, perm=(1, 0)), name=f"{name}.lora_A")
        small = _times(small, self.scaling * factor)
        return F.mat_mul(small, F.transpose(self.b, perm=(1, 0)), name=f"{name}.lora_B")

    def gain(self, weight: Value) -> Value:
        """Return the magnitude of DoRA divided by the length of each row of W + scaling * B A.

        Gradients treat the lengths as constants. weight: W, without the adapter.
        """
        assert self.magnitude is not None
        wide = self.wide(weight)
        lengths = F.stop_gradient(self.lengths(F.add(wide, self.delta())))
        return F.div(self.magnitude, F.max(lengths, scalar_like(SHORTEST, lengths)))

    def merged(self, weight: Value) -> Value:
        """Return the merged weight in the dtype of `weight`. weight: W, without the adapter."""
        total = F.add(self.wide(weight), self.delta())
        if self.magnitude is not None:
            outputs, *inputs = (self.layer.outputs, *(1 for _ in self.layer.input_shape))
            gain = F.reshape(self.gain(weight), (outputs, *inputs) if self.layer.outputs_first else (1, outputs))
            total = F.mul(gain, total)
        return F.cast(total, to=weight.dtype) if total.dtype is not weight.dtype else total

    def _scaled(self, base: Node, x: Value, change: Value, gain: Value) -> Value:
        if self.dropout:
            plain = self._without_bias(base, x)
        else:
            plain = self.wide(base.output)
            bias = base.inputs[2] if len(base.inputs) > 2 else None
            if bias is not None:
                plain = F.sub(plain, self._bias(base, self.wide(bias)))
        less = F.sub(gain, scalar_like(1.0, gain))
        return F.add(F.mul(less, plain), F.mul(gain, change))

    def _bias(self, base: Node, bias: Value) -> Value:
        """Return beta * bias of a Gemm, or the bias of a Conv as [1, outputs, 1, ...]. bias: the third operand."""
        if isinstance(base.op, Gemm):
            return _times(bias, base.op.beta)
        return F.reshape(bias, (1, -1, *(1 for _ in self.layer.input_shape[1:])))

    def _without_bias(self, base: Node, x: Value) -> Value:
        """Return the result of the layer for `x` instead of its own data, without the bias."""
        assert base.inputs[1] is not None
        weight = self.wide(base.inputs[1])
        if isinstance(base.op, Gemm):
            return F.gemm(x, weight, transB=base.op.transB, alpha=base.op.alpha)
        return F.conv(x, weight, **base.op.related()) if isinstance(base.op, Conv) else F.mat_mul(x, weight)

    def delta(self) -> Value:
        rows, rank = self.layer.outputs, self.a.tensor.static_shape[0]
        product = F.mat_mul(F.reshape(self.b, (rows, rank)), F.reshape(self.a, (rank, -1)))
        if not self.layer.outputs_first:
            product = F.transpose(product, perm=(1, 0))
        return _times(F.reshape(product, self.layer.weight.tensor.static_shape), self.scaling)

    def lengths(self, weight: Value) -> Value:
        """Return the Euclidean length of the weights of each output, in the shape of the magnitudes."""
        axes = [i for i in range(weight.rank or 0) if i != (0 if self.layer.outputs_first else 1)]
        found = F.reduce_l2(weight, np.array(axes), keepdims=False)
        return F.reshape(found, self._magnitude_shape(self.layer)) if self.layer.is_conv else found

    @staticmethod
    def _magnitude_shape(layer: Layer) -> tuple[int, ...]:
        return (1, layer.outputs, *(1 for _ in layer.input_shape[1:])) if layer.is_conv else (layer.outputs,)


def _times(value: Value, factor: float) -> Value:
    return value if factor == 1.0 else F.mul(value, scalar_like(factor, value))
