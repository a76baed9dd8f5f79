"""A sequence model at many lengths: programs are bounded, weights are packed once, nothing piles up."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from graphkit.executor.memory.packing import PackedArrays
from graphkit.executor.run.base_program import BaseProgram
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir import limits
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F

WIDTH = 256


@pytest.mark.full
def test_many_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHKIT_CACHE_MB", "1")
    packed: list[str] = []
    made = PackedArrays.cached

    def counted(self: PackedArrays, source: Any, layout: str, make: Any) -> Any:
        def counting(source: Any) -> Any:
            packed.append(layout)
            return make(source)

        return made(self, source, layout, counting)

    monkeypatch.setattr(PackedArrays, "cached", counted)
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.standard_normal((1, 4 * WIDTH, WIDTH), dtype=np.float32) / 16,
        "r": rng.standard_normal((1, 4 * WIDTH, WIDTH), dtype=np.float32) / 16,
        "m": rng.standard_normal((WIDTH, 4 * WIDTH), dtype=np.float32),
    }
    types = {name: TensorType("float32", a.shape) for name, a in arrays.items()}
    w, r, m = (Value(types[name], name, role="parameter") for name in arrays)
    x = Value(TensorType("float32", ("T", 1, WIDTH)), "x")
    states = F.lstm(x, w, r, hidden_size=WIDTH)[0]
    exe = Executor(Graph([x, w, r, m], [F.mat_mul(F.squeeze(states, np.array([1])), m)]), ParamStore(types, arrays))
    whole = rng.standard_normal((80, 1, WIDTH), dtype=np.float32)
    expected = exe(whole)[0]
    for _ in range(2):
        for length in range(1, 81):
            np.testing.assert_allclose(exe(whole[:length])[0], expected[:length], rtol=1e-3, atol=1e-3)
    # Two layouts at most for each of the three weights: a single row may ask for another one.
    assert len(packed) <= 6
    gc.collect()
    pools = exe._pools
    assert sum(issubclass(type(o), BaseProgram) and o.pools is pools for o in gc.get_objects()) == len(exe._programs)
    del exe
    gc.collect()
    assert not any(issubclass(type(o), BaseProgram) and o.pools is pools for o in gc.get_objects())


def test_a_small_run_at_a_new_length_does_not_ask_what_memory_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes longer than the run."""
    x = Value(TensorType("float32", ("T", 4)), "x")
    exe = Executor(Graph([x], [F.softmax(F.mul(x, x))]), ParamStore({}))
    for length in (1, 2):
        exe(np.ones((length, 4), np.float32))
    asked = []
    monkeypatch.setattr(limits, "_unchecked", 0)
    monkeypatch.setattr(limits, "available_memory", lambda: asked.append(1) or 1 << 40)
    for length in range(3, 20):
        np.testing.assert_allclose(exe(np.ones((length, 4), np.float32))[0], np.full((length, 4), 0.25), rtol=1e-6)
    assert not asked
