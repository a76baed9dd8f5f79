"""docs/models/ has a page for each network, as docs/zoo.py writes it. Times are read from a file, never compared."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import graphkit as gk
from graphkit.executor.devices.cpu import native

# One of each kind: images, a table, tokens in rows and in columns, and one without a loss of its own.
CHECKED = ["dlrm", "lenet", "lstm_lm", "text_cnn", "vae"]


@pytest.fixture(scope="module")
def zoo(script: Callable[[str], ModuleType]) -> ModuleType:
    if not native.has_onednn():
        pytest.skip("the pages are those of an engine with oneDNN")
    return script("zoo")


def test_every_network_has_a_page_and_no_other_has(zoo: ModuleType) -> None:
    assert sorted(path.stem for path in zoo.FOLDER.glob("*.md")) == gk.models.names()
    overview = (zoo.FOLDER.parent / "models.md").read_text("utf-8")
    assert re.findall(r"\]\(models/(\w+)\.md\)", overview) == gk.models.names()


@pytest.mark.usefixtures("unset_parameters")
@pytest.mark.parametrize("name", CHECKED)
def test_a_page_is_up_to_date(zoo: ModuleType, name: str) -> None:
    assert zoo.stale([name]) == [], f"run python docs/zoo.py {name}"


@pytest.mark.usefixtures("unset_parameters")
@pytest.mark.full
@pytest.mark.parametrize("name", sorted(set(gk.models.names()) - set(CHECKED)))
@pytest.mark.long
def test_the_other_pages_are_up_to_date(zoo: ModuleType, name: str) -> None:
    assert zoo.stale([name]) == [], f"run python docs/zoo.py {name}"


@pytest.mark.usefixtures("unset_parameters")
@pytest.mark.parametrize("isa", ["baseline", "avx2"])
def test_a_page_does_not_depend_on_the_processor(zoo: ModuleType, isa: str) -> None:
    try:
        native.use_isa(isa)
    except native.Unsupported as error:
        pytest.skip(str(error))
    try:
        assert zoo.stale(["lenet"]) == []
    finally:
        native.use_isa("")


def test_a_change_is_found(
    zoo: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (zoo.FOLDER / "mlp.md").read_text("utf-8")
    monkeypatch.setattr(zoo, "FOLDER", tmp_path)
    (tmp_path / "mlp.md").write_text(re.sub(r"17,226", "17,227", text), "utf-8")
    assert zoo.main(["--check", "mlp", "dqn"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "docs/models/mlp.md is out of date: python docs/zoo.py mlp",
        "docs/models/dqn.md is out of date: python docs/zoo.py dqn",
    ]
    (tmp_path / "mlp.md").write_text(text, "utf-8")
    assert zoo.main(["--check", "mlp"]) == 0


def test_times_are_kept_by_whoever_writes_a_page_again(
    zoo: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(zoo, "FOLDER", tmp_path)
    monkeypatch.setattr(zoo, "TIMES", tmp_path / "times.json")
    monkeypatch.setattr(zoo, "milliseconds", lambda call: (call(), 0.25)[1])
    assert zoo.main(["--times", "mlp"]) == 0
    kept = json.loads((tmp_path / "times.json").read_text("utf-8"))["networks"]["mlp"]
    assert (kept["inference"], kept["training"]) == (0.25, 0.25)
    assert gk.__version__ in kept["machine"]
    first = (tmp_path / "mlp.md").read_text("utf-8")
    assert "| a training step with 32 samples | 0.25 ms (128,000 samples a second) |" in first
    assert zoo.main(["mlp"]) == 0
    assert (tmp_path / "mlp.md").read_text("utf-8") == first
