"""A program made from a template: it is built quickly, for a graph with many different input sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.executor.devices.kernel import VersionedArray
from graphkit.executor.devices.loading import native_module
from graphkit.executor.lower.lowering import LoweredGraph, NotNative, steps_text
from graphkit.executor.lower.registry import lower_graph
from graphkit.executor.lower.template import SizedCode, Template
from graphkit.executor.memory.placement import Result
from graphkit.executor.memory.pools import Pools
from graphkit.executor.run.base_program import Group, Instance, InstancedProgram
from graphkit.executor.run.sized_runs import Host, Shapes, SizedRuns
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.limits import Limits
from graphkit.ir.types import TensorType
from graphkit.passes.core.bind import bind
from graphkit.text import human

if TYPE_CHECKING:
    from graphkit.executor.run.program_cache import ProgramCache
    from graphkit.executor.run.selection import LastRun

# Approximate bytes of a step and its kernel, measured on networks.
_STEP_BYTES = 4 << 10

# After this many runs, the program needs recompiling: the time to compile it is then small in comparison.
RUNS_BEFORE_COMPILING = 32


class SizedProgram(InstancedProgram):
    """A program that a template made for certain input sizes. After some runs, it needs recompiling.

    Attributes:
        builder: The builder of the program.
        runs: Number of runs. Runs of the native part do not count (see `SizedRuns`).

    Args:
        builder: The builder of the program.
        shapes: Shapes by name of the input.
        code: The native program for these shapes.
    """

    has_dynamic_memory = False

    def __init__(self, builder: SizedBuilder, shapes: Mapping[str, tuple[int, ...]], code: SizedCode):
        template = builder.template
        super().__init__(template.graph, template.placement, builder.pools)
        self.code = code
        self.arena_bytes = code.arena_bytes
        self.kept_bytes = _STEP_BYTES * max(template.kernel_count, 1)
        self.owned = list(code.results)
        self.builder, self._shapes = builder, shapes
        self._lowered: LoweredGraph | None = None
        self.runs = 0

    def run(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray], discard: Collection[int] = ()) -> list[Any]:
        self.count_runs(1)
        return super().run(inputs, buffers)

    @property
    def finals(self) -> tuple[Result, ...]:
        return tuple(
            Result(Value(TensorType(r.value.dtype, shape), r.value.name), r.owned)
            for (shape, _, _), r in zip(self.code.results, self.placement.results, strict=True)
        )

    def count_runs(self, number: int) -> None:
        before, self.runs = self.runs, self.runs + number
        if before < RUNS_BEFORE_COMPILING <= self.runs:
            self._needs_recompiling = True

    @property
    def sized_graph(self) -> Graph:
        return bind(self.graph, self._shapes)

    @property
    def lowered(self) -> LoweredGraph:
        if self._lowered is None:
            self._lowered = self.builder.lower(self._shapes)
        return self._lowered

    def interpreted(self) -> Iterable[tuple[str, Node, str]]:
        """Return nothing: all steps of a template have kernels."""
        return ()

    def contents(self) -> str:
        count = steps_text(len(self.placement.steps))
        return f"{count}, from the template for all sizes, arena {human(self.arena_bytes)}"

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Empty: all steps of a template have kernels."""
        return ()

    @property
    def threads(self) -> int:
        return self.builder.template.settings.threads

    @property
    def calls_python(self) -> bool:
        return False

    def instance(self) -> Instance:
        return _SizedInstance(self)


class SizedBuilder:
    """Makes programs from a template.

    Args:
        template: The template.
        fixed: The arrays of stored inputs, by position of the input.
        pools: The memory of the programs.

    Attributes:
        is_whole: Returns whether one program computes a batch of certain shapes. None: always.
    """

    def __init__(self, template: Template, fixed: Mapping[int, VersionedArray], pools: Pools):
        self.template, self._fixed, self.pools = template, fixed, pools
        self.is_whole: Callable[[Shapes], bool] | None = None

    def build(self, shapes: Mapping[str, tuple[int, ...]]) -> SizedProgram | None:
        """Return the program for inputs of these shapes, by name, or None if the template cannot make it.

        Raises InputError if the shapes contradict each other.
        """
        try:
            return SizedProgram(self, shapes, self.template.at(shapes))
        except NotNative:
            return None

    def runs_of(self, program: Any) -> int:
        """Return the number of runs that a program has had, with the current one; 0 if it is not compiled again."""
        return 0 if program.runs >= RUNS_BEFORE_COMPILING else program.runs + 1

    def count_frequent(self, program: Any) -> None:
        """Count the runs of the native part, after which a program needs recompiling."""
        program.count_runs(RUNS_BEFORE_COMPILING)

    def sized_runs(
        self,
        kind: tuple[Group, tuple[str, ...]],
        latest: LastRun,
        made: Callable[[Shapes, Mapping[str, Any]], None] | None,
        cache: ProgramCache[Any],
    ) -> SizedRuns:
        """Return native runs with the programs of the template. They may take half of the cache.

        Args:
            kind: See SizedRuns.
            latest: The latest run, with feeds of this kind.
            made: See Host.
            cache: The cache of the other programs.
        """
        host = Host(self.template, self.pools, self.is_whole, made, RUNS_BEFORE_COMPILING)
        cache.reserve(0)
        runs = SizedRuns(kind, latest, self.template, host, cache.limit // 2)
        cache.reserve(min(runs.kept_bytes, cache.limit // 2))
        group, _ = kind
        runs.leave(key for key in cache.keys(group) if not isinstance(cache.find(key), SizedProgram))
        return runs

    def lower(self, shapes: Mapping[str, tuple[int, ...]]) -> LoweredGraph:
        """Lower the graph for these shapes without the template, to describe a program."""
        from graphkit.passes.control.specialise import specialise_subgraphs

        graph, unspecialised = specialise_subgraphs(bind(self.template.graph, shapes))
        fixed = {graph.inputs[i]: array for i, array in self._fixed.items()}
        return lower_graph(graph, fixed, self.template.settings, unspecialised)


class _SizedInstance:
    """A native instance, and the parameters and constants that it reads."""

    arena: np.ndarray | None = None
    limits: Limits | None = None
    memory = sys.maxsize

    def __init__(self, program: SizedProgram):
        self.native = native_module().Instance(program.code.native)
        self._pools = program.pools
        self._operands = program.code.operands
        self._held: list[np.ndarray] = []
        self._stamp = -1

    def run(
        self, program: SizedProgram, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray], arena: np.ndarray
    ) -> list[Any]:
        results = program.allocate_results(buffers)
        ndarray = np.ndarray
        arrays = [x if isinstance(x, ndarray) else None for x in inputs]  # no step reads other inputs
        program.run_native(self.native, [*arrays, *results], arena)
        return results

    def refresh(self) -> None:
        if (stamp := self._pools.stamp()) != self._stamp:
            self._refresh()
            self._stamp = stamp

    def _refresh(self) -> None:
        """Read the parameters and constants again, and pack those that have changed."""
        held = self._pools.packed.get_shared(self._operands)
        self.native.set_all(self._operands.externals, held)
        self._held = held
