"""Values derived from parameters: computed once, again when a parameter changes, and not at all when one is fed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphkit.executor.lower.prepacking import prepack
from graphkit.executor.run.params import ParameterArray, ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.stored import Scratch, StoredArray, StoredFile
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate


def f32(*shape: Any) -> TensorType:
    return TensorType("float32", shape)


def parameter(name: str, *shape: int) -> Value:
    return Value(f32(*shape), name, role="parameter")


def store(**arrays: np.ndarray) -> ParamStore:
    return ParamStore({n: f32(*a.shape) for n, a in arrays.items()}, arrays)


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def scaled_product() -> tuple[Graph, ParamStore]:
    x, w, s = Value(f32("N", 4), "x"), parameter("w", 3, 4), parameter("s", 3)
    scaled = F.mul(F.transpose(w, perm=[1, 0]), s)
    return Graph([x, w, s], [F.mat_mul(x, scaled), F.exp(s)]), store(w=weights(3, 4), s=weights(3, seed=1))


def expected(graph: Graph, params: ParamStore, x: np.ndarray) -> list[np.ndarray]:
    return [np.asarray(a) for a in evaluate(graph, [x, params["w"], params["s"]])]


def test_steps_of_parameters_leave_the_program() -> None:
    graph, params = scaled_product()
    exe = Executor(graph, params)
    x = weights(5, 4, seed=2)
    for got, want in zip(exe(x), expected(graph, params, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)
    assert [s.op for s in exe.plan.steps if s.kernel not in ("view", "constant")] == ["ai.graphkit.FusedMatMul"]


def test_a_changed_parameter_is_followed_by_all_programs() -> None:
    graph, params = scaled_product()
    exe = Executor(graph, params)
    batches = [weights(n, 4, seed=n) for n in (2, 7)]
    for x in batches:
        exe(x)
    params["s"] = weights(3, seed=9)
    for x in batches:
        for got, want in zip(exe(x), expected(graph, params, x), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)


def test_a_fed_parameter_counts() -> None:
    graph, params = scaled_product()
    exe = Executor(graph, params)
    x, s = weights(2, 4), np.array([1, 10, 100], np.float32)
    exe(x)
    fed = exe.run({"x": x, "s": s})
    np.testing.assert_allclose(next(iter(fed.values())), x @ (params["w"].T * s), rtol=1e-5)
    np.testing.assert_allclose(exe(x)[0], x @ (params["w"].T * params["s"]), rtol=1e-5)
    with pytest.raises(Exception, match="no input"):
        exe.run({"x": x, "s.derived": s})


def test_updated_parameters_stay_in_the_program() -> None:
    x, w = Value(f32(2), "x"), parameter("w", 2)
    graph = Graph([x, w], [F.mul(F.exp(w), x)], [(w, F.add(w, x))])
    params = store(w=np.zeros(2, np.float32))
    exe = Executor(graph, params)
    one = np.ones(2, np.float32)
    np.testing.assert_allclose(exe(one)[0], [1, 1])
    np.testing.assert_allclose(exe(one)[0], np.exp([1, 1]), rtol=1e-6)


def test_results_that_grow_stay_short_lived() -> None:
    x, w = Value(f32(1), "x"), parameter("w", 64)
    wide = F.expand(F.reshape(w, [1, 64]), np.array([4096, 64]))
    exe = Executor(Graph([x, w], [F.add(F.reduce_sum(wide, keepdims=False), x)]), store(w=weights(64)))
    assert "Expand" in [s.op for s in exe.plan.steps]
    np.testing.assert_allclose(exe(np.zeros(1, np.float32))[0], [weights(64).sum() * 4096], rtol=1e-3)


def test_random_values_are_not_derived() -> None:
    x, w = Value(f32(3), "x"), parameter("w", 3)
    dropped = F.random_normal_like(w)
    exe = Executor(Graph([x, w], [F.add(dropped, x)]), store(w=weights(3)))
    zero = np.zeros(3, np.float32)
    assert not np.array_equal(exe(zero)[0], exe(zero)[0])


def test_derived_views_of_borrowed_arrays_are_copied(tmp_path: Path) -> None:
    """Their sources are read into memory that the next array overwrites."""
    array = weights(200, 100)
    path = tmp_path / "weights.bin"
    path.write_bytes(array.tobytes() + bytes(array.nbytes))
    first, second = (StoredArray(StoredFile(path), start, array.dtype, array.shape) for start in (0, array.nbytes))
    w, params = parameter("w", 200, 100), ParamStore({"w": f32(200, 100)})
    params["w"] = first
    view = F.reshape(w, np.array([100, 200]))
    _, derived = prepack(Graph([w], [F.exp(view), view]), {w: ParameterArray(params, "w")})
    scratch = Scratch()
    found = [made.borrowed(scratch) for made in derived.values()]
    scratch.clear()
    second.borrowed(scratch)  # zeros
    assert any(np.array_equal(a, array.reshape(100, 200)) for a in found)
