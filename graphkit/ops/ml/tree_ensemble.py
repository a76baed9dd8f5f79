"""TreeEnsemble: trees whose nodes and leaves are identified by their positions in lists."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from graphkit.errors import UsageError
from graphkit.ir.graph import Value
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import DType, TensorType
from graphkit.ops._base import Onnx, Sample, op
from graphkit.ops.ml.forest import AGGREGATES, EQUAL, LEAF, Forest, checked_forest, kept_with, require_targets
from graphkit.ops.ml.matrix import ML, RowWise, examples, require_at_least, rows_of, same_length
from graphkit.ops.ml.trees import no_gradient, regressed

# post_transform by number, as in ONNX Runtime. The standard's text exchanges SOFTMAX and LOGISTIC.
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")
# Mode of a node that tests whether an element is in a set.
_MEMBER = 6


@op
class TreeEnsemble(RowWise):
    """Return, for each example and target, the sum of the weights of the leaves that the example reaches.

    `aggregate_function` 0 to 3 gives the average, sum, minimum or maximum. The result has the type of x. `nodes_modes`
    are 0 to 5 for <=, <, >=, >, ==, !=, and 6 for membership in a set. The sets are in `membership_values`, in the
    order of the nodes with mode 6; NaN ends each set. For a single target, PROBIT is the only `post_transform` that
    applies.
    """

    tree_roots: tuple[int, ...]
    nodes_featureids: tuple[int, ...]
    nodes_modes: Tensor
    nodes_splits: Tensor
    nodes_truenodeids: tuple[int, ...]
    nodes_trueleafs: tuple[int, ...]
    nodes_falsenodeids: tuple[int, ...]
    nodes_falseleafs: tuple[int, ...]
    leaf_targetids: tuple[int, ...]
    leaf_weights: Tensor
    nodes_missing_value_tracks_true: tuple[int, ...] = ()
    nodes_hitrates: Tensor | None = None
    membership_values: Tensor | None = None
    n_targets: int | None = None
    aggregate_function: int = 1
    post_transform: int = 0
    types: ClassVar[Any] = {"x": frozenset({DType.FLOAT32, DType.FLOAT64, DType.FLOAT16})}
    onnx = Onnx("TreeEnsemble", 5, ML)
    on_host = True
    samples = lambda: (
        Sample((5, 3), tree_roots=[0, 2], nodes_featureids=[0, 2, 1], nodes_modes=np.array([0, 3, 6], np.uint8),
               nodes_splits=np.array([0.25, -0.5, 0.0], np.float32), nodes_truenodeids=[1, 0, 2],
               nodes_trueleafs=[0, 1, 1], nodes_falsenodeids=[1, 2, 3], nodes_falseleafs=[1, 1, 1],
               membership_values=np.array([1, 2, np.nan], np.float32), leaf_targetids=[0, 1, 0, 1],
               leaf_weights=np.array([1, 2, 3, 4], np.float32), n_targets=2, grad=False,
               dtypes={DType.FLOAT32}),
    )  # fmt: skip

    @property
    def forest(self) -> Forest:
        return kept_with(self, "forest", self._forest)

    @property
    def targets(self) -> int:
        return 1 if self.n_targets is None else self.n_targets

    def infer(self, x: TensorType) -> TensorType:
        if not 0 <= self.aggregate_function < len(AGGREGATES):
            raise UsageError(f"aggregate_function={self.aggregate_function} is not one of 0 to {len(AGGREGATES) - 1}")
        if not 0 <= self.post_transform < len(TRANSFORMS):
            raise UsageError(f"post_transform={self.post_transform} is not one of 0 to {len(TRANSFORMS) - 1}")
        require_targets(self.targets)
        require_at_least(x, self.forest.features, "the trees read")
        return TensorType(x.dtype, (examples(x), self.targets))

    def _forest(self) -> Forest:
        modes = self.nodes_modes.array.reshape(-1).astype(np.int64)
        splits, weights = self.nodes_splits.array.reshape(-1), self.leaf_weights.array.reshape(-1)
        if self.nodes_modes.dtype is not DType.UINT8 or not {self.nodes_splits.dtype, self.leaf_weights.dtype} <= {
            DType.FLOAT16,
            DType.FLOAT32,
            DType.FLOAT64,
        }:
            raise UsageError(
                f"nodes_modes is {self.nodes_modes.dtype}, nodes_splits {self.nodes_splits.dtype}, leaf_weights "
                f"{self.leaf_weights.dtype}; uint8 and floats are expected"
            )
        names = ("featureids", "truenodeids", "trueleafs", "falsenodeids", "falseleafs")
        ints = {f"nodes_{name}": np.array(self.__dict__[f"nodes_{name}"], np.int64) for name in names}
        same_length(nodes_modes=modes, nodes_splits=splits, **ints)
        same_length(leaf_targetids=self.leaf_targetids, leaf_weights=weights)
        count, leaves = len(modes), len(weights)
        missing = np.array(self.nodes_missing_value_tracks_true or [0] * count, np.int64) == 1
        same_length(nodes_missing_value_tracks_true=missing, nodes_modes=modes)
        if ((modes < 0) | (modes > _MEMBER)).any():
            raise UsageError(f"nodes_modes has {int(modes.max())}; 0 to {_MEMBER} are known")
        roots = np.array(self.tree_roots, np.int64)
        if not len(roots) or ((roots < 0) | (roots >= count)).any():
            raise UsageError(f"tree_roots {list(self.tree_roots[:5])} are not positions among {count} nodes")
        children = [
            _positions(name, ints[f"nodes_{name}nodeids"], ints[f"nodes_{name}leafs"], count, leaves)
            for name in ("true", "false")
        ]
        wide = np.result_type(np.float32, splits, weights)
        grown = self._without_sets(
            modes, splits.astype(wide), ints["nodes_featureids"], children[0], children[1], missing
        )
        mode, threshold, feature, yes, no, missed = grown
        padding = np.zeros(leaves, np.int64)
        return checked_forest(
            feature=np.concatenate([feature, padding]),
            threshold=np.concatenate([threshold, padding.astype(wide)]),
            mode=np.concatenate([mode, padding + LEAF]),
            yes=np.concatenate([yes, padding]),
            no=np.concatenate([no, padding]),
            missing=np.concatenate([missed, padding == 1]),
            roots=roots,
            leaf=np.arange(leaves) + len(mode),
            target=np.array(self.leaf_targetids, np.int64),
            weight=weights.astype(wide),
            targets=self.targets,
        )

    def _without_sets(
        self, mode: np.ndarray, split: np.ndarray, feature: np.ndarray, yes: np.ndarray, no: np.ndarray,
        missing: np.ndarray,
    ) -> tuple[np.ndarray, ...]:  # fmt: skip
        """Replace each test for membership in a set by a chain of tests for its members.

        Children that are leaves get positions after the new nodes.
        """
        asking = np.flatnonzero(mode == _MEMBER)
        values = np.zeros(0) if self.membership_values is None else self.membership_values.array.reshape(-1)
        ends = np.flatnonzero(np.isnan(values))
        if len(ends) != len(asking) or (len(ends) and ends[-1] != len(values) - 1) or (len(values) and not len(ends)):
            raise UsageError(f"membership_values has {len(ends)} sets, each ended by NaN, for {len(asking)} nodes")
        starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
        sizes = ends - starts
        if (sizes == 0).any():
            raise UsageError("membership_values has an empty set")
        count = len(mode)
        # The node itself tests the first member; new nodes, after all nodes of the file, test the others.
        owner = np.repeat(asking, sizes - 1)
        extra = len(owner)
        yes, no = (np.where(child >= count, child + extra, child) for child in (yes, no))
        is_first = np.zeros(len(values), bool)
        is_first[starts] = True
        is_later = ~is_first
        is_later[ends] = False
        split = split.copy()
        split[asking] = values[starts]
        mode = np.where(mode == _MEMBER, EQUAL, mode)
        new = np.arange(count, count + extra)
        last = np.ones(extra, bool)
        last[:-1] = owner[1:] != owner[:-1]
        following = np.where(last, no[owner], new + 1)
        longer = asking[sizes > 1]
        begins = count + np.cumsum(sizes - 1) - (sizes - 1)
        no = no.copy()
        no[longer] = begins[sizes > 1]
        return (
            np.concatenate([mode, np.full(extra, EQUAL)]),
            np.concatenate([split, values[is_later].astype(split.dtype)]),
            np.concatenate([feature, feature[owner]]),
            np.concatenate([yes, yes[owner]]),
            np.concatenate([no, following]),
            np.concatenate([missing, missing[owner]]),
        )

    def reference(self, xp: Any, x: Any) -> Any:
        aggregate = AGGREGATES[self.aggregate_function]
        scores, has = self.forest.scores(rows_of(np, x), aggregate)
        transform = TRANSFORMS[self.post_transform]
        none = np.zeros(0, scores.dtype)
        return regressed(scores, has, aggregate, len(self.forest.roots), none, transform)

    def grad(self, node: Any, dy: Value) -> None:
        raise no_gradient(self)


def _positions(name: str, ids: np.ndarray, leaf: np.ndarray, nodes: int, leaves: int) -> np.ndarray:
    """Return the positions of children in the list of nodes, then leaves. Raises UsageError for unknown ones."""
    limit = np.where(leaf != 0, leaves, nodes)
    bad = np.flatnonzero((ids < 0) | (ids >= limit))
    if bad.size:
        at = int(bad[0])
        kind = "leaf" if leaf[at] else "node"
        raise UsageError(f"nodes_{name}nodeids[{at}] is {kind} {ids[at]}, but there are only {limit[at]}")
    return np.where(leaf != 0, ids + nodes, ids)
