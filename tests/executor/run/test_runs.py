"""The executor has the results of the reference evaluator, with any plan, shared memory or rewrite."""

from __future__ import annotations

import gc
import itertools
import re
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item, seeds

from graphkit.errors import InputError, RuntimeFailure, TypeMismatch, UnsupportedError, UsageError
from graphkit.executor.run.base_program import BaseProgram
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.program import Program, _Instance
from graphkit.executor.run.session import Executor
from graphkit.executor.run.sized_program import SizedProgram, _SizedInstance
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, SequenceType, TensorType
from graphkit.model import Model
from graphkit.ops import F, Op, apply, op, registry
from graphkit.ops.evaluate import evaluate

SWITCHES = [
    {"optimize": optimize, "inplace": inplace, "share": share}
    for optimize, inplace, share in itertools.product([False, True], repeat=3)
]


def f32(*shape: Any) -> TensorType:
    return TensorType("float32", shape)


def no_params() -> ParamStore:
    return ParamStore({})


def random_graph(seed: int) -> Graph:
    """A graph of pointwise operators, reshapes, transposes, reductions, slices and matrix products."""
    rng = np.random.default_rng(seed)
    x, y = Value(f32("N", 6), "x"), Value(f32(4, 6), "y")
    pool = [x, y, F.constant(value=rng.standard_normal((4, 6)).astype(np.float32))]

    def pick() -> Value:
        return pool[int(rng.integers(max(0, len(pool) - 8), len(pool)))]

    for _ in range(60):
        a, b = pick(), pick()
        choice = int(rng.integers(0, 12))
        unary = [F.neg, F.relu, F.tanh, F.identity, F.sigmoid]
        if choice < 4:
            pool.append(unary[int(rng.integers(0, 5))](a))
        elif choice < 8:
            pool.append([F.add, F.mul, F.sub, F.max][choice - 4](a, b))
        elif choice == 8:
            flat = F.reshape(a, np.array([-1]))
            pool.append(F.reshape(F.neg(flat) if rng.random() < 0.5 else flat, F.shape(a)))
        elif choice == 9:
            pool.append(F.transpose(F.tanh(F.transpose(a))))
        elif choice == 10:
            pool.append(F.add(a, F.reduce_sum(b, np.array([0]), keepdims=True)))
        else:
            pool.append(F.softmax(F.mat_mul(F.mat_mul(a, F.transpose(b)), b)))
    outputs = [pool[int(i)] for i in rng.integers(3, len(pool), size=4)]
    return Graph([x, y], [*outputs, pool[-1], x], name=f"random{seed}")


