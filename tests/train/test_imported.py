"""Train imported ONNX files: normalisations and dropout in either mode, new heads, export for inference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper, numpy_helper

import graphkit as gk
from graphkit import cli
from graphkit.errors import UsageError
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.passes.training.to_training import is_in_training, to_inference
from graphkit.train import imported
from graphkit.train.head import replace_head

CLASSES = 4


def network(training: bool, *, softmax: bool = False, tail: str = "gemm") -> onnx.ModelProto:
    """Conv, BatchNormalization, Relu, Dropout, pooling and a classifier, in inference or in training mode."""
    rng = np.random.default_rng(0)
    weights = {
        "conv.w": rng.standard_normal((5, 2, 3, 3)) * 0.3,
        "bn.scale": np.ones(5),
        "bn.shift": np.zeros(5),
        "bn.mean": rng.standard_normal(5) * 0.1,
        "bn.var": np.full(5, 1.5),
        "fc.b": np.zeros(CLASSES),
        "fc.w": rng.standard_normal({"gemm": (CLASSES, 5), "matmul": (5, CLASSES), "conv": (CLASSES, 5, 1, 1)}[tail]),
    }
    node = helper.make_node
    normalised = ["n", "bn.new_mean", "bn.new_var"] if training else ["n"]
    nodes = [
        node("Conv", ["x", "conv.w"], ["c"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c", "bn.scale", "bn.shift", "bn.mean", "bn.var"], normalised, momentum=0.5,
             training_mode=int(training)),
        node("Relu", ["n"], ["r"]),
        node("Dropout", ["r", "ratio", "mode"], ["d"]),
        node("GlobalAveragePool", ["d"], ["g"]),
    ]  # fmt: skip
    if tail == "conv":
        nodes += [node("Conv", ["g", "fc.w", "fc.b"], ["k"]), node("Flatten", ["k"], ["logits"])]
    else:
        nodes.append(node("Flatten", ["g"], ["f"]))
    if tail == "gemm":
        nodes.append(node("Gemm", ["f", "fc.w", "fc.b"], ["logits"], transB=1))
    elif tail == "matmul":
        nodes += [node("MatMul", ["f", "fc.w"], ["m"]), node("Add", ["m", "fc.b"], ["logits"])]
    if softmax:
        nodes.append(node("Softmax", ["logits"], ["probabilities"]))
    out = "probabilities" if softmax else "logits"
    initializers = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()]
    initializers += [numpy_helper.from_array(np.array(0.25, np.float32), "ratio")]
    initializers += [numpy_helper.from_array(np.array(training), "mode")]
    graph = helper.make_graph(
        nodes, "foreign",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2, 6, 6])],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, ["N", CLASSES])], initializers,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def data(n: int = 32, classes: int = CLASSES) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    target = rng.integers(0, classes, n)
    x = rng.standard_normal((n, 2, 6, 6)) * 0.3 + target[:, None, None, None] * np.array([1.0, -0.5])[:, None, None]
    return x.astype(np.float32), target


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command line in this process. Return its exit code, and stdout and stderr together."""

    def run(*arguments: Any) -> tuple[int, str]:
        code = cli.invoke([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


@pytest.mark.parametrize("training", [False, True])
def test_imported_file_trains_and_returns_to_inference(training: bool, tmp_path: Path) -> None:
    net = gk.load(network(training))
    assert is_in_training(net.graph) == training
    x, target = data()
    trainer = gk.Trainer(net, optimizer=gk.optim.Adam(0.02), seed=0)
    assert set(trainer.trained) == {"conv.w", "bn.scale", "bn.shift", "fc.w", "fc.b"}
    mean = net.params["bn.mean"].copy()
    losses = [float(trainer.step(x, target)) for _ in range(60)]
    assert np.mean(losses[-5:]) < 0.8 * losses[0]
    assert not np.array_equal(net.params["bn.mean"], mean)

    trainer.save(tmp_path)
    saved = gk.load(tmp_path)
    assert not is_in_training(saved.graph)
    saved.save(tmp_path / "net.onnx")
    assert gk.verify(saved, against=tmp_path / "net.onnx").passed
    theirs = OnnxRuntimeModel(onnx.load(tmp_path / "net.onnx")).run({"x": x})["logits"]
    np.testing.assert_allclose(saved.run({"x": x})["logits"], theirs, rtol=1e-4, atol=1e-5)
    accuracy = float(np.mean(theirs.argmax(-1) == target))
    assert trainer.evaluate((x, target))["accuracy"] == pytest.approx(accuracy)


def test_first_step_does_not_depend_on_mode() -> None:
    x, target = data()
    updated = []
    for training in (False, True):
        net = gk.load(network(training))
        before = net.params["bn.mean"].copy()
        conv = gk.Model(net.graph.find("c"), params={"conv.w": net.params["conv.w"]}).run({"x": x})
        gk.Trainer(net, optimizer=gk.optim.SGD(0.1), seed=7).step(x, target)
        batch_mean = next(iter(conv.values())).mean((0, 2, 3))
        np.testing.assert_allclose(net.params["bn.mean"], 0.5 * before + 0.5 * batch_mean, rtol=1e-4, atol=1e-6)
        updated.append({n: net.params[n].copy() for n in net.params})
    for name, array in updated[0].items():
        np.testing.assert_array_equal(array, updated[1][name], err_msg=name)


def test_a_frozen_normalisation_keeps_its_statistics() -> None:
    net = gk.load(network(True))
    before = {n: net.params[n].copy() for n in net.params}
    trainer = gk.Trainer(net, optimizer=gk.optim.SGD(0.1), train=["fc.*"])
    assert set(trainer.trained) == {"fc.w", "fc.b"}
    trainer.step(*data())
    changed = {n for n in before if not np.array_equal(before[n], net.params[n])}
    assert changed == {"fc.w", "fc.b"}


def test_to_inference_equals_the_file_in_inference_mode() -> None:
    net = gk.load(network(True))
    plain = gk.Model.from_graph(to_inference(net.graph), dict(net.params))
    assert plain.outputs == net.outputs
    assert not is_in_training(plain.graph)
    x, _ = data()
    expected = OnnxRuntimeModel(network(False)).run({"x": x})["logits"]
    np.testing.assert_allclose(plain.run({"x": x})["logits"], expected, rtol=1e-4, atol=1e-5)


def test_loss_takes_logits_before_softmax() -> None:
    steps = []
    for softmax in (False, True):
        net = gk.load(network(False, softmax=softmax))
        loss = float(gk.Trainer(net, optimizer=gk.optim.SGD(0.1), freeze=["bn.*"], seed=1).step(*data()))
        steps.append((loss, net.params["fc.w"].copy()))
    assert steps[0][0] == pytest.approx(steps[1][0], rel=1e-6)
    np.testing.assert_allclose(steps[0][1], steps[1][1], rtol=1e-6)


def test_one_of_several_outputs_is_trained() -> None:
    x = gk.input("x", ["N", 3])
    net = gk.Model({"other": gk.nn.linear(x, 4, name="a"), "y": gk.nn.linear(x, 2, name="b")}, seed=0)
    inputs, target = np.ones((2, 3), np.float32), np.zeros((2, 2), np.float32)
    with pytest.raises(UsageError, match=r"the model has 2 \(other, y\): choose one with output= \(--output-name\)"):
        gk.Trainer(net, "mse")
    with pytest.raises(UsageError, match="no output 'z'"):
        gk.Trainer(net, "mse", output="z")
    with pytest.raises(UsageError, match=r"nothing to train\. A parameter is trained if"):
        gk.Trainer(net, "mse", output="y", train=["a_*"])
    trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.1), output="y")
    assert set(trainer.trained) == {"b_weight", "b_bias"}
    before = net.run({"x": inputs})["y"]
    assert float(trainer.step(inputs, target)) == pytest.approx(np.mean(before**2), rel=1e-5)
    assert trainer.evaluate((inputs, target), ["mse"])["mse"] < np.mean(before**2)


