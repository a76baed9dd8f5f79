"""TreeEnsembleRegressor and TreeEnsembleClassifier: trees whose nodes are identified by tree and node identifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import UnsupportedError, UsageError
from graphkit.ir.graph import Value
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import DType, TensorType
from graphkit.ops._base import F, Onnx, Op, Sample, constant, op
from graphkit.ops.ml.forest import (
    AGGREGATES,
    LEAF,
    Forest,
    NodeTable,
    checked_forest,
    kept_with,
    modes_of,
    require_targets,
)
from graphkit.ops.ml.matrix import ML, RowWise, examples, one_of, require_at_least, rows_of, same_length
from graphkit.ops.ml.scores import TRANSFORMS, label_type, labels_of, logistic, probit, transform

# A tree with one inner node, which compares feature 0 with 0.5; nodes 1 and 2 are leaves.
_STUMP: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [0, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_values": [0.5, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
}
# Two trees: the first asks for x[1] < -0.25 and then for x[2] >= 0.5, the second for x[0] == 1, where NaN goes too.
_TREES: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1],
    "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
    "nodes_featureids": [1, 0, 2, 0, 0, 0, 0, 0],
    "nodes_modes": ["BRANCH_LT", "LEAF", "BRANCH_GTE", "LEAF", "LEAF", "BRANCH_EQ", "LEAF", "LEAF"],
    "nodes_values": [-0.25, 0.0, 0.5, 0.0, 0.0, 1.0, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 3, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [2, 0, 4, 0, 0, 2, 0, 0],
    "nodes_missing_value_tracks_true": [0, 0, 0, 0, 0, 1, 0, 0],
}


class IdentifiedTrees(RowWise):
    """Base of the two operators. The root of a tree is the first node with the tree's identifier."""

    nodes_treeids: tuple[int, ...] = ()
    nodes_nodeids: tuple[int, ...] = ()
    nodes_featureids: tuple[int, ...] = ()
    nodes_modes: tuple[str, ...] = ()
    nodes_values: tuple[float, ...] = ()
    nodes_values_as_tensor: Tensor | None = None
    nodes_truenodeids: tuple[int, ...] = ()
    nodes_falsenodeids: tuple[int, ...] = ()
    nodes_missing_value_tracks_true: tuple[int, ...] = ()
    nodes_hitrates: tuple[float, ...] = ()
    nodes_hitrates_as_tensor: Tensor | None = None
    base_values: tuple[float, ...] = ()
    base_values_as_tensor: Tensor | None = None
    post_transform: str = "NONE"
    on_host = True

    def _numbers(self, name: str) -> np.ndarray:
        """Return the numbers of an attribute that is a list (of float32) or a tensor."""
        listed, tensor = self.__dict__[name], self.__dict__[f"{name}_as_tensor"]
        if tensor is None:
            return np.array(listed, np.float32)
        if listed:
            raise UsageError(f"{name} and {name}_as_tensor are both given")
        if tensor.dtype not in (DType.FLOAT32, DType.FLOAT64):
            raise UsageError(f"{name}_as_tensor is {tensor.type}: float32 and float64 are possible")
        array: np.ndarray = tensor.array.reshape(-1)
        return array

    def base(self) -> np.ndarray:
        """Return the base values, which are added to scores."""
        return self._numbers("base_values")

    def _forest(self, prefix: str, targets: int) -> Forest:
        """Return the trees. Their weights are in the attributes whose names begin with `prefix`."""
        ints = {
            key: np.array(self.__dict__[key], np.int64)
            for key in (
                "nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids",
                f"{prefix}_treeids", f"{prefix}_nodeids", f"{prefix}_ids",
            )
        }  # fmt: skip
        values, weights = self._numbers("nodes_values"), self._numbers(f"{prefix}_weights")
        nodes = {key: items for key, items in ints.items() if key.startswith("nodes_")}
        same_length(nodes_values=values, nodes_modes=self.nodes_modes, **nodes)
        same_length(**{key: items for key, items in ints.items() if key not in nodes}, weights=weights)
        if not len(values):
            raise UsageError("there are no nodes")
        wide = np.result_type(values, weights, self.base())
        missing = np.array(self.nodes_missing_value_tracks_true or [0] * len(values), np.int64) == 1
        same_length(nodes_missing_value_tracks_true=missing, nodes_values=values)
        tree, node = ints["nodes_treeids"], ints["nodes_nodeids"]
        mode = modes_of(self.nodes_modes)
        table = NodeTable(tree, node)
        inner = np.flatnonzero(mode != LEAF)
        children = []
        for name in ("nodes_truenodeids", "nodes_falsenodeids"):
            child = np.zeros(len(mode), np.int64)
            child[inner] = table.positions(tree[inner], ints[name][inner], f"of the nodes with children, {name}")
            children.append(child)
        return checked_forest(
            feature=ints["nodes_featureids"],
            threshold=values.astype(wide),
            mode=mode,
            yes=children[0],
            no=children[1],
            missing=missing,
            roots=np.flatnonzero(np.concatenate([[True], tree[1:] != tree[:-1]])),
            leaf=table.positions(ints[f"{prefix}_treeids"], ints[f"{prefix}_nodeids"], f"{prefix}_nodeids"),
            target=ints[f"{prefix}_ids"],
            weight=weights.astype(wide),
            targets=targets,
        )

    def _check(self, x: TensorType, forest: Forest, targets: int) -> None:
        one_of("post_transform", self.post_transform, TRANSFORMS)
        count = len(self.base())
        if count not in (0, targets) and not (count == 1 and targets == 2):
            raise UsageError(f"base_values has {count} entries for {targets} targets")
        require_at_least(x, forest.features, "the trees read")


