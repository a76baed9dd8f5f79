"""From CUDA C++ to a card's own code, by NVRTC, which needs neither a card nor a driver. What was compiled is kept."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from graphkit import config
from graphkit.errors import MissingDependency, RuntimeFailure
from graphkit.executor.devices.cuda.launches import Source
from graphkit.ir.atomic import write_whole

PRELUDE = Path(__file__).with_name("prelude.cuh").read_text()

# Products and sums are joined where the program says so, as on a processor, and nowhere else.
_OPTIONS = ("-std=c++17", "--fmad=false", "--ptxas-options=-v")


class Compiled(NamedTuple):
    """The code for an architecture, and what the compiler told of it: registers, spills."""

    code: bytes
    log: str


def text_of(sources: Sequence[Source]) -> str:
    """One translation unit with all of them."""
    return "\n".join((PRELUDE, *(source.text for source in dict.fromkeys(sources))))


def compiled(sources: Sequence[Source], architecture: str) -> bytes:
    """The code of `sources` for an architecture such as "sm_90".

    It is kept in the folder cuda/ of GRAPHKIT_CACHE, by the hash of all that it depends on. Raises MissingDependency
    without NVRTC, RuntimeFailure where it refuses a source.
    """
    text = text_of(sources)
    folder = config.CACHE.get()
    if folder is None:
        return compile_text(text, architecture).code
    key = hashlib.sha256("\0".join((text, architecture, *_OPTIONS, version())).encode()).hexdigest()
    path = Path(folder) / "cuda" / f"{key}.cubin"
    try:
        return path.read_bytes()
    except FileNotFoundError:
        code = compile_text(text, architecture).code
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [code])
        return code


def compile_text(text: str, architecture: str) -> Compiled:
    """Raises as `compiled` does."""
    nvrtc = _nvrtc()
    program = _checked(nvrtc, nvrtc.nvrtcCreateProgram(text.encode(), b"graphkit.cu", 0, [], []))
    try:
        options = [option.encode() for option in (f"--gpu-architecture={architecture}", *_OPTIONS)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _filled(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RuntimeFailure(f"NVRTC refuses a kernel for {architecture}:\n{log}")
        return Compiled(_filled(nvrtc, program, "CUBIN"), log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def version() -> str:
    """NVRTC's."""
    nvrtc = _nvrtc()
    status, major, minor = nvrtc.nvrtcVersion()
    _checked(nvrtc, (status, None))
    return f"{major}.{minor}"


def _filled(nvrtc: Any, program: Any, what: str) -> bytes:
    size = _checked(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program))
    memory = bytearray(size)
    _checked(nvrtc, (*getattr(nvrtc, f"nvrtcGet{what}")(program, memory), None))
    return bytes(memory)


def _checked(nvrtc: Any, answer: tuple[Any, Any]) -> Any:
    status, value = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeFailure(f"NVRTC: {status.name}")
    return value


@cache
def _nvrtc() -> Any:
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise MissingDependency(
            f"kernels for a card are compiled by NVRTC ({error}): pip install 'graphkit[cuda12]', or [cuda13]"
        ) from error
    return nvrtc
