"""The ambient scope of node construction: a name prefix and attributes that new nodes receive."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import NamedTuple

from graphkit.errors import UnsupportedError

# Attributes may tell how often an expansion repeats itself.
MOST_EXPANDED = 100_000

# The attribute that says which nodes one process computes, where several do.
GROUP = "ctx_group"

# The attribute of nodes that are made when a loss is differentiated.
GRADIENT = "gradient"


_EMPTY: Mapping[str, str] = {}


class Scope(NamedTuple):
    """Settings for nodes that are made in a block.

    Attributes:
        prefix: Put before explicit names.
        attrs: Added to the metadata of nodes and parameters.
        maker: Code that makes the nodes ("pass fuse_gelu"). Errors name it for nodes without a name.
        prefixed: The code that entered the scope puts the maker before errors of construction, which leave it out.
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
        """The scope with its maker alone."""
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
    """Build nodes in `scope`, which the block gets."""

    __slots__ = ("_scope", "_token")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __enter__(self) -> Scope:
        self._token = _scope.set(self._scope)
        return self._scope

    def __exit__(self, *_: object) -> None:
        _scope.reset(self._token)


def detached() -> entered:
    """Build nodes whose names are already qualified, as passes and loaders do."""
    return entered(current().bare())


def made_by(maker: str, prefixed: bool = False) -> entered:
    """Build nodes in the current scope with another maker. prefixed: see `Scope`."""
    return entered(current()._replace(maker=maker, prefixed=prefixed))


def expanding(attrs: Mapping[str, str] | None = None, maker: str = "") -> entered:
    """Build the nodes of one operator's expansion: more than MOST_EXPANDED are an UnsupportedError.

    attrs: their metadata; the scope's own are left out, as its prefix is. maker: see `Scope`.
    """
    return entered(Scope(attrs=attrs or _EMPTY, maker=maker, made=itertools.count()))
