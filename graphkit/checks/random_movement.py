"""Random networks: data movement. The functions return the same as those of `random_arithmetic`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.checks.random_network import Built, Network
from graphkit.ops import F


@dataclass(frozen=True)
class _Drawn:
    """The operand of a node to be drawn; `axis` is one of its axes, `length` the size there. `exact` as in `Built`."""

    net: Network
    x: Any
    exact: bool
    shape: tuple[int, ...]
    size: int
    axis: int = 0
    length: int = 0

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype:
        array: np.ndarray = self.net.arrays[self.x]
        return array.dtype

    @property
    def kind(self) -> str:
        return self.net.kind(self.x)


def movement(net: Network) -> Built:
    x = net.pick(kind="fiub" if net.chance(0.5) else "f")
    if x is None:
        return None
    drawn = _Drawn(net, x, x in net.exact, net.shape(x), net.arrays[x].size)
    choice = net.number(0, len(_ANY_RANK) + len(_ALONG_AXES) - 1)
    if choice < len(_ANY_RANK):
        return _ANY_RANK[choice](drawn)
    if drawn.rank == 0:
        return F.expand(x, np.array([net.number(1, 3), net.number(0, 4)])), drawn.exact
    axis = net.number(-drawn.rank, drawn.rank - 1)
    along = _Drawn(net, x, drawn.exact, drawn.shape, drawn.size, axis, drawn.shape[axis])
    return _ALONG_AXES[choice - len(_ANY_RANK)](along)


# --- operands of any rank -------------------------------------------------------------------------


def _transpose(d: _Drawn) -> Built:
    return F.transpose(d.x, perm=tuple(int(i) for i in d.net.rng.permutation(d.rank))), d.exact


def _reshape(d: _Drawn) -> Built:
    factors = [n for n in (1, 2, 3, 4, 6) if d.size and d.size % n == 0] or [1]
    f = d.net.choose(factors)
    shape = d.net.choose([[-1], [f, -1], [-1, f, 1], [1, -1]]) if d.size else [0, 1]
    return F.reshape(d.x, np.array(shape, np.int64), allowzero=not d.size), d.exact


def _flatten(d: _Drawn) -> Built:
    return F.flatten(d.x, axis=d.net.number(0, d.rank)), d.exact


def _squeeze(d: _Drawn) -> Built:
    axes = [i for i, n in enumerate(d.shape) if n == 1]
    # ONNX Runtime reads an empty list of axes as all axes.
    return (F.squeeze(d.x, np.array(d.net.some(axes, 1), np.int64)), d.exact) if axes else None


def _unsqueeze(d: _Drawn) -> Built:
    return F.unsqueeze(d.x, np.array([d.net.number(-d.rank - 1, d.rank)])), d.exact


# --- operands with an axis ------------------------------------------------------------------------


def _concat(d: _Drawn) -> Built:
    net, others = d.net, [d.x, d.x]

    def joins(a: np.ndarray) -> bool:
        sizes = enumerate(zip(a.shape, d.shape, strict=True)) if a.ndim == d.rank else ()
        return a.dtype == d.dtype and a.ndim == d.rank and all(n == m or i == d.axis % d.rank for i, (n, m) in sizes)

    same = net.pick(joins, kind="fiub")
    if same is not None:
        others[net.number(0, 1)] = same
    return F.concat(*others, axis=d.axis), all(v in net.exact for v in others)


def _split(d: _Drawn) -> Built:
    if d.length <= 1:
        return None
    cut = d.net.number(0, d.length)
    return F.split(d.x, np.array([cut, d.length - cut]), axis=d.axis), d.exact


def _slice(d: _Drawn) -> Built:
    net, shape = d.net, d.shape
    axes = net.some(range(d.rank), 1)
    starts = [net.number(-shape[a] - 2, shape[a] + 2) for a in axes]
    ends = [net.number(-shape[a] - 2, shape[a] + 2) if net.chance(0.6) else net.choose([2**62, -(2**62)]) for a in axes]
    steps = [net.choose([1, 1, 1, 2, 3, -1, -2]) for _ in axes]
    if net.chance(0.6):
        starts = [net.choose([0, 0, -1, 1]) for _ in axes]
        ends = [2**62 if s > 0 else -(2**62) for s in steps]
    return F.slice(d.x, np.array(starts), np.array(ends), np.array(axes), np.array(steps)), d.exact


def _pad(d: _Drawn) -> Built:
    net = d.net
    if d.kind == "b":
        return None
    mode = net.choose(["constant", "edge", "reflect", "wrap"])
    if d.size == 0:
        mode = "constant"
    pads = []
    for n in (*d.shape, *d.shape):
        most = {"constant": 3, "edge": 3, "reflect": n - 1, "wrap": n}[mode]
        low = -1 if mode == "constant" and n > 3 else 0
        pads.append(net.number(low, max(0, min(most, 3))) if net.chance(0.5) else 0)
    fill = np.array(2, d.dtype) if net.chance(0.5) and mode == "constant" else None
    return F.pad(d.x, np.array(pads), fill, mode=mode), d.exact


def _gather(d: _Drawn) -> Built:
    net = d.net
    if not d.length:
        return None
    where = net.rng.integers(-d.length, d.length, [net.number(0, 4) for _ in range(net.number(0, 2))])
    return F.gather(d.x, np.asarray(where, net.choose([np.int32, np.int64])), axis=d.axis), d.exact


def _gather_elements(d: _Drawn) -> Built:
    if not d.size:
        return None
    other = [n if i != d.axis % d.rank else d.net.number(1, 4) for i, n in enumerate(d.shape)]
    return F.gather_elements(d.x, d.net.rng.integers(-d.length, d.length, other), axis=d.axis), d.exact


def _gather_nd(d: _Drawn) -> Built:
    if not d.size:
        return None
    depth = d.net.number(1, d.rank)
    where = np.stack([d.net.rng.integers(0, n, (d.net.number(1, 1), 3)) for n in d.shape[:depth]], -1)
    return F.gather_nd(d.x, where), d.exact


def _scatter_elements(d: _Drawn) -> Built:
    if not d.size or d.kind not in "fi":
        return None
    order = d.net.rng.permutation(d.length)[: d.net.number(1, d.length)]
    along = d.axis % d.rank
    where = np.broadcast_to(
        order.reshape([-1 if i == along else 1 for i in range(d.rank)]),
        [len(order) if i == along else n for i, n in enumerate(d.shape)],
    )
    updates = F.constant(value=d.net.draw(where.shape, d.dtype))
    reduction = d.net.choose(["none", "add", "max"]) if d.dtype == np.float32 else "none"
    return F.scatter_elements(d.x, np.array(where), updates, axis=d.axis, reduction=reduction), False


def _scatter_nd(d: _Drawn) -> Built:
    if not d.size or d.kind not in "fi":
        return None
    where = d.net.rng.permutation(d.shape[0])[: d.net.number(1, d.shape[0])].reshape(-1, 1)
    updates = F.constant(value=d.net.draw((len(where), *d.shape[1:]), d.dtype))
    return F.scatter_nd(d.x, where, updates), d.exact


def _tile(d: _Drawn) -> Built:
    net = d.net
    return F.tile(d.x, np.array([net.choose([1, 1, 2, 3, 0]) if net.chance(0.7) else 1 for _ in d.shape])), d.exact


def _expand(d: _Drawn) -> Built:
    target = [n if n != 1 else d.net.number(1, 3) for n in d.shape]
    return F.expand(d.x, np.array(([d.net.number(1, 2)] if d.net.chance(0.4) else []) + target)), d.exact


def _trilu(d: _Drawn) -> Built:
    if d.rank < 2 or d.kind != "f":
        return None
    return F.trilu(d.x, np.array(d.net.number(-2, 2)), upper=d.net.chance(0.5)), d.exact


def _blocks(d: _Drawn) -> Built:
    if d.rank != 4 or d.kind != "f":
        return None
    if d.shape[2] % 2 == 0 and d.shape[3] % 2 == 0:
        return F.space_to_depth(d.x, blocksize=2), d.exact
    if d.shape[1] % 4 == 0:
        return F.depth_to_space(d.x, blocksize=2, mode=d.net.choose(["DCR", "CRD"])), d.exact
    return None


def _reverse_sequence(d: _Drawn) -> Built:
    if d.rank < 2 or d.kind != "f" or not d.shape[0] or not d.shape[1]:
        return None
    lens = d.net.rng.integers(1, d.shape[0] + 1, d.shape[1])
    return F.reverse_sequence(d.x, lens, batch_axis=1, time_axis=0), d.exact


_ANY_RANK: tuple[Callable[[_Drawn], Built], ...] = (_transpose, _reshape, _flatten, _squeeze, _unsqueeze)
_ALONG_AXES: tuple[Callable[[_Drawn], Built], ...] = (
    _concat,
    _split,
    _slice,
    _slice,  # twice as often
    _pad,
    _gather,
    _gather_elements,
    _gather_nd,
    _scatter_elements,
    _scatter_nd,
    _tile,
    _expand,
    _trilu,
    _blocks,
    _reverse_sequence,
)
