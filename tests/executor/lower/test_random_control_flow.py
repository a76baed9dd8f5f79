"""Random nests of If, Loop and Scan against the reference; results are operands, constants, repeated or unread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item, seeds

from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate

SHAPE = (2, 3)


def like(name: str, count: int) -> list[Value]:
    return [Value(TensorType("float32", SHAPE), f"{name}{i}") for i in range(count)]


class Nest:
    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def pick(self, items: Sequence[Any], count: int) -> list[Any]:
        return [items[i] for i in self.rng.integers(0, len(items), count)]

    def count(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high))

    def weights(self, *shape: int) -> Value:
        return F.constant(value=self.rng.standard_normal(shape).astype(np.float32))

    def grown(self, pool: Sequence[Value], depth: int) -> list[Value]:
        """Return the pool with some new values that are computed from it."""
        made = list(pool)
        for _ in range(self.count(0, 4)):
            a, b = self.pick(made, 2)
            choices = [
                lambda a, b: F.tanh(a), lambda a, b: F.add(a, b), lambda a, b: F.softmax(a),
                lambda a, b: self.weights(*SHAPE),
                lambda a, b: F.reshape(F.reshape(a, np.array([-1])), np.array(SHAPE)),
                lambda a, b: self.control(made, depth - 1) if depth else F.mul(a, np.float32(0.5)),
            ]  # fmt: skip
            made.append(self.pick(choices, 1)[0](a, b))
        return made

    def control(self, pool: Sequence[Value], depth: int) -> Value:
        build = self.pick([self.branch, self.loop, self.scan], 1)[0]
        results = build(pool, depth, self.pick(pool, self.count(0, 3)), self.pick(pool, self.count(0, 3)))
        return self.pick(results if isinstance(results, (tuple, list)) else [results], 1)[0]

    def branch(self, pool: Sequence[Value], depth: int, states: list[Value], captures: list[Value]) -> Any:
        count, operands = self.count(1, 4), [*states, *captures, pool[0]]
        branches = []
        for _ in range(2):
            inner = like("inner", len(operands))
            branches.append(Graph(inner, self.pick(self.grown(inner, depth), count)))
        taken = F.greater(F.reduce_sum(pool[-1], keepdims=False), np.float32(self.rng.choice([-100, 0, 100])))
        return F.if_(taken, *operands, then_branch=branches[0], else_branch=branches[1])

    def loop(self, pool: Sequence[Value], depth: int, states: list[Value], captures: list[Value]) -> Any:
        iteration, going = Value(TensorType("int64", ()), "iteration"), Value(TensorType("bool", ()), "going")
        inner = like("inner", len(states) + len(captures))
        ramp = F.mul(F.cast(iteration, to="float32"), F.constant(value=np.ones(SHAPE, np.float32)))
        stacked = self.count(0 if states else 1, 3)
        true, false = (F.constant(value=np.array(b)) for b in (True, False))
        condition = self.pick([going, true, F.less(iteration, np.array(self.count(0, 4))), F.not_(going)], 1)
        results = self.pick(self.grown([*inner, ramp], depth), len(states) + stacked)
        body = Graph([iteration, going, *inner], [*condition, *results])
        trips, start = np.array(int(self.rng.choice([-1, 0, 1, 2, 5]))), self.pick([None, true, true, false], 1)[0]
        found = F.loop(trips, start, *states, *captures, body=body, captures=len(captures))
        values = list(found) if isinstance(found, (tuple, list)) else [found]
        sums = [F.reduce_sum(v, np.array([0]), keepdims=False) for v in values[len(states) :]]
        return [*values[: len(states)], *sums]

    def scan(self, pool: Sequence[Value], depth: int, states: list[Value], captures: list[Value]) -> Any:
        read, length = self.count(1, 3), int(self.rng.choice([1, 2, 3, 5]))
        items = [F.mul(F.unsqueeze(v, np.array([0])), self.weights(length, 1, 1)) for v in self.pick(pool, read)]
        inner, stacked = like("inner", len(states) + read + len(captures)), self.count(0 if states else 1, 3)
        body = Graph(inner, self.pick(self.grown(inner, depth), len(states) + stacked))
        found = F.scan(
            *states, *items, *captures, body=body, num_scan_inputs=read, captures=len(captures),
            scan_input_directions=tuple(map(int, self.rng.integers(0, 2, read))),
            scan_output_directions=tuple(map(int, self.rng.integers(0, 2, stacked))),
        )  # fmt: skip
        values = list(found) if isinstance(found, (tuple, list)) else [found]
        weights = self.weights(length, 1, 1)
        sums = [F.reduce_sum(F.mul(v, weights), np.array([0]), keepdims=False) for v in values[len(states) :]]
        return [*values[: len(states)], *sums]


@in_one_item()
@pytest.mark.parametrize("seed", seeds(120, default=20))
def test_random_nests(seed: int) -> None:
    nest = Nest(seed)
    x = Value(TensorType("float32", ("N", 3) if seed % 2 else SHAPE), "x")
    y = Value(TensorType("float32", SHAPE), "y")
    pool = [y, F.add(x, y)]
    for _ in range(3):
        pool.append(nest.control(pool, 2))
    graph = Graph([x, y], list(dict.fromkeys(pool[2:][::-1])))
    feeds = [nest.rng.standard_normal(SHAPE).astype(np.float32) for _ in range(2)]
    expected = evaluate(graph, feeds)
    for optimize in (False, True):
        exe = Executor(graph, ParamStore({}), optimize=optimize, threads=1)
        for _ in range(2):
            for found, wanted in zip(exe(*feeds), expected, strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
