"""Settings of a pipeline: which rank has which groups, and how batches are divided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.dist.kvstore import KVStore
from graphkit.errors import InputError, UsageError
from graphkit.ir.graph import Graph
from graphkit.train.partition import NotAPipeline, Partition, partition


class Pipeline:
    """Which rank has what of a model, and what they send each other.

    groups: the rank of each group. output: the one that metrics look at. axes: the axis of each input and target that
    counts samples, 0 by default; None: every micro-batch gets all of it.
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

    def parted(self, graph: Graph, like: Partition | None = None) -> Partition:
        return partition(graph, self.groups, self.store.num_workers, like)

    def is_pipeline(self, graph: Graph) -> bool:
        """Whether the ranks need values of earlier ones alone. Raises UsageError where they do not, and a pipeline is
        asked for.
        """
        try:
            self.parted(graph)
        except NotAPipeline as error:
            if self.micro_batches > 1:
                raise UsageError(
                    f"{error}; micro_batches={self.micro_batches} (--micro-batches) needs a pipeline"
                ) from None
            return False
        return True

    def follow(self, data: Any) -> None:
        """Take over the axes that a data set knows of its inputs."""
        if axes := getattr(data, "axes", {}):
            names = self.inputs if len(data.names) == len(self.inputs) == 1 else data.names
            self.axes = {
                own: axes[name] for own, name in zip(names, data.names, strict=True) if name in axes
            } | self.axes

    def sliced(self, feeds: Mapping[str, Any], parts: Sequence[slice]) -> list[dict[str, Any]]:
        """The feeds of each micro-batch."""
        return [{name: self.slice(name, array, part) for name, array in feeds.items()} for part in parts]

    def slice(self, name: str, array: Any, part: slice) -> Any:
        axis = self.axes.get(name, 0)
        if axis is None or not np.ndim(array):
            return array
        return np.asarray(array)[(slice(None),) * axis + (part,)]

    def samples(self, feeds: Mapping[str, Any], size: int | None) -> int:
        """How many samples the feeds have. Raises InputError where they differ in that."""
        found = {
            n: np.shape(a)[axis] for n, a in feeds.items() if np.ndim(a) and (axis := self.axes.get(n, 0)) is not None
        }
        if len(set(found.values())) > 1:
            told = ", ".join(f"{n} has {count}" for n, count in found.items())
            raise InputError(
                f"arrays of one batch have different numbers of samples: {told}; batch_axes= sets the axis that "
                "counts them"
            )
        count = next(iter(found.values()), 0) if size is None else size
        if not count:
            raise InputError("a pipeline needs batches of at least one sample")
        return count


def create(
    groups: Mapping[str, int] | None,
    micro_batches: int,
    axes: Mapping[str, int | None] | None,
    store: KVStore | None,
    inputs: Sequence[str],
    refused: Mapping[str, bool],
) -> Pipeline | None:
    """The pipeline that a Trainer is asked for; None without groups. refused: options that do not go with one, and
    whether they are given. Raises UsageError for these, and where there are no ranks for it.
    """
    if not groups:
        if micro_batches != 1:
            raise UsageError(
                "Trainer: micro_batches= needs groups=, which make a pipeline; on the command line: add --place to "
                "--micro-batches. Without a pipeline, use accumulate= or --accumulate"
            )
        return None
    if store is None or store.num_workers == 1:
        raise UsageError(
            'Trainer: groups= needs several processes and kvstore="dist_sync"; on the command line: add --processes N '
            "--kvstore dist_sync to --place"
        )
    if store.is_remote:
        raise UsageError(f"Trainer: groups= and --place need the kvstore 'dist_sync', not {store.type!r}")
    if given := [name for name, there in refused.items() if there]:
        raise UsageError(f"Trainer: groups= and --place cannot be combined with {', '.join(given)}")
    return Pipeline(groups, micro_batches, axes or {}, store, inputs)
