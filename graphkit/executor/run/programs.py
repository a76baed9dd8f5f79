"""The programs that an executor caches: compiled for one size, or made from a template if sizes change."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from graphkit import config
from graphkit.errors import TypeMismatch
from graphkit.executor.devices.device import Device
from graphkit.executor.devices.loading import find_device
from graphkit.executor.lower.batch import Batch
from graphkit.executor.lower.lowering import Settings
from graphkit.executor.lower.template import Template
from graphkit.executor.memory.pools import Pools
from graphkit.executor.run import program_log
from graphkit.executor.run.batched_program import BatchedProgram, Parts
from graphkit.executor.run.compile import compile_graph, find_batch, make_template, sized_program
from graphkit.executor.run.executable import DeviceProgram
from graphkit.executor.run.keys import Key
from graphkit.executor.run.selection import Selection
from graphkit.text import human, short_repr

# The most recently used programs stay however large they are: training takes turns with evaluation, and the last batch
# is a smaller one.
_LEAST = 4

# What a compiled program takes, in those of a template.
_COMPILED = 6

# Programs that differ in shapes alone.
_Group = tuple[int, tuple[int, ...]]


class Programs:
    """Programs by their keys. GRAPHKIT_CACHE_MB limits their size; the least recently used are dropped. For one thread
    at a time.

    The first size of a graph is compiled, because it may be the only one. From the second on, programs are made from a
    template if the graph has one. A size that occurs often is compiled, too, if there is room. A large batch with
    independent examples uses the programs of its parts.
    """

    def __init__(self, settings: Settings, pools: Pools):
        self._log = program_log.of(settings)
        self._settings = settings
        self._pools = pools
        device = find_device(settings.device, settings.number)
        self._devices = () if device is None else (device,)
        self._kept: OrderedDict[Key, DeviceProgram] = OrderedDict()
        self._bytes = 0
        self._templates: dict[_Group, Template | None] = {}
        self._compiled: set[_Group] = set()
        self._batches: dict[_Group, Batch | None] = {}
        # By the key of a part, those of the programs that it is a part of.
        self._wholes: dict[Key, set[Key]] = {}

    def readers(self, name: str) -> Sequence[Device]:
        """The devices with arrays of their own that read an input."""
        return self._devices

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, key: Key) -> DeviceProgram | None:
        """The program, if it is there and to be used; it is the last used one then."""
        program = self._found(key)
        if self._log is not None and program is not None:
            self._log.found(key)
        return program

    def _found(self, key: Key) -> DeviceProgram | None:
        program = self._kept.get(key)
        if program is None:
            return None
        self._kept.move_to_end(key)
        for part in program.part_keys:
            self._kept.move_to_end(part)
        if program.outgrown:
            # The parts of a batch say what comes of it.
            if program.part_keys or self._bytes + _COMPILED * program.kept_bytes <= config.CACHE_MB.get() << 20:
                return None
            program.stay()
        return program

    def make(self, key: Key, selection: Selection) -> DeviceProgram:
        """The program for inputs of these shapes. Raises as `compile_graph`."""
        if self._log is None:
            return self._make(key, selection)
        return self._log.made(key, selection, self._make, outgrown=key in self._kept)

    def _make(self, key: Key, selection: Selection) -> DeviceProgram:
        before = self._kept.get(key)  # outgrown
        if before is not None:
            self._drop(key, "a compiled one replaces it")
        program: DeviceProgram = self._in_parts(key, selection) or self._whole(key, selection, light=before is None)
        self._kept[key] = program
        self._bytes += program.kept_bytes
        for part in program.part_keys:
            self._wholes.setdefault(part, set()).add(key)
        most = config.CACHE_MB.get() << 20
        while self._bytes > most and len(self._kept) > _LEAST:
            self._drop(next(iter(self._kept)), f"all take more than {human(most)} (GRAPHKIT_CACHE_MB)")
        return program

    def _drop(self, key: Key, reason: str) -> None:
        """Drop a program, and those that it is a part of. reason: for the log."""
        if self._log is not None:
            self._log.dropped(key, reason)
        program = self._kept.pop(key)
        self._bytes -= program.kept_bytes
        for part in program.part_keys:
            self._wholes.get(part, set()).discard(key)
        for whole in [*self._wholes.pop(key, ())]:
            self._drop(whole, "a part of it is dropped")

    def _whole(self, key: Key, selection: Selection, light: bool) -> DeviceProgram:
        program = self._from_template(key, selection) if light and key.group in self._compiled else None
        if program is None:
            shapes, fixed = selection.shapes(key), selection.unfed(key)
            program = compile_graph(selection.graph, shapes, fixed, self._settings, self._pools, selection.borrowed)
            self._compiled.add(key.group)
        return program

    def _in_parts(self, key: Key, selection: Selection) -> BatchedProgram | None:
        """The program of a large batch whose examples stay apart; None where it is computed as a whole."""
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
            parts = self._parts(key, selection, batch.inputs, some)
            rest = self._parts(key, selection, batch.inputs, whole % some) if whole % some else None
        except TypeMismatch:  # the whole says so in its own sizes
            return None
        if parts is None or (whole % some and rest is None):
            self._batches[group] = None
            return None
        return BatchedProgram(parts._replace(number=whole // some), rest, batch.inputs, self._pools)

    def _parts(self, key: Key, selection: Selection, examples: Sequence[int], count: int) -> Parts | None:
        """One part of so many examples; None where its program leaves the native engine."""
        given = dict(zip(selection.open, key.shapes, strict=True))
        cut = {position: (count, *shape[1:]) for position in examples if (shape := given[position]) is not None}
        part_key = selection.with_shapes(key, cut)
        program = (self.find(part_key) or self.make(part_key, selection)).as_part()
        return None if program is None else Parts(1, count, program, part_key)

    def _from_template(self, key: Key, selection: Selection) -> DeviceProgram | None:
        fixed = selection.unfed(key)
        if key.group not in self._templates:
            self._templates[key.group] = make_template(selection.graph, fixed, self._settings)
        template = self._templates[key.group]
        return None if template is None else sized_program(template, selection.shapes(key), fixed, self._pools)

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield f"of {self._settings.device}"
        yield f"{len(self._kept)} kept"
        yield f"about {human(self._bytes)}"
