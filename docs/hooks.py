"""Hooks of `mkdocs build`.

Files outside of docs/, such as the README, become pages of the site. Links between files become links between pages, so
they work in the repository and in the site. Patterns in the navigation are replaced by the pages that match.
"""

from __future__ import annotations

import fnmatch
import logging
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

log = logging.getLogger("mkdocs.hooks.graphkit")

ROOT = Path(__file__).resolve().parents[1]
DOCS = "docs"
# Files outside of docs/ that become pages, by path or pattern. They keep their path unless RENAMED lists them.
OUTSIDE = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "CODE_OF_CONDUCT.md",
    "bench/README.md",
    "bench/results/*.*",
    "examples/*/*.*",
)
RENAMED = {"README.md": "index.md"}
SHOWN = {".md", ".svg", ".png"}

# Matches code, which stays unchanged, or a link: its text, its target and its anchor.
_LINK = re.compile(
    r"^```.*?^```$|`[^`]+`|(\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^()\s#]+)(#[^()\s]*)?\)", re.MULTILINE | re.DOTALL
)


def outside() -> dict[str, str]:
    """Map files outside of docs/, as paths from the root, to their paths in the site."""
    found = [p for pattern in OUTSIDE for p in sorted(ROOT.glob(pattern)) if p.suffix in SHOWN]
    names = [p.relative_to(ROOT).as_posix() for p in found]
    return {name: RENAMED.get(name, name) for name in names}


def pages_like(pattern: str) -> list[str]:
    """Return the pages that match a pattern of the navigation, sorted by name."""
    inside = [p.relative_to(ROOT / DOCS).as_posix() for p in (ROOT / DOCS).glob(pattern)]
    others = fnmatch.filter(outside().values(), pattern)
    found = sorted({*inside, *(p for p in others if p.endswith(".md"))})
    if not found:
        log.warning("navigation: no page is like %r", pattern)
    return found


def expanded(nav: Any) -> Any:
    """Return the navigation with patterns replaced by lists of pages."""
    if isinstance(nav, list):
        parts = [expanded(item) for item in nav]
        return [page for part in parts for page in (part if isinstance(part, list) else [part])]
    if isinstance(nav, dict):
        return {title: expanded(item) for title, item in nav.items()}
    return pages_like(nav) if "*" in nav else nav


def relinked(text: str, source: str, page: str) -> str:
    """Return the text of the file `source` (a path from the root) for `page`, with links to pages instead of files.

    A link to a file without a page is replaced by its text. A link to a missing file is a warning, which fails a strict
    build.
    """
    known = outside()

    def replace(match: re.Match[str]) -> str:
        words, target, place = match.group(1), match.group(2), match.group(3) or ""
        if words is None or re.match(r"[a-z]+:", target):
            return match.group(0)
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not (ROOT / path).exists():
            log.warning("%s leads to %r, which is not there", source, target)
        if path in known:
            reached = known[path]
        elif path.startswith(f"{DOCS}/") and Path(path).suffix in SHOWN:
            reached = path.removeprefix(f"{DOCS}/")
        else:
            return words[1:-1]
        return f"{words}({posixpath.relpath(reached, posixpath.dirname(page) or '.')}{place})"

    return _LINK.sub(replace, text)


# --- what mkdocs calls ------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = expanded(config.nav)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    for path, page in outside().items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    sources = {reached: path for path, reached in outside().items()}
    uri = page.file.src_uri
    return relinked(markdown, sources.get(uri, f"{DOCS}/{uri}"), uri)
