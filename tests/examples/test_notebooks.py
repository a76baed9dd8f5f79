"""The notebooks of examples/d2l run, and have the outputs that they store."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

FOLDER = Path(__file__).parents[2] / "examples" / "d2l"
PATHS = sorted(FOLDER.glob("*.ipynb"))


@pytest.fixture
def notebooks():
    spec = importlib.util.spec_from_file_location("notebooks", FOLDER / "notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_stored_outputs_are_those_of_a_run(path, notebooks):
    stored = json.loads(path.read_text("utf-8"))
    assert notebooks.executed(path) == stored
    kinds = [cell["cell_type"] for cell in stored["cells"]]
    assert kinds[:2] == ["markdown", "code"]
    assert len({cell["id"] for cell in stored["cells"]}) == len(kinds)


def test_the_readme_lists_all_notebooks():
    text = (FOLDER / "README.md").read_text("utf-8")
    assert len(PATHS) == 6
    assert all(f"[{path.stem}]({path.name})" in text for path in PATHS)


def notebook(folder, *sources):
    cells = [{"cell_type": "code", "source": [source], "outputs": ["old"]} for source in sources]
    path = folder / "own.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    return path


def test_outputs_are_stored(notebooks, tmp_path, monkeypatch):
    path = notebook(tmp_path, "print('a')\nb = 2", "b + 1", "None")
    monkeypatch.setattr(notebooks, "FOLDER", tmp_path)
    done = CliRunner().invoke(notebooks.main, ["own"])
    assert done.output == "own.ipynb: outputs stored\n"
    first, second, third = json.loads(path.read_text())["cells"]
    assert first["outputs"] == [{"name": "stdout", "output_type": "stream", "text": ["a\n"]}]
    assert second["outputs"][0]["data"] == {"text/plain": ["3"]}
    assert (third["outputs"], third["execution_count"]) == ([], 3)


def test_an_unknown_name_is_an_error(notebooks):
    done = CliRunner().invoke(notebooks.main, ["3-autograd", "7-nothing"])
    assert done.exit_code == 2
    assert f"7-nothing; the notebooks are {', '.join(path.stem for path in PATHS)}" in done.output


def test_an_error_names_the_cell(notebooks, tmp_path):
    with pytest.raises(NameError) as caught:
        notebooks.executed(notebook(tmp_path, "a = 1", "a + missing"))
    assert str(caught.traceback[-1].path) == "own.ipynb, cell 2"
