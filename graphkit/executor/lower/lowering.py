"""The base class of lowerings, and the lowered graph.

A lowering states the memory that its node needs, and writes the node into a native program. Each module beside this one
defines one or more lowerings; `graphkit.executor.lower.registry` tries them in turn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from graphkit.executor.devices.kernel import KernelContext, NativeKernel, VersionedArray
from graphkit.executor.memory.placement import Placement, has_fixed_size
from graphkit.executor.memory.plan_graph import MemoryPlan
from graphkit.ir.declared import Declarations
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType
from graphkit.passes.control.specialise import Unspecialised
from graphkit.text import human

if TYPE_CHECKING:
    from graphkit.executor.devices.loading import _native

# How a node is computed, for reports. Views and constants are not steps. "copy": between devices. "swap": to host
# memory or back, beside other steps. On a device, an all-reduce is done by NCCL ("nccl") or in host memory ("staged").
KernelKind = Literal["native", "interpreted", "view", "constant", "copy", "nccl", "staged", "swap"]

# Where a value is: (external memory, offset in bytes). The arena and absent operands have their own numbers. A buffer
# is external memory of the run, with the shape of the value in it.
Location: TypeAlias = tuple[int, int]

ARENA = -1
ABSENT: Location = (-2, 0)
NO_BUFFER = -1


class Meeting(NamedTuple):
    """What all processes know of each other before a run. known: all may replay what was recorded, or record it.

    recording: the one that all have, 0 where they have none in common; fresh: what a new one is called.
    """

    known: bool
    recording: int
    fresh: int


class DeviceSums(Protocol):
    """Carries sums over processes of arrays of devices, one device of each process, without the host.

    All processes launch the same in one order, which they compare before each run. Work goes to the current stream of
    the device; where that is recorded, it is. broken: another process was given up, and what was launched was ended.
    """

    broken: bool

    def carries(self, dtype: DType) -> bool:
        """Whether there are sums of such elements."""
        ...

    def meet(self, order: str, nbytes: int, known: bool, recording: int, structure: int) -> Meeting:
        """Come to a run with sums of so many bytes, in an order of this name. Raises RuntimeFailure where another
        process comes to anything else, or does not come.

        known, recording: what this process could do, as in a Meeting; structure: which sums are recorded together, a
        number below 2**20.
        """
        ...

    def all_reduce(self, arrays: Sequence[Any], dtype: DType) -> None:
        """Launch the sum of each array over the processes, in its place."""
        ...

    def reduce_scatter(self, arrays: Sequence[Any], dtype: DType) -> None:
        """The same; of what lies one behind the other, only this process's slice gets the sum."""
        ...

    def all_gather(self, wholes: Sequence[Any], dtype: DType) -> None:
        """Launch the exchange of vectors of which each process has its slice."""
        ...

    def wait(self, done: Callable[[], bool]) -> None:
        """Return when it is done. Raises RuntimeFailure when another process is given up, and ends what was launched;
        returns within a while, whatever is done, when that has been said already.
        """
        ...

    def fail(self, error: BaseException) -> None:
        """This process leaves a run in whose sums the others take part: nothing is done together any more."""
        ...


