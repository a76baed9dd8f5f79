"""The number of calls of Python functions that setting up training takes for each node."""

from __future__ import annotations

import ast
import sys

import numpy as np
import pytest
from new_processes import output_of
from python_calls import count_calls, require_few_calls

import graphkit as gk
from graphkit.ops import F

# The most calls for each further node. The chain needs 304.
MOST_CALLS = 320


def chain(layers: int) -> gk.Model:
    """Layers with residuals: three nodes each."""
    h = gk.input("x", ["N", 4])
    for i in range(layers):
        h = F.add(h, F.mul(gk.nn.linear(F.tanh(h), 4, name=f"fc{i}"), np.float32(0.01)))
    return gk.Model({"y": h})


def calls(net: gk.Model) -> int:
    """Return the number of calls of Python functions until the first step is done."""
    batch = np.ones([2, 4], np.float32)
    optimizer = gk.optim.SGD(1e-6, momentum=0.9)
    found, _ = count_calls(lambda: gk.Trainer(net, "mse", optimizer, threads=1, seed=1).step({"x": batch}, batch))
    return found


def calls_of_chains() -> list[tuple[int, int]]:
    """Return (number of nodes, number of calls) of chains of three lengths."""
    nets = [chain(layers) for layers in (120, 180, 240)]
    calls(nets[0])  # imports
    return [(len(net.graph.nodes), calls(net)) for net in nets]


@pytest.mark.full
def test_setting_up_takes_few_calls_for_each_node() -> None:
    # In a new process, because tables of shared operators are bounded: other tests may have filled them.
    sizes, counts = zip(*ast.literal_eval(output_of(__file__)), strict=True)
    require_few_calls(sizes, counts, MOST_CALLS)


if __name__ == "__main__":
    sys.stdout.write(repr(calls_of_chains()))
