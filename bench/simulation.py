"""Simulate data-parallel training by events: written gradients, all-reduced buckets, and late ranks.

A step is an update, then a forward and a backward pass, which writes gradients at known times. Consecutive gradients
form a bucket. The all-reduce of a bucket begins when the slowest rank has written its last gradient and the previous
all-reduce is complete. The step ends with the last all-reduce.

The time of an all-reduce follows the alpha-beta-gamma model: a message of n bytes takes alpha + n beta, adding n bytes
takes n gamma. Formulas: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH",
2005 (recursive doubling; recursive halving and doubling, after Rabenseifner; binomial trees for reduce and broadcast; a
ring for reduce-scatter and allgather).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Link:
    """A message's time in seconds: alpha for each, beta for each byte; gamma for each byte that is added."""

    alpha: float
    beta: float
    gamma: float = 0.0

    def shared(self, ranks: int) -> Link:
        """Return the link as each rank sees it if `ranks` ranks send at the same time."""
        return replace(self, beta=self.beta * ranks)

    def slower(self, other: Link) -> Link:
        """Return the slower link. Ranks wait for it if they send over both at the same time."""
        return Link(max(self.alpha, other.alpha), max(self.beta, other.beta), max(self.gamma, other.gamma))


# --- sums over p ranks, n bytes in each: seconds --------------------------------------------------------


def ring(p: int, n: float, link: Link) -> float:
    """Reduce-scatter and allgather around a ring: 2(p-1) alpha + 2(p-1)/p n beta + (p-1)/p n gamma."""
    part = (p - 1) / p * n
    return 2 * (p - 1) * link.alpha + 2 * part * link.beta + part * link.gamma


def doubling(p: int, n: float, link: Link) -> float:
    """Recursive doubling: lg p (alpha + n beta + n gamma), for other p than powers of two with `_uneven`."""
    steps = p.bit_length() - 1
    return steps * (link.alpha + n * (link.beta + link.gamma)) + _uneven(p, n, link)


def halving(p: int, n: float, link: Link) -> float:
    """Rabenseifner's: 2 lg p alpha + 2(p-1)/p n beta + (p-1)/p n gamma, for other p with `_uneven`."""
    steps = p.bit_length() - 1
    part = (1 - 0.5**steps) * n
    return 2 * steps * link.alpha + part * (2 * link.beta + link.gamma) + _uneven(p, n, link)


def tree(p: int, n: float, link: Link) -> float:
    """Binomial trees, to the root and back: ceil(lg p) (2 alpha + 2 n beta + n gamma)."""
    return math.ceil(math.log2(p)) * (2 * link.alpha + n * (2 * link.beta + link.gamma))


def _uneven(p: int, n: float, link: Link) -> float:
    """Add the cost of ranks beyond a power of two: they send their arrays before, and receive the sums after."""
    return 0.0 if p & (p - 1) == 0 else 2 * link.alpha + n * (2 * link.beta + link.gamma)


