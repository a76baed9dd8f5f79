"""From CUDA C++ to a card's own code, by NVRTC, which needs neither a card nor a driver. What was compiled is kept."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from graphkit import config
from graphkit.distribution import how_to_install
from graphkit.errors import MissingDependency, RuntimeFailure
from graphkit.executor.devices.cuda.launches import Source
from graphkit.shelf import CacheFailure, Shelf

_TEXT = Path(__file__).parent / "text"
# What stands before every kernel.
PRELUDE = "\n".join(
    (_TEXT / f"{name}.cuh").read_text()
    for name in ("types", "arithmetic", "float8", "philox", "partials", "tensor", "conditions")
)

# Products and sums are joined where the program says so, as on a processor, and nowhere else.
_OPTIONS = ("-std=c++17", "--fmad=false", "--ptxas-options=-v")


# Files of compiled kernels that a folder holds at most.
MOST_ENTRIES = 1024


class Compiled(NamedTuple):
    """The code for an architecture, and what the compiler told of it: registers, spills."""

    code: bytes
    log: str


def text_of(sources: Sequence[Source]) -> str:
    """One translation unit with all of them."""
    return "\n".join((PRELUDE, *(source.text for source in dict.fromkeys(sources))))


def compiled(sources: Sequence[Source], architecture: str) -> bytes:
    """The code of `sources` for an architecture such as "sm_90".

    It is kept in GRAPHKIT_CACHE, or in the user's folder for such files. Raises MissingDependency without NVRTC,
    RuntimeFailure where it refuses a source, or the disk GRAPHKIT_CACHE.
    """
    text = text_of(sources)
    content = "\0".join((text, architecture, *_OPTIONS, version()))
    given = config.CACHE.get()
    shelf = Shelf(Path(given) if given else user_folder(), "kernels", ".cubin", MOST_ENTRIES)
    code = None
    with _unless_refused(must=given is not None):
        code = _whole(shelf.read(content))
    if code is None:
        code = compile_text(text, architecture).code
        with _unless_refused(must=given is not None):
            shelf.write(content, hashlib.sha256(code).digest() + code)
    return code


@contextlib.contextmanager
def _unless_refused(*, must: bool) -> Iterator[None]:
    """Of a folder that nobody asked for a refusal is a warning."""
    try:
        yield
    except CacheFailure as error:
        if must:
            raise
        warnings.warn(f"compiled kernels cannot be cached: {error}", RuntimeWarning, stacklevel=4)


def user_folder() -> Path:
    """Where a user's programs keep what they can make again (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graphkit"


def _whole(kept: bytes | None) -> bytes | None:
    """The code that was kept; None where there is none, or it is damaged."""
    size = hashlib.sha256().digest_size
    return kept[size:] if kept is not None and hashlib.sha256(kept[size:]).digest() == kept[:size] else None


def compile_text(text: str, architecture: str) -> Compiled:
    """Raises as `compiled` does."""
    nvrtc = _nvrtc()
    program = _checked(nvrtc, nvrtc.nvrtcCreateProgram(text.encode(), b"graphkit.cu", 0, [], []))
    try:
        options = [option.encode() for option in (f"--gpu-architecture={architecture}", *_OPTIONS)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _filled(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RuntimeFailure(f"NVRTC rejects a kernel for {architecture}:\n{log}")
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
            f"NVRTC is needed to compile GPU kernels ({error}): {how_to_install('cuda12', 'cuda13')}"
        ) from error
    return nvrtc
