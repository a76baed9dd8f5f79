"""Build the programs of a graph whose groups of nodes run on several devices."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Any

from graphkit.errors import UsageError
from graphkit.executor.devices.device import Device
from graphkit.executor.devices.groups import GroupDevices
from graphkit.executor.lower.lowering import Settings
from graphkit.executor.memory.pools import Pools
from graphkit.executor.run.base_program import Key
from graphkit.executor.run.device_builder import device_cache
from graphkit.executor.run.device_passes import device_passes
from graphkit.executor.run.divided.division import Division, Target
from graphkit.executor.run.divided.program import DividedProgram
from graphkit.executor.run.program_cache import ProgramCache
from graphkit.executor.run.selection import Selection
from graphkit.passes.core.bind import bind


def divided_cache(
    device: GroupDevices, settings: Sequence[Settings], pools: Pools, precision: str, inputs: Collection[str]
) -> ProgramCache[DividedProgram]:
    """Return the cache of the programs of an executor on several devices.

    Args:
        device: The devices of groups of nodes.
        settings: For each device.
        pools: Memory that all programs share.
        precision: Precision of matrix products.
        inputs: Names of the inputs of the executor's graph.

    Raises:
        UsageError: Programs exchange values with other processes.
    """
    if settings[0].collectives is not None or settings[0].channels is not None:
        raise UsageError(
            "device= (--device): with several processes, each runs on one device; leave out the devices of groups"
        )
    targets = []
    for chosen in settings:
        own = device_cache(chosen, Pools(pools.stamp, pools.arenas), inputs)
        targets.append(Target(chosen, device_passes(chosen, precision), own))
    return ProgramCache(DividedBuilder(device, targets), ", ".join(target.name for target in targets))


class DividedBuilder:
    """Builds programs that run parts of a graph on several devices. The targets cache the programs of parts."""

    def __init__(self, devices: GroupDevices, targets: Sequence[Target]):
        self._devices, self._targets = devices, targets
        self._divisions: dict[tuple[int, bool], Division] = {}
        # Protects the caches of parts' programs: runs in several threads use them.
        self._lock = threading.Lock()

    def readers(self, name: str) -> Sequence[Device]:
        divisions = list(self._divisions.values())  # a copy, because other threads may add to it
        return list(dict.fromkeys(device for division in divisions for device in division.readers(name)))

    def build(self, key: Key, selection: Selection, cache: ProgramCache[Any], *, again: bool) -> DividedProgram:
        has_fed_parameters = bool(key.fed)
        division_key = key.selection, has_fed_parameters
        if division_key not in self._divisions:
            prepacked = self._targets[0].settings.optimize and not has_fed_parameters
            self._divisions[division_key] = Division(
                selection, self._devices, self._targets, prepacked=prepacked, lock=self._lock
            )
        division = self._divisions[division_key]
        bound = bind(division.probe, selection.shapes(key))
        fed = frozenset(selection.inputs[position].value for position in key.fed)
        return DividedProgram(division, bound, fed)