# --- heads ------------------------------------------------------------------------------------------


@in_one_item("values")
@pytest.mark.parametrize("tail", ["gemm", "matmul", "conv"])
@pytest.mark.parametrize("softmax", [False, True])
def test_a_fresh_head_gives_logits_of_other_classes(tail: str, softmax: bool) -> None:
    net = gk.load(network(False, softmax=softmax, tail=tail))
    changed = replace_head(net, 7, seed=1)
    x, target = data(64, 7)
    assert changed.run({"x": x})[changed.outputs[0]].shape == (64, 7)
    assert changed.params["fc.b"].shape == (7,)
    assert not changed.params["fc.b"].any()
    assert np.unique(changed.params["fc.w"]).size > 10
    for name in ("conv.w", "bn.mean"):
        np.testing.assert_array_equal(changed.params[name], net.params[name])
    trainer = gk.Trainer(changed, optimizer=gk.optim.Adam(0.05), train=["fc.*"], seed=0)
    losses = [float(trainer.step(x, target)) for _ in range(40)]
    assert losses[-1] < losses[0]
    assert gk.verify(changed, shapes={"x": [3, 2, 6, 6]}).passed


def test_a_reshape_that_names_the_classes_follows_them() -> None:
    x = gk.input("x", ["N", 4])
    y = gk.reshape(gk.nn.linear(x, 2, name="fc"), np.array([-1, 2, 1]))
    changed = replace_head(gk.Model({"y": y}, seed=0), 3)
    assert changed.run({"x": np.zeros((5, 4), np.float32)})["y"].shape == (5, 3, 1)


