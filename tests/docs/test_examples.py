"""Every Python block of the README and the guides runs, in order, in one namespace per file."""

import re
from pathlib import Path

import pytest

from graphkit import cli
from graphkit.ops import registry

ROOT = Path(__file__).parents[2]
# The table of operators is generated, and has no examples.
GUIDES = [path for path in sorted((ROOT / "docs").glob("*.md")) if path.name != "operator_table.md"]
FILES = [ROOT / "README.md", *GUIDES]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def own_operators():
    """Takes operators that an example defines out of the registry again."""
    before = set(registry)
    yield
    for cls in set(registry) - before:
        registry.remove(cls)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_python_blocks(path, tmp_path, monkeypatch, own_operators):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": f"example_{path.stem}"}
    blocks = BLOCK.findall(path.read_text())
    assert blocks
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{path.name}, block {number}", "exec"), namespace)


def test_the_readme_lists_every_command():
    rows = re.findall(r"^\| `graphkit (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(cli.COMMANDS)


def test_links_lead_somewhere():
    for path in FILES:
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
