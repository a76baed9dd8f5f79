"""Divide a graph into parts that run on different devices, and find the programs of the parts."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from graphkit.errors import UnsupportedError
from graphkit.executor.devices.device import Device
from graphkit.executor.devices.groups import GroupDevices
from graphkit.executor.devices.kernel import VersionedArray
from graphkit.executor.devices.loading import find_device
from graphkit.executor.lower.lowering import Settings
from graphkit.executor.lower.prepacking import prepack
from graphkit.executor.report.divided_plan import DeviceCopy
from graphkit.executor.run.base_program import Key
from graphkit.executor.run.executable import DeviceProgram
from graphkit.executor.run.program_cache import ProgramCache
from graphkit.executor.run.selection import RunInput, Selection
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType, Type
from graphkit.named_tuples import NamedTuple
from graphkit.passes.core.declare import Step
from graphkit.passes.core.sweep import run_passes
from graphkit.passes.distribution.pieces import Piece, cut
from graphkit.passes.distribution.places import find_places


class Target(NamedTuple):
    """A device that parts run on.

    Attributes:
        settings: Its settings.
        passes: The passes that prepare a graph for it.
        programs: The cache of its programs.
    """

    settings: Settings
    passes: Sequence[Step]
    programs: ProgramCache[DeviceProgram]

    @property
    def name(self) -> str:
        return str(self.settings.device_name)

    @property
    def kind(self) -> str:
        return self.settings.device

    @property
    def is_host(self) -> bool:
        return self.kind == "cpu"


@dataclass(frozen=True)
class Part:
    """A part of the graph, prepared for its device.

    Attributes:
        target: Its device.
        selection: The graph of the part. Values that are derived from parameters are additional inputs at its end.
        inputs: The other inputs, as values of the whole graph.
        outputs: The outputs, as values of the whole graph.
        states: The states that it writes, as values of the whole graph.
        received: Inputs that were already copied to this device for an earlier part. For each position, the index of
            that part and the position among its inputs.
        runs_last: Whether the part runs after all parts that write no states.
    """

    target: Target
    selection: Selection
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    states: tuple[Value, ...]
    received: Mapping[int, tuple[int, int]]
    runs_last: bool


class Division:
    """The parts of a selection's graph, in the order in which they run.

    Args:
        selection: The selection.
        devices: The device of each group of nodes.
        targets: The devices.
        prepacked: Whether values that depend only on parameters are computed once. This is wrong if parameters are fed.
        lock: Protects the caches of programs.

    Attributes:
        graph: The whole graph.
        parts: The parts.
        producers: For each value that a part outputs, the index of the part and the position of the output.
        writers: For each state, the index of the part that writes it and the position among the part's updates.
        crossing: The values that a part computes for another one.
        probe: The whole graph with `crossing` as additional outputs, to infer their types.
    """

    def __init__(
        self,
        selection: Selection,
        devices: GroupDevices,
        targets: Sequence[Target],
        *,
        prepacked: bool,
        lock: threading.Lock,
    ):
        self.graph = graph = selection.graph
        self._targets = targets
        self._lock = lock
        places = find_places(graph, devices.groups, devices.default, devices.homes)
        for value, place in places.homes.items():
            devices.homes.setdefault(graph.name_of(value), place)
        self._homes = places.homes
        self._groups = [[g for g, at in devices.groups.items() if at == place] for place in range(len(targets))]
        self._written = {state for state, _ in graph.updates}
        pieces = cut(places, [not target.is_host for target in targets])
        # The device of each written state, and of each value that a part outputs. Every device can read other inputs.
        self._at = {v: places.homes[v] for v in self._written}
        self._at |= {v: piece.place for piece in pieces for v in piece.outputs if v.node is not None}
        self._first: dict[tuple[Value, int], tuple[int, int]] = {}
        self.parts = [self._part(index, piece, selection, prepacked) for index, piece in enumerate(pieces)]
        self.producers = {v: (i, at) for i, part in enumerate(self.parts) for at, v in enumerate(part.outputs)}
        self.writers = {v: (i, at) for i, part in enumerate(self.parts) for at, v in enumerate(part.states)}
        self.crossing = tuple(dict.fromkeys(v for part in self.parts for v in part.inputs if v.node is not None))
        self.probe = graph.replace(outputs=[*graph.outputs, *self.crossing])

    def _part(self, index: int, piece: Piece, selection: Selection, prepacked: bool) -> Part:
        """Return the part with number `index`: a piece of the graph after the passes of its device."""
        target = self._targets[piece.place]
        graph = run_passes(piece.graph, target.passes)
        specs = {spec.value: spec for spec in selection.inputs}
        inputs: list[RunInput] = []
        fixed: dict[str, VersionedArray] = {}
        for value, own in zip(piece.inputs, graph.inputs, strict=True):
            spec = specs.get(value)
            stored = spec is not None and spec.stored and value not in self._written
            name = spec.name if spec is not None else graph.name_of(own)
            inputs.append(RunInput(name, own, True, stored, stored and specs[value].derived, _is_static(own)))
            if stored:
                fixed[name] = selection.fixed[name]
        if prepacked:
            kept = {spec.value: fixed[spec.name] for spec in inputs if spec.stored}
            graph, derived = prepack(graph, kept)
            for own, array in zip(graph.inputs[len(inputs) :], derived.values(), strict=True):
                name = f"derived {len(inputs)}"
                inputs.append(RunInput(name, own, True, True, True, _is_static(own)))
                fixed[name] = array
        states = tuple(piece.inputs[i] for i, _ in _states(piece.graph))
        received = {} if target.is_host else self._received(index, piece, inputs)
        local = {i for i, v in enumerate(piece.inputs) if not target.is_host and self._at.get(v) == piece.place}
        on_device = sorted({*local, *received} - {i for i, v in enumerate(piece.inputs) if v in states})
        names = tuple(specs[state].name for state in states)
        own_selection = Selection(graph, fixed, tuple(inputs), graph.output_names, names, tuple(on_device))
        return Part(target, own_selection, piece.inputs, piece.outputs, states, received, piece.late)

    def _received(self, index: int, piece: Piece, inputs: Sequence[RunInput]) -> dict[int, tuple[int, int]]:
        """Return `Part.received` of a piece. Record the inputs that this piece is the first to copy to its device."""
        found: dict[int, tuple[int, int]] = {}
        for position, value in enumerate(piece.inputs):
            is_local = inputs[position].stored or self._at.get(value) == piece.place
            if not is_local and isinstance(value.type, TensorType):
                first = self._first.setdefault((value, piece.place), (index, position))
                if first[0] != index:
                    found[position] = first
        return found

    def home(self, state: Value) -> Device | None:
        """Return the device that has a state; None if it is in host memory."""
        settings = self._targets[self._homes[state]].settings
        return find_device(settings.device_name)

    def readers(self, name: str) -> list[Device]:
        """Return the devices that the fed input `name` is copied to."""
        targets = {}
        for part in self.parts:
            for value, spec in zip(part.inputs, part.selection.inputs, strict=False):
                if value.node is None and spec.name == name and not spec.stored:
                    targets[part.target.name] = part.target.settings
        found = [find_device(settings.device_name) for settings in targets.values()]
        return [device for device in found if device is not None]

    def program(self, part: Part, shapes: Sequence[tuple[int, ...] | None], fed: Collection[Value]) -> DeviceProgram:
        """Return the program of a part. Raises the same errors as `compile_graph`; UnsupportedError names the groups.

        Args:
            part: The part.
            shapes: Shapes of the inputs in `Selection.open` of the part.
            fed: The stored inputs that callers feed.
        """
        selection, programs = part.selection, part.target.programs
        stored = (i for i, v in enumerate(part.inputs) if v in fed and selection.inputs[i].stored)
        key = Key(id(selection), tuple(stored), tuple(shapes))
        with self._lock:
            try:
                return programs.get(key, selection)
            except UnsupportedError as error:
                groups = ", ".join(map(repr, self._groups[self._targets.index(part.target)]))
                nodes = f"group {groups}" if groups else "nodes without a group"
                raise UnsupportedError(f"{error} (of {nodes})") from error

    def copies(self, part: Part, types: Mapping[Value, Type]) -> list[DeviceCopy]:
        """Return the copies from other devices that a part needs. types: of the values that cross between devices."""
        found = []
        for position, value in enumerate(part.inputs):
            source = self._at.get(value)
            is_elsewhere = source is not None and self._targets[source] is not part.target
            if source is not None and is_elsewhere and position not in part.received:
                found.append(DeviceCopy(self.graph.name_of(value), types[value], self._targets[source].name))
        return found


def _states(graph: Graph) -> list[tuple[int, Value]]:
    """Return the position of each state among the inputs, and its new value."""
    positions = {v: i for i, v in enumerate(graph.inputs)}
    return [(positions[state], new) for state, new in graph.updates]


def _is_static(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.is_static
