"""Build programs for one device: compiled for certain input shapes, or made from a template."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from graphkit import debug
from graphkit.errors import GraphkitError, TypeMismatch
from graphkit.executor.devices.loading import find_device
from graphkit.executor.lower.lowering import Settings
from graphkit.executor.memory.pools import Pools
from graphkit.executor.run.base_program import Group, Key
from graphkit.executor.run.compile import compile_graph, find_batch, make_sized_builder, make_template
from graphkit.executor.run.program_cache import ProgramCache
from graphkit.executor.run.selection import Selection

if TYPE_CHECKING:
    from graphkit.executor.devices.device import Device
    from graphkit.executor.lower.batch import Batch
    from graphkit.executor.lower.template import Template
    from graphkit.executor.run.batched_program import BatchParts
    from graphkit.executor.run.executable import DeviceProgram
    from graphkit.executor.run.program_log import ProgramLog
    from graphkit.executor.run.sized_program import SizedBuilder


class DeviceBuilder:
    """Builds the programs of one device.

    The program for the first input shapes of a graph is compiled, because there may be no others. For further shapes,
    programs are made from a template, if the graph has one. If certain shapes occur often, a program is compiled for
    them if there is room in the cache. If the examples of a batch are independent, a large batch runs the program of a
    smaller batch several times. Programs that are saved are compiled, because kernels of templates have no recipes.

    Args:
        settings: For the device.
        pools: Memory that all programs share.
        inputs: Names of the inputs of the executor's graph.
    """

    def __init__(self, settings: Settings, pools: Pools, inputs: Collection[str]):
        self._settings, self._pools, self._inputs = settings, pools, frozenset(inputs)
        device = find_device(settings.device_name)
        self._devices = () if device is None else (device,)
        self._sized: dict[Group, SizedBuilder | None] = {}
        self._compiled: set[Group] = set()
        self._batches: dict[Group, Batch | None] = {}

    def readers(self, name: str) -> Sequence[Device]:
        return self._devices if name in self._inputs else ()

    def build(
        self, key: Key, selection: Selection, cache: ProgramCache[DeviceProgram], *, again: bool
    ) -> DeviceProgram:
        program = self._batched(key, selection, cache)
        if program is None and not again and key.group in self._compiled:
            from graphkit.executor.devices.recipes import records_recipes

            if not records_recipes():
                program = self._from_template(key, selection)
        return self._compile(key, selection) if program is None else program

    def _compile(self, key: Key, selection: Selection) -> DeviceProgram:
        shapes, fixed = selection.shapes(key), selection.fixed_inputs(key)
        program = compile_graph(selection.graph, shapes, fixed, self._settings, self._pools, selection.device_inputs)
        self._compiled.add(key.group)
        return program

    def _from_template(self, key: Key, selection: Selection) -> DeviceProgram | None:
        """Return a program made from the template of the graph, or None if there is none for these shapes."""
        group = key.group
        if group not in self._sized:
            fixed = selection.fixed_inputs(key)
            made = make_sized_builder(selection.graph, fixed, self._settings, self._pools)
            if made is not None:
                made.is_whole = self._is_whole(key, selection)
            self._sized[group] = made
        builder = self._sized[group]
        return None if builder is None else builder.build(selection.shapes(key))

    def template(self, key: Key, selection: Selection) -> Template:
        """Return a new template of the graph. Raises NotNative, which says why, if there is none."""
        return make_template(selection.graph, selection.fixed_inputs(key), self._settings)

    def _is_whole(self, key: Key, selection: Selection) -> Callable[[Sequence[tuple[int, ...] | None]], bool]:
        """Return a function of the shapes of a key that tells whether one program computes the whole batch.

        key: of a program of the same group. The function does not refer to the builder, which keeps it.
        """
        batches, settings = self._batches, self._settings

        def is_whole(shapes: Sequence[tuple[int, ...] | None]) -> bool:
            batch = _batch_of(key, selection, settings, batches)
            if batch is None:
                return True
            try:
                whole, part = batch.part(selection.shapes(key._replace(shapes=tuple(shapes))))
            except GraphkitError:
                return False  # `build` raises it again
            return part >= whole

        return is_whole

    def _batched(self, key: Key, selection: Selection, cache: ProgramCache[DeviceProgram]) -> DeviceProgram | None:
        """Return the program of a large batch with independent examples, or None if the batch is not divided."""
        if not any(shape and shape[0] > 1 for shape in key.shapes):
            return None  # one example, which has no parts
        group = key.group
        batch = _batch_of(key, selection, self._settings, self._batches)
        if batch is None:
            return None
        batch_size, part_size = batch.part(selection.shapes(key))
        if part_size >= batch_size:
            return None
        remaining = batch_size % part_size
        try:
            parts = _batch_part(key, selection, cache, batch.inputs, part_size)
            rest = _batch_part(key, selection, cache, batch.inputs, remaining) if remaining else None
        except TypeMismatch:  # compiling the whole batch raises it again, with the sizes that the caller gave
            return None
        if parts is None or (remaining and rest is None):
            self._batches[group] = None
            return None
        from graphkit.executor.run.batched_program import BatchedProgram

        return BatchedProgram(parts._replace(number=batch_size // part_size), rest, batch.inputs, self._pools)


def _batch_of(key: Key, selection: Selection, settings: Settings, batches: dict[Group, Batch | None]) -> Batch | None:
    """Return how the batches of a group are divided, from `batches` if it is there; None if they are not."""
    group = key.group
    if group not in batches:
        batches[group] = find_batch(selection.graph, selection.fixed_inputs(key), settings)
    return batches[group]


def device_cache(settings: Settings, pools: Pools, inputs: Collection[str]) -> ProgramCache[DeviceProgram]:
    """Return the cache of the programs of one device. See `DeviceBuilder`."""
    return ProgramCache(DeviceBuilder(settings, pools, inputs), str(settings.device_name), _log(settings))


def _batch_part(
    key: Key, selection: Selection, cache: ProgramCache[DeviceProgram], examples: Sequence[int], size: int
) -> BatchParts | None:
    """Return one part of `size` examples, or None if some steps of its program run in Python.

    examples: Positions of the inputs that are split along their first axis.
    """
    shapes = dict(zip(selection.open, key.shapes, strict=True))
    part_shapes = {position: (size, *shape[1:]) for position in examples if (shape := shapes[position]) is not None}
    part_key = selection.with_shapes(key, part_shapes)
    program = cache.get(part_key, selection).as_part()
    if program is None:
        return None
    from graphkit.executor.run.batched_program import BatchParts

    return BatchParts(1, size, program, part_key)


def _log(settings: Settings) -> ProgramLog | None:
    """Return the log of the programs of a device, or None if GRAPHKIT_DEBUG is off."""
    level = debug.level()
    if not level:
        return None
    from graphkit.executor.run.program_log import ProgramLog

    return ProgramLog(settings, level)
