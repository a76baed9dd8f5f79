"""Draw docs/layers.svg from the import contracts in pyproject.toml, which `.ci/run` enforces.

python docs/layers.py
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PICTURE = DOCS / "layers.svg"

# Pixels.
WIDTH, ROW, GAP, MARGIN = 760, 34, 8, 16


def layers(name: str, package: str) -> list[list[str]]:
    """Return the rows of one contract from top to bottom. A row lists its modules, without the prefix `package`."""
    document = tomllib.loads((DOCS.parent / "pyproject.toml").read_text("utf-8"))
    contracts = document["tool"]["importlinter"]["contracts"]
    (contract,) = (c for c in contracts if c["type"] == "layers" and c["name"].startswith(name))
    rows = [row.replace(":", "|").split("|") for row in contract["layers"]]
    return [[module.strip().removeprefix(f"{package}.") for module in row] for row in rows]


def _boxes(rows: Sequence[Sequence[str]], top: float) -> Iterator[str]:
    for number, row in enumerate(rows):
        width = (WIDTH - 2 * MARGIN - GAP * (len(row) - 1)) / len(row)
        y = top + number * (ROW + GAP)
        for place, name in enumerate(row):
            x = MARGIN + place * (width + GAP)
            yield f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{ROW}" rx="4"/>'
            yield f'<text x="{x + width / 2:g}" y="{y + ROW / 2 + 5:g}">{escape(name)}</text>'


def picture() -> str:
    """Return the picture as SVG. A module may only import modules in lower rows."""
    parts: list[str] = []
    y: float = MARGIN
    for title, name, package in (
        ("graphkit", "Arrows point down", "graphkit"),
        ("graphkit.executor", "The layers of the executor", "graphkit.executor"),
        ("graphkit.passes", "The layers of passes", "graphkit.passes"),
        ("graphkit.train", "Training", "graphkit.train"),
        ("graphkit.data", "Data", "graphkit.data"),
        ("graphkit.dist", "The packages of dist", "graphkit.dist"),
    ):
        rows = layers(name, package)
        parts.append(f'<text class="title" x="{MARGIN}" y="{y + 14:g}">{title}</text>')
        parts += _boxes(rows, y + 24)
        y += 24 + len(rows) * (ROW + GAP) + MARGIN
    style = (
        "rect{fill:#eef3f8;stroke:#5b7083}text{font:14px sans-serif;text-anchor:middle;fill:#1d2a35}"
        ".title{font-weight:bold;text-anchor:start}"
        "@media(prefers-color-scheme:dark){rect{fill:#22303c;stroke:#8fa6b8}text{fill:#e6edf3}}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:g}" role="img" aria-label="Layers">'
    return "\n".join([head, f"<style>{style}</style>", *parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(picture(), "utf-8")
