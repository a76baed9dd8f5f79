"""Convolutions with channels last for tests of graphkit's own code, and the expected results."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphkit.executor.devices.cpu import native
from graphkit.executor.memory.packing import aligned_bytes
from graphkit.ops.nn.conv import Conv
from graphkit.ops.xp import numpy_xp


def last(x: np.ndarray) -> np.ndarray:
    """[N, C, *spatial] as [N, *spatial, C]."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


@dataclass
class Example:
    """One convolution of [N, C, *spatial] with random operands."""

    x_shape: tuple[int, ...]
    filters: int
    attributes: dict[str, Any] = field(default_factory=dict)
    kernel: tuple[int, ...] = (3, 3)
    seed: int = 5

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.x = rng.standard_normal(self.x_shape, dtype=np.float32)
        channels = self.x_shape[1] // self.attributes.get("group", 1)
        self.w = rng.standard_normal((self.filters, channels, *self.kernel), dtype=np.float32)
        self.bias = rng.standard_normal(self.filters, dtype=np.float32)
        self.geometry = Conv(**self.attributes).geometry(self.x.shape, self.w.shape)
        g = self.geometry
        self.window = native.Window(g.strides, g.dilations, g.begin, g.end, g.group)
        # The operands of the last call of `product`, and its result.
        self._multiplied: tuple[bytes, bytes] | None = None
        self._product = np.empty(0)

    def __str__(self) -> str:
        return str((self.x_shape, self.filters, self.kernel, self.attributes))

    def product(self) -> np.ndarray:
        """The result in float64, [N, M, *spatial]. It is computed again only if x or w has changed."""
        operands = self.x.tobytes(), self.w.tobytes()
        if operands != self._multiplied:
            x, w = self.x.astype(np.float64), self.w.astype(np.float64)
            self._multiplied, self._product = operands, Conv(**self.attributes).reference(numpy_xp, x, w)
        return self._product.copy()

    def inside_sum(self) -> np.ndarray:
        """The product in float64, channels last, without terms of padding."""
        x, w = last(self.x).astype(np.float64), self.w.astype(np.float64)
        y = last(Conv(**self.attributes).reference(numpy_xp, np.zeros(self.x.shape), np.zeros(w.shape)))
        for tap in itertools.product(*map(range, self.kernel)):
            places, taken = zip(*map(self._inside, range(len(tap)), tap, y.shape[1:-1]), strict=True)
            with np.errstate(invalid="ignore"):
                terms = x[(slice(None), *np.ix_(*taken), None)] * w[(slice(None), slice(None), *tap)]
                y[(slice(None), *np.ix_(*places))] += terms.sum(-1)
        return y

    def _inside(self, axis: int, tap: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the places of the result along a spatial axis where a tap reads no padding, and where it reads x.

        size: the result's size along the axis.
        """
        g = self.geometry
        taken = np.arange(size) * g.strides[axis] + tap * g.dilations[axis] - g.begin[axis]
        inside = (taken >= 0) & (taken < self.x_shape[2 + axis])
        return np.flatnonzero(inside), taken[inside]


def run(kernel: Any, shape: tuple[int, ...], x: np.ndarray, w: np.ndarray, *others: np.ndarray | None) -> np.ndarray:
    """The kernel's result, [N, *spatial, M] of such a shape, for x [N, C, *spatial] and plain weights."""
    if kernel.packed_inputs:
        packed = aligned_bytes(kernel.packed_bytes(1))
        kernel.pack(1, w, packed)
        w = packed
    y = np.full(shape, np.nan, np.float32)
    kernel([last(x), w, *others], [y])
    return y


def mark_middle(e: Any, array: str, value: float) -> np.ndarray:
    """Set an operand to 0 but for one element, and the other operand to numbers above 0.

    Args:
        e: Example whose operands are x and w.
        array: Name of the operand.
        value: Of the element in the middle.

    Returns:
        Which elements of `e.product()` read the element.
    """
    operand, other = (e.x, e.w) if array == "x" else (e.w, e.x)
    middle = tuple(size // 2 for size in operand.shape)
    other[:] = np.abs(other) + 1
    operand[:] = 0
    operand[middle] = 1
    reached: np.ndarray = e.product() != 0
    operand[middle] = value
    return reached


def check(got: np.ndarray, expected: np.ndarray, scale: float) -> None:
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6 * scale)


# The native alpha and beta of activations, and what they compute.
ACTIVATIONS: dict[str, tuple[tuple[float, float], Callable[[np.ndarray], np.ndarray]]] = {
    "": ((0, 0), lambda v: v),
    "relu": ((0, 0), lambda v: np.maximum(v, 0)),
    "clip": ((-1, 2), lambda v: np.clip(v, -1, 2)),
    "swish": ((1, 0), lambda v: v / (1 + np.exp(-v))),
}
