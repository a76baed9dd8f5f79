"""Arrays as the values of a KVStore, and the loop of the example."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import InputError

nd = gk.nd


def example() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "arrays" / "arrays.py"
    spec = importlib.util.spec_from_file_location("arrays_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_values_are_arrays() -> None:
    store = gk.kvstore.create("local")
    x = nd.arange(4)
    store.init("x", x)
    x += 10  # the store has its own copy
    into, several = nd.zeros(4), [nd.zeros(4), np.zeros(4, np.float32)]
    assert store.pull("x", into) is into
    store.pull("x", several)
    for array in (into, *several):
        assert np.asarray(array).tolist() == [0, 1, 2, 3]
    store.push("x", [x, x * 2.0])  # as of two devices
    store.pull("x", into[::-1])
    assert into.asnumpy().tolist() == [39, 36, 33, 30]
    assert store.pushpull("y", nd.ones(2), nd.zeros(2)).asnumpy().tolist() == [1, 1]
    assert store.broadcast("x", nd.ones(3)).tolist() == [1, 1, 1]


def test_an_updater_changes_the_stored_arrays() -> None:
    store = gk.kvstore.create("local")
    w, g = nd.ones(3), nd.full((3,), 2.0)
    store.init(0, w)
    store.set_optimizer(gk.optim.SGD(0.25))
    store.push(0, g)
    store.pull(0, w)
    assert w.asnumpy().tolist() == [0.5, 0.5, 0.5]


def test_arrays_that_do_not_fit_are_errors() -> None:
    store = gk.kvstore.create("local")
    store.init("x", nd.ones((2, 3)))
    for wrong in (nd.ones((3, 2)), nd.ones((2, 3), "int32")):
        with pytest.raises(InputError, match="the array to write to is"):
            store.pull("x", wrong)
    with pytest.raises(InputError, match="can only be written to numpy arrays"):
        store.pull("x", [[0.0]])


def test_the_loop_of_the_example_learns() -> None:
    assert example().train(epochs=3) > 0.85


@pytest.mark.full
def test_the_example_reaches_the_accuracy_of_its_readme() -> None:
    assert example().train() == pytest.approx(0.9694, abs=0.01)
