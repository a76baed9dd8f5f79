"""Quality of predictions as HTML: confusion matrix, scores per class, plot of predictions over targets."""

from __future__ import annotations

import math
from html import escape

import numpy as np

from graphkit.data import TokenStream
from graphkit.inference.class_scores import class_scores, most_confused
from graphkit.report.predictions import Predictions

# Maximum number of classes for a confusion matrix, and for one with numbers in its cells.
_DRAWN, _NUMBERED = 60, 20
# Maximum number of rows in the table of confusions, and of dots in a plot.
_PAIRS, _DOTS = 12, 1_500


def scores(found: Predictions) -> str:
    """Return HTML: a confusion matrix and a table for classes, the most frequent confusions for tokens, a plot of
    predictions over targets for numbers.
    """
    if found.confusion is not None and isinstance(found.data, TokenStream):
        return _pairs(found)
    if found.confusion is not None:
        matrix = _matrix(found) if len(found.classes) <= _DRAWN else ""
        return f'<div class="pair">{matrix}<div class="wide">{_classes(found)}</div>{_pairs(found)}</div>'
    if found.of_classes or found.target is None or found.predicted is None:
        return ""
    return _scatter(found.target, found.predicted)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def _matrix(found: Predictions) -> str:
    """Return the confusion matrix as SVG: rows are targets, columns predictions, darkness is the share in the row."""
    matrix = found.confusion
    assert matrix is not None, "there are classes"
    count = len(found.classes)
    numbered = count <= _NUMBERED
    cell = 34.0 if count <= 12 else 26.0 if numbered else max(7.0, 420.0 / count)
    labels = [_shortened(name, 14) for name in found.classes] if numbered else []
    left = 26.0 + max((len(text) for text in labels), default=0) * 6.7
    slanted = max(map(len, labels), default=0) * 6.7 > cell
    top = 26.0 + (max(map(len, labels), default=0) * 6.4 * 0.75 if slanted else 18.0 if labels else 0.0)
    width, height = left + cell * count + (60.0 if slanted else 4.0), top + cell * count + 4.0
    totals = np.maximum(matrix.sum(axis=1), 1)
    parts = [
        f'<text x="{left + cell * count / 2:.1f}" y="12" text-anchor="middle">predicted</text>',
        f'<text transform="translate(11 {top + cell * count / 2:.1f}) rotate(-90)" text-anchor="middle">target</text>',
        f'<rect class="under" x="{left:g}" y="{top:g}" width="{cell * count:g}" height="{cell * count:g}"/>',
    ]
    for i, text in enumerate(labels):
        middle = top + (i + 0.5) * cell + 4
        parts.append(f'<text x="{left - 6:g}" y="{middle:g}" text-anchor="end">{escape(text)}</text>')
        x = left + (i + 0.5) * cell
        turned = f'transform="translate({x:.1f} {top - 6:.1f}) rotate(-45)"'
        where = turned if slanted else f'x="{x:g}" y="{top - 6:g}" text-anchor="middle"'
        parts.append(f"<text {where}>{escape(text)}</text>")
    for row, column in zip(*np.nonzero(matrix), strict=True):
        share = matrix[row, column] / totals[row]
        x, y = left + column * cell, top + row * cell
        title = (
            f"{found.classes[row]} predicted as {found.classes[column]}: {matrix[row, column]:,} of {totals[row]:,} "
            f"({share:.1%})"
        )
        kind = "cell" if row == column else "wrong"
        opacity = 0.08 + 0.92 * share
        parts.append(
            f'<rect class="{kind}" x="{x + 1:g}" y="{y + 1:g}" width="{cell - 2:g}" height="{cell - 2:g}" '
            f'fill-opacity="{opacity:.3f}"><title>{escape(title)}</title></rect>'
        )
        if numbered:
            on = "on" if opacity > 0.55 else "in"
            parts.append(
                f'<text class="{on}" x="{x + cell / 2:g}" y="{y + cell / 2 + 4:g}">{matrix[row, column]}</text>'
            )
    return (
        f'<svg class="confusion" width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.1f} {height:.1f}" '
        f'role="img" aria-label="Confusion matrix">{"".join(parts)}</svg>'
    )


def _classes(found: Predictions) -> str:
    assert found.confusion is not None, "there are classes"
    rows = []
    for score in class_scores(found.confusion, found.classes):
        cells = "".join(f'<td class="n">{_share(v)}</td>' for v in (score.precision, score.recall, score.f1))
        rows.append(
            f'<tr><td>{escape(score.name)}</td>{cells}<td class="n">{score.count:,}</td>'
            f'<td class="n">{score.predicted:,}</td></tr>'
        )
    heads = ("precision", "recall", "F1", "samples", "predicted")
    columns = "<th>class</th>" + "".join(f'<th class="n">{head}</th>' for head in heads)
    return f'<table class="classes"><thead><tr>{columns}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _share(value: float) -> str:
    if math.isnan(value):
        return "\N{EN DASH}"
    return f'{value:.3f}<span class="share"><i style="width:{100 * value:.0f}%"></i></span>'


def _pairs(found: Predictions) -> str:
    """Return a table of the most frequent confusions; empty if the matrix shows all numbers."""
    assert found.confusion is not None, "there are classes"
    tokens = isinstance(found.data, TokenStream)
    pairs = most_confused(found.confusion, _PAIRS) if tokens or len(found.classes) > _NUMBERED else []
    if not pairs:
        return ""
    names = [repr(name) for name in found.classes] if tokens else found.classes
    rows = "".join(
        f'<tr><td>{escape(names[t])}</td><td>{escape(names[p])}</td><td class="n">{n:,}</td></tr>' for t, p, n in pairs
    )
    head = '<thead><tr><th>target</th><th>predicted</th><th class="n">times</th></tr></thead>'
    return f'<div><h3>Most frequent confusions</h3><table class="pairs">{head}<tbody>{rows}</tbody></table></div>'


def _scatter(target: np.ndarray, predicted: np.ndarray) -> str:
    """Return a plot of predictions over targets, with a line where both are equal."""
    good = np.flatnonzero(np.isfinite(target) & np.isfinite(predicted))
    kept = good[:: max(1, -(-len(good) // _DOTS))]
    if not len(kept):
        return '<p class="note">All predictions are NaN or infinite.</p>'
    x, y = target[kept], predicted[kept]
    low, high = min(x.min(), y.min()), max(x.max(), y.max())
    span = (high - low) or 1.0
    size, pad = 340.0, 42.0

    def at(values: np.ndarray) -> np.ndarray:
        return np.asarray((values - low) / span * (size - 2 * pad) + pad)

    dots = "".join(f'<circle cx="{a:.1f}" cy="{size - b:.1f}" r="2.4"/>' for a, b in zip(at(x), at(y), strict=True))
    ends = f"{low:.4g}", f"{high:.4g}"
    return (
        f'<svg class="scatter" viewBox="0 0 {size:g} {size:g}" role="img" aria-label="Predictions over targets">'
        f'<line x1="{pad}" y1="{size - pad}" x2="{size - pad}" y2="{pad}"/>{dots}'
        f'<text x="{size / 2}" y="{size - 10}" text-anchor="middle">target</text>'
        f'<text transform="translate(16 {size / 2}) rotate(-90)" text-anchor="middle">predicted</text>'
        f'<text x="{pad}" y="{size - 24}" text-anchor="middle">{ends[0]}</text>'
        f'<text x="{size - pad}" y="{size - 24}" text-anchor="middle">{ends[1]}</text></svg>'
    )
