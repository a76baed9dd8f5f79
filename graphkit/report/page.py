"""Writes the HTML page about runs: curves, predictions, settings side by side, and a drawing of the network."""

from __future__ import annotations

import json
import math
import string
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources

from graphkit.data import TokenStream
from graphkit.ir.counts import counts
from graphkit.model import Model
from graphkit.report.curves import charts, summary
from graphkit.report.network import draw
from graphkit.report.predictions import Predictions
from graphkit.report.runs import Run
from graphkit.report.samples import shown
from graphkit.report.scores import scores
from graphkit.text import human

# Number of samples that are shown as images, and as rows of a table.
_PICTURES, _ROWS = 24, 12


class _Template(string.Template):
    delimiter = "@@"  # JavaScript uses "$" in its own templates


@dataclass(frozen=True)
class Reported:
    """A run with its model and predictions. notes: sentences about why one of them is missing."""

    run: Run
    net: Model | None = None
    predictions: Predictions | None = None
    notes: Sequence[str] = ()


def page(reported: Sequence[Reported], title: str, *, refresh: int | None = None) -> str:
    """Return an HTML page that needs no other files. refresh: seconds after which it reloads itself."""
    runs = [r.run for r in reported]
    found = charts(runs)
    data = {
        "runs": [run.name for run in runs],
        "charts": [chart.to_json() | {"costs": chart.costs} for chart in found],
        "refresh": refresh,
    }
    names, values = summary(runs)
    # A "<" in a name could end the script element.
    embedded = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    notes = [note for r in reported for note in (*r.run.notes, *r.notes)]
    return filled(
        "page.html",
        title=escape(title),
        refresh=f'<noscript><meta http-equiv="refresh" content="{refresh}"></noscript>' if refresh else "",
        js=_file("page.js"),
        about=_about(runs, refresh),
        notes="".join(f'<p class="note">{escape(note)}</p>' for note in notes),
        run_head="<th>run</th><th>state</th>"
        + _heads(["epochs", "updates", "time", *map(_spoken, names), "samples/s", "memory"]),
        run_rows="".join(_row(i, run, row) for i, (run, row) in enumerate(zip(runs, values, strict=True))),
        predictions=section("Predictions", "predictions", _all_predicted(reported)),
        settings=_settings(runs),
        networks=section("Network", "network", _networks(reported)),
        data=embedded,
    )


def filled(template: str, **parts: str) -> str:
    """Return a template of this package with its style sheet and `parts`, which are HTML."""
    return _Template(_file(template)).substitute(css=_file("page.css"), **parts)


def _file(name: str) -> str:
    return resources.files("graphkit.report").joinpath(name).read_text("utf-8")


def _about(runs: Sequence[Run], refresh: int | None) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    again = f", reloaded every {refresh} s" if refresh else ""
    return f"{len(runs)} run{'s' if len(runs) != 1 else ''}, as of {when}{again}"


def section(title: str, name: str, parts: Iterator[str]) -> str:
    """Return a section of a page; empty if its parts are."""
    inside = "".join(parts)
    return f'<section id="{name}"><h2>{title}</h2>{inside}</section>' if inside else ""


# --- the table of runs ----------------------------------------------------------------------------------


def _heads(names: Sequence[str]) -> str:
    return "".join(f'<th class="n">{escape(name)}</th>' for name in names)


def _spoken(name: str) -> str:
    return f"validation {name.removeprefix('valid_')}" if name.startswith("valid_") else name


def _row(index: int, run: Run, values: Sequence[float | None]) -> str:
    last = run.epochs[-1] if run.epochs else {}
    latest = max((*run.epochs[-1:], *run.steps[-1:]), key=lambda r: r["updates"], default={})
    cells = [
        f"{last['epoch']:.0f}" if last else "0",
        f"{latest['updates']:,.0f}" if latest else "0",
        _duration(latest["seconds"]) if latest else "",
        *("" if v is None else number(v) for v in values),
        f"{last['samples_per_second']:,.0f}" if math.isfinite(last.get("samples_per_second", math.nan)) else "",
        human(int(last["peak_memory"])) if math.isfinite(last.get("peak_memory", math.nan)) else "",
    ]
    swatch = f'<span class="swatch" data-run="{index}"></span>'
    numbers = "".join(f'<td class="n">{escape(cell)}</td>' for cell in cells)
    return f"<tr><td>{swatch}{escape(run.name)}</td><td>{escape(run.status)}</td>{numbers}</tr>"


