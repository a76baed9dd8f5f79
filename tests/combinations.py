"""All combinations of a test's parameters in one pytest item, with a part of them in the default lane."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from cases import each_case, replaced

# Which combinations the default lane runs: all of them; enough that each pair of values of two parameters occurs; or
# enough that each value occurs.
Coverage = Literal["all", "pairs", "values"]


class Combination(NamedTuple):
    """Arguments of one call of a test, or of one mark for it."""

    name: str
    arguments: dict[str, Any]
    full: bool
    skipped: str | None = None  # why


def full(*values: Any) -> Any:
    """Values of `parametrize` that belong to the full lane."""
    return pytest.param(*values, marks=pytest.mark.full)


def default_at(*places: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run the values at these places of the `parametrize` mark below by default, and the others in the full lane."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        *others, mark = test.__dict__["pytestmark"]
        names, values = mark.args[0], list(mark.args[1])
        if mark.name != "parametrize" or not places or not set(places) <= set(range(len(values))):
            raise ValueError(f"{test.__name__}: no parametrize mark below has values at {places}")
        several = not isinstance(names, str) or "," in names
        chosen = [v if place in places else _in_full_lane(v, several) for place, v in enumerate(values)]
        made = pytest.mark.parametrize(names, chosen, *mark.args[2:], **mark.kwargs)
        test.__dict__["pytestmark"] = [*others, made.mark]
        return test

    return decorate


def _in_full_lane(value: Any, several: bool) -> Any:
    """One value of `parametrize` with the mark `full` besides its own. several: a tuple for several parameters."""
    if type(value).__name__ == "ParameterSet":  # of pytest.param
        return pytest.param(*value.values, marks=[*value.marks, pytest.mark.full], id=value.id)
    return full(*value) if several else full(value)


def seeds(count: int, default: int) -> list[Any]:
    """The seeds below `count`, for `parametrize`. Those from `default` on belong to the full lane."""
    return [seed if seed < default else full(seed) for seed in range(count)]


def in_one_item(
    default: Coverage = "all", group: Callable[[dict[str, Any]], str] = lambda arguments: "all"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run all combinations of the `parametrize` marks below this decorator in one pytest item.

    Each combination has its own `tmp_path` and `monkeypatch`. It draws the same numbers from random generators and sees
    the same elements of lists, whichever combinations ran before it. Other fixtures, parametrized ones too, stay as
    they are and are set up once for the item: a test with other fixtures that it changes needs items of its own.

    Args:
        default: Which combinations the default lane runs. The others are run by the full lane.
        group: The item's name for the arguments of a call.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        marks = getattr(test, "pytestmark", [])
        cases = combined(marks, default)
        names = {name for case in cases for name in case.arguments}

        def run(case: Combination, **given: Any) -> None:
            if case.skipped is not None:
                pytest.skip(case.skipped)
            with _fresh(given) as fresh:
                test(**case.arguments, **fresh)

        fixtures = [name for name in inspect.signature(test).parameters if name not in names]
        replaced(test, run, ("case", *fixtures), without_parametrize(marks))
        return each_case(cases, group=lambda case: group(case.arguments), full=lambda case: case.full)(run)

    return decorate


@contextlib.contextmanager
def _fresh(fixtures: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The fixtures of an item for one combination: with a folder, patches and random generators of its own.

    Lists get their elements back afterwards. They cannot be copies, because fixtures add to them.
    """
    with contextlib.ExitStack() as stack:
        own = {n: copy.deepcopy(v) if isinstance(v, np.random.Generator) else v for n, v in fixtures.items()}
        for value in own.values():
            if isinstance(value, list):
                stack.callback(value.__setitem__, slice(None), [*value])
        if "monkeypatch" in own:
            own["monkeypatch"] = stack.enter_context(pytest.MonkeyPatch.context())
        if "tmp_path" in own:
            own["tmp_path"] = own["tmp_path"] / f"case{len(list(own['tmp_path'].iterdir()))}"
            own["tmp_path"].mkdir()
        yield own


def without_parametrize(marks: Sequence[pytest.Mark]) -> list[pytest.Mark]:
    return [mark for mark in marks if mark.name != "parametrize"]


def combined(marks: Sequence[pytest.Mark], default: Coverage = "all") -> list[Combination]:
    """All combinations of the `parametrize` marks, those that `default` does not choose for the full lane."""
    columns = [_choices(mark) for mark in reversed(marks) if mark.name == "parametrize"]
    if not columns:
        raise ValueError("the parametrize marks of a test belong below the decorator that combines them")
    return _combinations(columns, default)


