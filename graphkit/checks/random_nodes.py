"""Random networks of many kinds of operators, the same ones for the same seed: `network, graph = build(7)`.

Each function here adds to a network: it returns the new value, or values, and whether they are exact; None where
the network has nothing that fits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from graphkit.checks.random_network import LARGEST, Network
from graphkit.frontend.control import cond, scan, while_loop
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import dtype_of
from graphkit.ops import F

Built: TypeAlias = tuple[Any, bool] | None

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


def fits(shape: tuple[int, ...]) -> Callable[[np.ndarray], bool]:
    def check(array: np.ndarray) -> bool:
        try:
            return int(np.prod(np.broadcast_shapes(shape, array.shape))) <= LARGEST
        except ValueError:
            return False

    return check


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
        return F.mod(x, np.array(net.choose([3, 5, 7]), like), fmod=0), True
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
        # As exporters write it.
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


def windows(net: Network, shape: tuple[int, ...], pooling: bool) -> dict[str, Any] | None:
    """Kernel, strides, dilations and pads that leave something to compute."""
    kernel, strides, dilations, begins, ends = [], [], [], [], []
    for size in shape:
        k, s, d = net.number(1, 4), net.number(1, 3), net.choose([1, 1, 1, 2, 3])
        most = k - 1 if pooling else 3
        a, b = (0, 0) if net.chance(0.3) else (net.number(0, most), net.number(0, most))
        if size + a + b < (k - 1) * d + 1:
            k = 1
            if pooling:
                a = b = 0
        kernel.append(k)
        strides.append(s)
        dilations.append(d)
        begins.append(a)
        ends.append(b)
    if pooling and net.chance(0.5):
        dilations = [1] * len(shape)
    if any(n + a + b < (k - 1) * d + 1 for n, k, d, a, b in zip(shape, kernel, dilations, begins, ends, strict=True)):
        return None
    return {
        "kernel_shape": tuple(kernel),
        "strides": tuple(strides),
        "dilations": tuple(dilations),
        "pads": (*begins, *ends),
    }


def images(array: np.ndarray) -> bool:
    return 3 <= array.ndim <= 5 and 0 not in array.shape[1:]


def convolution(net: Network) -> Built:
    x = net.pick(images)
    if x is None:
        return None
    _, channels, *spatial = net.shape(x)
    with_window = windows(net, tuple(spatial), pooling=False)
    if with_window is None:
        return None
    groups = net.choose([1, 1, channels, *(g for g in range(2, channels) if channels % g == 0)])
    transposed = net.chance(0.25)
    out = net.number(1, 5) * (1 if transposed else groups)
    kernel = with_window["kernel_shape"]
    if transposed:
        stride, dilation, pads = with_window["strides"], with_window["dilations"], list(with_window["pads"])
        half = len(spatial)
        for i, size in enumerate(spatial):
            if (size - 1) * stride[i] + (kernel[i] - 1) * dilation[i] + 1 - pads[i] - pads[i + half] < 1:
                pads[i] = pads[i + half] = 0
        with_window["pads"] = tuple(pads)
        if net.chance(0.4):
            with_window["output_padding"] = tuple(net.number(0, s - 1) for s in stride)
        weight = net.param(channels, out, *kernel)
        bias = net.param(out * groups) if net.chance(0.5) else None
        if net.chance(0.3):
            with_window.pop("kernel_shape")
        return F.conv_transpose(x, weight, bias, group=groups, **with_window), False
    scale = F.mul(net.param(out, channels // groups, *kernel), np.array(0.3, net.dtype)) if net.chance(0.2) else None
    weight = net.param(out, channels // groups, *kernel) if scale is None else scale
    result = F.conv(x, weight, net.param(out) if net.chance(0.5) else None, group=groups, **with_window)
    choice = net.number(0, 8)
    if choice == 0:
        made = F.batch_normalization(
            result, net.param(out), net.param(out), net.param(out), net.param(out, low=0.5), epsilon=1e-3
        )
        result = made[0] if isinstance(made, tuple) else made
    if choice in (0, 1):
        result = F.add(result, net.param(out, *(1,) * len(spatial)))
    if net.chance(0.5):
        result = net.choose(
            [F.relu, F.sigmoid, F.hard_swish, lambda v: F.clip(v, F.cast_like(0.0, v), F.cast_like(6.0, v))]
        )(result)
    net.compute(result)
    same = net.pick(lambda a: a.shape == net.shape(result))
    return (result if same is None else F.relu(F.add(same, result))), False


def starts_behind(size: int, axis: int, window: dict[str, Any]) -> bool:
    """Whether rounding up would add a window of padding alone. It is left out; the standard's inference counts it."""
    pads = window["pads"]
    begin, end = pads[axis], pads[axis + len(pads) // 2]
    stride, span = window["strides"][axis], (window["kernel_shape"][axis] - 1) * window["dilations"][axis] + 1
    return -(-(size + begin + end - span) // stride) * stride >= size + begin


def pooling(net: Network) -> Built:
    x = net.pick(images)
    if x is None:
        return None
    if net.chance(0.15):
        return net.choose([F.global_average_pool, F.global_max_pool])(x), False
    window = windows(net, net.shape(x)[2:], pooling=True)
    if window is None:
        return None
    ceil_mode = net.chance(0.4) and not any(starts_behind(n, i, window) for i, n in enumerate(net.shape(x)[2:]))
    if net.chance(0.5):
        made = F.max_pool(x, ceil_mode=ceil_mode, **window)
        return (made[0] if isinstance(made, tuple) else made), x in net.exact
    return F.average_pool(x, ceil_mode=ceil_mode, count_include_pad=net.chance(0.5), **window), False


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
    if k.tensor.rank == 4 and k.node.op.perm != (0, 2, 3, 1):
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


def movement(net: Network) -> Built:
    x = net.pick(kind="fiub" if net.chance(0.5) else "f")
    if x is None:
        return None
    shape, rank, exact = net.shape(x), net.arrays[x].ndim, x in net.exact
    size = net.arrays[x].size
    choice = net.number(0, 19)
    if choice == 0:
        return F.transpose(x, perm=tuple(int(i) for i in net.rng.permutation(rank))), exact
    if choice == 1:
        factors = [n for n in (1, 2, 3, 4, 6) if size and size % n == 0] or [1]
        f = net.choose(factors)
        return F.reshape(
            x,
            np.array(net.choose([[-1], [f, -1], [-1, f, 1], [1, -1]]) if size else [0, 1], np.int64),
            **({} if size else {"allowzero": True}),
        ), exact
    if choice == 2:
        return F.flatten(x, axis=net.number(0, rank)), exact
    if choice == 3:
        axes = [i for i, n in enumerate(shape) if n == 1]
        # ONNX Runtime takes no axes for all axes.
        return (F.squeeze(x, np.array(net.some(axes, 1), np.int64)), exact) if axes else None
    if choice == 4:
        return F.unsqueeze(x, np.array([net.number(-rank - 1, rank)])), exact
    if rank == 0:
        return F.expand(x, np.array([net.number(1, 3), net.number(0, 4)])), exact
    axis = net.number(-rank, rank - 1)
    length = shape[axis]
    if choice == 5:
        others = [x, x]

        def joins(a: np.ndarray) -> bool:
            same_rank = a.dtype == net.arrays[x].dtype and a.ndim == rank
            return same_rank and all(
                n == m or i == axis % rank for i, (n, m) in enumerate(zip(a.shape, shape, strict=True))
            )

        same = net.pick(joins, kind="fiub")
        if same is not None:
            others[net.number(0, 1)] = same
        return F.concat(*others, axis=axis), all(v in net.exact for v in others)
    if choice == 6 and length > 1:
        cut = net.number(0, length)
        return F.split(x, np.array([cut, length - cut]), axis=axis), exact
    if choice in (7, 8):
        axes = net.some(range(rank), 1)
        starts = [net.number(-shape[a] - 2, shape[a] + 2) for a in axes]
        ends = [
            net.number(-shape[a] - 2, shape[a] + 2) if net.chance(0.6) else net.choose([2**62, -(2**62)]) for a in axes
        ]
        steps = [net.choose([1, 1, 1, 2, 3, -1, -2]) for _ in axes]
        if net.chance(0.6):
            starts = [net.choose([0, 0, -1, 1]) for _ in axes]
            ends = [2**62 if s > 0 else -(2**62) for s in steps]
        return F.slice(x, np.array(starts), np.array(ends), np.array(axes), np.array(steps)), exact
    if choice == 9 and net.kind(x) != "b":
        mode = net.choose(["constant", "edge", "reflect", "wrap"])
        if size == 0:
            mode = "constant"
        pads = []
        for n in (*shape, *shape):
            most = {"constant": 3, "edge": 3, "reflect": n - 1, "wrap": n}[mode]
            low = -1 if mode == "constant" and n > 3 else 0
            pads.append(net.number(low, max(0, min(most, 3))) if net.chance(0.5) else 0)
        fill = np.array(2, net.arrays[x].dtype) if net.chance(0.5) and mode == "constant" else None
        return F.pad(x, np.array(pads), fill, mode=mode), exact
    if choice == 10 and length:
        where = net.rng.integers(-length, length, [net.number(0, 4) for _ in range(net.number(0, 2))])
        return F.gather(x, np.asarray(where, net.choose([np.int32, np.int64])), axis=axis), exact
    if choice == 11 and size:
        other = [n if i != axis % rank else net.number(1, 4) for i, n in enumerate(shape)]
        return F.gather_elements(x, net.rng.integers(-length, length, other), axis=axis), exact
    if choice == 12 and size:
        depth = net.number(1, rank)
        where = np.stack([net.rng.integers(0, n, (net.number(1, 1), 3)) for n in shape[:depth]], -1)
        return F.gather_nd(x, where), exact
    if choice == 13 and size and net.kind(x) in "fi":
        order = net.rng.permutation(length)[: net.number(1, length)]
        where = np.broadcast_to(
            order.reshape([-1 if i == axis % rank else 1 for i in range(rank)]),
            [len(order) if i == axis % rank else n for i, n in enumerate(shape)],
        )
        updates = F.constant(value=net.draw(where.shape, net.arrays[x].dtype))
        return F.scatter_elements(
            x,
            np.array(where),
            updates,
            axis=axis,
            reduction=net.choose(["none", "add", "max"]) if net.arrays[x].dtype == np.float32 else "none",
        ), exact and False
    if choice == 14 and size and net.kind(x) in "fi":
        where = net.rng.permutation(shape[0])[: net.number(1, shape[0])].reshape(-1, 1)
        return F.scatter_nd(x, where, F.constant(value=net.draw((len(where), *shape[1:]), net.arrays[x].dtype))), exact
    if choice == 15:
        return F.tile(x, np.array([net.choose([1, 1, 2, 3, 0]) if net.chance(0.7) else 1 for _ in shape])), exact
    if choice == 16:
        target = [n if n != 1 else net.number(1, 3) for n in shape]
        return F.expand(x, np.array(([net.number(1, 2)] if net.chance(0.4) else []) + target)), exact
    if choice == 17 and rank >= 2 and net.kind(x) == "f":
        return F.trilu(x, np.array(net.number(-2, 2)), upper=net.chance(0.5)), exact
    if choice == 18 and rank == 4 and net.kind(x) == "f":
        if shape[2] % 2 == 0 and shape[3] % 2 == 0:
            return F.space_to_depth(x, blocksize=2), exact
        if shape[1] % 4 == 0:
            return F.depth_to_space(x, blocksize=2, mode=net.choose(["DCR", "CRD"])), exact
    if choice == 19 and rank >= 2 and net.kind(x) == "f" and shape[0] and shape[1]:
        lens = net.rng.integers(1, shape[0] + 1, shape[1])
        return F.reverse_sequence(x, lens, batch_axis=1, time_axis=0), exact
    return None


def resize(net: Network) -> Built:
    x = net.pick(lambda a: images(a) and a.size > 0 and a.ndim == 4)
    if x is None:
        return None
    _, _, h, w = net.shape(x)
    mode = net.choose(["nearest", "linear", "cubic"])
    how = net.choose(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
    sizes = np.array([*net.shape(x)[:2], net.number(1, 2 * h + 1), net.number(1, 2 * w + 1)])
    if mode == "nearest":
        scales = np.array([1, 1, net.choose([1.0, 2.0, 0.5, 3.0]), net.choose([1.0, 2.0, 0.5])], np.float32)
        if (np.floor(np.array([h, w]) * scales[2:]) < 1).any():
            return None
        return F.resize(
            x, None, scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor"
        ), (x in net.exact)
    return F.resize(x, None, None, sizes, mode=mode, coordinate_transformation_mode=how), False


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
