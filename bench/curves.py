"""Draw curves over the number of ranks as an SVG, together with published points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape


@dataclass(frozen=True)
class Curve:
    """`values` between 0 and 1 by number of ranks; `point` is (ranks, value) of someone else."""

    title: str
    ranks: Sequence[int]
    values: Sequence[float]
    point: tuple[int, float] | None = None


_LEFT, _TOP, _WIDTH, _HEIGHT, _LINE = 52, 48, 620, 320, 20
_COLOURS = (
    "#1a7f64", "#d4654a", "#7c5cc4", "#c98a1b", "#3b82c4", "#8c959f", "#b3478f", "#6b7f1a", "#20808a", "#a0522d",
)  # fmt: skip
_STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #24292f }
.title { font-size: 17px; font-weight: 650 } .back { fill: #ffffff } .grid { stroke: #d8dee4 }
polyline { fill: none; stroke-width: 2 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .back { fill: #0d1117 } .grid { stroke: #2a3038 } }
"""


def chart(title: str, curves: Sequence[Curve]) -> str:
    """Draw values from 0 to 1 over the logarithm of ranks. Diamonds are published points, in the curve's colour."""
    last = math.log2(max(r for c in curves for r in c.ranks)) or 1.0
    x = lambda ranks: _LEFT + _WIDTH * math.log2(ranks) / last  # noqa: E731 - a scale
    y = lambda value: _TOP + _HEIGHT * (1 - value)  # noqa: E731 - a scale
    width, height = _LEFT + _WIDTH + 24, _TOP + _HEIGHT + 52 + _LINE * len(curves)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f'<style>{_STYLE}</style><rect class="back" width="{width}" height="{height}"/>',
        f'<text class="title" x="{_LEFT}" y="28">{escape(title)}</text>',
    ]
    for tenth in range(0, 11, 2):
        level = y(tenth / 10)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{level:.1f}" y2="{level:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{level + 4:.1f}" text-anchor="end">{tenth / 10:.0%}</text>')
    axis = sorted({r for c in curves for r in c.ranks})
    parts += [f'<text x="{x(r):.1f}" y="{_TOP + _HEIGHT + 20}" text-anchor="middle">{r}</text>' for r in axis]
    for number, curve in enumerate(curves):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(f"{x(r):.1f},{y(v):.1f}" for r, v in zip(curve.ranks, curve.values, strict=True))
        parts.append(f'<polyline points="{points}" stroke="{colour}"/>')
        line = _TOP + _HEIGHT + 44 + _LINE * number
        parts.append(f'<rect x="{_LEFT}" y="{line - 9}" width="14" height="9" fill="{colour}"/>')
        note = "" if curve.point is None else f"; diamond: {curve.point[1]:.0%} at {curve.point[0]}, Horovod"
        parts.append(f'<text x="{_LEFT + 22}" y="{line}">{escape(curve.title + note)}</text>')
        if curve.point is not None:
            at, value = x(curve.point[0]), y(curve.point[1])
            parts.append(f'<path d="M{at:.1f} {value - 7:.1f}l7 7l-7 7l-7-7z" fill="{colour}"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"