def test_heads_of_the_zoo() -> None:
    for name, options in [("lenet", {"image": (1, 8, 8)}), ("mlp", {"inputs": 6, "hidden": (5,), "classes": 3})]:
        net = gk.models.build(name, **options)
        changed = replace_head(net, 11)
        assert changed.output_types[changed.outputs[0]].shape[-1] == 11


def test_error_names_model_without_head() -> None:
    x = gk.input("x", ["N", 4])
    with pytest.raises(UsageError, match="no layer with parameters"):
        replace_head(gk.Model({"y": gk.exp(gk.nn.linear(x, 2))}, seed=0), 3)
    h = gk.nn.linear(x, 2)
    with pytest.raises(UsageError, match="--output-name"):
        replace_head(gk.Model({"a": h, "b": h}, seed=0), 3)
    fixed = gk.reshape(gk.nn.linear(x, 2), np.array([-1, 2, 2]))
    with pytest.raises(UsageError, match="more than one of its sizes is 2"):
        replace_head(gk.Model({"y": fixed}, seed=0), 3)


@in_one_item()
@pytest.mark.parametrize(
    "after",
    [
        lambda y: gk.relu(y),
        lambda y: gk.softmax(gk.relu(y)),
        lambda y: gk.clip(gk.leaky_relu(y), 0.0, 6.0),
        lambda y: gk.tanh(gk.reshape(gk.relu(y), [-1, 2])),
    ],
    ids=["relu", "relu-softmax", "relu6", "between"],
)
def test_nothing_limits_the_logits_of_a_new_head(after: Any) -> None:
    """A Relu after the head would make logits 0, with no gradient. So it is removed, like other activations."""
    x = gk.input("x", ["N", 4])
    net = gk.Model({"y": after(gk.nn.linear(gk.relu(gk.nn.linear(x, 5, name="body")), 2, name="fc"))}, seed=0)
    changed = replace_head(net, 3, seed=0)
    logits = changed.run({"x": np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)})["y"]
    assert logits.min() < 0 < logits.max()
    assert not np.allclose(logits.sum(1), 1)
    assert sum(n.op.name == "Relu" for n in changed.graph.nodes) == 1  # only that of the body


def test_weights_that_a_file_reshapes_or_casts() -> None:
    x = gk.input("x", ["N", 4])
    weight = gk.parameter("w", [2, 2, 3])
    half = gk.parameter("b", [3], "zeros", dtype="float16")
    y = gk.mat_mul(x, gk.reshape(weight, [4, 3])) + gk.cast(half, to="float32")
    changed = replace_head(gk.Model({"y": y}, seed=0), 5)
    assert {n: a.shape for n, a in changed.params.items()} == {"w": (4, 5), "b": (5,)}
    assert changed.run({"x": np.zeros((2, 4), np.float32)})["y"].shape == (2, 5)


def test_new_head_keeps_weights_of_other_readers() -> None:
    x = gk.input("x", ["N", 4])
    table = gk.parameter("table", [2, 4])
    tied = gk.mat_mul(gk.mat_mul(x, gk.transpose(table, perm=[1, 0])), table)
    net = gk.Model({"y": tied}, seed=0)
    changed = replace_head(net, 3, seed=1)
    np.testing.assert_array_equal(changed.params["table"], net.params["table"])
    assert {n: a.shape for n, a in changed.params.items()} == {"table": (2, 4), "table_1": (2, 3)}


