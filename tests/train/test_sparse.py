"""Row-sparse updates: rows that a step reads follow the optimizer's formula, and all others stay unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import UsageError

ROWS, WIDTH = 7, 3
STEPS = [np.array(ids) for ids in ([[0, 2], [2, -1]], [[4, 4], [4, 4]], [[0, 1], [-7, 2]], [[5, 2], [1, 4]])]
UNREAD = 3


def model() -> gk.Model:
    ids = gk.input("ids", ["N", "T"], dtype="int64")
    return gk.Model({"y": gk.nn.embedding(ids, ROWS, WIDTH, name="embed")}, name="lookup", seed=0)


def gradients(table: np.ndarray, ids: np.ndarray, target: np.ndarray) -> dict[int, np.ndarray]:
    """Return the gradient of the mean squared error for each row that is read."""
    found: dict[int, np.ndarray] = {}
    for row, t in zip(ids.reshape(-1) % ROWS, target.reshape(-1, WIDTH), strict=True):
        found[row] = found.get(row, 0.0) + 2 * (table[row] - t) / target.size
    return found


def lazy_sgd(row: np.ndarray, g: np.ndarray, s: dict[str, Any], step: int) -> np.ndarray:
    s["v"] = 0.9 * s.get("v", 0.0) + g + 0.1 * row
    return row - 0.1 * s["v"]


def lazy_adam(row: np.ndarray, g: np.ndarray, s: dict[str, Any], step: int) -> np.ndarray:
    """torch.optim.SparseAdam's documented loop: the bias correction counts all steps."""
    s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * g
    s["v"] = 0.999 * s.get("v", 0.0) + 0.001 * g**2
    return row - 0.01 * s["m"] / (1 - 0.9**step) / (np.sqrt(s["v"] / (1 - 0.999**step)) + 1e-8)


def lazy_adagrad(row: np.ndarray, g: np.ndarray, s: dict[str, Any], step: int) -> np.ndarray:
    s["n"] = s.get("n", 0.0) + g**2
    return row - 0.1 * g / (np.sqrt(s["n"]) + 1e-10)


CASES = {
    "sgd": (gk.optim.SGD(0.1, momentum=0.9, weight_decay=0.2), lazy_sgd),
    "adam": (gk.optim.Adam(0.01), lazy_adam),
    "adagrad": (gk.optim.Adagrad(0.1), lazy_adagrad),
}


@in_one_item()
@pytest.mark.parametrize("name", CASES)
def test_only_rows_that_are_read_change(name: str) -> None:
    optimizer, formula = CASES[name]
    net = model()
    start = net.params["embed_weight"].copy()
    table = start.astype(np.float64)
    states: dict[int, dict[str, Any]] = {row: {} for row in range(ROWS)}
    trainer = gk.Trainer(net, "mse", optimizer, lazy=["embed*"], wd_mult={"embed_weight": 0.5})
    rng = np.random.default_rng(2)
    for step, ids in enumerate(STEPS, start=1):
        target = rng.standard_normal((*ids.shape, WIDTH), np.float32)
        before = {
            n: a.copy() for n, a in (*net.params.items(), *trainer._stepper.slots.items()) if a.shape == start.shape
        }
        trainer.step(ids, target)
        read = gradients(table, ids, target)
        for row, g in read.items():
            table[row] = formula(table[row], g, states[row], step)
        untouched = [row for row in range(ROWS) if row not in read]
        for key, array in (*net.params.items(), *trainer._stepper.slots.items()):
            if key in before:
                assert array[untouched].tobytes() == before[key][untouched].tobytes(), key
        np.testing.assert_allclose(net.params["embed_weight"], table, rtol=1e-4, atol=1e-6)
    assert UNREAD in untouched
    np.testing.assert_array_equal(net.params["embed_weight"][UNREAD], start[UNREAD])


def test_lazy_equals_dense_if_every_row_is_read() -> None:
    ids = np.array([[0, 1, 2, 3], [4, 5, 6, 0]])
    target = np.random.default_rng(0).standard_normal((*ids.shape, WIDTH), np.float32)
    tables = []
    for lazy in ([], ["embed_weight"]):
        net = model()
        trainer = gk.Trainer(net, "mse", gk.optim.AdamW(0.01), lazy=lazy, clip_norm=0.05, ema=0.5)
        for _ in range(4):
            trainer.step(ids, target)
        with trainer.averaged():
            tables.append(net.params["embed_weight"].copy())
    np.testing.assert_allclose(tables[1], tables[0], rtol=1e-5, atol=1e-7)


