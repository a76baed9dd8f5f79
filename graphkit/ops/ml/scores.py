"""Results of a model from its scores: the transformations of `post_transform`, and class labels.

If the standard does not say what happens (one score for two classes, one score alone), results are those of ONNX
Runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.ir.graph import Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops._base import F, constant

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")

# SOFTMAX_ZERO treats scores up to this absolute value as 0.
_ZERO = 1e-7
# The inverse of erf by S. Winitzki, "A handy approximation for the error function and its inverse" (2008), whose
# constant a is 0.147.
_A = 0.147
_FIRST = 2 / (3.14159 * _A)
_ROOT_2 = 1.41421356


def transform(xp: Any, kind: str, scores: Any) -> Any:
    """Transform scores, whose last axis has one score per class or target. kind: one of TRANSFORMS."""
    if kind == "LOGISTIC":
        return logistic(xp, scores)
    if kind == "PROBIT":
        return probit(xp, scores)
    if kind in ("SOFTMAX", "SOFTMAX_ZERO"):
        largest = xp.max(scores, axis=-1, keepdims=True)
        powers = xp.exp(scores - largest)
        if kind == "SOFTMAX":
            return powers / xp.sum(powers, axis=-1, keepdims=True)
        counts = xp.abs(scores) > scores.dtype.type(_ZERO)
        total = xp.sum(xp.where(counts, powers, scores.dtype.type(0)), axis=-1, keepdims=True)
        return xp.where(counts, powers, scores * xp.exp(-largest)) / total
    return scores


def logistic(xp: Any, x: Any) -> Any:
    """1 / (1 + exp(-x)), computed in float32."""
    x32 = x.astype(np.float32)
    y = 1 / (1 + xp.exp(-xp.abs(x32)))
    return xp.where(x32 < 0, 1 - y, y).astype(x.dtype)


def probit(xp: Any, x: Any) -> Any:
    """The quantile of the normal distribution, by an approximation, computed in float32."""
    y = 2 * x.astype(np.float32) - 1
    log = xp.log((1 - y) * (1 + y))
    v = np.float32(_FIRST) + np.float32(0.5) * log
    root = xp.sqrt(xp.sqrt(v * v - np.float32(1 / _A) * log) - v)
    return (np.float32(_ROOT_2) * xp.where(y < 0, -root, root)).astype(x.dtype)


def transformed(kind: str, scores: Value) -> Value:
    """Build `transform` in the graph, for a float32 matrix."""
    if kind == "LOGISTIC":
        return F.sigmoid(scores)
    if kind == "SOFTMAX":
        return F.softmax(scores, axis=-1)
    if kind == "PROBIT":
        return _probit(scores)
    if kind == "SOFTMAX_ZERO":
        largest = F.reduce_max(scores, [-1])
        powers = F.exp(scores - largest)
        counts = F.greater(F.abs(scores), constant(np.float32(_ZERO)))
        total = F.reduce_sum(F.where(counts, powers, constant(np.float32(0))), [-1])
        return F.where(counts, powers, scores * F.exp(-largest)) / total
    return scores


def _probit(x: Value) -> Value:
    y = x * 2.0 - 1.0
    log = F.log((1.0 - y) * (y + 1.0))
    v = log * 0.5 + _FIRST
    root = F.sqrt(F.sqrt(v * v - log * (1 / _A)) - v)
    return F.where(F.less(y, constant(np.float32(0))), -root, root) * _ROOT_2


def labels_of(strings: Sequence[str], integers: Sequence[int]) -> np.ndarray:
    """Return the labels of a classifier: an array of str objects, or of int64."""
    if strings and integers:
        raise UsageError(f"labels must be strings or integers; {len(strings)} and {len(integers)} of them are given")
    return np.array(strings, object) if strings else np.array(integers, np.int64)


def label_type(labels: np.ndarray, count: Any) -> TensorType:
    return TensorType(DType.STRING if labels.dtype == object else DType.INT64, (count,))


def positive_and_negative(labels: np.ndarray) -> np.ndarray:
    """Return the labels for a negative and a positive score: the two labels if there are two, else 0 and 1."""
    if len(labels) == 2:
        return labels
    return np.array(["0", "1"], object) if labels.dtype == object else np.array([0, 1], np.int64)