def test_new_head_keeps_other_outputs() -> None:
    x = gk.input("x", ["N", 4])
    h = gk.relu(gk.nn.linear(x, 5, name="body"))
    net = gk.Model({"y": gk.nn.linear(h, 2, name="fc"), "state": h}, seed=0)
    changed = replace_head(net, 3, output="y")
    given = {"x": np.ones((2, 4), np.float32)}
    assert changed.run(given)["y"].shape == (2, 3)
    np.testing.assert_array_equal(changed.run(given)["state"], net.run(given)["state"])
    with pytest.raises(UsageError, match="did you mean 'state'"):
        replace_head(net, 3, output="stat")


@in_one_item()
@pytest.mark.parametrize(
    ("shape", "pool", "logits"),
    [
        (["N", 6], None, (2, 3)),
        (["N", "T", 6], "mean", (2, 3)),
        (["N", "T", 6], "first", (2, 3)),
        (["N", "T", 6], "none", (2, 7, 3)),
        (["N", 6, "H", "W"], None, (2, 3)),
        (["N", 6, "H", "W"], "none", (2, 3, 5, 4)),
    ],
    ids=str,
)
def test_a_head_on_a_value(shape: list[Any], pool: str | None, logits: tuple[int, ...]) -> None:
    x = gk.input("x", shape)
    features = gk.mul(gk.relu(x), gk.parameter("scale", [1], "ones"), name="features")
    changed = replace_head(gk.Model({"y": gk.reduce_sum(gk.exp(features))}, seed=0), 3, at="features", pool=pool)
    assert changed.outputs == ("logits",)
    given = np.random.default_rng(0).standard_normal([{"N": 2, "T": 7, "H": 5, "W": 4}.get(d, d) for d in shape])
    found = changed.run({"x": given.astype(np.float32)})["logits"]
    assert found.shape == logits
    weight = changed.params["head_weight"].reshape(3, 6)
    seen = np.maximum(given, 0) * changed.params["scale"]
    if len(shape) == 3 and pool != "none":
        seen = seen.mean(1) if pool == "mean" else seen[:, 0]
    if len(shape) == 4:
        seen = seen.mean((2, 3)) if pool is None else np.moveaxis(seen, 1, -1)
    wanted = seen @ weight.T
    wanted = np.moveaxis(wanted, -1, 1) if wanted.ndim == 4 else wanted
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_head_on_unsuitable_value_is_an_error() -> None:
    x = gk.input("x", ["N", "T", 6])
    net = gk.Model({"y": gk.relu(gk.nn.linear(x, 4, name="hidden"), name="act")}, seed=0)
    for options, message in (
        ({"at": "hiden"}, "did you mean 'hidden'"),
        ({"at": "act"}, "choose pool=.mean., .first. or .none."),
        ({"at": "act", "pool": "max"}, "'mean', 'first' or 'none', not 'max'"),
        ({"pool": "mean"}, "--head-at"),
        ({"at": "act", "pool": "mean", "output": "y"}, "only output"),
    ):
        with pytest.raises(UsageError, match=message):
            replace_head(net, 3, **options)


def test_command_puts_head_on_encoder(call: Any, tmp_path: Path) -> None:
    x = gk.input("x", ["N", "T", 6])
    hidden = gk.nn.layer_norm(gk.nn.linear(x, 8, name="body"), name="norm")
    gk.Model({"last_hidden_state": hidden}, seed=0).save(tmp_path / "encoder.onnx")
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((40, 5, 6)).astype(np.float32), y=rng.integers(0, 3, 40))
    train = ("train", tmp_path / "encoder.onnx", "--data", tmp_path / "data.npz", "-o", tmp_path / "run")
    code, output = call(*train, "--head", "classes=3")
    assert code == 2
    assert "--head-at" in output
    code, output = call(*train, "--head", "classes=3", "--head", "pool=mean", "--head-at", "last_hidden_state")
    assert code == 0, output
    assert gk.load(tmp_path / "run").output_types["logits"].shape[-1] == 3


