"""The tutorial runs: the Python and the commands of a page, in order, in one folder and one namespace."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphkit import cli
from graphkit.errors import GraphkitError
from graphkit.executor.devices.loading import load_device

PAGES = sorted((Path(__file__).parents[2] / "docs" / "tutorial").glob("*.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(block: str) -> Iterator[list[str]]:
    """The words of each line of a shell block."""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


def has_card() -> bool:
    try:
        load_device("cuda")
    except GraphkitError:
        return False
    return True


def run(words: list[str]) -> None:
    if words[:2] == ["pip", "install"]:
        return  # what runs here is installed
    assert words[0] == "graphkit", f"the tests cannot run {words[0]!r}"
    expected = 0 if "cuda" not in words or has_card() else 5
    assert cli.invoke(words[1:]) == expected, shlex.join(words)


# One page asserts that all of a network is native. Pages that train for long are of the full lane.
MARKS = {
    "1-first-network": [pytest.mark.full],
    "3-training": [pytest.mark.full],
    "6-faster-and-bigger": [pytest.mark.full, pytest.mark.onednn],
}


@pytest.mark.parametrize("path", [pytest.param(p, id=p.stem, marks=MARKS.get(p.stem, ())) for p in PAGES])
def test_a_page_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": f"tutorial_{path.stem}"}
    for number, (language, block) in enumerate(BLOCK.findall(path.read_text("utf-8")), 1):
        assert language in ("python", "sh"), f"block {number}: {language or 'no language'} is not run"
        if language == "python":
            exec(compile(block, f"{path.name}, block {number}", "exec"), namespace)
        else:
            for words in commands(block):
                run(words)


def test_pages_lead_on() -> None:
    """Each page ends with a summary, the next page, and a guide."""
    assert [path.name[0] for path in PAGES] == ["1", "2", "3", "4", "5", "6"]
    for path, following in zip(PAGES, [*PAGES[1:], None], strict=True):
        end = path.read_text("utf-8").split("## What you have learnt")[1]
        links = re.findall(r"\]\(([^)#]+)", end)
        assert following is None or links[0] == following.name
        assert any(link.startswith("../") for link in links)


def test_a_command_that_fails_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match=r"graphkit verify nothing\.onnx"):
        run(["graphkit", "verify", "nothing.onnx"])
