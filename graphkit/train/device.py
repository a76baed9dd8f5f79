"""The device of a Trainer."""

from __future__ import annotations

from graphkit.dist.kvstore import KVStore
from graphkit.errors import UsageError
from graphkit.executor.devices.groups import AnyDevice, GroupDevices, grouped
from graphkit.executor.devices.loading import of_process
from graphkit.ir.graph import Graph
from graphkit.passes.core.sweep import groups_of


def choose_device(device: AnyDevice, graph: Graph, kvstore: KVStore | None) -> str | GroupDevices:
    """Return the device of this process, or the devices of the groups of `graph`.

    Raises UsageError for unknown groups, and for several devices with several processes. Raises UnsupportedError for
    unknown devices.
    """
    found = grouped(device, groups_of(graph))
    several = kvstore is not None and kvstore.num_workers > 1
    if isinstance(found, GroupDevices):
        if kvstore is not None and (several or kvstore.is_remote):
            raise UsageError(
                "device= (--device): with several processes, each runs on one device; leave out the devices of groups"
            )
        return found
    return of_process(found, kvstore.local_rank) if kvstore is not None and several else found
