"""What NVRTC says of compiled kernels: that they are code, and keep their values in registers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from graphkit.executor.devices.cuda import compiler
from graphkit.executor.devices.cuda.launches import Source

# Bytes that a thread may put aside of its registers: what calls of slow paths (a remainder, a power) take.
MOST_SPILLED = 32
MOST_REGISTERS = 128

# Element types with architectures that kernels of many tiles are compiled for, which takes NVRTC some 15 s for each:
# every type on an H100, and two types on other cards.
KINDS = [
    *((kind, "sm_90") for kind in ("float32", "float16", "bfloat16", "float64")),
    ("float32", "sm_80"), ("bfloat16", "sm_100"),
]  # fmt: skip


_calls = itertools.count()


def check(sources: Sequence[Source], architecture: str) -> None:
    # NVRTC 13 keeps the code of a text that this process has compiled before, and has no log for it then.
    found = compiler.compile_text(f"{compiler.text_of(sources)}\n// {next(_calls)}\n", architecture)
    assert found.code[:4] == b"\x7fELF"
    spilled = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", found.log)
    assert len(spilled) >= len(set(sources)), found.log[:2000]
    assert max(int(n) for pair in spilled for n in pair) <= MOST_SPILLED
    assert max(map(int, re.findall(r"Used (\d+) registers", found.log))) <= MOST_REGISTERS
