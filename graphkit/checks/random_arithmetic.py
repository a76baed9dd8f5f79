"""Random networks: pointwise operators, reductions, normalisations, matrix products, attention.

Each function appends nodes to a network. It returns the new value or values, and whether they are exact (see
`Network`). It returns None if the network has no suitable operand.
"""

from __future__ import annotations

import numpy as np

from graphkit.checks.random_network import Built, Network, fits
from graphkit.ir.types import dtype_of
from graphkit.ops import F

UNARY = [
    F.tanh, F.sigmoid, F.erf, F.sin, F.cos, F.atan, F.softplus, F.softsign, F.mish, F.hard_sigmoid, F.hard_swish,
    F.gelu, lambda x: F.gelu(x, approximate="tanh"), lambda x: F.elu(x, alpha=0.75), F.selu,
    lambda x: F.swish(x, alpha=1.25), lambda x: F.sqrt(F.abs(x)), lambda x: F.log(F.add(F.abs(x), F.cast_like(1.0, x))),
    lambda x: F.exp(F.tanh(x)), lambda x: F.mul(x, F.sigmoid(x)),
    lambda x: F.reciprocal(F.add(F.abs(x), F.cast_like(1.0, x))),
]  # fmt: skip
EXACT_UNARY = [
    F.neg, F.abs, F.relu, F.sign, F.floor, F.ceil, F.round, F.identity, lambda x: F.thresholded_relu(x, alpha=0.5),
    lambda x: F.clip(x, F.cast_like(-0.5, x), F.cast_like(1.5, x)), lambda x: F.clip(x, None, F.cast_like(0.25, x)),
]  # fmt: skip


def unary(net: Network) -> Built:
    if net.chance(0.4) and (x := net.pick(exact=True)) is not None:
        return net.choose(EXACT_UNARY)(x), True
    x = net.pick()
    if x is None:
        return None
    if net.chance(0.2):
        return net.choose([F.neg, F.abs, F.relu, lambda x: F.leaky_relu(x, alpha=0.1)])(x), False
    return net.choose(UNARY)(x), False


def binary(net: Network) -> Built:
    x = net.pick()
    if x is None:
        return None
    y = net.pick(fits(net.shape(x)))
    if net.chance(0.3):
        y = net.param(*(n if net.chance(0.6) else 1 for n in net.shape(x)[net.number(0, net.arrays[x].ndim) :]))
    assert y is not None
    if net.chance(0.3):
        x, y = y, x
    one = F.cast_like(1.0, x)
    choice = net.number(0, 9)
    if choice < 5:
        return net.choose([F.add, F.sub, F.mul])(x, y), False
    if choice == 5:
        both = x in net.exact and y in net.exact
        return net.choose([F.max, F.min])(x, y), both
    if choice == 6:
        return F.div(x, F.add(F.abs(y), one)), False
    if choice == 7:
        return F.pow(F.add(F.abs(x), one), net.choose([F.cast_like(e, x) for e in (0.5, 2.0, -1.0, 3.0, 0.3)])), False
    if choice == 8:
        return net.choose([F.sum, F.mean])(x, y, x), False
    slope = net.arrays[y].ndim <= net.arrays[x].ndim and np.broadcast_shapes(net.shape(x), net.shape(y)) == net.shape(x)
    return (F.p_relu if slope else F.add)(x, y), False


def select(net: Network) -> Built:
    x = net.pick(exact=True)
    if x is None:
        return None
    y = net.pick(fits(net.shape(x)), exact=True)
    assert y is not None
    compared = net.choose([F.less, F.greater, F.less_or_equal, F.greater_or_equal, F.equal])(x, y)
    if net.chance(0.3):
        compared = net.choose([F.and_, F.or_, F.xor])(compared, F.not_(F.less(x, F.cast_like(0.0, x))))
    shape = np.broadcast_shapes(net.shape(x), net.shape(y))
    a, b = net.pick(fits(shape)), net.pick(fits(shape))
    try:
        np.broadcast_shapes(shape, net.shape(a), net.shape(b))
    except ValueError:
        b = a
    return F.where(compared, a, b), a in net.exact and b in net.exact


