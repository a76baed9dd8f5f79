"""Many cases in one pytest item: `each_case` costs a case microseconds where `parametrize` costs milliseconds."""

from __future__ import annotations

import fnmatch
import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

# Glob pattern of the cases to run, set by `pytest --case PATTERN`; all by default.
selected_pattern = "*"


def not_excused(error: BaseException) -> str:
    """Why a failure counts as a skipped test; "" if it does not."""
    return ""


# Asked about each failure. `tests/conftest.py` sets it.
excused: Callable[[BaseException], str] = not_excused
# Names of the cases that the current item has skipped. `tests/lanes.py` counts them.
skipped_names: list[str] = []
# The longest text of one failing case, and how many failing cases are printed whole.
_LONGEST, _PRINTED = 4000, 5


class Cases(tuple[Any, ...]):
    """The cases of one pytest item. `tests/lanes.py` counts them."""

    __slots__ = ()


def items_of(
    cases: Iterable[Any], group: Callable[[Any], str], name: Callable[[Any], str], full: Callable[[Any], bool]
) -> list[Any]:
    """The values of a `parametrize` mark: the `Cases` of each group. See `each_case` for the arguments and errors."""
    groups: dict[tuple[bool, str], list[Any]] = {}
    for case in cases:
        groups.setdefault((full(case), group(case)), []).append(case)
    if not groups:
        raise ValueError("a test without cases")
    for (_, title), members in groups.items():
        names = [name(member) for member in members]
        if len(set(names)) < len(names):
            raise ValueError(f"two cases of {title} have one name: {sorted(n for n in names if names.count(n) > 1)[0]}")
    return [
        pytest.param(
            Cases(members), id=f"{title}-full" if is_full else title, marks=pytest.mark.full if is_full else ()
        )
        for (is_full, title), members in groups.items()
    ]


def replaced(
    test: Callable[..., None], run: Callable[..., None], arguments: Iterable[str], marks: Iterable[pytest.Mark]
) -> Callable[..., None]:
    """Give `run` the test's name and these marks. arguments: the parameters and fixtures that pytest passes to it."""
    functools.update_wrapper(run, test)
    # pytest would look through it at the arguments of the test.
    del run.__wrapped__  # type: ignore[attr-defined]
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in arguments]
    )
    run.pytestmark = list(marks)  # type: ignore[attr-defined]
    return run


def each_case(
    cases: Iterable[Any],
    group: Callable[[Any], str],
    name: Callable[[Any], str] = lambda case: str(getattr(case, "name", case)),
    full: Callable[[Any], bool] = lambda case: False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make one pytest item of all cases of a group. The decorated test takes a case as its first argument.

    All cases of an item run, also behind one that fails; the message of the item has every failing case with its
    traceback. Fixtures are set up once for an item, so that a test must not leave anything in them.

    Args:
        cases: The cases, each an argument of the test.
        group: The item's name for a case, for example that of its operator.
        name: The case's name in messages and for `pytest --case PATTERN`.
        full: Whether a case belongs to the full lane. The item of those is marked `full`.

    Raises:
        ValueError: There are no cases, or two cases of an item have one name.
    """
    items = items_of(cases, group, name, full)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        first, *others = inspect.signature(test).parameters

        def run(**arguments: Any) -> None:
            run_all(test, arguments.pop(first), name, arguments)

        made = replaced(test, run, (first, *others), getattr(test, "pytestmark", []))
        return pytest.mark.parametrize(first, items)(made)

    return decorate


def run_all(
    test: Callable[..., None], cases: Sequence[Any], name: Callable[[Any], str], fixtures: dict[str, Any]
) -> None:
    """Run the test with every selected case and fail with the texts of all that failed."""
    chosen = [case for case in cases if fnmatch.fnmatchcase(name(case), selected_pattern)]
    skipped, failed = [], []
    for case in chosen:
        try:
            test(case, **fixtures)
        except pytest.skip.Exception as reason:
            skipped.append(f"{name(case)}: {reason}")
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - raised again below, with the others
            if reason := excused(error):
                skipped.append(f"{name(case)}: {reason}")
                continue
            # The first frame is this function.
            trace = error.__traceback__ and error.__traceback__.tb_next
            text = "".join(traceback.format_exception(type(error), error, trace))
            failed.append(f"{name(case)}\n{text[-_LONGEST:]}")
    skipped_names[:] = skipped
    if failed:
        rest = [text.split("\n", 1)[0] for text in failed[_PRINTED:]]
        texts = [*failed[:_PRINTED], *(["also failed: " + ", ".join(rest)] if rest else [])]
        pytest.fail(f"{len(failed)} of {len(chosen)} cases failed\n\n" + "\n\n".join(texts), pytrace=False)
    if len(skipped) == len(chosen):
        pytest.skip("; ".join(skipped) or f"no case matches {selected_pattern!r}")
