"""Kernels of the card on the processor: the same sources, compiled by a C++ compiler behind `host_cuda.h`."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from host_libraries import computed

from graphkit.executor.devices.cuda.compiler import PRELUDE
from graphkit.executor.devices.cuda.launches import (
    THREADS,
    CardKernel,
    Launch,
    Memory,
    Source,
)

COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
_HEADER = Path(__file__).with_name("host_cuda.h")
# What bench/sanitize.sh adds to the compiler's flags.
_MORE = os.environ.get("GRAPHKIT_TEST_KERNEL_FLAGS", "").split()
_FLAGS = (
    *_MORE,
    "-std=c++17",
    "-O0",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-Wno-unknown-pragmas",
    "-Werror=overflow",
)


# What stands before every source. It takes most of a compiler's time, and is compiled once.
_PREFIX = f'#include "{_HEADER}"\n{PRELUDE}'


class Emulator:
    """Compiles sources, each once, and runs their launches. All is kept in `folder`, which no other process uses."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._functions: dict[str, Any] = {}
        # A library has one block at a time: its fibers and its shared memory.
        self._running, self._compiling = threading.Lock(), threading.Lock()

    def compile(self, sources: Iterable[Source]) -> None:
        """All of them as one library."""
        with self._compiling:
            new = [s for s in dict.fromkeys(sources) if s.entry not in self._functions]
            if new:
                loaded = ctypes.CDLL(str(self._library(translation_unit(new))))
                self._functions |= {source.entry: loaded[f"run_{source.entry}"] for source in new}

    def _library(self, text: str) -> Path:
        prefix = self._folder / "prefix.h"
        if not prefix.exists():
            prefix.write_text(_PREFIX)
            # Found by g++ beside the header; another compiler reads the header.
            _compiled("-x", "c++-header", str(prefix), "-o", f"{prefix}.gch")
        library = self._folder / f"{hashlib.sha256(text.encode()).hexdigest()}.so"
        source = library.with_suffix(".cpp")
        source.write_text(text)
        _compiled("-shared", str(source), "-o", str(library))
        return library

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
            if not isinstance(launch, Launch):
                computed(launch, memory.of)
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


def _compiled(*arguments: str) -> None:
    command = [str(COMPILER), *_FLAGS, "-fPIC", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:5000]


def waits(source: Source) -> bool:
    """Whether threads of a block wait for each other."""
    return "__syncthreads" in source.text or "gk_shuffle" in source.text


def translation_unit(sources: Sequence[Source]) -> str:
    """The sources, and for each a function `run_...` that launches it with the arguments at given addresses."""
    runs = []
    for source in sources:
        given = ", ".join(f"*({kind}*)a[{i}]" for i, kind in enumerate(source.parameters))
        runs.append(
            f"static void body_{source.entry}(void** a) {{ {source.entry}({given}); }}\n"
            f'extern "C" int run_{source.entry}(unsigned blocks, unsigned threads, int order, void** a) {{\n'
            f"    return host_launch(blocks, threads, order, {str(waits(source)).lower()}, body_{source.entry}, a);\n"
            "}\n"
        )
    return "\n".join(('#include "prefix.h"', *(source.text for source in sources), *runs))
