"""Writes the HTML page about an evaluation: metrics, confusion matrix, reliability diagram, the worst samples."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from typing import Any

import numpy as np

from graphkit.data import Dataset, TokenStream
from graphkit.inference.evaluation import Evaluation
from graphkit.inference.scoring import BINS, Calibration
from graphkit.report.page import filled, number, section
from graphkit.report.predictions import Predictions
from graphkit.report.samples import shown, table_of
from graphkit.report.scores import scores
from graphkit.text import quantity

# Size of the reliability diagram, and the space for its labels.
_SIDE, _PAD = 340.0, 42.0


def evaluation_page(found: Evaluation, title: str | None = None) -> str:
    """Return an HTML page about an evaluation. It needs no other files. title: default: model and data."""
    metrics = dict(found.metrics)
    if found.calibration is not None:
        metrics["calibration error"] = found.calibration_error
    notes = list(found.notes)
    if found.nonfinite:
        notes.append(f"The output contains NaN or infinity for {quantity(found.nonfinite, 'sample')}.")
    return filled(
        "evaluation.html",
        title=escape(title or f"Evaluation of {found.model} on {found.data}"),
        about=escape(_about(found)),
        notes="".join(f'<p class="note">{escape(note)}</p>' for note in notes),
        metric_head="".join(f'<th class="n">{escape(name)}</th>' for name in metrics),
        metric_row="".join(f'<td class="n">{number(value)}</td>' for value in metrics.values()),
        scores=section("Classes" if found.classes else "Predictions", "scores", _scores(found)),
        calibration=section("Calibration", "calibration", _calibration(found)),
        worst=section("Largest losses", "worst", _worst(found)),
    )


def _about(found: Evaluation) -> str:
    noun = "token" if isinstance(found.dataset, TokenStream) else "sample"
    engine = {"onnxruntime": "ONNX Runtime"}.get(found.engine, found.engine)
    return (
        f"{quantity(found.samples, noun)}, {found.task}, output {found.output}, loss {found.loss}; run by {engine} in "
        f"{found.seconds:.3g} s, {time.strftime('%Y-%m-%d %H:%M:%S')}"
    )


def _scores(found: Evaluation) -> Iterator[str]:
    """Yield the confusion matrix with the table of classes, or the plot of predictions over targets."""
    if not isinstance(found.dataset, Dataset):
        return
    empty = np.zeros(0)
    if found.confusion is not None:
        yield scores(
            replace(_predictions(found, found.dataset, empty), confusion=found.confusion, classes=found.classes)
        )
    elif found.pairs is not None:
        target, predicted = found.pairs
        yield scores(replace(_predictions(found, found.dataset, empty), target=target, predicted=predicted))


def _predictions(found: Evaluation, data: Dataset, loss: np.ndarray) -> Predictions:
    return Predictions(data, found.output, found.samples, np.zeros(len(loss), np.int64), loss)


def _worst(found: Evaluation) -> Iterator[str]:
    """Yield the samples with the largest losses: images in a grid, otherwise a table."""
    if not found.worst or not isinstance(found.dataset, Dataset):
        return
    numbers = {name: i for i, name in enumerate(found.classes)}
    columns: dict[str, Any] = {
        "index": np.array([s.index for s in found.worst]),
        "classes": found.classes,
        "names": tuple(s.name for s in found.worst) if found.worst[0].name is not None else None,
    }
    if all(s.target is not None for s in found.worst):
        for name in ("target", "predicted"):
            given = [getattr(sample, name) for sample in found.worst]
            columns[name] = np.array([numbers[v] if isinstance(v, str) else v for v in given])
    if all(s.probability is not None for s in found.worst):
        columns["probability"] = np.array([s.probability for s in found.worst])
    loss = np.array([s.loss for s in found.worst])
    show = table_of if isinstance(found.dataset, TokenStream) else shown
    yield show(replace(_predictions(found, found.dataset, loss), **columns), np.arange(len(loss)))


# --- calibration ----------------------------------------------------------------------------------------


def _calibration(found: Evaluation) -> Iterator[str]:
    """Yield the reliability diagram, and a table of its bins."""
    bins = found.calibration
    if bins is None:
        return
    rows = "".join(
        f'<tr><td>{i / BINS:.3f} to {(i + 1) / BINS:.3f}</td><td class="n">{count:,}</td>'
        f'<td class="n">{_share(probability)}</td><td class="n">{_share(accuracy)}</td></tr>'
        for i, (count, probability, accuracy) in enumerate(
            zip(bins.count, bins.probability, bins.accuracy, strict=True)
        )
        if count
    )
    heads = (
        '<th>probability of the predicted class</th><th class="n">predictions</th><th class="n">mean probability</th>'
    )
    yield (
        f'<p class="soft">Expected calibration error: {number(bins.error)}. Bars show the share of correct '
        "predictions. In a calibrated model, they reach the dashed line.</p>"
        f'<div class="pair">{_diagram(bins)}<div class="wide"><table><thead><tr>{heads}<th class="n">correct</th></tr>'
        f"</thead><tbody>{rows}</tbody></table></div></div>"
    )


def _share(value: float) -> str:
    return "\N{EN DASH}" if math.isnan(value) else f"{value:.3f}"


def _diagram(bins: Calibration) -> str:
    """Return the reliability diagram as SVG: for each bin, the share of correct predictions, and the difference from
    the mean probability.
    """
    inner = _SIDE - 2 * _PAD
    width = inner / BINS
    parts = []
    for i in np.flatnonzero(bins.count):
        x, accuracy, probability = _PAD + i * width, float(bins.accuracy[i]), float(bins.probability[i])
        low, high = sorted((accuracy, probability))
        title = (
            f"{i / BINS:.3f} to {(i + 1) / BINS:.3f}: {quantity(int(bins.count[i]), 'prediction')}, mean probability "
            f"{probability:.3f}, {accuracy:.1%} correct"
        )
        parts += [
            f'<rect class="{kind}" x="{x + 0.5:.1f}" y="{_SIDE - _PAD - upper * inner:.1f}" width="{width - 1:.1f}" '
            f'height="{(upper - lower) * inner:.1f}"><title>{title}</title></rect>'
            for kind, lower, upper in (("bar", 0.0, accuracy), ("gap", low, high))
        ]
    ends = "".join(
        f'<text x="{_PAD + share * inner:g}" y="{_SIDE - 26:g}" text-anchor="middle">{share:g}</text>'
        f'<text x="{_PAD - 6:g}" y="{_SIDE - _PAD - share * inner + 4:g}" text-anchor="end">{share:g}</text>'
        for share in (0, 0.5, 1)
    )
    return (
        f'<svg class="reliability" viewBox="0 0 {_SIDE:g} {_SIDE:g}" role="img" aria-label="Reliability diagram">'
        f'{"".join(parts)}<line x1="{_PAD}" y1="{_SIDE - _PAD}" x2="{_SIDE - _PAD}" y2="{_PAD}"/>{ends}'
        f'<text x="{_SIDE / 2}" y="{_SIDE - 8}" text-anchor="middle">probability of the predicted class</text>'
        f'<text transform="translate(14 {_SIDE / 2}) rotate(-90)" text-anchor="middle">correct predictions</text></svg>'
    )