def _single(x: np.ndarray) -> np.ndarray:
    """Return the rows as trees compare them: integers as float32."""
    rows: np.ndarray = rows_of(np, x)
    return rows if rows.dtype in (np.float32, np.float64) else rows.astype(np.float32)


@op
class TreeEnsembleRegressor(IdentifiedTrees):
    """Return, for each example and target, the sum of the weights of the leaves that the example reaches.

    `aggregate_function` can also be AVERAGE, MIN or MAX. The result is float32. For a single target, PROBIT is the only
    `post_transform` that applies.
    """

    n_targets: int | None = None
    aggregate_function: str = "SUM"
    target_treeids: tuple[int, ...] = ()
    target_nodeids: tuple[int, ...] = ()
    target_ids: tuple[int, ...] = ()
    target_weights: tuple[float, ...] = ()
    target_weights_as_tensor: Tensor | None = None
    onnx = Onnx("TreeEnsembleRegressor", 3, ML)
    samples = lambda: (
        Sample((4, 1), **_STUMP, n_targets=1, target_treeids=[0, 0], target_nodeids=[1, 2], target_ids=[0, 0],
               target_weights=[1.5, -2.0], base_values=[0.25], grad=False),
        Sample((7, 3), **_TREES, n_targets=2, aggregate_function="MAX", target_treeids=[0, 0, 0, 0, 1, 1],
               target_nodeids=[1, 3, 4, 4, 1, 2], target_ids=[0, 1, 0, 1, 0, 1],
               target_weights=[1.5, -2.0, 0.5, 0.25, 1.0, 3.0], post_transform="SOFTMAX", grad=False),
        Sample((3,), **_TREES, n_targets=1, aggregate_function="AVERAGE", target_treeids=[0, 0, 0, 1, 1],
               target_nodeids=[1, 3, 4, 1, 2], target_ids=[0] * 5,
               target_weights_as_tensor=np.array([1.5, -2.0, 0.5, 1.0, 3.0]), grad=False),
    )  # fmt: skip

    @property
    def forest(self) -> Forest:
        return kept_with(self, "forest", lambda: self._forest("target", self.targets))

    @property
    def targets(self) -> int:
        return 1 if self.n_targets is None else self.n_targets

    def infer(self, x: TensorType) -> TensorType:
        one_of("aggregate_function", self.aggregate_function, AGGREGATES)
        require_targets(self.targets)
        self._check(x, self.forest, self.targets)
        return TensorType(DType.FLOAT32, (examples(x), self.targets))

    def reference(self, xp: Any, x: Any) -> Any:
        scores, has = self.forest.scores(_single(x), self.aggregate_function)
        return regressed(
            scores, has, self.aggregate_function, len(self.forest.roots), self.base(),
            self.post_transform,
        ).astype(np.float32)  # fmt: skip

    def grad(self, node: Any, dy: Value) -> None:
        raise no_gradient(self)


