"""A plan of a graph whose input is a map, which has no shape."""

from __future__ import annotations

import graphkit as gk
from graphkit.ir.graph import Value
from graphkit.ir.types import DType, MapType, TensorType
from graphkit.ops import F


def test_there_is_a_plan_before_the_first_run() -> None:
    x = Value(MapType(DType.STRING, TensorType("float32", ())), "features")
    row = F.dict_vectorizer(x, string_vocabulary=["a", "b"])
    executor = gk.Model({"y": F.relu(row)}).compile()
    assert [step.kernel for step in executor.plan.steps] == ["interpreted", "native"]
    assert executor.run({"features": {"b": -1.0, "a": 2.0}})["y"].tolist() == [[2, 0]]
