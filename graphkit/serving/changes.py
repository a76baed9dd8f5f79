"""Compare a model that was read again with the one that is served: little must be done if little has changed."""

from __future__ import annotations

import enum
import json
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
    """Return how two models differ in nodes, names, metadata, constants and parameters. Numbers are compared by bits.

    Shapes that a file declares are not compared: they only cause warnings.
    """
    (one, tensors), (other, others) = _described(served), _described(read)
    # As text, because 0.0 equals -0.0, which may be an attribute.
    if _text(one) != _text(other) or tensors.keys() != others.keys():
        return Change.GRAPH
    are_equal = all(_bits_are_equal(tensor, others[name]) for name, tensor in tensors.items())
    return Change.NONE if are_equal else Change.ARRAYS


@without_gc
def _described(model: Model) -> tuple[dict[str, Any], dict[str, Stored]]:
    """Return the graph as JSON-able data, and its large constants and parameters by name."""
    tensors = WeightsOut()
    return Encoder(tensors, model.params.entries()).graph(model.graph), tensors.stored


def _text(graph: dict[str, Any]) -> str:
    return json.dumps(graph, sort_keys=True)


def _bits_are_equal(held: Stored, read: Stored) -> bool:
    """Compare an array in memory with one that may be in a file. It is read in blocks: new memory takes longer."""
    if (held.code, held.shape, held.nbytes) != (read.code, read.shape, read.nbytes):
        return False
    rest = held.read()
    for chunk in read.chunks():
        if not np.array_equal(_words(rest[: len(chunk)]), _words(chunk)):
            return False
        rest = rest[len(chunk) :]
    return True


def _words(data: memoryview) -> np.ndarray:
    """Return bytes as 64-bit words if possible: a comparison takes time for each element."""
    return np.frombuffer(data, np.uint8 if len(data) % 8 else np.uint64)
