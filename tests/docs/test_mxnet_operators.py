"""docs/mxnet_operators.md is what docs/mxnet_operators.py writes of the converters of MXNet's operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from graphkit.mxnet_io.call import CONVERTERS


@pytest.fixture(scope="module")
def operators(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("mxnet_operators")


def test_the_page_is_up_to_date(operators: ModuleType) -> None:
    assert operators.PAGE.read_text("utf-8") == operators.page(), "run python docs/mxnet_operators.py"


def test_limits_name_operators_that_are_read(operators: ModuleType) -> None:
    read = {group[0] for group in operators.groups() if operators.is_read(group)}
    assert set(operators.LIMITS) <= read


def test_all_names_of_an_operator_have_one_converter(operators: ModuleType) -> None:
    """MXNet registers these names for one implementation."""
    for names in operators.groups():
        assert len({_identity(CONVERTERS.get(name)) for name in names}) == 1, names


def _identity(converter: Any) -> Any:
    """Return a key that is equal for two converters with the same effect."""
    return (converter.func, *map(_identity, converter.args)) if isinstance(converter, partial) else _hashable(converter)


def _hashable(part: Any) -> Any:
    return tuple(part.items()) if isinstance(part, dict) else part
