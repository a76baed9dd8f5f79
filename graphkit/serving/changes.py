"""Compare a model that was read again with the one that is served: little must be done if little has changed."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

from graphkit.collector import without_gc
from graphkit.ir.codec import Encoder, WeightsOut
from graphkit.ir.weights import Stored
from graphkit.model import Model


class Change(enum.Enum):
    """How two models differ. ARRAYS: only the elements of constants or parameters. GRAPH: anything else."""

    NONE = enum.auto()
    ARRAYS = enum.auto()
    GRAPH = enum.auto()


def change(served: Model, read: Model) -> Change:
    """Return how two models differ in nodes, names, metadata, constants and parameters. Arrays are compared by bits.

    Shapes that a file declares are not compared: they only cause warnings.
    """
    (one, tensors), (other, others) = _described(served), _described(read)
    if one != other or tensors.keys() != others.keys():
        return Change.GRAPH
    are_equal = all(_bits_are_equal(tensor, others[name]) for name, tensor in tensors.items())
    return Change.NONE if are_equal else Change.ARRAYS


@without_gc
def _described(model: Model) -> tuple[dict[str, Any], dict[str, Stored]]:
    """Return the graph as JSON-able data, and its large constants and parameters by name."""
    tensors = WeightsOut()
    return Encoder(tensors, model.params.entries()).graph(model.graph), tensors.stored


def _bits_are_equal(one: Stored, other: Stored) -> bool:
    if (one.code, one.shape, one.nbytes) != (other.code, other.shape, other.nbytes):
        return False
    first, second = (np.frombuffer(each.read(), np.uint8) for each in (one, other))
    return np.array_equal(first, second)
