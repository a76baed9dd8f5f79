"""ONNX Runtime as the reference to compare with. The only place that imports onnxruntime."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from graphkit import config
from graphkit.errors import InputError, InvalidModel, MissingDependency, RuntimeFailure, did_you_mean
from graphkit.ir.atomic import scratch_folder
from graphkit.ir.names import unique_names
from graphkit.ir.types import DType, dtype_of
from graphkit.onnx_io.tensors import CODES, DTYPES, from_bytes, packed_nbytes

# Element types that numpy has itself. Arrays of others (bfloat16, float8, int4) are given to ONNX Runtime as bytes.
_NATIVE = frozenset(
    {
        DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.INT8, DType.INT16, DType.INT32, DType.INT64, DType.UINT8,
        DType.UINT16, DType.UINT32, DType.UINT64, DType.BOOL, DType.STRING,
    }
)  # fmt: skip


def onnxruntime_module() -> ModuleType:
    """Return the package onnxruntime. Raises MissingDependency if it is not installed."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependency(
            f"ONNX Runtime needs the package onnxruntime ({error}): pip install onnxruntime"
        ) from None
    onnxruntime.set_default_logger_severity(3)
    module: ModuleType = onnxruntime
    return module


def runtime_version() -> str:
    """The version of the installed ONNX Runtime; raises MissingDependency."""
    return str(onnxruntime_module().__version__)


class OnnxRuntimeModel:
    """A model in ONNX Runtime on the CPU: `OnnxRuntimeModel("net.onnx").run({"x": array})`.

    `threads` is the size of its intra-op pool (None: its own choice); `optimize=False` turns graph optimisations off.
    `exact=True` multiplies dequantised weights with floats, as the standard defines it. By default, ONNX Runtime rounds
    these floats to 8 bits (MatMulNBits with accuracy level 4).
    `spinning=False`: threads that wait for work sleep. By default, they use processor time for a while.
    Raises MissingDependency without onnxruntime, InvalidModel if ONNX Runtime rejects the model.
    """

    def __init__(
        self, model: str | os.PathLike[str] | bytes | ModelProto, threads: int | None = None, *, optimize: bool = True,
        exact: bool = False, spinning: bool = True,
    ):  # fmt: skip
        ort = onnxruntime_module()
        options = ort.SessionOptions()
        options.log_severity_level = 3
        if threads is not None:
            options.intra_op_num_threads = config.num_threads(threads)
            options.inter_op_num_threads = 1
        if not optimize:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if exact:
            options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        if not spinning:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._ort = ort
        try:
            self._session = self._open(model, options)
        except Exception as error:  # onnxruntime's exceptions have no common base
            raise InvalidModel(f"ONNX Runtime {ort.__version__} refuses the model: {error}") from error
        self.inputs: tuple[str, ...] = tuple(i.name for i in self._session.get_inputs())
        given = self._session.get_outputs()
        self._given_names = [o.name for o in given]
        # A file may list an output name twice. The second one gets a suffix, as in graphkit's import.
        self.outputs: tuple[str, ...] = tuple(unique_names(self._given_names))
        types = zip(self.outputs, given, strict=True)
        self._exotic = {name: found for name, o in types if (found := _exotic(o.type)) is not None}

    def _open(self, model: Any, options: Any) -> Any:
        def session(source: Any) -> Any:
            return self._ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])

        if isinstance(model, ModelProto):
            # Imported here, because a process that only runs files does not need the exporter, which is most of its
            # start time.
            from graphkit.onnx_io.writing import EXTERNAL_ABOVE, raw_bytes, write_proto

            if raw_bytes(model) <= EXTERNAL_ABOVE:
                return session(model.SerializeToString())
            with scratch_folder() as folder:
                path = folder / "model.onnx"
                write_proto(model, path, external=True)
                return session(str(path))
        return session(model if isinstance(model, bytes) else os.fspath(model))

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return outputs by name for arrays by name. Raises InputError for a wrong name, RuntimeFailure if it fails."""
        for name in feeds:
            if name not in self.inputs:
                raise InputError(f"the model has no input {name!r}{did_you_mean(name, self.inputs)}")
        try:
            if not self._exotic and all(_plain(value) for value in feeds.values()):
                return dict(zip(self.outputs, self._session.run(None, dict(feeds)), strict=True))
            if other := [name for name, value in feeds.items() if value is None or isinstance(value, (list, tuple))]:
                raise InputError(
                    f"{other[0]!r}: with sequences or optionals, ONNX Runtime takes only numpy's element types"
                )
            values = {name: self._value(np.asarray(array)) for name, array in feeds.items()}
            results = self._session.run_with_ort_values(self._given_names, values)
            return {name: self._array(name, result) for name, result in zip(self.outputs, results, strict=True)}
        except Exception as error:  # onnxruntime's exceptions have no common base
            raise RuntimeFailure(f"ONNX Runtime {self._ort.__version__} fails: {error}") from error

    def bound(self, feeds: Mapping[str, Any]) -> Callable[[], list[Any]]:
        """Return a function that runs the model on these arrays without overhead of graphkit, for timing.

        Raises InputError if the model or an array has an element type that numpy lacks.
        """
        if self._exotic or not all(_plain(value) for value in feeds.values()):
            raise InputError("in a bound call, ONNX Runtime supports only numpy's own element types")
        run, arrays = self._session.run, dict(feeds)
        return lambda: run(None, arrays)

    def _value(self, array: np.ndarray) -> Any:
        dtype = dtype_of(array.dtype)
        make = self._ort.OrtValue
        if dtype in _NATIVE:
            return make.ortvalue_from_numpy(array)
        raw = np.ascontiguousarray(array).view(np.uint16 if array.dtype.itemsize == 2 else np.uint8)
        return make.ortvalue_from_numpy_with_onnx_type(raw, CODES[dtype])

    def _array(self, name: str, result: Any) -> np.ndarray:
        dtype = self._exotic.get(name)
        if dtype is None:
            array: np.ndarray = result.numpy()
            return array
        # onnxruntime cannot convert results of these types to numpy: copy the bytes.
        shape = tuple(result.shape())
        size = packed_nbytes(dtype, math.prod(shape))
        raw = np.zeros(size, np.uint8)
        if size:
            ctypes.memmove(raw.ctypes.data, result.data_ptr(), size)
        return from_bytes(raw, dtype, shape)


def _exotic(kind: str) -> DType | None:
    """The element type of a text such as `tensor(bfloat16)`, if numpy lacks it; else None."""
    name = kind.removeprefix("tensor(").removesuffix(")").upper()
    code = onnx.TensorProto.DataType.DESCRIPTOR.values_by_name.get(name)
    dtype = None if code is None else DTYPES.get(code.number)
    return None if dtype is None or dtype in _NATIVE else dtype


def _plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_plain, value))
    return not isinstance(value, np.ndarray) or dtype_of(value.dtype) in _NATIVE
