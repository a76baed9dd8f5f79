"""Values and gradients of functions of arrays are those of PyTorch's autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphkit as gk

torch = pytest.importorskip("torch")

nd = gk.nd
pytestmark = pytest.mark.pytorch
F = torch.nn.functional


def first(results: Any) -> Any:
    return results[0] if isinstance(results, tuple) else results


# Name -> (function of gk, function of PyTorch, shapes of the arguments), in float64.
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]] = {
    "add": (lambda a, b: a + b, lambda a, b: a + b, [(3, 4), (4,)]),
    "sub": (lambda a, b: a - b, lambda a, b: a - b, [(3, 1), (1, 4)]),
    "mul": (lambda a, b: a * b, lambda a, b: a * b, [(2, 3, 4), (3, 1)]),
    "div": (lambda a, b: a / (b * b + 1.0), lambda a, b: a / (b * b + 1), [(3, 4), (3, 4)]),
    "pow": (lambda a: abs(a) ** 2.5, lambda a: abs(a) ** 2.5, [(3, 4)]),
    "pow of two": (lambda a, b: (abs(a) + 0.1) ** b, lambda a, b: (abs(a) + 0.1) ** b, [(3, 4), (3, 4)]),
    "neg": (lambda a: -a, lambda a: -a, [(5,)]),
    "abs": (abs, abs, [(5, 2)]),
    "exp": (gk.exp, torch.exp, [(3, 4)]),
    "log": (lambda a: gk.log(a * a + 1.0), lambda a: torch.log(a * a + 1), [(3, 4)]),
    "sqrt": (lambda a: gk.sqrt(a * a + 1.0), lambda a: torch.sqrt(a * a + 1), [(3, 4)]),
    "sin": (gk.sin, torch.sin, [(7,)]),
    "cos": (gk.cos, torch.cos, [(7,)]),
    "tan": (gk.tan, torch.tan, [(7,)]),
    "atan": (gk.atan, torch.atan, [(7,)]),
    "sinh": (gk.sinh, torch.sinh, [(7,)]),
    "cosh": (gk.cosh, torch.cosh, [(7,)]),
    "asinh": (gk.asinh, torch.asinh, [(7,)]),
    "tanh": (gk.tanh, torch.tanh, [(7,)]),
    "erf": (gk.erf, torch.erf, [(7,)]),
    "reciprocal": (lambda a: gk.reciprocal(a * a + 1.0), lambda a: torch.reciprocal(a * a + 1), [(7,)]),
    "sigmoid": (gk.sigmoid, torch.sigmoid, [(3, 4)]),
    "relu": (gk.relu, torch.relu, [(3, 4)]),
    "leaky_relu": (lambda a: gk.leaky_relu(a, alpha=0.2), lambda a: F.leaky_relu(a, 0.2), [(3, 4)]),
    "elu": (lambda a: gk.elu(a, alpha=1.5), lambda a: F.elu(a, 1.5), [(3, 4)]),
    "selu": (gk.selu, F.selu, [(3, 4)]),
    "gelu": (gk.gelu, F.gelu, [(3, 4)]),
    "gelu of tanh": (lambda a: gk.gelu(a, approximate="tanh"), lambda a: F.gelu(a, approximate="tanh"), [(3, 4)]),
    "softplus": (gk.softplus, F.softplus, [(3, 4)]),
    "softsign": (gk.softsign, F.softsign, [(3, 4)]),
    "mish": (gk.mish, F.mish, [(3, 4)]),
    "hard_swish": (gk.hard_swish, F.hardswish, [(3, 4)]),
    "clip": (lambda a: gk.clip(a, -0.5, 0.5), lambda a: torch.clamp(a, -0.5, 0.5), [(3, 4)]),
    "maximum": (lambda a, b: gk.max(a, b), torch.maximum, [(3, 4), (3, 4)]),
    "minimum": (lambda a, b: gk.min(a, b), torch.minimum, [(3, 4), (3, 4)]),
    "where": (lambda a, b: gk.where(a > b, a, b * b), lambda a, b: torch.where(a > b, a, b * b), [(3, 4), (3, 4)]),
    "matmul": (lambda a, b: a @ b, lambda a, b: a @ b, [(2, 3, 4), (4, 5)]),
    "matmul of vectors": (lambda a, b: a @ b, lambda a, b: a @ b, [(4,), (4, 5)]),
    "linear": (
        lambda x, w, b: gk.nn.linear(x, 5, weight=w, bias=b), F.linear, [(3, 4), (5, 4), (5,)],
    ),
    "einsum": (
        lambda a, b: gk.einsum([a, b], equation="bij,bkj->ik"),
        lambda a, b: torch.einsum("bij,bkj->ik", a, b), [(2, 3, 4), (2, 5, 4)],
    ),
    "sum": (lambda a: gk.reduce_sum(a, [1], keepdims=False), lambda a: a.sum(1), [(3, 4)]),
    "mean": (lambda a: gk.reduce_mean(a, [0, 2]), lambda a: a.mean((0, 2), keepdim=True), [(3, 4, 2)]),
    "max": (lambda a: gk.reduce_max(a, [1], keepdims=False), lambda a: a.amax(1), [(3, 4)]),
    "min": (lambda a: gk.reduce_min(a, [0], keepdims=False), lambda a: a.amin(0), [(3, 4)]),
    "prod": (lambda a: gk.reduce_prod(a, [1], keepdims=False), lambda a: a.prod(1), [(3, 4)]),
    "log_sum_exp": (
        lambda a: gk.reduce_log_sum_exp(a, [1], keepdims=False), lambda a: torch.logsumexp(a, 1), [(3, 4)],
    ),
    "l2": (lambda a: gk.reduce_l2(a, [1], keepdims=False), lambda a: a.norm(dim=1), [(3, 4)]),
    "softmax": (lambda a: gk.softmax(a, axis=-1), lambda a: torch.softmax(a, -1), [(3, 4)]),
    "log_softmax": (lambda a: gk.log_softmax(a, axis=1), lambda a: torch.log_softmax(a, 1), [(3, 4, 2)]),
    "cumsum": (lambda a: gk.cum_sum(a, 1), lambda a: a.cumsum(1), [(3, 4)]),
    "transpose": (
        lambda a: a.transpose(2, 0, 1) * a.reshape(4, 2, 3),
        lambda a: a.permute(2, 0, 1) * a.reshape(4, 2, 3), [(2, 3, 4)],
    ),
    "index": (lambda a: a[1:, ::2] * a[0, 1], lambda a: a[1:, ::2] * a[0, 1], [(3, 4)]),
    "rows": (lambda a: a[[2, 0, 2]], lambda a: a[[2, 0, 2]], [(3, 4)]),
    "gather": (
        lambda a: gk.gather_elements(a, nd.array([[0, 2], [1, 1]]), axis=1),
        lambda a: a.gather(1, torch.tensor([[0, 2], [1, 1]])), [(2, 3)],
    ),
    "concat": (lambda a, b: gk.concat([a, b], axis=1), lambda a, b: torch.cat([a, b], 1), [(2, 3), (2, 1)]),
    "split": (
        lambda a: gk.split(a, [1, 3], axis=1)[0] * gk.split(a, [1, 3], axis=1)[1],
        lambda a: a.split([1, 3], 1)[0] * a.split([1, 3], 1)[1], [(2, 4)],
    ),
    "pad": (lambda a: gk.pad(a, [0, 1, 0, 2]), lambda a: F.pad(a, (1, 2)), [(2, 3)]),
    "expand": (lambda a: gk.expand(a, [3, 2, 4]), lambda a: a.expand(3, 2, 4), [(2, 1)]),
    "tile": (lambda a: gk.tile(a, [2, 3]), lambda a: a.tile(2, 3), [(2, 3)]),
    "sort": (lambda a: gk.top_k(a, 2)[0], lambda a: a.topk(2)[0], [(3, 4)]),
    "triangle": (lambda a: gk.trilu(a, upper=0), torch.tril, [(4, 4)]),
    "inverse": (
        lambda a: gk.inverse(a @ a.T + nd.eye(3, dtype="float64")),
        lambda a: torch.linalg.inv(a @ a.T + torch.eye(3, dtype=torch.float64)), [(3, 3)],
    ),
    "det": (gk.det, torch.linalg.det, [(3, 3)]),
    "conv": (
        lambda x, w, b: gk.conv(x, w, b, strides=[2, 1], pads=[1, 0, 1, 0]),
        lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), padding=(1, 0)), [(2, 3, 6, 5), (4, 3, 3, 3), (4,)],
    ),
    "conv of groups": (
        lambda x, w: gk.conv(x, w, group=3), lambda x, w: F.conv2d(x, w, groups=3), [(2, 3, 5, 5), (3, 1, 3, 3)],
    ),
    "conv_transpose": (
        lambda x, w: gk.conv_transpose(x, w, strides=[2, 2]),
        lambda x, w: F.conv_transpose2d(x, w, stride=2), [(1, 3, 4, 4), (3, 2, 3, 3)],
    ),
    "max_pool": (
        lambda x: first(gk.max_pool(x, kernel_shape=[2, 2], strides=[2, 2])),
        lambda x: F.max_pool2d(x, 2), [(2, 3, 6, 6)],
    ),
    "average_pool": (
        lambda x: gk.average_pool(x, kernel_shape=[2, 2], strides=[2, 2]), lambda x: F.avg_pool2d(x, 2), [(2, 3, 6, 6)],
    ),
    "layer_norm": (
        lambda x, w, b: gk.layer_normalization(x, w, b, axis=-1)[0],
        lambda x, w, b: F.layer_norm(x, (4,), w, b), [(3, 4), (4,), (4,)],
    ),
    "group_norm": (
        lambda x, w, b: gk.group_normalization(x, w, b, num_groups=2),
        lambda x, w, b: F.group_norm(x, 2, w, b), [(2, 4, 3), (4,), (4,)],
    ),
    "cross_entropy": (
        lambda x: gk.softmax_cross_entropy_loss(x, nd.array([1, 0, 3]))[0],
        lambda x: F.cross_entropy(x, torch.tensor([1, 0, 3])), [(3, 4)],
    ),
    "resize": (
        lambda x: gk.resize(x, None, None, [1, 2, 6, 8], mode="linear"),
        lambda x: F.interpolate(x, (6, 8), mode="bilinear"), [(1, 2, 3, 4)],
    ),
    "embedding": (
        lambda w: gk.gather(w, nd.array([[3, 1], [3, 0]]), axis=0),
        lambda w: F.embedding(torch.tensor([[3, 1], [3, 0]]), w), [(4, 2)],
    ),
    "depth_to_space": (
        lambda x: gk.depth_to_space(x, blocksize=2, mode="CRD"), lambda x: F.pixel_shuffle(x, 2), [(1, 8, 2, 3)],
    ),
    # Methods of arrays and functions of numpy.
    "method var": (lambda a: a.var(axis=1), lambda a: a.var(1, correction=0), [(3, 4)]),
    "method std": (lambda a: a.std(axis=(0, 1), ddof=1), lambda a: a.std((0, 1)), [(3, 4)]),
    "method sum": (lambda a: a.sum((0, -1)), lambda a: a.sum((0, -1)), [(3, 4, 2)]),
    "method mean": (lambda a: a.mean(), lambda a: a.mean(), [(3, 4)]),
    "method prod": (lambda a: a.prod(axis=0), lambda a: a.prod(0), [(3, 4)]),
    "method max": (lambda a: a.max(axis=1, keepdims=True), lambda a: a.amax(1, keepdim=True), [(3, 4)]),
    "method cumsum": (lambda a: a.cumsum(), lambda a: a.ravel().cumsum(0), [(3, 4)]),
    "method clip": (lambda a: a.clip(-0.3, None), lambda a: a.clamp(min=-0.3), [(3, 4)]),
    "method dot": (
        lambda a, b: a.dot(b), lambda a, b: torch.einsum("ij,kjl->ikl", a, b), [(2, 3), (4, 3, 5)],
    ),
    "method take": (lambda a: a.take([2, 0, 2], axis=1), lambda a: a[:, [2, 0, 2]], [(3, 4)]),
    "method repeat": (lambda a: a.repeat(2, axis=0), lambda a: a.repeat_interleave(2, 0), [(3, 4)]),
    "method swapaxes": (lambda a: a.swapaxes(0, 2) * 2.0, lambda a: a.swapaxes(0, 2) * 2, [(3, 4, 2)]),
    "np.stack": (lambda a, b: np.stack([a, b], 1), lambda a, b: torch.stack([a, b], 1), [(3, 4), (3, 4)]),
    "np.where": (lambda a: np.where(a > 0.1, a * a, 2), lambda a: torch.where(a > 0.1, a * a, 2.0), [(3, 4)]),
    "np.linalg by hand": (lambda a: (a * a).sum(-1) ** 0.5, lambda a: a.norm(dim=-1), [(3, 4)]),
    "columns": (lambda a: a[:, [3, 0, 3]], lambda a: a[:, [3, 0, 3]], [(3, 4)]),
    "index of both kinds": (lambda a: a[1:, [1, 0], None, ::2], lambda a: a[1:, [1, 0], None, ::2], [(3, 2, 4)]),
    "index apart": (lambda a: a[[1, 0], :, [2, 3]], lambda a: a[[1, 0], :, [2, 3]], [(3, 2, 4)]),
    "index of booleans": (
        lambda a: a[:, np.array([True, False, True])], lambda a: a[:, torch.tensor([True, False, True])], [(2, 3, 2)],
    ),
    # Other functions of gk.
    "asin": (lambda a: gk.asin(gk.tanh(a)), lambda a: torch.asin(torch.tanh(a)), [(7,)]),
    "acos": (lambda a: gk.acos(gk.tanh(a)), lambda a: torch.acos(torch.tanh(a)), [(7,)]),
    "acosh": (lambda a: gk.acosh(a * a + 1.5), lambda a: torch.acosh(a * a + 1.5), [(7,)]),
    "atanh": (lambda a: gk.atanh(gk.sin(a) * 0.9), lambda a: torch.atanh(torch.sin(a) * 0.9), [(7,)]),
    "log1p": (lambda a: np.log1p(a * a), lambda a: torch.log1p(a * a), [(7,)]),
    "expm1": (np.expm1, torch.expm1, [(7,)]),
    "fmod": (lambda a: np.fmod(a, 0.7), lambda a: torch.fmod(a, 0.7), [(7,)]),
    "celu": (lambda a: gk.celu(a, alpha=0.5), lambda a: F.celu(a, 0.5), [(3, 4)]),
    "prelu": (gk.p_relu, F.prelu, [(3, 4), (4,)]),
    "hard_sigmoid": (
        lambda a: gk.hard_sigmoid(a, alpha=0.25), lambda a: (a * 0.25 + 0.5).clamp(0, 1), [(3, 4)],
    ),
    "thresholded_relu": (
        lambda a: gk.thresholded_relu(a, alpha=0.4), lambda a: F.threshold(a, 0.4, 0.0), [(3, 4)],
    ),
    "reduce_l1": (lambda a: gk.reduce_l1(a, [1], keepdims=False), lambda a: a.abs().sum(1), [(3, 4)]),
    "sum of squares": (
        lambda a: gk.reduce_sum_square(a, [0], keepdims=False), lambda a: (a * a).sum(0), [(3, 4)],
    ),
    "global_average_pool": (gk.global_average_pool, lambda a: a.mean((2, 3), keepdim=True), [(2, 3, 4, 4)]),
    "instance_norm": (
        gk.instance_normalization, lambda x, w, b: F.instance_norm(x, weight=w, bias=b), [(2, 3, 4, 4), (3,), (3,)],
    ),
    "gather_nd": (
        lambda a: gk.gather_nd(a, nd.array([[0, 1], [2, 3], [0, 1]])), lambda a: a[[0, 2, 0], [1, 3, 1]], [(3, 4)],
    ),
    "scatter_elements": (
        lambda a, b: gk.scatter_elements(a, nd.array([[1, 0, 2, 1]]), b, axis=0, reduction="add"),
        lambda a, b: a.scatter_add(0, torch.tensor([[1, 0, 2, 1]]), b), [(3, 4), (1, 4)],
    ),
    "flip": (lambda a: a[::-1, 1:] * a[:, :-1], lambda a: a.flip(0)[:, 1:] * a[:, :-1], [(3, 4)]),
    "conv of one axis": (
        lambda x, w: gk.conv(x, w, dilations=[2]), lambda x, w: F.conv1d(x, w, dilation=2), [(2, 3, 9), (4, 3, 3)],
    ),
    "attention": (
        lambda q, k, v: gk.softmax(q @ gk.transpose(k, perm=[0, 2, 1]) * 0.5, axis=-1) @ v,
        F.scaled_dot_product_attention, [(2, 3, 4), (2, 5, 4), (2, 5, 6)],
    ),
}  # fmt: skip


def test_there_are_enough_functions() -> None:
    assert len(FUNCTIONS) >= 100


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_pytorch(name: str) -> None:
    ours, theirs, shapes = FUNCTIONS[name]
    rng = np.random.default_rng(len(name))
    data = [rng.standard_normal(shape) for shape in shapes]
    variables = [nd.array(d) for d in data]
    tensors = [torch.tensor(d, requires_grad=True) for d in data]
    expected = theirs(*tensors)
    weight = rng.standard_normal(tuple(expected.shape))
    expected.backward(torch.tensor(weight))
    for x in variables:
        x.attach_grad()
    with nd.record():
        found = ours(*variables)
    found.backward(nd.array(weight))
    # ONNX defines the constants of Selu in float32.
    rtol = 1e-6 if name == "selu" else 1e-8
    np.testing.assert_allclose(found.asnumpy(), expected.detach().numpy(), rtol=rtol, atol=1e-9)
    for x, tensor in zip(variables, tensors, strict=True):
        np.testing.assert_allclose(x.grad.asnumpy(), tensor.grad.numpy(), rtol=rtol, atol=1e-9)


def test_a_loop_of_training_is_that_of_pytorch() -> None:
    rng = np.random.default_rng(0)
    x, t = rng.standard_normal((20, 5)), rng.integers(0, 3, 20)
    data = [rng.standard_normal(s) * 0.5 for s in ((5, 8), (8,), (8, 3), (3,))]
    variables = [nd.array(d) for d in data]
    tensors = [torch.tensor(d, requires_grad=True) for d in data]
    optimizer = torch.optim.SGD(tensors, lr=0.3)
    images, labels = nd.array(x), nd.array(t)
    for v in variables:
        v.attach_grad()
    for _ in range(10):
        with nd.record():
            w1, b1, w2, b2 = variables
            loss = gk.softmax_cross_entropy_loss(gk.tanh(images @ w1 + b1) @ w2 + b2, labels)[0]
        loss.backward()
        for v in variables:
            v -= 0.3 * v.grad
        optimizer.zero_grad()
        h = torch.tanh(torch.tensor(x) @ tensors[0] + tensors[1])
        expected = F.cross_entropy(h @ tensors[2] + tensors[3], torch.tensor(t))
        expected.backward()
        optimizer.step()
        np.testing.assert_allclose(loss.asscalar(), float(expected.detach()), rtol=1e-9)
