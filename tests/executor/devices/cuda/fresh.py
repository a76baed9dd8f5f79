"""Fixtures that each case of a test has for itself, also where `together` makes one item of many cases."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import on_a_card
import pytest
import stand_in_cudnn
from emulator import Emulator
from stand_in import Card

from graphkit.executor.devices import cuda
from graphkit.executor.devices.cuda.libraries import cudnn


def make_card(
    processor: Emulator, monkeypatch: pytest.MonkeyPatch, folder: Path | None = None
) -> Card | on_a_card.RealCard:
    """The device "cuda" until `monkeypatch` is undone."""
    made = on_a_card.RealCard() if on_a_card.WANTED else Card(processor)
    for module in (cuda, cuda.card):
        monkeypatch.setattr(module, "device", lambda number=0: made)
        monkeypatch.setattr(module, "cards", lambda: 2)
    return made


def make_cards(processor: Emulator, monkeypatch: pytest.MonkeyPatch, folder: Path | None = None) -> list[Card]:
    """The devices "cuda:0", "cuda:1" and "cuda:2" until `monkeypatch` is undone."""
    made = [Card(processor, number) for number in range(3)]
    for module in (cuda, cuda.card):
        monkeypatch.setattr(module, "device", lambda number=0: made[number])
        monkeypatch.setattr(module, "cards", lambda: len(made))
    return made


def make_library(processor: Emulator | None, monkeypatch: pytest.MonkeyPatch, folder: Path | None = None) -> Any:
    """A stand-in for cuDNN's frontend until `monkeypatch` is undone."""
    made = stand_in_cudnn.module()
    monkeypatch.setattr(cudnn, "frontend", lambda: made)
    monkeypatch.setattr(cudnn, "_of_thread", threading.local())
    monkeypatch.setattr(cudnn, "_used_gpus", set())
    return made


# By the name of the fixture. processor: None if the test has no other fixture that needs one.
FRESH: dict[str, Callable[[Any, pytest.MonkeyPatch, Path], Any]] = {
    "card": make_card,
    "cards": make_cards,
    "library": make_library,
    "monkeypatch": lambda processor, monkeypatch, folder: monkeypatch,
    "tmp_path": lambda processor, monkeypatch, folder: Path(tempfile.mkdtemp(dir=folder)),
}
