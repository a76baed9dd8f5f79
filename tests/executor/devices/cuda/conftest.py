"""Fixtures of the tests of GPU kernels: an emulator that runs them on the CPU, and a fake GPU that uses it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from graphkit.errors import MissingDependency
from graphkit.executor.devices.cuda import compiler

sys.path.insert(0, str(Path(__file__).parent))

import fresh
import on_a_card
from emulator import COMPILER, Emulator, shared_folder
from stand_in import Card


@pytest.fixture(scope="session")
def processor(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    if COMPILER is None:
        pytest.skip("there is no C++ compiler")
    return Emulator(shared_folder(tmp_path_factory.getbasetemp()))


@pytest.fixture(scope="session")
def emulator(request: pytest.FixtureRequest) -> Emulator | on_a_card.OnCard:
    """Runs single kernels: the emulator, or a GPU if the tests run on one."""
    made: Emulator = request.getfixturevalue("processor")
    return on_a_card.OnCard() if on_a_card.WANTED else made


@pytest.fixture(scope="session")
def nvrtc() -> None:
    try:
        compiler.version()
    except MissingDependency as error:
        pytest.skip(str(error))


@pytest.fixture
def card(processor: Emulator, monkeypatch: pytest.MonkeyPatch) -> Card | on_a_card.RealCard:
    """The device "cuda" during the test."""
    return fresh.make_card(processor, monkeypatch)


@pytest.fixture
def cards(processor: Emulator, monkeypatch: pytest.MonkeyPatch) -> list[Card]:
    """The devices "cuda:0", "cuda:1" and "cuda:2" during the test."""
    return fresh.make_cards(processor, monkeypatch)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The fake cuDNN frontend during the test."""
    return fresh.make_library(None, monkeypatch)
