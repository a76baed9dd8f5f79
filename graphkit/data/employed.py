"""Start worker processes for data sets, and end them after use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from graphkit.data.lazy import LazyDataset
from graphkit.data.workers.pool import Workers
from graphkit.errors import UsageError


@contextlib.contextmanager
def employed(workers: int | Workers | None, *data: Any) -> Iterator[list[Any]]:
    """Context manager that returns the data sets; lazy ones share `workers`. Processes started here end with the block.

    With None, each data set keeps its own workers. Raises UsageError for workers if no data set is lazy.
    """
    if workers is None:
        yield list(data)
        return
    pool = workers if isinstance(workers, Workers) else Workers(workers)
    lazy = [isinstance(found, LazyDataset) for found in data]
    if pool.count and not any(lazy):
        names = " and ".join(found.name for found in data if found is not None)
        raise UsageError(
            f"workers={pool.count} (--workers): {names} cannot use workers, because no sample is loaded from a file or "
            "by __getitem__ of an object; leave workers out"
        )
    with contextlib.nullcontext() if pool is workers else pool:
        pool.start()
        ours: dict[int, Any] = {}
        for found, is_lazy in zip(data, lazy, strict=True):
            if id(found) not in ours:
                ours[id(found)] = found.configured(workers=pool) if is_lazy else found
        yield [ours[id(found)] for found in data]
