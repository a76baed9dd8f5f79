"""What a kernel of the card is before there is a card: CUDA C++, and how it is launched.

A factory makes a `CardKernel` of a node; the device compiles its sources and launches them on arrays. Nothing here
needs CUDA, so that every kernel can be compiled, and run by a processor, on any machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from graphkit.errors import RuntimeFailure
from graphkit.ir.graph import Node

# Of every block.
THREADS = 256


class Source(NamedTuple):
    """A function `entry` in CUDA C++, to stand behind the prelude, and the C types of its parameters."""

    entry: str
    parameters: tuple[str, ...]
    text: str


def source_of(name: str, parameters: Sequence[str], lines: Sequence[str]) -> Source:
    """A function called by its name and by its text's hash.

    parameters: as C declares them. lines: of the body.
    """
    inner = "\n".join("    " + line for line in lines)
    text = f"({', '.join(parameters)}) {{\n{inner}\n}}\n"
    entry = f"gk_{name.lower()}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    types = tuple(parameter.rpartition(" ")[0] for parameter in parameters)
    return Source(entry, types, f'extern "C" __global__ void __launch_bounds__({THREADS})\n{entry}{text}')


class Input(NamedTuple):
    """An operand's memory."""

    position: int


class Output(NamedTuple):
    """A result's memory."""

    position: int


class Scratch(NamedTuple):
    """Working memory of the launch's kernel, from an offset in bytes on."""

    offset: int


class Fault(NamedTuple):
    """A word, `unsigned`, that a kernel sets where it found what no kernel can compute."""


@dataclass(frozen=True, eq=False)
class Table:
    """Numbers that a launch reads, the same in every run: a device copies them when it prepares the kernel."""

    array: np.ndarray


# Numbers are numpy scalars: their type is the parameter's.
Argument: TypeAlias = Input | Output | Scratch | Fault | Table | np.generic


class Launch(NamedTuple):
    """A source on so many blocks of THREADS. Blocks of a launch run in any order, launches one by one."""

    source: Source
    blocks: int
    arguments: tuple[Argument, ...]


class CardKernel(NamedTuple):
    """The launches that compute a node of static types.

    inplace: positions (input, output) that may be the same memory. fault: what is wrong where the fault is set; empty
    where no launch has one.
    """

    launches: tuple[Launch, ...]
    scratch_bytes: int = 0
    inplace: Sequence[tuple[int, int]] = ()
    fault: str = ""

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(launch.source for launch in self.launches)

    def failure(self, node: Node) -> RuntimeFailure:
        """What to raise where the fault is set by the launches for a node."""
        return RuntimeFailure(f"{node.describe()}: {self.fault}")
