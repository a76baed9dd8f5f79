"""A graph that grows by random nodes, and the value that the reference computes for each result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from graphkit.ir.graph import Value
from graphkit.ir.types import TensorType, dtype_of
from graphkit.ops import F
from graphkit.ops.evaluate import run_node

LARGEST = 20_000  # maximum number of elements of a value

# Result of a function that appends nodes: the new value or values, and whether they are exact; None if it appended
# none.
Built: TypeAlias = tuple[Any, bool] | None


class Network:
    """A graph that grows, with the array that the reference computes for each value.

    `exact` holds the values that every implementation computes with the same bits. Comparing, rounding and sorting read
    only these, because a last digit could change their results.
    """

    def __init__(self, seed: int, dtype: np.dtype):
        self.rng = np.random.default_rng(seed)
        self.dtype = dtype
        self.arrays: dict[Value, Any] = {}
        self.exact: set[Value] = set()
        self.pool: list[Value] = []
        self.inputs: list[Value] = []
        self.params: dict[str, np.ndarray] = {}

    def input(self, shape: Sequence[int], dtype: Any = None, array: np.ndarray | None = None) -> Value:
        """An input whose sizes are names or numbers, by chance."""
        if array is None:
            array = self.draw(shape, dtype)
        names = [f"{n}{len(self.inputs)}" if self.chance(0.3) else n for n in array.shape]
        sizes = [f"D{len(self.inputs)}_{i}" if isinstance(n, str) else n for i, n in enumerate(names)]
        value = Value(TensorType(dtype_of(array.dtype), sizes), f"in{len(self.inputs)}")
        self.inputs.append(value)
        return self.add(value, array, True)

    def param(self, *shape: int, low: float | None = None) -> Value:
        """Weights: a parameter or a constant."""
        array = self.draw(shape) if low is None else self.rng.uniform(low, low + 1, shape).astype(self.dtype)
        if self.chance(0.3):
            value = F.constant(value=array)
        else:
            name = f"w{len(self.params)}"
            self.params[name] = array
            value = Value(TensorType(dtype_of(array.dtype), shape), name, role="parameter")
            self.inputs.append(value)
        self.arrays[value] = array
        return value

    def draw(self, shape: Sequence[int], dtype: Any = None) -> np.ndarray:
        dtype = np.dtype(self.dtype if dtype is None else dtype)
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            return self.rng.integers(max(info.min, -50), min(info.max, 50), shape).astype(dtype)
        if dtype.kind == "b":
            return self.rng.random(shape) < 0.5
        # Only a few different values, so that there are ties.
        drawn = (
            np.round(self.rng.standard_normal(shape) * 4) / 4 if self.chance(0.5) else self.rng.standard_normal(shape)
        )
        return np.asarray(drawn).astype(dtype)

    def add(self, value: Value, array: np.ndarray, exact: bool) -> Value:
        self.arrays[value] = array
        if exact:
            self.exact.add(value)
        self.pool.append(value)
        return value

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def number(self, low: int, high: int) -> int:
        """A number from low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def choose(self, items: Sequence[Any]) -> Any:
        return items[self.number(0, len(items) - 1)]

    def some(self, items: Sequence[Any], at_least: int = 0) -> list[Any]:
        count = self.number(min(at_least, len(items)), len(items))
        return [items[i] for i in self.rng.permutation(len(items))[:count]]

    def shape(self, value: Value) -> tuple[int, ...]:
        return tuple(self.arrays[value].shape)

    def pick(self, where: Callable[[np.ndarray], bool] = lambda _: True, exact: bool = False, kind: str = "f") -> Any:
        """Pick a value at random, preferring recent ones; None if none is suitable."""
        found = [
            v for v in self.pool
            if (not exact or v in self.exact) and self.kind(v) in kind and where(self.arrays[v])
        ]  # fmt: skip
        if not found:
            return None
        return found[max(0, len(found) - 1 - int(self.rng.exponential(3)))]

    def kind(self, value: Value) -> str:
        dtype = self.arrays[value].dtype
        return "f" if dtype == self.dtype else "o" if dtype.kind in "fV" else dtype.kind

    def emit(self, result: Any, exact: bool) -> None:
        """Add the result of a builder to the network. The new nodes are interpreted."""
        results = result if isinstance(result, (tuple, list)) else (result,)
        for value in results:
            self.compute(value)
        for value in results:
            array = self.arrays[value]
            # The mean of a window that contains only padding is NaN here, but zero in ONNX Runtime.
            if array.size > LARGEST or (array.dtype == self.dtype and np.isnan(array.astype(np.float32)).any()):
                continue
            self.add(value, array, exact)
            if array.dtype == self.dtype and array.size and not self.tame(array):
                tamed = F.tanh(F.mul(value, np.array(0.05, self.dtype)))
                self.compute(tamed)
                self.pool[-1] = tamed

    def tame(self, array: np.ndarray) -> bool:
        wide = array.astype(np.float64)
        return bool(np.isfinite(wide).all() and np.abs(wide).max() < 30)

    def compute(self, value: Value) -> None:
        stack = [value]
        while stack:
            top = stack[-1]
            if top in self.arrays:
                stack.pop()
                continue
            assert top.node is not None
            missing = [v for v in top.node.inputs if v is not None and v not in self.arrays]
            if missing:
                stack += missing
                continue
            operands = [None if v is None else self.arrays[v] for v in top.node.inputs]
            for out, array in zip(top.node.outputs, run_node(top.node, operands), strict=True):
                self.arrays[out] = array


def fits(shape: tuple[int, ...]) -> Callable[[np.ndarray], bool]:
    """Whether an array broadcasts against `shape` to no more than LARGEST elements."""

    def check(array: np.ndarray) -> bool:
        try:
            return int(np.prod(np.broadcast_shapes(shape, array.shape))) <= LARGEST
        except ValueError:
            return False

    return check
