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
        self.w = rng.standard_normal((self.filters, self.x_shape[1], *self.kernel), dtype=np.float32)
        self.bias = rng.standard_normal(self.filters, dtype=np.float32)
        self.geometry = Conv(**self.attributes).geometry(self.x.shape, self.w.shape)
        g = self.geometry
        self.window = native.Window(g.strides, g.dilations, g.begin, g.end)

    def __str__(self) -> str:
        return str((self.x_shape, self.filters, self.kernel, self.attributes))

    def product(self) -> np.ndarray:
        """The result in float64, [N, M, *spatial]."""
        return Conv(**self.attributes).reference(numpy_xp, self.x.astype(np.float64), self.w.astype(np.float64))

    def inside_sum(self) -> np.ndarray:
        """The product in float64, channels last, without terms of padding."""
        x, w = last(self.x).astype(np.float64), self.w.astype(np.float64)
        y = last(Conv(**self.attributes).reference(numpy_xp, np.zeros(self.x.shape), np.zeros(w.shape)))
        for tap in itertools.product(*map(range, self.kernel)):
            for place in itertools.product(*map(range, y.shape[1:-1])):
                at = [
                    p * stride + t * dilation - begin
                    for p, t, stride, dilation, begin in zip(
                        place, tap, self.geometry.strides, self.geometry.dilations, self.geometry.begin, strict=True
                    )
                ]
                if all(0 <= a < size for a, size in zip(at, x.shape[1:-1], strict=True)):
                    with np.errstate(invalid="ignore"):
                        terms = x[(slice(None), *at, None)] * w[(None, slice(None), slice(None), *tap)]
                        y[(slice(None), *place)] += terms.sum(-1)
        return y


def run(kernel: Any, shape: tuple[int, ...], x: np.ndarray, w: np.ndarray, *others: np.ndarray | None) -> np.ndarray:
    """The kernel's result, [N, *spatial, M] of such a shape, for x [N, C, *spatial] and plain weights."""
    if kernel.packed_inputs:
        packed = aligned_bytes(kernel.packed_bytes(1))
        kernel.pack(1, w, packed)
        w = packed
    y = np.full(shape, np.nan, np.float32)
    kernel([last(x), w, *others], [y])
    return y


def check(got: np.ndarray, expected: np.ndarray, scale: float) -> None:
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6 * scale)


# The native alpha and beta of activations, and what they compute.
ACTIVATIONS: dict[str, tuple[tuple[float, float], Callable[[np.ndarray], np.ndarray]]] = {
    "": ((0, 0), lambda v: v),
    "relu": ((0, 0), lambda v: np.maximum(v, 0)),
    "clip": ((-1, 2), lambda v: np.clip(v, -1, 2)),
    "swish": ((1, 0), lambda v: v / (1 + np.exp(-v))),
}
