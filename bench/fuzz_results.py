"""Results of the engine held against those of the references, and how far apart they may be."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mutations
import numpy as np

import graphkit as gk
from graphkit.checks.inputs import make_feeds
from graphkit.errors import InputError
from graphkit.ir.graph import Graph, Node
from graphkit.ops.evaluate import Observer, evaluate, observed
from graphkit.ops.tensor.constants import Constant
from graphkit.ops.xp import numpy_xp

# Of one trial: seconds, bytes of arrays, iterations.
SECONDS = 20
MEMORY = 1 << 28
ITERATIONS = 1000

# An integer that is added to a sum of products of 8-bit ones, from which on that may leave 32 bits.
_WRAPS = 1 << 30

# Floats that are as near as this, of the largest, are equal; and rounding in another place changes so much of a number.
_NEAR, _ROUNDING = 1e-2, 1e-5


def difference(net: gk.Model, rng: random.Random, inputs: Mapping[str, np.ndarray] | None = None) -> str | None:
    """Run a model in the engine and by references; what differs, as text. inputs: what it may be given."""
    feeds = _feeds(net, rng, inputs or {})
    odd = False
    for array in feeds.values():
        if isinstance(array, np.ndarray) and array.size and array.dtype.kind in "iuf" and rng.random() < 0.25:
            _spoil(array, rng)
            odd |= array.dtype.kind == "f"
    executor = net.compile(threads=1, max_memory=MEMORY, max_iterations=ITERATIONS, timeout=SECONDS)
    results = executor.run(feeds)
    # Of numbers like these, rounding alone makes others; sums of integers that wrap around are those of ONNX Runtime.
    if odd or _may_wrap(net) or any(v.role == "rng" for v in net.graph.inputs):
        return None
    with gk.ir.limits.limited(MEMORY, SECONDS, ITERATIONS):
        arrays = [feeds[net.graph.name_of(v)] if v.role == "data" else net.params[net.graph.name_of(v)]
                  for v in net.graph.inputs]  # fmt: skip
        wanted = evaluate(net.graph, arrays)
        spread = _spread(net.graph, arrays, wanted, rng)
        for number, (name, result) in enumerate(results.items()):
            array, steps = wanted[number], spread[number]
            if not isinstance(array, np.ndarray) or not _differs(result, array, steps):
                continue
            if _quantises(net.graph) and _overflows(net.graph, arrays):
                continue
            noise = _moved(net.graph, arrays, wanted, _Rounded, rng.randrange(1 << 30))
            if found := _differs(result, array, steps + noise[number]):
                return f"output {name!r}: {found}"
    return None


def _feeds(net: gk.Model, rng: random.Random, inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    fill = rng.choice(("random", "random", "ones", "zeros", "arange"))
    seed = rng.randrange(100)
    given = {name: array.copy() for name, array in inputs.items() if name in net.inputs} if rng.random() < 0.7 else {}
    try:
        return make_feeds(net, fill, given=given, seed=seed).arrays
    except InputError:  # the inputs are others by now
        return make_feeds(net, fill, seed=seed).arrays


def _spoil(array: np.ndarray, rng: random.Random) -> None:
    """Write unusual numbers into an array, in place."""
    choices = mutations.FLOATS
    if array.dtype.kind != "f":
        limit = np.iinfo(array.dtype)
        choices = [i for i in mutations.INTEGERS if limit.min <= i <= limit.max]
    with np.errstate(all="ignore"):
        for _ in range(min(rng.choice((1, 3, array.size)), 4096)):
            array.reshape(-1)[rng.randrange(array.size)] = rng.choice(choices)


class _Watch:
    """Observes an evaluation. Subclasses are notified of what runs."""

    def enters(self, graph: Graph) -> None: ...

    def begins(self, node: Node) -> None: ...


class _Nudged(_Watch):
    """Changes the operands of quantising nodes by the size of a rounding error, and computes their results again.

    Fused nodes round at other places, as in ONNX Runtime. So if a value is in the middle between two integers, either
    may be the result, and everything computed from it follows.
    """

    def __init__(self, seed: int):
        self._rng = np.random.default_rng(seed)

    def ran(self, node: Node, operands: Sequence[Any], results: Sequence[Any]) -> None:
        if not quantises(node):
            return
        x = operands[0].astype(np.float64)
        with np.errstate(all="ignore"):
            largest = np.abs(x[np.isfinite(x)]).max(initial=0.0)
            moved = x + _ROUNDING * self._rng.uniform(-1, 1, x.shape) * (np.abs(x) + 0.1 * largest)
            made = node.op.reference(numpy_xp, moved.astype(operands[0].dtype), *operands[1:])  # type: ignore[attr-defined]
            for result, other in zip(results, made if isinstance(made, tuple) else (made,), strict=True):
                result[...] = other


class _Rounded(_Watch):
    """Changes every float of an evaluation by as much as rounding may, of the largest operand or attribute, or of 1.

    A network can make anything of that: a sum that should be 0, times 1e9.
    """

    def __init__(self, seed: int):
        self._rng = np.random.default_rng(seed)

    def ran(self, node: Node, operands: Sequence[Any], results: Sequence[Any]) -> None:
        if not any(map(_is_float, operands)):
            return
        largest = max(np.abs(x[np.isfinite(x)]).max(initial=0.0) for x in operands if _is_float(x))
        factors = [abs(v) for v in node.op.attributes().values() if isinstance(v, float) and np.isfinite(v)]
        for result in filter(_is_float, results):
            # Data movement is exact, and its results may be views of other values.
            if not result.flags.writeable or any(np.may_share_memory(x, result) for x in filter(_is_float, operands)):
                continue
            most = 8 * float(np.finfo(result.dtype).eps) * max(float(largest), 1.0) * max([1.0, *factors])
            with np.errstate(all="ignore"):
                result[...] = result + most * self._rng.uniform(-1, 1, result.shape)


class _Finite(_Watch):
    """Whether all numbers of an evaluation are finite: of others no two programs make the same integers."""

    def __init__(self) -> None:
        self.holds = True

    def ran(self, node: Node, operands: Sequence[Any], results: Sequence[Any]) -> None:
        self.holds &= all(np.isfinite(x).all() for x in filter(_is_float, (*operands, *results)))


def _overflows(graph: Graph, arrays: Sequence[Any]) -> bool:
    seen = _Finite()
    with observed(seen):
        evaluate(graph, arrays)
    return not seen.holds


def _is_float(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind == "f"


def quantises(node: Node) -> bool:
    """Whether an operator makes steps of floats."""
    return "Quantize" in node.op.name and not node.op.name.startswith("Dequantize")


def _quantises(graph: Graph) -> bool:
    return any(quantises(node) or any(map(_quantises, node.op.subgraphs().values())) for node in graph.nodes)


def _may_wrap(net: gk.Model) -> bool:
    """Whether what is added to sums of products of 8-bit integers leaves the references' floats behind."""
    if not _quantises(net.graph):
        return False
    held = [node.op.value.array for node in net.graph.nodes if isinstance(node.op, Constant)]
    return any(
        x.dtype == np.int32 and np.abs(x, dtype=np.float64).max(initial=0) > _WRAPS
        for x in (*held, *net.params.values())
    )


