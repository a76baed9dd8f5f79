"""The common part of native programs: results, instances, and arenas that runs share in turn."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from graphkit.errors import GraphkitError, LimitReached, NotFinite, OutOfMemory, RuntimeFailure
from graphkit.executor.devices.device import Device
from graphkit.executor.devices.loading import native_module
from graphkit.executor.lower.lowering import LoweredGraph
from graphkit.executor.memory.errors import larger_than_allowed, raise_if_out_of_memory
from graphkit.executor.memory.placement import Placement, Result
from graphkit.executor.memory.pools import IDLE, RECYCLED_BYTES, Pools
from graphkit.executor.run.keys import Key
from graphkit.executor.run.launching import Run
from graphkit.ir import limits
from graphkit.ir.graph import Graph, Node
from graphkit.ir.limits import Limits
from graphkit.ir.origin import signature
from graphkit.text import human, quantity, short_repr

if TYPE_CHECKING:
    from graphkit.executor.devices.loading import _native
    from graphkit.executor.report.plan import Plan


class Recorder(Protocol):
    """Runs pass through it while a profile is recorded."""

    def run(self, program: BaseProgram, native: _native.Instance | None, run: Callable[[], list[Any]]) -> list[Any]:
        """Call `run`, which runs the native instance of a program."""
        ...


recorder: Recorder | None = None


class Instance(Protocol):
    """The memory and the native part of a program, for one run at a time.

    `arena`: its own arena; None if any arena works. `limits`: those set in `native`. An instance has no reference to
    its program, which keeps its idle instances: such a cycle would keep both alive until Python collects cycles.
    """

    arena: np.ndarray | None
    native: _native.Instance | None
    limits: Limits | None

    def refresh(self) -> None:
        """Read parameters again where they may have changed, before a run."""
        ...

    def run(
        self, program: Any, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray], arena: np.ndarray
    ) -> list[Any]:
        """See BaseProgram.run. program: the one that made the instance."""
        ...


class BaseProgram(ABC):
    """Runs a graph whose inputs have known sizes, on memory of `pools`.

    `kept_bytes` is roughly the size of the program itself. `owned` contains shape, dtype and bytes of every result that
    is written directly to the memory that the caller receives.
    """

    arena_bytes: int
    kept_bytes: int
    owned: list[tuple[tuple[int, ...], np.dtype, int] | None]
    part_keys: tuple[Key, ...] = ()

    def __init__(self, graph: Graph, placement: Placement, pools: Pools):
        self.graph = graph
        self.placement = placement
        self.pools = pools
        self.state_inputs: list[int] = []
        self.donated: list[bool] = []
        # Whether the run that goes on may be interrupted; None while there is none. Of programs that write states.
        self.interruptible: Callable[[], bool] | None = None
        self._outgrown = False
        # Whether results of these shapes, which never change, are what the file declares of them.
        self.is_as_declared = False

    @property
    @abstractmethod
    def lowered(self) -> LoweredGraph:
        """The graph with its lowerings."""

    @abstractmethod
    def run(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray], discard: Collection[int] = ()) -> list[Any]:
        """Run once; see `Executable.run`. All results are computed."""

    def start(self) -> Run:
        """Return a run that is not begun."""
        return HostRun(self)

    @property
    def outgrown(self) -> bool:
        """Whether a program that takes longer to make, and runs faster, pays."""
        return self._outgrown

    def stay(self) -> None:
        """Is not `outgrown` any more: there is no room for the other program."""
        self._outgrown = False

    def as_part(self) -> InstancedProgram | None:
        """Return the program that computes parts of a batch; None if it cannot."""
        return None

    @property
    def finals(self) -> tuple[Result, ...]:
        """The updates' new values, then the outputs."""
        return self.placement.results

    @property
    def on_devices(self) -> Mapping[Device, Sequence[int]]:
        """The states that stay on a device between runs, by their positions among the updates."""
        return {}

    @cached_property
    def has_fixed_results(self) -> bool:
        """Whether every result has the same shape in each run."""
        return all(spec is not None for spec in self.owned)

    def results(self, buffers: Mapping[int, np.ndarray]) -> list[Any]:
        """Memory for the results that are written in place; None for the others."""
        made: list[Any] = []
        recycle = self.pools.results.array
        for position, spec in enumerate(self.owned):
            buffer = buffers.get(position) if buffers else None
            if spec is None or buffer is not None:
                made.append(buffer)
                continue
            shape, dtype, nbytes = spec
            # What a state keeps is not given out again.
            fresh = nbytes < RECYCLED_BYTES or position < len(self.donated)
            try:
                made.append(np.empty(shape, dtype) if fresh else recycle(position, shape, dtype, nbytes))
            except (MemoryError, ValueError) as error:
                raise_if_out_of_memory(self.graph, f"result {position}, {nbytes} bytes", error)
                raise
        return made

    @property
    @abstractmethod
    def fallbacks(self) -> tuple[str, ...]:
        """Nodes that are interpreted, as "name (Op)". Shape arithmetic outside of subgraphs is left out."""

    def interpreted(self) -> Iterable[tuple[str, Node, str]]:
        """Return name, node and reason of the steps that are interpreted."""
        return self.lowered.interpreted()

    def contents(self) -> str:
        """Return such as `20 steps (18 native, 2 interpreted), arena 1.2 MiB`."""
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
    """A program whose runs each have an instance, and an arena, for themselves. grows: whether there may be values of
    which only a run tells how much memory they take.
    """

    grows = True

    def __init__(self, graph: Graph, placement: Placement, pools: Pools):
        super().__init__(graph, placement, pools)
        self._idle: list[Instance] = []

    @abstractmethod
    def instance(self) -> Instance:
        """Another instance. Raises MemoryError."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of a run."""

    @property
    @abstractmethod
    def calls_python(self) -> bool:
        """Whether some steps are Python's."""

    def run(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray], discard: Collection[int] = ()) -> list[Any]:
        instance, arena = self.take()
        instance.refresh()
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

    def ran(self, times: int) -> None:
        """Note runs that somebody else has made."""

    def take(self) -> tuple[Instance, np.ndarray]:
        """An instance and an arena for one run. Raises OutOfMemory."""
        try:
            try:
                instance = self._idle.pop()
            except IndexError:
                self._admit()
                instance = self.instance()
            _limit(instance, self.grows)
            return instance, self.pools.arenas.take(self.arena_bytes) if instance.arena is None else instance.arena
        except (MemoryError, OverflowError, ValueError, TypeError) as error:
            raise_if_out_of_memory(self.graph, f"the arena, {self.arena_bytes} bytes", error)
            raise

    def _admit(self) -> None:
        """Raise OutOfMemory, naming the largest value, where another run of this program would pass the limit."""
        sizes = [spec[2] if spec is not None else 0 for spec in self.owned]
        results = sum(sizes)
        idle = self.pools.arenas.idle_bytes if self.arena_bytes else 0
        try:
            limits.require_memory(
                self.arena_bytes + results - min(idle, self.arena_bytes), "arena and results of a run"
            )
        except OutOfMemory as error:
            if results < self.arena_bytes:
                raise larger_than_allowed(self.graph, error) from None
            largest = max(range(len(sizes)), key=sizes.__getitem__)
            names = (*(self.graph.name_of(state) for state, _ in self.graph.updates), *self.graph.output_names)
            raise OutOfMemory(f"{error}; the largest is result {names[largest]!r}, {sizes[largest]} bytes") from None

    def give(self, instance: Instance, arena: np.ndarray) -> None:
        """Take them back after a run.

        An instance whose run failed is left to the garbage collector, as it may hold somebody's arrays.
        """
        if len(self._idle) < max(IDLE, self.threads):
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
        """Run a native instance on inputs and results. Raises LimitReached, NotFinite, OutOfMemory, RuntimeFailure."""
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
        yield signature(self.graph)


