"""The ambient scope of node construction: a name prefix and attributes that new nodes receive."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

from graphkit.errors import UnsupportedError
from graphkit.named_tuples import NamedTuple

# Largest number of nodes of one expansion. Attributes of an operator may control how many nodes it expands to.
MOST_EXPANDED = 100_000

# Metadata key of a node's placement group: all nodes of a group run on the same device or process.
GROUP = "ctx_group"

# Metadata key of nodes that compute gradients.
GRADIENT = "gradient"


_EMPTY: Mapping[str, str] = {}


class Scope(NamedTuple):
    """Settings for nodes that are made in a block.

    Attributes:
        prefix: Put before explicit names.
        attrs: Added to the metadata of nodes and parameters.
        maker: Code that makes the nodes ("pass fuse_gelu"). Errors of nodes without a name contain it.
        prefixed: Whether the code that entered the scope adds the maker to errors. Errors of `Node` then leave it out.
        made: Counts the nodes of an expansion; None if their number has no limit.
    """

    prefix: str = ""
    attrs: Mapping[str, str] = _EMPTY
    maker: str = ""
    prefixed: bool = False
    made: Iterator[int] | None = None

    def admit(self) -> None:
        """Count a node that is about to be made. Raises UnsupportedError if it is one too many for an expansion."""
        if self.made is not None and next(self.made) >= MOST_EXPANDED:
            raise UnsupportedError(f"it expands to more than {MOST_EXPANDED} nodes")

    def qualify(self, name: str) -> str:
        return self.prefix + name if name else ""

    def bare(self) -> Scope:
        """Return a scope that keeps only the maker."""
        if not self.maker:
            return _ROOT
        if not self.prefix and not self.attrs and self.made is None:
            return self
        return Scope(maker=self.maker, prefixed=self.prefixed)

    def merge(self, meta: Mapping[str, str] | None) -> Mapping[str, str]:
        if not self.attrs:
            return meta or _EMPTY
        return {**self.attrs, **(meta or _EMPTY)}


_ROOT = Scope()
_scope: ContextVar[Scope] = ContextVar("graphkit_scope", default=_ROOT)


def current() -> Scope:
    return _scope.get()


class entered:  # noqa: N801 - used like a function, as contextlib.suppress is
    """Context in which nodes are built in `scope`. Returns the scope."""

    __slots__ = ("_scope", "_token")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __enter__(self) -> Scope:
        self._token = _scope.set(self._scope)
        return self._scope

    def __exit__(self, *_: object) -> None:
        _scope.reset(self._token)


def detached() -> entered:
    """Context for nodes whose names already have their prefix, as in passes and loaders."""
    return entered(current().bare())


def made_by(maker: str, prefixed: bool = False) -> entered:
    """Context in the current scope, with another maker. prefixed: see `Scope`."""
    scope = current()
    return entered(Scope(scope.prefix, scope.attrs, maker, prefixed, scope.made))


def expanding(attrs: Mapping[str, str] | None = None, maker: str = "") -> entered:
    """Context for the expansion of one operator. More than MOST_EXPANDED nodes raise UnsupportedError.

    attrs: metadata of the nodes. The attributes and the prefix of the current scope do not apply. maker: see `Scope`.
    """
    return entered(Scope(attrs=attrs or _EMPTY, maker=maker, made=itertools.count()))
