"""ONNX Runtime as the reference to compare with, and the comparison itself. The only place that imports onnxruntime."""

from __future__ import annotations

import ctypes
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from graphkit.errors import InputError, InvalidModel, MissingDependency, RuntimeFailure, did_you_mean
from graphkit.ir.types import DType, dtype_of
from graphkit.onnx_io.exporter import EXTERNAL_ABOVE, save
from graphkit.onnx_io.external_data import raw_bytes
from graphkit.onnx_io.tensors import CODES, DTYPES, from_bytes, packed_nbytes

# Element types that numpy has itself; ONNX Runtime takes the others (bfloat16, float8, int4) as typed bytes.
_NATIVE = frozenset(
    {
        DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.INT8, DType.INT16, DType.INT32, DType.INT64, DType.UINT8,
        DType.UINT16, DType.UINT32, DType.UINT64, DType.BOOL, DType.STRING,
    }
)  # fmt: skip


def _onnxruntime() -> ModuleType:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependency(
            f"comparing with ONNX Runtime needs the package onnxruntime ({error}): pip install onnxruntime"
        ) from None
    onnxruntime.set_default_logger_severity(3)
    return onnxruntime


def runtime_version() -> str:
    """The version of the installed ONNX Runtime; raises MissingDependency."""
    return str(_onnxruntime().__version__)


