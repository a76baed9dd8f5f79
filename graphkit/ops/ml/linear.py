"""LinearRegressor and LinearClassifier."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.ir.graph import Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops._base import F, Onnx, Sample, constant, op
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
from graphkit.ops.ml.scores import (
    TRANSFORMS,
    label_type,
    labels_of,
    logistic,
    positive_and_negative,
    probit,
    transform,
    transformed,
)


@op
class LinearRegressor(RowWise):
    """x @ coefficients^T + intercepts, one column for each target; float32.

    x: [N, features], or [features] for one example; coefficients: [targets, features], row by row. As in ONNX Runtime,
    intercepts are ignored unless there is one for each target. For a single target, PROBIT is the only
    `post_transform` that applies.
    """

    coefficients: tuple[float, ...] = ()
    intercepts: tuple[float, ...] = ()
    targets: int = 1
    post_transform: str = "NONE"
    onnx = Onnx("LinearRegressor", 1, ML)
    composite = True
    samples = lambda: (
        Sample((3, 2), coefficients=[1.0, -2.0], intercepts=[0.5]),
        Sample((4, 3), coefficients=[1, 2, 3, -1, 0.5, 0], targets=2, post_transform="SOFTMAX"),
        Sample((2,), coefficients=[1, 0.5, -1, 2], intercepts=[0.5, 1], targets=2, post_transform="LOGISTIC"),
    )

    def infer(self, x: TensorType) -> TensorType:
        one_of("post_transform", self.post_transform, TRANSFORMS)
        if self.targets < 1 or not self.coefficients or len(self.coefficients) % self.targets:
            raise UsageError(
                f"the number of coefficients, {len(self.coefficients)}, must be a multiple of "
                f"targets={self.targets}, at least 1"
            )
        require_features(x, len(self.coefficients) // self.targets, "coefficients are for")
        return TensorType(DType.FLOAT32, (examples(x), self.targets))

    def _parts(self) -> tuple[np.ndarray, np.ndarray | None, str]:
        weights = np.array(self.coefficients, np.float32).reshape(self.targets, -1).T
        bias = np.array(self.intercepts, np.float32) if len(self.intercepts) == self.targets else None
        return weights, bias, "NONE" if self.targets == 1 and self.post_transform != "PROBIT" else self.post_transform

    def reference(self, xp: Any, x: Any) -> Any:
        weights, bias, kind = self._parts()
        require_columns(x, len(weights), "coefficients are for")
        scores = rows_of(xp, x, np.float32) @ xp.asarray(weights)
        return transform(xp, kind, scores if bias is None else scores + xp.asarray(bias))

    def expand(self, x: Value) -> Value:
        weights, bias, kind = self._parts()
        scores = F.mat_mul(as_rows(x), constant(weights))
        return transformed(kind, scores if bias is None else scores + constant(bias))


@op
class LinearClassifier(RowWise):
    """The class with the largest score, and the transformed scores x @ coefficients^T + intercepts; float32.

    x: [N, features], or [features] for one example; coefficients: [scores, features], row by row. `post_transform`
    changes the scores. Outputs: the label of the class, [N]; the scores, [N, scores].

    If there is only one score, a score up to 0 means the first class, a score above 0 the second one. With two labels,
    the second output has two columns, which are computed from this score. `multi_class` has no effect.
    """

    coefficients: tuple[float, ...]
    intercepts: tuple[float, ...] = ()
    classlabels_ints: tuple[int, ...] = ()
    classlabels_strings: tuple[str, ...] = ()
    multi_class: int = 0
    post_transform: str = "NONE"
    outputs = ("y", "z")
    onnx = Onnx("LinearClassifier", 1, ML)
    composite = True
    samples = lambda: (
        Sample((5, 2), coefficients=[1, -2, 0.5, 1, -1, 1], intercepts=[0.5, 0, 1], classlabels_ints=[3, 4, 9],
               post_transform="SOFTMAX", multi_class=1),
        Sample((4, 3), coefficients=[1, -2, 0.5], intercepts=[0.25], classlabels_ints=[0, 1],
               post_transform="LOGISTIC"),
        Sample((3,), coefficients=[1, -2, 0.5, 1, 1, 1], intercepts=[0.25, 0], classlabels_strings=["no", "yes"],
               grad=False),  # strings
    )  # fmt: skip

    @property
    def labels(self) -> np.ndarray:
        return labels_of(self.classlabels_strings, self.classlabels_ints)

    @property
    def score_count(self) -> int:
        """Number of scores of an example: the number of intercepts, or of labels if there are no intercepts."""
        return len(self.intercepts) or len(self.labels)

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        one_of("post_transform", self.post_transform, TRANSFORMS)
        count, labels = self.score_count, self.labels
        if not count or not self.coefficients or len(self.coefficients) % count:
            raise UsageError(
                f"the number of coefficients, {len(self.coefficients)}, must be a multiple of the {count} scores, at "
                "least 1"
            )
        if len(labels) != count and not (count == 1 and len(labels) in (0, 2)):
            raise UsageError(f"{count} scores need {count} labels, not {len(labels)}")
        require_features(x, len(self.coefficients) // count, "coefficients are for")
        rows = examples(x)
        columns = 2 if count == 1 and len(labels) == 2 else count
        return label_type(labels, rows), TensorType(DType.FLOAT32, (rows, columns))

    def _parts(self) -> tuple[np.ndarray, np.ndarray]:
        count = self.score_count
        intercepts = self.intercepts or (0.0,) * count
        return np.array(self.coefficients, np.float32).reshape(count, -1).T, np.array(intercepts, np.float32)

    def reference(self, xp: Any, x: Any) -> Any:
        weights, bias = self._parts()
        require_columns(x, len(weights), "coefficients are for")
        scores = rows_of(xp, x, np.float32) @ xp.asarray(weights) + xp.asarray(bias)
        if scores.shape[1] == 1:
            y = xp.asarray(positive_and_negative(self.labels))[(scores[:, 0] > 0).astype(np.int64)]
            return y, self._of_one(xp, scores)
        return xp.asarray(self.labels)[xp.argmax(scores, axis=1)], transform(xp, self.post_transform, scores)

    def _of_one(self, xp: Any, score: Any) -> Any:
        kind = self.post_transform
        if len(self.labels) != 2:
            return probit(xp, score) if kind == "PROBIT" else score
        if kind == "PROBIT":  # the second score is not defined: NaN
            return xp.concatenate([probit(xp, score), xp.full_like(score, np.nan)], axis=1)
        if kind == "LOGISTIC":
            return xp.concatenate([logistic(xp, -score), logistic(xp, score)], axis=1)
        return xp.concatenate([1 - score, score], axis=1)

    def expand(self, x: Value) -> tuple[Value, Value]:
        weights, bias = self._parts()
        scores = F.mat_mul(as_rows(x), constant(weights)) + constant(bias)
        if len(bias) > 1:
            chosen = F.arg_max(scores, axis=1, keepdims=False)
            return F.gather(constant(self.labels), chosen), transformed(self.post_transform, scores)
        chosen = F.cast(F.greater(F.squeeze(scores, [1]), constant(np.float32(0))), to=DType.INT64)
        y = F.gather(constant(positive_and_negative(self.labels)), chosen)
        kind = self.post_transform
        if len(self.labels) != 2:
            return y, transformed(kind, scores) if kind == "PROBIT" else scores
        if kind == "PROBIT":
            pair = transformed(kind, scores), F.mul(scores, constant(np.float32(np.nan)))
        elif kind == "LOGISTIC":
            pair = F.sigmoid(-scores), F.sigmoid(scores)
        else:
            pair = 1.0 - scores, scores
        return y, F.concat(*pair, axis=1)
