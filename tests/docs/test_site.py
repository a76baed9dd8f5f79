"""Pages read the same on a host of repositories and in the site that mkdocs builds."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from combinations import in_one_item

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def hooks(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("hooks")


@pytest.mark.parametrize(
    ("source", "page", "text", "expected"),
    [
        ("README.md", "index.md", "[a](docs/files.md#the-proof)", "[a](files.md#the-proof)"),
        ("README.md", "index.md", "[`a` [b]](CONTRIBUTING.md)", "[`a` [b]](CONTRIBUTING.md)"),
        ("docs/files.md", "files.md", "[a](../README.md)", "[a](index.md)"),
        ("docs/files.md", "files.md", "![a](layers.svg)", "![a](layers.svg)"),
        ("docs/tutorial/4-onnx.md", "tutorial/4-onnx.md", "[a](../files.md)", "[a](../files.md)"),
        ("bench/README.md", "bench/README.md", "[a](../docs/engine.md)", "[a](../engine.md)"),
        ("docs/files.md", "files.md", "[a](#here) [b](https://example.org/x.md)", "[a](#here) [b](https://example.org/x.md)"),
        ("docs/files.md", "files.md", "[no page of it](../pyproject.toml) here", "no page of it here"),
    ],
)  # fmt: skip
def test_links_lead_to_pages(hooks: ModuleType, source: str, page: str, text: str, expected: str) -> None:
    assert hooks.relinked(text, source, page) == expected


def test_code_has_no_links(hooks: ModuleType) -> None:
    text = "```\nf[0](README.md)\n```\n`g[0](README.md)`"
    assert hooks.relinked(text, "docs/files.md", "files.md") == text


def test_a_link_to_nothing_is_a_warning(hooks: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        hooks.relinked("[a](nowhere.md)", "docs/files.md", "files.md")
    assert "docs/files.md leads to 'nowhere.md'" in caplog.text


def test_patterns_become_pages(hooks: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    nav = hooks.expanded([{"Tutorial": "tutorial/*.md"}, {"Files": ["files.md", {"Results": "bench/results/*.md"}]}])
    assert nav[0]["Tutorial"][0] == "tutorial/1-first-network.md"
    assert "bench/results/2026-11-conformance.md" in nav[1]["Files"][1]["Results"]
    with caplog.at_level(logging.WARNING):
        hooks.expanded("nowhere/*.md")
    assert "no page is like 'nowhere/*.md'" in caplog.text


def read_otherwise(text: str) -> Iterator[str]:
    """Yield lines that Python-Markdown reads differently from other programs.

    It needs an empty line before a list or a table, and four spaces before the contents of an item.
    """
    before = ""
    for line in FENCED.sub("", text).splitlines():
        item = re.match(r"( *)(?:[-*]|\d+\.) ", line)
        inside = before.startswith(" ") or re.match(r" *(?:[-*]|\d+\.) ", before)
        if item and (len(item[1]) % 4 or (before and not inside)):
            yield line
        if line.startswith("|") and before and not before.startswith("|"):
            yield line
        before = line


@in_one_item()
@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_lists_and_tables_are_read_alike(path: Path) -> None:
    assert list(read_otherwise(path.read_text("utf-8"))) == []


def test_what_is_read_otherwise_is_found() -> None:
    assert list(read_otherwise("Text\n- item")) == ["- item"]
    assert list(read_otherwise("- item\n  - nested")) == ["  - nested"]
    assert list(read_otherwise("Text\n| a | b |")) == ["| a | b |"]
    assert list(read_otherwise("- item\n  goes on\n- item\n    - nested\n\n| a |\n| - |\n")) == []
