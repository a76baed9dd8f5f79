"""The settings `groups`, `micro_batches` and `batch_axes` of a Trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.dist.kvstore import KVStore
from graphkit.errors import InputError, UsageError
from graphkit.ir.graph import Graph
from graphkit.train.programs.partition import NotAPipeline, Partition, partition


class Division:
    """The division of a model and its batches among ranks.

    Args:
        axes: The axis of each input and target that counts samples, 0 by default. With None, every micro-batch gets the
            whole array.
    """

    def __init__(
        self,
        groups: Mapping[str, int],
        micro_batches: int,
        axes: Mapping[str, int | None],
        store: KVStore,
        inputs: Sequence[str],
    ):
        self.groups, self.micro_batches, self.axes, self.store = dict(groups), micro_batches, dict(axes), store
        self.inputs = tuple(inputs)

    def stages(self, graph: Graph, like: Partition | None = None) -> Partition:
        return partition(graph, self.groups, self.store.num_workers, like)

    def is_pipeline(self, graph: Graph) -> bool:
        """Whether the dependencies between ranks have no cycle.

        Raises UsageError if there is a cycle and `micro_batches` is above 1.
        """
        try:
            self.stages(graph)
        except NotAPipeline as error:
            if self.micro_batches > 1:
                raise UsageError(
                    f"{error}; micro_batches={self.micro_batches} (--micro-batches) needs a pipeline"
                ) from None
            return False
        return True

    def follow(self, data: Any) -> None:
        """Use the batch axes that a data set declares, unless the user has set them."""
        if axes := getattr(data, "axes", {}):
            names = self.inputs if len(data.names) == len(self.inputs) == 1 else data.names
            self.axes = {
                own: axes[name] for own, name in zip(names, data.names, strict=True) if name in axes
            } | self.axes

    def sliced(self, feeds: Mapping[str, Any], parts: Sequence[slice]) -> list[dict[str, Any]]:
        return [{name: self.slice(name, array, part) for name, array in feeds.items()} for part in parts]

    def slice(self, name: str, array: Any, part: slice) -> Any:
        axis = self.axes.get(name, 0)
        if axis is None or not np.ndim(array):
            return array
        return np.asarray(array)[(slice(None),) * axis + (part,)]

    def samples(self, feeds: Mapping[str, Any], size: int | None) -> int:
        """Return the number of samples. Raises InputError if it is 0, or differs between arrays."""
        found = {
            n: np.shape(a)[axis] for n, a in feeds.items() if np.ndim(a) and (axis := self.axes.get(n, 0)) is not None
        }
        if len(set(found.values())) > 1:
            counts = ", ".join(f"{n} has {count}" for n, count in found.items())
            raise InputError(
                f"arrays of one batch have different numbers of samples: {counts}; Trainer(batch_axes={{NAME: AXIS}}) "
                "sets the axis that counts them"
            )
        count = next(iter(found.values()), 0) if size is None else size
        if not count:
            raise InputError("a pipeline needs batches of at least one sample")
        return count


def division_of(
    groups: Mapping[str, int] | None,
    micro_batches: int,
    axes: Mapping[str, int | None] | None,
    store: KVStore | None,
    inputs: Sequence[str],
    conflicting: Mapping[str, bool],
) -> Division | None:
    """Return the Division of these settings of a Trainer, or None without groups.

    Raises UsageError for micro-batches without groups, a store that is not a `dist_sync` of several ranks, or a
    conflicting setting.

    Args:
        groups, micro_batches, axes, store, inputs: See `Division`.
        conflicting: For each setting that conflicts with groups: whether the user has set it.
    """
    if not groups:
        if micro_batches != 1:
            raise UsageError(
                "micro_batches= (--micro-batches) only works with groups= (--place), which divide the model into a "
                "pipeline. To average gradients over several batches without one, use accumulate= (--accumulate)"
            )
        return None
    if store is None or store.num_workers == 1:
        raise UsageError(
            "groups= needs several processes and a kvstore of type 'dist_sync'. On the command line, --place needs "
            "--processes N --kvstore dist_sync"
        )
    if store.is_remote:
        raise UsageError(f"Trainer: groups= and --place need the kvstore 'dist_sync', not {store.type!r}")
    if given := [name for name, is_set in conflicting.items() if is_set]:
        raise UsageError(f"Trainer: groups= and --place cannot be combined with {', '.join(given)}")
    return Division(groups, micro_batches, axes or {}, store, inputs)