class HostRun:
    """A run of a program that computes as a whole when it is launched."""

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

    def check(self) -> None:
        """All steps are done."""

    def first_fault(self) -> None:
        """Launching has raised it."""

    def new_states(self) -> list[Any]:
        return self._results[: len(self._program.state_inputs)]

    def end(self, well: bool) -> None:
        """Nothing is kept."""


class InstanceRun(HostRun):
    """A run of a program with instances. It has its instance, and memory for its results, before it is launched."""

    def __init__(self, program: InstancedProgram):
        super().__init__(program)
        self._instanced = program
        self._taken: tuple[Instance, np.ndarray] | None = None

    def begin(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray]) -> None:
        self._taken = self._instanced.take()
        self._taken[0].refresh()
        made = self._instanced.results(buffers)
        super().begin(inputs, {position: array for position, array in enumerate(made) if array is not None})

    def launch(self) -> None:
        assert self._taken is not None, "it has begun"
        self._results = self._instanced.run_on(*self._taken, self._inputs, self._buffers)
        self._instanced.give(*self._taken)


def _limit(instance: Instance, grows: bool) -> None:
    """Hand the limits in force to the native part of an instance, where they are not those that it has."""
    wanted = limits.current()
    if instance.native is not None and instance.limits != wanted:
        iterations = sys.maxsize if wanted.iterations is None else wanted.iterations
        # To find out what the system has left takes longer than small runs.
        memory = limits.allowed_memory() if grows else sys.maxsize
        instance.native.limit(memory, iterations, wanted.deadline)
        instance.limits = wanted


def failure_of(error: _native.Error) -> GraphkitError:
    """What a native run raised, as LimitReached, NotFinite, OutOfMemory or RuntimeFailure."""
    native = native_module()
    kinds = {native.NotFinite: NotFinite, native.NoMemory: OutOfMemory, native.LimitReached: LimitReached}
    return kinds.get(type(error), RuntimeFailure)(str(error))
