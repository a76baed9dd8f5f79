"""Descriptions of kernels of a GPU: CUDA C++ sources, how they are launched, and the work of libraries.

A factory makes a `CardKernel` for a node. The device compiles its sources and launches them, and lets libraries compute
products and convolutions. Nothing here needs CUDA, so tests can run each kernel on the CPU of any machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from graphkit.errors import RuntimeFailure
from graphkit.executor.devices.registry import KernelRule, LaunchedFactory, register
from graphkit.ir.graph import Node
from graphkit.ir.types import HALVES, DType
from graphkit.ops.nn.conv import Geometry

# The number of threads of each block.
THREADS = 256


def launched(
    name: str, domain: str = "", *, covers: Callable[[Node], bool] | None = None, fusable: bool = False
) -> Callable[[LaunchedFactory], LaunchedFactory]:
    """Decorator: register the factory of an operator's kernels on a GPU. `KernelRule` explains the options."""

    def install(factory: LaunchedFactory) -> LaunchedFactory:
        rule = KernelRule(launched=factory, covers=covers, fusable=fusable)
        register("cuda", domain, name, rule, factory.__module__)
        return factory

    return install


@dataclass(frozen=True, eq=False)
class Source:
    """A function in CUDA C++, to be compiled after the prelude. `gk_block` is the number of its block.

    Args:
        name: Beginning of the function's name.
        declared: The parameters, as C declares them.
        lines: The body.
        beside: Number of blocks that must fit on a multiprocessor, which limits the registers; 0: any.
    """

    name: str
    declared: tuple[str, ...]
    lines: tuple[str, ...]
    beside: int = 0

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters' types."""
        return tuple(parameter.rpartition(" ")[0] for parameter in self.declared)

    @cached_property
    def _rest(self) -> str:
        """The text after the function's name."""
        inner = "\n".join("    " + line for line in ("const gk_u32 gk_block = blockIdx.x;", *self.lines))
        return f"({', '.join(self.declared)}) {{\n{inner}\n}}\n"

    @cached_property
    def entry(self) -> str:
        """The function's name, which is unique."""
        return f"gk_{self.name.lower()}_{hashlib.sha256(self._rest.encode()).hexdigest()[:16]}"

    @property
    def text(self) -> str:
        bounds = f"{THREADS}, {self.beside}" if self.beside else THREADS
        return f'extern "C" __global__ void __launch_bounds__({bounds})\n{self.entry}{self._rest}'

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Source) and self.entry == other.entry

    def __hash__(self) -> int:
        return hash(self.entry)


def source_of(name: str, parameters: Sequence[str], lines: Sequence[str], beside: int = 0) -> Source:
    """See Source."""
    return Source(name, tuple(parameters), tuple(lines), beside)


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

# Parameters, as C declares them, with what they are given.
Given: TypeAlias = list[tuple[str, Argument]]


class Memory(NamedTuple):
    """What the arguments of a run stand for: arrays of a device."""

    inputs: Sequence[Any]
    outputs: Sequence[Any]
    scratch: Any
    fault: Any
    tables: Mapping[Table, Any]

    def of(self, argument: Argument) -> Any:
        """The array of an argument; a number is itself."""
        match argument:
            case Input(position):
                return self.inputs[position]
            case Output(position):
                return self.outputs[position]
            case Scratch(offset):
                return self.scratch[offset:]
            case Fault():
                return self.fault
            case Table():
                return self.tables[argument]
            case _:
                return argument


class Launch(NamedTuple):
    """A source on so many blocks of THREADS. Blocks of a launch run in any order, launches one by one."""

    source: Source
    blocks: int
    arguments: tuple[Argument, ...]


class Matrix(NamedTuple):
    """Columns one behind the other in an argument's memory, `leading` elements apart; `stride` elements behind each is
    that of the next product of a batch: 0 where all have the same.
    """

    memory: Argument
    rows: int
    columns: int
    leading: int
    stride: int = 0


class Scaled(NamedTuple):
    """Factors of 8 bits. kinds: of the elements of a and b; scales: one float32 each, which sums are multiplied by."""

    kinds: tuple[DType, DType]
    scales: tuple[Argument, Argument]


