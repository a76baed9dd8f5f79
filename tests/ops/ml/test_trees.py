"""Random ensembles of trees, compared with ONNX Runtime; and invalid ensembles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item
from onnx import numpy_helper

import graphkit as gk
from graphkit.checks.random_trees import TRANSFORMS, random_forest, rows
from graphkit.errors import GraphkitError, InvalidModel, UnsupportedError

SEEDS = range(16)
Check = Callable[..., dict[str, Any]]


def as_tensors(attributes: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Lists of floats as tensors of float64."""
    return {
        (f"{k}_as_tensor" if k in names else k): numpy_helper.from_array(np.array(v)) if k in names else v
        for k, v in attributes.items()
    }


@in_one_item()
@pytest.mark.parametrize("seed", SEEDS)
def test_regressor(seed: int, as_in_runtime: Check) -> None:
    rng = np.random.default_rng(seed)
    targets = int(rng.choice([1, 1, 3]))
    attributes = random_forest(
        rng, "target", targets, trees=int(rng.choice([1, 7, 9, 20])), depth=int(rng.integers(0, 6)), features=4,
        missing=float(rng.choice([0, 0.4])),
    )  # fmt: skip
    attributes |= {
        "n_targets": targets,
        "aggregate_function": str(rng.choice(["SUM", "AVERAGE", "MIN", "MAX"])),
        "post_transform": str(rng.choice(TRANSFORMS)),
    }
    if rng.random() < 0.5:
        attributes["base_values"] = [float(np.float32(v)) for v in rng.normal(size=targets)]
    wide = rng.random() < 0.4
    if wide:
        attributes = as_tensors(attributes, ("nodes_values", "target_weights", "base_values"))
    x = rows(rng, int(rng.choice([0, 1, 5, 8, 130])), 4, "float64" if wide else "float32")
    # The approximation of PROBIT is steep where it is rounded.
    as_in_runtime("TreeEnsembleRegressor", [x], version=3, rtol=1e-3, **attributes)


@in_one_item()
@pytest.mark.parametrize("seed", SEEDS)
def test_classifier(seed: int, as_in_runtime: Check) -> None:
    rng = np.random.default_rng(seed + 100)
    classes = int(rng.choice([2, 2, 2, 3, 5]))
    only = int(rng.integers(0, classes)) if rng.random() < 0.5 else None
    attributes = random_forest(
        rng, "class", classes, trees=int(rng.choice([1, 9, 20])), depth=int(rng.integers(1, 6)), features=4, only=only,
        positive=bool(rng.random() < 0.5), missing=float(rng.choice([0, 0.4])),
    )  # fmt: skip
    # Of one score for two classes PROBIT leaves the second one open.
    attributes["post_transform"] = str(rng.choice(TRANSFORMS[:4]))
    if rng.random() < 0.5:
        attributes["classlabels_strings"] = [f"c{i}" for i in range(classes)]
    else:
        attributes["classlabels_int64s"] = [int(i) for i in rng.permutation(20)[:classes]]
    if rng.random() < 0.5:
        attributes["base_values"] = [float(np.float32(v)) for v in rng.normal(size=classes)]
    x = rows(rng, int(rng.choice([1, 7, 40])), 4, str(rng.choice(["float32", "float64", "int64", "int32"])))
    as_in_runtime("TreeEnsembleClassifier", [x], version=3, outputs=2, **attributes)


def ensemble(rng: np.random.Generator, dtype: str, targets: int) -> dict[str, Any]:
    """The attributes of a random TreeEnsemble, sets included."""
    nodes: list[Any] = []
    leaves: list[tuple[int, float]] = []
    sets: dict[int, list[float]] = {}
    modes = rng.choice(7, rng.integers(1, 8))

    def grow(left: int) -> int:
        at = len(nodes)
        nodes.append(None)
        mode = int(rng.choice(modes))
        if mode == 6:
            sets[at] = [float(v) for v in np.unique(rng.integers(-3, 4, rng.integers(1, 4)))]
        children = []
        for _ in range(2):
            if left == 1 or rng.random() < 0.2:
                leaves.append((int(rng.integers(0, targets)), float(np.round(rng.normal(), 2))))
                children.append((len(leaves) - 1, 1))
            else:
                children.append((grow(left - 1), 0))
        nodes[at] = (int(rng.integers(0, 3)), mode, float(rng.integers(-2, 3)), *children, int(rng.random() < 0.3))
        return at

    roots = [grow(int(rng.integers(1, 5))) for _ in range(int(rng.integers(1, 12)))]
    kind = np.dtype(dtype)
    members = [value for at in sorted(sets) for value in (*sets[at], np.nan)]
    attributes = {
        "tree_roots": roots,
        "nodes_featureids": [n[0] for n in nodes],
        "nodes_modes": numpy_helper.from_array(np.array([n[1] for n in nodes], np.uint8)),
        "nodes_splits": numpy_helper.from_array(np.array([n[2] for n in nodes], kind)),
        "nodes_truenodeids": [n[3][0] for n in nodes],
        "nodes_trueleafs": [n[3][1] for n in nodes],
        "nodes_falsenodeids": [n[4][0] for n in nodes],
        "nodes_falseleafs": [n[4][1] for n in nodes],
        "nodes_missing_value_tracks_true": [n[5] for n in nodes],
        "leaf_targetids": [leaf[0] for leaf in leaves],
        "leaf_weights": numpy_helper.from_array(np.array([leaf[1] for leaf in leaves], kind)),
        "n_targets": targets,
    }
    return attributes | ({"membership_values": numpy_helper.from_array(np.array(members, kind))} if sets else {})


