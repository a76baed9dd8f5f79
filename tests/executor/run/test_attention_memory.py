"""Attention over long sequences does not store scores, neither at inference nor in a training step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.ops import F

HEADS, DEPTH = 2, 16
# Large enough that constant folding keeps no mask.
LENGTH = 1200


def operator(q: Any, k: Any, v: Any) -> Any:
    return gk.attention(q, k, v, is_causal=True)[0]


def products(q: Any, k: Any, v: Any) -> Any:
    ones = F.expand(np.array(True), F.concat(F.shape(q)[2:3], F.shape(k)[2:3], axis=0))
    mask = F.where(F.trilu(ones, upper=False), np.float32(0), np.float32(-np.inf))
    scores = F.mat_mul(q, F.transpose(k, perm=(0, 1, 3, 2))) * DEPTH**-0.5
    return F.mat_mul(F.softmax(F.add(scores, mask), axis=-1), v)


def plain(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    scores = q.astype(np.float64) @ k.swapaxes(2, 3) * DEPTH**-0.5
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True)) * np.tri(*scores.shape[2:])
    return weights / weights.sum(axis=-1, keepdims=True) @ v


@in_one_item("pairs")
@pytest.mark.parametrize("form", [operator, products])
@pytest.mark.parametrize("length", [LENGTH, "T"])
@pytest.mark.parametrize("gradients", [False, True])
def test_no_memory_for_scores(form: Any, length: Any, gradients: bool) -> None:
    q, k, v = inputs = [gk.input(name, [1, HEADS, length, DEPTH]) for name in "qkv"]
    y = form(q, k, v)
    found = dict(zip(("dq", "dk", "dv"), gk.gradient([y], inputs, [v]), strict=True)) if gradients else {}
    executor = gk.Model({"y": y, **found}).compile(threads=2)
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((1, HEADS, LENGTH, DEPTH), np.float32) for name in "qkv"}
    results = executor.run(feeds)
    np.testing.assert_allclose(results["y"], plain(*feeds.values()), rtol=1e-4, atol=1e-5)
    attention = [step for step in executor.plan.steps if "Attention" in step.op]
    names = ["FusedAttentionWithStatistics", "FusedAttentionGrad"] if gradients else ["FusedAttention"]
    assert [step.op.removeprefix("ai.graphkit.") for step in attention] == names
    # No operand has an element for each query and key, such as a mask.
    sizes = [operand.bytes for step in executor.plan.steps for operand in (*step.inputs, *step.outputs) if operand]
    assert max(sizes) < LENGTH * LENGTH
    assert executor.plan.arena_bytes < HEADS * LENGTH * LENGTH * 4
