"""Trainer(recompute=...): the same results in less memory."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import UsageError

RNG = np.random.default_rng(1)
X = RNG.standard_normal((32, 24)).astype(np.float32)
Y = RNG.integers(0, 4, 32)
SHAPES = {"x": X.shape, "target": Y.shape}


def network() -> gk.Model:
    x = gk.input("x", ["N", 24])
    h = x
    for i in range(12):
        h = gk.nn.dropout(gk.relu(gk.nn.linear(h, 64, name=f"fc{i}")), 0.1)
    return gk.Model({"logits": gk.nn.linear(h, 4, name="out")})


def trainer(recompute: object = None, **options: object) -> gk.Trainer:
    net = network()
    for i, name in enumerate(net.params):
        net.params[name] = np.random.default_rng(i).standard_normal(net.params[name].shape).astype(np.float32) * 0.1
    return gk.Trainer(net, optimizer=gk.optim.Adam(1e-3), threads=2, seed=7, recompute=recompute, **options)


def losses(t: gk.Trainer, steps: int = 4) -> list[float]:
    return [float(t.step(X, Y)) for _ in range(steps)]


def test_sqrt_trains_alike_in_less_memory() -> None:
    plain, again = trainer(), trainer("sqrt")
    np.testing.assert_allclose(losses(again), losses(plain), rtol=1e-6)
    assert again.plan(SHAPES).arena_bytes < 0.7 * plain.plan(SHAPES).arena_bytes


def test_memory_limit_recomputes_as_little_as_possible() -> None:
    most = trainer().plan(SHAPES).arena_bytes
    least = trainer("sqrt").plan(SHAPES).arena_bytes
    assert trainer(most).plan(SHAPES).arena_bytes == most
    between = (most + least) // 2
    some = trainer(between)
    assert least <= some.plan(SHAPES).arena_bytes <= between
    copies = [sum(n.op.name == "Gemm" for n in t.graph.nodes) for t in (trainer(), some)]
    assert copies[0] < copies[1]
    np.testing.assert_allclose(losses(some), losses(trainer()), rtol=1e-6)


@pytest.mark.full
def test_memory_limit_holds_for_larger_batches() -> None:
    budget = (trainer().plan(SHAPES).arena_bytes + trainer("sqrt").plan(SHAPES).arena_bytes) // 2
    limited, plain = trainer(budget), trainer()
    for size in (1, 3, len(X), 5):
        np.testing.assert_allclose(float(limited.step(X[:size], Y[:size])), float(plain.step(X[:size], Y[:size])), 1e-6)
        assert limited.executor.plan.arena_bytes <= budget
    assert limited.executor.rng == plain.executor.rng
    fitted = limited.executor
    losses(limited)
    assert limited.executor is fitted
    with pytest.raises(UsageError, match="use smaller batches"):
        limited.step(np.tile(X, (9, 1)), np.tile(Y, 9))
    assert np.isfinite(losses(limited, 1)).all()


def test_error_names_smallest_possible_memory_limit() -> None:
    least = trainer("sqrt").plan(SHAPES).arena_bytes
    with pytest.raises(UsageError, match=f"a step needs {least} bytes"):
        trainer(1000).step(X, Y)


@in_one_item()
@pytest.mark.parametrize("wrong", ["cbrt", 0, -5, True, 1.5])
def test_other_values_of_recompute_are_errors(wrong: object) -> None:
    with pytest.raises(UsageError, match="recompute must be 'sqrt' or a number of bytes"):
        trainer(wrong)


def test_recomputation_with_accumulated_batches() -> None:
    plain, again = trainer(accumulate=2), trainer("sqrt", accumulate=2)
    np.testing.assert_allclose(losses(again), losses(plain), rtol=1e-6)


def test_checkpoint_resumes_with_other_recompute(tmp_path: object) -> None:
    first = trainer("sqrt")
    losses(first)
    first.save(tmp_path)
    second = trainer()
    second.resume(tmp_path)
    np.testing.assert_allclose(losses(second), losses(first), rtol=1e-6)
