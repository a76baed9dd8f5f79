"""A model in ONNX Runtime that reads and writes arrays of the caller, and the operators that ONNX Runtime supports."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from graphkit.ir.graph import Node
from graphkit.ir.types import DType, TensorType, dtype_of
from graphkit.onnx_io.codes import NEWEST_OPSET
from graphkit.onnx_io.compare import OnnxRuntimeModel, onnxruntime_module
from graphkit.onnx_io.exporter import DEFAULT_TARGET
from graphkit.onnx_io.spelling import domain_version
from graphkit.onnx_io.tensors import CODES
from graphkit.ops import Op, operator

_CPU = "CPUExecutionProvider"
_DOMAINS = ("", "ai.onnx.ml")
# Results of up to this many bytes are copied, because binding their memory takes longer.
_COPIED = 1 << 17
# ONNX Runtime computes float16 in float32 where it has no kernel, by inserting casts.
_COMPUTED_AS = {DType.FLOAT16: DType.FLOAT32}
# Some operators in the functions of other operators have no kernel for these types.
_NOT_IN_FUNCTIONS = frozenset({DType.FLOAT64, DType.BFLOAT16})
# ONNX Runtime executes them itself, without a table of types.
_CONTROL = frozenset({"If", "Loop", "Scan"})


class BoundModel(OnnxRuntimeModel):
    """A model in ONNX Runtime that writes its results to given arrays, without copies of inputs or results.

    Its threads sleep between runs: spinning threads would take the cores from graphkit's threads.
    """

    def __init__(self, model: ModelProto, threads: int | None = None):
        super().__init__(model, threads, spinning=False)
        self._local = threading.local()

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return new arrays: the outputs for the inputs, in the order of the model."""
        return tuple(self.run(dict(zip(self.inputs, arrays, strict=True))).values())

    def write_into(self, arrays: Sequence[np.ndarray], results: Sequence[np.ndarray | None]) -> None:
        """Compute the outputs, and write them to `results` (None: not used)."""
        if sum(array.nbytes for array in results if array is not None) <= _COPIED:
            for target, result in zip(results, self(*arrays), strict=True):
                if target is not None:
                    _copy(target, result)
            return
        local = self._local
        binding = getattr(local, "binding", None)
        if binding is None:
            binding = local.binding = self._session.io_binding()
        kept = []
        for name, array in zip(self.inputs, arrays, strict=True):
            array = np.asarray(array, order="C")
            kept.append(array)
            binding.bind_input(name, "cpu", 0, _element_type(array), array.shape, array.ctypes.data)
        for name, target in zip(self._given_names, results, strict=True):
            if target is None:
                binding.bind_output(name, "cpu")
            else:
                binding.bind_output(name, "cpu", 0, _element_type(target), target.shape, target.ctypes.data)
        try:
            self._session.run_with_iobinding(binding)
        finally:
            binding.clear_binding_inputs()
            binding.clear_binding_outputs()


def _copy(target: np.ndarray, result: np.ndarray) -> None:
    """Copy a result. Raises ValueError if it has another dtype or shape."""
    if target.dtype != result.dtype or target.shape != result.shape:
        raise ValueError(
            f"a result is {result.dtype}{list(result.shape)}; {target.dtype}{list(target.shape)} is expected"
        )
    np.copyto(target, result)


def _element_type(array: np.ndarray) -> Any:
    return array.dtype.type if array.dtype.kind in "fiub" else CODES[dtype_of(array.dtype)]


def runtime_refusal(node: Node) -> str | None:
    """Return why ONNX Runtime cannot compute a node on the CPU; None if it can. The node is exported before."""
    form = operator(node, Op).onnx
    if form is None or form.domain not in _DOMAINS:
        return f"{node.op.name} is not an operator of the ONNX standard"
    schema = _schema(form.name, form.domain)
    if schema is None:
        return f"no opset that graphkit exports has {form.name}"
    if form.name in _CONTROL:
        return None
    kernels = _kernels().get((form.domain, form.name), ())
    since = schema.since_version
    found = [types for first, last, types in kernels if first == since or first <= since <= last]
    if not found:
        is_function = schema.has_function or schema.has_context_dependent_function
        if is_function and not _NOT_IN_FUNCTIONS.intersection(_dtypes(node)):
            return None
        return f"ONNX Runtime has no kernel for {form.name} of {_types(node)}, opset {since}"
    if any(_fits(node, schema, types) for types in found):
        return None
    return f"ONNX Runtime has no kernel for {form.name} of {_types(node)}"


def _dtypes(node: Node) -> list[DType]:
    return [v.type.dtype for v in (*node.operands, *node.outputs) if isinstance(v.type, TensorType)]


def _types(node: Node) -> str:
    return ", ".join(str(v.type.dtype) if isinstance(v.type, TensorType) else str(v.type) for v in node.operands)


@functools.cache
def _schema(name: str, domain: str) -> Any:
    """Return the schema of an operator in an export; None if no export has it."""
    for opset in range(DEFAULT_TARGET, NEWEST_OPSET + 1):
        try:
            return onnx.defs.get_schema(name, domain_version(domain, opset, {name}) if domain else opset, domain)
        except onnx.defs.SchemaError:
            continue
    return None


@functools.cache
def _kernels() -> dict[tuple[str, str], list[tuple[int, int, dict[str, list[str]]]]]:
    """Return the CPU kernels of standard operators: first and last opset, and the types of each type parameter."""
    module = onnxruntime_module().capi.onnxruntime_pybind11_state
    found: dict[tuple[str, str], list[tuple[int, int, dict[str, list[str]]]]] = {}
    for kernel in module.get_all_opkernel_def():
        domain = "" if kernel.domain == "ai.onnx" else kernel.domain
        if kernel.provider == _CPU and domain in _DOMAINS:
            first, last = kernel.version_range
            found.setdefault((domain, kernel.op_name), []).append((first, last, kernel.type_constraints))
    return found


def _fits(node: Node, schema: Any, types: dict[str, list[str]]) -> bool:
    """Return whether a kernel with these types accepts the operands and results of a node."""
    for values, formals in ((node.inputs, schema.inputs), (node.outputs, schema.outputs)):
        for position, value in enumerate(values):
            if value is None or not formals or not isinstance(value.type, TensorType):
                continue
            allowed = types.get(formals[min(position, len(formals) - 1)].type_str)
            dtype = value.type.dtype
            if allowed and not {_spelled(dtype), _spelled(_COMPUTED_AS.get(dtype, dtype))} & set(allowed):
                return False
    return True


def _spelled(dtype: DType) -> str:
    """Return the name of a tensor type, such as `tensor(float)`."""
    return f"tensor({onnx.TensorProto.DataType.Name(CODES[dtype]).lower()})"