def _choices(mark: pytest.Mark) -> list[Combination]:
    """The values of one `parametrize` mark."""
    names, values = mark.args[0], list(mark.args[1])
    names = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
    ids = mark.kwargs.get("ids", mark.args[2] if len(mark.args) > 2 else None)
    ids = ids if ids is None or callable(ids) else list(ids)
    found = []
    for number, value in enumerate(values):
        is_full, title, reasons = False, None, []
        if type(value).__name__ == "ParameterSet":  # of pytest.param
            is_full = any(m.name == "full" for m in value.marks)
            reasons = [m.kwargs["reason"] for m in value.marks if m.name == "skipif" and m.args[0]]
            if any(m.name not in ("full", "skipif") for m in value.marks):
                raise ValueError(f"{names} have a value with marks that one item cannot have")
            title, value = value.id, value.values if len(names) > 1 else value.values[0]
        given = tuple(value) if len(names) > 1 else (value,)
        if title is None and ids is not None and not callable(ids):
            title = str(ids[number])
        if title is None:
            parts = [ids(v) if callable(ids) else None for v in given]
            title = "-".join(
                _title(v, f"{n}{number}") if p is None else str(p) for n, v, p in zip(names, given, parts, strict=True)
            )
        found.append(Combination(title, dict(zip(names, given, strict=True)), is_full, next(iter(reasons), None)))
    titles = [choice.name for choice in found]
    repeated = {title for title in titles if titles.count(title) > 1}
    return [c._replace(name=f"{c.name}#{i}") if c.name in repeated else c for i, c in enumerate(found)]


def _title(value: Any, otherwise: str) -> str:
    if value is None or isinstance(value, (str, int, float, bool, np.dtype, np.generic, tuple)):
        return str(value)
    return str(getattr(value, "__name__", otherwise))


def _combinations(columns: Sequence[Sequence[Combination]], default: Coverage) -> list[Combination]:
    sizes = [len(column) for column in columns]
    places = list(product(*map(range, sizes)))
    kept = {"all": lambda: places, "pairs": lambda: _pairs(sizes), "values": lambda: _values(sizes)}[default]()
    default_places = set(kept)
    found = []
    for place in places:
        chosen = [column[i] for column, i in zip(columns, place, strict=True)]
        arguments = {name: value for choice in chosen for name, value in choice.arguments.items()}
        is_full = place not in default_places or any(choice.full for choice in chosen)
        skipped = next((choice.skipped for choice in chosen if choice.skipped is not None), None)
        found.append(Combination("-".join(c.name for c in chosen), arguments, is_full, skipped))
    return found


def covering(*values: Sequence[Any]) -> list[Any]:
    """Combinations of these values, for `parametrize`: enough that each pair of values of two sequences occurs.

    The default lane runs enough of them that each value occurs, and the full lane the others. For tests that need
    fixtures of their own for each case; `in_one_item` is cheaper, and runs all combinations.
    """
    sizes = [len(v) for v in values]
    default = _values(sizes)
    return [
        pytest.param(
            *(v[i] for v, i in zip(values, place, strict=True)), marks=() if place in default else pytest.mark.full
        )
        for place in _pairs(sizes, default)
    ]


def _values(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """As many places as the largest column has, in which each value of each column occurs."""
    most = max(sizes)
    order = sorted(range(len(sizes)), key=lambda column: -sizes[column])
    # Columns count at different speeds, so that small ones do not run in step.
    speeds, speed = {}, 1
    for column in order[1:]:
        speed = speed if speed * sizes[column] <= most else 1
        speeds[column] = speed
        speed *= sizes[column]
    return [tuple(i // speeds.get(c, 1) % size for c, size in enumerate(sizes)) for i in range(most)]


def _pairs(sizes: Sequence[int], first: Sequence[tuple[int, ...]] = ()) -> list[tuple[int, ...]]:
    """`first` and further places, so that each pair of values of two columns occurs. The next one has the most new."""
    found = list(dict.fromkeys(first))
    places = list(product(*map(range, sizes)))
    pairs = {place: set(combinations(enumerate(place), 2)) for place in places}
    missing = set().union(*pairs.values()) - set().union(*(pairs[place] for place in found))
    while missing:
        best = max(places, key=lambda place: len(pairs[place] & missing))
        missing -= pairs[best]
        found.append(best)
    return found or places
