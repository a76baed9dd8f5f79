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

    # Constructors of tuples with 0, 1, ... fields. Compiling such a function takes as long as the rest of a class.
    # fmt: off
    _CONSTRUCTORS: tuple[Any, ...] = (
        lambda _cls: _new(_cls, ()),
        lambda _cls, a: _new(_cls, (a,)),
        lambda _cls, a, b: _new(_cls, (a, b)),
        lambda _cls, a, b, c: _new(_cls, (a, b, c)),
        lambda _cls, a, b, c, d: _new(_cls, (a, b, c, d)),
        lambda _cls, a, b, c, d, e: _new(_cls, (a, b, c, d, e)),
        lambda _cls, a, b, c, d, e, f: _new(_cls, (a, b, c, d, e, f)),
        lambda _cls, a, b, c, d, e, f, g: _new(_cls, (a, b, c, d, e, f, g)),
        lambda _cls, a, b, c, d, e, f, g, h: _new(_cls, (a, b, c, d, e, f, g, h)),
        lambda _cls, a, b, c, d, e, f, g, h, i: _new(_cls, (a, b, c, d, e, f, g, h, i)),
        lambda _cls, a, b, c, d, e, f, g, h, i, j: _new(_cls, (a, b, c, d, e, f, g, h, i, j)),
        lambda _cls, a, b, c, d, e, f, g, h, i, j, k: _new(_cls, (a, b, c, d, e, f, g, h, i, j, k)),
        lambda _cls, a, b, c, d, e, f, g, h, i, j, k, m: _new(_cls, (a, b, c, d, e, f, g, h, i, j, k, m)),
        lambda _cls, a, b, c, d, e, f, g, h, i, j, k, m, n: _new(_cls, (a, b, c, d, e, f, g, h, i, j, k, m, n)),
    )
    # fmt: on
    _new = tuple.__new__
    # The descriptor of a field: it gets the field's position, and its documentation.
    _getter: Any = type(vars(namedtuple("_Single", ["field"]))["field"])

    @cache
    def _template(size: int) -> tuple[FunctionType, list[Any]]:
        """Return the constructor of a named tuple of this size, and the descriptors of its fields."""
        if size < len(_CONSTRUCTORS):
            constructor: FunctionType = _CONSTRUCTORS[size]
        else:
            constructor = namedtuple("_Template", [f"field{i}" for i in range(size)]).__new__
        return constructor, [_getter(i, f"Alias for field number {i}") for i in range(size)]

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
