"""The programs of an executor of several devices, by what they depend on."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Protocol

from graphkit.errors import UsageError
from graphkit.executor.devices.device import Device
from graphkit.executor.devices.groups import GroupDevices
from graphkit.executor.lower.lowering import Settings
from graphkit.executor.memory.pools import Pools
from graphkit.executor.run.device_passes import device_passes
from graphkit.executor.run.divided.division import Division, Site
from graphkit.executor.run.divided.program import DividedProgram
from graphkit.executor.run.executable import Executable
from graphkit.executor.run.keys import Key
from graphkit.executor.run.programs import Programs
from graphkit.executor.run.selection import Selection
from graphkit.passes.core.bind import bind
from graphkit.text import short_repr

# Programs that are kept: they hold types, and find those of their parts among their devices' own.
_KEPT = 64


class ProgramCache(Protocol):
    """The programs of an executor, by their keys. For one thread at a time."""

    def __len__(self) -> int: ...

    def readers(self, name: str) -> Sequence[Device]:
        """The devices with arrays of their own that read an input."""

    def find(self, key: Key) -> Executable | None:
        """The program, if it is there and to be used; it is the last used one then."""

    def make(self, key: Key, selection: Selection) -> Executable:
        """The program for inputs of these shapes. Raises as `compile_graph`."""


def make_programs(
    device: str | GroupDevices, settings: Sequence[Settings], pools: Pools, precision: str
) -> ProgramCache:
    """The programs of an executor on one device or on several, each with its settings. Raises UsageError for several
    where values go between processes.
    """
    if isinstance(device, str):
        return Programs(settings[0], pools)
    if settings[0].collectives is not None or settings[0].channels is not None:
        raise UsageError("device: with several processes, each runs on one device, not on one for each group")
    sites = []
    for name, chosen in zip(device.devices, settings, strict=True):
        own = Pools(pools.stamp, pools.arenas)
        sites.append(Site(str(name), chosen, device_passes(chosen, precision), Programs(chosen, own)))
    return DividedPrograms(device, sites)


class DividedPrograms:
    """Programs of a divided graph by their keys, those used last: a ProgramCache."""

    def __init__(self, devices: GroupDevices, sites: Sequence[Site]):
        self._devices, self._sites = devices, sites
        self._divisions: dict[tuple[int, bool], Division] = {}
        # Of what parts have for programs, which runs look for in several threads.
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, DividedProgram] = OrderedDict()

    def readers(self, name: str) -> Sequence[Device]:
        """The devices with arrays of their own that read an input, as far as programs were made."""
        divisions = list(self._divisions.values())  # programs are made in other threads
        return list(dict.fromkeys(device for division in divisions for device in division.readers(name)))

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, key: Key) -> DividedProgram | None:
        """The program, if it is there; it is the last used one then."""
        program = self._kept.get(key)
        if program is not None:
            self._kept.move_to_end(key)
        return program

    def make(self, key: Key, selection: Selection) -> DividedProgram:
        """The program for inputs of these shapes. Raises as `compile_graph`."""
        which = key.selection, bool(key.fed)
        if which not in self._divisions:
            prepacked = self._sites[0].settings.optimize and not key.fed
            self._divisions[which] = Division(
                selection, self._devices, self._sites, prepacked=prepacked, lock=self._lock
            )
        division = self._divisions[which]
        bound = bind(division.probe, selection.shapes(key))
        fed = frozenset(selection.inputs[position].value for position in key.fed)
        program = self._kept[key] = DividedProgram(division, bound, fed)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return program

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield f"of {', '.join(map(str, self._devices.devices))}"
        yield f"{len(self._kept)} kept"
