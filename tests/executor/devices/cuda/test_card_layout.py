"""Convolutional networks on tensor cores: their channels are last, and their results stay the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import on_a_card
import pytest
from device_pipelines import patch_pipelines
from stand_in import Card
from together import together

import graphkit as gk
from graphkit.autodiff import gradient
from graphkit.executor.run.device_passes import _stays_whole, is_fusable
from graphkit.ir.graph import Graph, Node
from graphkit.ir.types import DType
from graphkit.ops import F
from graphkit.passes import pipeline
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.sweep import run_passes

pytestmark = pytest.mark.full

PRECISIONS = ("tf32", "bf16", "f16")
KINDS = {"bf16": DType.BFLOAT16, "f16": DType.FLOAT16}
# How far results may be apart: the bits of operands that are rounded.
# A card multiplies the leading 11 bits of a float32 in tf32, the stand-in all.
NEAR = {"f32": 1e-4, "tf32": 2e-3 if on_a_card.WANTED else 1e-4, "bf16": 3e-2, "f16": 4e-3}


def prepared(graph: Graph, precision: str) -> Graph:
    """Return the graph that a GPU runs, before shapes are known."""
    passes = pipeline.array_passes(partial(is_fusable, "cuda"), precision, partial(_stays_whole, "cuda"))
    return run_passes(graph, (*CLEANUP, *passes))


def trained(net: gk.Model) -> Graph:
    """A step of training."""
    return gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.1, momentum=0.9))._stepper.programs[0]


def of_batches(node: Node) -> bool:
    """Whether its result grows with the batch."""
    return any(not isinstance(size, int) for size in node.output.tensor.known_shape)


# --- what is left of transposes ---------------------------------------------------------------------


@together()
@pytest.mark.parametrize("precision", ["tf32", "bf16", "f16"])
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", ["resnet", "mobilenetv2"])
def test_images_are_transposed_at_the_border_alone(name: str, train: bool, precision: str) -> None:
    """The images are transposed once, at the input. 1x1 filters and filters with one channel are not transposed."""
    net = gk.models.build(name, **({"layers": 50, "classes": 1000} if name == "resnet" else {}))
    graph = prepared(trained(net) if train else net.graph, precision)
    names = Counter(node.op.name for node in graph.nodes)
    transposed = [node for node in graph.nodes if node.op.name == "Transpose"]
    (fed,) = (node.operands[0] for node in transposed if of_batches(node))
    if precision != "tf32":  # what is moved are half floats
        assert fed.node is not None
        assert fed.node.op.name == "Cast"
        fed = fed.node.operands[0]
    assert fed is graph.inputs[0]
    assert len(transposed) == 1 + {"resnet": 17, "mobilenetv2": 1}[name] * (1 + train)
    convolutions = {"resnet": 53, "mobilenetv2": 52}[name]
    assert names["ChannelsLastConv"] == convolutions
    first = {"Conv", "FusedConv", "ConvGradInput", "ConvGradWeight", "BatchNormalization", "BatchNormGrad", "MaxPool"}
    assert not first & names.keys()
    if train:
        assert names["ChannelsLastConvGradWeight"] == names["ChannelsLastConvGradInput"] + 1 == convolutions
        assert names["ChannelsLastBatchNorm"] == names["ChannelsLastBatchNormGrad"] == convolutions
        assert not {"Relu", "Clip"} & names.keys(), "activations are in the normalisations"
    # Those of one filter for each channel are bound by memory: in training they are not rounded.
    each = [node for node in graph.nodes if node.op.attributes().get("group", 1) > 1]
    rounded = {node.inputs[0].dtype for node in each if node.inputs[0] is not None}
    assert rounded <= {DType.FLOAT32 if train or precision == "tf32" else KINDS[precision]}
    last = [node.op for node in graph.nodes if "Conv" in node.op.name]
    assert all(op.attributes()["filters_last"] for op in last)


def test_where_the_layout_stays_as_it_is() -> None:
    """Convolutions without tensor cores keep their layout. float16 and bfloat16 use them with any precision."""
    for kind, precision, name in (
        ("float32", "f32", "Conv"), ("float64", "tf32", "Conv"), ("float16", "f32", "ChannelsLastConv"),
        ("bfloat16", "f32", "ChannelsLastConv"), ("float32", "tf32", "ChannelsLastConv"),
        ("float32", "fp8", "ChannelsLastConv"),
    ):  # fmt: skip
        x, w = gk.input("x", ["N", 2, 6, 6], dtype=kind), np.ones((3, 2, 3, 3), DType(kind).numpy)
        graph = prepared(Graph([x], [F.conv(x, w)]), precision)
        assert name in {node.op.name for node in graph.nodes}


def test_convolutions_of_bytes_stay_as_they_are() -> None:
    x, w = gk.input("x", ["N", 2, 6, 6], dtype="uint8"), np.ones((3, 2, 3, 3), np.int8)
    assert {n.op.name for n in prepared(Graph([x], [F.conv_integer(x, w)]), "f16").nodes} >= {"ConvInteger"}


# --- what networks compute --------------------------------------------------------------------------


def residual_network(classes: int = 4) -> gk.Model:
    """Convolutions with strides and groups, and of one filter for each channel, pools, a residual, transposed."""
    x = gk.input("x", ["N", 3, 8, 8])
    y = gk.relu(gk.nn.batch_norm(gk.nn.conv2d(x, 8, 3, pad=1, bias=False, name="stem")))
    y = F.max_pool(y, kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))[0]
    z = gk.clip(gk.nn.batch_norm(gk.nn.conv2d(y, 8, 3, pad=1, groups=8, bias=False, name="each")), 0.0, 6.0)
    y = gk.relu(y + gk.nn.batch_norm(gk.nn.conv2d(z, 8, 1, bias=False, name="mixed")))
    y = gk.nn.conv2d(y, 12, 3, stride=2, pad=1, groups=2, name="down")
    y = F.average_pool(gk.relu(y), kernel_shape=(2, 2), pads=(0, 0, 1, 1))
    y = gk.nn.conv_transpose2d(y, 4, 2, stride=2, name="up")
    return gk.Model({"y": gk.nn.linear(gk.flatten(gk.tanh(y)), classes, name="fc")}, seed=3)


NETWORKS: dict[str, Callable[[], gk.Model]] = {"residual": residual_network}
WHOLE: dict[str, Callable[[], gk.Model]] = {
    "lenet": lambda: gk.models.build("lenet", image=(1, 16, 16), classes=4),
    "resnet": lambda: gk.models.build("resnet", layers=18, classes=4, image=(3, 32, 32)),
    "mobilenetv2": lambda: gk.models.build("mobilenetv2", classes=4, image=(3, 32, 32), dropout=0.0),
}
# Networks, precisions, and where channels are.
SMALL = [("residual", p, layout) for layout in ("last", "first") for p in PRECISIONS]
INFERRED = [*SMALL, *((name, p, "last") for name in WHOLE for p in PRECISIONS)]
# In float16 deep networks skip steps until the loss's factor is low.
TRAINED = [*SMALL, *((name, p, "last") for name in WHOLE for p in ("tf32", "bf16"))]


def built(name: str) -> gk.Model:
    return (NETWORKS | WHOLE)[name]()


def images(net: gk.Model, count: int) -> np.ndarray:
    (kind,) = net.input_types.values()
    return np.random.default_rng(0).standard_normal((count, *kind.known_shape[1:])).astype(np.float32)


@pytest.fixture
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where channels are: "first" is what the same passes make without the layout."""
    if request.param == "first":
        none: frozenset[DType] = frozenset()
        patch_pipelines(monkeypatch)
        monkeypatch.setattr(pipeline, "_LAST", dict.fromkeys(pipeline._LAST, none))
    return str(request.param)


