"""What tests of the card's kernels share: a processor that runs them, and a stand-in for the card around it."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from graphkit.errors import MissingDependency
from graphkit.executor.devices import cuda
from graphkit.executor.devices.cuda import compiler
from graphkit.executor.devices.cuda.libraries import cudnn

sys.path.insert(0, str(Path(__file__).parent))

import on_a_card
import stand_in_cudnn
from emulator import COMPILER, Emulator
from stand_in import Card


@pytest.fixture(scope="session")
def processor(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    if COMPILER is None:
        pytest.skip("there is no C++ compiler")
    return Emulator(Path(tmp_path_factory.mktemp("kernels")))


@pytest.fixture(scope="session")
def emulator(request: pytest.FixtureRequest) -> Emulator | on_a_card.OnCard:
    """What runs a kernel alone."""
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
    """What "cuda" is while the test runs."""
    made = on_a_card.RealCard() if on_a_card.WANTED else Card(processor)
    for module in (cuda, cuda.card):
        monkeypatch.setattr(module, "device", lambda number=0: made)
    return made


@pytest.fixture
def cards(processor: Emulator, monkeypatch: pytest.MonkeyPatch) -> list[Card]:
    """What "cuda:0", "cuda:1" and "cuda:2" are while the test runs."""
    made = [Card(processor, number) for number in range(3)]
    for module in (cuda, cuda.card):
        monkeypatch.setattr(module, "device", lambda number=0: made[number])
    return made


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What stands for cuDNN's frontend while the test runs."""
    made = stand_in_cudnn.module()
    monkeypatch.setattr(cudnn, "frontend", lambda: made)
    monkeypatch.setattr(cudnn, "_of_thread", threading.local())
    monkeypatch.setattr(cudnn, "_cards", set())
    return made
