"""jvp, vjp, jacobian, hessian, grad with seeds, and vmap, compared with numeric differences and torch.func."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item
from derivative_networks import NETWORKS, feeds, model

import graphkit as gk
from graphkit.errors import UsageError

STEP = 1e-5


def numeric(net, given, name, wrt):
    """The Jacobian of an output with respect to an input, by central differences: [*output, *input]."""
    exe, x = net.compile(threads=1), given[wrt]
    columns = []
    for i in np.ndindex(x.shape):
        shifted = []
        for sign in (1, -1):
            moved = x.copy()
            moved[i] += sign * STEP
            shifted.append(exe.run(given | {wrt: moved})[name])
        columns.append(np.asarray((shifted[0] - shifted[1]) / (2 * STEP)))
    return np.moveaxis(np.array(columns), 0, -1).reshape((*columns[0].shape, *x.shape))


def close(found, expected, **limits):
    np.testing.assert_allclose(found, expected, **({"rtol": 1e-6, "atol": 1e-7} | limits))


@in_one_item()
@pytest.mark.parametrize("name", NETWORKS)
def test_derivatives_are_those_of_central_differences(name):
    net, given = model(name), feeds(name)
    wrt = list(given)
    rng = np.random.default_rng(1)
    y = net.run(given)["y"]
    expected = {x: numeric(net, given, "y", x) for x in wrt}
    for mode in ("reverse", "forward"):
        found = gk.jacobian(net, wrt=wrt, mode=mode, with_outputs=True).run(given)
        close(found["y"], y)
        for x in wrt:
            close(found[f"{x}_jacobian"], expected[x])
    seed = rng.standard_normal(y.shape)
    products = gk.vjp(net, wrt=wrt).run(given | {"y_seed": seed})
    fixed = gk.grad(net, wrt=wrt, seeds={"y": seed}).run(given)
    for x in wrt:
        close(products[f"{x}_grad"], np.tensordot(seed, expected[x], seed.ndim))
        np.testing.assert_array_equal(fixed[f"{x}_grad"], products[f"{x}_grad"])
    tangents = {f"{x}_tangent": rng.standard_normal(given[x].shape) for x in wrt}
    total = sum(np.tensordot(expected[x], tangents[f"{x}_tangent"], given[x].ndim) for x in wrt)
    close(gk.jvp(net, wrt=wrt).run(given | tangents)["y_tangent"], total)


@in_one_item()
@pytest.mark.parametrize("name", NETWORKS)
def test_hessians_are_those_of_central_differences(name):
    base, given = model(name), feeds(name)
    total = gk.reduce_sum(gk.sin(base.value("y")), keepdims=False)
    net = gk.Model({"s": total}, inputs=list(base.data_inputs))
    wrt = list(given)
    found = gk.hessian(net, wrt=wrt).run(given)
    gradients = gk.grad(net, wrt=wrt)
    for a in wrt:
        for b in wrt:
            close(found[f"{a}_{b}_hessian"], numeric(gradients, given, f"{a}_grad", b), rtol=1e-5, atol=1e-6)


@pytest.mark.pytorch
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", NETWORKS)
def test_derivatives_are_those_of_torch_func(name, seed):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    net, given = model(name), feeds(name, seed)
    wrt = list(given)
    tensors = [torch.tensor(array) for array in given.values()]

    def function(*inputs):
        return NETWORKS[name].torch(torch, *inputs)

    rng = np.random.default_rng(seed + 1)
    expected, back = torch.func.vjp(function, *tensors)
    seeds = rng.standard_normal(expected.shape)
    found = gk.vjp(net, wrt=wrt, with_outputs=True).run(given | {"y_seed": seeds})
    close(found["y"], expected.numpy())
    for x, theirs in zip(wrt, back(torch.tensor(seeds)), strict=True):
        close(found[f"{x}_grad"], theirs.numpy())
    tangents = [rng.standard_normal(array.shape) for array in given.values()]
    _, theirs = torch.func.jvp(function, tuple(tensors), tuple(map(torch.tensor, tangents)))
    ours = gk.jvp(net, wrt=wrt).run(given | {f"{x}_tangent": t for x, t in zip(wrt, tangents, strict=True)})
    close(ours["y_tangent"], theirs.numpy())
    numbers = tuple(range(len(wrt)))
    for mode, jacobian in (("reverse", torch.func.jacrev), ("forward", torch.func.jacfwd)):
        ours = gk.jacobian(net, wrt=wrt, mode=mode).run(given)
        for x, theirs in zip(wrt, jacobian(function, argnums=numbers)(*tensors), strict=True):
            close(ours[f"{x}_jacobian"], theirs.numpy())
    scalar = gk.Model({"s": gk.reduce_sum(gk.sin(net.value("y")), keepdims=False)}, inputs=list(net.data_inputs))
    ours = gk.hessian(scalar, wrt=wrt).run(given)
    blocks = torch.func.hessian(lambda *inputs: torch.sin(function(*inputs)).sum(), argnums=numbers)(*tensors)
    for a, row in zip(wrt, blocks, strict=True):
        for b, theirs in zip(wrt, row, strict=True):
            close(ours[f"{a}_{b}_hessian"], theirs.numpy(), rtol=1e-5)


@in_one_item()
@pytest.mark.parametrize("name", ["perceptron", "attention", "loop", "scan", "branch"])
def test_derivatives_export_and_are_verified(name):
    net, given = model(name), feeds(name)
    wrt = list(given)
    for made in (gk.jacobian(net, wrt=wrt), gk.jacobian(net, wrt=wrt, mode="forward"), gk.vmap(net)):
        extended = {x: np.stack([a, a + 1]) for x, a in given.items()} if made.name.endswith("vmap") else given
        report = gk.verify(made, extended, threads=1)
        assert report.passed, str(report)


def test_symbolic_sizes_stay_symbolic():
    x = gk.input("x", ["N", 2], "float64")
    net = gk.Model({"y": gk.sin(x) * gk.reduce_sum(x, keepdims=True)})
    for mode in ("reverse", "forward"):
        made = gk.jacobian(net, wrt="x", mode=mode)
        assert str(made.output_types["x_jacobian"]) == "float64[N, 2, N, 2]"
        exe = made.compile(threads=1)
        for rows in (0, 1, 3):
            given = {"x": np.random.default_rng(rows).standard_normal((rows, 2))}
            found = exe.run(given)["x_jacobian"]
            assert found.shape == (rows, 2, rows, 2)
            if rows:
                close(found, numeric(net, given, "y", "x"))


@in_one_item()
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_jacobians_have_the_type_of_the_network(dtype):
    x = gk.input("x", [3], dtype)
    made = gk.jacobian(gk.Model({"y": x * x}), wrt="x")
    given = np.arange(3).astype(made.input_types["x"].dtype.numpy)
    found = made.run({"x": given})["x_jacobian"]
    assert found.dtype == given.dtype
    np.testing.assert_array_equal(found.astype(float), np.diag([0, 2, 4]))


def test_parameters_are_the_default():
    net = gk.Model({"y": gk.nn.linear(gk.input("x", ["N", 3]), 2, name="fc")}, seed=0)
    found = gk.jacobian(net).run({"x": np.ones((1, 3), np.float32)})
    assert {name: array.shape for name, array in found.items()} == {
        "fc_weight_jacobian": (1, 2, 2, 3), "fc_bias_jacobian": (1, 2, 2),
    }  # fmt: skip
    np.testing.assert_array_equal(found["fc_bias_jacobian"][0], np.eye(2))


# --- vmap -------------------------------------------------------------------------------------------


@in_one_item()
@pytest.mark.parametrize("name", NETWORKS)
def test_a_mapped_network_is_the_network_of_each_slice(name):
    net = model(name)
    given = [feeds(name, seed) for seed in range(3)]
    found = gk.vmap(net).run({x: np.stack([one[x] for one in given]) for x in given[0]})["y"]
    for slice_, one in zip(found, given, strict=True):
        close(slice_, net.run(one)["y"], rtol=1e-12)


def test_mapping_twice_makes_two_axes():
    net = model("perceptron")
    given = [[feeds("perceptron", 3 * i + j) for j in range(2)] for i in range(3)]
    made = gk.vmap(gk.vmap(net))
    assert str(made.input_types["x2"]) == "float64[batch_1, batch, 4]"
    found = made.run({x: np.stack([np.stack([one[x] for one in row]) for row in given]) for x in given[0][0]})["y"]
    for i, row in enumerate(given):
        for j, one in enumerate(row):
            close(found[i, j], net.run(one)["y"], rtol=1e-12)


def test_each_slice_and_each_iteration_draws_its_own_numbers():
    x = gk.input("x", [3])
    noisy = gk.Model({"y": x + gk.random_normal(shape=[3])}, name="noisy")
    first, second = gk.vmap(noisy).run({"x": np.zeros((2, 3), np.float32)})["y"]
    assert not np.allclose(first, second)
    looped = gk.Model({"y": gk.map(lambda row: noisy(row), gk.input("rows", ["N", 3]))})
    first, second = looped.run({"rows": np.zeros((2, 3), np.float32)})["y"]
    assert not np.allclose(first, second)


def test_axes_of_a_mapped_network():
    net = model("perceptron")
    given = feeds("perceptron")
    xs = np.random.default_rng(5).standard_normal((4, 2, 3))
    made = gk.vmap(net, {"x1": None, "x2": None, "x3": None, "x0": -1}, {"y": 1}, size=4)
    assert str(made.input_types["x0"]) == "float64[2, 3, 4]"
    found = made.run(given | {"x0": np.moveaxis(xs, 0, -1)})["y"]
    assert found.shape == (2, 4, 2)
    for i in range(4):
        close(found[:, i], net.run(given | {"x0": xs[i]})["y"], rtol=1e-12)


def test_gradients_of_each_sample():
    x, y = gk.input("x", [4]), gk.input("y", [], "int64")
    logits = gk.nn.linear(gk.reshape(x, np.array([1, 4])), 3, name="fc")
    loss = gk.losses.softmax_cross_entropy(logits, gk.reshape(y, np.array([1])))
    net = gk.Model({"loss": loss}, seed=0)
    rng = np.random.default_rng(0)
    xs, ys = rng.standard_normal((5, 4)).astype(np.float32), rng.integers(0, 3, 5)
    found = gk.vmap(gk.grad(net)).run({"x": xs, "y": ys})
    weight, bias = net.params["fc_weight"], net.params["fc_bias"]
    scores = xs @ weight.T + bias
    error = np.exp(scores) / np.exp(scores).sum(1, keepdims=True) - np.eye(3)[ys]
    np.testing.assert_allclose(found["fc_bias_grad"], error, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["fc_weight_grad"], error[:, :, None] * xs[:, None], rtol=1e-4, atol=1e-6)


# --- errors -----------------------------------------------------------------------------------------


def two_outputs():
    x = gk.input("x", [2])
    return gk.Model({"y": gk.sin(x), "s": gk.reduce_sum(x, keepdims=False), "i": gk.arg_max(x)})


@in_one_item()
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda net: gk.jacobian(net, wrt="x"), "has 3 outputs, y, s, i: give of="),
        (lambda net: gk.jacobian(net, "y", "x", mode="both"), "mode must be 'reverse' or 'forward', not 'both'"),
        (lambda net: gk.jacobian(net, "y", ["x", "x"]), "'x' is given twice"),
        (lambda net: gk.jacobian(net, "i", "x"), "is not a float tensor and has no gradient"),
        (lambda net: gk.jacobian(net, "y"), "depends on no parameter"),
        (lambda net: gk.hessian(net, "y", "x"), "'y' is float32.2.; it must have one element"),
        (lambda net: gk.grad(net, "y", "x", seeds={"z": 1.0}), "seeds must have one array for each of y"),
        (lambda net: gk.jacobian(net, "y", []), "wrt names no value"),
        (lambda net: gk.vmap(gk.vmap(net), size="batch"), "already has a dimension 'batch'"),
        (lambda net: gk.vmap(net, {"z": 0}), "in_axes: .* has no input 'z'"),
        (lambda net: gk.vmap(net, {"x": 3}), "'x' has 2 axes with the new one, so 3 is out of range"),
        (lambda net: gk.vmap(net, None), "in_axes"),
        (lambda net: gk.vmap(net, {"x": None}), "no input has the new axis"),
        (lambda net: gk.vmap(net, out_axes={"q": 0}), "out_axes: .* has no output 'q'"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(UsageError, match=message):
        make(two_outputs())


def test_names_that_are_taken():
    x, other = gk.input("x", [2]), gk.input("x_tangent", [2])
    net = gk.Model({"y": x * other, "x_jacobian": x})
    with pytest.raises(UsageError, match="already has an input 'x_tangent'"):
        gk.jvp(net, "y", "x")
    with pytest.raises(UsageError, match="would have the name 'x_jacobian' of another output"):
        gk.jacobian(net, "y", "x", with_outputs=True)
    assert gk.jvp(net, "y", "x", suffix="_direction").inputs == ("x", "x_tangent", "x_direction")


def test_two_blocks_of_a_hessian_with_one_name():
    a, b = gk.input("a", [1]), gk.input("a_a", [1])
    with pytest.raises(UsageError, match="two blocks would have the name 'a_a_a_hessian'"):
        gk.hessian(gk.Model({"s": a * b}), wrt=["a", "a_a"])


def test_a_model_with_updates_has_no_slices():
    x, state = gk.input("x", [2]), gk.Value(gk.TensorType("float32", (2,)), "sum", role="state")
    graph = gk.Graph([x, state], [x + state], [(state, x + state)])
    with pytest.raises(UsageError, match="updates states"):
        gk.vmap(gk.Model.from_graph(graph, {"sum": np.zeros(2, np.float32)}))
