"""Programs for graphs whose inputs are arrays of known shapes, which an `ArrayQueue` runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, cast

import numpy as np

from graphkit import config
from graphkit.executor.devices.loading import load_device, native_module
from graphkit.executor.lower.lowering import Settings
from graphkit.executor.memory.pools import Arenas, Pools
from graphkit.executor.run.compile import compile_graph, refuse_fallbacks
from graphkit.executor.run.device_passes import device_passes
from graphkit.executor.run.program import Program
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.sweep import run_passes

if TYPE_CHECKING:
    from graphkit.executor.devices.loading import _native


class ArrayProgram:
    """A compiled graph with static input types.

    Attributes:
        name: Name of the program, for errors and profiles.
        task: The native program, if all its steps are native and write directly to the memory of the results, and
            those results are `computed`. None if `call` must be used.
        computed: Positions of the outputs that the task computes. The others are copies of inputs.
        copies: Pairs (output, input): the output has the elements of the input, perhaps with another shape.
        has_fixed_results: Whether the shapes of all results are known before a run.
    """

    def __init__(self, graph: Graph, name: str):
        load_device("cpu")
        self.name = name
        program = _compiled(graph)
        refuse_fallbacks(program)
        self._program = program
        results = program.placement.results
        inputs = {v: i for i, v in enumerate(program.graph.inputs)}
        copied: dict[int, int] = {}
        for position, result in enumerate(results):
            root = program.placement.root.get(result.value, result.value)
            if not result.owned and root in inputs:
                copied[position] = inputs[root]
        self.copies = tuple(copied.items())
        self.computed = tuple([i for i in range(len(results)) if i not in copied])
        self.has_fixed_results = all(program.owned[i] is not None for i in self.computed) and _static(graph.outputs)
        self.task: _native.ArrayTask | None = None
        if self.has_fixed_results and not program.calls_python and program.longest_loop is None:
            sources = program.emitter.sources
            held = program.pools.packed.get(sources)
            self.task = native_module().ArrayTask(program.native, [operand.external for operand in sources], held)

    def task_arrays(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> list[np.ndarray | None]:
        """Return the arrays of a task: its inputs, then memory for all results. The last ones are the computed ones."""
        if not self.copies:
            return [*inputs, *outputs]
        computed = set(self.computed)
        return [*inputs, *[out if i in computed else None for i, out in enumerate(outputs)]]

    def call(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None) -> list[np.ndarray]:
        """Run the program now. Results of known shape are written to `outputs`, if given. Returns all results."""
        buffers: dict[int, np.ndarray] = {}
        if outputs is not None:
            buffers = {i: out for i, out in enumerate(outputs) if self._program.owned[i] is not None}
        results = self._program.run(inputs, buffers)
        if outputs is not None:
            for out, result in zip(outputs, results, strict=True):
                if out is not result:
                    np.copyto(out, result.reshape(out.shape))
        return results

    def deferred(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        """Return a function that runs the program and writes its results to `outputs`."""

        def run() -> None:
            self.call(inputs, outputs)

        return run

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """The nodes that are interpreted."""
        return self._program.fallbacks


def _static(outputs: Sequence[Value]) -> bool:
    return all(isinstance(v.type, TensorType) and v.type.is_static for v in outputs)


def _compiled(graph: Graph) -> Program:
    native = native_module() is not None
    threads = config.num_threads(None)
    settings = Settings("cpu", native, threads, False, True, True)
    graph = run_passes(graph, [*CLEANUP, *device_passes(settings, "f32")])
    return cast("Program", compile_graph(graph, {}, {}, settings, Pools(lambda: 0, _arenas(threads))))


@cache
def _arenas(threads: int) -> Arenas:
    """Return the arenas of all array programs with interpreted steps. Tasks use arenas of their threads."""
    return Arenas(threads)
