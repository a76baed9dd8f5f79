"""Transformers on a fake GPU: attention is one step, and no step is interpreted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_pipelines import patch_pipelines
from stand_in import Card

import graphkit as gk
from graphkit.executor.run import device_passes
from graphkit.ir.graph import Node
from graphkit.ir.types import HALVES, TensorType
from graphkit.ops.internal.attention_gradient import FusedAttentionGrad, FusedAttentionWithStatistics
from graphkit.ops.internal.fused_attention import FusedAttention
from graphkit.passes import pipeline
from graphkit.passes.core.declare import Pass
from graphkit.passes.layout.move_casts import move_casts

pytestmark = pytest.mark.full

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


@pytest.mark.parametrize(
    ("name", "precision"),
    [(name, precision) for name in ("bert", "transformer_lm") for precision in ("f32", "tf32", "f16", "bf16")],
)
def test_inference(name: str, precision: str, card: Card, steps: list[Node]) -> None:
    """BERT's first sequence is masked completely: all keys weigh the same, although the mask exceeds float16."""
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


def trained(name: str, device: str, precision: str = "f32", count: int = 3) -> tuple[list[float], gk.Model]:
    """Return the losses of steps, and the trained model."""
    net = gk.models.build(name, **SIZES, dropout=0)
    options = {} if precision == "f32" else {"precision": precision}
    trainer = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.1), device=device, seed=1, **options)
    feeds = fed(net, 2, 16)
    labels = feeds["x"] if name == "transformer_lm" else np.array([0, 1])
    return [float(trainer.step(feeds, labels)) for _ in range(count)], net


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *(("bert", precision) for precision in ("f32", "f16", "bf16")),
        *(("transformer_lm", precision) for precision in ("f32", "tf32", "f16", "bf16")),
    ],
)
def test_training(name: str, precision: str, card: Card, steps: list[Node]) -> None:
    """BERT's first sequence is masked. Attention does not store scores, weights or their gradients."""
    wanted, here = trained(name, "cpu")
    found, there = trained(name, "cuda", precision)
    np.testing.assert_allclose(found, wanted, rtol={"f32": 1e-5, "tf32": 1e-3, "f16": 2e-3, "bf16": 1e-2}[precision])
    for key, array in here.params.items():
        tolerance = {"f32": 1e-4, "tf32": 1e-3, "f16": 2e-3, "bf16": 1e-2}[precision]
        np.testing.assert_allclose(there.params[key], array, rtol=tolerance, atol=tolerance, err_msg=key)
    kind = {"f16": gk.DType.FLOAT16, "bf16": gk.DType.BFLOAT16}.get(precision, gk.DType.FLOAT32)
    gradients = [node for node in steps if isinstance(node.op, FusedAttentionGrad)]
    forwards = [node for node in steps if isinstance(node.op, FusedAttentionWithStatistics)]
    assert len(gradients) == len(forwards) == SIZES["layers"]
    assert {node.outputs[0].dtype for node in (*gradients, *forwards)} == {kind}
    assert all(node.op.causal == (name == "transformer_lm") for node in (*gradients, *forwards))
    scores = (2, SIZES["heads"], 16, 16)
    assert not [v for node in steps for v in (*node.operands, *node.outputs) if v.tensor.static_shape == scores]
    assert not {"Softmax", "SoftmaxGrad"} & {node.op.name for node in steps}
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


def test_memory_of_training(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the operators it grows with the square of the length."""
    arenas, passes = {}, device_passes.array_passes

    def others(*given: Any) -> Any:
        return [p for p in passes(*given) if p.name != "fuse_attention_gradient"]

    for fused in (True, False):
        patch_pipelines(monkeypatch, array_passes=passes if fused else others)
        net = gk.models.build("transformer_lm", **SIZES | {"length": 512})
        trainer = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.1), device="cuda", seed=1)
        for length in (128, 256):
            plan = trainer.plan({"x": (2, length), "target": (2, length)})
            arenas[fused, length] = plan.arena_bytes
    scores = 2 * SIZES["heads"] * 256 * 256 * 4
    assert arenas[True, 256] + SIZES["layers"] * scores <= arenas[False, 256]
    assert arenas[True, 256] < 2.1 * arenas[True, 128]
    assert arenas[False, 256] > 3 * arenas[False, 128]


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


@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_moves_of_half_floats(precision: str, card: Card, steps: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    """They leave half of the casts, and every bit as it was."""
    tokens = np.arange(24).reshape(2, 12) % 11
    found: list[tuple[list[float], dict[str, bytes]]] = []
    casts: list[int] = []
    for moves in (Pass(lambda graph: graph, "nothing"), move_casts):
        monkeypatch.setattr(pipeline, "move_casts", moves)
        patch_pipelines(monkeypatch)
        steps.clear()
        net = gk.models.build("transformer_lm", **SIZES, dropout=0.0)
        run = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.1), device="cuda", precision=precision, seed=1)
        losses = [float(run.step(tokens, tokens[:, ::-1].copy())) for _ in range(3)]
        found.append((losses, {name: array.tobytes() for name, array in net.params.items()}))
        casts.append(sum(node.op.name == "Cast" for node in steps))
    assert found[0] == found[1]
    assert casts[1] < 0.6 * casts[0]


def test_no_examples_in_half_floats(card: Card) -> None:
    """Kernels of bfloat16 also accept empty batches, because no interpreter on a GPU supports bfloat16."""
    net = gk.models.build("transformer_lm", **SIZES)
    tokens = np.arange(24).reshape(2, 12) % 11
    run = net.compile("cuda", precision="bf16").run
    assert run({"x": tokens})["logits"].shape == (2, 12, 12)
    assert run({"x": tokens[:0]})["logits"].shape == (0, 12, 12)
    assert not card.interpreted
