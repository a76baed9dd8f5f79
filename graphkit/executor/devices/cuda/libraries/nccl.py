"""Collectives between the GPUs of several processes by NCCL, through CuPy's bindings.

https://docs.nvidia.com/deeplearning/nccl documents its functions and group calls.
"""

from __future__ import annotations

import ctypes
import importlib
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

from graphkit.distribution import how_to_install
from graphkit.errors import MissingDependency, RuntimeFailure
from graphkit.ir.types import DType
from graphkit.named_tuples import NamedTuple

# The names of NCCL's element types in CuPy.
_TYPES = {
    DType.FLOAT16: "NCCL_FLOAT16", DType.BFLOAT16: "NCCL_BFLOAT16", DType.FLOAT32: "NCCL_FLOAT32",
    DType.FLOAT64: "NCCL_FLOAT64", DType.INT8: "NCCL_INT8", DType.UINT8: "NCCL_UINT8", DType.INT32: "NCCL_INT32",
    DType.UINT32: "NCCL_UINT32", DType.INT64: "NCCL_INT64", DType.UINT64: "NCCL_UINT64",
}  # fmt: skip


class Exchange(NamedTuple):
    """A collective of `elements` elements at an address of each GPU, in place.

    kind: "sum": all-reduce. "reduce": reduce to the GPU of rank `root`. "broadcast": from the GPU of rank `root`.
    """

    kind: Literal["sum", "reduce", "broadcast"]
    address: int
    elements: int
    root: int = 0


def supports(dtype: DType) -> bool:
    """Return whether NCCL supports elements of this type. Raises as `bindings` does."""
    return hasattr(bindings(), _TYPES.get(dtype, "none"))


class NcclCommunicator:
    """An NCCL communicator of several processes with one GPU each. All make the same exchanges in the same order.

    The constructor waits for all processes. The GPU of this process is the current one. Raises MissingDependency
    without the library, and RuntimeFailure for errors of NCCL.
    """

    def __init__(self, unique: bytes, rank: int, size: int):
        """Create the communicator. unique: the result of `unique_id` in one of the processes, the same in all."""
        nccl = bindings()
        try:
            self._communicator = nccl.NcclCommunicator(size, unique, rank)
        except nccl.NcclError as error:
            raise RuntimeFailure(f"NCCL {version()}: {error}") from error
        # Never destroy it: that would wait until all CUDA graphs with kernels of NCCL are destroyed.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._communicator))

    def launch(self, exchanges: Sequence[Exchange], dtype: DType, stream: int) -> None:
        """Queue exchanges on a stream, as one group call of NCCL. Raises RuntimeFailure for errors of the library."""
        nccl = bindings()
        kind = getattr(nccl, _TYPES[dtype])
        try:
            nccl.groupStart()
            try:
                for what, at, count, root in exchanges:
                    match what:
                        case "sum":
                            self._communicator.allReduce(at, at, count, kind, nccl.NCCL_SUM, stream)
                        case "reduce":
                            self._communicator.reduce(at, at, count, kind, nccl.NCCL_SUM, root, stream)
                        case "broadcast":
                            self._communicator.broadcast(at, at, count, kind, root, stream)
            finally:
                nccl.groupEnd()
        except nccl.NcclError as error:
            raise RuntimeFailure(f"NCCL {version()}: {error}") from error

    def check(self) -> None:
        """Raise RuntimeFailure if an exchange has failed."""
        try:
            self._communicator.check_async_error()
        except bindings().NcclError as error:
            raise RuntimeFailure(f"NCCL {version()}: {error}") from error

    def abort(self) -> None:
        """Stop all exchanges. The communicator cannot be used afterwards."""
        self._communicator.abort()


def unique_id() -> bytes:
    """Return an id by which the processes of a new communicator find each other."""
    nccl = bindings()
    try:
        found: bytes = nccl.get_unique_id()
    except nccl.NcclError as error:
        raise RuntimeFailure(f"NCCL {version()}: {error}") from error
    return found


def version() -> str:
    """Return the version of NCCL. Raises MissingDependency without CuPy, or without the library."""
    number: int = bindings().get_version()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


@cache
def bindings() -> Any:
    """Return CuPy's module for NCCL. Raises MissingDependency without CuPy, or if CuPy does not find NCCL."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CuPy's own words about a library that is missing
            module = importlib.import_module("cupy.cuda.nccl")
    except ImportError as error:
        raise MissingDependency(f"NCCL needs CuPy ({error}): {how_to_install('cuda12', 'cuda13')}") from error
    if not module.available:
        raise MissingDependency(f"CuPy finds no NCCL: {how_to_install('cuda12', 'cuda13')}")
    return module
