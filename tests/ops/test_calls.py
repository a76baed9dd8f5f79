"""Calls as numpy, PyTorch and Keras write them: taken where they mean one thing, else answered with the right form."""

import copy

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import TypeMismatch, UsageError

X = gk.input("x", ["N", 4, 6])
A, B = gk.input("a", [2, 3]), gk.input("b", [2, 3])
V, ONE = gk.input("v", [12]), gk.input("one", [1, 3])
IMAGE = gk.input("image", ["N", 3, 8, 8])


@in_one_item()
@pytest.mark.parametrize(
    ("call", "same"),
    [
        (lambda: gk.reduce_mean(X, axes=1), lambda: gk.reduce_mean(X, axes=[1])),
        (lambda: gk.reduce_mean(X, 1), lambda: gk.reduce_mean(X, axes=[1])),
        (lambda: gk.reduce_mean(X, axis=1), lambda: gk.reduce_mean(X, axes=[1])),
        (lambda: gk.reduce_mean(X, axis=np.int64(-1)), lambda: gk.reduce_mean(X, axes=[-1])),
        (lambda: gk.reduce_sum(X, axis=(1, 2), keepdims=False), lambda: gk.reduce_sum(X, axes=[1, 2], keepdims=False)),
        (lambda: gk.softmax(X, axes=1), lambda: gk.softmax(X, axis=1)),
        (lambda: gk.softmax(X, axes=[1]), lambda: gk.softmax(X, axis=1)),
        (lambda: gk.squeeze(ONE, 0), lambda: gk.squeeze(ONE, [0])),
        (lambda: gk.squeeze(ONE, axis=0), lambda: gk.squeeze(ONE, [0])),
        (lambda: gk.unsqueeze(A, -1), lambda: gk.unsqueeze(A, [-1])),
        (lambda: gk.reshape(V, 12), lambda: gk.reshape(V, [12])),
        (lambda: gk.slice(A, 0, 1), lambda: gk.slice(A, [0], [1])),
        (lambda: gk.sum([A]), lambda: gk.sum([A])),
        (lambda: gk.split_to_sequence(V, 4), lambda: gk.split_to_sequence(V, np.array(4))),
        (lambda: gk.split_to_sequence(X, np.int64(2), axis=1), lambda: gk.split_to_sequence(X, np.array(2), axis=1)),
    ],
)
def test_what_means_one_thing_is_taken(call, same):
    found, wanted = call(), same()
    assert found.type == wanted.type
    assert found.node.op == wanted.node.op
    feeds = {
        v.name: np.random.default_rng(0).standard_normal([2 if not isinstance(d, int) else d for d in v.shape], "f")
        for v in found.node.inputs
        if v.node is None
    }
    np.testing.assert_array_equal(*(next(iter(gk.Model({"y": v}).run(feeds).values())) for v in (found, wanted)))


@in_one_item()
@pytest.mark.parametrize(
    ("call", "form"),
    [
        (lambda: gk.softmax(X, 1), "gk.softmax(x, axis=1)"),
        (lambda: gk.softmax(X, dim=1), "gk.softmax(x, axis=1)"),
        (lambda: gk.reduce_mean(X, dim=1), "did you mean 'axes'? gk.reduce_mean(x, axes=1)"),
        (lambda: gk.reduce_mean(X, axis=1, keepdim=True), "gk.reduce_mean(x, axes=1, keepdims=True)"),
        (lambda: gk.concat([A, B], 1), "gk.concat([a, b], axis=1)"),
        (lambda: gk.concat(A, B, 1), "gk.concat([a, b], axis=1)"),
        (lambda: gk.concat([A, B], dim=1), "did you mean 'axis'? gk.concat(a, b, axis=1)"),
        (lambda: gk.reshape(A, 3, 2), "gk.reshape(a, [3, 2])"),
        (lambda: gk.reshape(A, newshape=[6]), "gk.reshape(a, shape=[6])"),
        (lambda: gk.expand(A, 2, 3), "gk.expand(a, [2, 3])"),
        (lambda: gk.split(V, 2), "gk.split(v, num_outputs=2) for 2 equal ones"),
        (lambda: gk.split(V, sections=2), "gk.split(v, num_outputs=2)"),
        (lambda: gk.transpose(A, 1, 0), "gk.transpose(a, perm=[1, 0])"),
        (lambda: gk.transpose(A, (1, 0)), "gk.transpose(a, perm=[1, 0])"),
        (lambda: gk.transpose(A, axes=(1, 0)), "gk.transpose(a, perm=[1, 0])"),
        (lambda: gk.cast(A, "int64"), "gk.cast(a, to='int64')"),
        (lambda: gk.cast(A, dtype="int64"), "gk.cast(a, to='int64')"),
        (lambda: gk.tile(A, 2), "gk.tile(a, [2, 2])"),
        (lambda: gk.max_pool(IMAGE, 2), "gk.max_pool(image, kernel_shape=[2, 2])"),
        (lambda: gk.max_pool(IMAGE, kernel_size=2), "gk.max_pool(image, kernel_shape=[2, 2])"),
        (lambda: gk.max_pool(IMAGE, kernel_shape=2), "one number per axis"),
        (lambda: gk.gather(A, [0], 1), "gk.gather(a, [0], axis=1)"),
        (lambda: gk.leaky_relu(A, 0.1), "gk.leaky_relu(a, alpha=0.1)"),
        (lambda: gk.clip(A, a_min=0.0), "gk.clip(a, min=0.0)"),
        (lambda: gk.relu(A, B), "Relu takes 1 operand, 2 given: gk.relu(x)"),
        (lambda: gk.softmax([A, B]), "use gk.concat"),
        (lambda: gk.sum(A), "gk.reduce_sum(a, axes=[...])"),
        (lambda: gk.max(A), "gk.reduce_max(a, axes=[...])"),
        (lambda: gk.gemm(A, B, trans_b=True), "did you mean 'transB'"),
        (lambda: gk.nn.linear(A, 4, use_bias=False), "did you mean 'bias'"),
        (lambda: gk.nn.conv2d(IMAGE, 4, kernel_size=3), "did you mean 'kernel'"),
        (lambda: gk.nn.lstm(X, hidden_size=3), "did you mean 'units'"),
        (lambda: gk.nn.layer_norm(X, eps=1e-3), "did you mean 'epsilon'"),
    ],
)
def test_the_answer_is_the_right_form(call, form):
    with pytest.raises(UsageError) as caught:
        call()
    assert form in str(caught.value)


