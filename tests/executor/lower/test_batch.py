"""Graphs with a batch of independent examples, and the number of examples that are computed at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import InputError
from graphkit.executor.lower import batch as batches
from graphkit.executor.lower.batch import Batch, batch_of
from graphkit.ir.graph import Graph, Value
from graphkit.ops import F

IMAGE = ["N", 8, 16, 16]


def constant(*shape: int, dtype: str = "float32") -> Value:
    return F.constant(value=np.ones(shape, dtype))


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def found(body: Callable[..., Any], *shapes: list[Any], fixed: int = 0) -> Batch | None:
    """Return the batch of a graph with inputs of these shapes. The last `fixed` inputs are not examples."""
    inputs = [gk.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    outputs = body(*inputs)
    graph = Graph(inputs, outputs if isinstance(outputs, (list, tuple)) else [outputs])
    return batch_of(graph, range(len(inputs) - fixed, len(inputs)))


APART: dict[str, tuple[Callable[..., Any], list[list[Any]]]] = {
    "convolutions": (lambda x: F.relu(F.conv(x, constant(4, 8, 3, 3))), [IMAGE]),
    "a classifier": (lambda x: F.gemm(F.flatten(x), constant(2048, 10), constant(10)), [IMAGE]),
    "a mean": (lambda x: F.reduce_mean(x, ints(2, 3)), [IMAGE]),
    "two inputs": (lambda x, y: F.concat(x, y, axis=1), [IMAGE, IMAGE]),
    "a sequence": (lambda x: F.softmax(F.mat_mul(x, F.transpose(x, perm=(0, 2, 1)))), [["N", "T", 8]]),
    "a size of its own": (
        lambda x: F.reshape(x, F.concat(F.slice(F.shape(x), ints(0), ints(1)), ints(-1), axis=0)),
        [IMAGE],
    ),
    "an embedding": (lambda i: F.gather(constant(9, 4), F.cast(i, to="int64")), [["N", "T"]]),
    "two outputs": (lambda x: [F.exp(x), F.neg(x)], [IMAGE]),
    "a slice of channels": (lambda x: F.slice(x, ints(0, 1), ints(1 << 40, 5), ints(0, 1)), [IMAGE]),
}

TOGETHER: dict[str, tuple[Callable[..., Any], list[list[Any]]]] = {
    "a mean over the batch": (lambda x: F.sub(x, F.reduce_mean(x, ints(0))), [IMAGE]),
    "a mean of all": (lambda x: F.reduce_mean(x), [IMAGE]),
    "a softmax over it": (lambda x: F.softmax(x, axis=0), [IMAGE]),
    "a transpose": (lambda x: F.transpose(x, perm=(1, 0, 2, 3)), [IMAGE]),
    "a product of it with itself": (lambda x: F.mat_mul(x, F.transpose(x)), [["N", 4]]),
    "a running sum": (lambda x: F.cum_sum(x, np.array(0, np.int64)), [IMAGE]),
    "its size": (lambda x: [F.exp(x), F.shape(x)], [IMAGE]),
    "divided by its size": (
        lambda x: F.div(x, F.cast(F.gather(F.shape(x), np.array(0, np.int64)), to="float32")),
        [IMAGE],
    ),
    "backwards": (lambda x: F.slice(x, ints(-1), ints(-(1 << 60)), ints(0), ints(-1)), [IMAGE]),
    "all but one": (lambda x: F.slice(x, ints(1), ints(1 << 40), ints(0)), [IMAGE]),
    "its first two axes as one": (lambda x: F.reshape(x, ints(-1, 16, 16)), [IMAGE]),
    "examples at another axis": (lambda x, y: F.add(x, y), [["N", 4, "N"], ["N", 4, "N"]]),
    "a second size": (lambda x, y: F.concat(x, y, axis=1), [IMAGE, ["M", 8, 16, 16]]),
    "a known size": (F.exp, [[4, 8, 16, 16]]),
    "one that is broadcast": (lambda x, y: F.add(x, y), [["N", "M"], ["M"]]),
    "random numbers": (lambda x: F.dropout(x, np.array(0.5, np.float32), np.array(True)), [IMAGE]),
    "a constant": (lambda x: [F.exp(x), constant(3)], [IMAGE]),
}


@in_one_item()
@pytest.mark.parametrize("name", APART)
def test_examples_that_stay_apart(name: str) -> None:
    body, shapes = APART[name]
    batch = found(body, *shapes)
    assert batch is not None
    assert batch.symbol == "N"
    assert batch.inputs == tuple(range(len(shapes)))


@in_one_item()
@pytest.mark.parametrize("name", TOGETHER)
def test_examples_that_do_not(name: str) -> None:
    body, shapes = TOGETHER[name]
    assert found(body, *shapes) is None


def test_parameters_are_no_examples() -> None:
    batch = found(lambda x, w: F.mat_mul(x, w), ["N", 4], [4, 5], fixed=1)
    assert batch is not None
    assert batch.inputs == (0,)
    assert found(lambda x, w: F.mat_mul(x, w), ["N", 4], [4, 5]) is None


def test_a_state_that_is_written_keeps_the_batch_together() -> None:
    x = gk.input("x", IMAGE)
    state = Value(x.tensor, "state", role="state")
    assert batch_of(Graph([x, state], [F.exp(x)], [(state, F.neg(state))]), [1]) is None


def part(sizes: Mapping[str, Any], weights: int = 4) -> tuple[int, int]:
    """Return the part of two convolutions of [N, 8, H, H] with `weights` filters."""

    def body(x: Value) -> Value:
        return F.conv(F.relu(F.conv(x, constant(weights, 8, 1, 1))), constant(8, weights, 1, 1))

    batch = found(body, ["N", 8, "H", "H"])
    assert batch is not None
    return batch.part({"x0": (sizes["N"], 8, sizes["H"], sizes["H"])})


def test_how_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # An example is 8 and 4 channels of 64 x 64 floats, 192 KiB, where most is read and written.
    monkeypatch.setattr(batches, "_CACHED", 1 << 20)
    assert part({"N": 5, "H": 64}) == (5, 5)
    assert part({"N": 6, "H": 64}) == (6, 5)
    assert part({"N": 100, "H": 64}) == (100, 5)
    assert part({"N": 100, "H": 8}) == (100, 100)
    assert part({"N": 100, "H": 512}) == (100, 1)
    assert part({"N": 1, "H": 4096}) == (1, 1)
    assert part({"N": 0, "H": 64}) == (0, 0)


def test_weights_are_read_again_by_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_CACHED", 1)
    # Weights of 256 KiB, and 64 KiB that are written and read of an example.
    assert part({"N": 100, "H": 1}, weights=4096) == (100, 4)
    assert part({"N": 100, "H": 64}, weights=4096) == (100, 1)


def test_one_step_hands_nothing_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_CACHED", 1)
    batch = found(F.exp, ["N", 4])
    assert batch is not None
    assert batch.part({"x0": (1 << 40, 4)}) == (1 << 40, 1 << 40)


def test_shapes_that_contradict_each_other() -> None:
    batch = found(lambda x, y: F.add(x, y), ["N", 4], ["N", 4])
    assert batch is not None
    with pytest.raises(InputError, match="dimension N is 3 in input 'x0' and 4 in input 'x1'"):
        batch.part({"x0": (3, 4), "x1": (4, 4)})
