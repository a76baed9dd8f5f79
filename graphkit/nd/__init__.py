"""Arrays that are computed at once, in the background, with the operators of graphs: MXNet's NDArray and autograd.

w = gk.nd.random.normal(shape=(4, 3))
w.attach_grad()
with gk.nd.record():
    loss = gk.reduce_sum(gk.relu(x @ w))
loss.backward()
w -= 0.1 * w.grad
"""

from __future__ import annotations

from graphkit.nd import autograd, methods, random
from graphkit.nd.autograd import backward, is_recording, pause, record
from graphkit.nd.autograd import gradient_function as grad
from graphkit.nd.creation import (
    arange,
    array,
    empty,
    eye,
    from_numpy,
    full,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from graphkit.nd.hybrid import Hybrid, hybridize
from graphkit.nd.ndarray import NDArray
from graphkit.nd.runtime import waitall

# `nd.grad` makes a function; `autograd.grad` computes gradients of arrays.
grad.__module__, grad.__name__, grad.__qualname__ = __name__, "grad", "grad"
del methods  # it has only installed the methods of NDArray

__all__ = [
    "Hybrid",
    "NDArray",
    "arange",
    "array",
    "autograd",
    "backward",
    "empty",
    "eye",
    "from_numpy",
    "full",
    "grad",
    "hybridize",
    "is_recording",
    "ones",
    "ones_like",
    "pause",
    "random",
    "record",
    "waitall",
    "zeros",
    "zeros_like",
]
