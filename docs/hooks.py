"""What `mkdocs build` needs beside mkdocs.yml.

Pages of the repository that lie outside of docs/, the README first, become pages of the site, and links between files
are made links between pages, so that they lead on in both places. Patterns in the navigation become the pages that fit.
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
# Files outside of docs/ by path or pattern, and the page that one is; whatever is not listed keeps its path.
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

# Code is left as it is; the rest is a link: its text, what it leads to, and the place there.
_LINK = re.compile(
    r"^```.*?^```$|`[^`]+`|(\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^()\s#]+)(#[^()\s]*)?\)", re.MULTILINE | re.DOTALL
)


def outside() -> dict[str, str]:
    """Files of the repository that are no files of docs/: path from the root to path in the site."""
    found = [p for pattern in OUTSIDE for p in sorted(ROOT.glob(pattern)) if p.suffix in SHOWN]
    names = [p.relative_to(ROOT).as_posix() for p in found]
    return {name: RENAMED.get(name, name) for name in names}


def pages_like(pattern: str) -> list[str]:
    """The pages that a pattern of the navigation means, in order of their names."""
    inside = [p.relative_to(ROOT / DOCS).as_posix() for p in (ROOT / DOCS).glob(pattern)]
    others = fnmatch.filter(outside().values(), pattern)
    found = sorted({*inside, *(p for p in others if p.endswith(".md"))})
    if not found:
        log.warning("navigation: no page is like %r", pattern)
    return found


def expanded(nav: Any) -> Any:
    """The navigation with lists of pages in the place of patterns."""
    if isinstance(nav, list):
        parts = [expanded(item) for item in nav]
        return [page for part in parts for page in (part if isinstance(part, list) else [part])]
    if isinstance(nav, dict):
        return {title: expanded(item) for title, item in nav.items()}
    return pages_like(nav) if "*" in nav else nav


def relinked(text: str, source: str, page: str) -> str:
    """The text of the file `source`, a path from the root, as that of `page`: links to files lead to their pages.

    A link to a file that has no page keeps its text alone; one to nothing is a warning, which fails a strict build.
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
