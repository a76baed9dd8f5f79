"""Kernels of the card on the processor: the same sources, compiled by a C++ compiler behind `host_cuda.h`."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.executor.devices.cuda.compiler import PRELUDE
from graphkit.executor.devices.cuda.launches import (
    THREADS,
    CardKernel,
    Matrix,
    Memory,
    Product,
    Source,
)
from graphkit.ir.types import DType

COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
_HEADER = Path(__file__).with_name("host_cuda.h")
# What bench/sanitize.sh adds to the compiler's flags.
_MORE = os.environ.get("GRAPHKIT_TEST_KERNEL_FLAGS", "").split()
_FLAGS = (
    *_MORE,
    "-std=c++17",
    "-O1",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-Wno-unknown-pragmas",
    "-Werror=overflow",
)


class Emulator:
    """Compiles sources, each once, and runs their launches. Libraries are kept in `folder` for other processes."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._functions: dict[str, Any] = {}
        # A library has one block at a time: its fibers and its shared memory.
        self._running, self._compiling = threading.Lock(), threading.Lock()

    def compile(self, sources: Iterable[Source]) -> None:
        """All of them as one library."""
        with self._compiling:
            self._compile(sources)

    def _compile(self, sources: Iterable[Source]) -> None:
        new = [s for s in dict.fromkeys(sources) if s.entry not in self._functions]
        if not new:
            return
        text = translation_unit(new)
        library = self._folder / f"{hashlib.sha256((text + _HEADER.read_text()).encode()).hexdigest()}.so"
        if not library.exists():
            part = library.with_suffix(f".{os.getpid()}.cpp")
            part.write_text(text)
            built = part.with_suffix(".so")
            command = [
                str(COMPILER),
                *_FLAGS,
                "-shared",
                "-fPIC",
                "-I",
                str(_HEADER.parent),
                str(part),
                "-o",
                str(built),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[:5000]
            built.rename(library)
        loaded = ctypes.CDLL(str(library))
        for source in new:
            self._functions[source.entry] = loaded[f"run_{source.entry}"]

    def run(
        self,
        kernel: CardKernel,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        scratch: Any = None,
        fault: Any = None,
        order: int = 0,
    ) -> bool:
        """Launch all; whether the fault is set. order: 1 runs threads that wait for each other the other way round."""
        self.compile(kernel.sources)
        if fault is None:
            fault = np.zeros(1, np.uint32)
        if scratch is None:
            scratch = np.full(kernel.scratch_bytes, 0xA5, np.uint8)

        memory = Memory(inputs, outputs, scratch, fault, {table: table.array for table in kernel.tables})
        for launch in kernel.launches:
            if isinstance(launch, Product):
                multiply(launch, memory.of)
                continue
            cells: list[Any] = []
            for argument in map(memory.of, launch.arguments):
                if isinstance(argument, np.ndarray):
                    cells.append(ctypes.c_void_p(argument.ctypes.data))
                else:
                    cells.append(np.ctypeslib.as_ctypes_type(argument.dtype)(argument.item()))
            assert len(cells) == len(launch.source.parameters)
            addresses = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
            size = ctypes.c_uint(launch.blocks), ctypes.c_uint(THREADS)
            with self._running:
                stuck = self._functions[launch.source.entry](*size, ctypes.c_int(order), addresses)
            assert not stuck, f"{launch.source.entry}: threads wait for others that never come"
        return bool(fault[0])


def multiply(product: Product, memory: Callable[[Any], Any]) -> None:
    """What the card's library computes of a product, whose arguments have the memory that `memory` says."""
    kind = product.kind.numpy
    wide = np.float64 if kind == np.float64 else np.float32

    def matrices(matrix: Matrix) -> np.ndarray:
        """[batch, rows, columns]"""
        flat = memory(matrix.memory).view(np.ndarray).reshape(-1)
        if product.kind is DType.BFLOAT16:
            flat = flat.view(kind)
        assert flat.dtype == kind
        assert matrix.leading >= matrix.rows
        last = (product.batch - 1) * matrix.stride + (matrix.columns - 1) * matrix.leading + matrix.rows
        assert last <= len(flat), "beyond the memory"
        shape = product.batch, matrix.rows, matrix.columns
        strides = tuple(s * kind.itemsize for s in (matrix.stride, 1, matrix.leading))
        return np.lib.stride_tricks.as_strided(flat, shape, strides)

    a, b = (matrices(m).astype(wide) for m in (product.a, product.b))
    a, b = (x.swapaxes(1, 2) if t else x for x, t in zip((a, b), product.transposed, strict=True))
    with np.errstate(invalid="ignore", over="ignore"):
        y = wide(product.alpha) * (a @ b)
    if product.c is not None:
        y += wide(product.beta) * matrices(product.c).astype(wide)
    if product.bias is not None:
        y += memory(product.bias).view(np.ndarray).reshape(-1).view(kind)[:, None].astype(wide)
    matrices(product.d)[...] = y.astype(kind)


def waits(source: Source) -> bool:
    """Whether threads of a block wait for each other."""
    return "__syncthreads" in source.text or "gk_shuffle" in source.text


def translation_unit(sources: Sequence[Source]) -> str:
    """The sources, and for each a function `run_...` that launches it with the arguments at given addresses."""
    runs = []
    for source in sources:
        given = ", ".join(f"*({kind}*)a[{i}]" for i, kind in enumerate(source.parameters))
        runs.append(
            f'extern "C" int run_{source.entry}(unsigned blocks, unsigned threads, int order, void** a) {{\n'
            f"    return host_launch(blocks, threads, order, {str(waits(source)).lower()}, "
            f"[=] {{ {source.entry}({given}); }});\n}}\n"
        )
    return "\n".join(('#include "host_cuda.h"', PRELUDE, *(source.text for source in sources), *runs))
