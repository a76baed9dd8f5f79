"""Many cases of a test compile their kernels together, and each case still has its own result."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from emulator import COMPILER, Emulator
from on_a_card import stand_in_alone
from stand_in import Card
from together import together

from graphkit.executor.devices.cuda.launches import CardKernel, Launch, Output, source_of

pytestmark = [pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler"), stand_in_alone]


def run(emulator: Emulator, number: int) -> int:
    """Return the result of a separate kernel."""
    source = source_of("number", ["gk_i32* y"], [f"y[0] = {number};"])
    y = np.zeros(1, np.int32)
    emulator.run(CardKernel((Launch(source, 1, (Output(0),)),)), [], [y])
    return int(y[0])


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that no other test has."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def alone(kernels: Path) -> Emulator:
    return Emulator(kernels)


def libraries(folder: Path) -> int:
    """How many libraries were compiled."""
    return len(list(folder.glob("*.cpp")))


def items(test: object) -> list[object]:
    """Return the argument `members` of each pytest item of a test."""
    (mark,) = (mark for mark in test.pytestmark if mark.name == "parametrize")  # type: ignore[attr-defined]
    return [item.values[0] for item in mark.args[1]]


def test_waiting_cases_share_a_library_and_run_once(alone: Emulator, kernels: Path, tmp_path: Path) -> None:
    begun: list[int] = []
    before = libraries(kernels)

    @together()
    @pytest.mark.parametrize("number", range(10))
    def test(number: int) -> None:
        begun.append(number)
        assert run(alone, number) == number
        assert run(alone, 100 + number) == 100 + number

    (members,) = items(test)
    test(members=members, processor=alone, tmp_path=tmp_path)
    assert begun == [*range(10)]
    assert libraries(kernels) == before + 2


def test_cases_with_a_card_begin_again(alone: Emulator, kernels: Path, tmp_path: Path) -> None:
    cards: list[Card] = []
    before = libraries(kernels)

    @together()
    @pytest.mark.parametrize("number", range(3))
    def test(number: int, card: Card) -> None:
        cards.append(card)
        assert run(alone, 200 + number) == 200 + number

    (members,) = items(test)
    test(members=members, processor=alone, tmp_path=tmp_path)
    assert len(set(map(id, cards))) == 6
    assert libraries(kernels) == before + 1


def test_failing_cases_are_named(alone: Emulator, tmp_path: Path) -> None:
    @together(full=lambda number: number > 3)
    @pytest.mark.parametrize("number", range(6))
    def test(number: int) -> None:
        assert run(alone, 300 + number) != 302

    default, full = items(test)
    test(members=full, processor=alone, tmp_path=tmp_path)
    with pytest.raises(pytest.fail.Exception, match="1 of 4 cases failed\n\n2\n"):
        test(members=default, processor=alone, tmp_path=tmp_path)


def test_a_source_with_an_error_fails_its_own_case(alone: Emulator, tmp_path: Path) -> None:
    @together()
    @pytest.mark.parametrize("number", ["401", "402", "a mistake"])
    def test(number: str) -> None:
        source = source_of("number", ["gk_i32* y"], [f"y[0] = {number};"])
        y = np.zeros(1, np.int32)
        alone.run(CardKernel((Launch(source, 1, (Output(0),)),)), [], [y])

    (members,) = items(test)
    with pytest.raises(pytest.fail.Exception, match="1 of 3 cases failed\n\na mistake\n"):
        test(members=members, processor=alone, tmp_path=tmp_path)


def test_a_case_that_leaves_its_thread_fails(alone: Emulator, tmp_path: Path) -> None:
    @together()
    @pytest.mark.parametrize("number", range(2))
    def test(number: int) -> None:
        assert run(alone, 600 + number) == 600 + number
        if number:
            raise SystemExit(0)

    (members,) = items(test)
    with pytest.raises(SystemExit):
        test(members=members, processor=alone, tmp_path=tmp_path)


def test_threads_of_a_case_compile_what_they_need(alone: Emulator, tmp_path: Path) -> None:
    @together()
    @pytest.mark.parametrize("number", range(2))
    def test(number: int, card: Card) -> None:
        with ThreadPoolExecutor(2) as pool:
            found = [pool.submit(run, alone, 10 * number + n) for n in (700, 701)]
            assert [f.result() - 10 * number for f in found] == [700, 701]

    (members,) = items(test)
    test(members=members, processor=alone, tmp_path=tmp_path)


def test_processes_share_compiled_kernels(alone: Emulator, kernels: Path) -> None:
    assert run(alone, 500) == 500
    before = libraries(kernels)
    other = Emulator(kernels)
    assert run(other, 500) == 500
    assert libraries(kernels) == before
