"""The backend that runs groups in ONNX Runtime on the CPU."""

from __future__ import annotations

from graphkit.backend.backends import Backend, Part
from graphkit.ir.graph import Node
from graphkit.onnx_io.runtime_session import BoundModel, runtime_refusal


def _supports(node: Node) -> bool | str:
    return runtime_refusal(node) or True


def _compile(part: Part) -> BoundModel:
    return BoundModel(part.to_onnx(), part.threads)


BACKEND = Backend(
    name="onnxruntime",
    supports=_supports,
    compile=_compile,
    dynamic=True,
    control_flow=True,
    concurrent=True,
    min_nodes=3,
)
