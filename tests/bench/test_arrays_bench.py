"""The benchmark of arrays: the engines of a loop with a KVStore compute the same."""

from __future__ import annotations

import arrays as bench
import numpy as np
import pytest


@pytest.mark.full
def test_the_loops_with_a_store_change_the_weights_equally(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "RATE", 0.02)
    task = bench.load_task("lenet")
    steps = list(bench.loops(task, threads=1).values())
    losses = np.array([[step() for step in steps] for _ in range(4)])
    for engine in range(1, len(steps)):
        np.testing.assert_allclose(losses[:, engine], losses[:, 0], rtol=1e-3)
    assert losses[-1, 0] < losses[0, 0] - 0.1
