"""How a graph is divided among devices: its pieces, prepared for theirs, and the programs of each."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from graphkit.errors import UnsupportedError
from graphkit.executor.devices.device import Device
from graphkit.executor.devices.groups import GroupDevices
from graphkit.executor.devices.kernel import VersionedArray
from graphkit.executor.devices.loading import find_device
from graphkit.executor.lower.lowering import Settings
from graphkit.executor.lower.prepacking import prepack
from graphkit.executor.report.joined import Move
from graphkit.executor.run.executable import DeviceProgram
from graphkit.executor.run.keys import Key
from graphkit.executor.run.programs import Programs
from graphkit.executor.run.selection import RunInput, Selection
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType, Type
from graphkit.passes.core.declare import Step
from graphkit.passes.core.sweep import run_passes
from graphkit.passes.distribution.pieces import Piece, cut
from graphkit.passes.distribution.places import find_places


class Site(NamedTuple):
    """One of several devices: its settings, the passes that prepare a graph for it, and its programs."""

    name: str
    settings: Settings
    passes: Sequence[Step]
    programs: Programs

    @property
    def kind(self) -> str:
        return self.settings.device

    @property
    def is_host(self) -> bool:
        return self.kind == "cpu"


@dataclass(frozen=True)
class Part:
    """A piece, prepared for its device: what it computes, which values of the whole graph its first inputs, its outputs
    and its states are.

    received: inputs that an earlier part of the device has got from elsewhere, by position: that part, and the position
    there.
    """

    site: Site
    selection: Selection
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    states: tuple[Value, ...]
    received: Mapping[int, tuple[int, int]]
    late: bool


class Division:
    """The parts of a selection's graph, in their order.

    makers: by value, the part whose output it is, and which; writers: by state, the part that writes it, and which of
    its updates that is. crossing: what parts make for others. prepacked: whether values derived from parameters are
    kept, which do not follow a parameter that is fed.
    """

    def __init__(
        self,
        selection: Selection,
        devices: GroupDevices,
        sites: Sequence[Site],
        *,
        prepacked: bool,
        lock: threading.Lock,
    ):
        self.graph = graph = selection.graph
        self._sites = sites
        self._lock = lock
        places = find_places(graph, devices.groups, devices.default, devices.homes)
        for value, place in places.homes.items():
            devices.homes.setdefault(graph.name_of(value), place)
        self._homes = places.homes
        self._groups = [[g for g, at in devices.groups.items() if at == place] for place in range(len(sites))]
        self._written = {state for state, _ in graph.updates}
        pieces = cut(places, [not site.is_host for site in sites])
        # Where values are that are not everywhere: written states, and what pieces make.
        self._at = {v: places.homes[v] for v in self._written}
        self._at |= {v: piece.place for piece in pieces for v in piece.outputs if v.node is not None}
        self._first: dict[tuple[Value, int], tuple[int, int]] = {}
        self.parts = [self._part(index, piece, selection, prepacked) for index, piece in enumerate(pieces)]
        self.makers = {v: (i, at) for i, part in enumerate(self.parts) for at, v in enumerate(part.outputs)}
        self.writers = {v: (i, at) for i, part in enumerate(self.parts) for at, v in enumerate(part.states)}
        self.crossing = tuple(dict.fromkeys(v for part in self.parts for v in part.inputs if v.node is not None))
        # The whole graph, with what crosses among its outputs.
        self.probe = graph.replace(outputs=[*graph.outputs, *self.crossing])

    def _part(self, index: int, piece: Piece, selection: Selection, prepacked: bool) -> Part:
        site = self._sites[piece.place]
        graph = run_passes(piece.graph, site.passes)
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
        received = {} if site.is_host else self._received(index, piece, inputs)
        here = {i for i, v in enumerate(piece.inputs) if not site.is_host and self._at.get(v) == piece.place}
        borrowed = sorted({*here, *received} - {i for i, v in enumerate(piece.inputs) if v in states})
        names = tuple(specs[state].name for state in states)
        made = Selection(graph, fixed, tuple(inputs), graph.output_names, names, tuple(borrowed))
        return Part(site, made, piece.inputs, piece.outputs, states, received, piece.late)

    def _received(self, index: int, piece: Piece, inputs: Sequence[RunInput]) -> dict[int, tuple[int, int]]:
        """What of a piece's inputs came to the device for an earlier one; for the others this is the first."""
        found: dict[int, tuple[int, int]] = {}
        for position, value in enumerate(piece.inputs):
            stays = inputs[position].stored or self._at.get(value) == piece.place
            if not stays and isinstance(value.type, TensorType):
                first = self._first.setdefault((value, piece.place), (index, position))
                if first[0] != index:
                    found[position] = first
        return found

    def home(self, state: Value) -> Device | None:
        """The device that a state is on; None for the host."""
        settings = self._sites[self._homes[state]].settings
        return find_device(settings.device, settings.number)

    def readers(self, name: str) -> list[Device]:
        """The devices that a fed input is copied to, by its name."""
        sites = {}
        for part in self.parts:
            for value, spec in zip(part.inputs, part.selection.inputs, strict=False):
                if value.node is None and spec.name == name and not spec.stored:
                    sites[part.site.name] = part.site.settings
        found = [find_device(settings.device, settings.number) for settings in sites.values()]
        return [device for device in found if device is not None]

    def program(self, part: Part, shapes: Sequence[tuple[int, ...] | None], fed: Collection[Value]) -> DeviceProgram:
        """The program of a part for inputs of these shapes, those of `Selection.open`. Raises as `compile_graph` does;
        UnsupportedError names groups.
        """
        selection, programs = part.selection, part.site.programs
        stored = (i for i, v in enumerate(part.inputs) if v in fed and selection.inputs[i].stored)
        key = Key(id(selection), tuple(stored), tuple(shapes))
        with self._lock:
            try:
                return programs.find(key) or programs.make(key, selection)
            except UnsupportedError as error:
                groups = ", ".join(map(repr, self._groups[self._sites.index(part.site)]))
                whose = f"group {groups}" if groups else "nodes without a group"
                raise UnsupportedError(f"{error} (of {whose})") from error

    def moves(self, part: Part, types: Mapping[Value, Type]) -> list[Move]:
        """What a part gets from other devices, by the types of the values for the sizes at hand."""
        found = []
        for position, value in enumerate(part.inputs):
            source = self._at.get(value)
            away = source is not None and self._sites[source] is not part.site
            if source is not None and away and position not in part.received:
                found.append(Move(self.graph.name_of(value), types[value], self._sites[source].name))
        return found


def _states(graph: Graph) -> list[tuple[int, Value]]:
    positions = {v: i for i, v in enumerate(graph.inputs)}
    return [(positions[state], new) for state, new in graph.updates]


def _is_static(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.is_static
