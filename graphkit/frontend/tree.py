"""Trees: nested tuples, lists, dicts and TensorArrays of values, as control flow uses them.

A tree's `Skeleton` is the same nesting with every leaf replaced by LEAF; None is a tree without leaves. Dicts are
traversed in the order of their sorted keys, so that two dicts of the same keys have the same skeleton. A class of
values takes part by being a `Nest`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from graphkit.text import quantity


class _Leaf:
    __slots__ = ()

    def __repr__(self) -> str:
        return "*"


LEAF = _Leaf()
Skeleton: TypeAlias = Any


class Nest(ABC):
    """Base class of containers for states of control flow.

    A subclass defines `==`: after all items are replaced by LEAF, two containers of the same nesting must be equal.
    """

    @abstractmethod
    def items(self) -> Sequence[Any]:
        """Return the items of the container, in order."""

    @abstractmethod
    def around(self, items: Sequence[Any]) -> Nest:
        """Return a container of the same kind that contains `items`."""


def _keys(tree: dict[Any, Any]) -> list[Any]:
    return sorted(tree, key=lambda key: (type(key).__name__, str(key)))


def _rebuild(tree: Any, items: list[Any]) -> Any:
    """Return a container of the same kind as `tree` with these items (for a dict: in sorted order of its keys)."""
    if isinstance(tree, dict):
        table = dict(zip(_keys(tree), items, strict=True))
        return {key: table[key] for key in tree}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*items)
    if isinstance(tree, Nest):
        return tree.around(items)
    return tuple(items) if isinstance(tree, tuple) else items


def _children(tree: Any) -> list[Any] | None:
    """Return the items of a container (of a dict: in sorted order of its keys); None for a leaf."""
    if isinstance(tree, dict):
        return [tree[key] for key in _keys(tree)]
    if isinstance(tree, Nest):
        return list(tree.items())
    return list(tree) if isinstance(tree, (tuple, list)) else None


def skeleton(tree: Any) -> Skeleton:
    """Return the nesting of `tree`. Skeletons can be compared with == and printed in messages."""
    if tree is None:
        return None
    items = _children(tree)
    return LEAF if items is None else _rebuild(tree, [skeleton(item) for item in items])


def described(shape: Skeleton) -> str:
    """Describe a skeleton: `one value`, `a tuple of 2 values`, `the nesting ((*, *), *), where * is a value`."""
    if shape is LEAF:
        return "one value"
    if shape is None:
        return "None"
    items = _children(shape)
    if isinstance(shape, (tuple, list)) and items is not None and all(item is LEAF for item in items):
        return f"a {type(shape).__name__} of {quantity(len(items), 'value')}"
    return f"the nesting {shape}, where * is a value"


def leaves(tree: Any) -> Iterator[Any]:
    """Yield the leaves of `tree` in order."""
    if tree is not None:
        items = _children(tree)
        if items is None:
            yield tree
        else:
            for item in items:
                yield from leaves(item)


def paths(tree: Any, prefix: str = "") -> Iterator[str]:
    """Return the path of each leaf as a Python index: `[0]['h']`; "" if the tree is a leaf."""
    items = None if tree is None else _children(tree)
    if tree is None:
        return
    if items is None:
        yield prefix
        return
    keys = _keys(tree) if isinstance(tree, dict) else range(len(items))
    for key, item in zip(keys, items, strict=True):
        yield from paths(item, f"{prefix}[{key!r}]")


def unflatten(shape: Skeleton, values: Sequence[Any]) -> Any:
    """Return the tree with this skeleton and these leaves."""
    return _filled(shape, iter(values))


def _filled(part: Skeleton, values: Iterator[Any]) -> Any:
    """Return the tree with the skeleton `part` and the next leaves of `values`."""
    if part is None:
        return None
    if part is LEAF:
        return next(values)
    items = _children(part)
    assert items is not None
    return _rebuild(part, [_filled(item, values) for item in items])


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return the tree with `function` applied to each leaf."""
    return unflatten(skeleton(tree), [function(leaf) for leaf in leaves(tree)])
