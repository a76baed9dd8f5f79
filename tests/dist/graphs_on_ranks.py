"""How tests run a graph over ranks, and in one process."""

from __future__ import annotations

import numpy as np

import graphkit as gk
from graphkit.dist.wire.messages import Channels
from graphkit.executor.run.session import Executor
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.sweep import run_passes
from graphkit.passes.distribution.distribute import distribute, place

NORMAL = {"type": "normal", "std": 0.5}


def group(name):
    return gk.attr_scope(ctx_group=name)


def parts_of(graph, groups, ranks, wanted=None):
    placement = place(run_passes(graph, CLEANUP), groups)
    return distribute(placement, wanted or [range(ranks)] * len(graph.outputs), ranks)


def alone(net, batches):
    """The outputs of one process for each batch."""
    executor = Executor(net.graph, net.params, threads=1, seed=3)
    return [executor.run(feeds) for feeds in batches]


def run_part(store, net, groups, batches, window=32, wanted=None, around=None, **options):
    """Run this rank's part for each batch. Return its outputs and its channels, which `around` may wrap."""
    part = parts_of(net.graph, groups, store.num_workers, wanted)[store.rank]
    channels = Channels(store.transport.messages, window)
    carrier = channels if around is None else around(store.rank, channels)
    executor = Executor(part.graph, net.params, threads=1, seed=3, channels=carrier, **options)
    found = []
    for number, feeds in enumerate(batches):
        results = executor.run({**feeds, part.start: np.int64(number)})
        channels.finish()
        results.pop(part.done)
        found.append(results)
    return found, channels


def assert_alike(on_ranks, net, groups, batches, bound=0.0, ranks=2, **how):
    """Check that every rank has the results of one process, bit by bit if `bound` is 0. Return the ranks' channels."""
    expected = alone(net, batches)
    made = []
    for found, channels in on_ranks(lambda store: run_part(store, net, groups, batches, **how), ranks):
        for results, whole in zip(found, expected, strict=True):
            assert results.keys() == whole.keys()
            for name, array in whole.items():
                if bound:
                    np.testing.assert_allclose(results[name], array, rtol=bound, atol=bound, err_msg=name)
                else:
                    np.testing.assert_array_equal(results[name], array, err_msg=name)
        made.append(channels)
    return made


def with_gradients(net):
    """The outputs of a model, and the gradients of "loss" by all parameters, and by x where it is a float."""
    wrt = [*net.params, *(["x"] if net.input_types["x"].dtype.is_float else [])]
    return gk.grad(net, of="loss", wrt=wrt, with_outputs=True)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)
