"""A program for a batch whose examples are independent: it runs a program for part of the batch repeatedly."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from graphkit.executor.devices.loading import native_module
from graphkit.executor.lower.lowering import LoweredGraph
from graphkit.executor.memory.placement import Result
from graphkit.executor.memory.pools import Pools
from graphkit.executor.run import base_program
from graphkit.executor.run.base_program import BaseProgram, Instance, InstancedProgram
from graphkit.executor.run.keys import Key
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType

if TYPE_CHECKING:
    from graphkit.executor.report.plan import Plan

# What the program itself takes, without those of the parts.
_BYTES = 4 << 10


class Parts(NamedTuple):
    """So many parts of `size` examples each, and the program for one of them, with the key that it is kept under."""

    number: int
    size: int
    program: InstancedProgram
    key: Key


class BatchedProgram(BaseProgram):
    """Runs equal parts of a batch, and then the smaller one that is left, if any.

    `examples` are the positions of the inputs that are cut.
    """

    def __init__(self, parts: Parts, rest: Parts | None, examples: Sequence[int], pools: Pools):
        first = parts.program
        whole = parts.number * parts.size + (rest.size if rest else 0)
        kinds = [r.value.tensor for r in first.placement.results]
        kinds = [TensorType(k.dtype, (whole, *k.static_shape[1:])) for k in kinds]
        results = tuple(
            Result(Value(kind, r.value.name), owned=True)
            for kind, r in zip(kinds, first.placement.results, strict=True)
        )
        super().__init__(first.graph, replace(first.placement, results=results), pools)
        self._parts, self._rest = parts, rest
        self.part_keys = tuple(p.key for p in (parts, rest) if p)
        self._examples = frozenset(examples)
        self._whole = whole
        # As many parts at a time as there are threads; what is left has all threads for each.
        self._threads = first.threads if parts.number >= first.threads else 1
        in_place = all(spec is not None for spec in first.owned)
        self._together = parts.number // first.threads * first.threads if in_place else 0
        self.arena_bytes = first.arena_bytes
        self.kept_bytes = _BYTES
        self.owned = [(kind.static_shape, kind.dtype.numpy, kind.nbytes) for kind in kinds]

    @property
    def _programs(self) -> tuple[InstancedProgram, ...]:
        return (self._parts.program, *((self._rest.program,) if self._rest else ()))

    @property
    def needs_recompiling(self) -> bool:
        """Whether the program of a part needs it."""
        return any(program.needs_recompiling for program in self._programs)

    def run(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray], discard: Collection[int] = ()) -> list[Any]:
        results = self.results(buffers)
        number, size, program, _ = self._parts
        together = 0 if base_program.recorder is not None else self._together
        taken = [program.take() for _ in range(self._threads if together else 1)]
        last = self._rest.program.take() if self._rest else None
        self._refresh([instance for instance, _ in (*taken, *((last,) if last else ()))])
        if together:
            self._run_together(together, taken, inputs, results)
        for part in range(together, number):
            self._run_part(program, taken[0], (part * size, (part + 1) * size), inputs, results)
        if self._rest and last:
            self._run_part(self._rest.program, last, (number * size, self._whole), inputs, results)
            self._rest.program.give(*last)
        for instance, arena in taken:
            program.give(instance, arena)
        program.ran(number)
        return results

    def _refresh(self, instances: Sequence[Instance]) -> None:
        """All parts of a run have the parameters that there were at one time."""
        stamp = None
        while stamp != (stamp := self.pools.stamp()):
            for instance in instances:
                instance.refresh()

    def _run_part(
        self,
        program: InstancedProgram,
        place: tuple[Instance, np.ndarray],
        examples: tuple[int, int],
        inputs: Sequence[Any],
        results: Sequence[np.ndarray],
    ) -> None:
        begin, end = examples
        given = [x[begin:end] if i in self._examples else x for i, x in enumerate(inputs)]
        targets = {i: y[begin:end] for i, y in enumerate(results) if program.owned[i] is not None}
        for i, made in enumerate(program.run_on(*place, given, targets)):
            if i not in targets:
                results[i][begin:end] = made

    def _run_together(
        self,
        parts: int,
        taken: Sequence[tuple[Instance, np.ndarray]],
        inputs: Sequence[Any],
        results: Sequence[np.ndarray],
    ) -> None:
        """Run so many parts natively, one on each thread at a time."""
        size = self._parts.size
        given = [x if i in self._examples else None for i, x in enumerate(inputs)]
        steps = [0 if x is None else x[:size].nbytes for x in given] + [y[:size].nbytes for y in results]
        instances, arenas = ([instance.native for instance, _ in taken], [arena for _, arena in taken])
        native = native_module()
        try:
            native.run_parts(instances, arenas, [*given, *results], steps, parts)
        except native.Error as error:
            raise base_program.failure_of(error) from error

    @property
    def lowered(self) -> LoweredGraph:
        """Of a part."""
        return self._parts.program.lowered

    def interpreted(self) -> Iterable[tuple[str, Node, str]]:
        """None that the programs of the parts have not named."""
        return ()

    def contents(self) -> str:
        return "the program of a part of the batch, for each part"

    @property
    def fallbacks(self) -> tuple[str, ...]:
        return self._parts.program.fallbacks

    @cached_property
    def plan(self) -> Plan:
        """Of a part, with what the results of the whole take."""
        results = sum(spec[2] for spec in self.owned if spec)
        at_a_time = (self._parts.size, self._whole)
        return replace(self._parts.program.plan, result_bytes=results, examples=at_a_time, arenas=self._threads)
