"""`graphkit train` of models from MXNet without --loss: the gradients are those of the output operators."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from tests.mxnet_io import head_cases
from tests.mxnet_io.files import node, symbol, write_model

RULE = "loss of MXNet's output operators: "


def test_training_names_the_output_operators_and_keeps_them(call, tmp_path):
    case = head_cases.CASES["valid"]
    path = head_cases.written(tmp_path, case)
    np.savez(tmp_path / "data.npz", x=head_cases.data_of(case), y=case.label)
    options = ("--data", "data.npz", "--valid", "data.npz", "--batch-size", 6, "--epochs", 10, "--lr", 0.1)
    code, out, err = call("train", path, *options, "--momentum", 0.9, "-o", "run")
    assert code == 0, err
    assert f"{RULE}out_output=SoftmaxOutput(" in err
    assert "accuracy" in out
    weight, _ = head_cases.trained(case)
    np.testing.assert_allclose(gk.load("run").params["fc_weight"], weight, rtol=1e-4, atol=1e-5)
    code, _, err = call("train", "run", *options, "-o", "again")
    assert code == 0, err
    assert RULE in err
    code, _, err = call("train", path, *options, "--label-smoothing", 0.1)
    assert code == 2
    assert "--label-smoothing does not work with the loss of MXNet's output operator" in err
    code, _, err = call("train", path, *options, "--head", "classes=3", "--loss", "mse", "--fast-dev-run")
    assert RULE not in err


def test_labels_of_several_heads_have_their_names(call, tmp_path):
    names = ("data", "a_weight", "b_weight", "a_label", "b_label")
    nodes = [node("null", n) for n in names]
    nodes += [
        node("FullyConnected", "a", [(0, 0), (1, 0)], attrs={"num_hidden": "3", "no_bias": "True"}),
        node("FullyConnected", "b", [(0, 0), (2, 0)], attrs={"num_hidden": "2", "no_bias": "True"}),
        node("SoftmaxOutput", "first", [(5, 0), (3, 0)]),
        node("LinearRegressionOutput", "second", [(6, 0), (4, 0)]),
    ]
    arrays = {"arg:a_weight": np.ones((3, 4), np.float32), "arg:b_weight": np.ones((2, 4), np.float32)}
    path = write_model(tmp_path, symbol(nodes, [(7, 0), (8, 0)]), arrays)
    x = np.eye(4, dtype=np.float32)
    np.savez("data.npz", x=x, a_label=np.array([0, 1, 2, 0]), b_label=np.zeros((4, 2), np.float32))
    options = ("--data", "data.npz", "--valid", "data.npz", "--batch-size", 4, "--lr", 1.0, "--momentum", 0)
    code, _, err = call("train", path, *options, "-o", "run")
    assert code == 0, err
    assert "first_output=SoftmaxOutput, second_output=LinearRegressionOutput" in err
    trained = gk.load("run").params
    expected = 1 - (1 / 3 - np.eye(3)[[0, 1, 2, 0]]).T / 4
    np.testing.assert_allclose(trained["a_weight"], expected, rtol=1e-5)
    np.testing.assert_allclose(trained["b_weight"], np.full((2, 4), 1 - 1 / 2 / 4), rtol=1e-5)
    np.savez("data.npz", x=x, a_label=np.array([0, 1, 2, 0]))
    code, _, err = call("train", path, *options, "-o", "other")
    assert code == 2
    assert "there is no array 'b_label', a target of the loss" in err


@pytest.mark.parametrize("target", ["label", "other"])
def test_a_label_that_the_network_reads_is_an_input(call, tmp_path, target):
    nodes = [node("null", "data", attrs={"__shape__": "(0, 4)"}), node("null", target, attrs={"__shape__": "(0, 1)"})]
    nodes += [
        node("null", "fc_weight"),
        node("FullyConnected", "fc", [(0, 0), (2, 0)], attrs={"num_hidden": "1", "no_bias": "True"}),
        node("elemwise_sub", "error", [(3, 0), (1, 0)]),
        node("MakeLoss", "loss", [(4, 0)]),
    ]
    path = write_model(tmp_path, symbol(nodes, [(5, 0)]), {"arg:fc_weight": np.ones((1, 4), np.float32)})
    np.savez("data.npz", **{"data": np.eye(4, dtype=np.float32), target: np.zeros((4, 1), np.float32)})
    options = ("--data", "data.npz", "--valid", "data.npz", "--lr", 1.0, "--momentum", 0, "-o", "run")
    code, _, err = call("train", path, *options)
    assert code == 0, err
    np.testing.assert_allclose(gk.load("run").params["fc_weight"], np.full((1, 4), 0.75))
