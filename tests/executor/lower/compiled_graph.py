"""Graphs of loops and branches, compiled natively and compared with the reference at every call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

import graphkit as gk
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir import dims
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F, registry
from graphkit.ops.evaluate import evaluate

COUNT, FLAG = TensorType("int64", ()), TensorType("bool", ())
ROW = TensorType("float32", (3,))


def value(name: str, *shape: Any, dtype: str = "float32") -> Value:
    return Value(TensorType(dtype, shape), name)


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def body(states: Sequence[TensorType], build: Callable[..., Sequence[Any]]) -> Graph:
    inputs = [Value(COUNT, "i"), Value(FLAG, "going"), *(Value(t) for t in states)]
    return Graph(inputs, build(*inputs))


def below(bound: float) -> Callable[[Any], Any]:
    return lambda s: F.less(F.reduce_sum(F.mul(s, s), keepdims=False), np.float32(bound))


@contextmanager
def unknown_operator(
    definition: Callable[[Any, Any], Any],
    *,
    elementwise: bool = False,
    inferred: Callable[[TensorType], TensorType] = lambda x: x,
) -> Iterator[Callable[[Any], Any]]:
    """The function of an operator without a kernel, whose reference is `definition`; the result has the type of x."""

    @gk.op
    class Unknown(gk.Op):
        domain = "test.registry"
        inputs = ("x",)
        pointwise = elementwise

        def infer(self, x: Any) -> Any:
            return inferred(x)

        def reference(self, xp: Any, x: Any) -> Any:
            return definition(xp, x)

    try:
        yield F.unknown
    finally:
        registry.remove(Unknown)


def places_without_a_kernel() -> AbstractContextManager[Callable[[Any], Any]]:
    """Register an interpreted operator that computes NonZero."""
    return unknown_operator(
        lambda xp, x: xp.stack(xp.nonzero(x)).astype(np.int64),
        inferred=lambda x: TensorType("int64", (len(x.known_shape), dims.fresh())),
    )


class Native:
    """A graph compiled once; every call compares with the reference."""

    def __init__(self, inputs: Sequence[Value], outputs: Sequence[Any], *, optimize: bool = True):
        self.graph = Graph(inputs, outputs)
        self.executor = Executor(self.graph, ParamStore({}), optimize=optimize, threads=2)

    def __call__(self, *arrays: Any) -> list[np.ndarray]:
        feeds = dict(zip(self.graph.input_names, map(np.asarray, arrays), strict=True))
        got = list(self.executor.run(feeds).values())
        wanted = evaluate(self.graph, list(feeds.values()))
        for a, b in zip(got, wanted, strict=True):
            assert a.shape == b.shape
            assert a.dtype == b.dtype
            if a.dtype == np.float32:
                np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
            else:
                np.testing.assert_array_equal(a, b)
        return got

    @property
    def program(self) -> Any:
        assert self.executor._choice.latest is not None
        return self.executor._choice.latest


# Rows are added to a state, and all of its values stacked, while it stays below 9.
STACKING = body([ROW, ROW], lambda i, c, s, w: [F.less(F.reduce_max(s, keepdims=False), np.float32(9)), F.add(s, w), s])
