"""A program for a batch of independent examples. It runs the program of a smaller batch several times."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.executor.devices.loading import native_module
from graphkit.executor.lower.lowering import LoweredGraph
from graphkit.executor.memory.placement import Result
from graphkit.executor.memory.pools import Pools
from graphkit.executor.run import base_program
from graphkit.executor.run.base_program import BaseProgram, Instance, InstancedProgram, Key, Section
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType
from graphkit.named_tuples import NamedTuple

if TYPE_CHECKING:
    from graphkit.executor.report.plan import Plan

# Approximate size of a BatchedProgram in bytes, without the programs of its parts.
_BYTES = 4 << 10


class BatchParts(NamedTuple):
    """Equal parts of a batch.

    Attributes:
        number: Number of parts.
        size: Number of examples of each part.
        program: The program of one part.
        key: The key of this program in the cache.
    """

    number: int
    size: int
    program: InstancedProgram
    key: Key


class BatchedProgram(BaseProgram):
    """Runs the equal parts of a batch, then the smaller part that remains, if any.

    Args:
        parts: The equal parts.
        rest: The remaining part, or None.
        examples: Positions of the inputs that are split along their first axis.
        pools: The memory of results.
    """

    def __init__(self, parts: BatchParts, rest: BatchParts | None, examples: Sequence[int], pools: Pools):
        first = parts.program
        batch_size = parts.number * parts.size + (rest.size if rest else 0)
        kinds = [r.value.tensor for r in first.finals]
        kinds = [TensorType(k.dtype, (batch_size, *k.static_shape[1:])) for k in kinds]
        results = tuple(
            Result(Value(kind, r.value.name), owned=True) for kind, r in zip(kinds, first.finals, strict=True)
        )
        super().__init__(first.graph, first.placement._replace(results=results), pools)
        self._parts, self._rest = parts, rest
        self.part_keys = tuple(p.key for p in (parts, rest) if p)
        self._programs = tuple(p.program for p in (parts, rest) if p)
        self.examples = frozenset(examples)
        self._batch_size = batch_size
        # One part runs on each thread at the same time. The remaining parts run one after the other, on all threads.
        self._threads = first.threads if parts.number >= first.threads else 1
        writes_results = all(spec is not None for spec in first.owned)
        self._concurrent = parts.number // first.threads * first.threads if writes_results else 0
        self.arena_bytes = first.arena_bytes
        self.kept_bytes = _BYTES
        self.owned = [(kind.static_shape, kind.dtype.numpy, kind.nbytes) for kind in kinds]

    def sections(self) -> Sequence[Section]:
        parts, rest = self._parts, self._rest
        equal = Section(parts.program, parts.number, parts.size, 0)
        return (equal, Section(rest.program, rest.number, rest.size, parts.number * parts.size)) if rest else (equal,)

    @property
    def needs_recompiling(self) -> bool:
        """Whether the program of a part needs recompiling."""
        return any(program.needs_recompiling for program in self._programs)

    def prepare(self) -> None:
        for program in self._programs:
            program.prepare()

    def run(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray], discard: Collection[int] = ()) -> list[Any]:
        results = self.allocate_results(buffers)
        number, size, program, _ = self._parts
        concurrent = 0 if base_program.recorder is not None else self._concurrent
        taken = [program.take() for _ in range(self._threads if concurrent else 1)]
        last = self._rest.program.take() if self._rest else None
        self._refresh([instance for instance, _ in (*taken, *((last,) if last else ()))])
        if concurrent:
            self._run_concurrently(concurrent, taken, inputs, results)
        for part in range(concurrent, number):
            self._run_part(program, taken[0], (part * size, (part + 1) * size), inputs, results)
        if self._rest and last:
            self._run_part(self._rest.program, last, (number * size, self._batch_size), inputs, results)
            self._rest.program.give(*last)
        for instance, arena in taken:
            program.give(instance, arena)
        program.count_runs(number)
        return results

    def _refresh(self, instances: Sequence[Instance]) -> None:
        """Read changed parameters, so that all parts of a run use the same versions."""
        stamp = None
        while stamp != (stamp := self.pools.stamp()):
            for instance in instances:
                instance.refresh()

    def _run_part(
        self,
        program: InstancedProgram,
        taken: tuple[Instance, np.ndarray],
        examples: tuple[int, int],
        inputs: Sequence[Any],
        results: Sequence[np.ndarray],
    ) -> None:
        """Run one part. taken: an instance and an arena of the program. examples: their range in the batch."""
        begin, end = examples
        given = [x[begin:end] if i in self.examples else x for i, x in enumerate(inputs)]
        targets = {i: y[begin:end] for i, y in enumerate(results) if program.owned[i] is not None}
        for i, made in enumerate(program.run_on(*taken, given, targets)):
            if i not in targets:
                results[i][begin:end] = made

    def _run_concurrently(
        self,
        parts: int,
        taken: Sequence[tuple[Instance, np.ndarray]],
        inputs: Sequence[Any],
        results: Sequence[np.ndarray],
    ) -> None:
        """Run the first `parts` parts in the native engine, one on each thread at a time."""
        size = self._parts.size
        given = [x if i in self.examples else None for i, x in enumerate(inputs)]
        # Bytes from one part to the next, in each input and result.
        strides = [0 if x is None else x[:size].nbytes for x in given] + [y[:size].nbytes for y in results]
        instances, arenas = ([instance.native for instance, _ in taken], [arena for _, arena in taken])
        native = native_module()
        try:
            native.run_parts(instances, arenas, [*given, *results], strides, parts)
        except native.Error as error:
            raise base_program.failure_of(error) from error

    @property
    def lowered(self) -> LoweredGraph:
        """The graph of one part, with its lowerings."""
        return self._parts.program.lowered

    def interpreted(self) -> Iterable[tuple[str, Node, str]]:
        """Return nothing: the log of the program of a part names such nodes."""
        return ()

    def contents(self) -> str:
        return "the program of a part of the batch, for each part"

    @property
    def fallbacks(self) -> tuple[str, ...]:
        return self._parts.program.fallbacks

    @cached_property
    def plan(self) -> Plan:
        """The plan of one part, with the result bytes of the whole batch."""
        result_bytes = sum(spec[2] for spec in self.owned if spec)
        examples = (self._parts.size, self._batch_size)
        return replace(self._parts.program.plan, result_bytes=result_bytes, examples=examples, arenas=self._threads)
