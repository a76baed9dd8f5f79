"""The pictures of the architecture match the import contracts, and files that guides mention exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from combinations import in_one_item

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("layers", ROOT / "docs/layers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_up_to_date(drawing: ModuleType) -> None:
    assert (ROOT / "docs/layers.svg").read_text("utf-8") == drawing.picture(), "run python docs/layers.py"


def test_the_readme_shows_the_same_layers(drawing: ModuleType) -> None:
    section = (ROOT / "README.md").read_text("utf-8").split("## How it is built")[1]
    block = re.search(r"```\n(.*?)```", section, re.DOTALL)
    assert block is not None
    heads = [re.split(r" {3,}", line)[0] for line in block.group(1).splitlines()]
    shown = [re.split(r" \| |  ", head) for head in heads]
    assert [sorted(row) for row in shown] == [sorted(row) for row in drawing.layers("Arrows point down", "graphkit")]


@in_one_item()
@pytest.mark.parametrize("guide", ["docs/architecture.md", "docs/kernels.md", "CONTRIBUTING.md"])
def test_files_that_guides_name_are_there(guide: str) -> None:
    named = re.findall(r"`((?:[\w.]+/)+[\w.]*)`", (ROOT / guide).read_text("utf-8"))
    assert named
    roots = [ROOT, ROOT / "graphkit", ROOT / "graphkit/executor", ROOT / "graphkit/executor/native"]
    for path in named:
        assert any((root / path).exists() for root in roots), f"{guide}: {path}"