@dataclass(frozen=True)
class Cluster:
    """Hosts of `per_host` ranks each; `inside` links ranks of a host, `outside` is the network port of a host.

    `call` are the seconds of a sum beyond its messages: what processes tell each other before it.
    """

    inside: Link
    outside: Link
    per_host: int = 1
    call: float = 0.0

    def sum_seconds(self, topology: str, p: int, n: float) -> float:
        """Return the seconds of an all-reduce of n bytes over p ranks; 0 for one rank.

        `ring`, `doubling` and `halving` ignore hosts; `tree` and `two-level` use them. `two-level` is a reduce-scatter
        in each host, a ring of hosts for each part, and an allgather in each host. Raises KeyError for another
        topology.
        """
        if topology not in TOPOLOGIES:
            raise KeyError(f"no topology {topology!r}: {', '.join(TOPOLOGIES)}")
        if p == 1:
            return 0.0
        flat = {"ring": ring, "doubling": doubling, "halving": halving}
        per_host = min(p, self.per_host)
        hosts = -(-p // per_host)
        if topology in flat:
            # In a ring ranks lie host by host: a port sends what one rank sends.
            outside = self.outside if topology == "ring" else self.outside.shared(per_host)
            link = self.inside if hosts == 1 else outside if per_host == 1 else self.inside.slower(outside)
            return self.call + flat[topology](p, n, link)
        if topology == "tree":
            return self.call + tree(per_host, n, self.inside) + tree(hosts, n, self.outside)
        # Each rank of a host sums its part with its peers in the other hosts, all of them through the one port.
        across = ring(hosts, n / per_host, self.outside.shared(per_host))
        return self.call + ring(per_host, n, self.inside) + across


TOPOLOGIES = ("ring", "doubling", "halving", "tree", "two-level")


# --- a program ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gradient:
    """`written`: seconds from the begin of forward to when backward has written it."""

    name: str
    bytes: int
    written: float


@dataclass(frozen=True)
class Program:
    """A rank's step: `update` seconds, then `passes` seconds of forward and backward."""

    name: str
    gradients: tuple[Gradient, ...]
    passes: float
    update: float

    @property
    def compute(self) -> float:
        return self.passes + self.update

    @property
    def bytes(self) -> int:
        return sum(g.bytes for g in self.gradients)

    def scaled(self, seconds: float) -> Program:
        """Return the program on a device that computes it in `seconds`, with the same proportions."""
        factor = seconds / self.compute
        gradients = tuple(replace(g, written=g.written * factor) for g in self.gradients)
        return Program(self.name, gradients, self.passes * factor, self.update * factor)


@dataclass(frozen=True)
class Bucket:
    bytes: int
    written: float


def buckets(gradients: Sequence[Gradient], limit: float) -> list[Bucket]:
    """Return the buckets of gradients, in the order of writing. A bucket is full at `limit` bytes or more."""
    found: list[Bucket] = []
    size, count = 0, 0
    for gradient in sorted(gradients, key=lambda g: g.written):
        size, count = size + gradient.bytes, count + 1
        if size >= limit:
            found.append(Bucket(size, gradient.written))
            size, count = 0, 0
    if count:
        found.append(Bucket(size, max(g.written for g in gradients)))
    return found


def delays(ranks: int, cv: float, steps: int, seed: int) -> np.ndarray:
    """Return, for each step, the computing time of the slowest rank over the mean: [steps], lognormal."""
    sigma = math.sqrt(math.log1p(cv * cv))
    draws = np.random.default_rng(seed).lognormal(-sigma * sigma / 2, sigma, (steps, ranks))
    return np.asarray(draws.max(axis=1))


def step_seconds(
    program: Program, cost: Callable[[float], float], slowest: np.ndarray, limit: float = 0.0, overlap: bool = True
) -> np.ndarray:
    """Return the time of each step, [steps].

    cost: seconds of an all-reduce, by bytes. slowest: result of `delays`. limit: bytes of a bucket; with 0, each
    gradient has its own bucket. Without overlap, all-reduces begin after the backward pass.
    """
    computed = program.compute * slowest
    done = np.zeros_like(slowest)
    for bucket in buckets(program.gradients, limit):
        ready = (program.update + bucket.written) * slowest if overlap else computed
        done = np.maximum(done, ready) + cost(bucket.bytes)
    return np.asarray(np.maximum(computed, done))


@dataclass(frozen=True)
class Setting:
    """How gradients are summed, and how much ranks differ: `cv` is the coefficient of variation of their times."""

    topology: str
    limit: float
    overlap: bool = True
    cv: float = 0.0
    steps: int = 400
    seed: int = 0

    def efficiency(self, program: Program, cluster: Cluster, ranks: int) -> float:
        """Return the mean step time of one rank over that of `ranks` ranks, each with the same batch."""
        alone = program.compute * delays(1, self.cv, self.steps, self.seed)
        slowest = delays(ranks, self.cv, self.steps, self.seed)
        cost = lambda n: cluster.sum_seconds(self.topology, ranks, n)  # noqa: E731 - a function of bytes
        return float(alone.mean() / step_seconds(program, cost, slowest, self.limit, self.overlap).mean())


def fitted(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Fit seconds = a + b size with a, b >= 0, by least squares of the relative differences. Return a and b."""
    from scipy.optimize import nnls

    y = np.asarray(seconds, float)
    x = np.asarray(sizes, float)
    matrix = np.stack([1 / y, x / y], axis=1)
    scale = np.linalg.norm(matrix, axis=0)
    (a, b), _ = nnls(matrix / scale, np.ones(len(y)))
    return float(a / scale[0]), float(b / scale[1])
