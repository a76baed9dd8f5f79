"""The ambient scope of node construction: a name prefix and attributes that new nodes receive."""

from __future__ import annotations

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
    """`prefix` goes before explicit names; `attrs` are added to the metadata of nodes and parameters.

    `maker` says what makes the nodes ("pass fuse_gelu"); errors name it for nodes that have no name. told: whoever
    makes the nodes names the maker itself in an error of their construction.
    """

    prefix: str = ""
    attrs: Mapping[str, str] = field(default_factory=dict)
    maker: str = ""
    told: bool = False

    def admit(self) -> None:
        """A node is about to be made in this scope, which may refuse it."""

    def qualify(self, name: str) -> str:
        return self.prefix + name if name else ""

    def bare(self) -> Scope:
        """The scope without prefix and attributes: only the maker stays."""
        if not self.maker:
            return _ROOT
        return self if not self.prefix and not self.attrs else Scope(maker=self.maker, told=self.told)

    def merge(self, meta: Mapping[str, str] | None) -> Mapping[str, str]:
        if not self.attrs:
            return meta or _EMPTY
        return {**self.attrs, **(meta or _EMPTY)}


_EMPTY: Mapping[str, str] = {}
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


class detached:  # noqa: N801 - as above
    """Build nodes whose names are already qualified, as passes and loaders do."""

    __slots__ = ("_token",)

    def __enter__(self) -> None:
        self._token = _scope.set(_scope.get().bare())

    def __exit__(self, *_: object) -> None:
        _scope.reset(self._token)


class made_by(detached):  # noqa: N801 - as above
    """Nodes that are made inside, and that have no name, are described as made by `maker`. The scope stays.

    told: see `Scope`.
    """

    __slots__ = ("_maker", "_told")

    def __init__(self, maker: str, told: bool = False) -> None:
        self._maker = maker
        self._told = told

    def __enter__(self) -> None:
        scope = _scope.get()
        self._token = _scope.set(Scope(scope.prefix, scope.attrs, self._maker, self._told))


@dataclass(frozen=True, slots=True)
class _Expansion(Scope):
    """Counts the nodes that are made in it."""

    made: Iterator[int] = field(default_factory=itertools.count)

    def bare(self) -> Scope:
        return Scope(maker=self.maker) if self.maker else _ROOT

    def admit(self) -> None:
        if next(self.made) >= MOST_EXPANDED:
            raise UnsupportedError(f"it expands to more than {MOST_EXPANDED} nodes")


class expanding(detached):  # noqa: N801 - as above
    """As `detached`, for the nodes of one operator's expansion: more than MOST_EXPANDED are an UnsupportedError.

    attrs: what their metadata has. maker: what makes them, for errors (see `Scope`).
    """

    __slots__ = ("_attrs", "_maker")

    def __init__(self, attrs: Mapping[str, str] | None = None, maker: str = "") -> None:
        self._attrs = attrs or _EMPTY
        self._maker = maker

    def __enter__(self) -> None:
        self._token = _scope.set(_Expansion(attrs=self._attrs, maker=self._maker))
