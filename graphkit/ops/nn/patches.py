"""The gradient of convolutions that cut their input into patches: each element of x is in at most one window."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from graphkit.ops._base import F
from graphkit.ops.nn.sliding_window import Window

# From this number of channels on, the kernel for the gradient of a convolution uses whole vectors of channels, and is
# fast.
_FEW_CHANNELS = 16


def cuts_patches(w: Any, x: Any, window: Window, group: int) -> bool:
    """Return whether x has few channels and no two windows share an element or contain padding; sizes must be known."""
    if x.shape is None or w.shape is None or not all(isinstance(n, int) for n in (*w.shape, *x.shape[1:])):
        return False
    kernel = tuple(w.shape[2:])
    return (
        group == 1
        and 0 not in w.shape  # in a Reshape, 0 would copy a dimension
        and x.shape[1] < _FEW_CHANNELS
        and tuple(window.strides) == kernel
        and math.prod(kernel) > 1
        and all(d == 1 for d in window.dilations)
        and not any((*window.begin, *window.end))
        and all(n >= k for n, k in zip(x.shape[2:], kernel, strict=True))
    )


def gradient_of_patches(dy: Any, w: Any, x: Any) -> Any:
    """The gradient of Conv(x, w) with respect to x, if `cuts_patches` holds: a product whose rows are the patches."""
    channels, kernel = w.shape[1], w.shape[2:]
    rank = len(kernel)
    positions = [n // k for n, k in zip(x.shape[2:], kernel, strict=True)]
    batch = F.shape(x, start=0, end=1)

    def shaped(value: Any, *sizes: int) -> Any:
        return F.reshape(value, F.concat(batch, np.asarray(sizes, np.int64), axis=0))

    tokens = F.transpose(shaped(dy, w.shape[0], math.prod(positions)), perm=(0, 2, 1))
    patches = F.mat_mul(tokens, F.reshape(w, np.array([w.shape[0], channels * math.prod(kernel)])))
    split = shaped(patches, *positions, channels, *kernel)
    places = [axis for i in range(rank) for axis in (1 + i, 2 + rank + i)]
    turned = F.transpose(split, perm=(0, 1 + rank, *places))
    dx = shaped(turned, channels, *(n * k for n, k in zip(positions, kernel, strict=True)))
    rest = [n - m * k for n, m, k in zip(x.shape[2:], positions, kernel, strict=True)]
    return F.pad(dx, np.array([0] * (2 + rank) + [0, 0, *rest])) if any(rest) else dx
