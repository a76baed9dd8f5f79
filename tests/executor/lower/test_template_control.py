"""Templates of networks with If, Loop and Scan: new sizes give the results of a program compiled for the size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compiled_graph import COUNT, FLAG, value
from python_calls import count_calls

import graphkit as gk
from graphkit.errors import GraphkitError, OutOfMemory
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.executor.run.sized_program import SizedProgram
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import F
from graphkit.ops.control.operators import If, Loop, Scan

# The most calls of Python functions in a run with a new size, for any number of nodes.
MOST_CALLS = 20


def apply(op: Any, *operands: Any) -> Any:
    made = Node(op, [gk.constant(value=v) if isinstance(v, np.ndarray) else v for v in operands])
    return made.outputs[0] if len(made.outputs) == 1 else made.outputs


def branched(x: Value, flag: Value) -> Any:
    """An If of two branches; the condition is an input."""
    then, other = value("a", "N", 4), value("b", "N", 4)
    op = If(then_branch=Graph([then], [F.tanh(F.exp(then))]), else_branch=Graph([other], [F.neg(other)]))
    return apply(op, flag, x)


def scanned(x: Value, flag: Value, *, backwards: int = 0, dtype: str = "float32") -> Any:
    """A Scan over N steps, with a nested If; the state is stacked too."""
    state, row, inner = value("s", 4, dtype=dtype), value("r", 4, dtype=dtype), value("going", dtype="bool")
    then, other = value("a", 4, dtype=dtype), value("b", 4, dtype=dtype)
    op = If(then_branch=Graph([then], [F.tanh(then)]), else_branch=Graph([other], [F.neg(other)]))
    new = F.add(state, apply(op, inner, row))
    body = Graph([state, row, inner], [new, new, F.exp(row)])
    scan = Scan(
        body=body,
        num_scan_inputs=1,
        captures=1,
        scan_input_directions=[backwards],
        scan_output_directions=[0, backwards],
    )
    return apply(scan, F.cast(np.ones(4, np.float32), to=dtype), F.cast(x, to=dtype), flag)


def looped(x: Value, flag: Value) -> Any:
    """A Loop of three iterations over a state of N rows, which also stacks a slice."""
    i, going, s = Value(COUNT, "i"), Value(FLAG, "going"), value("s", "N", 4)
    new = F.tanh(F.add(s, np.float32(1)))
    body = Graph([i, going, s], [going, new, F.reduce_sum(s, keepdims=False)])
    return apply(Loop(body=body, captures=0), np.asarray(3), None, F.where(flag, x, F.neg(x)))


NETWORKS: dict[str, Callable[..., Any]] = {
    "if": branched,
    "scan": scanned,
    "scan backwards": lambda x, f: scanned(x, f, backwards=1),
    "scan float16": lambda x, f: scanned(x, f, dtype="float16"),
    "loop": looped,
}


def executor_of(make: Callable[..., Any], **options: Any) -> Executor:
    x, flag = value("x", "N", 4), value("flag", dtype="bool")
    found = make(F.mul(x, np.float32(0.5)), flag)
    return Executor(
        Graph([x, flag], list(found) if isinstance(found, (list, tuple)) else [found]), ParamStore({}), **options
    )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", list(NETWORKS))
def test_new_sizes_equal_a_compiled_program(name: str, threads: int) -> None:
    executor = executor_of(NETWORKS[name], threads=threads)
    rng = np.random.default_rng(0)
    for number, size in enumerate([3, 5, 1, 0, 7, 12, 5]):
        for flag in (True, False):
            feeds = {"x": rng.standard_normal((size, 4), dtype=np.float32), "flag": np.asarray(flag)}
            found = list(executor.run(feeds).values())
            alone = list(executor_of(NETWORKS[name], threads=threads).run(feeds).values())
            for a, b in zip(found, alone, strict=True):
                np.testing.assert_array_equal(a, b)
        assert isinstance(executor._choice.latest, SizedProgram) == (number > 0)


@pytest.mark.parametrize("name", list(NETWORKS))
def test_new_sizes_take_few_python_calls(name: str) -> None:
    executor = executor_of(NETWORKS[name], threads=1)
    for size in (3, 5, 9, 17, 4):
        feeds = {"x": np.ones((size, 4), np.float32), "flag": np.asarray(True)}
        found, _ = count_calls(lambda feeds=feeds: executor.run(feeds))
        assert size in (3, 5) or found <= MOST_CALLS


def test_an_error_in_a_body_names_the_loop() -> None:
    x, index = value("x", "N", 4), value("index", "K", dtype="int64")
    state, row, table = value("s", 4), value("r", dtype="int64"), value("t", "N", 4)
    body = Graph([state, row, table], [F.add(state, F.gather(table, row, name="chosen"))])
    final = apply(Scan(body=body, num_scan_inputs=1, captures=1), np.zeros(4, np.float32), index, F.exp(x))
    executor = Executor(Graph([x, index], [final]), ParamStore({}), threads=1)
    given = {"x": np.zeros((3, 4), np.float32)}
    for n in (1, 2, 3):
        executor.run({**given, "index": np.zeros(n, np.int64)})
    for n in (4, 5):
        with pytest.raises(GraphkitError, match="chosen"):
            executor.run({**given, "index": np.full(n, 9)})
        np.testing.assert_array_equal(executor.run({**given, "index": np.zeros(n, np.int64)})["scan"], np.full(4, n))


def test_an_error_of_memory_names_the_largest_value_of_the_new_size() -> None:
    executor = executor_of(NETWORKS["loop"], threads=1, max_memory=1 << 16)
    flag = np.asarray(True)
    for n in (2, 3, 4):
        executor.run({"x": np.zeros((n, 4), np.float32), "flag": flag})
    with pytest.raises(OutOfMemory, match=r"the largest value is input 'x', 32000 bytes"):
        executor.run({"x": np.zeros((2000, 4), np.float32), "flag": flag})


def test_the_kernels_of_a_body_count_towards_the_size_of_a_program() -> None:
    def sized(products: int) -> SizedProgram:
        def scan(x: Value, _: Value) -> Any:
            state, row = value("s", 1, 4), value("r", 4)
            new = F.add(state, row)
            for _step in range(products):
                new = F.mat_mul(F.softmax(new), np.eye(4, dtype=np.float32))
            return apply(Scan(body=Graph([state, row], [new]), num_scan_inputs=1, captures=0), np.ones((1, 4), "f"), x)

        executor = executor_of(scan, threads=1)
        for n in (2, 3):
            executor.run({"x": np.zeros((n, 4), np.float32), "flag": np.asarray(True)})
        program = executor._choice.latest
        assert isinstance(program, SizedProgram)
        return program

    assert sized(8).kept_bytes > 3 * sized(1).kept_bytes
