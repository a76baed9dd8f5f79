"""Forest: the trees of an ensemble as arrays, checked once, and their evaluation for rows of features.

Checks and construction take time linear in the number of nodes, but for sorting identifiers. A forest that passes the
checks cannot loop or read outside of the arrays.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from graphkit.errors import TypeMismatch, UsageError

Made = TypeVar("Made")

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "LEAF")
LEAF = MODES.index("LEAF")
EQUAL = MODES.index("BRANCH_EQ")
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")

# For each mode, whether the yes branch is taken if the element is less than, equal to or greater than the threshold, or
# if one of them is NaN.
_TAKES = np.array(
    [
        [True, True, False, False],
        [True, False, False, False],
        [False, True, True, False],
        [False, False, True, False],
        [False, True, False, False],
        [True, False, True, True],
        [False, False, False, False],
    ]
)
# Most targets of an ensemble: each row has one result per target.
MAX_TARGETS = 1 << 24
# Most rows times trees that are evaluated at a time.
_AT_ONCE = 1 << 20
_LARGEST_INDEX = np.iinfo(np.int32).max


@dataclass(frozen=True, eq=False)
class Forest:
    """The trees of an ensemble as arrays of nodes.

    For each node: `feature`, `threshold`, `mode` (of MODES), `yes` and `no` (positions of the children; for a leaf, its
    own), `missing` (whether NaN goes to `yes`). `roots`: one node per tree.

    Node i has `count[i]` weights from `first[i]` on (leaves alone have any): `weight[j]` is for target `target[j]`.
    """

    feature: np.ndarray
    threshold: np.ndarray
    mode: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    missing: np.ndarray
    roots: np.ndarray
    first: np.ndarray
    count: np.ndarray
    target: np.ndarray
    weight: np.ndarray
    targets: int

    @property
    def features(self) -> int:
        """Least number of features of a row."""
        inner = self.feature[self.mode != LEAF]
        return int(inner.max()) + 1 if inner.size else 0

    def leaves(self, x: np.ndarray) -> np.ndarray:
        """Return the leaf that each row of x reaches in each tree: positions [rows, trees]."""
        at = np.repeat(self.roots[None, :], len(x), axis=0).reshape(-1)
        rows = np.repeat(np.arange(len(x)), len(self.roots))
        active = np.flatnonzero(self.mode[at] != LEAF)
        while active.size:
            node = at[active]
            value, limit = x[rows[active], self.feature[node]], self.threshold[node]
            order = np.where(value < limit, 0, np.where(value == limit, 1, np.where(value > limit, 2, 3)))
            taken = _TAKES[self.mode[node], order] | (self.missing[node] & np.isnan(value))
            at[active] = node = np.where(taken, self.yes[node], self.no[node])
            active = active[self.mode[node] != LEAF]
        return at.reshape(len(x), len(self.roots))

    def scores(self, x: np.ndarray, aggregate: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the aggregated weights of each row's leaves, and whether there are any; both [rows, targets].

        For AVERAGE, this is the sum; the caller divides. Trees are added in order, in the wider type of the weights and
        x.
        """
        if x.shape[1] < self.features:
            raise TypeMismatch(f"the trees read {self.features} features, but x has {x.shape[1]}")
        scores = np.zeros((len(x), self.targets), np.result_type(self.weight, x))
        has = np.zeros(scores.shape, bool)
        step = max(_AT_ONCE // max(len(self.roots), 1), 1)
        for begin in range(0, len(x), step):
            part = slice(begin, begin + step)
            self._aggregate(self.leaves(x[part]), aggregate, scores[part], has[part])
        return scores, has

    def _aggregate(self, leaves: np.ndarray, aggregate: str, scores: np.ndarray, has: np.ndarray) -> None:
        counts = self.count[leaves.reshape(-1)]
        rows = np.repeat(np.arange(len(leaves)), counts.reshape(leaves.shape).sum(axis=1))
        begins = np.cumsum(counts) - counts
        entries = np.arange(len(rows)) - np.repeat(begins - self.first[leaves.reshape(-1)], counts)
        places = (rows, self.target[entries])
        has[places] = True
        if aggregate in ("SUM", "AVERAGE"):
            np.add.at(scores, places, self.weight[entries])
            return
        choose, start = (np.minimum, np.inf) if aggregate == "MIN" else (np.maximum, -np.inf)
        best = np.full(scores.shape, start, scores.dtype)
        choose.at(best, places, self.weight[entries])
        scores[:] = np.where(has, best, 0)


def checked_forest(
    *,
    feature: np.ndarray,
    threshold: np.ndarray,
    mode: np.ndarray,
    yes: np.ndarray,
    no: np.ndarray,
    missing: np.ndarray,
    roots: np.ndarray,
    leaf: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray,
    targets: int,
) -> Forest:
    """Return a Forest of these nodes. All children exist. Weight j is for target `target[j]` at node `leaf[j]`.

    Raises UsageError for impossible features and targets, and for cycles. Weights of inner nodes are ignored. If there
    is only one target, the first weight of a leaf counts.
    """
    inner = mode != LEAF
    if (bad := inner & ((feature < 0) | (feature >= _LARGEST_INDEX))).any():
        raise UsageError(f"node {_first(bad)} reads feature {feature[_first(bad)]}, which does not exist")
    if len(mode) > _LARGEST_INDEX or len(weight) > _LARGEST_INDEX:
        raise UsageError(
            f"{len(mode)} nodes and {len(weight)} weights are too many: at most {_LARGEST_INDEX} of each are possible"
        )
    if (bad := (target < 0) | (target >= targets)).any():
        raise UsageError(
            f"weight {_first(bad)} is for target {target[_first(bad)]}, but targets are from 0 to {targets - 1}"
        )
    own = np.arange(len(mode))
    yes, no = np.where(inner, yes, own), np.where(inner, no, own)
    _require_no_cycle(inner, yes, no)
    if targets == 1:
        # With one target, a leaf without a weight has the weight `threshold`, which is 0 in most files.
        bare = ~inner
        bare[leaf] = False
        leaf = np.concatenate([leaf, np.flatnonzero(bare)])
        target = np.concatenate([target, np.zeros(bare.sum(), np.int64)])
        weight = np.concatenate([weight, threshold[bare]])
    kept = np.flatnonzero(~inner[leaf])
    order = kept[np.argsort(leaf[kept], kind="stable")]
    if targets == 1:
        order = order[np.unique(leaf[order], return_index=True)[1]]
    count = np.bincount(leaf[order], minlength=len(mode))
    return Forest(
        feature=np.where(inner, feature, 0).astype(np.int32),
        threshold=threshold,
        mode=mode.astype(np.int8),
        yes=yes.astype(np.int32),
        no=no.astype(np.int32),
        missing=missing & inner,
        roots=roots.astype(np.int32),
        first=(np.cumsum(count) - count).astype(np.int32),
        count=count.astype(np.int32),
        target=target[order].astype(np.int32),
        weight=weight[order],
        targets=targets,
    )


def _require_no_cycle(inner: np.ndarray, yes: np.ndarray, no: np.ndarray) -> None:
    """Raise UsageError if a node is its own descendant: then a strongly connected component has several nodes."""
    nodes = np.flatnonzero(inner)
    itself = (yes[nodes] == nodes) | (no[nodes] == nodes)
    if itself.any():
        raise UsageError(f"node {nodes[_first(itself)]} is its own child")
    if not nodes.size:
        return
    size = len(inner)
    edges = np.concatenate([nodes, nodes]), np.concatenate([yes[nodes], no[nodes]])
    if _all_descend_from_roots(*edges, size):
        return
    # Imported only now, because the import takes longer than all other checks.
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    graph = csr_matrix((np.ones(len(edges[0]), np.int8), edges), shape=(size, size))
    found, component = connected_components(graph, directed=True, connection="strong")
    if found < size:
        shared = np.bincount(component, minlength=found)[component] > 1
        raise UsageError(f"node {_first(shared)} is its own descendant: the trees have a cycle")


def _all_descend_from_roots(parents: np.ndarray, children: np.ndarray, size: int) -> bool:
    """Return whether no node has two parents, and every node is or descends from a root (without a parent)."""
    if np.bincount(children, minlength=size).max() > 1:
        return False
    ancestor = np.full(size + 1, size)  # index `size`: no ancestor
    ancestor[children] = parents
    for _ in range(size.bit_length()):
        if (ancestor == size).all():
            return True
        ancestor = ancestor[ancestor]  # the ancestor twice as far up
    return bool((ancestor == size).all())


def _first(mask: np.ndarray) -> int:
    return int(np.flatnonzero(mask)[0])


class NodeTable:
    """Table from tree and node identifier to position. Raises UsageError if two nodes have the same identifiers."""

    def __init__(self, tree: np.ndarray, node: np.ndarray):
        self._trees, tree_rank = np.unique(tree, return_inverse=True)
        self._nodes, node_rank = np.unique(node, return_inverse=True)
        keys = tree_rank * len(self._nodes) + node_rank
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        twice = np.flatnonzero(self._keys[1:] == self._keys[:-1])
        if twice.size:
            at = int(self._order[twice[0]])
            raise UsageError(f"node {node[at]} of tree {tree[at]} occurs twice")

    def positions(self, tree: np.ndarray, node: np.ndarray, what: str) -> np.ndarray:
        """Return the positions of nodes. Raises UsageError for a node that does not exist."""
        found = np.zeros(len(tree), bool)
        at = np.zeros(len(tree), np.int64)
        if len(self._keys):
            tree_rank = np.minimum(np.searchsorted(self._trees, tree), len(self._trees) - 1)
            node_rank = np.minimum(np.searchsorted(self._nodes, node), len(self._nodes) - 1)
            keys = tree_rank * len(self._nodes) + node_rank
            at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
            found = (self._trees[tree_rank] == tree) & (self._nodes[node_rank] == node) & (self._keys[at] == keys)
            at = self._order[at]
        if not found.all():
            bad = _first(~found)
            raise UsageError(f"{what} {bad} is node {node[bad]} of tree {tree[bad]}, which does not exist")
        return at


def require_targets(count: int) -> None:
    """Raise UsageError if the number of targets is out of range: results of even one row could fill memory."""
    if not 1 <= count <= MAX_TARGETS:
        raise UsageError(f"n_targets={count}; 1 to {MAX_TARGETS} are possible")


def modes_of(names: Sequence[str]) -> np.ndarray:
    """Return the codes of mode names. Raises UsageError for a name that is not one of MODES."""
    table = {name: i for i, name in enumerate(MODES)}
    codes = np.array([table.get(name, -1) for name in names], np.int64)
    if (codes < 0).any():
        raise UsageError(
            f"node {_first(codes < 0)} has mode {names[_first(codes < 0)]!r}, not one of {', '.join(MODES)}"
        )
    return codes


_kept: dict[tuple[int, str], tuple[Any, Any]] = {}


def kept_with(op: Any, what: str, build: Callable[[], Made]) -> Made:
    """Return `build()`, cached under `what` as long as the operator exists."""
    key = (id(op), what)
    entry = _kept.get(key)
    if entry is None or entry[0]() is not op:
        entry = _kept[key] = (weakref.ref(op, lambda _: _kept.pop(key, None)), build())
    made: Made = entry[1]
    return made
