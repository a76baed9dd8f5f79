"""Kernels of tree ensembles: the leaves are those of the reference, and the bits do not depend on threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.checks.random_trees import MODES, random_forest, rows
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_kernel
from graphkit.ops.evaluate import evaluate


def forest(targets: int, trees: int, *, prefix: str = "target", seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return random_forest(rng, prefix, targets, trees=trees, depth=6, features=5, missing=0.3)


@pytest.mark.full
@in_one_item("pairs")
@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 127, 128, 129, 300])
@pytest.mark.parametrize(("targets", "aggregate"), [(1, "SUM"), (1, "MIN"), (3, "AVERAGE"), (3, "MAX")])
def test_numbers_of_rows(count: int, targets: int, aggregate: str) -> None:
    attributes = forest(targets, 21) | {"n_targets": targets, "aggregate_function": aggregate}
    x = gk.input("x", ["n", 5])
    net = gk.Model({"y": gk.tree_ensemble_regressor(x, **attributes)})
    given = rows(np.random.default_rng(count), count, 5)
    executor = net.compile()
    (expected,) = evaluate(net.graph, [given])
    np.testing.assert_allclose(executor.run({"x": given})["y"], expected, rtol=1e-5, atol=1e-6)
    assert {step.kernel for step in executor.plan.steps} == {"native"}


@pytest.mark.full
@in_one_item()
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", [1, 5, 8, 300])
def test_the_same_bits_for_any_number_of_threads(count: int, dtype: str) -> None:
    attributes = forest(2, 200) | {"n_targets": 2}
    x = gk.input("x", ["n", 5], dtype=dtype)
    net = gk.Model({"y": gk.tree_ensemble_regressor(x, **attributes)})
    given = rows(np.random.default_rng(1), count, 5, dtype)
    results = [net.compile(threads=threads).run({"x": given})["y"] for threads in (1, 2, 3)]
    assert len({result.tobytes() for result in results}) == 1


@in_one_item("pairs")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_comparison_at_its_edges(mode: str, missing: int, dtype: str) -> None:
    """Numbers at, below and above a threshold, zeros of both signs, infinities and NaN, on both sides."""
    kind = np.dtype(dtype).type
    tiny = np.finfo(dtype).smallest_subnormal
    ends = [kind(0), kind(-0.0), kind(1), np.nextafter(kind(1), kind(2)), np.nextafter(kind(1), kind(0)), tiny, -tiny]
    edges = np.array([*ends, np.inf, -np.inf, np.nan, np.finfo(dtype).max], dtype)
    x = gk.input("x", ["n", 1], dtype=dtype)
    for threshold in edges:
        y = gk.tree_ensemble_regressor(
            x, nodes_treeids=[0] * 3, nodes_nodeids=[0, 1, 2], nodes_featureids=[0] * 3,
            nodes_modes=[mode, "LEAF", "LEAF"], nodes_values_as_tensor=np.array([threshold, 0, 0], dtype),
            nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0],
            nodes_missing_value_tracks_true=[missing, 0, 0], target_treeids=[0, 0], target_nodeids=[1, 2],
            target_ids=[0, 0], target_weights_as_tensor=np.array([1, 2], dtype), n_targets=1,
        )  # fmt: skip
        net = gk.Model({"y": y})
        ask = {
            "BRANCH_LEQ": np.less_equal, "BRANCH_LT": np.less, "BRANCH_GTE": np.greater_equal,
            "BRANCH_GT": np.greater, "BRANCH_EQ": np.equal, "BRANCH_NEQ": np.not_equal,
        }[mode]  # fmt: skip
        taken = ask(edges, threshold) | (bool(missing) & np.isnan(edges))
        found = net.compile().run({"x": edges[:, None]})["y"][:, 0]
        np.testing.assert_array_equal(found, np.where(taken, 1, 2), err_msg=f"{mode} {threshold}")


def test_more_classes_than_a_row_on_the_stack() -> None:
    attributes = forest(100, 12, prefix="class", seed=3) | {"classlabels_int64s": range(100, 200)}
    x = gk.input("x", ["n", 5])
    y, z = gk.tree_ensemble_classifier(x, **attributes, post_transform="SOFTMAX")
    net = gk.Model({"y": y, "z": z})
    given = rows(np.random.default_rng(2), 40, 5)
    expected = evaluate(net.graph, [given])
    for ours, theirs in zip(net.compile().run({"x": given}).values(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_labels_alone_and_strings() -> None:
    attributes = forest(3, 9, prefix="class", seed=4) | {"classlabels_strings": ["a", "b", "c"]}
    x = gk.input("x", ["n", 5])
    net = gk.Model({"y": gk.tree_ensemble_classifier(x, **attributes)[0]})
    given = rows(np.random.default_rng(2), 9, 5)
    assert net.compile().run({"x": given})["y"].tolist() == evaluate(net.graph, [given])[0].tolist()


def forest_of_many_targets(targets: int) -> dict[str, Any]:
    """Two trees of one question each, whose four leaves have weights for targets far apart."""
    return {
        "nodes_treeids": [0, 0, 0, 1, 1, 1], "nodes_nodeids": [0, 1, 2] * 2, "nodes_featureids": [0, 0, 0, 1, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * 2, "nodes_values": [0.0] * 6,
        "nodes_truenodeids": [1, 0, 0] * 2, "nodes_falsenodeids": [2, 0, 0] * 2, "target_treeids": [0, 0, 1, 1],
        "target_nodeids": [1, 2, 1, 2], "target_ids": [0, targets - 1, targets // 2, targets - 1],
        "target_weights": [1.0, 2.0, 3.0, 4.0], "n_targets": targets,
    }  # fmt: skip


@in_one_item()
@pytest.mark.parametrize("count", [1, 7, 8, 20])
def test_rows_with_so_many_results_that_blocks_are_small(count: int) -> None:
    targets = 30_000
    y = gk.tree_ensemble_regressor(gk.input("x", ["n", 5]), **forest_of_many_targets(targets))
    net = gk.Model({"y": y})
    given = rows(np.random.default_rng(3), count, 5)
    (expected,) = evaluate(net.graph, [given])
    for threads in (1, 2):
        executor = net.compile(threads=threads)
        np.testing.assert_array_equal(executor.run({"x": given})["y"], expected)
        assert {step.kernel for step in executor.plan.steps} == {"native"}


@in_one_item()
@pytest.mark.parametrize("count", [1, 64])
def test_scratch_memory_of_many_results(count: int) -> None:
    targets, threads = 1 << 20, 4
    y = gk.tree_ensemble_regressor(gk.input("x", [count, 5]), **forest_of_many_targets(targets))
    assert y.node is not None
    kernel: Any = make_kernel("cpu", y.node, KernelContext(threads))
    # Scores, and whether there are any: of one row, or of eight of each thread.
    assert kernel.scratch_bytes < 6 * targets * (1 if count == 1 else 8 * threads)
