"""Convolutions and their gradients by cuDNN, through NVIDIA's frontend. Plans are made once, for each kernel.

https://docs.nvidia.com/deeplearning/cudnn/frontend has what graphs, plans and notes are.
"""

from __future__ import annotations

import importlib
import threading
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any

from graphkit.errors import MissingDependency, RuntimeFailure
from graphkit.executor.devices.cuda.launches import Convolution
from graphkit.executor.devices.cuda.libraries.way import NoWay
from graphkit.executor.devices.operands import row_major
from graphkit.ir.types import DType

# Names of the frontend's data types.
_TYPES = {DType.FLOAT16: "HALF", DType.BFLOAT16: "BFLOAT16", DType.FLOAT32: "FLOAT", DType.FLOAT64: "DOUBLE"}

# What the frontend raises for all but graphs that it has no plan for.
_REFUSALS = (RuntimeError, ValueError)

# What tensors are called, in the order of a convolution's arguments.
_FIRST, _SECOND, _RESULT, _BIAS = range(1, 5)


class PreparedConvolution:
    """A convolution for which the library has chosen how it computes it. For one thread at a time.

    Raises MissingDependency without the frontend, NoWay where the library cannot compute it.
    """

    def __init__(self, convolution: Convolution, card: int):
        """card: its number; it is the current one."""
        self._card = card
        self._graph = planned(convolution, handle=_handle(card))
        _cards.add(card)

    def __call__(self, addresses: Sequence[int], stream: int) -> None:
        """Queue the convolution on a stream. addresses: of its arguments, 0 where there is none. Raises RuntimeFailure
        for what the library refuses."""
        *tensors, workspace = addresses
        at = {number: address for number, address in enumerate(tensors, 1) if address}
        handle = _handle(self._card)
        try:
            frontend().set_stream(handle=handle, stream=stream)
            self._graph.execute(at, workspace, handle=handle)
        except _REFUSALS as error:
            raise RuntimeFailure(f"cuDNN {version()}: {error}") from error


def planned(convolution: Convolution, **target: Any) -> Any:
    """The library's graph, with the plan that its heuristics put first.

    target: what the frontend's `pygraph` takes to know the card.
    """
    dnn = frontend()
    try:
        graph = _graph(dnn, convolution, target)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([dnn.heur_mode.A, dnn.heur_mode.FALLBACK])
        graph.deselect_numeric_notes(_unwanted(dnn, convolution))
        graph.deselect_workspace_greater_than(convolution.workspace)
        graph.check_support()
        graph.build_plans()
    except dnn.cudnnGraphNotSupportedError as error:
        raise NoWay(f"cuDNN {version()}: {error}") from error
    except _REFUSALS as error:
        raise RuntimeFailure(f"cuDNN {version()}: {error}") from error
    return graph


def _unwanted(dnn: Any, convolution: Convolution) -> list[Any]:
    """Notes of plans whose results differ from run to run, that multiply fewer bits than the operands have, or where an
    element that is not finite spoils those beside it."""
    notes = dnn.numerical_note
    found = [notes.NONDETERMINISTIC, notes.REDUCED_PRECISION_REDUCTION, notes.WINOGRAD, notes.FFT]
    if convolution.kind is DType.FLOAT32 and not convolution.tf32:
        found += [notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS]
    return found


def _graph(dnn: Any, convolution: Convolution, target: dict[str, Any]) -> Any:
    kind = getattr(dnn.data_type, _TYPES[convolution.kind])
    wide = dnn.data_type.DOUBLE if convolution.kind is DType.FLOAT64 else dnn.data_type.FLOAT
    graph = dnn.pygraph(io_data_type=kind, intermediate_data_type=wide, compute_data_type=wide, **target)
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
    result.set_output(True).set_data_type(kind).set_uid(_RESULT).set_dim(wanted).set_stride(row_major(wanted))
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


def version() -> str:
    """Of cuDNN. Raises MissingDependency without the frontend, RuntimeFailure without the library."""
    try:
        number = frontend().backend_version()
    except RuntimeError as error:
        raise RuntimeFailure(f"cuDNN: {error}") from error
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


class _Handle:
    """A handle that goes with the last reference to it."""

    def __init__(self, card: int):
        try:
            self.made = frontend().create_handle()
        except _REFUSALS as error:
            raise RuntimeFailure(f"cuDNN on card {card}: {error}") from error
        weakref.finalize(self, frontend().destroy_handle, self.made).atexit = False


# No two threads may use one handle.
_of_thread = threading.local()

# Those that compute convolutions.
_cards: set[int] = set()


def be_ready(card: int) -> None:
    """Make what this thread's calls would make, and must not while they are recorded. card: the current one."""
    if card in _cards:
        _handle(card)


def _handle(card: int) -> Any:
    """This thread's for a card, which is the current one."""
    handles: dict[int, _Handle] = _of_thread.__dict__.setdefault("handles", {})
    if card not in handles:
        handles[card] = _Handle(card)
    return handles[card].made


@cache
def frontend() -> Any:
    """NVIDIA's module."""
    try:
        return importlib.import_module("cudnn")
    except (ImportError, OSError, AssertionError) as error:  # the last two: of the library that it loads
        raise MissingDependency(
            f"convolutions on a card are computed by cuDNN ({error}): pip install 'graphkit[cuda12]', or [cuda13]"
        ) from error
