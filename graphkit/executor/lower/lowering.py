"""The base class of lowerings, and the lowered graph.

A lowering states the memory that its node needs, and writes the node into a native program. Other modules of this
package define lowerings; `graphkit.executor.lower.registry` tries them in turn.
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

# How a node is computed, for reports. Views and constants are not steps. "copy": between devices. "swap": a
# copy to host memory or back, while other steps run. On a device, NCCL executes a collective ("nccl"), or its arrays
# are copied through host memory ("staged"). "backend": a group of nodes that another engine computes.
KernelKind = Literal["native", "interpreted", "view", "constant", "copy", "nccl", "staged", "swap", "backend"]

# Where a value is: (number of a memory block, offset in bytes). ARENA is the arena, and ABSENT is an absent operand.
# Numbers from 0 are external memory: blocks outside the arena, such as inputs, results and parameters. A buffer is
# external memory whose size is known only in a run. A buffer also stores the shape of its value.
Location: TypeAlias = tuple[int, int]

ARENA = -1
ABSENT: Location = (-2, 0)
NO_BUFFER = -1


class Settings(NamedTuple):
    """Settings with which graphs are lowered to programs.

    Args:
        device: The kind of device.
        native: Whether a native program executes the steps.
        threads: Number of threads.
        deterministic: Whether results must not depend on the number of threads.
        inplace: Whether a result may overwrite an operand.
        share: Whether values may share memory.
        optimize: Whether the graph is rewritten.
        declared: Declared shapes that inference could neither confirm nor reject. Runs compare tensors with them.
        sizes_vary: See KernelContext.
        collectives: Collectives with other processes.
        channels: Channels that send single values to other processes and receive them.
        tf32: See KernelContext.
        number: The index of the device: 1 for "cuda:1".
        backends: Compiles the groups of nodes that backends compute.
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
        """The name of the device, such as "cuda:0"."""
        return DeviceName(self.device, self.number)


class NotNative(Exception):
    """A lowering does not apply to a node. The message says why, for the plan."""


if TYPE_CHECKING:

    class Writer(Protocol):
        """The interface of the emitter that lowerings call. It numbers the external memory of one program."""

        def new_external(self) -> int:
            """Return the number of a new block of external memory. A step of the program sets its address."""
            ...

        def new_buffer(self) -> Location:
            """Return the location of a new buffer."""
            ...

        def new_call(self, index: int) -> int:
            """Return the number by which the program calls step `index` of the outermost graph."""
            ...

        def copy(self, builder: _native.Builder, name: str, value: Value, source: Location, target: Location) -> None:
            """Write the steps that copy a value. If the target is a buffer, the steps also set its shape."""
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
    """The arguments of `Lowering.emit`: where to write the step, and where its operands are.

    Args:
        writer: The emitter.
        builder: The native builder.
        name: Name of the step.
        position: Position of the step in its graph.
        inputs: Where the operands are.
        outputs: Where the results are; ABSENT for unused ones.
        scratch: Where the working memory is.
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
        kind: How the node is computed, for reports.
        reason: Why no better lowering applies.
        scratch_bytes: Bytes of working memory in the arena.
        inplace: Positions (input, output) that may share memory.
        packing: The kernel that reads constant operands in its own layout.
        unread: Positions of operands that the step does not read.
        subgraphs: The graphs that the node runs. The keys are "then" and "else", or "body". The names of their steps
            contain the key.
        in_python: Whether the step is a call of Python.
        may_fail: Whether steps of this class can fail in a run for reasons that `Op.value_check` does not cover,
            such as an error in Python code.
        allocates: Whether a native program allocates memory for such steps in a run.
        runs_in_subgraph: Whether a device with its own memory can run the step in a subgraph.
        trips: For a loop, the number of iterations in each run; infinity if it depends on values. None for other nodes.
        executed_steps: Upper bound of the number of steps in one execution of the node, in all iterations; infinity if
            unknown.
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
    def emit(self, step: Emission) -> None:
        """Write the node into a native program."""


class LoweredGraph(NamedTuple):
    """A graph with the lowering of each node, the order of its steps and its memory.

    It is the graph of a program, a branch, or the body of a loop. The arena of a subgraph is working memory of the step
    that runs it. `lowerings` belong to `placement.steps`. `fixed` contains the arrays of parameters and constants.
    Kernels may keep a packed copy of an array until its version changes.
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

    @property
    def executed_steps(self) -> float:
        """Upper bound of the number of steps in one execution of the graph, with its subgraphs; infinity if unknown."""
        return sum(lowering.executed_steps for lowering in self.lowerings)

    def contents(self) -> str:
        """Return a summary, such as `20 steps (18 native, 2 interpreted), arena 1.2 MiB`."""
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


# Lowers a subgraph. The mapping contains the inputs that are fixed arrays, by position. Raises NotNative.
LowerSubgraph: TypeAlias = Callable[[Graph, Mapping[int, VersionedArray]], LoweredGraph]


class Site(NamedTuple):
    """A node whose lowering is to be chosen.

    Args:
        settings: The settings of the program.
        context: The context of the kernel of the node.
        inner: Whether the node is in a subgraph.
        dynamic: Whether a used result is in dynamic memory, which is not planned.
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
        return self.context._replace(constant_inputs={})
