"""Leaves of the trees that control flow uses as state: conversion to values, checks of types, error messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UsageError
from graphkit.frontend import tree
from graphkit.ir import dims
from graphkit.ir.graph import Value
from graphkit.ir.types import DType, TensorType, Type
from graphkit.ops import F, as_value, registry


def leaf(item: Any, like: Any = None) -> Value:
    return as_value(item, like if isinstance(like, Value) else None)


def is_computed(item: Any) -> bool:
    """Whether a leaf is an array of `gk.nd` whose elements can be read now: no function is being traced."""
    immediate = registry.immediate
    return immediate is not None and type(item) is immediate.kind and not immediate.is_tracing


def refuse_arrays(name: str, instead: str, *trees: Any) -> None:
    """Raise UsageError if the leaves contain arrays of `gk.nd` and no value of a graph, so there is no graph to build.

    instead: the statement of Python that works with arrays.
    """
    leaves = [item for each in trees for item in tree.leaves(each)]
    arrays = [item for item in leaves if is_computed(item)]
    if arrays and not any(isinstance(item, Value) and not is_computed(item) for item in leaves):
        raise UsageError(
            f"{name} of {arrays[0].type}: control flow of graphs does not take arrays of gk.nd; use Python's "
            f"{instead}, or call it in a function with gk.nd.hybridize"
        )


def hint(what: str, path: str) -> str:
    """Return a name for an unnamed leaf: `state_h_0` for the path `['h'][0]` of a state."""
    return "_".join([what, *re.findall(r"\w+", path)])


def outputs(results: Any) -> list[Value]:
    return list(results) if isinstance(results, tuple) else [results]


def predicate(value: Value, name: str, what: str) -> Value:
    """Return `value`, a boolean with one element, as a scalar. Raises TypeMismatch for other values."""
    check_predicate(value, name, what)
    return value if value.rank == 0 else F.reshape(value, np.zeros(0, np.int64))


def check_predicate(value: Value, name: str, what: str) -> None:
    """Raise TypeMismatch if `value` cannot be a boolean with one element."""
    wanted = value.tensor
    if wanted.dtype is not DType.BOOL or (
        wanted.shape is not None and any(not dims.may_equal(d, 1) for d in wanted.shape)
    ):
        raise TypeMismatch(f"{name}: {what} must be a boolean scalar, not {value}")


def count(given: int | Value, name: str, what: str) -> Value:
    value = as_value(given)
    if value.dtype not in (DType.INT64, DType.INT32) or value.rank not in (0, None):
        raise TypeMismatch(f"{name}: {what} must be an integer scalar, not {value}")
    return value if value.dtype is DType.INT64 else F.cast(value, to=DType.INT64)


def changed_state(name: str, noun: str, path: str, before: Type, after: Type) -> TypeMismatch:
    """Return the error for a state that changes its type. noun: "state" (of a while_loop) or "carry" (of a scan)."""
    step = "element" if noun == "carry" else "iteration"
    return TypeMismatch(f"{name}: {noun}{path} is {before} before, but {after} after one {step}; it must keep its type")


def same_kind(a: Type, b: Type) -> bool:
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        return a.dtype is b.dtype
    return type(a) is type(b)


def same_tree(name: str, noun: str, what: str, shape: tree.Skeleton, result: Any, like: Sequence[Value]) -> list[Value]:
    """Return the leaves of `result`. Raises TypeMismatch unless nesting and dtypes are those of `shape` and `like`.

    noun: the word for the leaves in messages, "state" or "carry". what: begin of the message, such as "the function
    returned a carry that is".
    """
    found = tree.skeleton(result)
    if found != shape:
        raise TypeMismatch(f"{name}: {what} {tree.described(found)}, but the {noun} is {tree.described(shape)}")
    values = [leaf(item, before) for item, before in zip(tree.leaves(result), like, strict=True)]
    for path, before, after in zip(tree.paths(result), like, values, strict=True):
        if not same_kind(before.type, after.type):
            raise changed_state(name, noun, path, before.type, after.type)
    return values


def axes_of(name: str, option: str, given: Any, of: Any) -> list[int]:
    """Return one axis per leaf of the tree `of`. given: one axis for all, or a tree of axes with the same nesting."""
    if isinstance(given, (int, np.integer)) and not isinstance(given, bool):
        return [int(given)] * len(list(tree.leaves(of)))
    wanted, found_tree = tree.skeleton(of), tree.skeleton(given)
    if found_tree != wanted:
        raise UsageError(
            f"{name}: {option} must be an integer, or an integer for each value of {tree.described(wanted)}; it is "
            f"{tree.described(found_tree)}"
        )
    found = list(tree.leaves(given))
    for path, axis in zip(tree.paths(given), found, strict=True):
        if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)):
            raise UsageError(f"{name}: {option}{path} is {axis!r}, not an integer")
    return [int(axis) for axis in found]


def scanned_axes(name: str, paths: Sequence[str], sequences: Sequence[Value], given: Sequence[int]) -> list[int]:
    """Return the axis to scan in each sequence. If the rank is known, it is not negative, as ONNX requires."""
    axes = []
    for path, value, axis in zip(paths, sequences, given, strict=True):
        rank = value.tensor.rank
        if rank is not None and not -rank <= axis < rank:
            raise TypeMismatch(f"{name}: xs{path} is {value}, which has no axis {axis} to scan")
        axes.append(axis if rank is None else axis % rank)
    known = [
        (p, v.tensor.shape[a], v) for p, v, a in zip(paths, sequences, axes, strict=True) if v.tensor.shape is not None
    ]
    for path, size, value in known[1:]:
        if not dims.may_equal(size, known[0][1]):
            raise TypeMismatch(f"{name}: xs{known[0][0]} is {known[0][2]} and xs{path} is {value}: the lengths differ")
    return axes


def stacked_axes(name: str, paths: Sequence[str], values: Sequence[Value], given: Sequence[int]) -> list[int]:
    """Return `given`, the new axis for stacking each of `values`. Raises TypeMismatch if a value cannot have it."""
    for path, value, axis in zip(paths, values, given, strict=True):
        rank = value.tensor.rank
        if rank is not None and not -rank - 1 <= axis <= rank:
            raise TypeMismatch(f"{name}: y{path} is {value}, which cannot be stacked along a new axis {axis}")
    return list(given)


def without(given: TensorType, axis: int) -> TensorType:
    if given.shape is None:
        return TensorType(given.dtype)
    return TensorType(given.dtype, [d for i, d in enumerate(given.shape) if i != axis])