class OnnxRuntimeModel:
    """A model in ONNX Runtime on the CPU: `OnnxRuntimeModel("net.onnx").run({"x": array})`.

    `threads` is the size of its intra-op pool (None: its own choice); `optimize=False` turns graph optimisations off.
    Raises MissingDependency without onnxruntime, InvalidModel when it refuses the model.
    """

    def __init__(
        self, model: str | os.PathLike[str] | bytes | ModelProto, threads: int | None = None, *, optimize: bool = True
    ):
        ort = _onnxruntime()
        options = ort.SessionOptions()
        options.log_severity_level = 3
        if threads is not None:
            options.intra_op_num_threads = threads
            options.inter_op_num_threads = 1
        if not optimize:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._ort = ort
        try:
            self._session = self._open(model, options)
        except Exception as error:  # onnxruntime's exceptions have no common base
            raise InvalidModel(f"ONNX Runtime {ort.__version__} refuses the model: {error}") from error
        self._exotic = {o.name: found for o in self._session.get_outputs() if (found := _exotic(o.type)) is not None}
        self.inputs: tuple[str, ...] = tuple(i.name for i in self._session.get_inputs())
        self.outputs: tuple[str, ...] = tuple(o.name for o in self._session.get_outputs())

    def _open(self, model: Any, options: Any) -> Any:
        def session(source: Any) -> Any:
            return self._ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])

        if isinstance(model, ModelProto):
            if raw_bytes(model) <= EXTERNAL_ABOVE:
                return session(model.SerializeToString())
            with tempfile.TemporaryDirectory(prefix="graphkit-") as folder:
                path = Path(folder) / "model.onnx"
                save(model, path, external=True)
                return session(str(path))
        return session(model if isinstance(model, bytes) else os.fspath(model))

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by name for arrays by name; raises InputError for a wrong name, RuntimeFailure when it fails."""
        for name in feeds:
            if name not in self.inputs:
                raise InputError(f"the model has no input {name!r}{did_you_mean(name, self.inputs)}")
        try:
            if not self._exotic and all(_plain(value) for value in feeds.values()):
                return dict(zip(self.outputs, self._session.run(None, dict(feeds)), strict=True))
            values = {name: self._value(np.asarray(array)) for name, array in feeds.items()}
            results = self._session.run_with_ort_values(list(self.outputs), values)
            return {name: self._array(name, result) for name, result in zip(self.outputs, results, strict=True)}
        except Exception as error:  # onnxruntime's exceptions have no common base
            raise RuntimeFailure(f"ONNX Runtime {self._ort.__version__} fails: {error}") from error

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
            return result.numpy()
        # onnxruntime cannot make numpy arrays of these types: copy the bytes.
        shape = tuple(result.shape())
        size = packed_nbytes(dtype, math.prod(shape))
        raw = np.zeros(size, np.uint8)
        if size:
            ctypes.memmove(raw.ctypes.data, result.data_ptr(), size)
        return from_bytes(raw, dtype, shape)


def _exotic(kind: str) -> DType | None:
    """The element type of `tensor(bfloat16)` and the like, when numpy itself does not have it."""
    name = kind.removeprefix("tensor(").removesuffix(")").upper()
    code = onnx.TensorProto.DataType.DESCRIPTOR.values_by_name.get(name)
    dtype = None if code is None else DTYPES.get(code.number)
    return None if dtype is None or dtype in _NATIVE else dtype


def _plain(value: Any) -> bool:
    return not isinstance(value, np.ndarray) or dtype_of(value.dtype) in _NATIVE


@dataclass(frozen=True)
class Difference:
    """How far one output is from what was expected.

    An element passes when |actual - expected| <= atol + rtol * |expected|; NaN equals NaN, infinities equal
    themselves. `needed_atol` and `needed_rtol` are the smallest tolerances that would have passed, the other one
    staying as it is (infinite when none would). `mismatched` counts elements that fail. `classes` counts the rows
    whose largest element is at another place (None for outputs that are not scores).
    """

    name: str
    passed: bool
    elements: int
    mismatched: int
    max_abs: float
    mean_abs: float
    max_rel: float
    needed_atol: float
    needed_rtol: float
    classes: int | None
    problem: str = ""

    def __str__(self) -> str:
        verdict = "PASSED" if self.passed else "FAILED"
        if self.problem:
            return f"{self.name}: {verdict}: {self.problem}"
        text = f"{self.name}: {verdict} max {self.max_abs:.3g} mean {self.mean_abs:.3g} relative {self.max_rel:.3g}"
        return text + (f" ({self.mismatched} of {self.elements} elements fail)" if self.mismatched else "")


def compare_outputs(
    expected: Mapping[str, Any], actual: Mapping[str, Any], rtol: float = 1e-4, atol: float = 1e-5
) -> list[Difference]:
    """Compare outputs by name; lists are compared element by element. A missing output is a difference."""
    found: list[Difference] = []
    for name, wanted in expected.items():
        if name not in actual:
            found.append(_failure(name, 0, "the output is missing"))
        else:
            found.extend(_compare(name, wanted, actual[name], rtol, atol))
    found.extend(_failure(name, 0, "the output was not expected") for name in actual if name not in expected)
    return found


def _failure(name: str, elements: int, problem: str) -> Difference:
    inf = float("inf")
    return Difference(name, False, elements, elements, inf, inf, inf, inf, inf, None, problem)


def _compare(name: str, wanted: Any, given: Any, rtol: float, atol: float) -> list[Difference]:
    if isinstance(wanted, (list, tuple)) or isinstance(given, (list, tuple)):
        if not isinstance(wanted, Sequence) or not isinstance(given, Sequence) or len(wanted) != len(given):
            return [_failure(name, 0, "sequences of different lengths")]
        pairs = enumerate(zip(wanted, given, strict=True))
        return [d for i, (w, g) in pairs for d in _compare(f"{name}[{i}]", w, g, rtol, atol)]
    if wanted is None or given is None:
        same = wanted is None and given is None
        return [Difference(name, same, 0, 0, 0, 0, 0, 0, 0, None, "" if same else "only one of them is empty")]
    return [compare_arrays(name, np.asarray(wanted), np.asarray(given), rtol, atol)]


def compare_arrays(
    name: str, expected: np.ndarray, actual: np.ndarray, rtol: float = 1e-4, atol: float = 1e-5
) -> Difference:
    """Compare one output; a different shape or dtype fails. Anything but floats is compared exactly."""
    wanted, given = dtype_of(expected.dtype), dtype_of(actual.dtype)
    if wanted is not given:
        return _failure(name, expected.size, f"dtype {given}, expected {wanted}")
    if expected.shape != actual.shape:
        return _failure(name, expected.size, f"shape {list(actual.shape)}, expected {list(expected.shape)}")
    if wanted is DType.STRING:
        wrong = int(np.count_nonzero(expected != actual))
        return _exact(name, expected.size, wrong)
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    if not wanted.is_float and expected.dtype.kind != "c":
        rtol = atol = 0.0
    e, a = expected.astype(wide), actual.astype(wide)
    with np.errstate(all="ignore"):
        # Wide integers are compared as they are: float64 does not tell them all apart.
        same = (expected == actual) | (np.isnan(e) & np.isnan(a))
        error = np.where(same, 0.0, np.maximum(np.abs(a - e), np.finfo(np.float64).tiny))
        error = np.where(np.isnan(error), np.inf, error)
        size = np.where(np.isfinite(e), np.abs(e), 0.0)
        mismatched = error > atol + rtol * size
        relative = np.where(error == 0, 0.0, error / np.where(size == 0, np.nan, size))
        relative = np.where(np.isnan(relative), np.inf, relative)
        beyond = np.maximum(error - atol, 0.0)
        needed_rtol = np.where(beyond == 0, 0.0, np.where(size == 0, np.inf, beyond / np.where(size == 0, 1.0, size)))
        needed_atol = np.maximum(error - rtol * size, 0.0)
    failing = int(np.count_nonzero(mismatched))
    return Difference(
        name,
        failing == 0,
        expected.size,
        failing,
        float(np.max(error, initial=0.0)),
        float(np.mean(error)) if error.size else 0.0,
        float(np.max(relative, initial=0.0)),
        float(np.max(needed_atol, initial=0.0)),
        float(np.max(needed_rtol, initial=0.0)),
        _other_classes(e, a) if wanted.is_float else None,
    )


def _exact(name: str, elements: int, wrong: int) -> Difference:
    far = float("inf") if wrong else 0.0
    return Difference(name, wrong == 0, elements, wrong, far, far, far, far, far, None)


def _other_classes(expected: np.ndarray, actual: np.ndarray) -> int | None:
    if expected.ndim < 2 or expected.shape[-1] < 2 or expected.size == 0:
        return None
    return int(np.count_nonzero(expected.argmax(-1) != actual.argmax(-1)))
