"""The number of calls of Python functions that setting up training takes for each node."""

from __future__ import annotations

import ast
import subprocess
import sys

import numpy as np
import pytest

import graphkit as gk
from graphkit.ops import F

# The most calls for each further node. The chain needs 370, and 60 more if the checks of passes are on.
MOST_CALLS = 500


def chain(layers: int) -> gk.Model:
    """Layers with residuals: three nodes each."""
    h = gk.input("x", ["N", 4])
    for i in range(layers):
        h = F.add(h, F.mul(gk.nn.linear(F.tanh(h), 4, name=f"fc{i}"), np.float32(0.01)))
    return gk.Model({"y": h})


def calls(net: gk.Model) -> int:
    """Return the number of calls of Python functions until the first step is done."""
    found = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal found
        found += event == "call"

    batch = np.ones([2, 4], np.float32)
    sys.setprofile(profile)
    try:
        gk.Trainer(net, "mse", gk.optim.SGD(1e-6, momentum=0.9), threads=1, seed=1).step({"x": batch}, batch)
    finally:
        sys.setprofile(None)
    return found


def calls_of_chains() -> list[tuple[int, int]]:
    """Return (number of nodes, number of calls) of chains of three lengths."""
    nets = [chain(layers) for layers in (120, 180, 240)]
    calls(nets[0])  # imports
    return [(len(net.graph.nodes), calls(net)) for net in nets]


@pytest.mark.full
def test_setting_up_takes_few_calls_for_each_node() -> None:
    # In a new process, because tables of shared operators are bounded: other tests may have filled them.
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=300, check=True)
    sizes, counts = zip(*ast.literal_eval(done.stdout), strict=True)
    first, second = ((counts[i + 1] - counts[i]) / (sizes[i + 1] - sizes[i]) for i in range(2))
    assert first < MOST_CALLS
    # The number of calls is linear in the nodes.
    assert second < 1.05 * first


if __name__ == "__main__":
    sys.stdout.write(repr(calls_of_chains()))
