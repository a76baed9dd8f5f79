"""The benchmark's networks as ONNX files, node for node what torch.onnx.export writes at opset 18 (batch norm kept).

Built with onnx.helper, so that no framework is needed. Weights are random and the same every time. Initialisers carry
the names of the modules in `torch_models.py`; a suffix says how the exporter stores them: "/T" transposed, "/iofc" with
the gates of an LSTM in ONNX's order and a leading direction axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
from builder import Batch, Builder, Feed
from onnx import TensorProto

RESNETS = {18: ((2, 2, 2, 2), False), 50: ((3, 4, 6, 3), True)}
# (expansion, channels, blocks, stride of the first), table 2 of Sandler et al. 2018.
MOBILE_STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)
)  # fmt: skip


Network = tuple[onnx.ModelProto, list[Feed]]


def mlp(batch: Batch) -> Network:
    """784-512-512-10 with ReLU."""
    b = Builder("mlp")
    h = b.input("x", [batch, 784])
    for number, (inputs, outputs) in enumerate([(784, 512), (512, 512), (512, 10)], 1):
        h = b.gemm(h, f"fc{number}", inputs, outputs)
        h = b.op("Relu", h) if number < 3 else h
    return b.model(logits=(h, [batch, 10])), b.feeds


def lenet(batch: Batch) -> Network:
    """Convolutions of 20 and 50 channels, tanh, max pooling, 500 tanh units, on 28x28."""
    b = Builder("lenet")
    h = b.input("x", [batch, 1, 28, 28])
    for number, channels in enumerate([(1, 20), (20, 50)], 1):
        h = b.op("Tanh", b.conv(h, f"conv{number}", channels, 5, bias=True))
        h = b.op("MaxPool", h, kernel_shape=[2, 2], strides=[2, 2])
    h = b.op("Tanh", b.gemm(b.op("Reshape", h, b.shape(-1, 800)), "fc1", 800, 500))
    return b.model(logits=(b.gemm(h, "fc2", 500, 10), [batch, 10])), b.feeds


def pointwise(batch: Batch, length: int = 1 << 22) -> Network:
    """sigmoid(gelu(x * y + 1)) * y - x with the tanh form of GELU, on `length` numbers."""
    b = Builder("pointwise")
    x, y = b.input("x", [batch, length]), b.input("y", [batch, length])
    z = b.op("Add", b.op("Mul", x, y), b.constant(1.0))
    cubic = b.op("Mul", b.constant(0.044715), b.op("Pow", z, b.constant(3.0)))
    inner = b.op("Mul", b.constant(math.sqrt(2 / math.pi)), b.op("Add", z, cubic))
    tanh = b.op("Add", b.op("Tanh", inner), b.constant(1.0))
    gelu = b.op("Mul", z, b.op("Mul", b.constant(0.5), tanh))
    result = b.op("Sub", b.op("Mul", b.op("Sigmoid", gelu), y), x)
    return b.model(z=(result, [batch, length])), b.feeds


def resnet(batch: Batch, layers: int) -> Network:
    """ResNet of He et al. 2015 on 224x224, the stride of a bottleneck on its 3x3 convolution."""
    stages, bottleneck = RESNETS[layers]
    b = Builder(f"resnet{layers}")
    x = b.input("x", [batch, 3, 224, 224])

    def conv_norm(h: str, path: str, number: int, channels: tuple[int, int], kernel: int, stride: int = 1) -> str:
        h = b.conv(h, f"{path}conv{number}", channels, kernel, stride=stride, pad=kernel // 2)
        return b.norm(h, f"{path}bn{number}", channels[1])

    h = b.op("Relu", conv_norm(x, "", 1, (3, 64), 7, 2))
    h = b.op("MaxPool", h, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    width = 64
    for stage, blocks in enumerate(stages):
        inner = 64 << stage
        outer = inner * 4 if bottleneck else inner
        for block in range(blocks):
            path, stride = f"layer{stage + 1}.{block}.", 2 if stage and not block else 1
            if bottleneck:
                y = b.op("Relu", conv_norm(h, path, 1, (width, inner), 1))
                y = b.op("Relu", conv_norm(y, path, 2, (inner, inner), 3, stride))
                y = conv_norm(y, path, 3, (inner, outer), 1)
            else:
                y = b.op("Relu", conv_norm(h, path, 1, (width, inner), 3, stride))
                y = conv_norm(y, path, 2, (inner, outer), 3)
            if stride != 1 or width != outer:
                shortcut = b.conv(h, f"{path}downsample.0", (width, outer), 1, stride=stride)
                h = b.norm(shortcut, f"{path}downsample.1", outer)
            h, width = b.op("Relu", b.op("Add", y, h)), outer
    h = b.op("Reshape", b.op("GlobalAveragePool", h), b.shape(-1, width))
    return b.model(logits=(b.gemm(h, "fc", width, 1000), [batch, 1000])), b.feeds


def mobilenetv2(batch: Batch) -> Network:
    """MobileNetV2 of Sandler et al. 2018 on 224x224; ReLU6 is a Clip."""
    b = Builder("mobilenetv2")
    x = b.input("x", [batch, 3, 224, 224])

    def unit(h: str, path: str, channels: tuple[int, int], kernel: int, stride: int = 1, group: int = 1) -> str:
        h = b.conv(h, f"{path}.0", channels, kernel, stride=stride, pad=kernel // 2, group=group)
        return b.op("Clip", b.norm(h, f"{path}.1", channels[1]), b.constant(0.0), b.constant(6.0))

    h, width, number = unit(x, "features.0", (3, 32), 3, 2), 32, 1
    for expansion, channels, blocks, first in MOBILE_STAGES:
        for block in range(blocks):
            path, stride, inner = f"features.{number}.conv.", first if not block else 1, width * expansion
            y = h if expansion == 1 else unit(h, f"{path}0", (width, inner), 1)
            depthwise = 0 if expansion == 1 else 1
            y = unit(y, f"{path}{depthwise}", (inner, inner), 3, stride, inner)
            y = b.conv(y, f"{path}{depthwise + 1}", (inner, channels), 1)
            y = b.norm(y, f"{path}{depthwise + 2}", channels)
            h = b.op("Add", h, y) if stride == 1 and width == channels else y
            width, number = channels, number + 1
    h = unit(h, f"features.{number}", (width, 1280), 1)
    h = b.op("Reshape", b.op("ReduceMean", h, b.shape(2, 3), keepdims=1), b.shape(-1, 1280))
    return b.model(logits=(b.gemm(h, "classifier", 1280, 1000), [batch, 1000])), b.feeds


def bert(batch: Batch, tokens: int = 128, layers: int = 12, width: int = 768, vocabulary: int = 30522) -> Network:
    """BERT-base (Devlin et al. 2018): post-normalised encoder, padding mask, tanh pooler."""
    b = Builder("bert")
    ids = b.input("input_ids", [batch, tokens], vocabulary)
    attend = b.input("attention_mask", [batch, tokens], 1)
    kinds = b.input("token_type_ids", [batch, tokens], 2)
    h = b.op("Gather", b.weight("words.weight", (vocabulary, width), 0.5), ids)
    h = b.op("Add", h, b.op("Gather", b.weight("kinds.weight", (2, width), 0.5), kinds))
    places = b.op("Gather", b.weight("positions.weight", (512, width), 0.5), b.constant([range(tokens)], np.int64))
    h = b.layer_norm(b.op("Add", h, places), "norm", width, 1e-12)
    seen = b.op("Cast", b.op("Unsqueeze", attend, b.shape(1, 2)), to=TensorProto.FLOAT)
    mask = b.op("Mul", b.op("Sub", b.constant(1.0), seen), b.constant(np.finfo(np.float32).min))
    for layer in range(layers):
        path = f"layers.{layer}."
        q, k, v = (b.linear(h, f"{path}{name}", width, width) for name in ("query", "key", "value"))
        y = b.attention(q, k, v, mask, tokens, width // 64, 64)
        h = b.layer_norm(b.op("Add", b.linear(y, f"{path}out", width, width), h), f"{path}norm1", width, 1e-12)
        y = b.gelu(b.linear(h, f"{path}up", width, 4 * width))
        h = b.layer_norm(b.op("Add", b.linear(y, f"{path}down", 4 * width, width), h), f"{path}norm2", width, 1e-12)
    first = b.op("Gather", h, b.constant(0, np.int64), axis=1)
    pooled = b.op("Tanh", b.gemm(first, "pooler", width, width))
    return b.model(last=(h, [batch, tokens, width]), pooled=(pooled, [batch, width])), b.feeds


def transformer(batch: Batch, tokens: int = 128, layers: int = 4, width: int = 256, vocabulary: int = 8192) -> Network:
    """A causal, pre-normalised transformer with 4 heads and learnt positions."""
    b = Builder("transformer")
    ids = b.input("ids", [batch, tokens], vocabulary)
    h = b.op("Gather", b.weight("words.weight", (vocabulary, width), 0.5), ids)
    h = b.op("Add", h, b.weight("positions.weight", (tokens, width), 0.5))
    mask = b.constant(np.where(np.tri(tokens, dtype=bool), 0.0, -np.inf))
    for layer in range(layers):
        path = f"layers.{layer}."
        y = b.linear(b.layer_norm(h, f"{path}norm1", width), f"{path}qkv", width, 3 * width)
        q, k, v = b.op("Split", y, b.shape(width, width, width), outputs=3, axis=-1)
        h = b.op("Add", h, b.linear(b.attention(q, k, v, mask, tokens, 4, width // 4), f"{path}out", width, width))
        y = b.gelu(b.linear(b.layer_norm(h, f"{path}norm2", width), f"{path}up", width, 4 * width))
        h = b.op("Add", h, b.linear(y, f"{path}down", 4 * width, width))
    h = b.linear(b.layer_norm(h, "norm", width), "head", width, vocabulary, bias=False)
    return b.model(logits=(h, [batch, tokens, vocabulary])), b.feeds


def lstm(batch: Batch, steps: int = 35, layers: int = 2, width: int = 256, vocabulary: int = 10_000) -> Network:
    """A language model: embedding, LSTM layers from zero states, decoder; time is the first axis."""
    if isinstance(batch, str):
        raise ValueError("the initial states of the exported LSTM have a fixed batch")
    b = Builder("lstm")
    h = b.op("Gather", b.weight("words.weight", (vocabulary, width), 0.5), b.input("ids", [steps, batch], vocabulary))
    zero = b.constant(np.zeros((1, batch, width)))
    std = 1 / math.sqrt(3 * width)
    for layer in range(layers):
        w = b.weight(f"lstm.weight_ih_l{layer}/iofc", (1, 4 * width, width), std)
        r = b.weight(f"lstm.weight_hh_l{layer}/iofc", (1, 4 * width, width), std)
        bias = b.weight(f"lstm.bias_l{layer}/iofc", (1, 8 * width), std)
        every, _, _ = b.op("LSTM", h, w, r, bias, "", zero, zero, outputs=3, hidden_size=width)
        h = b.op("Reshape", b.op("Transpose", every, perm=[0, 2, 1, 3]), b.shape(steps, batch, width))
    return b.model(logits=(b.linear(h, "decoder", width, vocabulary), [steps, batch, vocabulary])), b.feeds


NETWORKS: dict[str, Callable[..., Network]] = {
    f.__name__: f for f in (mlp, lenet, pointwise, resnet, mobilenetv2, bert, transformer, lstm)
}
