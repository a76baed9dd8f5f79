"""`apply`: run a pass over a graph and prove, interpreting both, that it changed no result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from graphkit.ir.graph import Graph, Value
from graphkit.ops.evaluate import evaluate_with_updates
from graphkit.passes.core.declare import Rewrite

Apply = Callable[..., Counter[str]]


def feeds_of(graph: Graph, names: dict[str, int], seed: int) -> list[np.ndarray]:
    """Random arrays for the inputs: floats around 1 for states, which are variances, normal otherwise."""
    rng = np.random.default_rng(seed)
    arrays = []
    for value in graph.inputs:
        shape = [d if isinstance(d, int) else names[str(d)] for d in value.tensor.known_shape]
        dtype = value.dtype.numpy
        if value.dtype.is_float:
            drawn: Any = rng.uniform(0.5, 1.5, shape) if value.role == "state" else rng.standard_normal(shape)
        else:
            drawn = rng.integers(0, 2, shape)
        arrays.append(np.asarray(drawn, dtype))
    return arrays


@pytest.fixture
def apply() -> Apply:
    def run(
        inputs: Sequence[Value],
        outputs: Value | Sequence[Value],
        *passes: Rewrite,
        updates: Sequence[tuple[Value, Value]] = (),
        tolerance: float = 2e-5,
        keep: list[Graph] | None = None,
        **names: int,
    ) -> Counter[str]:
        """The operators left after `passes`, constants aside. `names` are the sizes of named dimensions."""
        results = [outputs] if isinstance(outputs, Value) else list(outputs)
        graph = Graph(inputs, results, updates)
        after = graph
        for transform in passes:
            after = transform(after)
        assert after.output_names == graph.output_names
        assert after.input_names == graph.input_names
        assert [v.type for v in after.outputs] == [v.type for v in graph.outputs]
        arrays = feeds_of(graph, names, len(graph.nodes))
        before, now = evaluate_with_updates(graph, arrays), evaluate_with_updates(after, arrays)
        for expected, found in zip([*before[0], *before[1]], [*now[0], *now[1]], strict=True):
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
        if keep is not None:
            keep.append(after)
        return Counter(node.op.name for node in after.nodes if node.op.name != "Constant")

    return run
