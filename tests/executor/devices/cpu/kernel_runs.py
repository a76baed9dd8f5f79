"""How tests of native kernels make operands, run kernels and compare them with the references."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.registry import make_kernel
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType, dtype_of
from graphkit.ops.evaluate import run_node

_MPROTECT = ctypes.CDLL(None, use_errno=True).mprotect
FLOATS = [np.dtype(t) for t in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)]
INTEGERS = [np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)]
DTYPES = [*FLOATS, *INTEGERS, np.dtype(bool)]


def _keeps_signals() -> bool:
    """Whether a NaN of float16 that signals has its bits still when it comes back from float32."""
    bits = np.array([0x7C01, 0xFC11], np.uint16)
    with np.errstate(invalid="ignore"):
        back = bits.view(np.float16).astype(np.float32).astype(np.float16)
    return np.array_equal(back.view(np.uint16), bits)


_KEEPS_SIGNALS = _keeps_signals()


def bit_patterns(shape: Sequence[int], dtype: Any, seed: int = 0) -> np.ndarray:
    """Every bit pattern that the type has, NaN included; booleans are 0 and 1.

    NaN of float16 is quiet where the processor makes it so: the references compute halves in float32.
    """
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64))
    raw = np.random.default_rng(seed).integers(0, 2 if dtype.kind == "b" else 256, size * dtype.itemsize, np.uint8)
    if dtype == np.float16 and not _KEEPS_SIGNALS:
        bits = raw.view(np.uint16)
        bits[(bits & 0x7FFF) > 0x7C00] |= 0x0200
    return raw.view(dtype).reshape(shape)


def small_integers(shape: Sequence[int], dtype: np.dtype, seed: int = 0) -> np.ndarray:
    """Numbers whose sums and products the type holds exactly."""
    high = 2 if dtype.kind == "b" else 3 if dtype.itemsize == 2 and dtype in FLOATS else 100
    return np.random.default_rng(seed).integers(0, high, shape).astype(dtype)


def value_of(array: np.ndarray, name: str = "x") -> Value:
    return Value(TensorType(dtype_of(array.dtype), array.shape), name)


def unwritten(node: Node) -> list[np.ndarray]:
    """Return memory for the results, filled with a number that is not a result."""
    return [np.full(v.tensor.static_shape, 77).astype(v.dtype.numpy) for v in node.outputs]


def at_page_end(array: np.ndarray) -> np.ndarray:
    """Return a copy that ends at the end of a page. If a kernel reads or writes after it, the process crashes."""
    size = -(-max(array.nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size + mmap.PAGESIZE)
    address = np.frombuffer(memory, np.uint8).ctypes.data
    assert _MPROTECT(ctypes.c_void_p(address + size), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    copy: np.ndarray = np.frombuffer(memory, array.dtype, array.size, size - array.nbytes).reshape(array.shape)
    copy[...] = array
    return copy


def run_kernel(kernel: Kernel, node: Node, arrays: Sequence[Any]) -> list[np.ndarray]:
    outputs = unwritten(node)
    kernel(arrays, outputs)
    return outputs


def run_native(node: Node, arrays: Sequence[Any], threads: int = 1) -> list[np.ndarray]:
    """The results of the node's native kernel, which has to be there."""
    kernel = make_kernel("cpu", node, KernelContext(threads=threads, used_outputs=(True,) * len(node.outputs)))
    assert kernel is not None, node.describe()
    return run_kernel(kernel, node, arrays)


def same_bits(make: Callable[..., Value], arrays: Sequence[Any], threads: Sequence[int] = (1, 3)) -> None:
    """Check that the kernel of `make(*values)` and the reference give the same bits."""
    arrays = [np.asarray(a, order="C") for a in arrays]
    node = make(*(value_of(a, f"x{i}") for i, a in enumerate(arrays))).node
    (expected,) = run_node(node, arrays)
    for number in threads:
        (got,) = run_native(node, arrays, number)
        assert got.dtype == expected.dtype
        assert got.tobytes() == np.ascontiguousarray(expected).tobytes()
