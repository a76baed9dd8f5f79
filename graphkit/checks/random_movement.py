"""Nodes of random networks that move elements. See `random_arithmetic` for what they return."""

from __future__ import annotations

import numpy as np

from graphkit.checks.random_network import Built, Network
from graphkit.ops import F


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
            allowzero=not size,
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