@in_one_item()
@pytest.mark.parametrize("seed", seeds(25, default=6))
def test_planning_and_rewrites_change_nothing(seed: int) -> None:
    graph = random_graph(seed)
    rng = np.random.default_rng(seed)
    feeds = {"x": rng.standard_normal((4, 6)).astype(np.float32), "y": rng.standard_normal((4, 6)).astype(np.float32)}
    expected = evaluate(graph, list(feeds.values()))
    plain = {}
    for optimize in (False, True):  # fused kernels round otherwise
        plain[optimize] = Executor(graph, no_params(), optimize=optimize, inplace=False, share=False).run(feeds)
        for found, wanted in zip(plain[optimize].values(), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    arena = {}
    for switches in SWITCHES:
        exe = Executor(graph, no_params(), **switches)
        for _ in range(2):  # the second run meets what the first one left in the arena
            found = exe.run(feeds)
            wanted = plain[switches["optimize"]]
            assert list(found) == list(wanted)
            for name, array in found.items():
                np.testing.assert_array_equal(array, wanted[name], err_msg=f"{name} with {switches}")
        if not switches["optimize"]:
            arena[switches["inplace"], switches["share"]] = exe.plan.arena_bytes
    assert arena[True, True] <= min(arena.values())
    assert arena[False, False] == max(arena.values())


@in_one_item()
@pytest.mark.parametrize("seed", range(10))
def test_arena_has_one_owner_per_byte(seed: int) -> None:
    """Liveness, derived again from the steps that the plan shows."""
    exe = Executor(random_graph(seed), no_params())
    exe.specialise({"x": (4, 6)})
    steps = exe.plan.steps
    storage: dict[str, str] = {}  # value -> the value whose bytes it is
    for step in steps:
        for out in step.outputs:
            if out is not None and step.kernel == "view":
                source = step.inputs[0]
                assert source is not None
                storage[out.name] = storage.get(source.name, source.name)
            elif out is not None:
                storage[out.name] = out.name
    written: dict[str, tuple[int, int, int]] = {}
    last: dict[str, int] = {}
    for number, step in enumerate(steps):
        for operand in step.inputs:
            if operand is not None and operand.place == "arena" and step.kernel != "view":
                last[storage[operand.name]] = number
        for out in step.outputs:
            if out is not None and out.place == "arena" and step.kernel not in ("view", "constant"):
                assert out.offset is not None
                written[out.name] = (number, out.offset, out.offset + out.bytes)
                last.setdefault(out.name, number)
    for a, b in itertools.combinations(written, 2):
        (first_a, start_a, end_a), (first_b, start_b, end_b) = written[a], written[b]
        if start_a < end_b and start_b < end_a:
            assert last[a] <= first_b or last[b] <= first_a
            if last[a] == first_b or last[b] == first_a:
                assert steps[max(first_a, first_b)].inplace


def test_a_parameter_of_another_size() -> None:
    """The third run has feeds like the second's, and yet other shapes."""
    w, x = Value(f32("N"), "w", role="parameter"), Value(f32(), "x")
    exe = Executor(Graph([w, x], [F.mul(w, x)], output_names=["y"]), ParamStore({"w": f32("N")}))
    for size in (3, 3, 8, 1):
        exe.params["w"] = np.arange(size, dtype=np.float32)
        np.testing.assert_array_equal(exe.run({"x": np.float32(2)})["y"], 2 * np.arange(size))


def test_mlp_with_parameters() -> None:
    x, w, b = Value(f32("N", 4), "x"), Value(f32(4, 8), "w", role="parameter"), Value(f32(8), "b", role="parameter")
    graph = Graph([x, w, b], [F.relu(F.mat_mul(x, w) + b)], output_names=["y"])
    rng = np.random.default_rng(0)
    arrays = {"w": rng.random((4, 8), np.float32), "b": np.ones(8, np.float32)}
    store = ParamStore({"w": f32(4, 8), "b": f32(8)}, arrays)
    exe = Executor(graph, store)
    for rows in (3, 1, 0, 3):
        array = rng.standard_normal((rows, 4)).astype(np.float32)
        (found,) = exe(array)
        np.testing.assert_allclose(found, np.maximum(array @ store["w"] + 1, 0), rtol=1e-5)
    store["b"] = np.full(8, 100, np.float32)
    np.testing.assert_allclose(exe.run({"x": np.zeros((1, 4), np.float32)})["y"], np.full((1, 8), 100, np.float32))
    fed = exe.run({"x": np.zeros((1, 4), np.float32), "b": np.full(8, 7, np.float32)})["y"]
    np.testing.assert_allclose(fed, np.full((1, 8), 7, np.float32))
    np.testing.assert_allclose(exe.run({"x": np.zeros((1, 4), np.float32)})["y"], np.full((1, 8), 100, np.float32))


@in_one_item()
@pytest.mark.parametrize("outputs", [{}, [], ()])
def test_a_model_without_outputs_is_refused(outputs: Any) -> None:
    with pytest.raises(UsageError, match="model 'empty' has no output"):
        Model(outputs, name="empty")


@in_one_item()
@pytest.mark.parametrize("other", [f32(3), f32(4)])
@pytest.mark.parametrize("listed", [False, True])
def test_two_inputs_of_one_name_are_refused(other: TensorType, listed: bool) -> None:
    first, second = Value(f32(3), "x"), Value(other, "x")
    given = [first, second] if listed else None
    with pytest.raises(
        UsageError, match=rf"model 'm' has two inputs named 'x': float32\[3\] and {re.escape(str(other))}"
    ):
        Model(F.concat(first, second, axis=0), name="m", inputs=given)
    assert Model(F.concat(first, first, axis=0)).inputs == ("x",)
    assert Model(F.concat(first, Value(other, "z"), axis=0)).inputs == ("x", "z")


def test_a_selection_of_a_graph_with_two_inputs_of_one_name() -> None:
    first, second = Value(f32(3), "x"), Value(f32(3), "x")
    graph = Graph([first, second], [F.sub(first, second), F.relu(second)], output_names=["y", "z"])
    model = Model.from_graph(graph, {})
    assert model.select("y").inputs == model.inputs == ("x", "x_1")
    assert model.select("z", "z").outputs == ("z",)
    with pytest.raises(UsageError, match="select takes names of values"):
        model.select()


def test_outputs_are_fresh() -> None:
    x = Value(f32(3), "x")
    y = F.neg(x)
    graph = Graph([x], [y, F.reshape(y, np.array([3, 1])), x, F.constant(value=np.ones(3, np.float32)), y])
    exe = Executor(graph, no_params())
    array = np.arange(3, dtype=np.float32)
    first = exe.run({"x": array})
    arrays = list(first.values())
    for a, b in itertools.combinations([*arrays, array], 2):
        assert not np.shares_memory(a, b)
    for a in arrays:
        assert a.flags.writeable
        a[...] = 99
    again = exe.run({"x": array})
    np.testing.assert_array_equal(again[next(iter(again))], -array)
    np.testing.assert_array_equal(list(again.values())[3], np.ones(3, np.float32))


def test_chosen_outputs_need_their_inputs_only() -> None:
    x, y = Value(f32("N"), "x"), Value(f32("M"), "y")
    graph = Graph([x, y], [F.neg(x), F.exp(y)], output_names=["a", "b"])
    exe = Executor(graph, no_params())
    assert list(exe.run({"x": np.ones(2, np.float32)}, outputs=["a"])) == ["a"]
    assert list(exe.run({"x": np.ones(2, np.float32), "y": np.ones(1, np.float32)}, outputs=["b", "a"])) == ["b", "a"]
    with pytest.raises(InputError, match=r"^input not given: 'y' \(float32\[M\]\)$"):
        exe.run({"x": np.ones(2, np.float32)})
    with pytest.raises(UsageError, match="no output 'c'"):
        exe.run({}, outputs=["c"])


def test_out_arrays_are_written_directly() -> None:
    x = Value(f32("N"), "x")
    y = F.exp(x)
    graph = Graph([x], [y, F.reshape(y, np.array([-1, 1]))], output_names=["y", "column"])
    exe = Executor(graph, no_params())
    array = np.arange(4, dtype=np.float32)
    target, strided = np.zeros(4, np.float32), np.zeros((4, 2), np.float32)[:, :1]
    found = exe.run({"x": array}, out={"y": target, "column": strided})
    assert found["y"] is target
    assert found["column"] is strided
    np.testing.assert_allclose(target, np.exp(array), rtol=1e-6)
    np.testing.assert_allclose(strided[:, 0], np.exp(array), rtol=1e-6)
    alias = array.copy()
    assert exe.run({"x": alias}, out={"y": alias})["y"] is alias
    np.testing.assert_allclose(alias, np.exp(array), rtol=1e-6)
    with pytest.raises(InputError, match="float64"):
        exe.run({"x": array}, out={"y": np.zeros(4)})
    with pytest.raises(InputError, match=r"\[3\]"):
        exe.run({"x": array}, out={"y": np.zeros(3, np.float32)})
    with pytest.raises(UsageError, match="no output 'z'"):
        exe.run({"x": array}, out={"z": target})


def test_data_dependent_shapes() -> None:
    x = Value(f32("N", 3), "x")
    rows = F.transpose(F.non_zero(x))
    graph = Graph([x], [F.add(rows, rows), F.reduce_sum(F.cast(rows, to="float32"), keepdims=False), F.shape(rows)])
    array = np.array([[1, 0, 2], [0, 0, 3]], np.float32)
    for optimize in (False, True):
        exe = Executor(graph, no_params(), optimize=optimize)
        for given in (array, np.zeros((2, 3), np.float32), array):
            for found, wanted in zip(exe(given), evaluate(graph, [given]), strict=True):
                np.testing.assert_array_equal(found, wanted)
        assert any(o is not None and o.place == "dynamic" for s in exe.plan.steps for o in s.outputs)


def test_strings_and_sequences() -> None:
    words = Value(TensorType("string", ("N",)), "words")
    items = Value(SequenceType(f32(2)), "items")
    x = Value(f32(2), "x")
    graph = Graph([words, items, x], [F.identity(words), F.identity(items), F.neg(x)], output_names=["w", "i", "n"])
    exe = Executor(graph, no_params(), optimize=False)
    found = exe.run({"words": ["a", "b"], "items": [np.ones(2, np.float32)], "x": [1, 2]})
    assert found["w"].tolist() == ["a", "b"]
    np.testing.assert_array_equal(found["i"][0], np.ones(2, np.float32))
    with pytest.raises(InputError, match="items"):
        exe.run({"words": ["a"], "items": 3, "x": [1, 2]})


def test_control_flow_runs() -> None:
    x, p = Value(f32("N"), "x"), Value(TensorType(DType.BOOL, ()), "p")
    branches = []
    for build in (F.neg, F.exp):
        inner = Value(f32("N"), "inner")
        branches.append(Graph([inner], [build(inner)]))
    graph = Graph([x, p], [F.if_(p, x, then_branch=branches[0], else_branch=branches[1])])
    exe = Executor(graph, no_params())
    array = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(exe(array, True)[0], -array)
    np.testing.assert_allclose(exe(array, False)[0], np.exp(array), rtol=1e-6)


# --- updates ---------------------------------------------------------------------------------------


def counting() -> tuple[Graph, ParamStore]:
    """s <- s + x, t <- s (the old one); outputs t after, s before."""
    x = Value(f32(4), "x")
    s, t = Value(f32(4), "s", role="state"), Value(f32(4), "t", role="state")
    new = F.add(s, x)
    graph = Graph([x, s, t], [new, F.identity(s)], [(s, new), (t, s)], output_names=["new", "old"])
    zeros = np.zeros(4, np.float32)
    return graph, ParamStore({"s": f32(4), "t": f32(4)}, {"s": zeros, "t": zeros})


@in_one_item()
@pytest.mark.parametrize("optimize", [False, True])
def test_updates_commit_together(optimize: bool) -> None:
    graph, store = counting()
    exe = Executor(graph, store, optimize=optimize)
    one = np.ones(4, np.float32)
    seen = []
    for step in range(6):
        kept = store["s"]
        found = exe.run({"x": one})
        np.testing.assert_array_equal(store["s"], (step + 1) * one)
        np.testing.assert_array_equal(store["t"], step * one)
        np.testing.assert_array_equal(found["new"], (step + 1) * one)
        np.testing.assert_array_equal(found["old"], step * one)
        assert not np.shares_memory(found["new"], store["s"])
        seen.append((kept[1:], step))
    # Arrays that somebody holds never change, although buffers serve again.
    for view, step in seen:
        np.testing.assert_array_equal(view, np.full(3, step, np.float32))


def test_swap_of_states() -> None:
    a, b = Value(f32(2), "a", role="state"), Value(f32(2), "b", role="state")
    graph = Graph([a, b], [F.add(a, b)], [(a, b), (b, a)])
    store = ParamStore({"a": f32(2), "b": f32(2)}, {"a": np.zeros(2, np.float32), "b": np.ones(2, np.float32)})
    exe = Executor(graph, store)
    for _ in range(3):
        exe()
    np.testing.assert_array_equal(store["a"], np.ones(2, np.float32))
    np.testing.assert_array_equal(store["b"], np.zeros(2, np.float32))


def test_buffers_of_updates_serve_again() -> None:
    graph, store = counting()
    exe = Executor(graph, store)
    addresses = set()
    for _ in range(8):
        exe.run({"x": np.ones(4, np.float32)}, outputs=["old"])
        addresses.add(store["s"].ctypes.data)
    assert len(addresses) <= 3


def test_failed_run_commits_nothing() -> None:
    graph, store = counting()
    x, s = graph.inputs[0], graph.inputs[1]

    @op
    class FailsWhenNegative(Op):
        inputs = ("x",)

        def infer(self, x: TensorType) -> TensorType:
            return x

        def reference(self, xp: Any, x: Any) -> Any:
            if (x < 0).any():
                raise ValueError("negative")
            return x

    try:
        out = F.fails_when_negative(x, name="guard")
        exe = Executor(graph.replace(outputs=[out], updates=[(s, F.add(s, x))]), store)
        exe(np.ones(4, np.float32))
        with pytest.raises(RuntimeFailure, match=r"guard.*negative"):
            exe(-np.ones(4, np.float32))
        np.testing.assert_array_equal(store["s"], np.ones(4, np.float32))
        exe(np.ones(4, np.float32))
        np.testing.assert_array_equal(store["s"], 2 * np.ones(4, np.float32))
    finally:
        registry.remove(FailsWhenNegative)


# --- threads, randomness, errors -----------------------------------------------------------------------


def test_concurrent_runs() -> None:
    exe = Executor(random_graph(1), no_params())
    rng = np.random.default_rng(0)
    feeds = [{n: rng.standard_normal((4, 6)).astype(np.float32) for n in "xy"} for _ in range(16)]
    expected = [exe.run(f) for f in feeds]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for found, wanted in zip(pool.map(exe.run, feeds), expected, strict=True):
                for name, array in found.items():
                    np.testing.assert_array_equal(array, wanted[name])


def test_concurrent_updates_take_turns() -> None:
    graph, store = counting()
    exe = Executor(graph, store)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: exe.run({"x": np.ones(4, np.float32)}), range(200)))
    np.testing.assert_array_equal(store["s"], np.full(4, 200, np.float32))


