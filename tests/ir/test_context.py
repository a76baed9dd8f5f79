"""The scope in which nodes are made: how many an expansion may make."""

from __future__ import annotations

import pytest

from graphkit.errors import UnsupportedError
from graphkit.ir import context
from graphkit.ir.graph import Value
from graphkit.ir.types import TensorType
from graphkit.ops import F


def test_an_expansion_makes_a_limited_number_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "MOST_EXPANDED", 3)
    x = Value(TensorType("float32", (2,)), "x")
    with context.expanding():
        for _ in range(3):
            F.relu(x)
        with pytest.raises(UnsupportedError, match="expands to more than 3 nodes"):
            F.relu(x)
    F.relu(x)  # not counted outside of the context


def test_every_expansion_is_counted_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "MOST_EXPANDED", 1)
    x = Value(TensorType("float32", (2,)), "x")
    with context.expanding():
        F.relu(x)
        with context.expanding():
            F.relu(x)
        with pytest.raises(UnsupportedError):
            F.relu(x)