def regressed(
    scores: np.ndarray, has: np.ndarray, aggregate: str, trees: int, base: np.ndarray, post_transform: str
) -> np.ndarray:
    """Return the result of a regressor for aggregated scores. Of several targets, those without weights are 0."""
    targets = scores.shape[1]
    if aggregate == "AVERAGE":
        scores = scores / scores.dtype.type(trees)
    if len(base) == targets:
        scores = scores + base.astype(scores.dtype)
    if targets == 1:
        return probit(np, scores) if post_transform == "PROBIT" else scores
    return np.asarray(transform(np, post_transform, np.where(has, scores, scores.dtype.type(0))))


def no_gradient(operator: Op) -> UnsupportedError:
    return UnsupportedError(f"{operator.name} is constant between its thresholds: it has no gradient")


@op
class TreeEnsembleClassifier(IdentifiedTrees):
    """The class whose sum of weights is the largest, and the transformed sums of all classes; float32.

    If there are two classes and only one of them has weights, the second class is chosen if the sum is above a limit:
    0 if a weight is negative, else 0.5. If the standard does not define a result (one sum for two classes, base
    values), it is that of ONNX Runtime.
    """

    class_treeids: tuple[int, ...] = ()
    class_nodeids: tuple[int, ...] = ()
    class_ids: tuple[int, ...] = ()
    class_weights: tuple[float, ...] = ()
    class_weights_as_tensor: Tensor | None = None
    classlabels_int64s: tuple[int, ...] = ()
    classlabels_strings: tuple[str, ...] = ()
    outputs = ("y", "z")
    onnx = Onnx("TreeEnsembleClassifier", 3, ML)
    samples = lambda: (
        Sample((4, 1), **_STUMP, class_treeids=[0, 0], class_nodeids=[1, 2], class_ids=[0, 0],
               class_weights=[1.5, -2.0], classlabels_int64s=[5, 7], post_transform="LOGISTIC", grad=False),
        Sample((7, 3), **_TREES, class_treeids=[0, 0, 0, 0, 1, 1], class_nodeids=[1, 3, 4, 4, 1, 2],
               class_ids=[0, 1, 0, 1, 2, 1], class_weights=[1.5, -2.0, 0.5, 0.25, 1.0, 3.0],
               classlabels_strings=["a", "b", "c"], post_transform="SOFTMAX", base_values=[0.5, 0.0, 0.25], grad=False),
        Sample((3,), **_TREES, class_treeids=[0, 0, 0, 1, 1], class_nodeids=[1, 3, 4, 1, 2], class_ids=[1] * 5,
               class_weights_as_tensor=np.array([0.5, 0.25, 0.0, 0.5, 0.125]), classlabels_int64s=[0, 1], grad=False),
    )  # fmt: skip

    @property
    def forest(self) -> Forest:
        return kept_with(self, "forest", lambda: self._forest("class", len(self.labels)))

    @property
    def labels(self) -> np.ndarray:
        return labels_of(self.classlabels_strings, self.classlabels_int64s)

    # With string labels, the operator is expanded: another node looks the strings up.
    @property
    def composite(self) -> bool:  # type: ignore[override]
        return bool(self.classlabels_strings)

    @property
    def is_binary(self) -> bool:
        """Whether there are two classes, but weights of only one of them."""
        return len(self.labels) == 2 and len(set(self.class_ids)) == 1

    @property
    def is_positive(self) -> bool:
        """Whether no weight is negative."""
        return not bool((self._numbers("class_weights") < 0).any())

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        count = len(self.labels)
        if not count:
            raise UsageError("there are no labels")
        self._check(x, self.forest, count)
        rows = examples(x)
        return label_type(self.labels, rows), TensorType(DType.FLOAT32, (rows, count))

    def reference(self, xp: Any, x: Any) -> Any:
        scores, has = self.forest.scores(_single(x), "SUM")
        base = self.base().astype(scores.dtype)
        classes = scores.shape[1]
        if classes == 2:
            chosen, z = self._of_two(scores, has, base)
        else:
            if len(base):
                scores, has = scores + base, np.ones_like(has)
            chosen = (scores[:, 0] > 0).astype(np.int64) if classes == 1 else _first_largest(scores, has)
            if classes == 1:
                z = probit(np, scores) if self.post_transform == "PROBIT" else scores
            else:
                z = transform(np, self.post_transform, np.where(has, scores, 0).astype(np.float32))
        return self._named(chosen), z.astype(np.float32)

    def _named(self, chosen: np.ndarray) -> np.ndarray:
        """Return the labels of the chosen classes."""
        labels = self.labels
        if labels.dtype != object and (len(labels) == 1 or (len(labels) == 2 and not self.is_binary)):
            return chosen
        return np.asarray(labels[np.minimum(chosen, len(labels) - 1)])

    def _of_two(self, scores: np.ndarray, has: np.ndarray, base: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the class, 0 or 1, and the transformed scores of both classes."""
        first, second = scores[:, 0], scores[:, 1]
        knows = has[:, 1]
        if len(base) == 2:
            joint = base[1] + first
            first, second = np.where(knows, -joint, first + base[0]), np.where(knows, joint, second + base[1])
        elif len(base) == 1:
            first = first + base[0]
        decisive = np.where(knows, second, np.where(has[:, 0], first, 0))
        chosen = decisive > (0.5 if self.is_binary and self.is_positive else 0)
        shown = np.where(has, np.stack([first, second], axis=1), 0).astype(np.float32)
        pairs = transform(np, self.post_transform, shown)
        if len(base) < 2:
            pairs = np.where(knows[:, None], pairs, self._of_one(shown[:, 0], len(base)))
        return chosen.astype(np.int64), pairs

    def _of_one(self, score: np.ndarray, bases: int) -> np.ndarray:
        """Return two scores from one; the second is NaN if ONNX Runtime does not define it."""
        if self.post_transform == "PROBIT":
            return np.stack([probit(np, score), np.full_like(score, np.nan)], axis=1)
        if not self.is_binary and bases:
            return np.stack([score, np.full_like(score, np.nan)], axis=1)
        if self.post_transform == "LOGISTIC":
            return np.stack([logistic(np, -score), logistic(np, score)], axis=1)
        return np.stack([1 - score if self.is_binary and self.is_positive else -score, score], axis=1)

    def grad(self, node: Any, *gradients: Any) -> None:
        raise no_gradient(self)

    def expand(self, x: Value) -> tuple[Value, Value]:
        if not self.classlabels_strings:
            raise UnsupportedError(f"{self.name} has no form in other operators")
        labels: Sequence[str] = self.classlabels_strings
        numbered = {**self.attributes(), "classlabels_int64s": tuple(range(len(labels))), "classlabels_strings": ()}
        chosen, scores = F.tree_ensemble_classifier(x, **numbered)
        if len(labels) == 1:
            chosen = F.mul(chosen, constant(np.int64(0)))
        return F.gather(constant(np.array(labels, object)), chosen), scores


def _first_largest(scores: np.ndarray, has: np.ndarray) -> np.ndarray:
    """Return the class with the largest score, the first of equal ones, of those that have a score.

    As in ONNX Runtime, no score is greater than NaN.
    """
    rows = np.arange(len(scores))
    chosen = np.full(len(scores), -1)
    for k in range(scores.shape[1]):
        chosen[has[:, k].astype(bool) & ((chosen < 0) | (scores[:, k] > scores[rows, chosen]))] = k
    found: np.ndarray = np.maximum(chosen, 0)
    return found