def _spread(graph: Graph, arrays: Sequence[Any], wanted: Sequence[Any], rng: random.Random) -> list[float]:
    """Return how much each output changes if quantised values move across the next step; 0 without any."""
    seed = rng.randrange(1 << 30)
    if not _quantises(graph):
        return [0.0] * len(wanted)
    return _moved(graph, arrays, wanted, _Nudged, seed)


def _moved(
    graph: Graph, arrays: Sequence[Any], wanted: Sequence[Any], observer: Callable[[int], Observer], seed: int
) -> list[float]:
    """Return how much each output changes if an observer changes intermediate values."""
    found = np.zeros(len(wanted))
    for number in range(3):
        with observed(observer(seed + number)):
            moved = evaluate(graph, arrays)
        found = np.maximum(found, [_apart(a, b) for a, b in zip(moved, wanted, strict=True)])
    return [float(x) for x in found]


def _apart(a: Any, b: Any) -> float:
    if not isinstance(b, np.ndarray) or b.dtype.kind not in "iufb" or a.shape != b.shape:
        return 0.0
    with np.errstate(all="ignore"):
        gap = np.abs(a.astype(np.float64) - b.astype(np.float64))
    # If a finite value becomes infinite or NaN, the difference is infinite.
    return np.inf if (np.isfinite(b) & ~np.isfinite(a)).any() else float(gap[np.isfinite(gap)].max(initial=0.0))


def _differs(result: np.ndarray, wanted: np.ndarray, steps: float = 0.0) -> str:
    """Return how two results differ beyond rounding, and beyond four times the effect of other `steps`; else ""."""
    if result.shape != wanted.shape or result.dtype != wanted.dtype:
        return f"{result.dtype}{list(result.shape)} in the engine, {wanted.dtype}{list(wanted.shape)} by the reference"
    if wanted.dtype.kind not in "iufb":
        return ""
    # Of millions a part: copies of all would pass the limit of memory.
    every = (wanted.size >> 22) + 1
    result, wanted = result.reshape(-1)[::every], wanted.reshape(-1)[::every]
    if wanted.dtype.kind != "f":
        far = result != wanted
        if steps:
            far &= np.abs(result.astype(np.float64) - wanted.astype(np.float64)) > 4 * steps
        return f"{np.count_nonzero(far)} numbers differ: {result[far][:3]}, {wanted[far][:3]}" if far.any() else ""
    a, b = result.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(all="ignore"):
        allowed = _NEAR * (1 + np.abs(b[np.isfinite(b)]).max(initial=0.0)) + 4 * steps
        close = (np.abs(a - b) <= allowed) | (a == b) | ~(np.isfinite(a) & np.isfinite(b))
    return "" if close.all() else f"{np.count_nonzero(~close)} numbers differ: {a[~close][:3]}, {b[~close][:3]}"
