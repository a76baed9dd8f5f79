"""graphkit report"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphkit.cli._options import check_run_folder, data_option, json_option, source_options, trust_option, trusted_root
from graphkit.cli._output import log, print_json
from graphkit.cli._ranges import IntRange
from graphkit.errors import UsageError
from graphkit.ir.atomic import write_whole

if TYPE_CHECKING:
    from graphkit.data import Dataset
    from graphkit.model import Model
    from graphkit.report.gathering import Gathering
    from graphkit.report.log import Log
    from graphkit.report.runs import Run

# Default of --refresh with --watch, in seconds.
_REFRESH = 10


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="RUN...")
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False), help="Output file (HTML).")
@click.option(
    "--data",
    "spec",
    metavar="DATA",
    help="Show predictions for the validation part of this data set. Default: the data of each run.",
)
@click.option(
    "--valid",
    "valid_spec",
    metavar="DATA",
    help="Show predictions for all samples of this data set. Default: the validation data of each run.",
)
@data_option
@click.option(
    "--predictions/--no-predictions", default=True, show_default=True,
    help="Show predictions of the models for validation data, or only curves and settings.",
)  # fmt: skip
@click.option(
    "--max-samples",
    type=IntRange(1),
    default=10_000,
    show_default=True,
    help="Maximum number of samples to predict.",
)
@click.option("--title", help="Title of the page. Default: the names of the runs.")
@click.option(
    "--refresh", type=IntRange(1), metavar="SECONDS",
    help=f"Seconds after which the page reloads itself while a run is in progress. Default: {_REFRESH} with --watch, "
    "else never.",
)  # fmt: skip
@partial(trust_option, folder="given as RUN", names_data=True)
@click.option("--watch", is_flag=True, help="Update the page until all runs have ended, or until Ctrl-C.")
@json_option
def command(
    folders: tuple[str, ...],
    output: str,
    spec: str | None,
    valid_spec: str | None,
    data_options: tuple[str, ...],
    predictions: bool,
    max_samples: int,
    title: str | None,
    refresh: int | None,
    trust_run_folder: bool,
    watch: bool,
    as_json: bool,
) -> None:
    """Write an HTML page about one or several RUNs: curves, predictions, settings and the network.

    RUN is the output folder of a training, which may be in progress; the report does not change it. The page needs no
    other files and no network access.

    \b
    graphkit report run/ -o report.html
    graphkit report small/ large/ -o compared.html --no-predictions
    graphkit report run/ -o report.html --watch --refresh 5
    graphkit report run/ -o report.html --data digits
    """
    from graphkit.report.gathering import Gathering

    if not predictions and (spec or valid_spec or data_options):
        raise UsageError("--data, --valid and --data-option are only for predictions: leave out --no-predictions")
    options = source_options(data_options)

    def data_of(run: Run, net: Model) -> Dataset:
        return _validation(run, net, spec, valid_spec, options, trusted=trust_run_folder)

    given = spec is not None or valid_spec is not None
    root = trusted_root()
    gathering = Gathering(data_of if predictions else None, max_samples, strict=given and not watch, external_root=root)
    every = (refresh or _REFRESH) if watch else refresh
    logs: dict[Path, Log] = {}
    told = False
    while True:
        runs = _write(folders, Path(output), gathering, title, every, watch, logs)
        if not watch or not any(_is_awaited(run) for run in runs):
            break
        if not told:
            log(f"wrote {output}; updating it every {every} s until the runs end, or until Ctrl-C")
            told = True
        time.sleep(every or _REFRESH)
    if as_json:
        print_json("report", {"page": output, "runs": [_described(run) for run in runs]})
    else:
        log(f"wrote {output}")


def _is_awaited(run: Run) -> bool:
    """Whether the run is in progress, or has not begun."""
    return run.goes_on or not (run.epochs or run.steps)


def _write(
    folders: tuple[str, ...], page_path: Path, gathering: Gathering, title: str | None, every: int | None, watch: bool,
    logs: dict[Path, Log],
) -> list[Run]:  # fmt: skip
    """Write the page and return the runs that it shows."""
    from graphkit.report.page import page, title_of
    from graphkit.report.runs import read_runs

    for folder in folders:
        check_run_folder(folder)
    runs = read_runs(folders, waiting=watch, logs=logs)
    reported = [gathering.of(run) for run in runs]
    if not watch:
        for note in (note for r in reported for note in (*r.run.notes, *r.notes)):
            log(f"graphkit: warning: {note}")
    refresh = every if any(_is_awaited(run) for run in runs) else None
    write_whole(page_path, [page(reported, title or title_of(runs), refresh=refresh).encode()])
    return runs


def _described(run: Run) -> dict[str, object]:
    return {
        "name": run.name, "folder": str(run.folder), "state": run.status, "epochs": len(run.epochs),
        "steps": len(run.steps), "last": dict(run.epochs[-1]) if run.epochs else None, "notes": list(run.notes),
    }  # fmt: skip


def _validation(
    run: Run, net: Model, spec: str | None, valid_spec: str | None, options: dict[str, object], *, trusted: bool
) -> Dataset:
    """Return the data that the model of a run predicts.

    trusted: whether to read files and call functions that only the run folder names. Raises UsageError if they are
    needed and not trusted, or if neither the command nor the run names any data.
    """
    from graphkit.cli.train import data, objective
    from graphkit.data import sources

    own = run.options
    if valid_spec is None and spec is None:
        # Paths in the config are absolute.
        spec, valid_spec = (run.settings.get(name, own.get(f"{name}_spec")) for name in ("data", "valid"))
        options = source_options(tuple(own.get("data_options") or ())) | options
        foreign = [s for s in (spec, valid_spec) if s is not None and not sources.comes_with_package(s)]
        if foreign and not trusted:
            raise UsageError(
                f"the run folder refers to the data {', '.join(foreign)}. Name the data with --data or --valid, or add "
                "--trust-run-folder if you made this folder"
            )
    if spec is None and valid_spec is None:
        raise UsageError(
            "the run folder does not say which data it was trained on; give the data to predict with --data"
        )
    axes = data.axis_options(tuple(own.get("batch_axes") or ()))
    names = objective.target_names(net, tuple(own.get("loss_specs") or ()), own.get("output_name"))
    # Split the data as the run did. Runs without a record of the split were split by the positions of their samples.
    split = str(own.get("split", "position")) if own else None
    parts = data.read_data(net, spec or valid_spec or "", valid_spec, options, axes, split)
    return data.fitted(net, parts, names).test
