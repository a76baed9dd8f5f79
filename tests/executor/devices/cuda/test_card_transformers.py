"""Transformers on the stand-in for a card: attention is one step, and none is interpreted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from stand_in import Card

import graphkit as gk
from graphkit.ir.graph import Node
from graphkit.ir.types import HALVES, TensorType
from graphkit.ops.internal.fused import FusedAttention

SIZES = dict(vocab=12, width=16, heads=2, layers=2, length=90)


@pytest.fixture
def steps(card: Card, monkeypatch: pytest.MonkeyPatch) -> list[Node]:
    """The nodes that are prepared."""
    found: list[Node] = []
    prepare = card.prepare

    def prepared(node: Node, *given: Any) -> Any:
        found.append(node)
        return prepare(node, *given)

    monkeypatch.setattr(card, "prepare", prepared)
    return found


def attention(steps: list[Node]) -> list[FusedAttention]:
    return [node.op for node in steps if isinstance(node.op, FusedAttention)]


def fed(net: gk.Model, batch: int, length: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(length)
    feeds = {name: rng.integers(0, 12, (batch, length)) for name in net.input_types}
    if "segments" in feeds:
        feeds["segments"] %= 2
        feeds["mask"] = np.arange(length) < np.arange(batch)[:, None] * 3
        feeds["mask"] = feeds["mask"].astype(np.int64)
    return feeds


@pytest.mark.parametrize("name", ["bert", "transformer_lm"])
@pytest.mark.parametrize("precision", ["f32", "tf32", "f16", "bf16"])
def test_inference(name: str, precision: str, card: Card, steps: list[Node]) -> None:
    """Of the first sequence bert sees nothing: its keys weigh the same, though no float16 is as small as the mask's."""
    net = gk.models.build(name, **SIZES)
    exe, plain = net.compile("cuda", precision=precision), net.compile("cpu")
    for batch, length in ((3, 7), (1, 80)):
        steps.clear()
        feeds = fed(net, batch, length)
        found, wanted = exe.run(feeds)["logits"], plain.run(feeds)["logits"]
        tolerance = {"f16": 1e-3, "tf32": 1e-3, "bf16": 1e-2}.get(precision, 1e-5)
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())
        made = attention(steps)
        assert len(made) == SIZES["layers"]
        assert all(op.causal == (name == "transformer_lm") for op in made)
        assert {op.layout for op in made} == {op.output_layout for op in made} == {"NLHD"}
        halves = {"f16": gk.DType.FLOAT16, "bf16": gk.DType.BFLOAT16}
        kinds = {node.output.dtype for node in steps if isinstance(node.op, FusedAttention)}
        assert kinds == {halves.get(precision, gk.DType.FLOAT32)}
        assert not {"Softmax", "MatMul"} & {node.op.name for node in steps}
    assert not card.interpreted


def test_training_keeps_the_products(card: Card, steps: list[Node]) -> None:
    """The weights are read again by the gradient."""
    x = np.random.default_rng(0).integers(0, 12, (2, 6))
    losses = {}
    for device in ("cpu", "cuda"):
        net = gk.models.build("transformer_lm", **SIZES)
        trainer = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.1), device=device, seed=1)
        losses[device] = [float(trainer.step(x, x)) for _ in range(3)]
    np.testing.assert_allclose(losses["cuda"], losses["cpu"], rtol=1e-4)
    assert not attention(steps)
    assert {"Softmax", "SoftmaxGrad"} <= {node.op.name for node in steps}
    assert not card.interpreted


@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_what_is_added_to_scores_stays_float32(precision: str, card: Card, steps: list[Node]) -> None:
    """Distances up to 300 (Press et al. 2022, arXiv:2108.12409) would be off by 1 in bfloat16."""
    q, k, v = (gk.input(name, ["N", 2, "T", 8]) for name in "qkv")
    distance = gk.input("distance", ["T", "T"])
    scores = gk.add(gk.mat_mul(q, gk.transpose(k, perm=(0, 1, 3, 2))), distance)
    net = gk.Model({"y": gk.mat_mul(gk.softmax(scores, axis=-1), v)})
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((1, 2, 300, 8), np.float32) for name in "qkv"}
    feeds["distance"] = np.float32(-1.03) * abs(np.arange(300)[:, None] - np.arange(300)[::-1]).astype(np.float32)
    found, wanted = (net.compile(d, precision=p).run(feeds)["y"] for d, p in (("cuda", precision), ("cpu", "f32")))
    np.testing.assert_allclose(found, wanted, atol={"f16": 5e-3, "bf16": 4e-2}[precision])
    (node,) = (node for node in steps if isinstance(node.op, FusedAttention))
    assert node.output.dtype in HALVES
    assert node.operands[3].dtype is gk.DType.FLOAT32


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_standard_operator(dtype: str, card: Card, steps: list[Node]) -> None:
    """It is expanded; without a mask it is attention again, in half floats too."""
    kind = TensorType(dtype, (2, "T", 24))
    x = gk.input("x", kind.shape, dtype=dtype)
    y, *_ = gk.attention(x, x, x, q_num_heads=3, kv_num_heads=3, is_causal=True)
    net = gk.Model({"y": y})
    feed = {"x": np.random.default_rng(0).standard_normal((2, 5, 24)).astype(kind.dtype.numpy)}
    found, wanted = net.compile("cuda").run(feed)["y"], net.compile("cpu").run(feed)["y"]
    tolerance = 3e-3 if dtype == "float16" else 1e-5
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
    (op,) = attention(steps)
    assert op.causal
    assert not card.interpreted
