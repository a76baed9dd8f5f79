"""The Python blocks of the guide on PyTorch run, and so does its example."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE, EXAMPLE = ROOT / "docs/pytorch.md", ROOT / "examples/pytorch/both_sides.py"

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("onnxscript", reason="onnxscript, which PyTorch's exporter needs, is not installed")
pytestmark = pytest.mark.pytorch


def run(folder, *arguments):
    """Run Python outside of the checkout, whose folder graphkit would hide the installed package."""
    # The first export in a process warns about PyTorch's own code.
    command = [sys.executable, "-W", "ignore", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, cwd=folder).stdout


@pytest.mark.skipif(not GUIDE.exists(), reason="docs/ is not there")
def test_blocks_of_the_guide_print_what_they_show(tmp_path):
    text = GUIDE.read_text()
    blocks = [b for b in re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) if "import torch" in b]
    assert len(blocks) == 2
    assert run(tmp_path, "-c", blocks[0]) == re.search(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1]
    assert re.fullmatch(r"loss (\d\.\d{4})\d and \1\d\n", run(tmp_path, "-c", blocks[1]))


@pytest.mark.skipif(not EXAMPLE.exists(), reason="examples/ is not there")
def test_example_has_the_same_losses_on_both_sides(tmp_path):
    printed = run(tmp_path, EXAMPLE)
    worst = float(re.search(r"largest relative difference of the losses: (\S+)", printed)[1])
    assert worst < 1e-5
    accuracies = re.search(r"test images: (\S+) here, (\S+) in PyTorch", printed)
    assert accuracies[1] == accuracies[2]
    assert float(accuracies[1]) > 0.5
