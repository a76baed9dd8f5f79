"""Training of models from MXNet with the gradients of their output operators, against MXNet's rules and figures."""

from __future__ import annotations

import json

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import InputError, InvalidModel, UsageError
from graphkit.train.head import replace_head
from tests.mxnet_io import head_cases
from tests.mxnet_io.files import node, symbol, write_model

HEADS = "mxnet_heads"


def _trained(net, x, label, steps=head_cases.STEPS, **options):
    trainer = gk.Trainer(net, optimizer=gk.optim.SGD(head_cases.RATE, momentum=head_cases.MOMENTUM), **options)
    return [float(trainer.step(x, label)) for _ in range(steps)]


@in_one_item()
@pytest.mark.parametrize("name", head_cases.CASES)
def test_ten_steps_equal_those_of_mxnet(tmp_path, name):
    case = head_cases.CASES[name]
    net = gk.load(head_cases.written(tmp_path, case))
    _trained(net, head_cases.data_of(case), case.label)
    weight, bias = (np.array(net.params[key]) for key in ("fc_weight", "fc_bias"))
    expected = head_cases.trained(case)
    np.testing.assert_allclose(weight, expected[0], rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(bias, expected[1], rtol=1e-5, atol=2e-6)
    figures = weight[0, 0], weight[0, 1], weight[4, 3], bias[0]
    np.testing.assert_allclose(figures, head_cases.FIGURES[name], rtol=1e-5, atol=2e-6)


def test_ignoring_all_labels_changes_nothing(tmp_path):
    case = head_cases.CASES["all ignored"]
    net = gk.load(head_cases.written(tmp_path, case))
    assert _trained(net, head_cases.data_of(case), case.label) == [0.0] * head_cases.STEPS
    np.testing.assert_array_equal(net.params["fc_weight"], head_cases.arrays()["arg:fc_weight"])


@pytest.mark.parametrize("suffix", ["json", "onnx"])
def test_a_saved_model_keeps_its_losses(tmp_path, suffix):
    case = head_cases.CASES["channels valid"]
    net = gk.load(head_cases.written(tmp_path, case))
    net.save(tmp_path / f"net.{suffix}")
    again = gk.load(tmp_path / f"net.{suffix}")
    found = [_trained(each, head_cases.data_of(case), case.label, steps=2) for each in (net, again)]
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def _heads(*, shared):
    """Two classifiers of one layer; the second has the factor 0.25."""
    nodes = [node("null", n) for n in ("data", "a_weight", "a_bias", "b_weight", "b_bias", "a_label", "b_label")]
    nodes += [
        node("FullyConnected", "a", [(0, 0), (1, 0), (2, 0)], attrs={"num_hidden": "3"}),
        node("FullyConnected", "b", [(0, 0), (3, 0), (4, 0)], attrs={"num_hidden": "3"}),
        node("SoftmaxOutput", "first", [(7, 0), (5, 0)]),
        node("SoftmaxOutput", "second", [(8, 0), (5 if shared else 6, 0)], attrs={"grad_scale": "0.25"}),
        node("BlockGrad", "features", [(7, 0)]),
    ]
    return symbol(nodes, [(9, 0), (10, 0), (11, 0)])


@pytest.mark.parametrize("shared", [True, False])
def test_gradients_of_several_outputs_are_added(tmp_path, shared):
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((2, 4)).astype(np.float32), rng.standard_normal((3, 4)).astype(np.float32)
    arrays = {f"arg:{n}_weight": weight for n in "ab"} | {f"arg:{n}_bias": np.zeros(3, np.float32) for n in "ab"}
    net = gk.load(write_model(tmp_path, _heads(shared=shared), arrays))
    labels = {"a_label": np.array([0, 2])} | ({} if shared else {"b_label": np.array([1, 1])})
    assert list(gk.losses.of_mxnet(net)) == ["first_output", "second_output"]
    trainer = gk.Trainer(net, optimizer=gk.optim.SGD(1.0))
    trainer.step(x, labels)
    logits = x @ weight.T
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    for name, label, factor in (("a", labels["a_label"], 1.0), ("b", labels.get("b_label", labels["a_label"]), 0.25)):
        expected = weight - factor * (p - np.eye(3)[label]).T @ x / 2
        np.testing.assert_allclose(net.params[f"{name}_weight"], expected, rtol=1e-5, atol=1e-6)


def test_an_output_operator_blocks_later_gradients(tmp_path):
    nodes = [node("null", n) for n in ("data", "a_weight", "a_bias", "b_weight", "b_bias", "label")]
    nodes += [
        node("FullyConnected", "a", [(0, 0), (1, 0), (2, 0)], attrs={"num_hidden": "3"}),
        node("SoftmaxOutput", "first", [(6, 0), (5, 0)]),
        node("FullyConnected", "b", [(7, 0), (3, 0), (4, 0)], attrs={"num_hidden": "2"}),
        node("MakeLoss", "second", [(8, 0)]),
    ]
    rng = np.random.default_rng(0)
    arrays = {
        "arg:a_weight": rng.standard_normal((3, 4)).astype(np.float32), "arg:a_bias": np.zeros(3, np.float32),
        "arg:b_weight": rng.standard_normal((2, 3)).astype(np.float32), "arg:b_bias": np.zeros(2, np.float32),
    }  # fmt: skip
    x, label = rng.standard_normal((2, 4)).astype(np.float32), np.array([0, 2])
    changed = []
    for heads in ([(7, 0)], [(7, 0), (9, 0)]):
        net = gk.load(write_model(tmp_path, symbol(nodes, heads), arrays))
        gk.Trainer(net, optimizer=gk.optim.SGD(1.0)).step(x, label)
        changed.append(np.array(net.params["a_weight"]))
    np.testing.assert_array_equal(*changed)


def test_a_label_that_the_model_reads_is_an_input(tmp_path):
    """MakeLoss((fc - label)^2): the label stays an input, and the loss needs no targets."""
    nodes = [node("null", "data", attrs={"__shape__": "(0, 4)"}), node("null", "label", attrs={"__shape__": "(0, 1)"})]
    nodes += [
        node("null", "fc_weight"),
        node("FullyConnected", "fc", [(0, 0), (2, 0)], attrs={"num_hidden": "1", "no_bias": "True"}),
        node("elemwise_sub", "error", [(3, 0), (1, 0)]),
        node("square", "squared", [(4, 0)]),
        node("MakeLoss", "loss", [(5, 0)]),
    ]
    weight = np.float32([[1, 2, 3, 4]])
    net = gk.load(write_model(tmp_path, symbol(nodes, [(6, 0)]), {"arg:fc_weight": weight}))
    x, y = np.eye(4, dtype=np.float32), np.ones((4, 1), np.float32)
    trainer = gk.Trainer(net, optimizer=gk.optim.SGD(0.5))
    assert float(trainer.step({"data": x, "label": y}, None)) == pytest.approx((0 + 1 + 4 + 9) / 4)
    np.testing.assert_allclose(net.params["fc_weight"], weight - 0.5 * 2 * (weight - 1) / 4)
    with pytest.raises(InputError, match="needs no targets"):
        trainer.step({"data": x, "label": y}, y)
    (record,) = trainer.fit(gk.data.Dataset({"data": x, "label": y}), epochs=1, batch_size=3)  # an uneven last batch
    assert np.isfinite(record["loss"])


def test_mean_of_uneven_batches_counts_samples(tmp_path):
    case = head_cases.CASES["softmax"]
    net = gk.load(head_cases.written(tmp_path, case))
    x, p = head_cases.data_of(case), None
    trainer = gk.Trainer(net, optimizer=gk.optim.SGD(0.1))
    p = net.run({"data": x})["out_output"]
    expected = -np.log(p[np.arange(len(x)), case.label]).mean()
    found = trainer.evaluate((x, case.label), metrics=["loss", "accuracy"], batch_size=4)
    assert found["loss"] == pytest.approx(expected, rel=1e-6)
    assert found["accuracy"] == pytest.approx((p.argmax(1) == case.label).mean())


def test_labels_out_of_range_are_errors(tmp_path):
    case = head_cases.CASES["softmax"]
    trainer = gk.Trainer(gk.load(head_cases.written(tmp_path, case)))
    with pytest.raises(InputError, match=r"SoftmaxOutput.*class numbers from 0 to 4"):
        trainer.step(head_cases.data_of(case), np.full(head_cases.SAMPLES, 5))
    with pytest.raises(UsageError, match="SoftmaxOutput has no sample weights"):
        trainer.step(head_cases.data_of(case), case.label, sample_weight=np.ones(head_cases.SAMPLES))


def test_rules_without_a_loss_are_errors(tmp_path):
    case = head_cases.HeadCase("SoftmaxOutput", {"out_grad": True}, head_cases.CLASS)
    net = gk.load(head_cases.written(tmp_path, case))
    with pytest.raises(UsageError, match=r"'out_output' \(SoftmaxOutput\): with out_grad.*loss="):
        gk.Trainer(net)
    gk.Trainer(net, "softmax_cross_entropy")


@in_one_item()
@pytest.mark.parametrize("label", ["inf", "-1e300", "9223372036854775808", "0.5"])
def test_ignored_labels_that_are_no_integers_are_errors(tmp_path, label):
    attributes = {"use_ignore": True, "ignore_label": label}
    net = gk.load(head_cases.written(tmp_path, head_cases.HeadCase("SoftmaxOutput", attributes, head_cases.CLASS)))
    with pytest.raises(InvalidModel, match=rf"'out_output' \(SoftmaxOutput\): .*ignore_label .*'{label}'"):
        gk.Trainer(net)


def test_a_new_last_layer_has_the_usual_loss(tmp_path):
    net = gk.load(head_cases.written(tmp_path, head_cases.CASES["svm"]))
    assert HEADS in net.meta
    replaced = replace_head(net, 3)
    assert HEADS not in replaced.meta
    assert gk.Trainer(replaced).loss == "softmax_cross_entropy"


@in_one_item()
@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '[{"output": 1}]',
        json.dumps([{"output": "o", "operator": "x"}]),
        json.dumps([{"output": "out_output", "operator": "x", "attributes": {}}]),
        json.dumps([{"output": "out_output", "operator": "SVMOutput", "attributes": {}, "shape": [{}]}]),
    ],
)
def test_damaged_metadata_are_errors(tmp_path, text):
    net = gk.load(head_cases.written(tmp_path, head_cases.CASES["svm"]))
    damaged = gk.Model.from_graph(net.graph.replace(meta={HEADS: text}), net.params.entries())
    with pytest.raises(InvalidModel, match="mxnet_heads"):
        gk.losses.of_mxnet(damaged)