def test_random_state_advances_and_replays() -> None:
    x = Value(f32(64), "x")
    graph = Graph([x], [F.add(x, F.random_normal_like(x)), F.random_uniform_like(x)], output_names=["a", "b"])
    exe, zeros = Executor(graph, no_params(), seed=5), np.zeros(64, np.float32)
    assert exe.rng == (5, 0)
    first, second = exe.run({"x": zeros}), exe.run({"x": zeros})
    assert exe.rng == (5, 2)
    assert not np.array_equal(first["a"], second["a"])
    exe.rng = (5, 1)
    np.testing.assert_array_equal(exe.run({"x": zeros})["a"], second["a"])
    other = Executor(graph, no_params(), seed=5, optimize=False, inplace=False, share=False)
    np.testing.assert_array_equal(other.run({"x": zeros})["b"], first["b"])


def test_programs_are_kept_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphkit.executor.run.sized_program._STEP_BYTES", 1 << 18)
    monkeypatch.setattr("graphkit.executor.run.sized_runs._STEP_BYTES", 1 << 17)
    monkeypatch.setenv("GRAPHKIT_CACHE_MB", "2")
    x = Value(f32("N"), "x")
    exe = Executor(Graph([x], [F.exp(x)]), no_params())
    exe(np.ones(1, np.float32))
    program = exe._choice.latest
    exe(np.ones(2, np.float32))
    exe(np.ones(1, np.float32))
    assert exe._choice.latest is program
    for size in range(40):
        exe(np.ones(size, np.float32))
    assert len(exe._programs) == 2  # the compiled one, and the first from the template
    assert exe._choice._sized_runs is not None
    assert len(exe._choice._sized_runs) == 8


