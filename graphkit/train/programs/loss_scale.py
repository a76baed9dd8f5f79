"""Loss scaling: small gradients do not become 0 in float16.

If a gradient is not finite, the update is skipped and the scale halved. After INTERVAL updates without such a gradient,
the scale is doubled (Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.autodiff.reverse_mode import gradient
from graphkit.ir import context
from graphkit.ir.graph import Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F
from graphkit.train.programs.expressions import cast_like, pair, unpair

NAME = "loss_scale"
INTERVAL = 2000

_INITIAL, _MINIMUM, _MAXIMUM = 2.0**16, 1.0, 2.0**24


def state() -> Value:
    """Return the state, a graph input float32 [2]: the scale, and the number of updates since it changed."""
    return Value(TensorType(DType.FLOAT32, (2,)), NAME, role="state")


def start() -> np.ndarray:
    return np.array([_INITIAL, 0], np.float32)


def lower(array: np.ndarray) -> np.ndarray | None:
    """Return the state after an update with gradients that are not finite; None if the scale is minimal."""
    return np.array([array[0] / 2, 0], np.float32) if array[0] > _MINIMUM else None


def gradients(loss: Value, wanted: Sequence[Value], scale: Value | None) -> list[Value]:
    """Return the gradients of a loss with respect to `wanted`.

    With a scale (the state), multiply the loss by it and divide the gradients by it. Metadata mark the new nodes as
    backward pass.
    """
    meta = {context.GRADIENT: "true"}
    if scale is None:
        return gradient([loss], wanted, meta=meta)
    factor, _ = unpair(scale)
    found = gradient([F.mul(loss, cast_like(factor, loss))], wanted, meta=meta)
    inverse = F.reciprocal(factor)
    return [F.mul(g, cast_like(inverse, g)) for g in found]


def next_state(scale: Value) -> Value:
    factor, since = unpair(scale)
    since = F.add(since, np.float32(1))
    is_due = F.greater_or_equal(since, np.float32(INTERVAL))
    larger = F.min(F.mul(factor, np.float32(2)), F.constant(value=np.float32(_MAXIMUM)))
    return pair(F.where(is_due, larger, factor), F.where(is_due, np.float32(0), since))


def lowered_state(scale: Value) -> Value:
    """Do the same as `lower` in a program. A minimal scale stays unchanged."""
    factor, _ = unpair(scale)
    half = pair(F.mul(factor, np.float32(0.5)), F.mul(factor, np.float32(0)))
    lowered: Value = F.where(F.greater(factor, F.constant(value=np.float32(_MINIMUM))), half, scale)
    return lowered
