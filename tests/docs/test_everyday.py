"""docs/everyday.md: its code and commands run in order, in an empty folder, and print what the page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from graphkit import cli

PAGE = Path(__file__).parents[2] / "docs" / "everyday.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Numbers depend on the processor, and columns are as wide as their numbers.
NUMBER = re.compile(r"(?<![\w-])-?[\d,]*\d(?:\.\d+)?(?:e[+-]?\d+)?(?![\w-])")


def form(line: str) -> str:
    """Return a line without its numbers and the widths of its columns."""
    return " ".join(NUMBER.sub("#", line).split())


def missing(shown: str, printed: str) -> list[str]:
    """Return the lines of a block that are not printed, in the order of the block; `...` stands for any lines."""
    rest = iter([form(line) for line in printed.splitlines()])
    return [line for line in shown.splitlines() if line != "..." and form(line) not in rest]


@pytest.mark.full
def test_the_page_runs_and_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = ""
    for number, (language, block) in enumerate(BLOCK.findall(PAGE.read_text("utf-8")), 1):
        if language == "python":
            exec(compile(block, f"everyday.md, block {number}", "exec"), {"__name__": f"everyday_{number}"})
        elif language == "sh":
            capsys.readouterr()
            for line in block.replace("\\\n", " ").splitlines():
                name, *words = shlex.split(line)
                assert name == "graphkit"
                assert cli.invoke(words) == 0, line
            printed = "\n".join(capsys.readouterr())
        else:
            assert language == "text"
            # Standard output and errors are captured apart: search each line alone.
            assert [line for line in block.splitlines() if missing(line, printed)] == [], f"block {number}"


def test_a_line_that_is_not_printed_is_found() -> None:
    printed = "loss      0.25\naccuracy  1\nwrote a.onnx: 80 samples"
    assert missing("loss 0.5\n...\nwrote a.onnx: 3 samples", printed) == []
    assert missing("wrote a.onnx: 3 samples\nloss 1", printed) == ["loss 1"]
    assert missing("f1  1", printed) == ["f1  1"]
