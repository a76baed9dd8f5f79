"""Parts of models: against onnx.utils.extract_model in ONNX Runtime, and against the whole model."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper

import graphkit as gk
from graphkit.errors import UsageError
from graphkit.ir.graph import Graph, Value
from graphkit.transforms.extract import lost_updates

RNG = np.random.default_rng(0)


def session(model: str | Path | bytes) -> onnxruntime.InferenceSession:
    given = str(model) if isinstance(model, Path) else model
    return onnxruntime.InferenceSession(given, providers=["CPUExecutionProvider"])


def residual() -> gk.Model:
    """Two branches from x, and a skip connection around the second convolution; a second input at the end."""
    x = gk.input("x", ["N", 3, 8, 8])
    scale = gk.input("scale", ["N", 4, 8, 8])
    h = gk.conv(x, gk.parameter("w1", [4, 3, 3, 3]), pads=[1, 1, 1, 1], name="conv1")
    h = gk.relu(h, name="relu1")
    deep = gk.tanh(gk.conv(h, gk.parameter("w2", [4, 4, 3, 3]), pads=[1, 1, 1, 1], name="conv2"), name="tanh1")
    joined = gk.add(h, deep, name="joined")
    return gk.Model({"sum": joined, "scaled": joined * scale}, seed=0)


FEEDS = {
    "x": RNG.standard_normal((2, 3, 8, 8), np.float32),
    "scale": RNG.standard_normal((2, 4, 8, 8), np.float32),
}


@in_one_item()
@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (["x"], ["relu1"]),
        (["x"], ["conv1", "tanh1"]),
        (["relu1"], ["tanh1"]),
        (["relu1"], ["sum"]),
        (["relu1", "tanh1", "scale"], ["scaled", "sum"]),
        (["conv1", "scale"], ["sum", "scaled", "conv2"]),
    ],
)
def test_parts_equal_those_of_onnx_utils(tmp_path: Path, inputs: list[str], outputs: list[str]) -> None:
    net = residual()
    net.save(tmp_path / "net.onnx")
    onnx.utils.extract_model(str(tmp_path / "net.onnx"), str(tmp_path / "theirs.onnx"), inputs, outputs)
    part = gk.extract(net, outputs, inputs)
    assert (part.inputs, part.outputs) == (tuple(inputs), tuple(outputs))
    part.save(tmp_path / "ours.onnx")
    selected = net.select(*dict.fromkeys([*inputs, *outputs]))
    whole = selected.run({name: FEEDS[name] for name in selected.inputs})
    feeds = {name: FEEDS[name] if name in FEEDS else whole[name] for name in inputs}
    ours, theirs = (session(tmp_path / f"{name}.onnx").run(outputs, feeds) for name in ("ours", "theirs"))
    for name, one, other in zip(outputs, ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(one, whole[name], rtol=1e-5, atol=1e-6)


def test_missing_inputs_are_named_where_onnx_writes_an_invalid_file(tmp_path: Path) -> None:
    net = residual()
    net.save(tmp_path / "net.onnx")
    onnx.utils.extract_model(
        str(tmp_path / "net.onnx"), str(tmp_path / "theirs.onnx"), ["tanh1"], ["sum"], check_model=False
    )
    # The skip connection still leads to x, which the file of onnx.utils computes from an input that it lacks.
    with pytest.raises(Exception, match="x"):
        session(tmp_path / "theirs.onnx").run(None, {"tanh1": np.zeros((2, 4, 8, 8), np.float32)})
    with pytest.raises(UsageError, match=r"'sum' also needs 1 further input: 'x'\. Add --input x "):
        gk.extract(net, "sum", "tanh1")
    with pytest.raises(UsageError, match=r"'scaled' also needs .* 'scale' \('sum' can be computed without\)"):
        gk.extract(net, inputs=["x"])


def test_defaults_are_what_is_needed_and_what_is_reached() -> None:
    net = residual()
    assert gk.extract(net, "tanh1").inputs == ("x",)
    assert gk.extract(net, ["scaled", "conv1"]).inputs == ("x", "scale")
    assert gk.extract(net, inputs=["scale", "relu1"]).outputs == ("sum", "scaled")
    assert gk.extract(net, inputs=["scale", "joined"]).inputs == ("scale", "joined")


def test_parameters_keep_name_role_array_and_gradient() -> None:
    net = residual()
    part = gk.extract(net, "sum", "relu1")
    assert list(part.params) == ["w2"]
    assert part.trainable == ("w2",)
    assert np.array_equal(part.params["w2"], net.params["w2"])
    assert gk.check_gradient(part, {"relu1": np.abs(RNG.standard_normal((1, 4, 8, 8), np.float32))}).passed
    given = gk.extract(net, "relu1", ["x", "w1"])  # a parameter becomes a data input
    assert given.inputs == ("x", "w1")
    assert not given.params
    found = given.run({"x": FEEDS["x"], "w1": net.params["w1"]})["relu1"]
    assert np.array_equal(found, net.select("relu1").run({"x": FEEDS["x"]})["relu1"])


def test_unnamed_nodes_and_values_keep_their_names() -> None:
    x = gk.input("x", [3])
    net = gk.Model({"y": gk.relu(gk.tanh(gk.relu(gk.tanh(x))))})
    part = gk.extract(net, inputs="tanh_1")
    assert [part.graph.node_name(n) for n in part.graph.nodes] == ["relu_1"]
    assert part.internals == ("tanh_1", "relu_1")
    a = gk.Model({"y": x * gk.parameter("w", [3], init="ones") + gk.parameter("w", [3], init="zeros")})
    assert tuple(a.params) == ("w", "w_1")
    only = gk.extract(a, "y", "mul")
    assert tuple(only.params) == ("w_1",)
    assert np.array_equal(only.params["w_1"], a.params["w_1"])


def test_an_input_may_be_an_output(tmp_path: Path) -> None:
    net = residual()
    part = gk.extract(net, ["relu1", "sum"], ["relu1"])
    part.save(tmp_path / "part.onnx")
    h = RNG.standard_normal((1, 4, 8, 8), np.float32)
    theirs = session(tmp_path / "part.onnx").run(None, {"relu1": h})
    for found in (part.run({"relu1": h}), dict(zip(part.outputs, theirs, strict=True))):
        assert np.array_equal(found["relu1"], h)
    same = gk.extract(net, "x", "x")
    assert np.array_equal(same.run({"x": FEEDS["x"]})["x"], FEEDS["x"])


def test_one_name_of_an_output_and_of_another_value() -> None:
    x = gk.input("x", [2])
    net = gk.Model({"x": gk.relu(gk.neg(x)), "neg": gk.neg(gk.neg(x))})
    assert np.array_equal(gk.extract(net, "x", "neg").run({"neg": np.float32([1, -1])})["x"], [1, 0])
    assert np.array_equal(gk.extract(net, "neg", "x").run({"x": np.float32([1, -1])})["neg"], [1, -1])


def test_an_output_name_can_be_an_input() -> None:
    x = gk.input("x", [2])
    h = gk.neg(x)
    net = gk.Model({"middle": h, "y": gk.relu(h)})
    part = gk.extract(net, "y", "middle")
    assert part.inputs == ("middle",)
    assert np.array_equal(part.run({"middle": np.float32([1, -1])})["y"], [1, 0])
    with pytest.raises(UsageError, match="'neg' and 'middle' are the same value"):
        gk.extract(net, "y", ["neg", "middle"])


@in_one_item()
@pytest.mark.parametrize(
    ("outputs", "inputs", "message"),
    [
        (None, None, "give outputs="),
        ("sum", ["relu1", "relu1"], "names 'relu1' twice"),
        (["sum", "sum"], None, "names 'sum' twice"),
        ("sum", [], "names no value"),
        ("summ", None, "did you mean 'sum'"),
        ("conv1", ["x", "scale"], "would not read 'scale': leave it out"),
        ("tanh1", ["relu1", "conv1"], "would not read 'conv1'"),
        (None, "w1", "further input"),
        ("relu1", "tanh1", "needs 1 further input: 'x'"),
    ],
)
def test_errors_say_what_to_do(outputs: object, inputs: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        gk.extract(residual(), outputs, inputs)  # type: ignore[arg-type]


def test_one_of_several_results_of_a_node() -> None:
    x = gk.input("x", ["N", 6])
    first, second = gk.split(x, num_outputs=2, axis=1)
    net = gk.Model({"y": gk.relu(first) + second})
    names = net.internals
    part = gk.extract(net, "y", ["x", names[1]])
    a, b = np.float32([[1, 2, 3, 4, 5, 6]]), np.float32([[-1, 7, 0]])
    assert np.array_equal(part.run({"x": a, names[1]: b})["y"], [[4, 12, 6]])


# --- types ----------------------------------------------------------------------------------------------


def test_expressions_of_sizes_stay(tmp_path: Path) -> None:
    x = gk.input("x", ["N", 1, "L"])
    h = gk.conv(x, gk.parameter("w", [2, 1, 3]), strides=[2], pads=[1, 1], name="h")
    net = gk.Model({"y": gk.flatten(gk.relu(h))}, seed=0)
    part = gk.extract(net, inputs="h")
    assert str(part.input_types["h"]) == str(h.type)
    part.save(tmp_path / "part.onnx")
    part.save(tmp_path / "part.json")
    array = RNG.standard_normal((2, 2, 5), np.float32)
    expected = np.maximum(array, 0).reshape(2, 10)
    for again in (part, gk.load(tmp_path / "part.onnx"), gk.load(tmp_path / "part.json")):
        assert np.array_equal(again.run({"h": array})["y"], expected)


def test_known_elements_become_unknown() -> None:
    x = gk.input("x", ["N", 4])
    shape = gk.shape(x, name="shape")
    net = gk.Model({"y": gk.reshape(x, gk.concat([shape, gk.constant(value=np.int64([1]))], axis=0, name="target"))})
    assert net.value("target").tensor.value is not None
    part = gk.extract(net, inputs=["x", "target"])
    assert part.input_types["target"] == gk.TensorType("int64", [3])
    found = part.run({"x": np.zeros((2, 4), np.float32), "target": np.int64([2, 2, 2])})["y"]
    assert found.shape == (2, 2, 2)


def test_ranks_may_become_unknown() -> None:
    x = gk.input("x", ["N", 4, 4])
    one = gk.constant(value=np.int64([1]))
    end = gk.add(one, one, name="end")
    target = gk.slice(gk.constant(value=np.int64([0, -1, 3])), gk.constant(value=np.int64([0])), end)
    net = gk.Model({"y": gk.softmax(gk.reshape(x, target))})
    part = gk.extract(net, inputs=["x", "end"])
    assert str(part.output_types["y"]) == "float32[...]"
    array = RNG.standard_normal((2, 4, 4), np.float32)
    found = part.run({"x": array, "end": np.int64([2])})["y"]
    np.testing.assert_allclose(found, net.run({"x": array})["y"], rtol=1e-6)


@in_one_item()
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int64", "bool", "string"])
def test_element_types_are_kept(tmp_path: Path, dtype: str) -> None:
    x = gk.input("x", ["N"], dtype)
    h = gk.identity(x, name="h")
    net = gk.Model({"y": gk.concat([h, h], axis=0)})
    part = gk.extract(net, inputs="h")
    part.save(tmp_path / "part.onnx")
    again = gk.load(tmp_path / "part.onnx")
    assert str(part.input_types["h"]) == f"{dtype}[N]"
    kind = {"bfloat16": ml_dtypes.bfloat16, "string": object}.get(dtype, dtype)
    array = np.array(["a", "b"], object) if dtype == "string" else np.array([1, 0]).astype(kind)
    for model in (part, again):
        assert np.array_equal(model.run({"h": array})["y"], np.concatenate([array, array]))
    if dtype != "bfloat16":
        assert np.array_equal(
            session(tmp_path / "part.onnx").run(None, {"h": array})[0], np.concatenate([array, array])
        )


def test_sequences_and_optionals_are_kept(tmp_path: Path) -> None:
    x = gk.input("x", ["N", 4])
    parts = gk.sequence_construct(x, gk.relu(x), name="parts")
    net = gk.Model({"y": gk.concat_from_sequence(parts, axis=1)})
    part = gk.extract(net, inputs="parts")
    assert "length" not in str(part.input_types["parts"])
    part.save(tmp_path / "part.onnx")
    arrays = [RNG.standard_normal((2, 4), np.float32) for _ in range(3)]
    expected = np.concatenate(arrays, axis=1)
    assert np.array_equal(part.run({"parts": arrays})["y"], expected)
    assert np.array_equal(session(tmp_path / "part.onnx").run(None, {"parts": arrays})[0], expected)
    perhaps = gk.optional(x, name="perhaps")
    net = gk.Model({"y": gk.optional_get_element(perhaps) + 1.0})
    assert np.array_equal(gk.extract(net, inputs="perhaps").run({"perhaps": arrays[0]})["y"], arrays[0] + 1)


# --- control flow ---------------------------------------------------------------------------------------


def looped() -> onnx.ModelProto:
    """y = x * (x + 1 ... three times); the body reads the outer value `scaled`."""
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["again"]),
            helper.make_node("Add", ["s", "scaled"], ["inner"]),
            helper.make_node("Relu", ["inner"], ["t"]),
        ],
        "body",
        [info("i", TensorProto.INT64, []), info("c", TensorProto.BOOL, []), info("s", TensorProto.FLOAT, [3])],
        [info("again", TensorProto.BOOL, []), info("t", TensorProto.FLOAT, [3])],
    )
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["scaled"]),
        helper.make_node("Loop", ["count", "", "x"], ["last"], body=body, name="repeat"),
        helper.make_node("Neg", ["last"], ["y"]),
    ]
    count = helper.make_tensor("count", TensorProto.INT64, [], [3])
    graph = helper.make_graph(
        nodes, "g", [info("x", TensorProto.FLOAT, [3])], [info("y", TensorProto.FLOAT, [3])], [count]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_values_that_a_body_captures_can_be_inputs() -> None:
    net = gk.load(looped())
    x, scaled = np.float32([1, -2, 3]), np.float32([1, 2, 3])
    found = gk.extract(net, inputs=["x", "scaled"]).run({"x": x, "scaled": scaled})["y"]
    state = x
    for _ in range(3):
        state = np.maximum(state + scaled, 0)
    assert np.array_equal(found, -state)
    assert gk.extract(net, "y", "last").inputs == ("last",)
    with pytest.raises(UsageError, match="'y' also needs 1 further input: 'x'"):
        gk.extract(net, "y", "scaled")


def test_values_inside_a_body_are_refused() -> None:
    net = gk.load(looped())
    for arguments in ({"inputs": ["inner"]}, {"outputs": ["inner"]}):
        with pytest.raises(UsageError, match=r"'inner' is inside attribute 'body' of node 'repeat' \(Loop\)"):
            gk.extract(net, **arguments)


# --- states ---------------------------------------------------------------------------------------------


def counting() -> gk.Model:
    """A state `total` that adds up tanh(x), and a state `steps` that only its own update reads."""
    x = Value(gk.TensorType("float32", [2]), "x")
    total = Value(gk.TensorType("float32", [2]), "total", role="state")
    steps = Value(gk.TensorType("float32", []), "steps", role="state")
    h = gk.tanh(x, name="h")
    new = gk.add(total, h, name="new")
    y = gk.neg(gk.add(total, gk.relu(h, name="middle")))
    graph = Graph([x, total, steps], [y], [(total, new), (steps, steps + 1.0)], output_names=["y"])
    return gk.Model.from_graph(graph, {"total": np.zeros(2, np.float32), "steps": np.float32(0)})


def test_updates_stay_if_the_part_can_compute_them() -> None:
    net = counting()
    part = gk.extract(net, "y", "h")
    assert tuple(part.params) == ("total",)
    assert not lost_updates(net, part)
    h = np.float32([1, -2])
    executor = part.compile()
    assert np.array_equal(executor.run({"h": h})["y"], -np.maximum(h, 0))
    assert np.array_equal(executor.run({"h": h})["y"], -(h + np.maximum(h, 0)))


def test_updates_that_need_other_inputs_are_lost_and_told() -> None:
    net = counting()
    part = gk.extract(net, "y", "middle")
    assert part.inputs == ("middle",)
    assert lost_updates(net, part) == ("total",)
    assert not part.graph.updates
    whole = gk.extract(net, "y")
    assert whole.inputs == ("x",)
    assert [whole.graph.name_of(s) for s, _ in whole.graph.updates] == ["total"]


# --- metadata -------------------------------------------------------------------------------------------


def test_metadata_stay_where_they_hold() -> None:
    x = gk.input("x", ["N", 1, 8, 8])
    h = gk.flatten(gk.relu(x, name="pixels"), name="features")
    net = gk.Model(
        {"logits": gk.gemm(h, gk.parameter("w", [64, 3]))},
        seed=0,
        meta={"classes": json.dumps(["a", "b", "c"]), "preprocessing": "{}", "author": "me", "columns": "{}"},
    )
    head, backbone = gk.extract(net, inputs="features"), gk.extract(net, "features")
    assert dict(head.meta) == {"classes": '["a", "b", "c"]', "author": "me"}
    assert dict(backbone.meta) == {"preprocessing": "{}", "author": "me", "columns": "{}"}
    assert head.classes == ("a", "b", "c")
    assert dict(gk.extract(net, "logits").meta) == dict(net.meta)
    words = gk.input("tokens", ["N", "T"], "int64")
    text = gk.Model({"y": gk.cast(words, to="float32", name="h") + 1.0}, meta={"vocabulary": "[]"})
    assert dict(gk.extract(text, "h").meta) == {"vocabulary": "[]"}
    assert not gk.extract(text, "y", "h").meta


def test_weights_in_files_are_not_read(tmp_path: Path) -> None:
    from graphkit.ir.stored import StoredArray

    x = gk.input("x", ["N", 256])
    h = gk.relu(gk.mat_mul(x, gk.parameter("w1", [256, 256])), name="h")
    gk.Model({"y": gk.mat_mul(h, gk.parameter("w2", [256, 256]))}, seed=0).save(tmp_path / "net.json")
    net = gk.load(tmp_path / "net.json")
    part = gk.extract(net, inputs="h")
    assert isinstance(part.params.entry("w2"), StoredArray)
    assert list(part.params) == ["w2"]


def test_a_deep_part_takes_linear_time() -> None:
    h = x = gk.input("x", [2])
    for i in range(6_000):
        h = gk.relu(h, name="middle" if i == 3_000 else "")
    net = gk.Model({"y": h})
    part = gk.extract(net, inputs="middle")
    assert len(part.graph.nodes) == 2_999
    assert x.name == "x"
