"""Descriptions of kernels of a GPU: CUDA C++ sources, how they are launched, and the work of libraries.

A factory makes a `CardKernel` for a node. The device compiles its sources and launches them, and lets libraries compute
products and convolutions. Nothing here needs CUDA, so tests can run each kernel on the CPU of any machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

from graphkit.errors import RuntimeFailure
from graphkit.executor.devices.registry import KernelRule, LaunchedFactory, register
from graphkit.ir.graph import Node
from graphkit.ir.types import HALVES, DType
from graphkit.named_tuples import NamedTuple
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
        beside: Number of blocks that must fit on a multiprocessor at a time, which limits the registers; 0: any.
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
    """Return a Source, given sequences instead of tuples."""
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
    """A word of type `unsigned`. A kernel sets it if an operand has elements for which there is no result."""


@dataclass(frozen=True, eq=False)
class Table:
    """Numbers that a launch reads, the same in every run: a device copies them when it prepares the kernel."""

    array: np.ndarray


# Numbers are numpy scalars: their type is the parameter's.
Argument: TypeAlias = Input | Output | Scratch | Fault | Table | np.generic

# Parameters, as C declares them, with their arguments.
Given: TypeAlias = list[tuple[str, Argument]]


class Memory(NamedTuple):
    """The arrays of a device that the arguments of a launch refer to, for one run."""

    inputs: Sequence[Any]
    outputs: Sequence[Any]
    scratch: Any
    fault: Any
    tables: Mapping[Table, Any]

    def of(self, argument: Argument) -> Any:
        """Return the array of an argument. A number is returned unchanged."""
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
    """A launch of a source, with a number of blocks of THREADS. Blocks run in any order, launches one after another."""

    source: Source
    blocks: int
    arguments: tuple[Argument, ...]


class Matrix(NamedTuple):
    """A column-major matrix in the memory of an argument.

    leading: number of elements from the beginning of a column to that of the next. stride: number of elements to the
    matrix of the next product of a batch; 0 if all products use the same matrix.
    """

    memory: Argument
    rows: int
    columns: int
    leading: int
    stride: int = 0


class Scaled(NamedTuple):
    """8-bit factors of a product. kinds: element types of a and b. scales: one float32 each, which multiplies sums."""

    kinds: tuple[DType, DType]
    scales: tuple[Argument, Argument]


class Product(NamedTuple):
    """A batch of matrix products: d = alpha * op(a) @ op(b) + beta * c + bias.

    Args:
        kind: Element type of all arrays. float16 and bfloat16 are summed in float32.
        a, b: The factors.
        d: The result.
        transposed: Whether op transposes a, and b.
        alpha, beta: Factors.
        c: A matrix of the size of d; it may be d.
        bias: A number for each row of d.
        batch: Number of products.
        tf32: Round float32 factors to TF32 (11 significant bits).
        workspace: Bytes of scratch memory, from offset 0, that the library may use.
        sums: Do not round float32 sums to float16 or bfloat16: c and d are then float32.
        scaled: Types and scales of 8-bit factors. Both scales multiply alpha, and sums are float32.
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
        """Element types of a and b."""
        return self.scaled.kinds if self.scaled else (self.kind, self.kind)

    @property
    def result(self) -> DType:
        """Element type of d."""
        return DType.FLOAT32 if self.sums and self.kind in HALVES else self.kind

    @property
    def arguments(self) -> tuple[Argument | None, ...]:
        """The arguments: a, b, c, d, the bias, the scratch memory, and the scales of a and b."""
        c = self.c.memory if self.c else None
        working = Scratch(0) if self.workspace else None
        scales = self.scaled.scales if self.scaled else (None, None)
        return (self.a.memory, self.b.memory, c, self.d.memory, self.bias, working, *scales)


class Convolution(NamedTuple):
    """A convolution y of x by w, plus an optional bias and residual; or one of its gradients.

    Args:
        wanted: The result: y, or the gradient with respect to x or w.
        kind: Element type of all arrays. float16 and bfloat16 are summed in float32.
        x, w, y: Sizes [N, C, *spatial], [M, C / group, *kernel] and [N, M, *positions], all above 0.
        geometry: Strides, padding, dilations and groups.
        factors: The two arrays that are given, in the order x, w, y.
        result: The array to compute.
        bias, residual: Arrays to add to y. The residual has the layout of y.
        tf32: Round float32 factors to TF32 (11 significant bits).
        workspace: Bytes of scratch memory, from offset `working`, that the library may use.
        sums: Do not round float32 sums to float16 or bfloat16: the result is then float32.
        last: In memory, the channels of x and y are the last axis, instead of axis 1.
        filters_last: In memory, the channels of w are the last axis, instead of axis 1.
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
        """Element type of the result."""
        return DType.FLOAT32 if self.sums and self.kind in HALVES else self.kind

    @property
    def arguments(self) -> tuple[Argument | None, ...]:
        """The arguments: both factors, the result, the bias, the residual, and the scratch memory."""
        return (*self.factors, self.result, self.bias, self.residual, self.working if self.workspace else None)


class Heads(NamedTuple):
    """An array [batch, heads, rows, columns], with its sizes and strides. Strides are in elements."""

    memory: Argument
    sizes: tuple[int, int, int, int]
    strides: tuple[int, int, int, int]


class Attention(NamedTuple):
    """Attention of finite float16 or bfloat16 elements: y = softmax(scale * q @ k^T) @ v for each head.

    Sums are float32. No size is 0.

    Args:
        kind: Element type.
        q, k, v, y: Arrays [N, H, L, D], [N, H, S, D], [N, H, S, E] and [N, H, L, E].
        scale: Factor of the scores.
        causal: Query i sees only keys up to number i + S - L. Requires S >= L.
        workspace: Bytes of scratch memory, from offset `working`, that the library may use.
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
        """The arguments: q, k, v, y, and the scratch memory."""
        return (*(of.memory for of in (self.q, self.k, self.v, self.y)), self.working if self.workspace else None)


# An operation that a library computes.
Work: TypeAlias = Product | Convolution | Attention


class CardKernel(NamedTuple):
    """The kernel of a node with static types: a sequence of launches and operations of libraries.

    Args:
        launches: The work, in order. An object that occurs several times is prepared once.
        scratch_bytes: Bytes of working memory.
        inplace: Positions (input, output) that may share memory.
        fault: The text of the error if the fault is set; empty if no launch sets one.
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
        """Yield this kernel, and those to try if it is not supported."""
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
