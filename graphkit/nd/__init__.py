"""Arrays that are computed at once, in the background, with the operators of graphs: MXNet's NDArray and autograd.

w = gk.nd.random.normal(shape=(4, 3))
w.attach_grad()
with gk.nd.record():
    loss = gk.reduce_sum(gk.relu(x @ w))
loss.backward()
w -= 0.1 * w.grad
"""

from __future__ import annotations

from typing import Any as _Any

from graphkit.nd import autograd, methods, random
from graphkit.nd.autograd import backward, is_recording, pause, record
from graphkit.nd.autograd import gradient_function as grad
from graphkit.nd.creation import (
    arange,
    array,
    empty,
    empty_like,
    eye,
    from_dlpack,
    from_numpy,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from graphkit.nd.files import load, save
from graphkit.nd.hints import of_function as _hint
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
    "empty_like",
    "eye",
    "from_dlpack",
    "from_numpy",
    "full",
    "full_like",
    "grad",
    "hybridize",
    "is_recording",
    "linspace",
    "load",
    "ones",
    "ones_like",
    "pause",
    "random",
    "record",
    "save",
    "waitall",
    "zeros",
    "zeros_like",
]


def __getattr__(name: str) -> _Any:
    raise AttributeError(f"module 'graphkit.nd' has no attribute {name!r}{_hint(name, NDArray)}")
