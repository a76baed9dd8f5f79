"""SVMRegressor and SVMClassifier: support vector machines as libsvm and liblinear train them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError, UsageError
from graphkit.ir import dims
from graphkit.ir.graph import Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops._base import DOMAIN, F, Onnx, Op, Rand, Sample, constant, op
from graphkit.ops.ml.matrix import (
    ML,
    RowWise,
    as_rows,
    examples,
    one_of,
    require_columns,
    require_features,
    rows_of,
)
from graphkit.ops.ml.scores import TRANSFORMS, label_type, labels_of, logistic, probit, transform

KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
# Most elements of differences of rows that numpy holds at a time.
_AT_ONCE = 1 << 22
# Most elements of the matrix that computes the decisions for all pairs of classes in one product.
_LARGEST_MATRIX = 1 << 24


@op
class SquaredDistances(Op):
    """The squared Euclidean distance of each row of x from each row of y, as a sum of squared differences.

    x: [n, d], y: [m, d] -> [n, m]. A computation by a matrix product would be less accurate, because it subtracts large
    numbers.
    """

    domain = DOMAIN
    inputs, outputs = ("x", "y"), ("d",)
    types: ClassVar[Any] = {"x": frozenset({DType.FLOAT32, DType.FLOAT64}), "y": "x"}
    per_example = ("x",)
    samples = lambda: (Sample((3, 4), (5, 4)), Sample((1, 1), (2, 1)), Sample((4, 19), (37, 19)))

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        if x.shape is None or y.shape is None:
            return TensorType(x.dtype, None if x.shape is None and y.shape is None else (examples(x), examples(y)))
        if len(x.shape) != 2 or len(y.shape) != 2:
            raise UsageError(f"rows of matrices are expected, not {x} and {y}")
        if not dims.may_equal(x.shape[1], y.shape[1]):
            raise TypeMismatch(f"rows of {x} and {y} have different lengths")
        return TensorType(x.dtype, (x.shape[0], y.shape[0]))

    def reference(self, xp: Any, x: Any, y: Any) -> Any:
        d = xp.empty((len(x), len(y)), x.dtype)
        step = max(_AT_ONCE // max(y.size, 1), 1)
        for begin in range(0, len(x), step):
            difference = x[begin : begin + step, None] - y[None]
            d[begin : begin + step] = xp.sum(difference * difference, axis=2)
        return d

    def expand(self, x: Value, y: Value) -> Value:
        difference = F.unsqueeze(x, [1]) - F.unsqueeze(y, [0])
        return F.reduce_sum(difference * difference, [2], keepdims=False)


class KernelMachine(RowWise):
    """Base of SVMRegressor and SVMClassifier: support vectors, and a kernel with gamma, coef0 and degree."""

    kernel_type: str = "LINEAR"
    kernel_params: tuple[float, ...] = ()
    support_vectors: tuple[float, ...] = ()
    coefficients: tuple[float, ...] = ()
    rho: tuple[float, ...] = ()
    post_transform: str = "NONE"

    def _check(self) -> None:
        one_of("post_transform", self.post_transform, TRANSFORMS)
        one_of("kernel_type", self.kernel_type, KERNELS)
        if len(self.kernel_params) not in (0, 3):
            raise UsageError(f"kernel_params has {len(self.kernel_params)} entries: gamma, coef0 and degree are needed")

    @property
    def _parameters(self) -> np.ndarray:
        return np.array(self.kernel_params or (0, 0, 0), np.float32)

    def _similarities(self, xp: Any, x: Any, vectors: Any) -> Any:
        """Return the kernel of each row with each vector."""
        gamma, coef0, degree = self._parameters
        if self.kernel_type == "LINEAR":
            return x @ vectors.T
        if self.kernel_type == "RBF":
            return xp.exp(-gamma * SquaredDistances().reference(xp, x, vectors))
        affine = gamma * (x @ vectors.T) + coef0
        return xp.tanh(affine) if self.kernel_type == "SIGMOID" else xp.power(affine, degree)

    def _similarity(self, x: Value, vectors: np.ndarray) -> Value:
        """Build `_similarities` in the graph."""
        gamma, coef0, degree = map(float, self._parameters)
        if self.kernel_type == "RBF":
            return F.exp(F.squared_distances(x, constant(vectors)) * -gamma)
        product = F.mat_mul(x, constant(np.ascontiguousarray(vectors.T)))
        if self.kernel_type == "LINEAR":
            return product
        affine = product * gamma + coef0
        if self.kernel_type == "SIGMOID":
            return F.tanh(affine)
        if degree in (2.0, 3.0):
            return affine * affine if degree == 2.0 else affine * affine * affine
        return F.pow(affine, constant(np.float32(degree)))


@op
class SVMRegressor(KernelMachine):
    """Support vector regression: sum of kernel(x, support vector) * coefficient, plus rho; float32.

    Without support vectors, this value is x @ coefficients + rho. With `one_class`, the result is 1 if the value is
    above 0, else -1.
    """

    n_supports: int = 0
    one_class: int = 0
    onnx = Onnx("SVMRegressor", 1, ML)
    composite = True
    samples = lambda: (
        Sample((3, 2), kernel_type="RBF", kernel_params=[0.5, 0, 3], n_supports=3, support_vectors=[0, 1, 1, 0, -1, 1],
               coefficients=[1, -2, 0.5], rho=[0.25]),
        Sample((3, 2), kernel_type="POLY", kernel_params=[0.5, 1, 3], n_supports=2, support_vectors=[0, 1, 1, 0],
               coefficients=[1, -2], rho=[0.25]),
        Sample((3, 2), kernel_type="SIGMOID", kernel_params=[0.5, 0.125, 3], n_supports=2, support_vectors=[0, 1, 1, 0],
               coefficients=[1, -2], rho=[0.25]),
        Sample((4,), coefficients=[1, -2, 0.5, 1], rho=[0.125]),
        Sample((5, 2), n_supports=2, support_vectors=[0, 1, 1, 0], coefficients=[1, -2], rho=[0.25], one_class=1,
               grad=False),  # steps
    )  # fmt: skip

    def infer(self, x: TensorType) -> TensorType:
        self._check()
        count = self.n_supports
        if count < 0 or not self.coefficients or not self.rho:
            raise UsageError(
                f"n_supports must be at least 0, and coefficients and rho not empty; they are {count}, "
                f"{list(self.coefficients[:5])} and {list(self.rho[:5])}"
            )
        if count and (len(self.support_vectors) % count or not self.support_vectors or len(self.coefficients) != count):
            raise UsageError(
                f"n_supports={count} needs {count} coefficients and a multiple of {count} numbers in support_vectors; "
                f"there are {len(self.coefficients)} and {len(self.support_vectors)}"
            )
        require_features(x, self._vectors().shape[1], "support vectors have")
        return TensorType(DType.FLOAT32, (examples(x), 1))

    def _vectors(self) -> np.ndarray:
        """Return the support vectors, or the coefficients of a linear machine as one vector."""
        vectors = self.support_vectors if self.n_supports else self.coefficients
        return np.array(vectors, np.float32).reshape(max(self.n_supports, 1), -1)

    def reference(self, xp: Any, x: Any) -> Any:
        vectors, rho = xp.asarray(self._vectors()), np.float32(self.rho[0])
        require_columns(x, vectors.shape[1], "support vectors have")
        rows = rows_of(xp, x, np.float32)
        if self.n_supports:
            coefficients = xp.asarray(np.array(self.coefficients, np.float32)[:, None])
            y = self._similarities(xp, rows, vectors) @ coefficients + rho
        else:
            y = rows @ vectors.T + rho
        return xp.where(y > 0, np.float32(1), np.float32(-1)) if self.one_class else y

    def expand(self, x: Value) -> Value:
        vectors, rho = self._vectors(), constant(np.float32(self.rho[0]))
        rows = as_rows(x)
        if self.n_supports:
            y = F.mat_mul(self._similarity(rows, vectors), constant(np.array(self.coefficients, np.float32)[:, None]))
        else:
            y = F.mat_mul(rows, constant(np.ascontiguousarray(vectors.T)))
        y = y + rho
        if not self.one_class:
            return y
        zero, one = constant(np.float32(0)), constant(np.float32(1))
        return F.where(F.greater(y, zero), one, constant(np.float32(-1)))


@op
class SVMClassifier(KernelMachine):
    """Support vector classification: the class that wins most pairwise decisions, and the scores; float32.

    With `prob_a` and `prob_b` the scores are probabilities of the classes. Otherwise they are the values of the
    decisions, one for each pair of classes. For two classes with the single decision d, they are (-d, d). Without
    support vectors, each class has a linear score. `post_transform` then changes the scores.
    """

    prob_a: tuple[float, ...] = ()
    prob_b: tuple[float, ...] = ()
    vectors_per_class: tuple[int, ...] = ()
    classlabels_ints: tuple[int, ...] = ()
    classlabels_strings: tuple[str, ...] = ()
    outputs = ("y", "z")
    onnx = Onnx("SVMClassifier", 1, ML)
    on_host = True
    composite = True
    samples = lambda: (
        Sample((5, 2), kernel_type="RBF", kernel_params=[0.5, 0, 3], vectors_per_class=[2, 1, 1],
               support_vectors=[0, 1, 1, 0, -1, 1, 2, 2], coefficients=[1, 0.5, -2, 1, 0.25, -1, 1, 0.5],
               rho=[0.125, -0.25, 0.375], classlabels_ints=[4, 5, 6], grad=False),  # labels
        Sample((5, 2), kernel_type="RBF", kernel_params=[0.5, 0, 3], vectors_per_class=[2, 1, 1],
               support_vectors=[0, 1, 1, 0, -1, 1, 2, 2], coefficients=[1, 0.5, -2, 1, 0.25, -1, 1, 0.5],
               rho=[0.125, -0.25, 0.375], classlabels_ints=[4, 5, 6], prob_a=[-1, -2, -1.5], prob_b=[0, 0.125, -0.125],
               grad=False),
        Sample((4, 2), vectors_per_class=[1, 1], support_vectors=[0, 1, 1, 0], coefficients=[1, -2], rho=[0.125],
               classlabels_strings=["a", "b"], grad=False),
        Sample((2,), coefficients=[1, -2, 0.5, 1], rho=[0.125], classlabels_ints=[0, 1], grad=False),
    )  # fmt: skip

    @property
    def labels(self) -> np.ndarray:
        return labels_of(self.classlabels_strings, self.classlabels_ints)

    @property
    def _vector_count(self) -> int:
        return sum(self.vectors_per_class)

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        self._check()
        classes, vectors = len(self.labels), self._vector_count
        if not classes or not self.coefficients or not self.rho or any(n < 0 for n in self.vectors_per_class):
            raise UsageError(
                "labels, coefficients and rho must not be empty, and vectors_per_class not negative; there are "
                f"{classes} labels, {len(self.coefficients)} coefficients, {len(self.rho)} rho"
            )
        if vectors:
            self._check_vectors(classes, vectors)
        elif len(self.coefficients) % classes:
            raise UsageError(
                f"the number of coefficients, {len(self.coefficients)}, must be a multiple of the {classes} classes"
            )
        require_features(x, self._vectors().shape[1], "support vectors have")
        rows = examples(x)
        columns = classes
        if vectors and not self.prob_a and classes > 2:
            columns = classes * (classes - 1) // 2
        return label_type(self.labels, rows), TensorType(DType.FLOAT32, (rows, columns))

    def _check_vectors(self, classes: int, vectors: int) -> None:
        pairs = classes * (classes - 1) // 2
        if classes < 2 or len(self.vectors_per_class) != classes:
            raise UsageError(
                f"vectors_per_class needs one entry per label, and at least 2; it has {len(self.vectors_per_class)} "
                f"for {classes} labels"
            )
        if not self.support_vectors or len(self.support_vectors) % vectors:
            raise UsageError(
                f"support_vectors has {len(self.support_vectors)} numbers, not a multiple of the {vectors} vectors "
                "of vectors_per_class"
            )
        if len(self.coefficients) < (classes - 1) * vectors or len(self.rho) < pairs:
            raise UsageError(
                f"{classes} classes and {vectors} support vectors need {(classes - 1) * vectors} coefficients and "
                f"{pairs} rho; there are {len(self.coefficients)} and {len(self.rho)}"
            )
        if len(self.prob_a) != len(self.prob_b) or len(self.prob_a) not in (0, *range(pairs, len(self.prob_a) + 1)):
            raise UsageError(
                f"prob_a and prob_b need {pairs} entries, one per pair of classes; they have {len(self.prob_a)} and "
                f"{len(self.prob_b)}"
            )

    def _vectors(self) -> np.ndarray:
        """Return the support vectors, or the coefficients of a linear machine, one vector per class."""
        count = self._vector_count
        numbers = self.support_vectors if count else self.coefficients
        return np.array(numbers, np.float32).reshape(count or len(self.labels), -1)

    def _pairs(self) -> tuple[np.ndarray, np.ndarray]:
        first, second = np.triu_indices(len(self.labels), 1)
        return first, second

    def _shares(self) -> Iterator[tuple[int, slice, np.ndarray]]:
        """Yield, for both classes of each pair, the pair's number, and the class's support vectors and coefficients."""
        coefficients = np.array(self.coefficients, np.float32)
        table = coefficients[: (len(self.labels) - 1) * self._vector_count].reshape(-1, self._vector_count)
        ends = np.cumsum(self.vectors_per_class)
        parts = [slice(end - size, end) for end, size in zip(ends, self.vectors_per_class, strict=True)]
        for pair, (i, j) in enumerate(zip(*self._pairs(), strict=True)):
            yield pair, parts[i], table[j - 1, parts[i]]
            yield pair, parts[j], table[i, parts[j]]

    def _decisions(self, similarities: np.ndarray) -> np.ndarray:
        """Return the decision for each pair of classes, from the support vectors of both.

        After rho is added, a positive decision is for the first class.
        """
        decisions = np.zeros((len(similarities), len(self._pairs()[0])), np.float32)
        for pair, vectors, coefficients in self._shares():
            decisions[:, pair] += similarities[:, vectors] @ coefficients
        return decisions

    def _decision_matrix(self) -> np.ndarray:
        """Return the matrix [support vectors, pairs] that similarities are multiplied by to get `_decisions`."""
        matrix = np.zeros((self._vector_count, len(self._pairs()[0])), np.float32)
        for pair, vectors, coefficients in self._shares():
            matrix[vectors, pair] = coefficients
        return matrix

    def reference(self, xp: Any, x: Any) -> Any:
        vectors = self._vectors()
        require_columns(x, vectors.shape[1], "support vectors have")
        rows = rows_of(np, x, np.float32)
        if not self._vector_count:
            return self._linear(rows @ vectors.T + np.float32(self.rho[0]))
        rho = np.array(self.rho[: len(self._pairs()[0])], np.float32)
        decisions = self._decisions(self._similarities(np, rows, vectors)) + rho
        first, second = self._pairs()
        votes = np.zeros((len(rows), len(self.labels)), np.int64)
        winners = np.where(decisions > 0, first, second)
        np.add.at(votes, (np.arange(len(rows))[:, None], winners), 1)
        y = self.labels[np.argmax(votes, axis=1)]
        if self.prob_a:
            a, b = (np.array(p[: len(first)], np.float32) for p in (self.prob_a, self.prob_b))
            return y, transform(np, self.post_transform, coupled(decisions, a, b, len(self.labels)))
        return y, self._of_two(decisions) if len(self.labels) == 2 else transform(np, self.post_transform, decisions)

    def _linear(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        best = np.argmax(scores, axis=1)
        if scores.shape[1] == 2:
            largest = scores.max(axis=1)
            limit = largest >= 0.5 if min(self.coefficients) >= 0 else largest > 0
            best = np.where(limit, 1, best)
        if scores.shape[1] == 1:
            return self.labels[best], probit(np, scores) if self.post_transform == "PROBIT" else scores
        return self.labels[best], transform(np, self.post_transform, scores)

    def _of_two(self, decision: np.ndarray) -> np.ndarray:
        if self.post_transform == "PROBIT":  # a second score is not defined
            return np.concatenate([probit(np, decision), np.full_like(decision, np.nan)], axis=1)
        if self.post_transform == "LOGISTIC":
            return np.concatenate([logistic(np, -decision), logistic(np, decision)], axis=1)
        other = -decision if self.post_transform == "NONE" else 1 - decision
        return np.concatenate([other, decision], axis=1)

    def expand(self, x: Value) -> tuple[Value, Value]:
        classes, count = len(self.labels), self._vector_count
        first, second = self._pairs()
        if not count:
            raise UnsupportedError(f"{self.name} without support vectors (a linear model) has no gradient")
        if self.post_transform != "NONE":
            raise UnsupportedError(
                f"{self.name} with post_transform={self.post_transform!r} has no gradient; use post_transform='NONE'"
            )
        if count * len(first) > _LARGEST_MATRIX:
            raise UnsupportedError(
                f"{self.name} has no gradient for {count} support vectors and {len(first)} pairs of classes: their "
                f"product must be at most {_LARGEST_MATRIX}"
            )
        if not (np.isfinite(self.support_vectors).all() and np.isfinite(self.coefficients).all()):
            raise UnsupportedError(
                f"{self.name} has no gradient if support_vectors or coefficients contain NaN or infinity"
            )
        similarity = self._similarity(as_rows(x), self._vectors())
        rho = np.array(self.rho[: len(first)], np.float32)
        decisions = F.mat_mul(similarity, constant(self._decision_matrix())) + constant(rho)
        # Each decision is a vote for the first or the second class of its pair.
        wins = F.cast(F.greater(decisions, constant(np.float32(0))), to=DType.FLOAT32)
        ballots = np.zeros((len(first), classes), np.float32)
        ballots[np.arange(len(first)), first] = 1
        ballots[np.arange(len(first)), second] = -1
        losses = np.bincount(second, minlength=classes).astype(np.float32)
        votes = F.mat_mul(wins, constant(ballots)) + constant(losses)
        y = F.gather(constant(self.labels), F.arg_max(votes, axis=1, keepdims=False))
        if self.prob_a:
            a, b = (np.array(p[: len(first)], np.float32) for p in (self.prob_a, self.prob_b))
            return y, F.coupled_probabilities(decisions, a, b)
        return y, F.concat(-decisions, decisions, axis=1) if classes == 2 else decisions


@op
class CoupledProbabilities(Op):
    """The probability of each class, from the decisions of a support vector machine for all pairs of classes.

    decisions: [rows, pairs]; a, b: [pairs], Platt's two parameters for each pair; the result is [rows, classes].

    J. Platt, "Probabilistic Outputs for Support Vector Machines" (1999); T.-F. Wu, C.-J. Lin, R. C. Weng, "Probability
    Estimates for Multi-class Classification by Pairwise Coupling" (2004), algorithm 2.
    """

    domain = DOMAIN
    inputs, outputs = ("decisions", "a", "b"), ("p",)
    types: ClassVar[Any] = {"decisions": frozenset({DType.FLOAT32}), "a": "decisions", "b": "decisions"}
    on_host = True
    per_example = ("decisions",)
    samples = lambda: (
        Sample((4, 3), Rand((3,), -2, -1), (3,), grad=False, dtypes={DType.FLOAT32}),
        Sample((2, 1), Rand((1,), -2, -1), (1,), grad=False, dtypes={DType.FLOAT32}),
    )

    def infer(self, decisions: TensorType, a: TensorType, b: TensorType) -> TensorType:
        if a.shape is None or not isinstance(a.shape[0], int):
            return TensorType(DType.FLOAT32, (examples(decisions), dims.fresh()))
        return TensorType(DType.FLOAT32, (examples(decisions), classes_of(a.shape[0])))

    def reference(self, xp: Any, decisions: Any, a: Any, b: Any) -> Any:
        return coupled(decisions, a, b, classes_of(len(a)))

    def grad(self, node: Any, *dy: Any) -> None:
        raise UnsupportedError(f"{self.name} is the result of an iteration: it has no gradient")


def classes_of(pairs: int) -> int:
    """Return the number of classes that form this many pairs. Raises UsageError if there is none."""
    classes = (1 + math.isqrt(1 + 8 * pairs)) // 2
    if classes * (classes - 1) // 2 != pairs:
        raise UsageError(f"{pairs} is not a number of pairs of classes")
    return classes


def coupled(decisions: np.ndarray, a: np.ndarray, b: np.ndarray, classes: int) -> np.ndarray:
    """Return the probabilities of the classes for each row. The iteration of a row ends at the tolerance of libsvm."""
    low = np.float32(1e-7)
    pair = np.clip(1 - logistic(np, decisions * a + b), low, 1 - low)
    first, second = np.triu_indices(classes, 1)
    # r[i, j]: the probability of class i, if the class is i or j.
    r = np.zeros((len(decisions), classes, classes), np.float32)
    r[:, first, second] = pair
    r[:, second, first] = 1 - pair
    q = -np.swapaxes(r, 1, 2) * r
    q[:, np.arange(classes), np.arange(classes)] = (r * r).sum(axis=1)
    p = np.full((len(decisions), classes), np.float32(1 / classes), np.float32)
    active = np.arange(len(decisions))
    for _ in range(100):
        qp = np.einsum("nij,nj->ni", q[active], p[active])
        pqp = (p[active] * qp).sum(axis=1)
        moving = np.abs(qp - pqp[:, None]).max(axis=1) >= np.float32(0.005 / classes)
        active, qp, pqp = active[moving], qp[moving], pqp[moving]
        if not active.size:
            break
        p[active] = _swept(q[active], p[active], qp, pqp)
    return p


def _swept(q: np.ndarray, p: np.ndarray, qp: np.ndarray, pqp: np.ndarray) -> np.ndarray:
    """Update the probability of each class in turn to the optimum for the present probabilities of the others."""
    for i in range(p.shape[1]):
        change = (pqp - qp[:, i]) / q[:, i, i]
        p[:, i] += change
        grown = 1 + change
        pqp = (pqp + change * (change * q[:, i, i] + 2 * qp[:, i])) / grown / grown
        qp = (qp + change[:, None] * q[:, i]) / grown[:, None]
        p = p / grown[:, None]
    return p