@in_one_item()
@pytest.mark.parametrize("seed", SEEDS)
def test_ensemble_of_version_5(seed: int, as_in_runtime: Check) -> None:
    rng = np.random.default_rng(seed + 200)
    dtype = str(rng.choice(["float32", "float64"]))
    attributes = ensemble(rng, dtype, int(rng.integers(1, 4)))
    attributes |= {"aggregate_function": int(rng.integers(0, 4)), "post_transform": int(rng.integers(0, 4))}
    # Integers: of sets, ONNX Runtime takes some fractions for the integer below.
    x = np.round(rows(rng, int(rng.choice([1, 6, 50])), 3, dtype) * 2)
    as_in_runtime("TreeEnsemble", [x], version=5, **attributes)


STUMP: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_values": [0.5, 0.0, 0.0], "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0], "n_targets": 1, "target_treeids": [0, 0], "target_nodeids": [1, 2],
    "target_ids": [0, 0], "target_weights": [1.0, 2.0],
}  # fmt: skip


@in_one_item()
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes_truenodeids": [0, 0, 0]}, "own child"),
        ({"nodes_truenodeids": [7, 0, 0]}, "node 7 of tree 0, which does not exist"),
        ({"nodes_falsenodeids": [-1, 0, 0]}, "node -1 of tree 0"),
        ({"nodes_nodeids": [0, 1, 1]}, "occurs twice"),
        ({"nodes_featureids": [-2, 0, 0]}, "feature -2"),
        ({"nodes_featureids": [3, 0, 0]}, "read 4 features"),
        ({"nodes_featureids": [1 << 40, 0, 0]}, "feature 1099511627776"),
        ({"nodes_modes": ["BRANCH_LEQ", "LEAF", "FRUIT"]}, "FRUIT"),
        ({"nodes_values": [0.5, 0.0]}, "must have one length: nodes_values has 2"),
        ({"nodes_missing_value_tracks_true": [1]}, "nodes_missing_value_tracks_true has 1"),
        ({"target_ids": [0, 1]}, "target 1, but targets are from 0 to 0"),
        ({"target_ids": [0, -1]}, "target -1, but targets are from 0 to 0"),
        ({"target_weights": [1.0]}, "weights has 1"),
        ({"target_nodeids": [1, 5]}, "target_nodeids 1 is node 5"),
        ({"n_targets": 0}, "n_targets=0"),
        ({"n_targets": -3}, "n_targets=-3"),
        ({"n_targets": 1 << 40}, "n_targets=1099511627776"),
        ({"base_values": [1.0, 2.0]}, "base_values has 2"),
        ({"aggregate_function": "MEDIAN"}, "MEDIAN"),
        ({"post_transform": "SOFTPLUS"}, "SOFTPLUS"),
        ({k: [] for k in STUMP if k.startswith("nodes_")}, "no nodes|not there"),
        (
            {
                "nodes_modes": ["BRANCH_LEQ"] * 3, "nodes_truenodeids": [1, 2, 1], "nodes_falsenodeids": [2, 2, 1],
            },
            "its own descendant",
        ),
    ],
)  # fmt: skip
def test_what_is_no_ensemble_is_told_at_load(
    changes: dict[str, Any], message: str, node_model: Callable[..., Any]
) -> None:
    x = np.zeros((2, 2), np.float32)
    attributes = {k: v for k, v in {**STUMP, **changes}.items() if not isinstance(v, list) or v}
    model = node_model("TreeEnsembleRegressor", [x], version=3, **attributes)
    with pytest.raises((InvalidModel, GraphkitError), match=message) as failure:
        gk.load(model)
    assert "TreeEnsembleRegressor" in str(failure.value)


