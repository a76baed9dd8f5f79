"""Compile CUDA C++ for a GPU with NVRTC, which needs neither a GPU nor a driver. Compiled code is cached on disk."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from graphkit import config
from graphkit.distribution import how_to_install
from graphkit.errors import MissingDependency, RuntimeFailure
from graphkit.executor.devices.cuda.launches import Source
from graphkit.named_tuples import NamedTuple
from graphkit.shelf import CacheFailure, Shelf

_TEXT = Path(__file__).parent / "text"
# The prelude of all kernels.
PRELUDE = "\n".join(
    (_TEXT / f"{name}.cuh").read_text()
    for name in ("types", "arithmetic", "float8", "philox", "partials", "tensor", "conditions")
)

# No contraction: the compiler uses fused multiply-add only where the source calls it, as on the CPU.
_OPTIONS = ("-std=c++17", "--fmad=false", "--ptxas-options=-v")


# The largest number of files in the cache folder.
MOST_ENTRIES = 1024


class Compiled(NamedTuple):
    """Code for an architecture, with the compiler's report on registers and spills."""

    code: bytes
    log: str


def text_of(sources: Sequence[Source]) -> str:
    """Return one translation unit with all sources."""
    return "\n".join((PRELUDE, *(source.text for source in dict.fromkeys(sources))))


def compiled(sources: Sequence[Source], architecture: str) -> bytes:
    """Return the code of `sources` for an architecture such as "sm_90".

    It is cached in GRAPHKIT_CACHE, or in the user's cache folder. Raises MissingDependency without NVRTC, and
    RuntimeFailure if NVRTC rejects a source or GRAPHKIT_CACHE cannot be used.
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
    """Turn errors of the cache folder into warnings. must: raise them, because the user has chosen the folder."""
    try:
        yield
    except CacheFailure as error:
        if must:
            raise
        warnings.warn(f"compiled kernels cannot be cached: {error}", RuntimeWarning, stacklevel=4)


def user_folder() -> Path:
    """Return the cache folder of the user (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graphkit"


def _whole(kept: bytes | None) -> bytes | None:
    """Return cached code; None if there is none, or it is damaged."""
    size = hashlib.sha256().digest_size
    return kept[size:] if kept is not None and hashlib.sha256(kept[size:]).digest() == kept[:size] else None


def compile_text(text: str, architecture: str, more: Sequence[str] = ()) -> Compiled:
    """Compile one translation unit for an architecture. more: further options. Raises as `compiled` does."""
    nvrtc = _nvrtc()
    program = _checked(nvrtc, nvrtc.nvrtcCreateProgram(text.encode(), b"graphkit.cu", 0, [], []))
    try:
        options = [option.encode() for option in (f"--gpu-architecture={architecture}", *_OPTIONS, *more)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _filled(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RuntimeFailure(f"NVRTC rejects a kernel for {architecture}:\n{log}")
        return Compiled(_filled(nvrtc, program, "CUBIN"), log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def version() -> str:
    """Return the version of NVRTC."""
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
