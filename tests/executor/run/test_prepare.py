"""Programs that are prepared for input shapes before their first run."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.executor.memory import packing
from graphkit.executor.run.program import Program


def convolution(**options):
    x = gk.input("x", ["N", 128, 4, 4])
    return gk.Model({"y": gk.nn.conv2d(x, 128, kernel=3, pad=1, name="c")}).compile(threads=1, **options)


def test_the_first_run_packs_nothing(monkeypatch):
    exe = convolution()
    packed = []
    pack = packing._packed
    monkeypatch.setattr(packing, "_packed", lambda *arguments: packed.append(1) or pack(*arguments))
    exe.prepare({"x": [1, 128, 4, 4]})
    exe.prepare({"x": [40, 128, 4, 4]})
    assert packed
    packed.clear()
    monkeypatch.setattr(Program, "instance", None)  # the instances exist
    array = np.random.default_rng(0).normal(size=(40, 128, 4, 4)).astype(np.float32)
    together = exe.run({"x": array})["y"]
    np.testing.assert_allclose(exe.run({"x": array[:1]})["y"], together[:1], rtol=1e-3, atol=1e-3)
    assert packed == []


def test_memory_is_limited():
    """A later run is refused, too."""
    exe = convolution(max_memory=100_000)
    with pytest.raises(gk.errors.OutOfMemory):
        exe.prepare({"x": [400, 128, 4, 4]})
    with pytest.raises(gk.errors.OutOfMemory):
        exe.run({"x": np.zeros((400, 128, 4, 4), np.float32)})


def test_unknown_shapes_are_named():
    exe = convolution()
    with pytest.raises(gk.errors.InputError, match="the shape of input 'x'"):
        exe.prepare({})
    with pytest.raises(gk.errors.InputError, match="no input 'z'"):
        exe.prepare({"z": [1]})
