"""The check of prose finds its phrases in texts for users, docstrings and comments, and accepts plain sentences."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def prose() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / ".ci" / "prose.py"))


def complaints(prose: dict[str, Any], path: Path, read: str, *arguments: Any) -> list[str]:
    return [line for text in prose[read](path, *arguments) for line in prose["complaints"](text)]


@pytest.mark.parametrize(
    ("page", "phrases"),
    [
        ("What cannot be done is an error.\n", ["What"]),
        ("Training goes on. It is sent by\nway of the host.\n", ["goes on", "by way of"]),
        ("| a | b |\n|---|---|\n| kernels | run on a card |\n", ["card"]),
        ("- one\n- whoever stands in for it\n", ["whoever", "stands in for"]),
        ("It is no file. There is no file, and there is no longer one.\n", ["is no f"]),
        ("Of the files, one is read. It has two parts, of which\none is read.\n", ["Of the", "of which o"]),
        ("`What goes on`, and [a link](#what-goes-on).\n\n```\nWhat goes on.\n```\n", []),
        ("What do you want to do?\n\n## What you need\n\nThe trainer resumes the run.\n", []),
    ],
)
def test_phrases_of_pages(prose: dict[str, Any], tmp_path: Path, page: str, phrases: list[str]) -> None:
    path = tmp_path / "page.md"
    path.write_text(page)
    found = complaints(prose, path, "paragraphs")
    assert len(found) == len(phrases)
    assert all(phrase in line for phrase, line in zip(phrases, found, strict=True))


PROGRAM = '''
"""What a module is."""

def shown(x):
    """Return x,
    or what it was."""
    if x is None:
        raise ValueError("there is nobody who knows")
    raise ValueError(f"{x} goes on")  # prose: ok

def _hidden():
    """What goes on here."""
    return "by way of"

class Kept:
    """A class."""

    def method(self):
        """Who calls this goes on."""
'''


def test_docstrings_and_messages(prose: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    found = complaints(prose, path, "docstrings", {"shown", "Kept"})
    assert ["a summary is one line" in line for line in found] == [True, False, False]
    assert "Who calls" in found[1]
    assert "goes on" in found[2]
    assert ["nobody" in line for line in complaints(prose, path, "messages")] == [True]
    assert complaints(prose, path, "docstrings", set()) == []


COMMENTED = '''
"""Return a card."""

x = 1  # it is no
# number of which
# nothing is known

def _hidden():
    """What goes
    on here."""
    y = "by way of"  # there is no number
    return y  # so many (prose: ok)
'''


def test_comments_and_all_docstrings(prose: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(COMMENTED)
    texts = list(prose["comments"](path))
    found = [line for text in texts for line in prose["complaints"](text, prose["_EVERYWHERE"])]
    assert [line.split(":")[1] for line in found] == ["4", "4", "9", "9"]
    for phrase, line in zip(("is no n", "of which n", "What goes", "goes on"), found, strict=True):
        assert phrase in line
    source = tmp_path / "kernel.cpp"
    source.write_text("// Of the rows,\n\nint x;  // one is no\n// number\n")
    texts = list(prose["comments"](source))
    assert [text.line for text in texts] == [1, 3]
    assert all(list(prose["complaints"](text, prose["_EVERYWHERE"])) for text in texts)
    path.write_text('"""Return a number."""\nx = 1  # there is no other\n')
    assert list(prose["comments"](path)) == []


def test_everything_that_users_read_is_found(prose: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    texts = ("README.md", "docs/training.md", "examples/mnist/README.md", "cli/train/options.py", "cli/run.py")
    documented = ("graphkit/model.py", "graphkit/train/trainer.py", "graphkit/ops/nn/conv.py", "models/lenet.py")
    wanted = {*((path, False) for path in texts), *((path, True) for path in documented)}
    files = {Path(path) for path, _ in wanted}
    found = [text for path, shown in prose["shown_in"]() if path in files for text in shown]
    assert wanted <= {(str(text.path), text.is_docstring) for text in found}
