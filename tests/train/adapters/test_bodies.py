"""Adapters of layers in loops and branches: compared with the unrolled network, differences, and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import GraphkitWarning, UsageError
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.passes.core.sweep import operators
from graphkit.train.adapters.layers import find_layers

RNG = np.random.default_rng(0)
_STATE = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Let each test draw the same numbers, whatever ran before it."""
    RNG.bit_generator.state = _STATE


STEPS, BATCH, INPUTS, STATES = 4, 3, 5, 6


def cell(dtype: str) -> Callable:
    """The step of a recurrent network with two layers. One of them reads a transposed weight."""
    wide = gk.parameter("input.weight", (STATES, INPUTS), dtype=dtype)
    again = gk.parameter("again.weight", (STATES, STATES), dtype=dtype)
    bias = gk.parameter("again.bias", (STATES,), "zeros", dtype=dtype)

    def step(h, x):
        h = gk.tanh(gk.mat_mul(x, gk.transpose(wide, perm=(1, 0)), name="in") + gk.gemm(h, again, bias, name="again"))
        return h, h

    return step


def recurrent(form: str, dtype: str = "float32", seed: int = 0) -> gk.Model:
    """A recurrent network as a Scan, a Loop, or unrolled, with equal parameters."""
    x = gk.input("x", [STEPS, BATCH, INPUTS], dtype)
    h = gk.constant(np.zeros((BATCH, STATES), dtype))
    step = cell(dtype)
    if form == "scan":
        h, _ = gk.scan(step, h, x)
    elif form == "loop":
        _, h = gk.while_loop(
            lambda s: s[0] < STEPS,
            lambda s: (s[0] + 1, step(s[1], gk.gather(x, s[0]))[0]),
            (gk.constant(np.array(0)), h),
            maximum_iterations=STEPS,
        )
    else:
        for t in range(STEPS):
            h, _ = step(h, gk.gather(x, gk.constant(np.array(t))))
    return gk.Model({"y": gk.mat_mul(h, gk.parameter("out.weight", (STATES, 2), dtype=dtype), name="out")}, seed=seed)


def disturbed(model: gk.Model) -> gk.Model:
    rng = np.random.default_rng(1)
    for name in sorted(model.trainable):
        array = model.params[name]
        model.params[name] = array + (0.3 * rng.standard_normal(array.shape)).astype(array.dtype)
    return model


def data(dtype: str = "float32") -> dict[str, np.ndarray]:
    return {"x": RNG.standard_normal((STEPS, BATCH, INPUTS)).astype(dtype)}


def layer_names(model: gk.Model) -> list[str]:
    return [layer.name for layer in find_layers(model.graph)[0]]


