"""The results of a benchmark as one SVG: speed relative to one of the engines, a panel per number of threads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from paired import quotients

from graphkit.checks.timing import geometric_mean, paired_ratio


@dataclass(frozen=True)
class Comparison:
    """The content of a chart.

    Attributes:
        title: The title of the chart.
        titles: The names of the engines.
        base: The engine whose speed is 1.
        marked: The engines other than `base` and graphkit, with the mark of each: dot or diamond.
    """

    title: str
    titles: Mapping[str, str]
    base: str
    marked: Mapping[str, str]


_LABELS, _PANEL, _GAP, _MARGIN, _NUMBERS = 268, 330, 28, 24, 46
_ROW, _TOP, _BOTTOM, _BAR = 28, 112, 66, 13
# The axis reaches at least 2**LEAST and at most 2**LIMIT in both directions. Larger values are drawn at its end.
_LEAST, _LIMIT = 1, 3
_NOTE = "float32; medians of paired rounds with their 95% intervals; what lies beyond the axis is drawn at its end"
_STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #24292f }
.title { font-size: 18px; font-weight: 650 } .panel { font-weight: 600 } .quiet { fill: #6e7781; font-size: 11.5px }
.mean { font-weight: 650 } .value { font-size: 12px; font-variant-numeric: tabular-nums }
.back { fill: #ffffff } .grid { stroke: #d8dee4; stroke-width: 1 } .base { stroke: #57606a; stroke-width: 1.5 }
.band { fill: #f6f8fa } .faster { fill: #1a7f64 } .slower { fill: #d4654a }
.whisker { stroke: #24292f; stroke-width: 1.2 }
.dot { fill: #7c5cc4 } .diamond { fill: #c98a1b } .mark { stroke: #ffffff; stroke-width: 1.2 }
@media (prefers-color-scheme: dark) {
 text { fill: #e6edf3 } .quiet { fill: #9198a1 } .back { fill: #0d1117 }
 .grid { stroke: #2a3038 } .base { stroke: #9198a1 } .band { fill: #151b23 }
 .faster { fill: #2fb391 } .slower { fill: #e07a5f } .whisker { stroke: #e6edf3 }
 .dot { fill: #a48be0 } .diamond { fill: #dba642 } .mark { stroke: #0d1117 }
}
"""


def chart(result: Mapping[str, Any], comparison: Comparison) -> str:
    """An SVG that follows light and dark themes. Bars are graphkit, with 95% intervals; marks are the other engines."""
    rows = result["rows"]
    counts = sorted({row["threads"] for row in rows})
    names = list(dict.fromkeys(row["workload"] for row in rows))
    base = comparison.base
    panels = {threads: _speeds([r for r in rows if r["threads"] == threads], names, base) for threads in counts}
    every = [r["median"] for panel in panels.values() for row in panel.values() for r in row.values()]
    reach = max(_LEAST, min(_LIMIT, math.ceil(max((abs(math.log2(v)) for v in every), default=0))))
    titles = {row["workload"]: row["title"] for row in rows}
    width = _MARGIN + _LABELS + len(counts) * (_PANEL + _NUMBERS) + (len(counts) - 1) * _GAP + _MARGIN
    height = _TOP + (len(names) + 1) * _ROW + _BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-label="{escape(comparison.title)}, float32">',
        f"<style>{_STYLE}</style>",
        f'<rect class="back" width="{width}" height="{height}" rx="8"/>',
        _text(_MARGIN, 36, comparison.title, "title"),
        *_legend(result, comparison),
    ]
    for number, name in enumerate([*names, "mean"]):
        y = _TOP + number * _ROW
        if number % 2 == 0:
            lines.append(
                f'<rect class="band" x="{_MARGIN - 8}" y="{y}" width="{width - 2 * _MARGIN + 16}" height="{_ROW}"/>'
            )
        label, kind = (titles[name], "label") if name != "mean" else ("geometric mean", "mean")
        lines.append(_text(_MARGIN, y + _ROW / 2 + 4.5, label, kind))
    for number, threads in enumerate(counts):
        left = _MARGIN + _LABELS + number * (_PANEL + _NUMBERS + _GAP)
        lines += _panel(left, threads, panels[threads], [*names, "mean"], reach, comparison.marked)
    machine = result["machine"]
    versions = ", ".join(f"{comparison.titles[e]} {v}" for e, v in result["engines"].items() if v is not None)
    about = f"{machine['cpu']}, {machine['cores']} cores; {versions}; {result['date']}"
    rule = _TOP + len(names) * _ROW
    lines += [
        f'<line class="grid" x1="{_MARGIN - 8}" y1="{rule}" x2="{width - _MARGIN + 8}" y2="{rule}"/>',
        _text(_MARGIN, height - 34, _NOTE, "quiet"),
        _text(_MARGIN, height - 16, about, "quiet"),
    ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _speeds(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], base: str
) -> dict[str, dict[str, dict[str, float]]]:
    """Per workload and engine, and for their geometric mean: the base's time over the engine's, with interval."""
    speeds: dict[str, dict[str, dict[str, float]]] = {name: {} for name in names}
    groups: dict[str, list[Any]] = {}
    for row in rows:
        for engine, measured in row["engines"].items():
            other = row["engines"].get(base, {})
            if engine == base or "rounds" not in measured or "rounds" not in other:
                continue
            processes = [
                {engine: {"rounds": own}, base: {"rounds": others}}
                for own, others in zip(measured["rounds"], other["rounds"], strict=True)
            ]
            groups.setdefault(engine, []).append(quotients(processes, base, engine))
            speeds[row["workload"]][engine] = paired_ratio(groups[engine][-1]).as_dict()
    return speeds | {"mean": {engine: geometric_mean(found).as_dict() for engine, found in groups.items()}}


