"""A fake of NVIDIA's cuDNN frontend. It computes graphs, convolutions and attention as documented, on the host."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
from host_libraries import attended

from graphkit.ops.nn.conv import Geometry, convolve, convolve_grad_input, convolve_grad_weight
from graphkit.ops.xp import numpy_xp

# The stream of the calls, as the library knows it.
STREAM = 77

diagonal_alignment = Enum("diagonal_alignment", ["TOP_LEFT", "BOTTOM_RIGHT"])
data_type = Enum("data_type", ["HALF", "BFLOAT16", "FLOAT", "DOUBLE"])
heur_mode = Enum("heur_mode", ["A", "B", "FALLBACK"])
numerical_note = Enum(
    "numerical_note",
    ["TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "FFT", "NONDETERMINISTIC", "WINOGRAD"],
)
# bfloat16 apart.
ELEMENTS = {data_type.HALF: np.float16, data_type.FLOAT: np.float32, data_type.DOUBLE: np.float64}


class cudnnGraphNotSupportedError(Exception):  # noqa: N801 - the library's name
    pass


class Tensor:
    def __init__(self, name: str, dim: Sequence[int], stride: Sequence[int], kind: Any, uid: int | None) -> None:
        self.name, self.dim, self.stride, self.kind, self.uid = name, dim, stride, kind, uid
        self.output = False

    def set_output(self, output: bool) -> Tensor:
        self.output = output
        return self

    def set_data_type(self, kind: Any) -> Tensor:
        self.kind = kind
        return self

    def set_uid(self, uid: int) -> Tensor:
        self.uid = uid
        return self

    def set_dim(self, dim: Sequence[int]) -> Tensor:
        self.dim = dim
        return self

    def set_stride(self, stride: Sequence[int]) -> Tensor:
        self.stride = stride
        return self

    def at(self, addresses: dict[int, int]) -> np.ndarray:
        assert self.uid is not None
        dtype = np.dtype(ELEMENTS[self.kind])
        last = sum((n - 1) * s for n, s in zip(self.dim, self.stride, strict=True)) + 1
        memory = (ctypes.c_uint8 * (last * dtype.itemsize)).from_address(addresses[self.uid])
        strides = [s * dtype.itemsize for s in self.stride]
        return np.lib.stride_tricks.as_strided(np.frombuffer(memory, dtype), self.dim, strides)


class Graph:
    """The class `pygraph`. ways: number of plans of the library. All need more than `least_workspace` bytes."""

    ways = 1
    least_workspace = 0
    made: list[Graph] = []

    def __init__(self, io_data_type: Any, intermediate_data_type: Any, compute_data_type: Any, handle: Any) -> None:
        assert intermediate_data_type is compute_data_type
        handle.used()
        self.wide = np.dtype(ELEMENTS[compute_data_type])
        self.steps: list[str] = []
        self.unwanted: set[Any] = set()
        self.bias_of: Tensor | None = None
        self.added: Tensor | None = None
        Graph.made.append(self)

    def tensor(self, name: str, dim: Any, stride: Any, data_type: Any, uid: int) -> Tensor:
        assert len(dim) == len(stride) >= 4, "the library knows two spatial axes and more"
        return Tensor(name, dim, stride, data_type, uid)

    def conv_fprop(self, image: Tensor, weight: Tensor, **windows: Any) -> Tensor:
        return self._convolution(windows, x=image, w=weight)

    def conv_dgrad(self, loss: Tensor, filter: Tensor, **windows: Any) -> Tensor:
        return self._convolution(windows, y=loss, w=filter)

    def conv_wgrad(self, image: Tensor, loss: Tensor, **windows: Any) -> Tensor:
        return self._convolution(windows, x=image, y=loss)

    def _convolution(self, windows: dict[str, list[int]], **tensors: Tensor) -> Tensor:
        assert windows.keys() == {"pre_padding", "post_padding", "stride", "dilation"}
        self.windows, self.given = windows, tensors
        self.result = Tensor("result", (), (), None, None)
        return self.result

    def bias(self, input: Tensor, bias: Tensor) -> Tensor:
        assert input is self.result
        assert [n for axis, n in enumerate(bias.dim) if axis != 1] == [1] * (len(bias.dim) - 1)
        self.bias_of = bias
        return input

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        assert a is self.result
        self.added = b
        return a

    def sdpa(
        self, q: Tensor, k: Tensor, v: Tensor, attn_scale: float, generate_stats: bool, **diagonal: Any
    ) -> tuple[Tensor, None]:
        assert diagonal in (
            {}, {"diagonal_alignment": diagonal_alignment.BOTTOM_RIGHT, "diagonal_band_right_bound": 0},
        )  # fmt: skip
        assert not generate_stats
        for tensor in (q, k, v):
            assert tensor.dim[3] % 8 == 0
            assert tensor.stride[3] == 1
        assert q.dim[2] <= k.dim[2] or not diagonal
        self.scale, self.causal, self.given = attn_scale, bool(diagonal), {"q": q, "k": k, "v": v}
        self.result = Tensor("result", (), (), None, None)
        return self.result, None

    # --- plans ----------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        assert self.result.output
        self.steps.append("validate")
        if "q" in self.given:
            q, k, v = (tensor.dim for tensor in self.given.values())
            assert (q[0], q[3]) == (k[0], k[3])
            assert q[1] % k[1] == 0
            assert k[:3] == v[:3]
            assert list(self.result.dim) == [*q[:3], v[3]]
            return
        (wanted,) = {"x", "w", "y"} - self.given.keys()
        sizes = {name: tensor.dim for name, tensor in (self.given | {wanted: self.result}).items()}
        w = self.windows
        columns = (sizes["x"][2:], sizes["w"][2:], *w.values())
        counted = [
            (size + begin + end - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, begin, end, stride, dilation in zip(*columns, strict=True)
        ]
        assert counted == list(sizes["y"][2:]), "the library counts positions by its formula"
        assert all(n >= 0 for n in (*w["pre_padding"], *w["post_padding"]))
        assert sizes["x"][1] % sizes["w"][1] == 0
        self.wanted, self.sizes = wanted, sizes

    def build_operation_graph(self) -> None:
        self.steps.append("build_operation_graph")

    def create_execution_plans(self, modes: list[Any]) -> None:
        assert modes == [heur_mode.A, heur_mode.FALLBACK]
        self.steps.append("create_execution_plans")

    def deselect_numeric_notes(self, notes: list[Any]) -> None:
        assert self.steps[-1] == "create_execution_plans", "what has no plan yet keeps no note"
        self.unwanted |= set(notes)

    def deselect_workspace_greater_than(self, limit: int) -> None:
        self.workspace = limit

    def check_support(self) -> None:
        if not self.alternatives or self.workspace < self.least_workspace:
            raise cudnnGraphNotSupportedError("no engine")
        self.steps.append("check_support")

    def build_plans(self) -> None:
        assert self.steps == ["validate", "build_operation_graph", "create_execution_plans", "check_support"]
        self.steps.append("build_plans")

    def execute(self, addresses: dict[int, int], workspace: int, handle: Any) -> None:
        handle.used()
        assert handle.stream == STREAM
        assert self.steps[-1] == "build_plans"
        assert type(workspace) is int
        assert workspace % 256 == 0
        ctypes.memset(workspace, 0xFF, self.workspace)
        result = self._attended(addresses) if "q" in self.given else self._convolved(addresses)
        found = self.result.at(addresses)
        found[...] = result.astype(found.dtype)

    def _attended(self, addresses: dict[int, int]) -> np.ndarray:
        q, k, v = (tensor.at(addresses).astype(self.wide) for tensor in self.given.values())
        return attended(q, k, v, self.scale, self.causal)

    def _convolved(self, addresses: dict[int, int]) -> np.ndarray:
        w, group = self.windows, self.sizes["x"][1] // self.sizes["w"][1]
        geometry = Geometry(*map(tuple, (w["stride"], w["dilation"], w["pre_padding"], w["post_padding"])), group)  # type: ignore[arg-type]
        given = {name: tensor.at(addresses).astype(self.wide) for name, tensor in self.given.items()}
        match self.wanted:
            case "y":
                result = convolve(numpy_xp, given["x"], given["w"], geometry)
            case "x":
                result = convolve_grad_input(numpy_xp, given["y"], given["w"], tuple(self.sizes["x"][2:]), geometry)
            case "w":
                result = convolve_grad_weight(numpy_xp, given["x"], given["y"], tuple(self.sizes["w"][2:]), geometry)
        if self.bias_of is not None:
            result = result + self.bias_of.at(addresses).astype(self.wide)
        if self.added is not None:
            assert list(self.added.dim) == list(self.sizes["y"])
            result = result + self.added.at(addresses).astype(self.wide)
        return result


class Handle:
    """A handle, used only in the thread that made it. alive: handles that are not destroyed."""

    alive: set[Handle] = set()

    def __init__(self) -> None:
        self.thread, self.stream = threading.get_ident(), 0
        Handle.alive.add(self)

    def used(self) -> None:
        assert threading.get_ident() == self.thread, "two threads use one handle"
        assert self in Handle.alive


def module() -> Any:
    """Return the fake module that `import cudnn` gives."""
    Graph.alternatives, Graph.least_workspace = 1, 0
    Graph.made = []
    Handle.alive.clear()

    def set_stream(handle: Handle, stream: int) -> None:
        handle.used()
        handle.stream = stream

    return SimpleNamespace(
        data_type=data_type, diagonal_alignment=diagonal_alignment, heur_mode=heur_mode,
        numerical_note=numerical_note, pygraph=Graph, set_stream=set_stream,
        cudnnGraphNotSupportedError=cudnnGraphNotSupportedError, backend_version=lambda: 92800,
        create_handle=Handle, destroy_handle=Handle.alive.remove,
    )  # fmt: skip
