"""The number of calls of Python functions from a small file to its first result, for each node."""

from __future__ import annotations

import ast
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from new_processes import output_of
from python_calls import count_calls, require_few_calls

import graphkit as gk
from graphkit.ops import F

# The most calls for each further node, less than one more than are needed: a pass that is called once more for each
# node fails this test.
MOST_CALLS = {"load": 89.5, "compile": 45.2, "run": 87.9}
# The counts depend on the number of layers linearly. These are three networks that count as small for the passes.
LAYERS = (4, 8, 12)
X = np.ones([2, 4], np.float32)


def save_chain(path: Path, layers: int) -> None:
    """Save layers with activations and residuals, with four nodes each."""
    h = gk.input("x", ["N", 4])
    for i in range(layers):
        h = F.layer_normalization(F.add(h, F.tanh(gk.nn.linear(h, 4, name=f"fc{i}"))), np.ones(4, np.float32))[0]
    gk.Model({"y": h}, seed=1).save(path)


def calls_of_file(path: Path) -> tuple[int, dict[str, int]]:
    """Return the number of nodes in a file, and the calls of each step to its first result."""
    counts: dict[str, int] = {}
    counts["load"], net = count_calls(lambda: gk.load(path))
    counts["compile"], exe = count_calls(lambda: net.compile(threads=1))
    counts["run"], _ = count_calls(lambda: exe.run({"x": X}))
    return len(net.graph.nodes), counts


def print_calls() -> None:
    """Print a list of what `calls_of_file` returns for each number of layers."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{layers}.onnx" for layers in LAYERS]
        for path, layers in zip(paths, LAYERS, strict=True):
            save_chain(path, layers)
        calls_of_file(paths[0])  # imports
        sys.stdout.write(repr([calls_of_file(path) for path in paths]))


@pytest.mark.parametrize("step", MOST_CALLS)
def test_first_result_takes_few_calls_for_each_node(measured: list[tuple[int, dict[str, int]]], step: str) -> None:
    sizes, counts = zip(*((size, of_steps[step]) for size, of_steps in measured), strict=True)
    require_few_calls(sizes, counts, MOST_CALLS[step])


@pytest.fixture(scope="module")
def measured() -> list[tuple[int, dict[str, int]]]:
    # In a new process, because other tests fill tables of shared operators.
    found: list[tuple[int, dict[str, int]]] = ast.literal_eval(output_of(__file__))
    return found


if __name__ == "__main__":
    print_calls()