def integers(net: Network) -> Built:
    x = net.pick(kind="iu")
    if x is None or net.chance(0.3):
        x = net.pick(exact=True)
        if x is None:
            return None
        to = net.choose(["int32", "int64", "int8", "int16", "bool"])
        return F.cast(x, to=to), True
    y = net.pick(lambda a: a.dtype == net.arrays[x].dtype and fits(net.shape(x))(a), kind="iu")
    like = net.arrays[x].dtype
    choice = net.number(0, 10)
    one = np.array(1, like)
    unsigned_ok = like.kind == "u" or like.itemsize >= 4
    if choice < 4:
        return net.choose([F.add, F.sub, F.mul] + ([F.max, F.min] if unsigned_ok else []))(x, y), True
    if choice == 4:
        return F.div(x, F.max(F.bitwise_and(y, np.array(15, like)), one) if unsigned_ok else np.array(3, like)), True
    if choice == 5:
        return F.mod(x, np.array(net.choose([3, 5, 7]), like), fmod=False), True
    if choice == 6:
        return net.choose([F.bitwise_and, F.bitwise_or, F.bitwise_xor])(x, y), True
    if choice == 7:
        return F.bitwise_not(x), True
    if choice == 8 and net.arrays[x].size:
        axes = net.some(range(net.arrays[x].ndim))
        reduce = net.choose([F.reduce_sum, F.reduce_max, F.reduce_min])
        if like.itemsize < 4:
            reduce = net.choose([F.reduce_max, F.reduce_min])
        if like.itemsize == 2:
            return None
        return reduce(x, np.array(axes, np.int64) if axes else None, keepdims=net.chance(0.5)), True
    return F.cast(F.mod(x, np.array(20, like)), to=dtype_of(net.dtype).value), True


def reduce(net: Network) -> Built:
    x = net.pick(lambda a: a.size > 0)
    if x is None:
        return None
    axes = net.some(range(-net.arrays[x].ndim, 0) if net.chance(0.5) else range(net.arrays[x].ndim))
    given = np.array(axes, np.int64) if axes else None
    choice = net.choose(
        [F.reduce_sum, F.reduce_mean, F.reduce_l1, F.reduce_l2, F.reduce_sum_square, F.reduce_log_sum_exp, F.reduce_max,
         F.reduce_min]
    )  # fmt: skip
    exact = choice in (F.reduce_max, F.reduce_min) and x in net.exact
    return choice(x, given, keepdims=net.chance(0.6)), exact


def positions(net: Network) -> Built:
    x = net.pick(lambda a: a.size > 0 and a.ndim > 0, exact=True)
    if x is None:
        return None
    axis = net.number(-net.arrays[x].ndim, net.arrays[x].ndim - 1)
    choice = net.number(0, 3)
    if choice == 0:
        found = net.choose([F.arg_max, F.arg_min])(
            x, axis=axis, keepdims=net.chance(0.5), select_last_index=net.chance(0.3)
        )
        return found, True
    if choice == 1:
        k = net.number(1, net.shape(x)[axis])
        values, places = F.top_k(x, np.array([k]), axis=axis, largest=net.chance(0.5))
        return (values, places), True
    if choice == 2:
        return F.cum_sum(x, np.array(axis), exclusive=net.chance(0.5), reverse=net.chance(0.5)), False
    return F.hardmax(x, axis=axis), True


def normalise(net: Network) -> Built:
    x = net.pick(lambda a: a.size > 0 and a.ndim > 0)
    if x is None:
        return None
    shape = net.shape(x)
    axis = net.number(-len(shape), len(shape) - 1)
    choice = net.number(0, 9)
    if choice < 3:
        return net.choose([F.softmax, F.softmax, F.log_softmax])(x, axis=axis), False
    if choice < 6:
        tail = shape[axis:]
        bias = net.param(*tail) if net.chance(0.7) else None
        if net.chance(0.3):
            return F.rms_normalization(x, net.param(*tail), axis=axis, epsilon=1e-2), False
        made = F.layer_normalization(x, net.param(*tail), bias, axis=axis, epsilon=1e-2)
        return (made[0] if isinstance(made, tuple) else made), False
    if choice == 6:
        # Exporters write normalisations as these nodes.
        where = np.array([axis], np.int64)
        centred = F.sub(x, F.reduce_mean(x, where))
        spread = F.sqrt(F.add(F.reduce_mean(F.mul(centred, centred), where), np.array(1e-2, net.dtype)))
        return F.add(F.mul(F.div(centred, spread), net.param(shape[-1])), net.param(shape[-1])), False
    if len(shape) < 3:
        return None
    channels = shape[1]
    if choice == 7:
        made = F.batch_normalization(
            x, net.param(channels), net.param(channels), net.param(channels), net.param(channels, low=0.5), epsilon=1e-3
        )
        return (made[0] if isinstance(made, tuple) else made), False
    if choice == 8:
        return F.instance_normalization(x, net.param(channels), net.param(channels), epsilon=1e-2), False
    groups = net.choose([g for g in range(1, channels + 1) if channels % g == 0])
    return F.group_normalization(x, net.param(channels), net.param(channels), num_groups=groups, epsilon=1e-2), False


