"""All-gather named arrays, and merge metrics of all ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from graphkit.dist.kvstore import KVStore
from graphkit.dist.wire.packing import pack_named, unpack_named
from graphkit.errors import UsageError
from graphkit.train.metrics import Metric, value_of


def gather(store: KVStore, arrays: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Return the arrays of each rank, by rank. Names, types and shapes may differ. Collective."""
    mine = pack_named(arrays)
    sizes = np.zeros(store.num_workers, np.int64)
    sizes[store.rank] = len(mine)
    sizes = store.pushpull("gathered bytes", sizes)
    found = []
    for rank, size in enumerate(sizes):
        # In a broadcast, every rank passes an array of the same size; only the values of the root are used.
        part = mine if rank == store.rank else np.zeros(size, np.uint8)
        found.append(unpack_named(store.broadcast("gathered", part, root=rank)))
    return found


def merged_values(store: KVStore, metrics: Sequence[Metric]) -> dict[str, float]:
    """Return the value of each metric over the data of all processes, by name. Collective.

    The states of metrics are merged, so the values equal those of one process that saw all data. A metric without
    `state`, `restore` and `merge` keeps its own value in each process; its name then contains the rank.

    Raises UsageError in all processes if their metrics that can be merged differ in name or order.
    """
    mergeable = [m for m in metrics if _is_mergeable(m)]
    states = {f"{i}/{key}": array for i, m in enumerate(mergeable) for key, array in m.state().items()}
    names = np.frombuffer(json.dumps([m.name for m in mergeable]).encode(), np.uint8)
    parts = gather(store, {**states, "names": names})
    _check_alike([json.loads(part.pop("names").tobytes()) for part in parts])
    for i, metric in enumerate(mergeable):
        each = [{k.partition("/")[2]: a for k, a in part.items() if k.startswith(f"{i}/")} for part in parts]
        metric.restore(each[0])
        for state in each[1:]:
            metric.merge(state)
    return {reported_name(m, store.rank): value_of(m) for m in metrics}


def reported_name(metric: Metric, rank: int) -> str:
    """Return the name of a metric in the results of several ranks. If it cannot be merged, the name contains `rank`."""
    return metric.name if _is_mergeable(metric) else f"{metric.name} of rank {rank}"


def _is_mergeable(metric: Metric) -> bool:
    return all(hasattr(metric, call) for call in ("state", "restore", "merge"))


def _check_alike(names: Sequence[Sequence[str]]) -> None:
    """Raise UsageError unless all ranks have metrics of the same names, in the same order."""
    other = next((rank for rank, given in enumerate(names) if given != names[0]), None)
    if other is not None:
        first, second = (", ".join(given) or "none" for given in (names[0], names[other]))
        raise UsageError(
            f"all processes must pass the same metrics in the same order: rank 0 has {first}; rank {other} has {second}"
        )
