"""Convolutions and their gradients as cuDNN knows them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from graphkit.executor.devices.cuda.launches import Convolution
from graphkit.executor.devices.cuda.libraries import cudnn
from graphkit.executor.devices.cuda.libraries.way import NoWay
from graphkit.executor.devices.operands import row_major
from graphkit.ir.types import DType

# What tensors are called, in the order of a convolution's arguments.
_FIRST, _SECOND, _RESULT, _BIAS = range(1, 5)


def planned(convolution: Convolution, **target: Any) -> Any:
    """As `cudnn.planned`."""
    return cudnn.planned(partial(_graph, convolution), convolution.workspace, partial(_rounding, convolution), **target)


def _rounding(convolution: Convolution, dnn: Any) -> list[Any]:
    """Notes of plans that multiply fewer bits than the operands have."""
    notes = dnn.numerical_note
    is_exact = convolution.kind is DType.FLOAT32 and not convolution.tf32
    return [notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS] if is_exact else []


def _graph(convolution: Convolution, dnn: Any, target: dict[str, Any]) -> Any:
    graph, kind = cudnn.graph(dnn, convolution.kind, target), cudnn.data_type(dnn, convolution.kind)
    geometry, sizes = convolution.geometry, {name: _plane(getattr(convolution, name)) for name in "xwy"}

    def tensor(name: str, number: int, of: Sequence[int]) -> Any:
        return graph.tensor(name=name, dim=list(of), stride=row_major(of), data_type=kind, uid=number)

    given = {
        "pre_padding": _along(geometry.begin, 0),
        "post_padding": _along(_end(convolution), 0),
        "stride": _along(geometry.strides, 1),
        "dilation": _along(geometry.dilations, 1),
    }
    one, two = (
        tensor(name, number, sizes[name])
        for name, number in zip((n for n in "xwy" if n != convolution.wanted), (_FIRST, _SECOND), strict=True)
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
        result = graph.bias(input=result, bias=tensor("bias", _BIAS, channels))
    wanted = sizes[convolution.wanted]
    made = cudnn.data_type(dnn, convolution.made)
    result.set_output(True).set_data_type(made).set_uid(_RESULT).set_dim(wanted).set_stride(row_major(wanted))
    return graph


def _plane(sizes: Sequence[int]) -> list[int]:
    """With two spatial axes at least: the library knows no fewer."""
    return [*sizes[:2], *[1] * (4 - len(sizes)), *sizes[2:]]


def _along(numbers: Sequence[int], alone: int) -> list[int]:
    """One for each spatial axis of `_plane`; `alone` for the axis that it adds."""
    return [*[alone] * (2 - len(numbers)), *numbers]


def _end(convolution: Convolution) -> list[int]:
    """Padding behind each axis with which the library counts as many positions as there are."""
    g, found = convolution.geometry, []
    axes = (convolution.x[2:], convolution.w[2:], convolution.y[2:], g.strides, g.dilations, g.begin, g.end)
    for size, kernel, positions, stride, dilation, begin, end in zip(*axes, strict=True):
        span = dilation * (kernel - 1) + 1
        least = max((positions - 1) * stride + span - size - begin, 0)
        fitting = [e for e in (end, least) if e >= 0 and (size + begin + e - span) // stride + 1 == positions]
        if not fitting:
            raise NoWay("cuDNN counts other positions")
        found.append(fitting[0])
    return found
