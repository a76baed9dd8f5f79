"""Runs GPU kernels on the processor: a C++ compiler compiles the same sources behind `host_cuda.h`.

A call of the compiler costs about 30 ms, and each kernel in it about 5 ms. So `Emulator.compile` only takes note of
sources, and the first `Emulator.run` that needs one of them compiles all of them as one library. Processes share a
folder, where each finds the kernels that another one has compiled.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
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
_HERE = Path(__file__).parent
# Compiler flags that bench/sanitize.sh adds.
_MORE = os.environ.get("GRAPHKIT_TEST_KERNEL_FLAGS", "").split()
_FLAGS = (
    *_MORE,
    "-U_FORTIFY_SOURCE",  # set by Ubuntu; its longjmp refuses to change stacks, which threads of a block do
    "-std=c++17",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-asynchronous-unwind-tables",
    "-Wno-unknown-pragmas",
    "-Werror=overflow",
)

# Every library begins with this text, which is compiled once.
_PREFIX = f'#include "{_HERE / "host_cuda.h"}"\n{PRELUDE}'


class CompilerError(AssertionError):
    """The compiler refuses a source, with its message."""


class Emulator:
    """Compiles kernels, each once for all processes that use `folder`, and runs their launches."""

    # A process has one block of one kernel at a time.
    _running = threading.Lock()

    def __init__(self, folder: Path):
        self._folder = folder
        self._functions: dict[str, Any] = {}
        self._wanted: dict[Source, None] = {}
        # Each thread compiles the sources that it needs, also threads that tests start.
        self._of_thread = threading.local()
        self._compiling = threading.Lock()

    def compile(self, sources: Iterable[Source]) -> None:
        """Take note of sources, for the next library."""
        with self._compiling:
            self._wanted |= dict.fromkeys(s for s in sources if s.entry not in self._functions)

    @contextlib.contextmanager
    def gathering(self, when_missing: Callable[[], None]) -> Iterator[None]:
        """In this thread, `run` calls `when_missing` before it compiles a kernel whose sources it has noted."""
        self._of_thread.when_missing = when_missing
        try:
            yield
        finally:
            self._of_thread.when_missing = None

    def compile_noted(self) -> None:
        """Compile and load all sources that were noted. Raises CompilerError if the compiler refuses one of them."""
        with self._compiling:
            noted = list(self._wanted)
            # A source that the compiler refuses does not fail the next library, too.
            self._wanted.clear()
            self._compile_now(noted)

    def _compile_now(self, sources: Sequence[Source]) -> None:
        new = [source for source in sources if not self._load(source)]
        if new:
            self._make_library(new)
        assert all(map(self._load, new))

    def _load(self, source: Source) -> bool:
        """Load the function of a source. False if no process has compiled it."""
        if source.entry not in self._functions:
            path = self._folder / f"{source.entry}.so"
            if not path.exists():
                return False
            self._functions[source.entry] = ctypes.CDLL(str(path))[f"run_{source.entry}"]
        return True

    def _make_library(self, sources: Sequence[Source]) -> None:
        """Compile sources to one library, to which the folder has a link with the name of each source."""
        prefix = self._made("prefix.h", lambda path: path.write_text(_PREFIX))
        # g++ finds the precompiled header next to the header. Other compilers read the header itself.
        self._made("prefix.h.gch", lambda path: _call_compiler("-O0", "-x", "c++-header", str(prefix), "-o", str(path)))
        threads = self._made(
            "host_threads.so",
            lambda path: _call_compiler("-O2", "-shared", str(_HERE / "host_threads.cpp"), "-o", str(path)),
        )
        text = translation_unit(sources)
        name = hashlib.sha256(text.encode()).hexdigest()
        source = self._made(f"{name}.cpp", lambda path: path.write_text(text))

        def make(path: Path) -> None:
            _call_compiler("-O0", "-shared", "-nostdlib", str(source), str(threads), "-lgcc", "-o", str(path))

        library = self._made(f"{name}.so", make)
        for made in sources:
            # Another process may have compiled the source as part of another library.
            with contextlib.suppress(FileExistsError):
                (self._folder / f"{made.entry}.so").symlink_to(library.name)

    def _made(self, name: str, make: Callable[[Path], object]) -> Path:
        """A file of the folder. `make` writes it if it is missing, in one process; the others wait."""
        path = self._folder / name
        if not path.exists():
            with (self._folder / f"{name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not path.exists():
                    # With the same suffix, which tells the compiler what it reads.
                    unfinished = self._folder / f"unfinished_{name}"
                    make(unfinished)
                    unfinished.replace(path)
        return path

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
        self._compile_for(kernel.sources)
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

    def _compile_for(self, sources: Sequence[Source]) -> None:
        if all(source.entry in self._functions for source in sources):
            return
        self.compile(sources)
        with self._compiling:
            if all(map(self._load, sources)):
                return
        when_missing = getattr(self._of_thread, "when_missing", None)
        if when_missing is None:
            self.compile_noted()
            return
        when_missing()
        with self._compiling:
            self._compile_now(sources)


def _call_compiler(*arguments: str) -> None:
    command = [str(COMPILER), *_FLAGS, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CompilerError(done.stderr[:5000])


def shared_folder(base: Path) -> Path:
    """A folder for compiled kernels that all workers of a run share. base: pytest's folder for this process."""
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "emulated_kernels"
    folder.mkdir(exist_ok=True)
    return folder


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
