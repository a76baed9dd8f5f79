"""Differences of models that are known because the test makes them, with numbers that numpy computes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from combinations import default_at, in_one_item
from onnx import TensorProto, helper, numpy_helper

import graphkit as gk
from graphkit.checks.differences import arrays
from graphkit.checks.differences.arrays import array_difference
from graphkit.checks.differences.result import Difference, NodeEntry
from graphkit.errors import CheckFailed, InputError, RuntimeFailure, UsageError
from graphkit.ir.graph import Graph, Value

RNG = np.random.default_rng(0)


def network(
    *,
    names: str = "",
    alpha: float = 0.1,
    between: Callable[[gk.Value], gk.Value] = lambda h: h,
    activation: Callable[[gk.Value], gk.Value] = gk.tanh,
    width: int = 4,
    shift: float = 0.0,
) -> gk.Model:
    """Two layers. names: suffix of all internal names. shift: is added to two elements of the second weight."""
    x = gk.input("x", ["N", 3])
    w1 = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    w2 = np.random.default_rng(2).standard_normal((4, width)).astype(np.float32)
    w2[0, :2] += shift
    h = gk.mat_mul(x, gk.parameter(f"w1{names}", [3, 4]), name=names and f"product{names}")
    h = gk.leaky_relu(h, alpha=alpha, name=names and f"leaky{names}")
    h = between(h)
    h = gk.mat_mul(h, gk.parameter(f"w2{names}", [4, width]), name=names and f"second{names}")
    return gk.Model({"y": activation(h)}, params={f"w1{names}": w1, f"w2{names}": w2})


def test_a_model_equals_itself_and_its_files(tmp_path: Path) -> None:
    net = network()
    for name in ("net.json", "net.onnx"):
        net.save(tmp_path / name)
        for a, b in ((net, tmp_path / name), (str(tmp_path / name), net)):
            found = gk.diff(a, b, run=True)
            assert found.equal
            assert found.summary == "equal: 4 nodes, 2 weights and equal outputs"
            assert not found.renamed_nodes
    assert ("producer_name", None, "graphkit") in {
        (d.what, d.a, d.b) for d in gk.diff(net, tmp_path / "net.onnx").file_facts
    }


@default_at(0)
@pytest.mark.parametrize("opset", [14, 24])
def test_opsets_are_no_difference(tmp_path: Path, opset: int) -> None:
    net = gk.models.build("densenet", image=(3, 32, 32), classes=3)
    net.save(tmp_path / "net.onnx", opset=opset)
    found = gk.diff(net, tmp_path / "net.onnx")
    assert found.equal, str(found)


def test_random_nodes_equal_their_export() -> None:
    x = gk.input("x", ["N", 3])
    net = gk.Model({"y": gk.dropout(gk.random_normal_like(x), 0.5, True)[0]})
    assert gk.diff(net, gk.load(net.to_onnx())).equal


def test_fine_tuned_weights_are_compared_as_numpy_compares_them() -> None:
    a, b = network(), network(shift=0.25)
    found = gk.diff(a, b)
    assert found.same_structure
    assert not found.equal
    (weight,) = found.weights
    assert (weight.name_a, weight.name_b, weight.type_a) == ("w2", "w2", "parameter float32[4, 4]")
    before, after = a.params["w2"].astype(np.float64), b.params["w2"].astype(np.float64)
    assert weight.elements is not None
    assert weight.elements.different == np.count_nonzero(before != after) == 2
    assert weight.elements.max_abs == np.abs(after - before).max()
    assert weight.elements.max_rel == pytest.approx(np.max(np.abs(after - before) / np.abs(before)))
    assert found.summary == "different: 1 differing weight"
    with pytest.raises(CheckFailed, match="1 differing weight"):
        found.raise_if_different()


def test_one_changed_attribute_is_one_difference() -> None:
    found = gk.diff(network(), network(alpha=0.2))
    (node,) = found.changed
    assert (node.name_a, node.operator) == ("leaky_relu", "LeakyRelu")
    assert node.differences == (Difference("attribute alpha", "0.1", "0.2"),)
    assert found.summary == "different: 1 changed node"


def test_renamed_values_are_equal() -> None:
    found = gk.diff(network(names="_a"), network(names="_b"), run=True)
    assert found.equal
    assert ("product_a", "product_b") in found.renamed_nodes
    assert set(found.renamed_weights) == {("w1_a", "w1_b"), ("w2_a", "w2_b")}


def test_an_inserted_node_is_one_node() -> None:
    found = gk.diff(network(), network(between=gk.leaky_relu))
    assert [(n.name, n.operator, n.inputs) for n in found.only_b] == [("leaky_relu_1", "LeakyRelu", ("leaky_relu",))]
    assert not found.only_a
    (node,) = found.changed
    assert node.operator == "MatMul"
    assert node.differences == (Difference("input 0", "leaky_relu", "leaky_relu_1"),)
    back = gk.diff(network(between=gk.relu), network())
    assert back.only_a == (NodeEntry("relu", "Relu", ("leaky_relu",)),)
    assert not back.only_b


def test_identity_nodes_are_no_difference() -> None:
    assert gk.diff(network(), network(between=lambda h: gk.identity(gk.identity(h))), run=True).equal


def test_another_operator_is_a_changed_node() -> None:
    found = gk.diff(network(), network(activation=gk.sigmoid))
    (node,) = found.changed
    assert node.differences == (Difference("operator", "Tanh", "Sigmoid"),)
    assert (found.only_a, found.only_b) == ((), ())


def test_another_shape_of_a_weight_and_an_output() -> None:
    found = gk.diff(network(), network(width=5))
    (weight,) = found.weights
    assert (weight.type_a, weight.type_b, weight.elements) == (
        "parameter float32[4, 4]",
        "parameter float32[4, 5]",
        None,
    )
    (output,) = found.outputs
    assert (output.name_a, output.type_a, output.type_b) == ("y", "float32[N, 4]", "float32[N, 5]")
    assert not found.changed


def test_several_changes_far_apart() -> None:
    def deep(slopes: dict[int, float]) -> gk.Model:
        h = gk.input("x", [3])
        for i in range(200):
            h = gk.tanh(gk.leaky_relu(h, alpha=slopes.get(i, 0.1)))
        return gk.Model({"y": h})

    found = gk.diff(deep({}), deep({10: 0.2, 50: 0.3, 190: 0.4}))
    assert [n.name_a for n in found.changed] == ["leaky_relu_10", "leaky_relu_50", "leaky_relu_190"]
    assert found.matched == 400
    assert not found.renamed_nodes


def test_a_removed_layer_is_found_by_its_name() -> None:
    def stack(layers: list[int]) -> gk.Model:
        h = gk.input("x", ["N", 3])
        for i in layers:
            h = gk.relu(gk.mat_mul(h, gk.parameter(f"layer{i}.w", [3, 3]), name=f"layer{i}.dot"), name=f"layer{i}.relu")
        return gk.Model({"y": h}, params={f"layer{i}.w": np.full((3, 3), i, np.float32) for i in layers})

    found = gk.diff(stack([0, 1, 2, 3]), stack([0, 1, 3]))
    assert [n.name for n in found.only_a] == ["layer2.dot", "layer2.relu"]
    assert [w.name_a for w in found.weights] == ["layer2.w"]
    assert [d.what for n in found.changed for d in n.differences] == ["input 0"]
    assert not found.renamed_nodes


def test_weights_with_counted_names_are_matched_by_structure() -> None:
    def stack(layers: list[int]) -> gk.Model:
        h = gk.input("x", ["N", 3])
        for number, value in enumerate(layers):
            h = gk.mat_mul(h, gk.parameter(f"w{number}", [3, 3]))
            h = gk.relu(h) if value == 9 else gk.tanh(h) if value % 2 else gk.sigmoid(h)
        return gk.Model({"y": h}, params={f"w{n}": np.full((3, 3), v, np.float32) for n, v in enumerate(layers)})

    found = gk.diff(stack([1, 2, 3]), stack([1, 9, 2, 3]))
    assert [w.name_b for w in found.weights] == ["w1"]
    assert found.weights[0].name_a is None
    assert set(found.renamed_weights) == {("w1", "w2"), ("w2", "w3")}


def test_swapped_weights_are_swapped_operands() -> None:
    def pair(first: str, second: str) -> gk.Model:
        x = gk.input("x", ["N", 2])
        h = gk.relu(gk.mat_mul(x, gk.parameter(first, [2, 2])))
        params = {"a": np.eye(2, dtype=np.float32), "b": np.ones((2, 2), np.float32)}
        return gk.Model({"y": gk.mat_mul(h, gk.parameter(second, [2, 2]))}, params=params)

    found = gk.diff(pair("a", "b"), pair("b", "a"))
    assert not found.weights
    assert [n.differences for n in found.changed] == [
        (Difference("input 1", "a", "b"),),
        (Difference("input 1", "b", "a"),),
    ]


def test_inputs_and_outputs_by_name_and_type() -> None:
    def build(first: str, second: str, output: str, size: Any = "N") -> gk.Model:
        a, b = gk.input(first, [size, 3]), gk.input(second, ["N", 4], "int64")
        return gk.Model({output: a + gk.cast(gk.reduce_sum(b, [1], keepdims=True), to="float32")})

    assert gk.diff(build("a", "b", "y"), build("a", "b", "y")).equal
    found = gk.diff(build("a", "b", "y"), build("a2", "b", "z"), run=True)
    assert [(p.name_a, p.name_b) for p in (*found.inputs, *found.outputs)] == [("a", "a2"), ("y", "z")]
    assert not found.changed
    assert found.behaviour is not None
    assert found.behaviour.verdict == "PASSED"
    assert not found.equal
    sized = gk.diff(build("a", "b", "y"), build("a", "b", "y", 2))
    assert [(p.name_a, p.type_a, p.type_b) for p in sized.inputs] == [("a", "float32[N, 3]", "float32[2, 3]")]


def test_an_output_that_is_another_value() -> None:
    x = gk.input("x", [3])
    h = gk.relu(x)
    found = gk.diff(gk.Model({"y": h, "z": gk.tanh(h)}), gk.Model({"y": gk.tanh(h), "z": gk.tanh(h)}))
    assert [(p.name_a, p.value_a) for p in found.outputs] == [("y", "relu")]


def test_constants_and_settings_are_shown() -> None:
    def build(shape: list[int]) -> gk.Model:
        return gk.Model({"y": gk.reshape(gk.input("x", [2, 6]), gk.constant(value=np.int64(shape)))})

    (node,) = gk.diff(build([3, 4]), build([4, 3])).changed
    assert node.differences == (Difference("input 1", "int64[2] = [3, 4]", "int64[2] = [4, 3]"),)


def test_metadata_and_model_names() -> None:
    x = gk.input("x", [2])
    a = gk.Model({"y": gk.relu(x)}, name="one", meta={"author": "a", "classes": "[]"})
    b = gk.Model({"y": gk.relu(x)}, name="two", meta={"author": "b", "epoch": "3", "mxnet.symbol": "net"})
    found = gk.diff(a, b)
    assert set(found.metadata) == {
        Difference("author", "a", "b"),
        Difference("classes", "[]", None),
        Difference("epoch", None, "3"),
    }
    assert found.file_facts == (Difference("name of the model", "one", "two"), Difference("symbol", None, "net"))
    assert not gk.diff(a, gk.Model({"y": gk.relu(x)}, name="two", meta=a.meta)).metadata


def test_updates_of_states() -> None:
    def build(factor: float | None) -> gk.Model:
        x = Value(gk.TensorType("float32", [2]), "x")
        state = Value(gk.TensorType("float32", [2]), "state", role="state")
        updates = [] if factor is None else [(state, gk.mul(state, np.float32(factor), name="next"))]
        graph = Graph([x, state], [gk.add(x, state)], updates, output_names=["y"])
        return gk.Model.from_graph(graph, {"state": np.zeros(2, np.float32)})

    assert gk.diff(build(2), build(2)).equal
    assert gk.diff(build(2), build(None)).updates == (Difference("state", "next", None),)
    assert gk.diff(build(None), build(2)).updates == (Difference("state", None, "next"),)
    assert [n.name_a for n in gk.diff(build(2), build(3)).changed] == ["next"]


# --- subgraphs ------------------------------------------------------------------------------------------


def looped(operator: str = "Relu", scale: float = 1.0, extra: bool = False) -> gk.Model:
    info = helper.make_tensor_value_info
    weight = numpy_helper.from_array(np.full(20, scale, np.float32), "weight")
    nodes = [
        helper.make_node("Identity", ["c"], ["again"]),
        helper.make_node("Mul", ["s", "weight"], ["m"], name="scale"),
        *([helper.make_node("Abs", ["m"], ["e"], name="extra")] if extra else []),
        helper.make_node(operator, ["e" if extra else "m"], ["t"], name="act"),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [info("i", TensorProto.INT64, []), info("c", TensorProto.BOOL, []), info("s", TensorProto.FLOAT, [20])],
        [info("again", TensorProto.BOOL, []), info("t", TensorProto.FLOAT, [20])],
        [weight],
    )
    loop = helper.make_node("Loop", ["count", "", "x"], ["y"], body=body, name="repeat")
    count = helper.make_tensor("count", TensorProto.INT64, [], [3])
    graph = helper.make_graph(
        [loop], "g", [info("x", TensorProto.FLOAT, [20])], [info("y", TensorProto.FLOAT, [20])], [count]
    )
    return gk.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


def test_bodies_of_loops_are_compared() -> None:
    assert gk.diff(looped(), looped(), run=True).equal
    (node,) = gk.diff(looped(), looped("Tanh")).changed
    assert (node.name_a, node.differences) == ("repeat.body/act", (Difference("operator", "Relu", "Tanh"),))
    found = gk.diff(looped(), looped(extra=True))
    assert [n.name for n in found.only_b] == ["repeat.body/extra"]
    assert [n.name_a for n in found.changed] == ["repeat.body/act"]
    (weight,) = gk.diff(looped(), looped(scale=2.0)).weights
    assert weight.elements is not None
    assert (weight.elements.different, weight.elements.max_abs, weight.elements.max_rel) == (20, 1.0, 1.0)


# --- arrays ---------------------------------------------------------------------------------------------


def test_arrays_nan_zero_and_infinity() -> None:
    a = np.float32([0.0, np.nan, 1, np.inf, np.nan, 5])
    b = np.float32([-0.0, np.nan, 2, -np.inf, 3, 5])
    found = array_difference(a, b)
    assert (found.elements, found.different, found.nonfinite) == (6, 3, 2)
    assert (found.max_abs, found.max_rel, found.same_bits) == (1.0, 1.0, False)
    signs = array_difference(a[:1], b[:1])
    assert (signs.different, signs.same_bits) == (0, False)
    assert "other bits" in str(signs)
    assert str(array_difference(a, a.copy())) == "equal"
    assert array_difference(np.zeros((0, 3)), np.zeros((0, 3))).same_bits


@in_one_item()
@pytest.mark.parametrize(
    ("dtype", "a", "b", "largest"),
    [
        ("int64", [1, 2**62], [1, 2**62 + 1], 1.0),
        ("uint8", [255, 3], [0, 3], 255.0),
        ("bool", [True, False], [True, True], 1.0),
        (object, ["a", "b"], ["a", "c"], 1.0),
        ("float16", [1, 2], [1, 4], 2.0),
        (ml_dtypes.bfloat16, [1, 2], [1, 4], 2.0),
        (ml_dtypes.int4, [1, 7], [1, -8], 15.0),
        ("complex64", [1, 3 + 4j], [1, 0], 5.0),
        ("float64", [1e300, 0], [1e300, 2], 2.0),
    ],
)
def test_arrays_of_every_kind(dtype: Any, a: list[Any], b: list[Any], largest: float) -> None:
    found = array_difference(np.array(a, dtype), np.array(b, dtype))
    assert (found.different, found.max_abs, found.same_bits) == (1, largest, False)


def test_large_arrays_in_files_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_PART", 1000)
    values = RNG.standard_normal((70, 700)).astype(np.float32)
    for name, array in (("a", values), ("b", values.copy())):
        if name == "b":
            array[[0, 30, 69], [0, 500, 699]] += 2
        gk.Model({"y": gk.mat_mul(gk.input("x", ["N", 70]), gk.parameter("w", [70, 700]))}, params={"w": array}).save(
            tmp_path / f"{name}.onnx"
        )
    a, b = (gk.load(tmp_path / f"{name}.onnx") for name in "ab")
    monkeypatch.setattr(type(a.params.entry("w")), "array", property(lambda self: pytest.fail("read as a whole")))
    (weight,) = gk.diff(a, b).weights
    assert weight.elements is not None
    assert (weight.elements.elements, weight.elements.different) == (49_000, 3)
    assert weight.elements.max_abs == pytest.approx(2.0, rel=1e-6)


# --- behaviour ------------------------------------------------------------------------------------------


def test_outputs_are_compared() -> None:
    found = gk.diff(network(), network(shift=0.25), run=True)
    assert found.behaviour is not None
    assert found.behaviour.verdict == "FAILED"
    a, b = network(), network(shift=0.25)
    x = RNG.standard_normal((5, 3), np.float32)
    (report,) = gk.diff(a, b, run=True, inputs={"x": x}).behaviour.outputs  # type: ignore[union-attr]
    expected = np.abs(a.run({"x": x})["y"].astype(float) - b.run({"x": x})["y"].astype(float)).max()
    assert report.max_abs == pytest.approx(expected)
    assert report.shape == (5, 4)


def test_another_order_of_sums_is_rounding() -> None:
    rows = RNG.standard_normal((4, 3000), np.float32) * 1000
    x = gk.input("x", ["N", 3000])
    whole = gk.Model({"y": gk.reduce_sum(x, [1])})
    halves = gk.split(x, num_outputs=2, axis=1)
    parts = gk.Model({"y": gk.reduce_sum(halves[0], [1]) + gk.reduce_sum(halves[1], [1])})
    # Sums that cancel: no relative tolerance holds.
    rows[:, 1500:] = -rows[:, 1499::-1] + np.float32(1e-3)
    found = gk.diff(whole, parts, run=True, inputs={"x": rows})
    assert found.behaviour is not None
    (report,) = found.behaviour.outputs
    assert report.passed
    assert not found.same_structure


def test_a_run_that_compares_nothing_is_not_equal() -> None:
    x = gk.input("x", ["N", 2])
    net = gk.Model({"y": gk.sqrt(gk.neg(gk.abs(x)) - 1.0)})
    found = gk.diff(net, net, run=True)
    assert found.behaviour is not None
    assert (found.behaviour.verdict, found.equal) == ("NOT TESTED", False)
    assert found.summary == "different: outputs: NOT TESTED"


def test_models_that_take_other_inputs_say_why_they_were_not_run() -> None:
    a = gk.Model({"y": gk.relu(gk.input("x", ["N", 2]))})
    for kind, size in (("float32", 3), ("float64", 2)):
        found = gk.diff(a, gk.Model({"y": gk.relu(gk.input("x", ["N", size], kind))}), run=True)
        assert found.behaviour is not None
        assert found.behaviour.verdict == "NOT TESTED"
        assert "B cannot be run on the inputs of A" in found.behaviour.reason
    drawn = gk.Model({"y": gk.random_normal_like(gk.input("x", ["N", 2]))})
    with pytest.raises(UsageError, match="A draws random numbers"):
        gk.diff(drawn, a, run=True)
    with pytest.raises(InputError, match="no input 'z'"):
        gk.diff(a, a, run=True, inputs={"z": 1})


def test_errors_of_a_run_name_the_model() -> None:
    x = gk.input("x", ["N"], "int64")
    a = gk.Model({"y": gk.gather(gk.parameter("t", [9, 2], init="ones"), x)})
    b = gk.Model({"y": gk.gather(gk.parameter("t", [5, 2], init="ones"), x)})
    with pytest.raises(RuntimeFailure, match=r"model B: .*Gather.*index 7"):
        gk.diff(a, b, run=True, inputs={"x": np.int64([7])})


def test_extra_inputs_of_b_are_filled() -> None:
    x, y = gk.input("x", [2]), gk.input("more", [2])
    found = gk.diff(gk.Model({"y": x * 2.0}), gk.Model({"y": x * 2.0 + y * 0.0}), run=True)
    assert found.behaviour is not None
    assert found.behaviour.verdict == "PASSED"
    assert [p.name_b for p in found.inputs] == ["more"]


# --- text, JSON, time -----------------------------------------------------------------------------------


def test_texts_are_short_and_data_are_whole() -> None:
    x = gk.input("x", [2])
    many = x
    for _ in range(50):
        many = gk.relu(many)
    found = gk.diff(gk.Model({"y": gk.tanh(x)}), gk.Model({"y": gk.tanh(many)}))
    assert len(found.only_b) == len(found.as_dict()["only_b"]) == 50
    assert "... and 30 more" in str(found)
    assert repr(found) == "<ModelDiff: different: 50 B-only nodes, 1 changed node>"
    assert onnx.__version__ not in str(found)


def test_many_nodes_take_linear_time() -> None:
    def chain(count: int, at: int) -> gk.Model:
        x = h = gk.input("x", [2])
        for i in range(count):
            h = gk.relu(h) if i % 3 else gk.add(h, x)
            if i == at:
                h = gk.tanh(h)
        return gk.Model({"y": h})

    def seconds(count: int) -> float:
        a, b = chain(count, -1), chain(count, count // 2)
        start = time.thread_time()
        found = gk.diff(a, b)
        taken = time.thread_time() - start
        assert (len(found.only_b), len(found.changed), found.matched) == (1, 1, count)
        return taken

    seconds(500)
    # A collection of garbage may fall into one of the calls.
    assert any(seconds(8_000) < 16 * max(seconds(1_000), 0.02) for _ in range(3))


def test_readers_of_one_value_take_linear_time() -> None:
    def star(offset: float) -> gk.Model:
        x = gk.input("x", [2])
        return gk.Model({"y": gk.sum(*(gk.leaky_relu(x, alpha=offset + i * 1e-4) for i in range(1500)))})

    a, b = star(0.1), star(0.9)
    start = time.thread_time()
    found = gk.diff(a, b)
    assert len(found.changed) == 1500
    assert time.thread_time() - start < 5