class Product(NamedTuple):
    """d = alpha * op(a) @ op(b) + beta * c + bias, `batch` times; op transposes where `transposed` says so.

    kind: of the elements of a and b, and of all others but where `sums` are wanted as they are: d then has float32 in
    the place of half floats, and so has c. c: of d's size; it may be d. bias: a number for each row of d. Sums have the
    type of the elements, those of half floats float32; `tf32`: float32 elements are multiplied by their leading 11
    bits. `scaled`: a and b have 8 bits and scales, and alpha is multiplied by both; sums are float32. The library may
    use `workspace` bytes of scratch memory from 0 on.
    """

    kind: DType
    a: Matrix
    b: Matrix
    d: Matrix
    transposed: tuple[bool, bool] = (False, False)
    alpha: float = 1.0
    c: Matrix | None = None
    beta: float = 0.0
    bias: Argument | None = None
    batch: int = 1
    tf32: bool = False
    workspace: int = 0
    sums: bool = False
    scaled: Scaled | None = None

    @property
    def factors(self) -> tuple[DType, DType]:
        """The types of a's and b's elements."""
        return self.scaled.kinds if self.scaled else (self.kind, self.kind)

    @property
    def result(self) -> DType:
        """The type of d's elements."""
        return DType.FLOAT32 if self.sums and self.kind in HALVES else self.kind

    @property
    def arguments(self) -> tuple[Argument | None, ...]:
        """Of a, b, c, d and the bias, the scratch memory, and the scales of a and b."""
        c = self.c.memory if self.c else None
        working = Scratch(0) if self.workspace else None
        scales = self.scaled.scales if self.scaled else (None, None)
        return (self.a.memory, self.b.memory, c, self.d.memory, self.bias, working, *scales)


class Convolution(NamedTuple):
    """y is the convolution of x by w, plus a bias and a residual where there are such. `wanted` is y, or the gradient
    by x, or by w.

    x: [N, C, *spatial], w: [M, C / group, *kernel], y: [N, M, *positions]: sizes of arrays, all of `kind`, without one
    of 0. They are row-major; with `last` channels of x and y are behind the spatial axes, with `filters_last` those of
    w are. residual: as y. factors: the two that are given, in this order. Sums of half floats are float32, and with
    `sums` the result is these; `tf32`: float32 elements are multiplied by their leading 11 bits. The library may use
    `workspace` bytes of scratch memory from `working` on.
    """

    wanted: Literal["x", "w", "y"]
    kind: DType
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    geometry: Geometry
    factors: tuple[Argument, Argument]
    result: Argument
    bias: Argument | None = None
    tf32: bool = False
    workspace: int = 0
    working: Scratch = Scratch(0)
    sums: bool = False
    residual: Argument | None = None
    last: bool = False
    filters_last: bool = False

    @property
    def made(self) -> DType:
        """The type of the result's elements."""
        return DType.FLOAT32 if self.sums and self.kind in HALVES else self.kind

    @property
    def arguments(self) -> tuple[Argument | None, ...]:
        """Of the factors, the result, the bias and the residual, and the scratch memory."""
        return (*self.factors, self.result, self.bias, self.residual, self.working if self.workspace else None)


class Heads(NamedTuple):
    """An array [batch, heads, rows, columns]: its sizes, and elements between neighbours along each axis."""

    memory: Argument
    sizes: tuple[int, int, int, int]
    strides: tuple[int, int, int, int]


class Attention(NamedTuple):
    """y = softmax(scale * q @ k^T) @ v for each head, of half floats that are finite; sums are float32.

    q: [N, H, L, D], k: [N, H, S, D], v: [N, H, S, E], y: [N, H, L, E], without a size of 0. causal: query i sees no key
    behind i + S - L; there are as many keys as queries at least. The library may use `workspace` bytes of scratch
    memory from `working` on.
    """

    kind: DType
    q: Heads
    k: Heads
    v: Heads
    y: Heads
    scale: float
    causal: bool
    workspace: int = 0
    working: Scratch = Scratch(0)

    @property
    def arguments(self) -> tuple[Argument | None, ...]:
        """Of q, k, v and y, and the scratch memory."""
        return (*(of.memory for of in (self.q, self.k, self.v, self.y)), self.working if self.workspace else None)


# What libraries compute.
Work: TypeAlias = Product | Convolution | Attention


class CardKernel(NamedTuple):
    """The kernel of a node of static types: launches, and work of libraries between them.

    Args:
        launches: The work, in order. An object that occurs several times is prepared once.
        scratch_bytes: Bytes of working memory.
        inplace: Positions (input, output) that may share memory.
        fault: What is wrong if the fault is set; empty if no launch sets one.
        otherwise: The kernel to use if a library does not support the work. It has the same working memory, and no
            fault.
    """

    launches: tuple[Launch | Work, ...]
    scratch_bytes: int = 0
    inplace: Sequence[tuple[int, int]] = ()
    fault: str = ""
    otherwise: CardKernel | None = None

    @property
    def alternatives(self) -> Iterator[CardKernel]:
        """This kernel, and those to try after it."""
        kernel: CardKernel | None = self
        while kernel is not None:
            yield kernel
            kernel = kernel.otherwise

    @property
    def tables(self) -> set[Table]:
        """The tables that launches read, which are the same in every run."""
        launches = (launch for launch in self.launches if isinstance(launch, Launch))
        return {argument for launch in launches for argument in launch.arguments if isinstance(argument, Table)}

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(launch.source for launch in self.launches if isinstance(launch, Launch))

    def failure(self, node: Node, word: int) -> RuntimeFailure:
        """Return the error of a node whose launches have set the fault to `word`."""
        return RuntimeFailure(f"{node.describe()}: {self.fault}")
