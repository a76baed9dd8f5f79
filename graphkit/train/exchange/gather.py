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
    """Collective: return the arrays of each rank, by rank. Names, types and shapes may differ."""
    mine = pack_named(arrays)
    sizes = np.zeros(store.num_workers, np.int64)
    sizes[store.rank] = len(mine)
    sizes = store.pushpull("gathered bytes", sizes)
    found = []
    for rank, size in enumerate(sizes):
        # In a broadcast, every rank passes an array of the same size.
        part = mine if rank == store.rank else np.zeros(size, np.uint8)
        found.append(unpack_named(store.broadcast("gathered", part, root=rank)))
    return found


def merged_values(store: KVStore, metrics: Sequence[Metric]) -> dict[str, float]:
    """Collective: return the value of each metric over the data of all ranks, by name.

    A metric without `state`, `restore` and `merge` keeps its own value in each rank, and its name contains the rank.

    Raises UsageError on all ranks if their metrics differ in name or order.
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
    return metric.name if _is_mergeable(metric) else f"{metric.name} of rank {rank}"


def _is_mergeable(metric: Metric) -> bool:
    return all(hasattr(metric, call) for call in ("state", "restore", "merge"))


def _check_alike(names: Sequence[Sequence[str]]) -> None:
    other = next((rank for rank, given in enumerate(names) if given != names[0]), None)
    if other is not None:
        first, second = (", ".join(given) or "none" for given in (names[0], names[other]))
        raise UsageError(
            f"all processes must pass the same metrics in the same order: rank 0 has {first}; rank {other} has {second}"
        )
