"""The reference evaluator uses arrays of constants as they are."""

import numpy as np
import pytest

import graphkit as gk
from graphkit.ops import evaluate


def test_constants_are_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    monkeypatch.setattr(evaluate, "admit", lambda node, op, operands: checked.append(node.op.name))
    x = gk.input("x", [2])
    graph = gk.Model(x + gk.constant(np.array([1, 2], np.float32))).graph
    (found,) = evaluate.evaluate(graph, [np.zeros(2, np.float32)])
    np.testing.assert_array_equal(found, [1, 2])
    assert checked == ["Add"]
