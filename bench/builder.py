"""Writing one ONNX model: nodes, initialisers and inputs, and the layers as torch.onnx.export decomposes them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 18, 10
# A size, or a name for a symbolic one.
Batch = int | str


@dataclass(frozen=True)
class Feed:
    """How an input is filled: standard normal, integers below `below`, or, with `below` 1, ones."""

    name: str
    shape: tuple[Batch, ...]
    below: int | None = None

    @property
    def element_type(self) -> int:
        return int(TensorProto.FLOAT if self.below is None else TensorProto.INT64)

    def fill(self, batch: int, random: np.random.Generator) -> np.ndarray:
        shape = tuple(batch if isinstance(d, str) else d for d in self.shape)
        if self.below is None:
            return random.standard_normal(shape, np.float32)
        return np.ones(shape, np.int64) if self.below == 1 else random.integers(0, self.below, shape)


class Builder:
    """Nodes, initialisers and inputs of one model in the making; values are names."""

    def __init__(self, name: str):
        self.name = name
        self.feeds: list[Feed] = []
        self._random = np.random.default_rng(zlib.crc32(name.encode()))
        self._nodes: list[onnx.NodeProto] = []
        self._stored: dict[str, onnx.TensorProto] = {}

    def input(self, name: str, shape: Sequence[Batch], below: int | None = None) -> str:
        self.feeds.append(Feed(name, tuple(shape), below))
        return name

    def op(self, kind: str, *inputs: str, outputs: int = 1, name: str = "", **attributes: Any) -> Any:
        """Add a node; the name of its output, or a list of them."""
        name = name or f"{kind.lower()}_{len(self._nodes)}"
        names = [name] if outputs == 1 else [f"{name}_{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(kind, inputs, names, name=name, **attributes))
        return names[0] if outputs == 1 else names

    def weight(self, name: str, shape: Sequence[int], std: float, mean: float = 0.0) -> str:
        """A parameter with normal values, stored once."""
        if name not in self._stored:
            values = self._random.standard_normal(tuple(shape), np.float32)
            self._stored[name] = numpy_helper.from_array(values * np.float32(std) + np.float32(mean), name)
        return name

    def constant(self, value: Any, dtype: type = np.float32) -> str:
        """An initialiser for a setting: equal ones are stored once."""
        array = np.asarray(value, dtype)
        name = f"constant_{zlib.crc32(array.tobytes()):08x}_{array.dtype}_{'x'.join(map(str, array.shape))}"
        self._stored.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def shape(self, *dims: int) -> str:
        return self.constant(dims, np.int64)

    def model(self, **outputs: tuple[str, Sequence[Batch]]) -> onnx.ModelProto:
        """The finished model; `outputs`: value and shape by name."""
        for name, (value, _) in outputs.items():
            self._rename(value, name)
        graph = helper.make_graph(
            self._nodes,
            self.name,
            [helper.make_tensor_value_info(f.name, f.element_type, f.shape) for f in self.feeds],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, (_, shape) in outputs.items()],
            list(self._stored.values()),
        )
        opset = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="graphkit bench")

    def _rename(self, old: str, new: str) -> None:
        for node in self._nodes:
            node.input[:] = [new if n == old else n for n in node.input]
            node.output[:] = [new if n == old else n for n in node.output]

    # --- layers ----------------------------------------------------------------------------------

    def conv(
        self, x: str, name: str, channels: tuple[int, int], kernel: int, *, stride: int = 1, pad: int = 0,
        group: int = 1, bias: bool = False,
    ) -> str:  # fmt: skip
        inputs, filters = channels
        fan = inputs // group * kernel * kernel
        operands = [x, self.weight(f"{name}.weight", (filters, inputs // group, kernel, kernel), math.sqrt(2 / fan))]
        if bias:
            operands.append(self.weight(f"{name}.bias", (filters,), 0.1))
        return self.op(
            "Conv", *operands, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, group=group,
            dilations=[1, 1],
        )  # fmt: skip

    def norm(self, x: str, name: str, channels: int) -> str:
        """Batch normalisation with statistics close to 0 and 1, so that activations stay in range."""
        operands = [
            self.weight(f"{name}.weight", (channels,), 0.05, 0.8),
            self.weight(f"{name}.bias", (channels,), 0.1),
            self.weight(f"{name}.running_mean", (channels,), 0.1),
            self.weight(f"{name}.running_var", (channels,), 0.05, 1.0),
        ]
        return self.op("BatchNormalization", x, *operands, epsilon=1e-5)

    def gemm(self, x: str, name: str, inputs: int, outputs: int) -> str:
        """A linear layer on a matrix."""
        weight = self.weight(f"{name}.weight", (outputs, inputs), 1 / math.sqrt(inputs))
        return self.op("Gemm", x, weight, self.weight(f"{name}.bias", (outputs,), 0.1), transB=1)

    def linear(self, x: str, name: str, inputs: int, outputs: int, bias: bool = True) -> str:
        """A linear layer on an array of three dimensions."""
        y = self.op("MatMul", x, self.weight(f"{name}.weight/T", (inputs, outputs), 1 / math.sqrt(inputs)))
        return self.op("Add", y, self.weight(f"{name}.bias", (outputs,), 0.1)) if bias else y

    def layer_norm(self, x: str, name: str, width: int, epsilon: float = 1e-5) -> str:
        scale, shift = self.weight(f"{name}.weight", (width,), 0.05, 1.0), self.weight(f"{name}.bias", (width,), 0.1)
        return self.op("LayerNormalization", x, scale, shift, axis=-1, epsilon=epsilon)

    def gelu(self, x: str) -> str:
        half_erf = self.op("Erf", self.op("Div", x, self.constant(math.sqrt(2))))
        return self.op("Mul", x, self.op("Mul", self.constant(0.5), self.op("Add", half_erf, self.constant(1.0))))

    def attention(self, q: str, k: str, v: str, mask: str, tokens: int, heads: int, size: int) -> str:
        """scaled_dot_product_attention with an additive mask; q, k, v and the result are [N, tokens, heads * size]."""
        split = self.shape(-1, tokens, heads, size)
        q, k, v = (self.op("Transpose", self.op("Reshape", x, split), perm=[0, 2, 1, 3]) for x in (q, k, v))
        k = self.op("Transpose", self.op("Reshape", k, self.shape(-1, tokens, size)), perm=[0, 2, 1])
        k = self.op("Reshape", k, self.shape(-1, heads, size, tokens))
        scale = self.constant(size**-0.25)
        scores = self.op("MatMul", self.op("Mul", q, scale), self.op("Mul", k, scale))
        weights = self.op("Softmax", self.op("Add", scores, mask), axis=-1)
        joined = self.op("Transpose", self.op("MatMul", weights, v), perm=[0, 2, 1, 3])
        return self.op("Reshape", joined, self.shape(-1, tokens, heads * size))
