"""Arrays of every process, brought to all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from graphkit.dist.kvstore import KVStore
from graphkit.ir.types import dtype_of
from graphkit.ir.weights import restored, stored
from graphkit.train.metrics import Metric


def gather(store: KVStore, arrays: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """What each rank gave, by rank; names, types and shapes may differ. Every process has to call it."""
    mine = _packed(arrays)
    sizes = np.zeros(store.num_workers, np.int64)
    sizes[store.rank] = len(mine)
    sizes = store.pushpull("gathered bytes", sizes)
    found = []
    for rank, size in enumerate(sizes):
        # All pass an array of one size, of which the root's counts.
        part = mine if rank == store.rank else np.zeros(size, np.uint8)
        found.append(_unpacked(store.broadcast("gathered", part, root=rank)))
    return found


def _packed(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """uint8 vector: the length of a header, the header, the bytes of all arrays."""
    types = {name: dtype_of(array.dtype) for name, array in arrays.items()}
    header = json.dumps([[name, types[name].value, list(array.shape)] for name, array in arrays.items()]).encode()
    data = [bytes(stored(array, types[name]).data) for name, array in arrays.items()]
    return np.frombuffer(b"".join([len(header).to_bytes(8, "little"), header, *data]), np.uint8)


def _unpacked(packed: np.ndarray) -> dict[str, np.ndarray]:
    raw = packed.tobytes()
    at = 8 + int.from_bytes(raw[:8], "little")
    arrays = {}
    for name, type_name, shape in json.loads(raw[8:at]):
        dtype = dtype_of(type_name)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        arrays[name] = restored(raw[at : at + size], dtype, tuple(shape))
        at += size
    return arrays


def reduced(store: KVStore, metrics: Sequence[Metric]) -> dict[str, float]:
    """The value of each metric over what all processes have seen; every process has to call it.

    Sums, counts and scores are added up, so that the values are those of one process which saw all of it. A metric
    without `state`, `restore` and `merge` cannot be: it stays that of each process, and the name says so.
    """
    mergeable = [m for m in metrics if all(hasattr(m, call) for call in ("state", "restore", "merge"))]
    states = {f"{i}/{key}": array for i, m in enumerate(mergeable) for key, array in m.state().items()}
    parts = gather(store, states)
    for i, metric in enumerate(mergeable):
        each = [{k.partition("/")[2]: a for k, a in part.items() if k.startswith(f"{i}/")} for part in parts]
        metric.restore(each[0])
        for state in each[1:]:
            metric.merge(state)
    return {m.name if m in mergeable else f"{m.name} of rank {store.rank}": m.value for m in metrics}
