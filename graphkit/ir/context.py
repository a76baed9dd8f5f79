"""The ambient scope of node construction: a name prefix and attributes that new nodes receive."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

# The attribute that says which nodes one process computes, where several do.
GROUP = "ctx_group"


@dataclass(frozen=True, slots=True)
class Scope:
    """`prefix` goes before explicit names; `attrs` are added to the metadata of nodes and parameters."""

    prefix: str = ""
    attrs: Mapping[str, str] = field(default_factory=dict)

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
