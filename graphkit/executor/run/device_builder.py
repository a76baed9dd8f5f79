"""Build programs for one device: compiled for one size, or made from a template if sizes change."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.errors import TypeMismatch
from graphkit.executor.devices.device import Device
from graphkit.executor.devices.loading import with_arrays
from graphkit.executor.lower.batch import Batch
from graphkit.executor.lower.lowering import Settings
from graphkit.executor.lower.template import Template
from graphkit.executor.memory.pools import Pools
from graphkit.executor.run import program_log
from graphkit.executor.run.batched_program import BatchedProgram, Parts
from graphkit.executor.run.compile import compile_graph, find_batch, make_template, sized_program
from graphkit.executor.run.executable import DeviceProgram
from graphkit.executor.run.keys import Group, Key
from graphkit.executor.run.program_cache import ProgramCache
from graphkit.executor.run.selection import Selection


class DeviceBuilder:
    """Builds the programs of one device.

    The first size of a graph is compiled, because it may be the only one. From the second size on, programs are made
    from a template if the graph has one. If a size occurs often, it is compiled, too, if there is room in the cache. A
    large batch whose examples are independent runs the program of a smaller batch several times.
    """

    def __init__(self, settings: Settings, pools: Pools):
        self._settings, self._pools = settings, pools
        device = with_arrays(settings.device, settings.number)
        self._devices = () if device is None else (device,)
        self._templates: dict[Group, Template | None] = {}
        self._compiled: set[Group] = set()
        self._batches: dict[Group, Batch | None] = {}

    def readers(self, name: str) -> Sequence[Device]:
        return self._devices

    def build(
        self, key: Key, selection: Selection, cache: ProgramCache[DeviceProgram], *, again: bool
    ) -> DeviceProgram:
        program = self._in_parts(key, selection, cache)
        if program is None and not again and key.group in self._compiled:
            program = self._from_template(key, selection)
        return self._compile(key, selection) if program is None else program

    def _compile(self, key: Key, selection: Selection) -> DeviceProgram:
        shapes, fixed = selection.shapes(key), selection.unfed(key)
        program = compile_graph(selection.graph, shapes, fixed, self._settings, self._pools, selection.handed)
        self._compiled.add(key.group)
        return program

    def _from_template(self, key: Key, selection: Selection) -> DeviceProgram | None:
        fixed = selection.unfed(key)
        if key.group not in self._templates:
            self._templates[key.group] = make_template(selection.graph, fixed, self._settings)
        template = self._templates[key.group]
        return None if template is None else sized_program(template, selection.shapes(key), fixed, self._pools)

    def _in_parts(self, key: Key, selection: Selection, cache: ProgramCache[DeviceProgram]) -> DeviceProgram | None:
        """Return the program of a large batch with independent examples, or None if the batch is not divided."""
        group = key.group
        if group not in self._batches:
            self._batches[group] = find_batch(selection.graph, selection.unfed(key), self._settings)
        batch = self._batches[group]
        if batch is None:
            return None
        whole, some = batch.part(selection.shapes(key))
        if some >= whole:
            return None
        try:
            parts = _parts(key, selection, cache, batch.inputs, some)
            rest = _parts(key, selection, cache, batch.inputs, whole % some) if whole % some else None
        except TypeMismatch:  # compiling the whole batch raises it with the right sizes
            return None
        if parts is None or (whole % some and rest is None):
            self._batches[group] = None
            return None
        return BatchedProgram(parts._replace(number=whole // some), rest, batch.inputs, self._pools)


def device_cache(settings: Settings, pools: Pools) -> ProgramCache[DeviceProgram]:
    """Return the cache of the programs of one device."""
    return ProgramCache(DeviceBuilder(settings, pools), settings.device, program_log.of(settings))


def _parts(
    key: Key, selection: Selection, cache: ProgramCache[DeviceProgram], examples: Sequence[int], count: int
) -> Parts | None:
    """Return one part of `count` examples, or None if its program leaves the native engine."""
    given = dict(zip(selection.open, key.shapes, strict=True))
    cut = {position: (count, *shape[1:]) for position in examples if (shape := given[position]) is not None}
    part_key = selection.with_shapes(key, cut)
    program = cache.get(part_key, selection).as_part()
    return None if program is None else Parts(1, count, program, part_key)
