"""Convolution, Deconvolution, FullyConnected, Embedding and their older forms."""

from __future__ import annotations

from typing import Any

from graphkit.errors import InvalidModel, UnsupportedError
from graphkit.ir.graph import Value
from graphkit.mxnet_io.call import (
    Call,
    as_indices,
    converter,
    flattened,
    in_range,
    rank_of,
    sizes_of,
    static_sizes,
    transpose,
)
from graphkit.ops import F

_CHANNELS_LAST = {"NWC": "NCW", "NHWC": "NCHW", "NDHWC": "NCDHW"}


def channels_last(call: Call) -> bool:
    """Read the attribute layout; return whether channels are the last axis."""
    layout = call.attributes.text("layout", "NCHW")
    if layout not in (*_CHANNELS_LAST, *_CHANNELS_LAST.values()):
        raise UnsupportedError(f"layout {layout}")
    return layout in _CHANNELS_LAST


def to_front(x: Value) -> Value:
    """Move channels from the last axis to axis 1."""
    rank = rank_of(x)
    return transpose(x, 0, rank - 1, *range(1, rank - 1))


def to_back(x: Value) -> Value:
    """Move channels from axis 1 to the last axis."""
    rank = rank_of(x)
    return transpose(x, 0, *range(2, rank), 1)


def window(call: Call, kernel: tuple[int, ...]) -> dict[str, Any]:
    """Read stride, dilate and pad of a convolution: by default 1, 1 and 0 for each axis of the kernel."""
    ones = (1,) * len(kernel)
    pad = call.attributes.integers("pad", (0,) * len(kernel)) or (0,) * len(kernel)
    found = {
        "strides": call.attributes.integers("stride", ones) or ones,
        "dilations": call.attributes.integers("dilate", ones) or ones,
        "pads": (*pad, *pad),
    }
    if any(len(value) != len(kernel) * (1 + (key == "pads")) for key, value in found.items()):
        raise InvalidModel(f"kernel {kernel}, stride, dilate and pad must have equally many numbers")
    return found


@converter("Convolution", "Convolution_v1", "_npx_convolution")
def convolution(call: Call) -> Value:
    """Weight [filters, channels / groups, *kernel]; with channels last, [filters, *kernel, channels / groups]."""
    attributes = call.attributes
    kernel = attributes.integers("kernel")
    places = window(call, kernel)
    attributes.integer("num_filter", 0)
    last = channels_last(call)
    x, weight = (to_front(call[0]), to_front(call[1])) if last else (call[0], call[1])
    bias = None if attributes.flag("no_bias", False) else call[2]
    group = attributes.integer("num_group", 1)
    y: Value = F.conv(x, weight, bias, group=group, kernel_shape=kernel, **places, name=call.name)
    return to_back(y) if last else y


@converter("Deconvolution", "_npx_deconvolution")
def deconvolution(call: Call) -> Value:
    """Weight [channels, filters / groups, *kernel]. `target_shape` replaces pad and adj (InferPad)."""
    attributes = call.attributes
    kernel = attributes.integers("kernel")
    places = window(call, kernel)
    attributes.integer("num_filter", 0)
    if channels_last(call):
        raise UnsupportedError("layout: Deconvolution with channels last")
    zeros = (0,) * len(kernel)
    adj = attributes.integers("adj", zeros) or zeros
    target = attributes.integers("target_shape")
    x = call[0]
    if target and any(target):
        pads, adjs = [], []
        spatial = static_sizes(x, range(2, rank_of(x)))
        for size, wanted, k, stride, dilate in zip(
            spatial, target, kernel, places["strides"], places["dilations"], strict=True
        ):
            surplus = stride * (size - 1) + dilate * (k - 1) + 1 - wanted
            if surplus < 0:
                raise InvalidModel(f"target_shape {target} is larger than the result without padding")
            pads.append((surplus + 1) // 2)
            adjs.append(surplus % 2)
        places["pads"], adj = (*pads, *pads), tuple(adjs)
    bias = None if attributes.flag("no_bias", True) else call[2]
    group = attributes.integer("num_group", 1)
    result: Value = F.conv_transpose(
        x, call[1], bias, group=group, kernel_shape=kernel, output_padding=adj, **places, name=call.name
    )
    return result


@converter("FullyConnected", "_npx_fully_connected")
def fully_connected(call: Call) -> Value:
    """Weight [units, features]. Unless flatten is False, all axes but the first are features."""
    attributes = call.attributes
    attributes.integer("num_hidden", 0)
    bias = None if attributes.flag("no_bias", False) else call[2]
    x = flattened(call[0]) if attributes.flag("flatten", True) else call[0]
    if x.rank == 2:
        result: Value = F.gemm(x, call[1], bias, transB=True, name=call.name)
        return result
    product: Value = F.mat_mul(x, transpose(call[1], 1, 0), name="" if bias is not None else call.name)
    return product if bias is None else F.add(product, bias, name=call.name)


@converter("Embedding", "_contrib_SparseEmbedding", "_npx_embedding")
def embedding(call: Call) -> Value:
    """Rows of a table. Indices may be floating point; those outside of the table are clipped."""
    call.attributes.ignore("input_dim", "output_dim", "dtype", "deterministic")
    table = call[1]
    result: Value = F.gather(table, in_range(as_indices(call[0]), sizes_of(table, 0), "clip"), axis=0, name=call.name)
    return result