@in_one_item("values")
@pytest.mark.parametrize("form", ["scan", "loop"])
@pytest.mark.parametrize("options", [{}, {"dora": True}, {"rslora": True, "layers": "again"}])
def test_outputs_and_gradients_equal_those_of_the_unrolled_network(form: str, options: dict) -> None:
    nets = [recurrent(each) for each in (form, "unrolled")]
    assert set(layer_names(nets[0])) == set(layer_names(nets[1])) == {"input", "again", "out"}
    adapted = [disturbed(gk.lora(net, rank=2, seed=3, **options)) for net in nets]
    assert set(adapted[0].trainable) == set(adapted[1].trainable)
    x, target = data(), np.ones((BATCH, 2), np.float32)
    outputs = [model.run(x)["y"] for model in adapted]
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-5, atol=1e-6)
    assert not np.allclose(outputs[0], nets[0].run(x)["y"], atol=1e-2)
    before = {name: np.array(adapted[0].params[name]) for name in adapted[0].trainable}
    for model in adapted:
        gk.Trainer(model, "mse", gk.optim.SGD(1.0), threads=1).step(x["x"], target)
    for name, array in before.items():
        changes = [model.params[name] - array for model in adapted]
        assert np.abs(changes[0]).max() > 1e-4
        np.testing.assert_allclose(changes[0], changes[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["scan", "loop"])
def test_gradients_equal_differences_in_float64(form: str) -> None:
    adapted = disturbed(gk.lora(recurrent(form, "float64"), rank=2, seed=3))
    x, target = data("float64"), np.full((BATCH, 2), 0.5)

    def loss() -> float:
        return float(((adapted.run(x)["y"] - target) ** 2).mean())

    expected = {}
    for name in adapted.trainable:
        array = np.array(adapted.params[name])
        found = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            ends = []
            for sign in (1, -1):
                moved = array.copy()
                moved[index] += sign * 1e-5
                adapted.params[name] = moved
                ends.append(loss())
            found[index] = (ends[0] - ends[1]) / 2e-5
        adapted.params[name] = array
        expected[name] = (array, found)
    gk.Trainer(adapted, "mse", gk.optim.SGD(1.0), threads=1).step(x["x"], target)
    for name, (array, gradient) in expected.items():
        np.testing.assert_allclose(array - adapted.params[name], gradient, rtol=1e-6, atol=1e-9)


@in_one_item("values")
@pytest.mark.parametrize("form", ["scan", "loop"])
@pytest.mark.parametrize("dora", [False, True])
def test_merged_and_unmerged_files_agree_in_onnx_runtime(tmp_path, form: str, dora: bool) -> None:
    net = recurrent(form)
    adapted = disturbed(gk.lora(net, rank=2, dora=dora))
    merged = gk.merge_lora(adapted)
    assert list(merged.params) == list(net.params)
    assert operators(merged.graph) == operators(net.graph)
    x = data()
    expected = adapted.run(x)["y"]
    np.testing.assert_allclose(merged.run(x)["y"], expected, rtol=1e-5, atol=1e-6)
    for name, model in (("unmerged", adapted), ("merged", merged)):
        model.save(tmp_path / f"{name}.onnx")
        found = OnnxRuntimeModel(tmp_path / f"{name}.onnx").run(x)["y"]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        again = gk.load(tmp_path / f"{name}.onnx")
        np.testing.assert_allclose(again.run(x)["y"], expected, rtol=1e-5, atol=1e-6)
    reread = gk.merge_lora(gk.load(tmp_path / "unmerged.onnx"))
    np.testing.assert_allclose(reread.run(x)["y"], expected, rtol=1e-5, atol=1e-6)
    assert sorted(reread.params) == sorted(net.params)


def test_files_of_a_loop_and_of_the_unrolled_network_are_equal(tmp_path) -> None:
    x = data()
    adapted = disturbed(gk.lora(recurrent("scan"), rank=2, dora=True))
    gk.save_adapter(adapted, tmp_path)
    expected = adapted.run(x)["y"]
    for form in ("scan", "loop", "unrolled"):
        loaded = gk.load_adapter(recurrent(form), tmp_path)
        np.testing.assert_allclose(loaded.run(x)["y"], expected, rtol=1e-5, atol=1e-6)
        json = tmp_path / f"{form}.json"
        loaded.save(json)
        np.testing.assert_array_equal(gk.load(json).run(x)["y"], loaded.run(x)["y"])


def branches() -> gk.Model:
    """Two branches. Each has its own weight, and both share a weight with the outer graph."""
    x, positive = gk.input("x", ["N", 4]), gk.input("positive", [], "bool")
    weights = {n: gk.parameter(f"{n}.weight", (4, 4)) for n in ("yes", "no", "both")}

    def branch(name: str) -> Callable:
        return lambda h: gk.mat_mul(gk.tanh(gk.mat_mul(h, weights[name])), weights["both"])

    y = gk.cond(positive, branch("yes"), branch("no"), (x,))
    return gk.Model({"y": gk.mat_mul(y, weights["both"])}, seed=0)


@pytest.mark.parametrize("dora", [False, True])
def test_branches_share_an_adapter_with_the_graph_around_them(dora: bool) -> None:
    adapted = disturbed(gk.lora(branches(), rank=2, dora=dora))
    assert {n.partition(".lora")[0] for n in adapted.trainable} == {"yes", "no", "both"}
    merged = gk.merge_lora(adapted)
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    for positive in (True, False):
        own, both = (merged.params[f"{name}.weight"] for name in ("yes" if positive else "no", "both"))
        expected = np.tanh(x @ own) @ both @ both
        feeds = {"x": x, "positive": np.array(positive)}
        np.testing.assert_allclose(adapted.run(feeds)["y"], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(merged.run(feeds)["y"], expected, rtol=1e-4, atol=1e-5)


def test_only_the_branch_that_ran_is_trained() -> None:
    adapted = disturbed(gk.lora(branches(), rank=2))
    before = {name: np.array(adapted.params[name]) for name in adapted.trainable}
    step = gk.Trainer(adapted, "mse", gk.optim.SGD(0.5), threads=1).step
    step({"x": np.ones((3, 4), np.float32), "positive": np.array(True)}, np.zeros((3, 4), np.float32))
    changed = {name.split(".")[0] for name, array in before.items() if not np.array_equal(array, adapted.params[name])}
    assert changed == {"yes", "both"}


def test_a_loop_in_a_branch_in_a_loop() -> None:
    w = gk.parameter("deep.weight", (4, 4))
    x = gk.input("x", ["N", 4])

    def inner(h):
        return gk.scan(lambda s, _: (gk.tanh(gk.mat_mul(s, w)), s), h, None, length=2)[0]

    def outer(h, row):
        h = gk.cond(gk.reduce_sum(row, keepdims=False) > 0.0, inner, lambda h: h * 2.0, (h,))
        return h, h

    rows = gk.constant(np.array([[1.0], [-1.0], [2.0]], np.float32))
    net = gk.Model({"y": gk.scan(outer, x, rows)[0]}, seed=0)
    adapted = disturbed(gk.lora(net, rank=2))
    assert adapted.trainable == ("deep.lora_A.weight", "deep.lora_B.weight")
    merged = gk.merge_lora(adapted)
    assert list(merged.params) == ["deep.weight"]
    h = expected = RNG.standard_normal((2, 4)).astype(np.float32)
    for value in (1, -1, 2):
        for _ in range(2):
            expected = np.tanh(expected @ merged.params["deep.weight"]) if value > 0 else expected
        expected = expected * 2 if value < 0 else expected
    for model in (adapted, merged):
        np.testing.assert_allclose(model.run({"x": h})["y"], expected, rtol=1e-4, atol=1e-5)
    loss = gk.Trainer(adapted, "mse", gk.optim.Adam(0.01), threads=1).step
    losses = [float(loss(h, np.zeros((2, 4), np.float32))) for _ in range(20)]
    assert losses[-1] < 0.9 * losses[0]


def test_convolution_and_dropout_in_a_loop() -> None:
    w = gk.parameter("conv.weight", (3, 3, 3, 3))
    x = gk.input("x", ["N", 3, 5, 5])
    step = lambda h: gk.tanh(gk.conv(h, w, pads=(1, 1, 1, 1)))  # noqa: E731
    net = gk.Model({"y": gk.scan(lambda h, _: (step(h), h), x, None, length=3)[0]}, seed=0)
    adapted = disturbed(gk.lora(net, rank=2, dropout=0.5))
    merged, image = gk.merge_lora(adapted), RNG.standard_normal((2, 3, 5, 5)).astype(np.float32)
    h = gk.input("h", ["N", 3, 5, 5])
    once = gk.Model({"y": step(h)}, params={"conv.weight": merged.params["conv.weight"]})
    expected = image
    for _ in range(3):
        expected = once.run({"h": expected})["y"]
    for model in (adapted, merged):
        np.testing.assert_allclose(model.run({"x": image})["y"], expected, rtol=1e-4, atol=1e-5)
    trainer = gk.Trainer(adapted, "mse", gk.optim.SGD(0.0), threads=1)
    assert len({float(trainer.step(image, np.zeros_like(image))) for _ in range(3)}) == 3


def file_with_weights_in_the_body(weight: np.ndarray, quantised: bool) -> onnx.ModelProto:
    """A Loop whose body contains the weight as an initializer, or as int8 numbers with scales."""
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    tensors, nodes = [numpy_helper.from_array(weight, "w")], []
    if quantised:
        tensors = [
            numpy_helper.from_array(np.clip(np.rint(weight * 64), -128, 127).astype(np.int8), "q"),
            numpy_helper.from_array(np.float32(1 / 64), "scale"),
        ]
        nodes = [helper.make_node("DequantizeLinear", ["q", "scale"], ["w"])]
    nodes += [
        helper.make_node("MatMul", ["h", "w"], ["z"], name="proj"),
        helper.make_node("Tanh", ["z"], ["next"]),
        helper.make_node("Identity", ["cond"], ["again"]),
    ]
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        nodes, "body", [value("i", 7, []), value("cond", 9, []), value("h", 1, ["N", 4])],
        [value("again", 9, []), value("next", 1, ["N", 4])], tensors,
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Loop", ["count", "", "x"], ["y"], body=body, name="loop")], "g",
        [value("x", 1, ["N", 4])], [value("y", 1, ["N", 4])], [numpy_helper.from_array(np.array(3), "count")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("quantised", [False, True])
def test_weights_stored_in_the_body_get_adapters(tmp_path, quantised: bool) -> None:
    weight = (np.rint(RNG.standard_normal((4, 4)) * 30) / 64).astype(np.float32)  # int8 can store it exactly
    net = gk.load(file_with_weights_in_the_body(weight, quantised))
    x = RNG.standard_normal((2, 4)).astype(np.float32)
    (name,) = layer_names(net)
    adapted = gk.lora(net, rank=2)
    assert adapted.trainable == (f"{name}.lora_A.weight", f"{name}.lora_B.weight")

    def expected(matrix: np.ndarray) -> np.ndarray:
        return np.tanh(np.tanh(np.tanh(x @ matrix) @ matrix) @ matrix)

    np.testing.assert_allclose(adapted.run({"x": x})["y"], expected(weight), rtol=1e-5, atol=1e-6)
    disturbed(adapted)
    change = 8.0 * (adapted.params[f"{name}.lora_B.weight"] @ adapted.params[f"{name}.lora_A.weight"]).T
    merged = gk.merge_lora(adapted)
    merged.save(tmp_path / "merged.onnx")
    for found in (
        adapted.run({"x": x}),
        merged.run({"x": x}),
        OnnxRuntimeModel(tmp_path / "merged.onnx").run({"x": x}),
    ):
        np.testing.assert_allclose(found["y"], expected(weight + change), rtol=1e-4, atol=1e-5)


def test_layers_of_two_branches_with_one_name_are_told_apart() -> None:
    x, positive = gk.input("x", ["N", 4]), gk.input("positive", [], "bool")
    constants = [gk.constant(RNG.standard_normal((4, 4)).astype(np.float32)) for _ in range(2)]
    branch = [lambda h, c=c: gk.mat_mul(h, c, name="fc") for c in constants]
    net = gk.Model({"y": gk.cond(positive, *branch, (x,), name="choice")}, seed=0)
    assert layer_names(net) == ["choice.then_branch.fc", "choice.else_branch.fc"]
    assert len(gk.lora(net, layers="choice.then*", rank=2).trainable) == 2
    assert len(gk.lora(net, layers="fc", rank=2).trainable) == 4


def test_a_weight_that_each_iteration_slices_is_refused() -> None:
    stacked = gk.parameter("layers.weight", (3, 4, 4))
    step = lambda h, w: (gk.mat_mul(h, w, name="fc"), h)  # noqa: E731
    net = gk.Model({"y": gk.scan(step, gk.input("x", ["N", 4]), stacked)[0]}, seed=0)
    with pytest.raises(UsageError, match=r"cannot have adapters: .*fc \(each iteration of a Scan takes another slice"):
        gk.lora(net, layers="fc")
    both = gk.Model({"y": gk.nn.linear(net(gk.input("x", ["N", 4])), 2, name="head")}, seed=0)
    with pytest.warns(GraphkitWarning, match=r"get no adapter: .*another slice"):
        assert gk.lora(both, rank=1).trainable == ("head.lora_A.weight", "head.lora_B.weight")


def test_loops_that_share_a_body_share_an_adapter_only_with_one_weight() -> None:
    w, other = gk.parameter("a.weight", (4, 4)), gk.parameter("b.weight", (4, 4))
    x = gk.input("x", ["N", 4])
    net = gk.Model({"y": gk.scan(lambda h, _: (gk.mat_mul(h, w, name="fc"), h), x, None, length=2)[0]}, seed=0)
    twice = gk.Model({"y": net(net(x))}, seed=0)
    adapted, data = disturbed(gk.lora(twice, rank=2)), RNG.standard_normal((2, 4)).astype(np.float32)
    expected = data @ np.linalg.matrix_power(gk.merge_lora(adapted).params["a.weight"], 4)
    np.testing.assert_allclose(adapted.run({"x": data})["y"], expected, rtol=1e-3, atol=1e-4)
    mixed = gk.Model({"y": net.functional_call({"a.weight": other}, net(x))}, seed=0)
    with pytest.raises(UsageError, match="two loops or branches share its node, but not its weight"):
        gk.lora(mixed, rank=2)


@in_one_item()
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("dora", [False, True])
def test_half_layers_in_a_loop_get_float32_adapters(dtype: str, dora: bool) -> None:
    w, x = gk.parameter("fc.weight", (6, 6), dtype=dtype), gk.input("x", ["N", 6], dtype)
    net = gk.Model({"y": gk.scan(lambda h, _: (gk.tanh(gk.mat_mul(h, w)), h), x, None, length=2)[0]}, seed=0)
    adapted = gk.lora(net, rank=2, dora=dora)
    feeds = {"x": RNG.standard_normal((3, 6)).astype(net.params["fc.weight"].dtype)}
    found, expected = (model.run(feeds)["y"].astype(np.float32) for model in (adapted, net))
    # The kernel of a loop may round once where two kernels round twice.
    rtol = 2 * float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * np.abs(expected).max())
    assert {str(adapted.params.type_of(name).dtype) for name in adapted.trainable} == {"float32"}
    disturbed(adapted)
    merged = gk.merge_lora(adapted)
    assert merged.params["fc.weight"].dtype == net.params["fc.weight"].dtype
    outputs = [model.run(feeds)["y"].astype(np.float32) for model in (adapted, merged, net)]
    tolerance = {"float16": 4e-3, "bfloat16": 3e-2}[dtype]
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=tolerance, atol=tolerance)
    assert np.abs(outputs[0] - outputs[2]).max() > 2 * tolerance


@pytest.mark.parametrize(("steps", "rows"), [(0, 3), (2, 0)])
def test_loops_without_iterations_or_rows(steps: int, rows: int) -> None:
    w, x = gk.parameter("fc.weight", (4, 4)), gk.input("x", ["N", 4])
    times = gk.input("times", ["T", 1])
    net = gk.Model({"y": gk.scan(lambda h, t: (gk.mat_mul(h, w) + t, h), x, times)[0]}, seed=0)
    adapted = disturbed(gk.lora(net, rank=2))
    feeds = {"x": np.ones((rows, 4), np.float32), "times": np.zeros((steps, 1), np.float32)}
    for model in (adapted, gk.merge_lora(adapted)):
        np.testing.assert_array_equal(model.run(feeds)["y"], feeds["x"])


def test_recomputed_iterations_give_the_same_gradients() -> None:
    changes = []
    for recompute in (None, 2):
        w, x = gk.parameter("fc.weight", (4, 4)), gk.input("x", [2, 4])
        h, _ = gk.scan(lambda h, _, w=w: (gk.tanh(gk.mat_mul(h, w)), h), x, None, length=4, recompute=recompute)
        adapted = disturbed(gk.lora(gk.Model({"y": h}, seed=0), rank=2, dora=True, seed=1))
        before = {name: np.array(adapted.params[name]) for name in adapted.trainable}
        gk.Trainer(adapted, "mse", gk.optim.SGD(1.0), threads=1).step(np.ones((2, 4), "f4"), np.zeros((2, 4), "f4"))
        changes.append({name: adapted.params[name] - array for name, array in before.items()})
    assert len(changes[0]) == 3
    for name, change in changes[0].items():
        assert np.abs(change).max() > 1e-4
        np.testing.assert_allclose(changes[1][name], change, rtol=1e-4, atol=1e-6)


def test_functions_of_sequence_map(tmp_path) -> None:
    w, x = gk.parameter("fc.weight", (4, 4)), gk.input("x", [3, 4])
    rows = gk.sequence_map(lambda row: gk.mat_mul(row, w), gk.split_to_sequence(x, axis=0))
    adapted = disturbed(gk.lora(gk.Model({"y": gk.concat_from_sequence(rows, axis=0)}, seed=0), rank=2))
    adapted.save(tmp_path / "net.onnx")
    feeds = {"x": RNG.standard_normal((3, 4)).astype(np.float32)}
    expected = feeds["x"] @ gk.merge_lora(adapted).params["fc.weight"]
    for found in (adapted.run(feeds), OnnxRuntimeModel(tmp_path / "net.onnx").run(feeds)):
        np.testing.assert_allclose(found["y"], expected, rtol=1e-4, atol=1e-5)