class Collectives(Protocol):
    """What carries sums over processes that a program begins and waits for.

    on_device: what carries those of a device's arrays; None where they go by way of the host, and `staged` says why.
    """

    on_device: DeviceSums | None
    staged: str

    def start(self, key: str, arrays: Sequence[np.ndarray], copied: int) -> None:
        """Begin to sum the arrays in place, as others do under the same key. They lie one behind the other if that was
        planned; `copied` bytes had to be moved for it.
        """
        ...

    def gather(self, key: str, array: np.ndarray) -> np.ndarray:
        """The arrays of all processes under this key, of one type, by rank along a new first axis."""
        ...

    def start_rows(self, key: str, indices: np.ndarray, rows: np.ndarray) -> None:
        """Begin to sum rows by index, as others do under the same key; the arrays are read in this call alone."""
        ...

    def wait_rows(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """The rows of all by ascending index, and their sums, in new arrays; raises as `wait` does."""
        ...

    def start_scattered(self, key: str, arrays: Sequence[np.ndarray], copied: int) -> None:
        """The same; of what lies one behind the other, only this process's slice is summed."""
        ...

    def start_gather(
        self, key: str, wholes: Sequence[np.ndarray], pieces: Sequence[tuple[int, int, np.ndarray]]
    ) -> None:
        """Begin to fill vectors by what each process has of them: of which one, from where on, and what."""
        ...

    def wait(self, keys: Sequence[str]) -> None:
        """Return when these sums are there. Raises RuntimeFailure when other processes do not take part."""
        ...


class Channels(Protocol):
    """What carries single values between this process and others, of which each knows what comes from whom, when."""

    def send(self, to: int, number: int, key: str, array: np.ndarray) -> None:
        """Send an array, which is copied, to a rank, which receives it under the same number; `key` is its name."""
        ...

    def receive(self, source: int, number: int, key: str, dtype: np.dtype[Any], rank: int) -> np.ndarray:
        """The array that a rank sends, of so many axes. Raises RuntimeFailure where it does not come, or another one
        does.
        """
        ...


class Settings(NamedTuple):
    """How programs are made: the device, which of its kind it is (`number`), and the switches of the executor.

    `native` tells whether the device's programs are native ones; `declared` are shapes that what a run makes is held
    against; `sizes_vary` and `tf32` are for kernels (see KernelContext); `collectives` carry sums over processes,
    `channels` single values.
    """

    device: str
    native: bool
    threads: int
    deterministic: bool
    inplace: bool
    share: bool
    optimize: bool = True
    declared: Declarations | None = None
    sizes_vary: bool = False
    collectives: Collectives | None = None
    channels: Channels | None = None
    tf32: bool = False
    number: int = 0


class NotNative(Exception):
    """A lowering does not apply to a node. The message says why, for the plan."""


class Writer(Protocol):
    """The emitter, as lowerings use it. It numbers the external memory of one program."""

    def new_external(self) -> int:
        """Return the number of external memory that steps set themselves."""
        ...

    def new_buffer(self) -> Location: ...
    def new_call(self, index: int) -> int:
        """Return the number by which the program calls step `index` of the outermost graph."""
        ...

    def copy(self, builder: _native.Builder, name: str, value: Value, source: Location, target: Location) -> None:
        """Copy a value. A buffer also gets its shape."""
        ...

    def graph(
        self,
        builder: _native.Builder,
        lowered: LoweredGraph,
        base: int,
        inputs: Sequence[Location],
        results: Sequence[Location],
        prefix: str = "",
    ) -> None:
        """Write the steps of a subgraph, whose arena begins at `base` and whose names begin with `prefix`."""
        ...


@dataclass(frozen=True, slots=True)
class Emission:
    """Where a lowering writes its step.

    Args:
        writer: The emitter.
        builder: The native builder.
        name: Name of the step.
        index: Index of the step in its graph.
        inputs: Where the operands are.
        outputs: Where the results are; ABSENT for unused ones.
        scratch: Where the working memory is.
    """

    writer: Writer
    builder: _native.Builder
    name: str
    index: int
    inputs: Sequence[Location]
    outputs: Sequence[Location]
    scratch: Location


class Lowering(ABC):
    """How one node runs.

    Attributes:
        kind: How the node is computed, for reports.
        reason: Why no better lowering applies.
        scratch_bytes: Bytes of working memory in the arena.
        inplace: Positions (input, output) that may share memory.
        packing: The kernel that reads constant operands in its own layout.
        unread: Positions of operands that the step does not read.
        subgraphs: The graphs that the node runs, by the part of a step's name that says which one a step is in.
        in_python: Whether the step is a call of Python.
    """

    kind: KernelKind = "native"
    reason: str = ""
    scratch_bytes: int = 0
    inplace: Sequence[tuple[int, int]] = ()
    packing: NativeKernel | None = None
    unread: Set[int] = frozenset()
    subgraphs: Mapping[str, LoweredGraph] = MappingProxyType({})
    in_python: ClassVar[bool] = False

    @abstractmethod
    def emit(self, step: Emission) -> None:
        """Write the node into a native program."""


@dataclass(frozen=True)
class LoweredGraph:
    """A graph with the lowering of each node, the order of its steps and its memory.

    It is the body of a program, a branch or the body of a loop. The arena of a subgraph is working memory of the step
    that runs it. `lowerings` are those of `placement.steps`. `fixed` contains operands that only change with a version.
    """

    graph: Graph
    fixed: Mapping[Value, VersionedArray]
    placement: Placement
    lowerings: Sequence[Lowering]
    memory: MemoryPlan
    settings: Settings

    @property
    def steps(self) -> Iterator[tuple[Node, Lowering]]:
        """The nodes that are steps, with their lowerings, in the order of the graph."""
        return zip(self.placement.steps, self.lowerings, strict=True)

    @property
    def inputs_read(self) -> Set[int]:
        """The positions of the inputs that are results or that a step reads."""
        root = self.placement.root
        read = {root[result.value] for result in self.placement.results}
        for node, lowering in self.steps:
            named = (v for i, v in enumerate(node.inputs) if v is not None and i not in lowering.unread)
            read.update(root[v] for v in named if v in root)
        return {i for i, v in enumerate(self.graph.inputs) if v in read}

    def contents(self) -> str:
        """Return such as `20 steps (18 native, 2 interpreted), arena 1.2 MiB`."""
        kinds = Counter(lowering.kind for lowering in self.lowerings).most_common()
        listed = ", ".join(f"{count} {kind}" for kind, count in kinds) or "none"
        return f"{steps_text(len(self.lowerings))} ({listed}), arena {human(self.memory.layout.arena_bytes)}"

    def interpreted(self, prefix: str = "") -> Iterator[tuple[str, Node, str]]:
        """Yield name, node and reason of each interpreted step, also in subgraphs."""
        for node, lowering in self.steps:
            if lowering.kind == "interpreted":
                yield prefix + self.graph.node_name(node), node, lowering.reason
            for part, inner in lowering.subgraphs.items():
                yield from inner.interpreted(f"{prefix}{self.graph.node_name(node)}/{part}/")


def steps_text(count: int) -> str:
    """Return `1 step`, `20 steps`."""
    return f"{count} step{'s' * (count != 1)}"


# Lowers a subgraph; the arrays are by the position of its input. Raises NotNative.
LowerSubgraph: TypeAlias = Callable[[Graph, Mapping[int, VersionedArray]], LoweredGraph]


@dataclass(frozen=True)
class Site:
    """A node whose lowering is to be chosen.

    Args:
        node: The node.
        settings: How programs are made.
        context: The context of its kernel.
        inner: Whether the node is in a subgraph.
        dynamic: Whether the memory of a used result is not planned.
        unspecialised: The subgraphs that could not be specialised, and why.
        lower: Lowers a subgraph.
        hosted: Outputs of loops that are stacked in host memory.
    """

    node: Node
    settings: Settings
    context: KernelContext
    inner: bool
    dynamic: bool
    unspecialised: Unspecialised
    lower: LowerSubgraph
    hosted: Set[Value] = frozenset()

    @property
    def static(self) -> bool:
        """Whether the sizes of all operands and results are known."""
        return all(has_fixed_size(v) for v in (*self.node.inputs, *self.node.outputs) if v is not None)

    @property
    def without_constants(self) -> KernelContext:
        """The context for a kernel that does not pack operands."""
        return replace(self.context, constant_inputs={})