def product(net: Network) -> Built:
    x = net.pick(lambda a: a.ndim >= 1 and a.size > 0)
    if x is None:
        return None
    inner = net.shape(x)[-1]
    out = net.number(1, 9)
    choice = net.number(0, 5)
    if choice == 0:
        y = net.pick(lambda a: a.ndim >= 2 and a.shape[-2] == inner and fits(a.shape[:-2])(np.empty(net.shape(x)[:-2])))
        if y is None:
            y = net.param(inner)
        return F.mat_mul(x, y), False
    if choice == 1 and net.arrays[x].ndim == 2:
        flip = net.chance(0.5)
        weight = net.param(out, inner) if flip else net.param(inner, out)
        bias = net.choose([None, net.param(out), net.param(1, 1), net.param(net.shape(x)[0], 1)])
        return F.gemm(x, weight, bias, alpha=0.5, beta=1.5, transB=flip), False
    if choice == 2 and net.arrays[x].ndim >= 2:
        return F.mat_mul(
            x, F.transpose(x, perm=(*range(net.arrays[x].ndim - 2), net.arrays[x].ndim - 1, net.arrays[x].ndim - 2))
        ), False
    result = F.mat_mul(x, net.param(inner, out))
    if net.chance(0.7):
        result = F.add(result, net.param(out)) if net.chance(0.5) else F.add(net.param(out), result)
    if net.chance(0.5):
        result = net.choose([F.relu, F.gelu, F.tanh, lambda v: F.gelu(v, approximate="tanh")])(result)
    net.compute(result)
    same = net.pick(lambda a: a.shape == net.shape(result))
    return (result if same is None else F.add(same, result)), False


def attention(net: Network) -> Built:
    x = net.pick(lambda a: a.ndim == 3 and a.size > 0 and a.shape[0] * a.shape[1] < 200)
    if x is None:
        return None
    batch, length, width = net.shape(x)
    heads, size = net.number(1, 3), net.number(1, 6)
    split = [
        F.transpose(
            F.reshape(F.mat_mul(x, net.param(width, heads * size)), np.array([batch, length, heads, size])),
            perm=(0, 2, 3, 1) if number == 1 and flip else (0, 2, 1, 3),
        )
        for flip in [net.chance(0.5)]
        for number in range(3)
    ]
    q, k, v = split
    if k.tensor.rank == 4 and k.node is not None and k.node.op.attributes()["perm"] != (0, 2, 3, 1):
        k = F.transpose(k, perm=(0, 1, 3, 2))
    if net.chance(0.3):
        q = F.mul(q, np.array(size**-0.25, net.dtype))
        k = F.mul(k, np.array(size**-0.25, net.dtype))
    scores = F.mat_mul(q, k)
    if net.chance(0.5):
        scores = net.choose([F.mul, F.div])(scores, np.array(0.7, net.dtype))
    if net.chance(0.5):
        mask = np.where(net.rng.random((net.choose([1, length]), length)) < 0.3, -1e4, 0).astype(net.dtype)
        scores = F.add(scores, mask)
    mixed = F.transpose(F.mat_mul(F.softmax(scores, axis=-1), v), perm=(0, 2, 1, 3))
    return F.reshape(mixed, np.array([0, 0, heads * size] if net.chance(0.5) else [batch, length, -1])), False
