"""Random networks of many kinds of operators, the same ones for the same seed: `network, graph = build(7)`."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.checks.random_arithmetic import (
    attention,
    binary,
    integers,
    normalise,
    positions,
    product,
    reduce,
    select,
    unary,
)
from graphkit.checks.random_images import convolution, pooling, resize
from graphkit.checks.random_movement import movement
from graphkit.checks.random_network import Built, Network
from graphkit.frontend.control import cond, scan, while_loop
from graphkit.ir.graph import Graph, Value
from graphkit.ops import F


def control(net: Network) -> Built:
    x = net.pick(lambda a: a.ndim >= 1 and a.size > 0)
    if x is None:
        return None
    choice = net.number(0, 2)
    weight = net.param(net.shape(x)[-1], net.shape(x)[-1])

    def body(v: Value) -> Value:
        made = F.tanh(F.mat_mul(v, weight))
        return F.mul(made, np.array(0.9, net.dtype)) if net.number(0, 1) else F.add(made, v)

    if choice == 0:
        y = net.pick(exact=True)
        if y is None:
            return None
        flag = F.greater(F.reduce_max(y, keepdims=False), F.cast_like(net.choose([-100.0, 0.5, 100.0]), y))
        if net.arrays[y].size == 0:
            return None
        flag = F.reshape(flag, np.zeros(0, np.int64))
        return cond(flag, lambda: F.relu(x), lambda: body(F.neg(x))), False
    if choice == 1:
        trips = net.number(0, 4)
        made = while_loop(
            lambda s: F.less(s[0], np.array(trips)), lambda s: (F.add(s[0], np.array(1)), body(s[1])),
            (F.constant(value=np.array(0)), x),
        )  # fmt: skip
        return made[1], False
    if net.arrays[x].ndim < 2 or not net.shape(x)[0]:
        return None
    start = F.constant(value=net.draw(net.shape(x)[1:]))
    state, ys = scan(
        lambda s, v: ((r := F.tanh(F.add(s, v))), F.mul(r, v)), start, x, reverse=net.chance(0.3)
    )  # fmt: skip
    return (state, ys), False


BUILDERS = [
    (unary, 5), (binary, 5), (select, 2), (integers, 3), (reduce, 3), (positions, 2), (normalise, 3), (convolution, 4),
    (pooling, 3), (product, 3), (attention, 1), (movement, 6), (resize, 1), (control, 1),
]  # fmt: skip


def build(seed: int, dtype: Any = np.float32, nodes: int = 12) -> tuple[Network, Graph]:
    net = Network(seed, np.dtype(dtype))
    sizes = [0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31]
    weights = np.array([0.2 if n == 0 else 1 for n in sizes])
    for _ in range(net.number(1, 3)):
        rank = net.choose([1, 2, 3, 3, 4, 4, 4, 5])
        shape = [int(net.rng.choice(sizes, p=weights / weights.sum())) for _ in range(rank)]
        while np.prod(shape) > 4000:
            shape[int(np.argmax(shape))] //= 2
        net.input(shape)
    if net.chance(0.5):
        net.input([net.number(1, 5), net.number(1, 5)], net.choose(["int32", "int64", "uint8", "int8"]))
    builders = [b for b, n in BUILDERS for _ in range(n)]
    for _ in range(nodes):
        built = net.choose(builders)(net)
        if built is not None:
            net.emit(*built)
    fresh = [v for v in net.pool if v.node is not None]
    last = fresh[-1] if fresh else net.pool[-1]
    outputs = dict.fromkeys([last, *net.some(net.pool)[:3]])
    return net, Graph(net.inputs, list(outputs), name=f"seed{seed}")
