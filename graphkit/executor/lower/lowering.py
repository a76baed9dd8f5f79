"""The protocol of lowerings, one for each way in which a node can run, and the lowered graph that they make up.

A lowering says what its node needs of memory, and writes the node into a native program. The ways themselves lie
beside this file, and `graphkit.executor.lower.registry` tries them in turn.
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
from graphkit.passes.control.specialise import Misfits
from graphkit.text import human

if TYPE_CHECKING:
    from graphkit.executor.devices.loading import _native

# How a node is computed, for people. Views and constants are no steps of a program; copies, from one device to another,
# are no nodes. "swap" is a copy to the host's memory or back, beside the steps. A sum over processes is one of a
# device's own ("nccl") or goes by way of the host ("staged") where programs are a device's.
KernelKind = Literal["native", "interpreted", "view", "constant", "copy", "nccl", "staged", "swap"]

# Where a value lies: (external memory, offset in bytes); the arena and "no operand" have numbers of their own. A buffer
# is external memory that belongs to the run, together with the shape that its value has there.
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
    """A way does not do for a node; the message says why, for the plan."""


class Writer(Protocol):
    """What lowerings see of the emitter, which numbers the external memory of one program."""

    def new_external(self) -> int:
        """The number of external memory that steps set themselves."""
        ...

    def new_buffer(self) -> Location: ...
    def new_call(self, index: int) -> int:
        """The number by which the program calls step `index` of the outermost graph."""
        ...

    def copy(self, builder: _native.Builder, name: str, value: Value, source: Location, target: Location) -> None:
        """Copy a value; a buffer gets its shape as well."""
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
    """Where a lowering writes its step: step `index` of its graph, called `name`, into the native `builder`.

    Operands and results lie as given (a result that nobody reads is ABSENT), the working memory at `scratch`.
    """

    writer: Writer
    builder: _native.Builder
    name: str
    index: int
    inputs: Sequence[Location]
    outputs: Sequence[Location]
    scratch: Location


class Lowering(ABC):
    """One way to run one node.

    `inplace` are the positions (input, output) that may be the same memory, `scratch_bytes` the working memory that it
    needs in the arena; `packing` is the kernel that wants constant operands in layouts of its own. `subgraphs` are what
    it runs inside, by the part of a step's name that tells which one a step is in. `unread` are the positions of the
    operands whose memory the step does not name. `reason` says why a better way did not do.
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
    """A graph of which every node has its lowering, with the order of its steps and its memory.

    The body of a program is one; so is each branch of an If and each body of a loop that runs natively, whose arena is
    working memory of the step that runs it. `lowerings` are those of `placement.steps`; `fixed` gives the operands that
    only change with a version.
    """

    graph: Graph
    fixed: Mapping[Value, VersionedArray]
    placement: Placement
    lowerings: Sequence[Lowering]
    memory: MemoryPlan
    settings: Settings

    @property
    def steps(self) -> Iterator[tuple[Node, Lowering]]:
        """Every node that computes something, with its lowering, in the graph's order."""
        return zip(self.placement.steps, self.lowerings, strict=True)

    @property
    def inputs_read(self) -> Set[int]:
        """The positions of the inputs whose memory a step, or a result, names."""
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
        """Name, node and reason of every step that is interpreted, also inside subgraphs."""
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
    """What is known of a node where a way for it is chosen.

    `inner`: it lies in a subgraph. `dynamic`: the memory of a result in use is not planned. `misfits` say which
    subgraphs could not be specialised. `hosted`: stacks that lie in the host's memory, of a device's program.
    """

    node: Node
    settings: Settings
    context: KernelContext
    inner: bool
    dynamic: bool
    misfits: Misfits
    lower: LowerSubgraph
    hosted: Set[Value] = frozenset()

    @property
    def static(self) -> bool:
        """Whether every operand and result has a known size."""
        return all(has_fixed_size(v) for v in (*self.node.inputs, *self.node.outputs) if v is not None)

    @property
    def without_constants(self) -> KernelContext:
        """The context of a kernel that cannot keep operands packed."""
        return replace(self.context, constant_inputs={})
