"""Small float64 networks, each as a graph and as the same function in numpy or PyTorch, for tests of derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import graphkit as gk

F64 = np.float64


class Network(NamedTuple):
    """A function of inputs of given shapes. `build` makes the graph; `torch` computes it: torch module, tensors."""

    shapes: tuple[tuple[int, ...], ...]
    build: Callable[..., gk.Value]
    torch: Callable[..., Any]


def number(value: float) -> gk.Value:
    return gk.constant(value=F64(value))


def powers(x: gk.Value) -> gk.Value:
    """Three steps of h = tanh(1.5 h) + h^2 in a loop."""

    def body(state):
        step, h = state
        return step + np.int64(1), gk.tanh(h * F64(1.5)) + h * h

    start = (gk.constant(value=np.int64(0)), x)
    return gk.while_loop(lambda state: gk.less(state[0], np.int64(3)), body, start)[1]


def torch_powers(torch, h):
    for _ in range(3):
        h = torch.tanh(h * 1.5) + h * h
    return h


def recurrence(x: gk.Value, w: gk.Value) -> gk.Value:
    """The states of h = tanh(x_t + w h), over the first axis of x."""
    zero = gk.reduce_sum(x, np.array([0]), keepdims=False) * F64(0)

    def step(h, part):
        h = gk.tanh(part + gk.mat_mul(w, h))
        return h, h

    return gk.scan(step, zero, x)[1]


def torch_recurrence(torch, x, w):
    h, states = torch.zeros_like(x[0]), []
    for part in x:
        h = torch.tanh(part + w @ h)
        states.append(h)
    return torch.stack(states)


def branch(x: gk.Value) -> gk.Value:
    positive = gk.greater(gk.reduce_sum(x, keepdims=False), number(0))
    return gk.cond(positive, lambda: gk.sin(x) * x, lambda: gk.exp(x))


def torch_branch(torch, x):
    # torch.func cannot branch on a value, so both sides are computed.
    return torch.where(x.sum() > 0, torch.sin(x) * x, torch.exp(x))


def loop_in_a_branch(x: gk.Value) -> gk.Value:
    return gk.cond(gk.less(gk.reduce_sum(x, keepdims=False), number(100)), lambda: powers(x), lambda: x)


def attention(q: gk.Value, k: gk.Value, v: gk.Value) -> gk.Value:
    scores = gk.mat_mul(q, gk.transpose(k, perm=(1, 0))) * F64(0.5)
    return gk.mat_mul(gk.softmax(scores, axis=-1), v)


def torch_layer_norm(torch, x, scale, offset):
    # Written out, because the mixed second derivatives of PyTorch's layer_norm by scale, then x, are wrong (2.13).
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-3) * scale + offset


NETWORKS = {
    "pointwise": Network(((3,), (3,)), lambda x, y: gk.tanh(x * y) + gk.exp(x) / (y * y + F64(1)),
                         lambda t, x, y: t.tanh(x * y) + t.exp(x) / (y * y + 1)),
    "perceptron": Network(((2, 3), (3, 4), (4,), (4, 2)),
                          lambda x, w, b, v: gk.mat_mul(gk.sigmoid(gk.mat_mul(x, w) + b), v),
                          lambda t, x, w, b, v: t.sigmoid(x @ w + b) @ v),
    "convolution": Network(((1, 2, 5, 5), (3, 2, 3, 3)),
                           lambda x, w: gk.max_pool(gk.softplus(gk.conv(x, w)), kernel_shape=(2, 2))[0],
                           lambda t, x, w: t.nn.functional.max_pool2d(
                               t.nn.functional.softplus(t.nn.functional.conv2d(x, w)), 2, 1)),
    "attention": Network(((3, 2), (4, 2), (4, 3)), attention,
                         lambda t, q, k, v: t.softmax(q @ k.T * 0.5, -1) @ v),
    "normalisation": Network(((2, 5), (5,), (5,)),
                             lambda x, s, b: gk.layer_normalization(x, s, b, axis=-1, epsilon=1e-3)[0],
                             torch_layer_norm),
    "reductions": Network(((2, 3),), lambda x: gk.concat(
                              gk.reduce_log_sum_exp(x, np.array([1]), keepdims=False),
                              gk.reduce_prod(x, np.array([0]), keepdims=False), axis=0),
                          lambda t, x: t.cat([t.logsumexp(x, 1), t.prod(x, 0)])),
    "indices": Network(((4, 2),), lambda x: gk.cum_sum(gk.gather(x * x, np.array([2, 0, 2])), np.int64(0)),
                       lambda t, x: t.cumsum((x * x)[[2, 0, 2]], 0)),
    "broadcast": Network(((3, 1), (1, 4)), lambda x, y: gk.pow(x * x + F64(1), gk.sin(y)),
                         lambda t, x, y: (x * x + 1) ** t.sin(y)),
    "einsum": Network(((2, 3), (3, 2, 2)), lambda x, y: gk.einsum(x, y, equation="ij,jkl->kl"),
                      lambda t, x, y: t.einsum("ij,jkl->kl", x, y)),
    "inverse": Network(((2, 2),), lambda x: gk.linalg.inverse(gk.mat_mul(x, x) + np.eye(2) * 3),
                       lambda t, x: t.linalg.inv(x @ x + 3 * t.eye(2, dtype=x.dtype))),
    "loop": Network(((2, 2),), powers, torch_powers),
    "scan": Network(((4, 3), (3, 3)), recurrence, torch_recurrence),
    "branch": Network(((3,),), branch, torch_branch),
    "loop in a branch": Network(((2,),), loop_in_a_branch, torch_powers),
    "branches in a loop": Network(((3, 2),), lambda x: gk.map(branch, x),
                                  lambda t, x: t.stack([torch_branch(t, row) for row in x])),
    "two outputs of one loop": Network(((2,),), lambda x: powers(x) * powers(gk.sin(x)),
                                       lambda t, x: torch_powers(t, x) * torch_powers(t, t.sin(x))),
    "scalar": Network(((), ()), lambda x, y: gk.sin(x) * y * y, lambda t, x, y: t.sin(x) * y * y),
    "unused": Network(((2,), (3,)), lambda x, y: gk.tanh(x) + gk.reduce_sum(y, keepdims=False) * F64(0),
                      lambda t, x, y: t.tanh(x) + y.sum() * 0),
}  # fmt: skip


def model(name: str) -> gk.Model:
    """The network with inputs x0, x1, ... and the output y."""
    network = NETWORKS[name]
    inputs = [gk.input(f"x{i}", shape, "float64") for i, shape in enumerate(network.shapes)]
    return gk.Model({"y": network.build(*inputs)}, inputs=inputs, name="net")


def feeds(name: str, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {f"x{i}": rng.standard_normal(shape) for i, shape in enumerate(NETWORKS[name].shapes)}