def test_shape_conflicts_inside_the_graph_name_the_node() -> None:
    x, y = Value(f32("N"), "x"), Value(f32("M"), "y")
    exe = Executor(Graph([x, y], [F.add(x, y, name="joint")]), no_params())
    exe(np.ones(3, np.float32), np.ones(1, np.float32))
    with pytest.raises(TypeMismatch, match=r"'joint'.*\[3\].*\[4\]"):
        exe(np.ones(3, np.float32), np.ones(4, np.float32))


def test_strict_names_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Value(f32("N", 3), "x")
    count = F.cast(F.reduce_prod(F.shape(x), keepdims=False), to="float32")
    flat = F.reshape(F.celu(x, alpha=-1.0, name="slow"), np.array([-1]))
    exe = Executor(Graph([x], [F.mul(flat, count)]), no_params())
    exe(np.ones((2, 3), np.float32))
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
    with pytest.raises(UnsupportedError, match=r"slow \(Celu\)") as caught:
        exe(np.ones((2, 3), np.float32))
    assert "Reshape" not in str(caught.value)
    assert "Shape" not in str(caught.value).replace("Reshape", "")


def test_what_is_not_there_is_refused() -> None:
    x = Value(f32(2), "x")
    graph = Graph([x], [F.exp(x)])
    with pytest.raises(UsageError, match=r"f8.*expected one of 'f32', 'bf16', 'f16', 'tf32'"):
        Executor(graph, no_params(), precision="f8")
    with pytest.raises(UnsupportedError, match=r"'f16' needs a GPU"):
        Executor(graph, no_params(), precision="f16")
    with pytest.raises(UsageError, match="optimize=False"):
        Executor(graph, no_params(), precision="bf16", optimize=False)
    with pytest.raises(UnsupportedError, match="did you mean 'cpu'"):
        Executor(graph, no_params(), device="cpi")
    with pytest.raises(UsageError, match="threads"):
        Executor(graph, no_params(), threads=0)
    w = Value(f32(2), "w", role="parameter")
    with pytest.raises(InputError, match=r"^no array for the graph's parameter 'w'$"):
        Executor(Graph([w], [F.exp(w)]), no_params())


