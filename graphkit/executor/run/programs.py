"""The programs that an executor keeps: compiled for one size, or light ones of a template where sizes change."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from graphkit import config
from graphkit.errors import TypeMismatch
from graphkit.executor.devices.kernel import VersionedArray
from graphkit.executor.lower.batch import Batch
from graphkit.executor.lower.lowering import Settings
from graphkit.executor.lower.template import Template
from graphkit.executor.memory.pools import Pools
from graphkit.executor.run.base_program import InstancedProgram
from graphkit.executor.run.batched_program import BatchedProgram, Parts
from graphkit.executor.run.compile import AnyProgram, compile_graph, find_batch, make_template, sized_program
from graphkit.executor.run.selection import Selection

# The most recently used programs stay however large they are: training takes turns with evaluation, and the last batch
# is a smaller one.
_LEAST = 4

# What a compiled program takes, in those of a template.
_COMPILED = 6

# What a program depends on: see `signature`.
Key: TypeAlias = tuple[Any, ...]


class Programs:
    """Programs by their keys, up to GRAPHKIT_CACHE_MB, those used last. For one thread at a time.

    The first size of a graph is compiled for itself: it may be the only one. From the second on, programs follow from
    a template, if the graph has one; a size that comes often is compiled as well, as long as there is room. A large
    batch whose examples stay apart has the programs of its parts.
    """

    def __init__(self, settings: Settings, pools: Pools):
        self._settings = settings
        self._pools = pools
        self._kept: OrderedDict[Key, AnyProgram] = OrderedDict()
        self._bytes = 0
        self._templates: dict[Key, Template | None] = {}
        self._compiled: set[Key] = set()
        self._batches: dict[Key, Batch | None] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, key: Key) -> AnyProgram | None:
        """The program, if it is there and to be used; it is the last used one then."""
        program = self._kept.get(key)
        if program is None:
            return None
        self._kept.move_to_end(key)
        if isinstance(program, BatchedProgram):
            for part in program.keys:
                self._kept.move_to_end(part)
            return None if program.outgrown else program  # the parts say what comes of it
        if program.outgrown:
            program.outgrown = False
            if self._bytes + _COMPILED * program.kept_bytes <= config.CACHE_MB.get() << 20:
                return None
        return program

    def make(
        self, key: Key, selection: Selection, shapes: Mapping[str, Any], fixed: Mapping[int, VersionedArray]
    ) -> AnyProgram:
        """The program for inputs of these shapes, by name. Raises as `compile_graph`."""
        before = self._kept.get(key)  # outgrown
        if before is not None:
            self._drop(key)
        program: AnyProgram = self._in_parts(key, selection, shapes, fixed) or self._whole(
            key, selection, shapes, fixed, light=before is None
        )
        self._kept[key] = program
        self._bytes += program.kept_bytes
        most = config.CACHE_MB.get() << 20
        while self._bytes > most and len(self._kept) > _LEAST:
            self._drop(next(iter(self._kept)))
        return program

    def _drop(self, key: Key) -> None:
        """Let go of a program, and of those that it is a part of."""
        self._bytes -= self._kept.pop(key).kept_bytes
        for other in [k for k, p in self._kept.items() if isinstance(p, BatchedProgram) and key in p.keys]:
            self._bytes -= self._kept.pop(other).kept_bytes

    def _whole(
        self,
        key: Key,
        selection: Selection,
        shapes: Mapping[str, Any],
        fixed: Mapping[int, VersionedArray],
        light: bool,
    ) -> AnyProgram:
        group = _group(key)
        program = self._from_template(group, selection, shapes, fixed) if light and group in self._compiled else None
        if program is None:
            program = compile_graph(selection.graph, shapes, fixed, self._settings, self._pools)
            self._compiled.add(group)
        return program

    def _in_parts(
        self, key: Key, selection: Selection, shapes: Mapping[str, Any], fixed: Mapping[int, VersionedArray]
    ) -> BatchedProgram | None:
        """The program of a large batch whose examples stay apart; None where it is computed as a whole."""
        group = _group(key)
        if group not in self._batches:
            self._batches[group] = find_batch(selection.graph, fixed, self._settings)
        batch = self._batches[group]
        if batch is None:
            return None
        whole, some = batch.part(shapes)
        if some >= whole:
            return None
        try:
            parts = self._parts(key, selection, shapes, fixed, (batch.inputs, some))
            rest = self._parts(key, selection, shapes, fixed, (batch.inputs, whole % some)) if whole % some else None
        except TypeMismatch:  # the whole says so in its own sizes
            return None
        if parts is None or (whole % some and rest is None):
            self._batches[group] = None
            return None
        return BatchedProgram(parts._replace(number=whole // some), rest, batch.inputs, self._pools)

    def _parts(
        self,
        key: Key,
        selection: Selection,
        shapes: Mapping[str, Any],
        fixed: Mapping[int, VersionedArray],
        examples: tuple[Sequence[int], int],
    ) -> Parts | None:
        """One part of so many examples; None where its program leaves the native engine."""
        positions, count = examples
        cut = list(key)
        part_shapes = dict(shapes)
        for position in positions:
            name = selection.inputs[position].name
            part_shapes[name] = (count, *shapes[name][1:])
            cut[1 + position] = (key[1 + position][0], part_shapes[name])
        part_key = tuple(cut)
        program = self.find(part_key) or self.make(part_key, selection, part_shapes, fixed)
        if not isinstance(program, InstancedProgram) or program.calls_python:
            return None
        return Parts(1, count, program, part_key)

    def _from_template(
        self, group: Key, selection: Selection, shapes: Mapping[str, Any], fixed: Mapping[int, VersionedArray]
    ) -> AnyProgram | None:
        if group not in self._templates:
            self._templates[group] = make_template(selection.graph, fixed, self._settings)
        template = self._templates[group]
        return None if template is None else sized_program(template, shapes, fixed, self._pools)


def _group(key: Key) -> Key:
    """The key without shapes."""
    return (key[0], *(fed for fed, _ in key[1:]))
