"""Draw the loss and the metrics of runs over epochs, as an SVG.

    python examples/curves.py run/ -o examples/mnist/curve.svg --title "ResNet-20 on MNIST" --target accuracy=0.994

Thin lines show single batches in training, dashed lines the training means of epochs, and lines with dots the
validation data. If there are several runs, each has its own colour.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from graphkit.errors import UsageError
from graphkit.ir.atomic import write_whole
from graphkit.report.curves import Chart, Series, charts, thinned
from graphkit.report.runs import read_runs

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP, _BOTTOM = 380, 240, 64, 84, 76, 56
_TICKS, _MOST_POINTS = 5, 400
_STEPS = [n * 10**power for power in range(9) for n in (1, 2, 5)]  # possible distances of the epochs on the axis
_COLOURS = ("#1a7f64", "#d4654a", "#7c5cc4", "#c98a1b", "#3b82c4")
_STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #24292f }
.title { font-size: 17px; font-weight: 650 } .panel { font-weight: 600 } .quiet { fill: #6e7781; font-size: 11.5px }
.back { fill: #ffffff } .grid { stroke: #d8dee4 } .target { stroke: #57606a; stroke-dasharray: 2 3 }
polyline { fill: none; stroke-linejoin: round } .step { stroke-width: 1; opacity: 0.35 }
.train { stroke-width: 1.6; stroke-dasharray: 6 4 } .valid { stroke-width: 2 }
@media (prefers-color-scheme: dark) {
 text { fill: #e6edf3 } .quiet { fill: #9198a1 } .back { fill: #0d1117 } .grid { stroke: #2a3038 }
 .target { stroke: #9198a1 }
}
"""


class Panel:
    """The place of one chart, with its upper left corner at (left, top), and its scales."""

    def __init__(self, chart: Chart, left: float, target: float | None):
        self.chart, self.left, self.target = chart, left, target
        known = _of_epochs(chart)
        told = np.concatenate([s.y for s in known if s.part == "valid"] or [s.y for s in known])
        told = np.append(told[np.isfinite(told)], [] if target is None else [target])
        # The first losses of training are too large for the scale of the validation losses.
        self.low, self.high = _rounded(float(told.min()), float(told.max()))
        self.epochs = max(float(s.epochs.max()) for s in _of_epochs(chart))

    def x(self, epoch: float) -> float:
        return self.left + _WIDTH * epoch / self.epochs

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return _TOP + _HEIGHT * (1 - min(max(share, 0.0), 1.0))

    def svg(self) -> Iterator[str]:
        yield f'<text class="panel" x="{self.left}" y="{_TOP - 12}">{escape(self.chart.title)}</text>'
        for value in np.linspace(self.low, self.high, _TICKS):
            height = self.y(value)
            yield f'<line class="grid" x1="{self.left}" x2="{self.left + _WIDTH}" y1="{height:.1f}" y2="{height:.1f}"/>'
            yield f'<text x="{self.left - 8}" y="{height + 4:.1f}" text-anchor="end">{value:.5g}</text>'
        step = next(n for n in _STEPS if self.epochs <= 6 * n)
        for epoch in range(0, int(self.epochs) + 1, step):
            yield f'<text x="{self.x(epoch):.1f}" y="{_TOP + _HEIGHT + 20}" text-anchor="middle">{epoch}</text>'
        if self.target is not None:
            height = self.y(self.target)
            yield (
                f'<line class="target" x1="{self.left}" x2="{self.left + _WIDTH}" y1="{height:.1f}" y2="{height:.1f}"/>'
            )
        for series in sorted(self.chart.series, key=lambda s: ("step", "train", "valid").index(s.part)):
            yield from self._curve(series)

    def _curve(self, series: Series) -> Iterator[str]:
        colour = _COLOURS[series.run % len(_COLOURS)]
        kept = thinned(series.y, _MOST_POINTS)
        points = [
            (self.x(epoch), self.y(value))
            for epoch, value in zip(series.epochs[kept], series.y[kept], strict=True)
            if math.isfinite(epoch) and math.isfinite(value)
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polyline class="{series.part}" points="{line}" stroke="{colour}"/>'
        if series.part == "valid":
            yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}"/>' for x, y in points)


def _of_epochs(chart: Chart) -> list[Series]:
    """Return the series with one value per epoch. Series without a finite number are left out."""
    return [s for s in chart.series if s.part != "step" and np.isfinite(s.y).any()]


def _rounded(low: float, high: float) -> tuple[float, float]:
    """Return bounds around `low` and `high` for which the ticks are short numbers."""
    width = max(high - low, 1e-6 * max(abs(low), abs(high)), 1e-9) / (_TICKS - 1)
    unit = 10.0 ** math.floor(math.log10(width))
    for step in (1, 2, 2.5, 5, 10, 20):
        bottom = math.floor(low / (step * unit)) * step * unit
        if bottom + step * unit * (_TICKS - 1) >= high:
            return bottom, bottom + step * unit * (_TICKS - 1)
    raise AssertionError("twenty units are more than enough")


def picture(found: Sequence[Chart], title: str, note: str, targets: dict[str, float]) -> str:
    """Return an SVG with one panel per chart, side by side. It follows light and dark themes."""
    width = len(found) * (_LEFT + _WIDTH) + (len(found) - 1) * (_GAP - _LEFT) + 24
    height = _TOP + _HEIGHT + _BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-label="{escape(title)}">',
        f'<style>{_STYLE}</style><rect class="back" width="{width}" height="{height}" rx="8"/>',
        f'<text class="title" x="{_LEFT}" y="32">{escape(title)}</text>',
        f'<text class="quiet" x="{_LEFT}" y="{height - 14}">{escape(note)}</text>',
    ]
    for number, chart in enumerate(found):
        lines += Panel(chart, _LEFT + number * (_WIDTH + _GAP), targets.get(chart.key)).svg()
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="folders that training wrote")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--title", default="")
    parser.add_argument("--target", action="append", default=[], metavar="NAME=VALUE", help="a line at that height")
    args = parser.parse_args()
    targets = {name: float(value) for name, _, value in (text.partition("=") for text in args.target)}
    try:
        found = charts(read_runs(args.runs))
    except UsageError as error:
        parser.error(str(error))
    shown = [c for c in found if not c.costs and c.key != "learning_rate" and _of_epochs(c)]
    if not shown:
        parser.error("no epoch is over")
    note = "over epochs; thin: single batches, dashed: training, with dots: held out"
    svg = picture(shown, args.title, f"{note}, dotted: the aim" if targets else note, targets)
    write_whole(args.output, [svg.encode()])


if __name__ == "__main__":
    main()
