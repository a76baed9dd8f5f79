"""Backends that compute with graphkit's references, and record what they compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.backend import Backend, Part
from graphkit.ops.evaluate import evaluate

Make = Callable[..., Backend]


@pytest.fixture
def parts() -> list[Part]:
    """The parts that backends of `make` have compiled, in order."""
    return []


@pytest.fixture
def make(parts: list[Part]) -> Make:
    """Return a backend that evaluates references. `supports`: names of operators, or a function; None: all nodes."""

    def made(name: str = "toy", supports: Any = None, change: Callable[[Any], Any] | None = None, **options: Any):
        def compile_part(part: Part) -> Callable[..., Any]:
            parts.append(part)

            def run(*arrays: np.ndarray) -> Any:
                given = iter(arrays)
                names = [(part.graph.name_of(v), v.role) for v in part.graph.inputs]
                operands = [part.params[n] if role == "parameter" else next(given) for n, role in names]
                assert next(given, None) is None
                results = tuple(evaluate(part.graph, operands))
                return results if change is None else change(results)

            return run

        def supported(node: gk.Node) -> bool | str:
            if supports is None:
                return True
            return supports(node) if callable(supports) else node.op.name in supports

        return Backend(name=name, supports=supported, compile=compile_part, **options)

    return made


@pytest.fixture
def image_net() -> gk.Model:
    """Two convolutions with a batch normalisation between them, and a classifier, for any batch size."""
    x = gk.input("x", ["N", 3, 8, 8])
    h = gk.relu(gk.nn.batch_norm(gk.nn.conv2d(x, 4, kernel=3, name="conv"), name="norm"))
    h = gk.relu(gk.nn.conv2d(h, 4, kernel=3, name="conv2"))
    y = gk.nn.linear(gk.flatten(h), 5, name="fc")
    return gk.Model({"y": gk.softmax(y), "h": h}, name="image", seed=1)
