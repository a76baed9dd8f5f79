"""Facts that the project states in several places must be the same everywhere."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_one_version() -> None:
    version = PROJECT["project"]["version"]
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.search(r"^version: (\S+)$", citation, re.MULTILINE)[1] == version
    assert re.search(r"^## \[(\S+)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)[1] == version


def test_one_licence() -> None:
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.search(r"^license: (\S+)$", citation, re.MULTILINE)[1] == PROJECT["project"]["license"]


def test_modules_that_tests_import_by_name_have_names_of_their_own() -> None:
    """One process may run tests of all folders, and imports the first module of a name for all of them."""
    # Modules of tests/mxnet_io are imported as tests.mxnet_io.NAME.
    helpers = [path for path in (ROOT / "tests").rglob("*.py") if path.parent.name != "mxnet_io"]
    folders = [ROOT / "bench", ROOT / "examples" / "gan", ROOT / "examples" / "reinforcement"]
    found: dict[str, Path] = {}
    for path in (*helpers, *(path for folder in folders for path in folder.glob("*.py"))):
        if not path.stem.startswith("test_") and path.stem not in ("conftest", "__init__"):
            assert path.stem not in sys.stdlib_module_names, path
            assert found.setdefault(path.stem, path) == path


def test_pages_contain_no_conflict_markers() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").rglob("*.md")]
    markers = re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE)
    assert [path for path in pages if markers.search(path.read_text("utf-8"))] == []


def test_wheels_are_built_for_pythons_that_are_supported() -> None:
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=").replace(".", "")
    assert PROJECT["tool"]["cibuildwheel"]["build"].split()[0] == f"cp{oldest}-*"


def test_epochs_of_a_run_that_goes_on_are_explained_in_one_way() -> None:
    """Pages and help texts about the epochs of a resumed run explain the number in the same words."""
    from graphkit.train.position import WHOLE_RUN

    told = WHOLE_RUN.removeprefix("epochs is ")
    pages = ["docs/training.md", "docs/tutorial/3-training.md", "docs/reference/commands.md", "examples/gan/README.md"]
    sources = ["graphkit/train/trainer.py", "graphkit/train/position.py"]
    for name in (*pages, *sources):
        text = " ".join((ROOT / name).read_text("utf-8").split())
        assert told in text, name
        assert not re.search(r"epochs`? counts? from|from the beginning of the run|makes one more", text), name
