"""Runs of a template's programs in one native call: it checks the feeds, finds or makes the program, and runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphkit.executor.devices.loading import native_module
from graphkit.executor.lower.lowering import NotNative
from graphkit.executor.memory.pools import IDLE, RECYCLED_BYTES, Pools
from graphkit.executor.run.base_program import Group, Key
from graphkit.ir import limits

if TYPE_CHECKING:
    from graphkit.executor.devices.loading import _native
    from graphkit.executor.lower.template import Template
    from graphkit.executor.run.selection import LastRun

Shapes = Sequence[tuple[int, ...] | None]

# Approximate bytes of a step and its kernel in a program that the native part keeps, measured on networks.
_STEP_BYTES = 1 << 10

# The native part keeps at least this many programs, however large they are.
_MIN_PROGRAMS = 4


class Host:
    """The functions and numbers that native runs use. It must not refer to the executor, which keeps the native part.

    Attributes:
        kernel: See `make` of `SizedPrograms.at`.
        structured: See `SizedPrograms.at`.
        refused: The exception of these two if there is no program for the sizes.
        accepts: accepts(shapes) returns whether one program computes a batch of these shapes. None: always.
        may_take: may_take(nbytes) returns whether there is memory for a run of a new size. It is called for a run of
            more than `most_bytes` bytes, and once after smaller runs of `most_unchecked` bytes.
        made: made(shapes, outputs) is called after the first run of a program. None: nothing is called.
        stamp: Returns a number that changes whenever a parameter may have changed.
        operands: operands(shared) returns the arrays of SharedOperands.
        take_arena: take_arena(nbytes) returns memory for a run.
        give_arena: give_arena(arena) takes it back.
        recycled: recycled(position, shape, dtype, nbytes) returns an array for a result of at least `recycled_bytes`
            bytes.
        most_runs: After this many runs of a program, Python compiles one for its sizes.
        idle: Maximum number of idle instances of programs with the same steps.
    """

    refused = NotNative
    recycled_bytes = RECYCLED_BYTES
    most_bytes = limits.SMALL
    most_unchecked = limits.CHECK_INTERVAL
    may_take = staticmethod(limits.may_take)

    def __init__(
        self,
        template: Template,
        pools: Pools,
        accepts: Callable[[Shapes], bool] | None,
        made: Callable[[Shapes, Mapping[str, Any]], None] | None,
        most_runs: int,
    ):
        self.kernel, self.structured = template.make_kernel, template.make_structure
        self.accepts, self.made, self.most_runs = accepts, made, most_runs
        self.stamp, self.operands = pools.stamp, pools.packed.get_shared
        self.take_arena, self.give_arena = pools.arenas.take, pools.arenas.give
        self.recycled = pools.results.array
        self.idle = max(IDLE, template.settings.threads)


class SizedRuns:
    """Native runs with feeds of one kind, and the programs that they keep.

    Args:
        kind: See the attribute.
        last: A run with feeds of this kind.
        template: The template.
        host: Its functions and numbers.
        most_bytes: Approximate size of the programs that are kept, in bytes.

    Attributes:
        kind: The group of the programs, and the names of the feeds.
        selection: The outputs of the runs.
        run: run(feeds, deadline) returns the outputs by name. It returns None if Python must make all checks and choose
            the program, and True if Python must also compile a program, because these sizes occur often. deadline: see
            `Limits`.
        advances_rng: Whether each run advances the random generator, although no node reads it.
        kept_bytes: Approximate size of the programs in bytes, if as many as possible are kept.
    """

    def __init__(
        self,
        kind: tuple[Group, tuple[str, ...]],
        last: LastRun,
        template: Template,
        host: Host,
        most_bytes: int,
    ):
        self.kind, self.selection = kind, last.selection
        program_bytes = _STEP_BYTES * max(template.kernel_count, 1)
        kept = max(most_bytes // program_bytes, _MIN_PROGRAMS)
        self.kept_bytes = kept * program_bytes
        number = {position: i for i, position in enumerate(last.selection.open)}
        types = [r.value.dtype.numpy for r in template.placement.results]
        self._native: _native.SizedRuns = native_module().SizedRuns(
            programs=template.programs,
            feeds=[(name, at, dtype, shape, number.get(at)) for name, at, dtype, shape, _ in last.specs],
            inputs=len(number),
            first_result=len(template.graph.inputs),
            outputs=list(zip(last.selection.outputs, types, strict=True)),
            kept=kept,
            host=host,
        )
        self.run = self._native.run
        fed = {position for _, position, *_ in last.specs}
        self.advances_rng = any(position not in fed for position in last.selection.generators)

    def __len__(self) -> int:
        return len(self._native)

    def serve(self, key: Key, runs: int) -> None:
        """Use the template for inputs of these shapes. runs: number of runs that they have had."""
        self._native.serve(key.shapes, runs)

    def leave(self, keys: Iterable[Key]) -> None:
        """Let Python choose the programs for these keys, because they are not made from the template."""
        for key in keys:
            self._native.leave(key.shapes)

    def take_latest(self) -> Key | None:
        """Return the key of the latest run, once. Return None if there was no run since the last call."""
        shapes = self._native.take_latest()
        (selection, fed), _ = self.kind
        return None if shapes is None else Key(selection, fed, tuple(shapes))