@pytest.mark.parametrize(("name", "precision", "layout"), INFERRED, indirect=["layout"])
def test_inference(name: str, precision: str, layout: str, card: Card) -> None:
    """Batches have different sizes, including 0."""
    net = built(name)
    x = images(net, 3)
    (name,) = net.input_types
    here, there = net.compile("cpu"), net.compile("cuda", precision=precision)
    for count in (3, 2, 0):
        (wanted,), (found,) = (list(exe.run({name: x[:count]}).values()) for exe in (here, there))
        np.testing.assert_allclose(found, wanted, atol=NEAR[precision] * np.abs(wanted).max(initial=1), rtol=0)
        # A mean of nothing is.
        assert count == 0 or not card.interpreted
    assert ("ChannelsLastConv" in card.launched) == (layout == "last")


@pytest.mark.parametrize(("name", "precision", "layout"), TRAINED, indirect=["layout"])
@pytest.mark.long
def test_training(name: str, precision: str, layout: str, card: Card) -> None:
    x, labels = images(built(name), 8), np.arange(8) % 4
    # Steps of deep networks are small: what is apart by a bit is far apart a few normalisations of few numbers on.
    rate = 0.01 if name in NETWORKS else 1e-7
    losses: dict[str, list[float]] = {}
    for device in ("cpu", "cuda"):
        options: dict[str, Any] = {"precision": precision} if device == "cuda" else {}
        trainer = gk.Trainer(built(name), "softmax_cross_entropy", gk.optim.SGD(rate), device=device, seed=1, **options)
        losses[device] = [float(trainer.step(x, labels)) for _ in range(3)]
    np.testing.assert_allclose(losses["cuda"], losses["cpu"], rtol=2 * NEAR[precision])
    wanted = {"ChannelsLastConv", "ChannelsLastConvGradWeight", "ChannelsLastConvGradInput"}
    assert (wanted <= set(card.launched)) == (layout == "last")
    assert not card.interpreted