def test_features_that_only_the_run_tells(node_model: Callable[..., Any]) -> None:
    model = node_model("TreeEnsembleRegressor", [np.zeros((2, 3), np.float32)], version=3, **STUMP)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "features"
    net = gk.load(model)
    assert net.run({"x0": np.ones((2, 1), np.float32)})["y0"].tolist() == [[2], [2]]
    with pytest.raises(GraphkitError, match="features"):
        net.run({"x0": np.ones((2, 0), np.float32)})


@in_one_item()
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tree_roots": [9]}, "tree_roots"),
        ({"tree_roots": []}, "tree_roots"),
        ({"nodes_truenodeids": [5]}, "leaf 5, but there are only 2"),
        ({"nodes_trueleafs": [0]}, "own child"),
        ({"leaf_targetids": [0, 4]}, "target 4, but targets are from 0 to 0"),
        ({"nodes_modes": np.array([9], np.uint8)}, "0 to 6"),
        ({"nodes_modes": np.array([6], np.uint8)}, "membership_values has 0 sets"),
        ({"membership_values": np.array([1.0], np.float32)}, "membership_values"),
        ({"nodes_modes": np.array([6], np.uint8), "membership_values": np.array([np.nan], np.float32)}, "empty set"),
    ],
)
def test_what_is_no_ensemble_of_version_5(changes: dict[str, Any], message: str) -> None:
    attributes: dict[str, Any] = {
        "tree_roots": [0], "nodes_featureids": [0], "nodes_modes": np.array([0], np.uint8),
        "nodes_splits": np.array([0.5], np.float32), "nodes_truenodeids": [0], "nodes_trueleafs": [1],
        "nodes_falsenodeids": [1], "nodes_falseleafs": [1], "leaf_targetids": [0, 0],
        "leaf_weights": np.array([1, 2], np.float32),
    }  # fmt: skip
    with pytest.raises(GraphkitError, match=message):
        gk.tree_ensemble(gk.input("x", ["n", 2]), **{**attributes, **changes})


def test_a_chain_of_nodes_and_a_cycle_at_its_end() -> None:
    """The tree is as deep as it has nodes. Checking it needs neither recursion nor a loop per level."""
    depth = 20_000
    count = 2 * depth + 1
    inner = np.arange(depth)
    no = np.concatenate([inner + 1, np.zeros(depth + 1, int)])
    attributes: dict[str, Any] = {
        "nodes_treeids": [0] * count,
        "nodes_nodeids": range(count),
        "nodes_featureids": [0] * count,
        "nodes_modes": ["BRANCH_LEQ"] * depth + ["LEAF"] * (depth + 1),
        "nodes_values": [float(i) for i in range(depth)] + [0.0] * (depth + 1),
        "nodes_truenodeids": [int(i) for i in inner + depth + 1] + [0] * (depth + 1),
        "nodes_falsenodeids": [int(i) for i in no],
        "target_treeids": [0] * (depth + 1),
        "target_nodeids": range(depth, count),
        "target_ids": [0] * (depth + 1),
        "target_weights": [float(i) for i in range(depth + 1)],
    }
    x = gk.input("x", ["n", 1])
    net = gk.Model({"y": gk.tree_ensemble_regressor(x, **attributes)})
    rows = np.array([[-1.0], [1.5], [depth - 1.5], [depth + 1.0]], np.float32)
    assert net.compile().run({"x": rows})["y"].ravel().tolist() == [1, 3, depth, 0]
    attributes["nodes_falsenodeids"][depth - 1] = 1
    with pytest.raises(GraphkitError, match="its own descendant"):
        gk.tree_ensemble_regressor(x, **attributes)


def test_trees_have_no_gradient() -> None:
    x = gk.input("x", [2, 1])
    net = gk.Model({"y": gk.tree_ensemble_regressor(x, **STUMP, name="forest")})
    with pytest.raises(UnsupportedError, match=r"forest.*constant between its thresholds"):
        gk.grad(net, wrt=["x"])


@in_one_item()
@pytest.mark.parametrize("weights", [(1.0, 0.5, np.nan), (np.nan, 2.0, 3.0), (0.0, np.nan, 2.0)], ids=str)
def test_a_score_that_is_no_number_is_above_none(weights: tuple[float, ...], as_in_runtime: Check) -> None:
    leaf = {"nodes_treeids": [0], "nodes_nodeids": [0], "nodes_featureids": [0], "nodes_modes": ["LEAF"]}
    leaf |= {"nodes_values": [0.0], "nodes_truenodeids": [0], "nodes_falsenodeids": [0]}
    of_classes = {"class_treeids": [0] * 3, "class_nodeids": [0] * 3, "class_ids": [0, 1, 2]}
    as_in_runtime(
        "TreeEnsembleClassifier", [np.zeros((2, 1), np.float32)], version=3, outputs=2,
        **leaf, **of_classes, class_weights=weights, classlabels_int64s=[0, 1, 2],
    )  # fmt: skip
