"""Base classes of programs for the CPU: results, instances and arenas of their runs. The key of a program."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from graphkit.errors import GraphkitError, LimitReached, NotFinite, OutOfMemory, RuntimeFailure
from graphkit.executor.devices.loading import native_module
from graphkit.executor.lower.lowering import LoweredGraph
from graphkit.executor.memory.errors import larger_than_allowed, raise_if_out_of_memory
from graphkit.executor.memory.placement import Placement, Result
from graphkit.executor.memory.pools import IDLE, RECYCLED_BYTES, Pools
from graphkit.ir import limits
from graphkit.ir.graph import Graph, Node
from graphkit.ir.limits import Limits
from graphkit.named_tuples import NamedTuple
from graphkit.text import human, quantity, short_repr

if TYPE_CHECKING:
    from graphkit.executor.devices.device import Device
    from graphkit.executor.devices.loading import _native
    from graphkit.executor.lower.failures import KnownLoop
    from graphkit.executor.report.plan import Plan
    from graphkit.executor.run.program_run import Run


# The key of a program without shapes: the selection, and which stored inputs are fed.
Group = tuple[int, tuple[int, ...]]


class Key(NamedTuple):
    """The key of a program in a cache.

    Attributes:
        selection: The id of the Selection.
        fed: Positions of the stored inputs that are fed.
        shapes: The shapes of the inputs in `Selection.open`; None for values that are not tensors.
    """

    selection: int
    fed: tuple[int, ...]
    shapes: tuple[tuple[int, ...] | None, ...]

    @property
    def group(self) -> Group:
        """The key without shapes."""
        return self.selection, self.fed

    def sizes(self) -> str:
        """Return the shapes as text, such as `[8, 3], [8]`."""
        return ", ".join(map(size_text, self.shapes)) or "fixed shapes"


def size_text(shape: tuple[int, ...] | None) -> str:
    """Return a shape as text; `?` if the value is not a tensor."""
    return "?" if shape is None else str(list(shape))


if TYPE_CHECKING:

    class Recorder(Protocol):
        """Records runs for a profile."""

        def run(self, program: BaseProgram, native: _native.Instance | None, run: Callable[[], list[Any]]) -> list[Any]:
            """Call `run`, record what the native instance does meanwhile, and return the results."""
            ...


# If it is set, all runs use it.
recorder: Recorder | None = None


class Instance(Protocol):
    """The memory and the native state of a program for one run at a time.

    An instance must not refer to its program, because the program keeps idle instances. Such a cycle would keep both
    alive until Python collects cycles.

    Attributes:
        arena: Its own arena; None if it can use any arena.
        native: The native instance; None without the native engine.
        limits: The limits that are set in `native`.
        memory: The largest number of bytes that a run may allocate by these limits.
    """

    arena: np.ndarray | None
    native: _native.Instance | None
    limits: Limits | None
    memory: int

    def refresh(self) -> None:
        """Read changed parameters. Call it before each run."""
        ...

    def run(
        self, program: Any, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray], arena: np.ndarray
    ) -> list[Any]:
        """Run once; see `Executable.run`. program: the program that created the instance."""
        ...


class Section(NamedTuple):
    """A program that runs once, or for several parts of a batch.

    Attributes:
        program: The program.
        runs: Number of parts.
        size: Examples of a part; 0 if the program computes everything.
        first: Number of the first example.
    """

    program: InstancedProgram
    runs: int
    size: int
    first: int


class BaseProgram(ABC):
    """A program for a graph whose input sizes are known. It uses the memory of `pools`.

    Attributes:
        arena_bytes: Size of the arena that a run needs.
        kept_bytes: Approximate size of the program in bytes, without its runs.
        owned: For each result, its shape, dtype and bytes if steps write it directly to the memory that the caller
            receives, else None.
        part_keys: Keys of the programs that this one runs for parts of a batch.
        examples: Positions of the inputs that are split along their first axis into these parts.
    """

    arena_bytes: int
    kept_bytes: int
    owned: list[tuple[tuple[int, ...], np.dtype, int] | None]
    part_keys: tuple[Key, ...] = ()
    examples: Set[int] = frozenset()

    def __init__(self, graph: Graph, placement: Placement, pools: Pools):
        self.graph = graph
        self.placement = placement
        self.pools = pools
        self.state_inputs: list[int] = []
        self.donated: list[bool] = []
        # See `Executable.interruptible`.
        self.interruptible: Callable[[], bool] | None = None
        self._needs_recompiling = False
        # See `Executable.is_as_declared`.
        self.is_as_declared = False

    @property
    @abstractmethod
    def lowered(self) -> LoweredGraph:
        """The graph with its lowerings."""

    @abstractmethod
    def run(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray], discard: Collection[int] = ()) -> list[Any]:
        """Run once; see `Executable.run`. All results are computed."""

    @abstractmethod
    def sections(self) -> Sequence[Section]:
        """Return the programs of a run, in the order in which they run."""

    def start(self) -> Run:
        """Return a run that has not begun."""
        return HostRun(self)

    @property
    def needs_recompiling(self) -> bool:
        """See `Executable.needs_recompiling`."""
        return self._needs_recompiling

    def clear_needs_recompiling(self) -> None:
        """Set `needs_recompiling` to False."""
        self._needs_recompiling = False

    def as_part(self) -> InstancedProgram | None:
        """Return the program itself if it can compute parts of a batch, else None."""
        return None

    @property
    def finals(self) -> tuple[Result, ...]:
        """The new values of states, then the outputs."""
        return self.placement.results

    @property
    def on_devices(self) -> Mapping[Device, Sequence[int]]:
        """The states that stay on a device between runs, by their positions among the updates."""
        return {}

    @cached_property
    def has_fixed_results(self) -> bool:
        """Whether every result has the same shape in each run."""
        return all(spec is not None for spec in self.owned)

    def allocate_results(self, buffers: Mapping[int, np.ndarray]) -> list[Any]:
        """Return memory for the `owned` results, by position: that of `buffers`, or new memory. None for the others.

        Raises OutOfMemory.
        """
        if not buffers and (fresh := self._fresh) is not None:
            try:
                return [None if spec is None else np.empty(spec[0], spec[1]) for spec in fresh]
            except (MemoryError, ValueError):
                pass  # the calls below raise the error that names the result
        made: list[Any] = []
        for position, spec in enumerate(self.owned):
            buffer = buffers.get(position) if buffers else None
            if spec is None or buffer is not None:
                made.append(buffer)
                continue
            made.append(self.allocated(position, *spec))
        return made

    @cached_property
    def _fresh(self) -> list[tuple[tuple[int, ...], np.dtype, int] | None] | None:
        """Return `owned` if none of these results uses recycled memory, else None."""
        return self.owned if all(spec is None or spec[2] < RECYCLED_BYTES for spec in self.owned) else None

    def allocated(self, position: int, shape: tuple[int, ...], dtype: np.dtype, nbytes: int) -> np.ndarray:
        """Return recycled or new memory for the result at `position`. Raises OutOfMemory."""
        # The store keeps the new value of a state, so its memory cannot be recycled.
        fresh = nbytes < RECYCLED_BYTES or position < len(self.donated)
        try:
            return np.empty(shape, dtype) if fresh else self.pools.results.array(position, shape, dtype, nbytes)
        except (MemoryError, ValueError) as error:
            raise_if_out_of_memory(self.sized_graph, f"result {position}, {nbytes} bytes", error)
            raise

    @property
    def sized_graph(self) -> Graph:
        """The graph with the sizes of the program, for errors."""
        return self.graph

    @property
    @abstractmethod
    def fallbacks(self) -> tuple[str, ...]:
        """Nodes that are interpreted, as "name (Op)" or "name (Op: reason)". Outside subgraphs, nodes of shape
        arithmetic do not count.
        """

    def interpreted(self) -> Iterable[tuple[str, Node, str]]:
        """Return name, node and reason of the steps that are interpreted."""
        return self.lowered.interpreted()

    def contents(self) -> str:
        """Return a summary, such as `20 steps (18 native, 2 interpreted), arena 1.2 MiB`."""
        return self.lowered.contents()

    @cached_property
    def plan(self) -> Plan:
        from graphkit.executor.report.describe import describe

        return describe(self.lowered)

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield repr(self.graph.name)
        yield quantity(len(self.placement.steps), "step")
        yield f"arena {human(self.arena_bytes)}"


class InstancedProgram(BaseProgram):
    """A program that gives each run its own instance and arena.

    longest_loop: See `failures.longest_loop`. Its iterations are compared with their limit before a run.
    has_dynamic_memory: Whether the native program allocates memory in a run, in addition to the planned memory.
    """

    longest_loop: KnownLoop | None = None
    has_dynamic_memory: bool = True

    def __init__(self, graph: Graph, placement: Placement, pools: Pools):
        super().__init__(graph, placement, pools)
        self._idle: list[Instance] = []

    @abstractmethod
    def instance(self) -> Instance:
        """Create an instance. Raises MemoryError."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """Number of threads of a run."""

    @property
    @abstractmethod
    def calls_python(self) -> bool:
        """Whether some steps run in Python."""

    def prepare(self) -> None:
        instance, arena = self.take()
        instance.refresh()
        self.give(instance, arena)

    def run(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray], discard: Collection[int] = ()) -> list[Any]:
        instance, arena = self.take()
        instance.refresh()
        if recorder is None:
            results = instance.run(self, inputs, buffers, arena)
        else:
            results = self.run_on(instance, arena, inputs, buffers)
        self.give(instance, arena)
        return results

    def run_on(
        self, instance: Instance, arena: np.ndarray, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray]
    ) -> list[Any]:
        """Run once as `run` does, on an instance that was refreshed."""
        if recorder is None:
            return instance.run(self, inputs, buffers, arena)
        return recorder.run(self, instance.native, lambda: instance.run(self, inputs, buffers, arena))

    def start(self) -> Run:
        return InstanceRun(self)

    def as_part(self) -> InstancedProgram | None:
        return None if self.calls_python else self

    def sections(self) -> Sequence[Section]:
        return (Section(self, 1, 0, 0),)

    def count_runs(self, number: int) -> None:
        """Count runs that did not call `run`."""

    def take(self) -> tuple[Instance, np.ndarray]:
        """Reserve an instance and an arena for one run.

        Raises:
            LimitReached: A loop would take too many iterations.
            OutOfMemory: There is no memory for them.
        """
        if (loop := self.longest_loop) is not None:
            limits.check_iterations(loop.trips - 1, loop.name)
        try:
            try:
                instance = self._idle.pop()
            except IndexError:
                self._require_memory()
                instance = self.instance()
            if instance.limits is not limits.current():
                _set_limits(instance, self.has_dynamic_memory)
            return instance, self.pools.arenas.take(self.arena_bytes) if instance.arena is None else instance.arena
        except (MemoryError, OverflowError, ValueError, TypeError) as error:
            raise_if_out_of_memory(self.sized_graph, f"the arena, {self.arena_bytes} bytes", error)
            raise

    def _require_memory(self) -> None:
        """Raise OutOfMemory, which names the largest value, if one more concurrent run would exceed the limit."""
        sizes = [spec[2] if spec is not None else 0 for spec in self.owned]
        results = sum(sizes)
        idle = self.pools.arenas.idle_bytes if self.arena_bytes else 0
        try:
            limits.require_memory(
                self.arena_bytes + results - min(idle, self.arena_bytes), "arena and results of a run"
            )
        except OutOfMemory as error:
            if results < self.arena_bytes:
                raise larger_than_allowed(self.sized_graph, error) from None
            largest = max(range(len(sizes)), key=sizes.__getitem__)
            names = (*(self.graph.name_of(state) for state, _ in self.graph.updates), *self.graph.output_names)
            raise OutOfMemory(f"{error}; the largest is result {names[largest]!r}, {sizes[largest]} bytes") from None

    @cached_property
    def _most_idle(self) -> int:
        """How many idle instances are kept."""
        return max(IDLE, self.threads)

    def give(self, instance: Instance, arena: np.ndarray) -> None:
        """Return an instance and an arena after a run.

        Do not return the instance of a run that failed: it may refer to arrays of callers.
        """
        if len(self._idle) < self._most_idle:
            self._idle.append(instance)
        if instance.arena is None:
            self.pools.arenas.give(arena)

    def run_native(
        self,
        instance: _native.Instance,
        arrays: list[np.ndarray | None],
        arena: np.ndarray,
        call: Callable[[int], None] | None = None,
    ) -> None:
        """Run a native instance once.

        Args:
            instance: The native instance.
            arrays: Inputs, then memory for the results; None for those that the native steps do not use.
            arena: The arena.
            call: Runs the step in Python with a given index.

        Raises:
            LimitReached: The time limit or the limit of iterations is reached.
            NotFinite: A step found NaN or infinity.
            OutOfMemory: Memory could not be allocated during the run.
            RuntimeFailure: A kernel failed.
        """
        if self.state_inputs:
            self.interruptible = lambda: not instance.committed
        try:
            instance.run(arrays, arena, call)
        except native_module().Error as error:
            raise failure_of(error) from error
        finally:
            self.interruptible = None

    def _facts(self) -> Iterator[str]:
        yield from super()._facts()
        yield quantity(self.threads, "thread")
        from graphkit.ir.origin import signature

        yield signature(self.graph)


class HostRun:
    """A run of a CPU program. `launch` computes everything."""

    def __init__(self, program: BaseProgram):
        self._program = program
        self._inputs: Sequence[Any] = ()
        self._buffers: Mapping[int, np.ndarray] = {}
        self._results: list[Any] = []

    def begin(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray]) -> None:
        self._inputs, self._buffers = inputs, buffers

    def launch(self) -> None:
        self._results = self._program.run(self._inputs, self._buffers)

    def device_result(self, position: int) -> Any:
        return self._results[position]

    def device_input(self, position: int) -> Any:
        return self._inputs[position]

    def fetch(self, position: int, out: np.ndarray | None = None) -> Any:
        return self._results[position]

    def wait(self) -> None:
        """Do nothing: all steps are complete after `launch`."""

    def raise_fault(self) -> None:
        """Do nothing: `launch` raises all errors."""

    def new_states(self) -> list[Any]:
        return self._results[: len(self._program.state_inputs)]

    def end(self, succeeded: bool) -> None:
        """Do nothing: the memory is released after `launch`."""


class InstanceRun(HostRun):
    """A run that has reserved its instance, and memory for its results, before `launch`."""

    def __init__(self, program: InstancedProgram):
        super().__init__(program)
        self._instanced = program
        self._taken: tuple[Instance, np.ndarray] | None = None

    def begin(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray]) -> None:
        self._taken = self._instanced.take()
        self._taken[0].refresh()
        allocated = self._instanced.allocate_results(buffers)
        super().begin(inputs, {position: array for position, array in enumerate(allocated) if array is not None})

    def launch(self) -> None:
        assert self._taken is not None, "begin comes before launch"
        self._results = self._instanced.run_on(*self._taken, self._inputs, self._buffers)
        self._instanced.give(*self._taken)


def _set_limits(instance: Instance, has_dynamic_memory: bool) -> None:
    """Set the current limits in the native part of an instance, if they have changed."""
    wanted, before = limits.current(), instance.limits
    if instance.native is not None and before != wanted:
        iterations = sys.maxsize if wanted.iterations is None else wanted.iterations
        # The deadline differs in each run, so the limits are set often. But asking the system for its free memory takes
        # longer than a small run.
        if has_dynamic_memory and (before is None or before.memory != wanted.memory):
            instance.memory = limits.allowed_memory()
        instance.native.limit(instance.memory, iterations, wanted.deadline)
    instance.limits = wanted


def failure_of(error: _native.Error) -> GraphkitError:
    """Return the error of a native run as LimitReached, NotFinite, OutOfMemory or RuntimeFailure."""
    native = native_module()
    kinds = {native.NotFinite: NotFinite, native.NoMemory: OutOfMemory, native.LimitReached: LimitReached}
    return kinds.get(type(error), RuntimeFailure)(str(error))