def number(value: float) -> str:
    """Return a number with four digits, or "nan" or "inf"."""
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def _duration(seconds: float) -> str:
    """3725 -> '1:02:05', 4.2 -> '4.2 s'."""
    if not math.isfinite(seconds) or seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes} min {rest} s"


# --- predictions ----------------------------------------------------------------------------------------


def _all_predicted(reported: Sequence[Reported]) -> Iterator[str]:
    """Yield the predictions of each run. With several runs, only those of the first one are unfolded."""
    parts = [(r.run.name, inside) for r in reported if (inside := _predicted(r))]
    for i, (name, inside) in enumerate(parts):
        opened = "" if i else " open"
        title = f"<summary>{escape(name)}</summary>"
        yield inside if len(reported) == 1 else f"<details{opened}>{title}{inside}</details>"


def _predicted(reported: Reported) -> str:
    found = reported.predictions
    if found is None or not len(found):
        return ""
    first = "" if len(found) == found.total else f"the first {len(found):,} of "
    noun = "tokens" if isinstance(found.data, TokenStream) else "samples"
    said = f"{first}{found.total:,} {noun} of {found.data.name}, output {found.output}"
    if found.of_classes:
        said += f": accuracy {found.correct:.2%}, mean cross-entropy {number(float(found.loss.mean()))}"
    else:
        said += f": mean squared error {number(float(found.loss.mean()))}"
    count = _PICTURES if len(shape := _sample_shape(found)) == 3 and shape[0] in (1, 3) else _ROWS
    return (
        f'<p class="soft">{escape(said)}</p>{scores(found)}'
        f"<h3>Largest losses</h3>{shown(found, found.worst(count))}"
        f"<h3>Samples at regular intervals</h3>{shown(found, found.spread(count))}"
    )


def _sample_shape(found: Predictions) -> tuple[int, ...]:
    inputs, _ = found.data.take(found.index[:1])
    first = next(iter(inputs.values())) if isinstance(inputs, dict) else inputs
    return tuple(first.shape[1:])


# --- settings and networks ------------------------------------------------------------------------------


def _settings(runs: Sequence[Run]) -> str:
    names = list(dict.fromkeys(name for run in runs for name in run.settings))
    if not names:
        return ""
    rows, differing = [], 0
    for name in names:
        values = [run.settings.get(name) for run in runs]
        differs = len(set(values)) > 1
        differing += differs
        cells = "".join('<td class="none">not set</td>' if v is None else f"<td>{escape(v)}</td>" for v in values)
        rows.append(f"<tr{' class=differs' if differs else ''}><td>{escape(name)}</td>{cells}</tr>")
    heads = "".join(f"<th>{escape(run.name)}</th>" for run in runs) if len(runs) > 1 else "<th></th>"
    only = ""
    if len(runs) > 1:
        noun = "difference" if differing == 1 else "differences"
        only = f'<p><label><input id="differences" type="checkbox"> only the {differing} {noun}</label></p>'
    table = f"<table><thead><tr><th>setting</th>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return (
        f'<section id="settings"><h2>Settings and versions</h2>{only}<div class="wide settings">{table}</div></section>'
    )


def _networks(reported: Sequence[Reported]) -> Iterator[str]:
    """Yield each drawing once, with the names of all runs that have this network."""
    pictures: dict[str, list[tuple[str, Model]]] = {}
    for r in reported:
        if r.net is not None:
            pictures.setdefault(draw(r.net.graph), []).append((r.run.name, r.net))
    for svg, owners in pictures.items():
        net = owners[0][1]
        whose = f"{', '.join(name for name, _ in owners)}: " if len(reported) > 1 else ""
        about = f"{whose}{net.name}, {len(net.graph.nodes):,} nodes, {counts(net.graph)}"
        yield f'<p class="soft">{escape(about)}</p><div class="network">{svg}</div>'


def title_of(runs: Sequence[Run]) -> str:
    """Return a title with the names of the runs."""
    names = [run.name for run in runs]
    return f"Training of {', '.join(names[:4])}{' and others' if len(names) > 4 else ''}"