@pytest.mark.parametrize(
    ("inputs", "arrays", "option"),
    [
        ({"x": [1, 4]}, {}, "--dynamic-batch"),
        ({"x": [7, 4]}, {}, "--batch-size 7"),
        ({"x": ["N", 4], "rate": []}, {"rate": np.float32(2)}, "--batch-axis rate=none"),
        ({"x": ["N", 4], "h": [2, "N", 4]}, {"h": np.zeros((2, 20, 4), np.float32)}, "--batch-axis h=1"),
        ({"x": ["N", 4], "h": [2, "N", 4]}, {}, "--recurrent-state"),
    ],
    ids=["one", "fixed", "scalar", "state", "missing"],
)
def test_errors_of_batches_name_the_option_that_helps(
    call: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    inputs: dict[str, Any],
    arrays: dict[str, Any],
    option: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    values = {n: gk.input(n, shape) for n, shape in inputs.items()}
    y = gk.nn.linear(values["x"], 3, name="fc")
    for name in inputs:
        y = y if name == "x" else y + gk.reduce_sum(values[name], keepdims=False)
    gk.Model({"y": y}, inputs=list(values.values()), seed=0).save(tmp_path / "net.onnx")
    np.savez(tmp_path / "d.npz", x=np.zeros((20, 4), np.float32), y=np.arange(20) % 3, **arrays)
    code, output = call("train", tmp_path / "net.onnx", "--data", tmp_path / "d.npz")
    assert code == 2
    assert option in output


# --- files written for inference ------------------------------------------------------------------------


def fixed(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model for a batch of 1."""
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    return proto


def test_free_batch_allows_any_batch_size() -> None:
    net = gk.load(fixed(network(False)))
    freed = imported.free_batch(net)
    x, _ = data(5)
    np.testing.assert_array_equal(freed.params["fc.w"], net.params["fc.w"])
    alone = np.concatenate([net.run({"x": x[i : i + 1]})["logits"] for i in range(5)])
    np.testing.assert_allclose(freed.run({"x": x})["logits"], alone, rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match=r"axis 0 of input .* is dynamic already: leave out free_batch"):
        imported.free_batch(freed)


def test_free_batch_rejects_fixed_or_mixed_samples() -> None:
    x = gk.input("x", [1, 4])
    joined = gk.Model({"y": gk.concat(x, np.ones((1, 2), np.float32), axis=1)}, seed=0)
    with pytest.raises(UsageError, match="only for a batch of 1"):
        imported.free_batch(joined)
    flat = gk.Model({"y": gk.reshape(x, np.array([2, 2]))}, seed=0)
    with pytest.raises(UsageError, match="only for a batch of 1"):
        imported.free_batch(flat)
    mixing = gk.Model({"y": x - gk.reduce_mean(x, [0], keepdims=True)}, seed=0)
    with pytest.raises(UsageError, match="mixes the samples"):
        imported.free_batch(mixing)


def test_free_batch_names_the_node_that_fixes_the_batch() -> None:
    x = gk.input("x", [1, 5, 4])
    joined = gk.concat([np.ones((1, 1, 4), np.float32), x], axis=1, name="with_token")
    net = gk.Model({"y": gk.relu(gk.reduce_mean(gk.exp(joined), [1], keepdims=False))}, seed=0, name="tokens")
    with pytest.raises(UsageError) as caught:
        imported.free_batch(net)
    assert str(caught.value) == (
        "model 'tokens' works only for a batch of 1: output 'y', float32[1, 4], does not depend on the batch size N, "
        "because node 'with_token' Concat(Constant: float32[1, 1, 4], x: float32[N, 5, 4]) returns a tensor without "
        "it. Export the model again with a dynamic batch dimension, or change this node"
    )
    constant = gk.Model({"y": x * 2, "z": gk.exp(gk.parameter("w", [1, 2]))}, seed=0)
    with pytest.raises(UsageError, match=r"output 'z', .* batch size N, because it does not depend on the inputs$"):
        imported.free_batch(constant)


def test_reshapes_follow_the_batch() -> None:
    """Reshapes as exporters write them for a batch of 1: to fixed sizes, with one size -1, with the batch inside."""
    x = gk.input("x", [1, 6, 4])
    heads = gk.transpose(gk.reshape(x, np.array([1, 6, 2, 2])), perm=[2, 0, 1, 3])
    parts = gk.reshape(heads, np.array([2, 1, 3, 2, 2]))
    net = gk.Model({"y": gk.reshape(gk.transpose(parts, perm=[1, 0, 2, 3, 4]), np.array([1, -1, 3]))}, seed=0)
    freed = imported.free_batch(net)
    assert str(freed.output_types["y"].shape) == "(N, 8, 3)"
    batch = np.random.default_rng(0).standard_normal((3, 6, 4)).astype(np.float32)
    alone = np.concatenate([net.run({"x": batch[i : i + 1]})["y"] for i in range(3)])
    np.testing.assert_array_equal(freed.run({"x": batch})["y"], alone)


def test_the_batch_may_be_another_axis() -> None:
    x, state, rate = gk.input("x", [1, 4]), gk.input("state", [2, 1, 4]), gk.input("rate", [])
    net = gk.Model({"y": x * rate + gk.reduce_sum(state, np.array([0]), keepdims=False), "next": state * rate})
    freed = imported.free_batch(net, axes={"state": 1, "rate": None})
    assert [str(t.shape) for t in freed.input_types.values()] == ["(N, 4)", "(2, N, 4)", "()"]
    assert str(freed.output_types["next"].shape) == "(2, N, 4)"
    with pytest.raises(UsageError, match=r"axis 0 of input .* must have size 1"):
        imported.free_batch(net, axes={"rate": None})
    with pytest.raises(UsageError, match=r"axis 3 of input .* must have size 1"):
        imported.free_batch(net, axes={"state": 3, "rate": None})
    with pytest.raises(UsageError, match="did you mean 'state'"):
        imported.free_batch(net, axes={"stat": 1})


def with_constant_nodes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its initialisers as Constant nodes, as some exporters write them."""
    nodes = [helper.make_node("Constant", [], [t.name], value=t) for t in proto.graph.initializer]
    del proto.graph.initializer[:]
    body = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend([*nodes, *body])
    return proto


def test_weights_in_constant_nodes_become_parameters() -> None:
    net = gk.load(with_constant_nodes(network(False)))
    assert net.trainable == ()
    opened = imported.constants_to_parameters(net)
    plain = gk.load(network(False))
    assert set(opened.trainable) == set(plain.trainable)
    assert set(opened.params) == set(plain.params)
    x, target = data()
    np.testing.assert_allclose(opened.run({"x": x})["logits"], plain.run({"x": x})["logits"], rtol=1e-5, atol=1e-6)
    losses = [float(gk.Trainer(m, optimizer=gk.optim.SGD(0.1), seed=2).step(x, target)) for m in (opened, plain)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    np.testing.assert_allclose(opened.params["bn.mean"], plain.params["bn.mean"], rtol=1e-5)
    with pytest.raises(UsageError, match="no weights among its constants"):
        imported.constants_to_parameters(plain)


def test_command_opens_files_with_constant_weights(call: Any, tmp_path: Path) -> None:
    onnx.save(fixed(with_constant_nodes(network(False))), tmp_path / "net.onnx")
    x, target = data(64)
    np.savez(tmp_path / "data.npz", x=x, y=target)
    code, output = call(
        "train", tmp_path / "net.onnx", "--data", tmp_path / "data.npz", "--constants", "--free-batch", "-o",
        tmp_path / "run", "--optimizer", "lamb", "--lr", "0.02",
    )  # fmt: skip
    assert code == 0, output
    assert gk.load(tmp_path / "run").trainable


# --- commands -----------------------------------------------------------------------------------------


def test_commands_fine_tune_and_export_a_file(call: Any, tmp_path: Path) -> None:
    onnx.save(network(True), tmp_path / "net.onnx")
    x, target = data(96, 3)
    np.savez(tmp_path / "data.npz", x=x, y=target)
    code, output = call(
        "train", tmp_path / "net.onnx", "--data", tmp_path / "data.npz", "--loss", "softmax_cross_entropy",
        "--head", "classes=3", "--train", "fc.*", "--freeze", "*.b", "--optimizer", "rmsprop", "--lr", "0.05",
        "--ema", "0.5", "--lr-mult", "fc.w=0.5", "--wd-mult", "*=0", "--metric", "accuracy", "--metric", "top2",
        "--metric", "f1", "--metric", "perplexity", "--epochs", "6", "--batch-size", "16", "--seed", "1",
        "-o", tmp_path / "run", "--json",
    )  # fmt: skip
    assert code == 0, output
    trained = gk.load(tmp_path / "run")
    assert trained.params["fc.w"].shape == (3, 5)
    assert not trained.params["fc.b"].any()
    code, output = call("export", tmp_path / "run", "-o", tmp_path / "out.onnx", "--for", "inference")
    assert code == 0, output
    assert "PASSED" in output
    code, output = call("export", tmp_path / "net.onnx", "-o", tmp_path / "plain.onnx", "--for", "inference")
    assert code == 0, output
    plain = OnnxRuntimeModel(onnx.load(tmp_path / "plain.onnx")).run({"x": x})["logits"]
    expected = OnnxRuntimeModel(network(False)).run({"x": x})["logits"]
    np.testing.assert_allclose(plain, expected, rtol=1e-4, atol=1e-5)


def test_the_commands_train_a_file_with_states(call: Any, tmp_path: Path) -> None:
    """A recurrent file has a state whose batch axis is not the first, a scalar for all samples, and two outputs."""
    x, state, rate = gk.input("x", ["N", 3]), gk.input("state", [2, "N", 3]), gk.input("rate", [])
    hidden = gk.tanh(gk.nn.linear(x, 3, name="fc") * rate + gk.reduce_mean(state, np.array([0]), keepdims=False))
    gk.Model({"y": hidden, "next": state + hidden}, seed=0).save(tmp_path / "net.onnx")
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "data.npz", x=rng.standard_normal((20, 3)), state=rng.standard_normal((2, 20, 3)),
        rate=np.float32(0.5), y=rng.standard_normal((20, 3)),
    )  # fmt: skip
    options = ["--loss", "mse", "--output-name", "y", "--lr", "0.1", "--epochs", "4", "--batch-size", "8", "--json"]
    axes = ["--batch-axis", "state=1", "--batch-axis", "rate=none"]
    code, output = call("train", tmp_path / "net.onnx", "--data", tmp_path / "data.npz", "-o", tmp_path / "run",
                        *options, *axes)  # fmt: skip
    assert code == 0, output
    history = json.JSONDecoder().raw_decode(output[output.index("{") :])[0]["history"]
    assert history[-1]["mse"] < history[0]["mse"]
    assert "valid_mse" in history[0]
    np.save(tmp_path / "rate.npy", np.float32(0.5))
    code, output = call("export", tmp_path / "run", "x:4,3", "state:2,4,3", f"rate={tmp_path / 'rate.npy'}", "-o",
                        tmp_path / "out.onnx", "--for", "inference")  # fmt: skip
    assert code == 0, output
    assert "PASSED" in output
    code, output = call("train", tmp_path / "net.onnx", "--data", tmp_path / "data.npz", *options,
                        "--batch-axis", "state=last")  # fmt: skip
    assert code == 2
    assert "--batch-axis state=last" in output
    code, output = call("train", tmp_path / "net.onnx", "--data", tmp_path / "data.npz", *options)
    assert code != 0
    assert "rate is a single number" in output


def test_the_command_checks_gradients_of_constants_together(call: Any, tmp_path: Path) -> None:
    onnx.save(with_constant_nodes(network(False)), tmp_path / "net.onnx")
    code, output = call("grad", tmp_path / "net.onnx", "--constants", "--check", "--together")
    assert code == 0, output
    assert "8 together" in output


def test_error_names_last_value_with_gradient() -> None:
    x = gk.input("x", ["N", 4])
    pixels = gk.sigmoid(gk.nn.linear(x, 3, name="fc"), name="shade") * np.float32(255)
    net = gk.Model({"image": gk.cast(pixels, to="uint8")}, seed=0)
    with pytest.raises(UsageError, match=r"not floating-point.* last floating-point value before it .* float32"):
        gk.Trainer(net, "mse")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--head", "classes=many"), "the number of classes must be an integer"),
        (("--head", "units=3"), "classes=N"),
        (("--train", "conv9*"), "matches no parameter"),
        (("--lr-mult", "fc.w=fast"), "--lr-mult"),
        (("--optimizer", "adagrad", "--momentum", "0.9"), "--momentum"),
        (("--ema", "2"), "0<=x<1"),
        (("--metric", "accurace"), "did you mean 'accuracy'"),
    ],
)
def test_wrong_options_are_usage_errors(call: Any, options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    onnx.save(network(False), tmp_path / "net.onnx")
    x, target = data()
    np.savez(tmp_path / "data.npz", x=x, y=target)
    code, output = call("train", tmp_path / "net.onnx", "--data", tmp_path / "data.npz", *options)
    assert code == 2, output
    assert message in output