def test_deep_chain() -> None:
    x = value = Value(f32("N"), "x")
    for _ in range(5_000):
        value = F.neg(value)
    exe = Executor(Graph([x], [value]), no_params(), optimize=False)
    np.testing.assert_array_equal(exe(np.ones(3, np.float32))[0], np.ones(3, np.float32))
    assert exe.plan.arena_bytes == 64


def test_an_array_that_a_step_makes_is_read_by_a_native_kernel() -> None:
    x = Value(f32("N"), "x")
    # The loop stacks as many states as it has iterations, which only a run knows; its last state has a known size.
    state, going = Value(f32(4), "state"), Value(TensorType("bool", ()), "going")
    body = Graph(
        [Value(TensorType("int64", ()), "i"), going, state],
        [F.less(F.reduce_sum(state, keepdims=False), 8.0), F.add(state, 1.0), F.mul(state, 2.0)],
    )
    final, stacked = F.loop(
        None, F.constant(value=np.array(True)), F.add(F.expand(F.reduce_sum(x), [4]), 0.0), body=body
    )
    exe = Executor(Graph([x], [F.exp(F.neg(final)), stacked]), no_params(), threads=4)
    result, _ = exe(np.ones(1, np.float32))
    np.testing.assert_allclose(result, np.exp(-np.full(4, 3.0, np.float32)), rtol=1e-6)


