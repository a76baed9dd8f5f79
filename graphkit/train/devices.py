"""The device of a process, or one for each group of nodes."""

from __future__ import annotations

from graphkit.dist.kvstore import KVStore
from graphkit.errors import UsageError
from graphkit.executor.devices.groups import AnyDevice, GroupDevices, grouped
from graphkit.executor.devices.loading import of_process
from graphkit.ir.graph import Graph
from graphkit.passes.distribution.places import groups_of


def chosen(device: AnyDevice, graph: Graph, kvstore: KVStore | None) -> str | GroupDevices:
    """The device of this process, or those of the groups of `graph`, the whole model with its loss.

    Raises UsageError as `grouped` does, and for several devices where there are other processes.
    """
    found = grouped(device, groups_of(graph))
    several = kvstore is not None and kvstore.num_workers > 1
    if isinstance(found, GroupDevices):
        if kvstore is not None and (several or kvstore.is_remote):
            raise UsageError("device: with several processes, each runs on one device, not on one for each group")
        return found
    return of_process(found, kvstore.local_rank) if kvstore is not None and several else found