def _panel(
    left: float,
    threads: int,
    speeds: Mapping[str, Mapping[str, Mapping[str, float]]],
    names: Sequence[str],
    reach: int,
    marked: Mapping[str, str],
) -> Iterator[str]:
    bottom = _TOP + len(names) * _ROW

    def x(ratio: float) -> float:
        place = max(-1.0, min(1.0, math.log2(ratio) / reach))
        return left + _PANEL / 2 * (1 + place)

    yield _text(left, _TOP - 30, f"{threads} thread{'s' if threads > 1 else ''}", "panel")
    for power in range(-reach, reach + 1):
        place = x(2.0**power)
        kind = "grid" if power else "base"
        yield f'<line class="{kind}" x1="{place:.1f}" y1="{_TOP - 6}" x2="{place:.1f}" y2="{bottom}"/>'
        label = f"{2**power}x" if power >= 0 else f"1/{2**-power}x"
        yield _text(place, _TOP - 11, label, "quiet", "middle")
    for number, name in enumerate(names):
        middle = _TOP + (number + 0.5) * _ROW
        mine = speeds[name].get("graphkit")
        end = left + _PANEL + 8
        if mine is None:
            yield _text(end, middle + 4, "n/a", "quiet")
        else:
            yield _bar(x(1.0), x(mine["median"]), middle, mine["median"])
            low, high = x(mine["low"]), x(mine["high"])
            yield f'<line class="whisker" x1="{low:.1f}" y1="{middle:.1f}" x2="{high:.1f}" y2="{middle:.1f}"/>'
            yield _text(end, middle + 4, f"{mine['median']:.2f}x", "value" if name != "mean" else "value mean")
        for engine, mark in marked.items():
            if engine in speeds[name]:
                yield _mark(mark, x(speeds[name][engine]["median"]), middle)


def _bar(start: float, end: float, middle: float, ratio: float) -> str:
    kind = "faster" if ratio >= 1 else "slower"
    left, top, wide = min(start, end), middle - _BAR / 2, max(abs(end - start), 1.0)
    return f'<rect class="{kind}" x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{_BAR}" rx="2"/>'


def _mark(kind: str, x: float, y: float) -> str:
    if kind == "dot":
        return f'<circle class="dot mark" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
    return f'<path class="diamond mark" d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z"/>'


def _legend(result: Mapping[str, Any], comparison: Comparison) -> Iterator[str]:
    x = float(_MARGIN)
    shapes = [
        ('<rect class="faster" y="-10" width="18" height="11" rx="2"/>', "graphkit, faster", 136),
        ('<rect class="slower" y="-10" width="18" height="11" rx="2"/>', "slower", 84),
    ]
    marked = {e: mark for e, mark in comparison.marked.items() if result["engines"].get(e) is not None}
    shapes += [(_mark(mark, 9, -5), comparison.titles[engine], 112) for engine, mark in marked.items()]
    for shape, label, room in shapes:
        yield f'<g transform="translate({x:.0f} 62)">{shape}{_text(24, 0, label, "label")}</g>'
        x += room


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