def test_a_step_in_python_may_run_another_model() -> None:
    inner = Executor(Graph([v := Value(f32(64, 64), "v")], [F.mat_mul(v, v)]), no_params(), threads=4)

    @op
    class RunsAnother(Op):
        domain = "test"
        inputs = ("x",)

        def infer(self, x: TensorType) -> TensorType:
            return TensorType(x.dtype, x.shape)

        def reference(self, xp: Any, x: Any) -> Any:
            return inner(x)[0]

    try:
        x = Value(f32(64, 64), "x")
        exe = Executor(Graph([x], [apply(RunsAnother(), x)]), no_params(), threads=4)
        one = np.eye(64, dtype=np.float32)
        np.testing.assert_array_equal(exe(2 * one)[0], 4 * one)
    finally:
        registry.remove(RunsAnother)


def test_a_branch_that_the_sizes_rule_out_fails_when_it_is_taken() -> None:
    def branch(rows: int) -> Graph:
        inner = Value(f32("N", 4), "inner")
        return Graph([inner], [F.reshape(F.mat_mul(F.constant(value=np.ones((2, rows), np.float32)), inner), [8])])

    x, wide = Value(f32("N", 4), "x"), Value(TensorType("bool", ()), "wide")
    exe = Executor(Graph([wide, x], [F.if_(wide, x, then_branch=branch(6), else_branch=branch(3))]), no_params())
    for rows, taken in ((6, True), (3, False)):
        array = np.ones((rows, 4), np.float32)
        np.testing.assert_array_equal(exe(np.array(taken), array)[0], np.full(8, rows, np.float32))
        assert exe.plan.steps[-1].kernel == "native"
        with pytest.raises(RuntimeFailure, match=r"MatMul.*float32\[2, [36]\].*inner"):
            exe(np.array(not taken), array)