def test_lazy_attribute_and_two_lookups_of_one_table() -> None:
    first, second = (gk.input(n, ["N"], dtype="int64") for n in ("first", "second"))
    with gk.attr_scope(lazy="1"):
        table = gk.parameter("table", [5, 2], "normal")
    score = gk.reduce_sum(gk.gather(table, first) * gk.gather(table, second), [1], keepdims=False)
    net = gk.Model({"y": score}, seed=0)
    start = net.params["table"].copy()
    a, b = np.array([0, 1, 1]), np.array([1, 3, 4])
    target = np.zeros(3, np.float32)
    gk.Trainer(net, "mse", gk.optim.SGD(0.1)).step({"first": a, "second": b}, target)
    slope = 2 * (start[a] * start[b]).sum(1, keepdims=True) / 3
    gradient = np.zeros_like(start)
    np.add.at(gradient, a, slope * start[b])
    np.add.at(gradient, b, slope * start[a])
    np.testing.assert_allclose(net.params["table"], start - 0.1 * gradient, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(net.params["table"][2], start[2])


def test_error_names_parameters_that_cannot_be_lazy() -> None:
    x = gk.input("x", ["N", 3])
    dense = gk.Model({"y": gk.nn.linear(x, 2, name="fc")}, seed=0)
    with pytest.raises(UsageError, match="uses the whole table"):
        gk.Trainer(dense, "mse", lazy=["fc_weight"])
    with pytest.raises(UsageError, match="norms of whole parameters"):
        gk.Trainer(model(), "mse", "lamb", lazy=["embed*"])
    with pytest.raises(UsageError, match="one batch per update"):
        gk.Trainer(model(), "mse", "sgd", lazy=["embed*"], accumulate=2)


def table_updates(trainer: gk.Trainer, name: str) -> list[str]:
    """Return the operators that update the whole table."""
    return [n.op.name for n in trainer.graph.nodes if n.op.name.endswith("Update") and n.operands[0].name == name]


def large_lookup(tied: bool = False) -> gk.Model:
    ids = gk.input("ids", ["N"], dtype="int64")
    table = gk.parameter("table", [5000, 4], "normal")
    rows = gk.gather(table, ids)
    return gk.Model({"y": gk.mat_mul(rows, gk.transpose(table)) if tied else rows}, name="large", seed=0)


@in_one_item()
@pytest.mark.parametrize(
    ("optimizer", "options", "is_sparse"),
    [
        (gk.optim.SGD(0.1), {}, True),
        (gk.optim.Adagrad(0.1), {}, True),
        (gk.optim.SGD(0.1, weight_decay=0.1), {"wd_mult": {"table": 0.0}}, True),
        (gk.optim.SGD(0.1, weight_decay=0.1), {}, False),
        (gk.optim.SGD(0.1, momentum=0.9), {}, False),
        (gk.optim.Adagrad(0.1, epsilon=0.0), {}, False),
        (gk.optim.Adam(0.1), {}, False),
        (gk.optim.SGD(0.1), {"accumulate": 2}, False),
        (gk.optim.SGD(0.1), {"recompute": "sqrt"}, False),
    ],
    ids=str,
)
def test_large_tables_have_sparse_updates_where_they_are_equal(
    optimizer: gk.optim.Optimizer, options: dict[str, Any], is_sparse: bool
) -> None:
    trainer = gk.Trainer(large_lookup(), "mse", optimizer, **options)
    if "accumulate" not in options:
        assert bool(table_updates(trainer, "table")) != is_sparse
    assert trainer.dense_tables == (() if is_sparse or "accumulate" in options else ("table",))
    tied = gk.Trainer(large_lookup(tied=True), "softmax_cross_entropy", optimizer, **options)
    assert tied.dense_tables == ()


def test_own_formulas_have_dense_updates() -> None:
    class Shrinking(gk.optim.SGD):
        def update(
            self, weight: gk.Value, grad: gk.Value, slots: Any, lr: gk.Value, step: gk.Value, decay: float
        ) -> Any:
            return (weight - lr * (grad + 0.1 * gk.sign(weight)),)

    net = large_lookup()
    before = net.params["table"].copy()
    gk.Trainer(net, "mse", Shrinking(0.1)).step(np.array([1, 2]), np.zeros((2, 4), np.float32))
    assert (net.params["table"] != before).all()


@pytest.mark.parametrize("optimizer", [gk.optim.SGD(0.1), gk.optim.Adagrad(0.1)], ids=["sgd", "adagrad"])
def test_equal_sparse_updates_have_the_values_of_dense_ones(optimizer: gk.optim.Optimizer) -> None:
    """The second Trainer is the same with a second reader of the whole table, whose gradient is zero."""
    ids = gk.input("ids", ["N"], dtype="int64")
    table = gk.parameter("table", [5000, 4], "normal")
    nothing = gk.reduce_sum(table, keepdims=False) * 0.0
    dense = gk.Model({"y": gk.gather(table, ids) + nothing}, seed=0)
    sparse = large_lookup()
    sparse.params["table"] = dense.params["table"]
    trainers = [gk.Trainer(net, "mse", optimizer) for net in (sparse, dense)]
    assert [bool(table_updates(t, "table")) for t in trainers] == [False, True]
    rng = np.random.default_rng(0)
    for _ in range(4):
        ids_of_step = rng.integers(-5000, 5000, 64)
        ids_of_step[:8] = ids_of_step[8]
        target = rng.standard_normal((64, 4), np.float32)
        losses = [t.step(ids_of_step, target) for t in trainers]
        np.testing.assert_allclose(float(losses[0]), float(losses[1]), rtol=1e-6)
    np.testing.assert_allclose(sparse.params["table"], dense.params["table"], rtol=1e-5, atol=1e-7)
