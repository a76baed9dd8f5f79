"""The named tuples of this package behave as those of `typing`."""

from __future__ import annotations

import copy
import inspect
import pickle
import typing
from typing import Any, Generic, TypeVar

import pytest
from combinations import in_one_item

from graphkit import named_tuples
from graphkit.named_tuples import NamedTuple

T = TypeVar("T")


class Ours(NamedTuple):
    """Three fields."""

    first: int
    second: list[int]
    third: str = "c"

    @property
    def doubled(self) -> int:
        return 2 * self.first

    @classmethod
    def of(cls, first: int) -> Ours:
        return cls(first, [])


class Theirs(typing.NamedTuple):
    """Three fields."""

    first: int
    second: list[int]
    third: str = "c"

    @property
    def doubled(self) -> int:
        return 2 * self.first

    @classmethod
    def of(cls, first: int) -> Theirs:
        return cls(first, [])


class Empty(NamedTuple):
    """No fields."""


class WithType(NamedTuple, Generic[T]):
    item: T


BOTH = pytest.mark.parametrize("kind", [Ours, Theirs])


@BOTH
def test_attributes_of_class(kind: Any) -> None:
    assert kind._fields == kind.__match_args__ == ("first", "second", "third")
    assert kind._field_defaults == {"third": "c"}
    assert kind.__doc__ == "Three fields."
    assert type(kind) is type
    assert issubclass(kind, tuple)
    assert list(inspect.signature(kind).parameters) == ["first", "second", "third"]
    assert typing.get_type_hints(kind) == {"first": int, "second": list[int], "third": str}


@BOTH
def test_construction_and_access(kind: Any) -> None:
    made = kind(1, second=[2])
    assert made == (1, [2], "c")
    assert made.first == 1
    assert made.third == "c"
    assert made.doubled == 2
    assert kind.of(5) == (5, [], "c")
    assert not hasattr(made, "__dict__")
    first, *rest = made
    assert first == 1
    assert rest == [[2], "c"]
    match made:
        case kind(first=1, third=text):
            assert text == "c"
        case _:
            pytest.fail("the pattern does not match")


@BOTH
def test_methods_of_instances(kind: Any) -> None:
    made = kind(1, [2])
    assert made._asdict() == {"first": 1, "second": [2], "third": "c"}
    assert made._replace(second=[], first=3) == (3, [], "c")
    assert type(made._replace(first=3)) is kind
    assert kind._make([1, 2, 3]) == (1, 2, 3)
    assert repr(made) == f"{kind.__name__}(first=1, second=[2], third='c')"


@BOTH
def test_copies_and_pickles(kind: Any) -> None:
    made = kind(1, [2])
    for again in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert type(again) is kind
        assert again == made
    assert copy.deepcopy(made).second is not made.second


@BOTH
def test_wrong_arguments_are_errors(kind: Any) -> None:
    with pytest.raises(TypeError, match="'second'"):
        kind(1)
    with pytest.raises(TypeError, match="'fourth'"):
        kind(1, [], fourth=2)
    with pytest.raises(TypeError):
        kind._make([1])
    with pytest.raises(ValueError, match="'fourth'"):
        kind(1, [])._replace(fourth=2)
    with pytest.raises(AttributeError):
        kind(1, []).first = 2


def test_class_without_fields() -> None:
    assert Empty() == ()
    assert repr(Empty()) == "Empty()"
    assert Empty._fields == ()


def test_generic_class() -> None:
    assert WithType[int](3).item == 3
    assert WithType[int].__origin__ is WithType


def test_field_without_default_after_one_with_default() -> None:
    body = {"__annotations__": {"a": "int", "b": "int"}, "a": 1, "__module__": __name__}
    with pytest.raises(TypeError, match="without a default"):
        type(NamedTuple)("Wrong", (NamedTuple,), body)


@in_one_item()
@pytest.mark.parametrize("size", range(20))
def test_few_fields_need_no_compilation(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    compiled: list[int] = []
    whole = named_tuples.namedtuple

    def counted(name: str, fields: list[str]) -> type:
        compiled.append(len(fields))
        return whole(name, fields)

    monkeypatch.setattr(named_tuples, "namedtuple", counted)
    named_tuples._template.cache_clear()
    names = [f"field{i}" for i in range(size)]
    cls = type(NamedTuple)("Made", (NamedTuple,), {"__annotations__": dict.fromkeys(names)})
    value = cls(*range(size))
    assert [getattr(value, name) for name in names] == list(value) == list(range(size))
    assert cls(**dict(zip(names, value, strict=True))) == value
    assert compiled == ([size] if size > 13 else [])