def body(*results: Any, states: Sequence[Value] = ()) -> Graph:
    return Graph([Value(TensorType("int64", ()), "i"), Value(TensorType("bool", ()), "going"), *states], results)


@in_one_item()
@pytest.mark.parametrize("limit", [-1, -(2**63), 0, 3])
def test_a_loop_with_a_trip_count_that_is_fed(limit: int) -> None:
    state = Value(f32(2), "state")
    m, x = Value(TensorType("int64", ()), "m"), Value(f32(2), "x")
    going = F.constant(value=np.array(True))
    graph = Graph([m, x], [F.loop(m, None, x, body=body(going, F.add(state, 1.0), states=[state]))])
    exe = Executor(graph, no_params())
    np.testing.assert_array_equal(exe(np.array(limit), np.zeros(2, np.float32))[0], np.full(2, max(limit, 0)))
    assert exe.plan.steps[-1].kernel == "native"


def test_a_loop_without_condition_and_states() -> None:
    inner = body(F.constant(value=np.array(True)), F.constant(value=np.ones(2, np.float32)))
    exe = Executor(Graph([], [F.loop(np.array(3), None, body=inner)]), no_params(), optimize=False)
    np.testing.assert_array_equal(exe()[0], np.ones((3, 2), np.float32))


@in_one_item()
@pytest.mark.parametrize("optimize", [False, True])
def test_outputs_of_control_flow_that_nothing_reads(optimize: bool) -> None:
    x, p = Value(f32("N", 3), "x"), Value(TensorType(DType.BOOL, ()), "p")
    branches = []
    for build in (F.exp, F.neg):
        inner = Value(f32("N", 3), "inner")
        made = build(inner)
        branches.append(Graph([inner], [made, F.tanh(inner), made, inner]))
    chosen = F.if_(p, x, then_branch=branches[0], else_branch=branches[1])
    state, item = Value(f32(3), "state"), Value(f32(3), "item")
    total = F.add(state, item)
    scanned = F.scan(
        F.constant(value=np.zeros(3, np.float32)), x,
        body=Graph([state, item], [total, F.exp(item), total]), num_scan_inputs=1, scan_output_directions=(0, 1),
    )  # fmt: skip
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    for outputs in ([chosen[0]], [chosen[2], chosen[3]], [scanned[0]], [scanned[1]], [scanned[2], chosen[1]]):
        graph = Graph([x, p], outputs)
        exe = Executor(graph, no_params(), optimize=optimize)
        for taken in (True, False):
            feeds = [array, np.array(taken)]
            found = exe.run(dict(zip(("x", "p"), feeds, strict=True)))
            for result, expected in zip(found.values(), evaluate(graph, feeds), strict=True):
                np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_memory_of_a_dropped_executor_is_freed_at_once() -> None:
    """Programs and arenas of one size, of several sizes and of interpreted nodes do not wait for a collection."""
    x, words = Value(f32("N", 3), "x"), Value(TensorType("string", (2,)), "words")
    sized = Executor(Graph([x], [F.relu(x)]), no_params())
    interpreted = Executor(Graph([words], [F.string_concat(words, words)]), no_params())
    kept = {BaseProgram, _Instance, _SizedInstance}

    def living() -> dict[int, Any]:
        return {id(held): held for held in gc.get_objects() if kept & set(type(held).__mro__)}

    gc.collect()
    gc.disable()
    try:
        before = living().keys()
        for size in (2, 3, 4):
            sized.run({"x": np.ones((size, 3), np.float32)})
        interpreted.run({"words": np.array(["a", "b"], object)})
        found = [weakref.ref(held) for number, held in living().items() if number not in before]
        kinds = {type(reference()) for reference in found}
        del sized, interpreted
        left = [reference() for reference in found if reference() is not None]
    finally:
        gc.enable()
    assert {Program, SizedProgram, _Instance, _SizedInstance} <= kinds
    assert left == []
