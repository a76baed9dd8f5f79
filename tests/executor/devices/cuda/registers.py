"""Compile kernels with NVRTC, and check that they keep their values in registers.

Optimised code takes NVRTC 30 ms for each kernel, and code without optimisation a fifth of that. So each text is
compiled once in a process, and some kernels are only optimised if another form of the same kernel needs many registers:
see `check_like`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from graphkit.executor.devices.cuda import compiler
from graphkit.executor.devices.cuda.launches import Source

# Bytes that a thread may put aside of its registers: what calls of slow paths (a remainder, a power) take.
MOST_SPILLED = 32
MOST_REGISTERS = 128
# A form of a kernel needs up to 12 registers more than the form that it is compared with.
MANY_REGISTERS = MOST_REGISTERS - 16

FIRST_CARD = "sm_90"
# Element types with architectures that kernels of many tiles are compiled for, which takes NVRTC some 10 s for each:
# every type on an H100, and two types on other cards.
KINDS = [
    *((kind, FIRST_CARD) for kind in ("float32", "bfloat16", "float16", "float64")),
    ("float32", "sm_80"), ("bfloat16", "sm_100"),
]  # fmt: skip


class Usage(NamedTuple):
    """Registers and spilled bytes of a kernel's optimised code."""

    registers: int
    spilled: int


# By architecture and by the text of a kernel without its name.
_found: dict[tuple[str, str], Usage] = {}
_accepted: set[tuple[str, str]] = set()
_calls = itertools.count()
_REPORT = re.compile(
    r"Compiling entry function '(\w+)' for '\w+'\n.*\n.*? (\d+) bytes spill stores, (\d+) bytes spill loads\n"
    r".*?Used (\d+) registers"
)


def _key(source: Source, architecture: str) -> tuple[str, str]:
    return architecture, source.text.replace(source.entry, "kernel")


def _compiled(sources: Sequence[Source], architecture: str, *options: str) -> str:
    """Compile sources to code. Returns the log."""
    # NVRTC 13 keeps the code of a text that this process has compiled before, and has no log for it then.
    text = f"{compiler.text_of(sources)}\n// {next(_calls)}\n"
    found = compiler.compile_text(text, architecture, options)
    assert found.code[:4] == b"\x7fELF"
    return found.log


def usages(sources: Iterable[Source], architecture: str) -> list[Usage]:
    """Return the usage of each kernel. Sources that this process has not compiled yet are compiled."""
    given = {_key(source, architecture): source for source in sources}
    new = [source for key, source in given.items() if key not in _found]
    if new:
        log = _compiled(new, architecture)
        by_name = {
            name: Usage(int(registers), max(int(stored), int(loaded)))
            for name, stored, loaded, registers in _REPORT.findall(log)
        }
        for source in new:
            assert source.entry in by_name, log[:2000]
            _found[_key(source, architecture)] = by_name[source.entry]
    return [_found[key] for key in given]


def check(sources: Iterable[Source], architecture: str) -> None:
    """Assert that NVRTC takes these kernels, and that their values are in registers."""
    sources = list(sources)
    for usage in usages(sources, architecture):
        assert usage.spilled <= MOST_SPILLED
        assert usage.registers <= MOST_REGISTERS


def _is_near(usage: Usage) -> bool:
    return usage.spilled > 0 or usage.registers >= MANY_REGISTERS


def check_like(pairs: Iterable[tuple[Source, Source]], architecture: str) -> None:
    """Check kernels, each with the same kernel in another form: of a type of the same size, or for the first card.

    NVRTC makes code of all of them. Those are optimised whose other form puts registers aside on the first card or is
    near to it. On a B200, where kernels need up to 34 registers more, all are optimised.
    """
    pairs = list(pairs)
    if architecture == "sm_100":
        check((source for source, _ in pairs), architecture)
        return
    usages((other for _, other in pairs), FIRST_CARD)
    check((source for source, other in pairs if _is_near(_found[_key(other, FIRST_CARD)])), architecture)
    keys = {_key(source, architecture): source for source, _ in pairs}
    rest = {key: source for key, source in keys.items() if key not in _found and key not in _accepted}
    if rest:
        _compiled(list(rest.values()), architecture, "--Ofast-compile=max")
        _accepted.update(rest)


def check_kind(sources_of: Callable[[str], Sequence[Source]], kind: str, architecture: str) -> None:
    """Check the kernels of one of KINDS.

    Kernels of float16 are those of bfloat16 in another form, and an A100 needs about as many registers as an H100.
    """
    sources = sources_of(kind)
    others = sources_of("bfloat16") if kind == "float16" else sources
    if architecture == FIRST_CARD and others is sources:
        check(sources, architecture)
    else:
        check_like(zip(sources, others, strict=True), architecture)
