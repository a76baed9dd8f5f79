"""The base class of lowerings, and the lowered graph.

A lowering states the memory that its node needs, and writes the node into a native program.
`graphkit.executor.lower.registry` tries the lowerings of this package in turn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias

from graphkit.executor.devices.kernel import KernelContext, NativeKernel, VersionedArray
from graphkit.executor.devices.loading import DeviceName
from graphkit.executor.memory.placement import Placement, has_fixed_size
from graphkit.executor.memory.plan_graph import MemoryPlan
from graphkit.ir.declared import Declarations
from graphkit.ir.graph import Graph, Node, Value
from graphkit.named_tuples import NamedTuple
from graphkit.text import human

if TYPE_CHECKING:
    from graphkit.executor.devices.loading import _native
    from graphkit.executor.lower.collaborators import Channels, Collectives, GroupCalls
    from graphkit.passes.control.specialise import Unspecialised

# How a node is computed, for reports. Views and constants are not steps. "copy" is between devices, "swap" to host
# memory or back. "nccl" and "staged" are collectives on a device: executed by NCCL, or through host memory. "backend"
# is a group of nodes that another engine computes.
KernelKind = Literal["native", "interpreted", "view", "constant", "copy", "nccl", "staged", "swap", "backend"]

# (number of a memory block, offset in bytes). Numbers from 0 are external memory, such as inputs, results and
# parameters. A buffer is external memory of run-time size, which also stores the shape of its value.
Location: TypeAlias = tuple[int, int]

ARENA = -1
ABSENT: Location = (-2, 0)
NO_BUFFER = -1


class Settings(NamedTuple):
    """Settings of lowering.

    Args:
        deterministic: Whether results must not depend on the number of threads.
        inplace: Whether a result may overwrite an operand.
        declared: Declared shapes that inference could neither confirm nor reject. They are checked in each run.
        sizes_vary: See KernelContext.
        tf32: See KernelContext.
        number: The index of the device: 1 for "cuda:1".
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
    backends: GroupCalls | None = None

    @property
    def device_name(self) -> DeviceName:
        return DeviceName(self.device, self.number)


class NotNative(Exception):
    """The lowering does not apply to a node, for the reason in the message."""


if TYPE_CHECKING:

    class Writer(Protocol):
        def new_external(self) -> int:
            """Return the number of a new block of external memory, whose address a step sets."""
            ...

        def new_buffer(self) -> Location: ...

        def new_call(self, index: int) -> int: ...

        def copy(self, builder: _native.Builder, name: str, value: Value, source: Location, target: Location) -> None:
            """Write the steps that copy a value, and set the shape of a target buffer."""
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


class Emission(NamedTuple):
    """The arguments of `Lowering.emit`.

    Args:
        outputs: The locations of the results; ABSENT for unused ones.
    """

    writer: Writer
    builder: _native.Builder
    name: str
    position: int
    inputs: list[Location]
    outputs: list[Location]
    scratch: Location


class Lowering(ABC):
    """How one node runs.

    Attributes:
        reason: Why no better lowering applies.
        inplace: Positions (input, output) that may share memory.
        unread: Positions of operands that the step does not read.
        subgraphs: The graphs that the node runs, by "then" and "else", or "body".
        may_fail: Whether the step can fail for reasons that `Op.value_check` does not cover.
        allocates: Whether a native program allocates memory for the step in a run.
        runs_in_subgraph: Whether a device with its own memory can run the step in a subgraph.
        trips: The number of iterations of a loop; infinity if it depends on values. None for other nodes.
        executed_steps: Upper bound of the steps in one execution of the node, in all iterations.
    """

    kind: KernelKind = "native"
    reason: str = ""
    scratch_bytes: int = 0
    inplace: Sequence[tuple[int, int]] = ()
    packing: NativeKernel | None = None
    unread: Set[int] = frozenset()
    subgraphs: Mapping[str, LoweredGraph] = MappingProxyType({})
    in_python: ClassVar[bool] = False
    may_fail: ClassVar[bool] = False
    allocates: ClassVar[bool] = False
    runs_in_subgraph: ClassVar[bool] = False
    trips: float | None = None
    executed_steps: float = 1

    @abstractmethod
    def emit(self, step: Emission) -> None: ...


class LoweredGraph(NamedTuple):
    """A graph with the lowering of each node, the order of its steps and its memory.

    The arena of a subgraph is working memory of the step that runs it. `lowerings` belong to `placement.steps`. `fixed`
    contains the arrays of parameters and constants, whose packed copies are valid until the version changes.
    """

    graph: Graph
    fixed: Mapping[Value, VersionedArray]
    placement: Placement
    lowerings: Sequence[Lowering]
    memory: MemoryPlan
    settings: Settings

    @property
    def steps(self) -> Iterator[tuple[Node, Lowering]]:
        return zip(self.placement.steps, self.lowerings, strict=True)

    @property
    def inputs_read(self) -> Set[int]:
        root = self.placement.root
        read = {root[result.value] for result in self.placement.results}
        for node, lowering in self.steps:
            named = (v for i, v in enumerate(node.inputs) if v is not None and i not in lowering.unread)
            read.update(root[v] for v in named if v in root)
        return {i for i, v in enumerate(self.graph.inputs) if v in read}

    @property
    def executed_steps(self) -> float:
        """Upper bound of the steps in one execution of the graph, with its subgraphs."""
        return sum(lowering.executed_steps for lowering in self.lowerings)

    def contents(self) -> str:
        kinds = Counter(lowering.kind for lowering in self.lowerings).most_common()
        listed = ", ".join(f"{count} {kind}" for kind, count in kinds) or "none"
        return f"{steps_text(len(self.lowerings))} ({listed}), arena {human(self.memory.layout.arena_bytes)}"

    def interpreted(self, prefix: str = "") -> Iterator[tuple[str, Node, str]]:
        for node, lowering in self.steps:
            if lowering.kind == "interpreted":
                yield prefix + self.graph.node_name(node), node, lowering.reason
            for part, inner in lowering.subgraphs.items():
                yield from inner.interpreted(f"{prefix}{self.graph.node_name(node)}/{part}/")


def steps_text(count: int) -> str:
    return f"{count} step{'s' * (count != 1)}"


# Lowers a subgraph. The mapping contains the inputs that are fixed arrays, by position. Raises NotNative.
LowerSubgraph: TypeAlias = Callable[[Graph, Mapping[int, VersionedArray]], LoweredGraph]


class Site(NamedTuple):
    """A node whose lowering is to be chosen.

    Args:
        unspecialised: Why subgraphs could not be specialised.
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
        return all(has_fixed_size(v) for v in (*self.node.inputs, *self.node.outputs) if v is not None)

    @property
    def without_constants(self) -> KernelContext:
        return self.context._replace(constant_inputs={})
