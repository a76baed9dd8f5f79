"""Updates of tables whose gradients are given by rows: found, and the same to the bit as with whole gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from combinations import in_one_item
from device_pipelines import patch_pipelines

import graphkit as gk
from graphkit.errors import RuntimeFailure
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.passes.fuse.table_update import fuse_table_update
from graphkit.passes.pipeline import inference_passes
from graphkit.train.losses import attach
from graphkit.train.programs.step import UpdateRule, fused_step
from graphkit.train.selection import ParameterSelection, select_parameters

OPTIMIZERS: dict[str, Any] = {
    "sgd": gk.optim.SGD(0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": gk.optim.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": gk.optim.Adam(0.05),
    "adamw": gk.optim.AdamW(0.05),
    "adagrad": gk.optim.Adagrad(0.05),
}


def model(rows: int = 70, width: int = 24, dtype: str = "int64") -> gk.Model:
    """The mean of the rows that two inputs name, of one table each, through a dense layer."""
    index = gk.input("index", ["N", 3], dtype)
    pooled = F.reduce_mean(gk.nn.embedding(index, rows, width, name="table"), np.array([1]), keepdims=False)
    return gk.Model(gk.nn.linear(pooled, 4, name="fc"), seed=3)


def step_of(net: gk.Model, optimizer: Any, **rule: Any) -> Graph:
    graph = attach(net.graph, "mse", None, None)
    return fused_step(graph, select_parameters(graph, ParameterSelection()), UpdateRule(optimizer, **rule))


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


@in_one_item()
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_gradient_of_a_table_is_fused(name: str) -> None:
    graph = step_of(model(), OPTIMIZERS[name])
    fused = fuse_table_update(graph)
    assert names(fused).count("TableUpdate") == 1
    assert "GatherGrad" not in names(fused)
    assert names(graph).count("GatherGrad") == 1


@in_one_item()
@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [(gk.optim.SGD(0.1), {"clip_norm": 1.0}), (gk.optim.Lamb(0.1), {})],
    ids=["clipped", "lamb"],
)
def test_others_stay(optimizer: Any, rule: dict[str, Any]) -> None:
    """A norm needs the whole gradient."""
    graph = step_of(model(), optimizer, **rule)
    assert names(fuse_table_update(graph)) == names(graph)


@in_one_item("values")
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("rows", "width"), [(70, 24), (1, 5), (3000, 8), (37, 1)])
def test_bits_are_those_of_the_whole_gradient(name: str, rows: int, width: int, monkeypatch: Any) -> None:
    rng = np.random.default_rng(rows)
    batches = [(rng.integers(-rows, rows, (16, 3)), rng.standard_normal((16, 4)).astype(np.float32)) for _ in range(3)]

    def trained(threads: int) -> dict[str, np.ndarray]:
        net = model(rows, width)
        trainer = gk.Trainer(net, "mse", OPTIMIZERS[name], threads=threads, seed=0)
        for x, y in batches:
            trainer.step(x, y)
        used = {node.op.name for node in trainer.executor._graph.nodes}
        assert ("TableUpdate" in used) is fusing
        return {name: np.array(array) for name, array in net.params.items()}

    fusing = True
    fused = [trained(threads) for threads in (1, 2, 4)]
    fusing = False
    patch_pipelines(
        monkeypatch,
        inference_passes=lambda *args: tuple(p for p in inference_passes(*args) if p.name != "fuse_table_update"),
    )
    plain = trained(1)
    for found in fused:
        for key, array in plain.items():
            np.testing.assert_array_equal(found[key], array, err_msg=key)


@in_one_item()
@pytest.mark.parametrize("shape", [(5, 0), (0, 3)])
def test_empty_tables_stay(shape: tuple[int, ...]) -> None:
    kind = TensorType("float32", shape)
    table, index = Value(kind, "table", role="state"), Value(TensorType("int64", ("N",)), "index")
    rows = Value(TensorType("float32", ("N", *shape[1:])), "rows")
    gradient = F.gather_grad(rows, table, index, axis=0)
    new = F.sgd_update(table, gradient, F.constant(value=np.float32(1)))
    graph = Graph([table, rows, index], [], [(table, new)])
    assert names(fuse_table_update(graph)) == names(graph)


def test_a_table_of_one_axis_is_fused() -> None:
    """Rows are single numbers, such as a bias of each user."""
    table, index = (
        Value(TensorType("float32", (5,)), "table", role="state"),
        Value(TensorType("int64", ("N",)), "index"),
    )
    numbers = Value(TensorType("float32", ("N",)), "numbers")
    new = F.sgd_update(table, F.gather_grad(numbers, table, index, axis=0), F.constant(value=np.float32(1)))
    graph = Graph([table, numbers, index], [], [(table, new)])
    assert names(fuse_table_update(graph)).count("TableUpdate") == 1
    executor = Executor(graph, ParamStore({"table": table.tensor}, {"table": np.zeros(5, np.float32)}))
    executor.run({"numbers": np.array([1, 2, 4], np.float32), "index": np.array([3, 0, 3])})
    assert executor.params["table"].tolist() == [-2, 0, 0, -5, 0]


def table_update(index_dtype: str) -> Executor:
    kind = TensorType("float32", (9, 2))
    table = Value(kind, "table", role="state")
    rows, index = Value(TensorType("float32", ("N", 2)), "rows"), Value(TensorType(index_dtype, ("N",)), "index")
    gradient = F.gather_grad(rows, table, index, axis=0)
    new = F.sgd_update(table, gradient, F.constant(value=np.float32(1)))
    graph = Graph([table, rows, index], [], [(table, new)])
    return Executor(graph, ParamStore({"table": kind}, {"table": np.zeros((9, 2), np.float32)}), threads=2)


@in_one_item()
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_rows_are_added_at_their_indices(dtype: str) -> None:
    ex = table_update(dtype)
    index = np.array([3, -1, 3, 0, -6], dtype)
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    wanted = np.zeros((9, 2), np.float32)
    np.subtract.at(wanted, index, rows)
    ex.run({"rows": rows, "index": index})
    np.testing.assert_array_equal(ex.params["table"], wanted)
    assert not ex.plan.fallbacks
    ex.run({"rows": rows[:0], "index": index[:0]})
    np.testing.assert_array_equal(ex.params["table"], wanted)


@in_one_item()
@pytest.mark.parametrize("bad", [9, -10])
def test_an_index_outside_of_the_table_changes_nothing(bad: int) -> None:
    ex = table_update("int64")
    with pytest.raises(RuntimeFailure, match=rf"index {bad} \(element 1 of the indices\)"):
        ex.run({"rows": np.ones((2, 2), np.float32), "index": np.array([0, bad])})
    assert not ex.params["table"].any()
