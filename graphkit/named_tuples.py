"""NamedTuple: the class of `typing`, for type checkers; at run time, one that takes a fifth of the time to subclass.

`typing.NamedTuple` compiles each annotation and a constructor for each class. The import of a model uses 60 classes, so
this would take a tenth of the time until its first result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    from collections import namedtuple
    from functools import cache
    from types import FunctionType

    class _Base(tuple):
        """Methods that all named tuples share. They do what those of `collections.namedtuple` do."""

        __slots__ = ()
        _fields = ()

        @classmethod
        def _make(cls, iterable: Any) -> Any:
            made = tuple.__new__(cls, iterable)
            if len(made) != len(cls._fields):
                raise TypeError(f"expected {len(cls._fields)} fields of {cls.__name__}, got {len(made)}")
            return made

        def _replace(self, /, **changes: Any) -> Any:
            made = self._make(map(changes.pop, self._fields, self))
            if changes:
                raise ValueError(f"{type(self).__name__} has no field {', '.join(map(repr, changes))}")
            return made

        def _asdict(self) -> dict[str, Any]:
            return dict(zip(self._fields, self, strict=True))

        def __getnewargs__(self) -> tuple[Any, ...]:
            return tuple(self)

        def __repr__(self) -> str:
            fields = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
            return f"{type(self).__name__}({fields})"

    @cache
    def _template(size: int) -> tuple[FunctionType, list[Any]]:
        """Return the constructor of a named tuple of this size, and the descriptors of its fields."""
        made = namedtuple("_Template", [f"field{i}" for i in range(size)])
        return made.__new__, [vars(made)[name] for name in made._fields]

    class _Meta(type):
        def __new__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> type:
            if not bases:
                return super().__new__(cls, name, bases, members)
            fields = tuple(members.get("__annotations__", ()))
            defaults = {field: members[field] for field in fields if field in members}
            if tuple(defaults) != fields[len(fields) - len(defaults) :]:
                raise TypeError(f"{name}: a field without a default follows one that has a default")
            constructor, descriptors = _template(len(fields))
            code = constructor.__code__.replace(co_varnames=("_cls", *fields))
            new = FunctionType(code, constructor.__globals__, "__new__", tuple(defaults.values()))
            new.__qualname__, new.__annotations__ = f"{name}.__new__", members.get("__annotations__", {})
            members |= zip(fields, descriptors, strict=True)
            members |= {
                "__slots__": (), "__new__": new, "__match_args__": fields, "_fields": fields,
                "_field_defaults": defaults,
            }  # fmt: skip
            # A plain class: the metaclass serves its creation only.
            return type(name, (_Base, *bases[1:]), members)

    class NamedTuple(metaclass=_Meta):
        """Base class of named tuples: each annotated name of the body is a field."""
