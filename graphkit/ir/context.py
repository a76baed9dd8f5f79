"""The ambient scope of node construction: a name prefix and attributes that new nodes receive."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from graphkit.errors import UnsupportedError

# Attributes may tell how often an expansion repeats itself.
MOST_EXPANDED = 100_000

# The attribute that says which nodes one process computes, where several do.
GROUP = "ctx_group"

# The attribute of nodes that are made when a loss is differentiated.
GRADIENT = "gradient"


@dataclass(frozen=True, slots=True)
class Scope:
    """`prefix` goes before explicit names; `attrs` are added to the metadata of nodes and parameters."""

    prefix: str = ""
    attrs: Mapping[str, str] = field(default_factory=dict)

    def admit(self) -> None:
        """A node is about to be made in this scope, which may refuse it."""

    def qualify(self, name: str) -> str:
        return self.prefix + name if name else ""

    def merge(self, meta: Mapping[str, str] | None) -> Mapping[str, str]:
        if not self.attrs:
            return meta or _EMPTY
        return {**self.attrs, **(meta or _EMPTY)}


_EMPTY: Mapping[str, str] = {}
_ROOT = Scope()
_scope: ContextVar[Scope] = ContextVar("graphkit_scope", default=_ROOT)


def current() -> Scope:
    return _scope.get()


@contextlib.contextmanager
def entered(scope: Scope) -> Iterator[Scope]:
    token = _scope.set(scope)
    try:
        yield scope
    finally:
        _scope.reset(token)


class detached:  # noqa: N801 - used like a function, as contextlib.suppress is
    """Build nodes whose names are already qualified, as passes and loaders do."""

    __slots__ = ("_token",)

    def __enter__(self) -> None:
        self._token = _scope.set(_ROOT)

    def __exit__(self, *_: object) -> None:
        _scope.reset(self._token)


@dataclass(frozen=True, slots=True)
class _Expansion(Scope):
    """Counts the nodes that are made in it."""

    made: Iterator[int] = field(default_factory=itertools.count)

    def admit(self) -> None:
        if next(self.made) >= MOST_EXPANDED:
            raise UnsupportedError(f"it expands to more than {MOST_EXPANDED} nodes")


class expanding(detached):  # noqa: N801 - as above
    """As `detached`, for the nodes of one operator's expansion: more than MOST_EXPANDED are an UnsupportedError.

    attrs: what their metadata has.
    """

    __slots__ = ("_attrs",)

    def __init__(self, attrs: Mapping[str, str] | None = None) -> None:
        self._attrs = attrs or _EMPTY

    def __enter__(self) -> None:
        self._token = _scope.set(_Expansion(attrs=self._attrs))
