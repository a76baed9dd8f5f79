"""Random nodes with their own seed: the numbers of onnx's reference evaluator at step 0, others at later steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import graphkit as gk
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F

SHAPE = (4, 5)
X = np.random.default_rng(0).random(SHAPE, np.float32)


def file(kind: str, operands: dict[str, Any], outputs: int = 1, **attributes: Any) -> Any:
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in operands.items()
    ]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(kind, list(operands), results, **attributes)
    infos_out = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in results]
    graph = helper.make_graph([node], "draws", infos, infos_out)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])


FILES: dict[str, tuple[dict[str, Any], int, dict[str, Any]]] = {
    "Dropout": ({"x": X, "ratio": np.float32(0.3), "training": np.array(True)}, 2, {"seed": 7}),
    "RandomUniform": ({}, 1, {"seed": 3.0, "low": -1.0, "high": 2.5, "shape": SHAPE, "dtype": TensorProto.FLOAT}),
    "RandomNormal": ({}, 1, {"seed": 3.7, "mean": 1.0, "scale": 2.0, "shape": SHAPE, "dtype": TensorProto.DOUBLE}),
    "RandomUniformLike": ({"x": X}, 1, {"seed": 0.0, "dtype": TensorProto.FLOAT}),
    "RandomNormalLike": ({"x": X}, 1, {"seed": 11.0, "dtype": TensorProto.FLOAT}),
    "Bernoulli": ({"x": X}, 1, {"seed": 5.0}),
}


@in_one_item()
@pytest.mark.parametrize("kind", FILES)
def test_first_draw_is_the_evaluators(kind: str) -> None:
    operands, outputs, attributes = FILES[kind]
    model = file(kind, operands, outputs, **attributes)
    expected = ReferenceEvaluator(model).run(None, operands)
    net = gk.load(model)
    for loaded in (net, gk.load(net.to_onnx().SerializeToString())):
        executor = loaded.compile(seed=123)
        first = executor.run(operands)
        for ours, theirs in zip(first.values(), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
            assert ours.dtype == theirs.dtype
        assert not np.array_equal(executor.run(operands)["y0"], first["y0"]), "the second run draws anew"
        executor.rng = (123, 0)
        np.testing.assert_array_equal(executor.run(operands)["y0"], first["y0"])


def draws(stream: int, rng: tuple[int, int], seed: float = 1.0) -> np.ndarray:
    state = np.array(rng, np.uint64)
    value = Value(TensorType("uint64", (2,)), "rng", role="rng")
    graph = Graph([value], [F.random_uniform(value, shape=(6,), seed=seed, stream=stream, dtype="float64")])
    executor = Executor(graph, ParamStore({}), threads=1)
    executor.rng = tuple(state.tolist())
    return next(iter(executor.run({}).values()))


def test_later_draws_depend_on_everything() -> None:
    """Ranks have different seeds, and nodes different streams: from step 1 on, all draw different numbers."""
    later = [(0, (0, 1), 1.0), (0, (0, 2), 1.0), (1, (0, 1), 1.0), (0, (9, 1), 1.0), (0, (0, 1), 2.0)]
    found = [draws(*case) for case in later]
    assert len({array.tobytes() for array in found}) == len(later)
    for case, array in zip(later, found, strict=True):
        np.testing.assert_array_equal(draws(*case), array)
        assert ((array >= 0) & (array < 1)).all()


def test_seeds_that_numpy_does_not_take() -> None:
    """Negative and large seeds give different draws. NaN counts as no seed."""
    found = {draws(0, (0, 0), seed).tobytes() for seed in (-1.0, -2.0, 2.0**40, 1.0)}
    assert len(found) == 4
    np.testing.assert_array_equal(draws(0, (4, 0), float("nan")), _philox(4))


def _philox(seed: int) -> np.ndarray:
    value = Value(TensorType("uint64", (2,)), "rng", role="rng")
    executor = Executor(Graph([value], [F.random_uniform(value, shape=(6,), dtype="float64")]), ParamStore({}))
    executor.rng = (seed, 0)
    return next(iter(executor.run({}).values()))


def test_each_step_of_training_has_another_mask() -> None:
    x = gk.input("x", ["N", 400])
    dropped, _ = gk.dropout(x, np.float32(0.5), np.array(True), seed=3)
    net = gk.Model({"y": dropped * gk.parameter("w", [400], init="ones")}, name="dropped")
    trainer = gk.Trainer(net, loss="mse", optimizer=gk.optim.SGD(0.0))
    ones = np.ones((1, 400), np.float32)
    # The loss counts what is dropped: 4 where kept against a target of 0.
    losses = [float(trainer.step(ones, np.zeros((1, 400), np.float32))) for _ in range(6)]
    kept = (np.random.RandomState(3).random_sample((1, 400)) >= 0.5).mean()
    assert losses[0] == pytest.approx(4 * kept)
    assert len(set(losses)) > 2


def test_only_nodes_with_a_seed_are_interpreted() -> None:
    def plan(**attributes: Any) -> str:
        x = gk.input("x", [64])
        executor = gk.Model({"y": gk.random_uniform_like(x, **attributes)}).compile()
        executor.run({"x": np.zeros(64, np.float32)})
        return str(executor.plan)

    assert "interpreted" not in plan()
    assert "interpreted" in plan(seed=1.0)