def residual_of(kind: str) -> gk.Model:
    x = gk.input("x", ["N", 3, 8, 8], dtype=kind)
    y = gk.relu(gk.nn.batch_norm(gk.nn.conv2d(x, 8, 3, pad=1, name="one")))
    y = gk.relu(gk.nn.conv2d(y, 8, 3, pad=1, name="two") + y)
    return gk.Model({"y": gk.nn.linear(gk.flatten(y), 3, name="fc")}, seed=3)


def test_networks_of_half_floats(card: Card) -> None:
    """Inference and training, with all in float16, as with the channels first."""
    x, labels = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float16), np.arange(4) % 3
    found = residual_of("float16").compile("cuda").run({"x": x})["y"]
    wanted = residual_of("float16").compile("cpu").run({"x": x})["y"]
    np.testing.assert_allclose(found.astype(np.float32), wanted.astype(np.float32), atol=5e-3, rtol=0)
    assert "ChannelsLastConv" in card.launched
    losses = [
        [float(trainer.step(x, labels)) for _ in range(3)]
        for trainer in (
            gk.Trainer(residual_of("float16"), "softmax_cross_entropy", gk.optim.SGD(0.01), device=device, seed=1)
            for device in ("cpu", "cuda")
        )
    ]
    np.testing.assert_allclose(*losses, rtol=5e-3)
    assert {"ChannelsLastBatchNorm", "ChannelsLastBatchNormGrad"} <= set(card.launched)


@together()
@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_not_finite_goes_where_it_goes_on_the_processor(precision: str, card: Card) -> None:
    net = residual_of("float32")
    x = np.random.default_rng(0).standard_normal((3, 3, 8, 8)).astype(np.float32)
    x[1, 0, 2, 2], x[2, 1, 5, 5] = np.nan, np.inf
    inner = gk.Model({"y": net.graph.outputs[0].node.inputs[0].node.inputs[0]}, seed=3)
    here, there = (
        inner.compile(device, **options) for device, options in (("cpu", {}), ("cuda", {"precision": precision}))
    )
    with np.errstate(invalid="ignore"):
        wanted, found = (exe.run({"x": x})["y"] for exe in (here, there))
    for test in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(test(found), test(wanted))
    assert np.isnan(wanted[1]).any()
    assert np.isfinite(found[0]).all()


# --- with what else there is ------------------------------------------------------------------------


def test_recomputed_activations(card: Card) -> None:
    x, labels = images(residual_of("float32"), 4), np.arange(4) % 3
    losses = []
    for recompute in (None, "sqrt"):
        options: dict[str, Any] = {"device": "cuda", "precision": "tf32", "recompute": recompute}
        trainer = gk.Trainer(residual_of("float32"), "softmax_cross_entropy", gk.optim.SGD(0.01), seed=1, **options)
        losses.append([float(trainer.step(x, labels)) for _ in range(2)])
    np.testing.assert_allclose(*losses, rtol=1e-6)
    assert "ChannelsLastConv" in card.launched


def test_gradients_of_gradients(card: Card) -> None:
    """The loss is a gradient's size: its own has convolutions of gradients."""
    x, w = gk.input("x", ["N", 3, 6, 6]), gk.parameter("w", (4, 3, 3, 3), init=gk.init.Normal(0.3))
    y = gk.reduce_sum(gk.tanh(F.conv(x, w, pads=(1, 1, 1, 1), strides=(2, 2))), keepdims=False)
    (dx,) = gradient([y], [x])
    (dw,) = gradient([gk.reduce_sum(dx * dx, keepdims=False)], [w])
    net = gk.Model({"dw": dw}, seed=1)
    feed = {"x": np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)}
    wanted, found = net.compile("cpu").run(feed)["dw"], net.compile("cuda", precision="tf32").run(feed)["dw"]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert {"ChannelsLastConv", "ChannelsLastConvGradInput", "ChannelsLastConvGradWeight"} <= set(card.launched)


def test_pieces_on_several_devices(cards: list[Card]) -> None:
    """Each has its own borders."""

    def split() -> gk.Model:
        x = gk.input("x", ["N", 3, 8, 8])
        with gk.attr_scope(ctx_group="first"):
            h = gk.relu(gk.nn.conv2d(gk.nn.conv2d(x, 6, 3, name="one"), 6, 3, name="two"))
        with gk.attr_scope(ctx_group="second"):
            h = gk.relu(gk.nn.conv2d(h, 4, 3, name="three"))
            return gk.Model({"y": gk.nn.linear(gk.flatten(h), 4, name="fc")}, seed=2)

    x, labels = images(split(), 4), np.arange(4) % 4
    losses = []
    for device, precision in (("cpu", "f32"), ({"first": "cuda:0", "second": "cuda:1"}, "tf32")):
        options: dict[str, Any] = {"device": device, "precision": precision}
        trainer = gk.Trainer(split(), "softmax_cross_entropy", gk.optim.SGD(0.1), seed=1, **options)
        losses.append([float(trainer.step(x, labels)) for _ in range(3)])
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert all("ChannelsLastConvGradWeight" in made.launched for made in cards[:2])
