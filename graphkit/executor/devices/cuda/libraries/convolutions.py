"""Convolutions and their gradients as graphs of cuDNN."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from graphkit.executor.devices.cuda.launches import Convolution
from graphkit.executor.devices.cuda.libraries import cudnn
from graphkit.executor.devices.cuda.libraries.workspace import NotInLibrary
from graphkit.executor.devices.operands import channel_strides, row_major
from graphkit.ir.types import DType

# The numbers of tensors, in the order of `Convolution.arguments`.
_FIRST, _SECOND, _RESULT, _BIAS, _RESIDUAL = range(1, 6)


def planned(convolution: Convolution, **target: Any) -> Any:
    """Return the planned graph of a convolution. target: see `cudnn.planned`."""
    return cudnn.planned(partial(_graph, convolution), convolution.workspace, partial(_rounding, convolution), **target)


def _rounding(convolution: Convolution, dnn: Any) -> list[Any]:
    """Return the notes of plans that would round operands, if the convolution must not round them."""
    notes = dnn.numerical_note
    is_exact = convolution.kind is DType.FLOAT32 and not convolution.tf32
    return [notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS] if is_exact else []


def _graph(convolution: Convolution, dnn: Any, target: dict[str, Any]) -> Any:
    graph, kind = cudnn.graph(dnn, convolution.kind, target), cudnn.data_type(dnn, convolution.kind)
    geometry = convolution.geometry
    sizes, strides = _planes(convolution)

    def tensor(name: str, number: int, of: Sequence[int], steps: Sequence[int]) -> Any:
        return graph.tensor(name=name, dim=list(of), stride=list(steps), data_type=kind, uid=number)

    given = {
        "pre_padding": _along(geometry.begin, 0),
        "post_padding": _along(_end(convolution), 0),
        "stride": _along(geometry.strides, 1),
        "dilation": _along(geometry.dilations, 1),
    }
    factors = [name for name in "xwy" if name != convolution.wanted]
    one, two = (
        tensor(name, number, sizes[name], strides[name])
        for name, number in zip(factors, (_FIRST, _SECOND), strict=True)
    )
    match convolution.wanted:
        case "y":
            result = graph.conv_fprop(image=one, weight=two, **given)
        case "x":
            result = graph.conv_dgrad(loss=two, filter=one, **given)
        case "w":
            result = graph.conv_wgrad(image=one, loss=two, **given)
    if convolution.bias is not None:
        channels = [1, sizes["y"][1], *(1 for _ in sizes["y"][2:])]
        result = graph.bias(input=result, bias=tensor("bias", _BIAS, channels, row_major(channels)))
    if convolution.residual is not None:
        result = graph.add(a=result, b=tensor("residual", _RESIDUAL, sizes["y"], strides["y"]))
    made, wanted = cudnn.data_type(dnn, convolution.made), convolution.wanted
    result.set_output(True).set_data_type(made).set_uid(_RESULT).set_dim(sizes[wanted]).set_stride(strides[wanted])
    return graph


def _planes(convolution: Convolution) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Return sizes and strides of x, w and y."""
    sizes = {"x": _plane(convolution.x), "w": _plane(convolution.w), "y": _plane(convolution.y)}
    last = {"x": convolution.last, "w": convolution.filters_last, "y": convolution.last}
    return sizes, {name: channel_strides(of, last=last[name]) for name, of in sizes.items()}


def _plane(sizes: Sequence[int]) -> list[int]:
    """Return sizes with at least two spatial axes, as the library requires. Added axes have size 1."""
    return [*sizes[:2], *[1] * (4 - len(sizes)), *sizes[2:]]


def _along(numbers: Sequence[int], alone: int) -> list[int]:
    """Return a setting for each spatial axis of `_plane`. alone: the setting of an added axis."""
    return [*[alone] * (2 - len(numbers)), *numbers]


def _end(convolution: Convolution) -> list[int]:
    """Return the padding at the end of each axis for which the library computes as many positions as graphkit."""
    g, found = convolution.geometry, []
    axes = (convolution.x[2:], convolution.w[2:], convolution.y[2:], g.strides, g.dilations, g.begin, g.end)
    for size, kernel, positions, stride, dilation, begin, end in zip(*axes, strict=True):
        span = dilation * (kernel - 1) + 1
        least = max((positions - 1) * stride + span - size - begin, 0)
        fitting = [e for e in (end, least) if e >= 0 and (size + begin + e - span) // stride + 1 == positions]
        if not fitting:
            raise NotInLibrary("cuDNN counts other positions")
        found.append(fitting[0])
    return found
