"""Random ensembles of trees, as attributes of the operators of ai.onnx.ml, and rows that fall through them."""

from __future__ import annotations

from typing import Any

import numpy as np

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def random_forest(
    rng: np.random.Generator, prefix: str, targets: int, *, trees: int, depth: int, features: int,
    only: int | None = None, positive: bool = False, missing: float = 0.0,
) -> dict[str, Any]:  # fmt: skip
    """Attributes of a random tree ensemble, with names that begin with `prefix`.

    only: target of all weights. missing: share of the nodes that send NaN to their true branch.
    """
    nodes: list[tuple[Any, ...]] = []
    weights: list[tuple[Any, ...]] = []
    modes = rng.choice(MODES, rng.integers(1, 7))

    def grow(tree: int, number: list[int], left: int) -> int:
        own, at = number[0], len(nodes)
        number[0] += 1
        nodes.append(())
        if left == 0 or (left < depth and rng.random() < 0.2):
            nodes[at] = (tree, own, 0, "LEAF", 0.0, 0, 0, 0)
            several = rng.choice(targets, rng.integers(1, targets + 1), replace=False)
            for target in several if only is None else [only]:
                weight = rng.normal()
                weights.append((tree, own, int(target), float(np.float32(abs(weight) if positive else weight))))
            return own
        threshold = float(np.float32(rng.choice([round(float(rng.normal()), 1), 0.0, 1.0, -1.0])))
        yes, no = grow(tree, number, left - 1), grow(tree, number, left - 1)
        tracks = int(rng.random() < missing)
        nodes[at] = (tree, own, int(rng.integers(0, features)), str(rng.choice(modes)), threshold, yes, no, tracks)
        return own

    for tree in range(trees):
        grow(tree, [0], depth)
    keys = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
    attributes = {f"nodes_{key}": list(column) for key, column in zip(keys, zip(*nodes, strict=True), strict=False)}
    if missing:
        attributes["nodes_missing_value_tracks_true"] = [node[7] for node in nodes]
    columns = zip(*weights, strict=True)
    attributes |= {
        f"{prefix}_{k}": list(c) for k, c in zip(("treeids", "nodeids", "ids", "weights"), columns, strict=True)
    }
    return attributes


def rows(rng: np.random.Generator, count: int, features: int, dtype: str = "float32") -> np.ndarray:
    """Features, many of them on thresholds, NaN or infinite."""
    if dtype.startswith("int"):
        return rng.integers(-2, 3, (count, features)).astype(dtype)
    x = np.round(rng.normal(size=(count, features)), 1)
    for value in (0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf):
        x[rng.random(x.shape) < 0.04] = value
    return x.astype(dtype)
