"""Training the zoo: each step has a native kernel, and a network that comes from a file trains by the same program.

A file is the network's own graph or its graph in training mode, at the newest and at the oldest opset.
"""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item
from zoo_training import TRAINED, feeds_of, is_core, is_large, label, loss_of

import graphkit as gk
from graphkit.passes.training.to_training import to_training

# Keyword arguments of the Trainer, its optimizer included.
WAYS = {
    "sgd": {"optimizer": gk.optim.SGD(0.01, momentum=0.9, weight_decay=1e-4)},
    "adam": {"optimizer": gk.optim.Adam(1e-3), "clip_norm": 1.0, "ema": 0.9},
    "recomputed": {"optimizer": gk.optim.SGD(0.01, momentum=0.9), "recompute": "sqrt"},
    "accumulated": {"optimizer": gk.optim.Adam(1e-3), "accumulate": 2, "clip_norm": 1.0, "ema": 0.9},
}
# Tables that are read by Gather alone, unless they are tied.
TABLES = {
    "bert": ["token_weight", "position_weight", "segment_weight"],
    "dlrm": ["table*_weight"],
    "lstm_lm": ["token_weight"],
    "matrix_factorization": ["user*_weight", "item*_weight"],
    "ncf": ["gmf_*_weight", "mlp_*_weight"],
    "seq2seq": ["source_weight", "target_weight"],
    "text_classifier": ["token_weight"],
    "text_cnn": ["token_weight"],
    "wide_and_deep": ["wide[0-9]*_weight", "embed*_weight"],
}
# A file has the epsilon of its normalisations in single precision, and variances of so few elements are as small.
ILL_CONDITIONED = {"googlenet", "mobilenetv3"}
NAMES = sorted({name for name, _ in TRAINED})
VARIANTS = {"at the newest opset": None, "at opset 13": 13, "in training mode": 21}


def trainer_of(name, net, **options):
    loss, targets = loss_of(name, net)
    output = net.outputs[0] if targets is None else None
    return gk.Trainer(net, loss, targets=targets, output=output, threads=1, seed=1, **options)


def train(trainer, feeds, steps=3):
    inputs = {n: feeds[n] for n in trainer.net.inputs}
    targets = {n: a for n, a in feeds.items() if n not in inputs}
    return [float(trainer.step(inputs, targets)) for _ in range(steps)]


def in_ways(ways, first=None):
    """Every network in every way. The default lane has small networks in the first way, and core ones in all."""
    return [
        pytest.param(
            name, options, way, id=f"{name}-{label(options)}-{way}",
            marks=[] if is_core(name, options) or (way == first and not is_large(name, options)) else pytest.mark.full,
        )
        for name, options in TRAINED
        for way in ways
    ]  # fmt: skip


def test_every_network_is_trained():
    assert set(gk.models.names()) == set(NAMES)


@pytest.fixture
def strict(monkeypatch):
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")


@pytest.mark.parametrize(("name", "options", "way"), in_ways(WAYS, "adam"))
def test_every_step_is_native(name, options, way, strict):
    net = gk.models.build(name, **options)
    losses = train(trainer_of(name, net, **WAYS[way]), feeds_of(name, net, 3), steps=2)
    assert np.isfinite(losses).all()


@in_one_item()
@pytest.mark.parametrize(
    ("name", "options", "way"),
    [
        pytest.param(
            name, options, way, id=f"{name}-{label(options)}-{way}",
            marks=[] if way == "adam" or name == "dlrm" else pytest.mark.full,
        )
        for name, options in TRAINED
        if name in TABLES and not options.get("tied")
        for way in ("sgd", "adam")
    ],
)  # fmt: skip
def test_every_step_of_row_sparse_updates_is_native(name, options, way, strict):
    net = gk.models.build(name, **options)
    losses = train(trainer_of(name, net, **WAYS[way], lazy=TABLES[name]), feeds_of(name, net, 3))
    assert np.isfinite(losses).all()


@pytest.mark.parametrize(("name", "options", "variant"), in_ways(VARIANTS))
def test_a_file_trains_by_the_program_of_the_network(name, options, variant, tmp_path):
    """The same steps and bytes; the same bits, which dropout and running statistics take part in, or the same loss."""
    net = gk.models.build(name, **options)
    written = net
    if variant == "in training mode":
        written = gk.Model.from_graph(to_training(net.graph), dict(net.params))
    written.save(tmp_path / "net.onnx", opset=VARIANTS[variant] or 26)
    again = gk.load(tmp_path / "net.onnx")
    feeds = feeds_of(name, net, 3)
    shapes = {n: a.shape for n, a in feeds.items()}
    ours, theirs = (trainer_of(name, m, **WAYS["sgd"]) for m in (net, again))
    assert theirs.trained == ours.trained
    ours_plan, their_plan = ours.plan(shapes), theirs.plan(shapes)
    assert [step.op for step in their_plan.steps] == [step.op for step in ours_plan.steps]
    assert their_plan.arena_bytes == ours_plan.arena_bytes
    losses, expected = train(theirs, feeds), train(ours, feeds)
    if name in ILL_CONDITIONED:
        assert losses[0] == pytest.approx(expected[0], rel=1e-4)
        return
    assert losses == expected
    for parameter, array in net.params.items():
        np.testing.assert_array_equal(again.params[parameter], array, err_msg=parameter)


def test_a_file_keeps_what_parameters_say_about_training(tmp_path):
    """Factors on rate and weight decay, frozen parameters, and nodes that are computed again."""
    x = gk.input("x", ["N", 6])
    with gk.attr_scope(lr_mult=0.5, wd_mult=0, recompute=True):
        h = gk.relu(gk.nn.linear(x, 5, name="first"))
    fixed = gk.parameter("fixed", (5, 4), "normal", trainable=False)
    net = gk.Model(gk.nn.linear(gk.tanh(gk.mat_mul(h, fixed)), 3, name="last"), seed=0)
    net.save(tmp_path / "net.onnx")
    again = gk.load(tmp_path / "net.onnx")
    assert again.trainable == net.trainable
    rng = np.random.default_rng(0)
    batch = rng.standard_normal((4, 6)).astype(np.float32), rng.integers(0, 3, 4)
    trainers = [gk.Trainer(m, optimizer=gk.optim.SGD(0.1, weight_decay=0.1), seed=0) for m in (net, again)]
    losses = [[float(t.step(*batch)) for _ in range(3)] for t in trainers]
    assert losses[0] == losses[1]
    for parameter, array in net.params.items():
        np.testing.assert_array_equal(again.params[parameter], array, err_msg=parameter)
