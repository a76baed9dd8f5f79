"""How tests run a graph over ranks, and in one process."""

from __future__ import annotations

import numpy as np

from graphkit.dist.channels import Channels
from graphkit.executor.run.session import Executor
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.sweep import run_passes
from graphkit.passes.distribution.distribute import DONE, distribute, place
from graphkit.passes.distribution.levels import TOKEN_NAME


def parts_of(graph, groups, ranks, wanted=None):
    placement = place(run_passes(graph, CLEANUP), groups)
    return distribute(placement, wanted or [range(ranks)] * len(graph.outputs), ranks)


def alone(net, feeds):
    """The outputs of one process."""
    executor = Executor(net.graph, net.params, threads=1, seed=3)
    return executor.run(feeds)


def run_part(store, net, groups, batches, window=32, wanted=None, **options):
    """What this rank has of the outputs for each batch, and its channels."""
    part = parts_of(net.graph, groups, store.num_workers, wanted)[store.rank]
    channels = Channels(store.messages, window)
    executor = Executor(part.graph, net.params, threads=1, seed=3, channels=channels, **options)
    found = []
    for number, feeds in enumerate(batches):
        results = executor.run({**feeds, TOKEN_NAME: np.int64(number)})
        channels.finish()
        results.pop(DONE)
        found.append(results)
    return found, channels
