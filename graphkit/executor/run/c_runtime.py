"""The C library libgraphkit.so: where it is, and sessions of it for Python, which check files that were written."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np

from graphkit.errors import CheckFailed, InputError, MissingDependency, RuntimeFailure
from graphkit.executor.devices.extension import import_extension
from graphkit.ir.types import DType

LIBRARY = "libgraphkit.so"
_ABI_VERSION = 1
# Element types in the order of gk_type, from 1 on.
_TYPES = (
    "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool",
)  # fmt: skip


def library_path() -> Path:
    """Return the path of libgraphkit.so. Raises MissingDependency if the installed package lacks it."""
    try:
        native = import_extension()
    except ImportError:
        raise MissingDependency(f"{LIBRARY} needs graphkit's native part, which this installation lacks") from None
    path = Path(str(native.__file__)).resolve().parent / LIBRARY
    if not path.exists():
        raise MissingDependency(f"this installation of graphkit has no {LIBRARY}: {path} does not exist")
    return path


_ERROR_ARGUMENT = 1  # GK_ERROR_ARGUMENT of graphkit.h


class _Options(ctypes.Structure):
    _fields_ = (
        ("threads", ctypes.c_int32), ("max_iterations", ctypes.c_int64), ("timeout", ctypes.c_double),
        ("converter", ctypes.c_char_p), ("converter_arguments", ctypes.POINTER(ctypes.c_char_p)),
        ("convert_timeout", ctypes.c_double), ("cache_folder", ctypes.c_char_p), ("cache_bytes", ctypes.c_int64),
    )  # fmt: skip


@cache
def _library() -> ctypes.CDLL:
    if import_extension().has_onednn():
        import_extension().onednn_version()  # loads oneDNN, which the C library then finds wherever it lies
    library = ctypes.CDLL(str(library_path()))
    handle, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    library.gk_error.restype = text
    library.gk_status_name.restype = text
    library.gk_open_checked.argtypes = (
        text, ctypes.POINTER(_Options), ctypes.POINTER(handle), ctypes.c_uint32, size,
    )  # fmt: skip
    library.gk_open_memory_checked.argtypes = (
        text, size, ctypes.POINTER(_Options), ctypes.POINTER(handle), ctypes.c_uint32, size,
    )  # fmt: skip
    library.gk_close.argtypes = (handle,)
    library.gk_close.restype = None
    library.gk_program_count.argtypes, library.gk_program_count.restype = (handle,), size
    library.gk_program.argtypes, library.gk_program.restype = (handle, size), handle
    library.gk_find_program.argtypes = (
        handle, ctypes.POINTER(ctypes.POINTER(ctypes.c_int64)), size, ctypes.POINTER(handle),
    )  # fmt: skip
    word = ctypes.c_uint64
    shapes = ctypes.POINTER(ctypes.POINTER(ctypes.c_int64))
    library.gk_find_runs.argtypes = (handle, shapes, size, ctypes.POINTER(word))
    library.gk_find_output_dims.argtypes = (handle, shapes, size, size, ctypes.POINTER(ctypes.c_int64))
    library.gk_run_shapes.argtypes = (
        handle, ctypes.POINTER(handle), shapes, size, ctypes.POINTER(handle), size,
    )  # fmt: skip
    library.gk_get_random_state.argtypes = (handle, ctypes.POINTER(word), ctypes.POINTER(word))
    library.gk_set_random_state.argtypes = (handle, word, word)
    library.gk_run.argtypes = (handle, ctypes.POINTER(handle), size, ctypes.POINTER(handle), size)
    for kind in ("input", "output"):
        results = {"name": text, "type": ctypes.c_int, "rank": size, "dims": ctypes.POINTER(ctypes.c_int64)}
        for suffix, result in results.items():
            function = getattr(library, f"gk_{kind}_{suffix}")
            function.argtypes, function.restype = (handle, size), result
        axis = getattr(library, f"gk_{kind}_batch_axis")
        axis.argtypes, axis.restype = (handle, size), ctypes.c_int32
        count = getattr(library, f"gk_{kind}_count")
        count.argtypes, count.restype = (handle,), size
    return library


def _raise_for(status: int) -> None:
    if status:
        library = _library()
        name, text = library.gk_status_name(status), library.gk_error()
        raise RuntimeFailure(f"{text.decode(errors='replace')} ({name.decode()})")


# The dtype and shape of inputs or outputs, by name.
_Ports: TypeAlias = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]


class CSession:
    """A saved file, whose programs the C library runs. Threads may call `run` at the same time.

    Attributes:
        programs: For each program, dtype and shape of its inputs by name, and those of its outputs.
        inputs: The inputs of the first program.
        outputs: The outputs of the first program.
        batch_axes: The axes of inputs and of outputs that have the rows of a batch; -1: none.

    Args:
        path: A .gkp file.
        threads: Most threads of a run; 0: as many as when the file was written, at most one for each core.
        max_iterations: Most iterations of one loop; 0: any number.
        timeout: Most seconds of a run; 0: any time.

    Raises:
        MissingDependency: The installed package has no libgraphkit.so.
        RuntimeFailure: The library cannot open the file. The message ends with the name of the status.
    """

    def __init__(self, path: str | Path, threads: int = 0, max_iterations: int = 0, timeout: float = 0):
        self._library, self._handle = _library(), ctypes.c_void_p()
        opened = ctypes.byref(self._handle)
        options = _Options(threads, max_iterations, timeout)
        name = os.fsencode(path)
        _raise_for(
            self._library.gk_open_checked(name, ctypes.byref(options), opened, _ABI_VERSION, ctypes.sizeof(options))
        )
        handles = [
            self._library.gk_program(self._handle, i) for i in range(self._library.gk_program_count(self._handle))
        ]
        self.programs = [(self._ports(handle, "input"), self._ports(handle, "output")) for handle in handles]
        self._place = {handle: i for i, handle in enumerate(handles)}
        self.inputs, self.outputs = self.programs[0]
        self.batch_axes = tuple(
            [getattr(self._library, f"gk_{kind}_batch_axis")(self._handle, i) for i in range(len(ports))]
            for kind, ports in (("input", self.inputs), ("output", self.outputs))
        )

    def _ports(self, handle: int, kind: str) -> _Ports:
        def call(suffix: str, *arguments: int) -> Any:
            return getattr(self._library, f"gk_{kind}_{suffix}")(handle, *arguments)

        found = {}
        for i in range(call("count")):
            shape = tuple(call("dims", i)[: call("rank", i)])
            found[call("name", i).decode(errors="replace")] = (DType(_TYPES[call("type", i) - 1]).numpy, shape)
        return found

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the program for the shapes of these arrays, or other shapes if the file allows it.

        Returns all outputs by name.

        feeds: Arrays of all inputs, with their dtypes, and shapes for which the file has a program. If rows are
            independent, the number of rows may be another one. If the file has a program for any sizes, so may other
            symbolic axes.

        Raises:
            InputError: The arrays do not match any program.
            RuntimeFailure: The run failed.
        """
        given = []
        for name, (dtype, shape) in self.inputs.items():
            array = np.asarray(feeds.get(name), order="C")
            if array.dtype != dtype or array.ndim != len(shape):
                raise InputError(f"input {name!r} must be {dtype} {list(shape)}, got {array.dtype} {list(array.shape)}")
            given.append(array)
        dims, handle = _dims([array.shape for array in given]), ctypes.c_void_p()
        self._library.gk_find_program(self._handle, dims, len(given), ctypes.byref(handle))
        kinds = self.programs[self._place[handle.value]][1] if handle.value else self._output_kinds(dims)
        made = {name: np.empty(shape, dtype) for name, (dtype, shape) in kinds.items()}
        results = list(made.values())
        arrays = (len(given), _pointers(results), len(results))
        if handle.value:
            _raise_for(self._library.gk_run(handle, _pointers(given), *arrays))
        else:
            _raise_for(self._library.gk_run_shapes(self._handle, _pointers(given), dims, *arrays))
        return made

    def _output_kinds(self, dims: Any) -> _Ports:
        """Return the outputs for inputs of these shapes. Raises InputError if the file has no program for them."""
        found = {}
        for i, (name, (dtype, shape)) in enumerate(self.outputs.items()):
            sizes = (ctypes.c_int64 * max(len(shape), 1))()
            status = self._library.gk_find_output_dims(self._handle, dims, len(self.inputs), i, sizes)
            if status == _ERROR_ARGUMENT:
                raise InputError(self._library.gk_error().decode(errors="replace"))
            _raise_for(status)
            found[name] = (dtype, tuple(sizes[: len(shape)]))
        return found

    def find_runs(self, shapes: Mapping[str, Sequence[int]]) -> list[int]:
        """Return how often each program runs for inputs of these shapes. Raises RuntimeFailure if there is none."""
        runs = (ctypes.c_uint64 * len(self.programs))()
        dims = _dims([shapes[name] for name in self.inputs])
        _raise_for(self._library.gk_find_runs(self._handle, dims, len(self.inputs), runs))
        return list(runs)

    @property
    def rng(self) -> tuple[int, int]:
        """(seed, step) of the next run, as in `Executor.rng`."""
        seed, step = ctypes.c_uint64(), ctypes.c_uint64()
        _raise_for(self._library.gk_get_random_state(self._handle, ctypes.byref(seed), ctypes.byref(step)))
        return seed.value, step.value

    @rng.setter
    def rng(self, state: tuple[int, int]) -> None:
        seed, step = state
        _raise_for(self._library.gk_set_random_state(self._handle, seed % (1 << 64), step))

    def close(self) -> None:
        """Free the session. Later runs are errors."""
        self._library.gk_close(self._handle)
        self._handle = ctypes.c_void_p()

    def __enter__(self) -> CSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _dims(shapes: Sequence[Sequence[int]]) -> Any:
    pointer: Any = ctypes.POINTER(ctypes.c_int64)
    each = [(ctypes.c_int64 * max(len(shape), 1))(*shape) for shape in shapes]
    return (pointer * max(len(each), 1))(*each)  # ctypes.cast would leave a reference cycle in each run


def _pointers(arrays: Sequence[np.ndarray]) -> Any:
    return (ctypes.c_void_p * max(len(arrays), 1))(*[array.ctypes.data for array in arrays])


def compare_with_python(
    written: Path, path: Path, feeds: Mapping[str, np.ndarray], expected: Mapping[str, Any]
) -> None:
    """Run a saved program in the C library. Raises CheckFailed if an output differs from `expected` in a bit.

    If an output is a list of maps, the C library returns their values: a row for each map.

    Args:
        written: The file.
        path: The name that it will have, for errors.
        feeds: Arrays of all inputs.
        expected: The outputs that Python computes, by name.
    """
    with CSession(written) as session:
        found = session.run({name: feeds[name] for name in session.inputs})
    for name, made in expected.items():
        is_array = isinstance(made, np.ndarray)
        array = made if is_array else np.array([list(row.values()) for row in made], found[name].dtype)
        # A single map has no row.
        if (is_array and found[name].shape != array.shape) or found[name].tobytes() != array.tobytes():
            raise CheckFailed(f"{path}: the C library computes output {name!r} with other bits than Python")
