"""JSON round trips: the same operator, the same text, the same bits."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from cases import each_case

from graphkit.checks.samples import Case, dtypes_of, make_case, samples_of
from graphkit.ir.serialize import from_dict, to_dict
from graphkit.ops import registry
from graphkit.ops.evaluate import evaluate

CASES = [
    make_case(cls, number, dtype)
    for cls in registry
    for number, sample in enumerate(samples_of(cls))
    for dtype in dtypes_of(cls, sample)[:1]
]


def assert_same_bits(results: list[Any], expected: list[Any]) -> None:
    assert len(results) == len(expected)
    for a, b in zip(results, expected, strict=True):
        if isinstance(b, list):
            assert_same_bits(list(a), b)
            continue
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes() if a.dtype != object else a.tolist() == b.tolist()


@each_case(CASES, group=lambda c: c.op.name[0])
def test_json(case: Case) -> None:
    graph = case.graph()
    again = from_dict(json.loads(json.dumps(to_dict(graph))), registry.get)
    assert str(again) == str(graph)
    assert [node.op for node in again.nodes if not node.op.subgraphs()] == [
        node.op for node in graph.nodes if not node.op.subgraphs()
    ]
    assert to_dict(again) == to_dict(graph)
    assert_same_bits(evaluate(again, case.feeds()), evaluate(graph, case.feeds()))