@in_one_item()
@pytest.mark.parametrize(
    ("get", "form"),
    [
        (lambda: A.sum(), "gk.reduce_sum(x, axes=[...])"),
        (lambda: A.reshape(6), "gk.reshape(x)"),
        (lambda: A.T, "gk.transpose(x)"),
        (lambda: A.astype("int64"), "gk.cast(x, to=...)"),
        (lambda: A.numpy(), "run({...})"),
        (lambda: gk.cat([A, B]), "gk.concat([a, b], axis=...)"),
        (lambda: gk.matmul(A, B), "gk.mat_mul(a, b), or a @ b"),
        (lambda: gk.nn.Linear(3, 4), "gk.nn.linear(x, units)"),
        (lambda: gk.nn.relu(A), "gk.relu"),
        (lambda: gk.nn.linaer(A), "did you mean 'linear'"),
        (lambda: gk.conv2d(A), "gk.nn.conv2d(x, channels, kernel=...)"),
        (lambda: gk.conv3dd(A), "did you mean gk.nn.conv3d?"),
        (lambda: gk.optim.adam(1e-3), "did you mean 'Adam'"),
    ],
)
def test_names_that_others_use(get, form):
    with pytest.raises(AttributeError) as caught:
        get()
    assert form in str(caught.value)


@in_one_item()
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x[:, 7], "index 7 is out of range for axis 1, which has size 3: x: float32[N, 3, 8]"),
        (lambda x: x[..., ..., 0], "x: float32[N, 3, 8]: an index can contain ... only once"),
        (lambda x: x[:, -4], "index -4 is out of range for axis 1"),
        (lambda x: gk.top_k(x, 9, axis=1), "k = 9 is larger than axis 1, which has size 3"),
        (lambda x: gk.gather_nd(x, np.zeros((2, 4), np.int64)), "index tuples of length 4 are too long for x of shape"),
        (
            lambda x: gk.resize(x, sizes=np.array([6, 16])),
            "sizes has 2 elements, but x has 3 axes; for the last ones, add axes=[1, 2]",
        ),
        (lambda x: gk.resize(x, sizes=np.array([6, 16]), axes=[2]), "sizes has 2 elements, but axes=[2] has 1"),
        (lambda x: gk.concat([x, gk.input("y", ["N", 3])], axis=1), "shapes [N, 3, 8] and [N, 3] have different ranks"),
        (
            lambda x: gk.quantize_linear(x, np.float32(1), output_dtype="float32"),
            "output_dtype=float32 is not one of float4_e2m1fn, float8_e4m3fn",
        ),
        (
            lambda x: gk.grad(gk.Model({"y": gk.arg_max(x)}), wrt="x"),
            "'y' (int64[1, 3, 8]) is not a float tensor and has no gradient; choose float tensors with of=",
        ),
    ],
)  # fmt: skip
def test_errors_of_calls_show_sizes(call, message):
    with pytest.raises((TypeMismatch, UsageError)) as caught:
        call(gk.input("x", ["N", 3, 8]))
    assert message in str(caught.value)
    assert len(gk.Model(gk.input("x", ["N", 3, 8])[:, -3]).outputs) == 1


def test_what_is_asked_of_a_value_by_protocols_is_missing_as_ever():
    assert not hasattr(A, "__array__") or callable(A.__array__)
    assert not hasattr(A, "__dataframe__")
    assert copy.copy(A).name == "a"


def test_a_network_of_arrays_computes():
    x = gk.input("x", ["N", 3])
    net = gk.Model({"y": gk.relu(x)})
    two = gk.Model({"y": gk.relu(x), "z": x + 1.0})
    array = np.array([[1, -1, 2]], np.float32)
    np.testing.assert_array_equal(net(array), [[1, 0, 2]])
    y, z = two(x=array)
    np.testing.assert_array_equal(y, [[1, 0, 2]])
    np.testing.assert_array_equal(z, array + 1)
    assert isinstance(net(gk.input("other", ["N", 3])), gk.Value)
    both = gk.Model({"y": x + gk.input("w", ["N", 3])})
    with pytest.raises(UsageError, match=r"gk.constant\(array\)"):
        both(x, array)
    for run in (net.run, net.compile().run):
        with pytest.raises(UsageError, match=r"run\(\{'x': array\}\)"):
            run(array)
    with pytest.raises(UsageError, match=r"select\('a', 'b'\)"):
        net.select(["y"])
    weighted = gk.Model({"y": gk.nn.linear(x, 2, name="fc")})
    assert gk.grad(weighted, "y", wrt="fc_weight").outputs == ("fc_weight_grad",)
