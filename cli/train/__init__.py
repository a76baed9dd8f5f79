"""graphkit train: the command; what it does is in `run`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from graphkit import config
from graphkit.cli._limits import limit_options
from graphkit.cli._meta import ARGUMENTS
from graphkit.cli._options import data_option, device_options, external_root_option, json_option, memory_options
from graphkit.cli._output import log
from graphkit.cli._processes import Job, process_options
from graphkit.cli.train import config_file, stopping
from graphkit.cli.train.options import (
    data_options,
    loss_options,
    network_options,
    optimizer_options,
    parallel_options,
    run_options,
)
from graphkit.cli.train.resume import job_of_run, notes_before
from graphkit.errors import RuntimeFailure, UsageError
from graphkit.train import defaults


@click.command()
@click.pass_context
@click.argument("model", is_eager=True, callback=config_file.argument)
@data_options
@data_option
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(file_okay=False),
    help="Folder for model, checkpoint and log (default: runs/DATE-MODEL).",
)
@network_options
@loss_options
@optimizer_options
@memory_options
@run_options
@parallel_options
@process_options
@device_options
@external_root_option
@limit_options
@click.option("--print-config", is_flag=True, help="Print all options in effect as a .toml file, and do nothing else.")
@json_option
def command(context: click.Context, model: str, folder: str | None, print_config: bool, **options: Any) -> int:
    """Train MODEL: a .json or .onnx file, a folder that an earlier training wrote, or a .toml file, which has the
    network and any of the options below by their long names.

    \b
    graphkit train net.json --data digits --epochs 10 -o run/
    graphkit train net.json --data photos/ --data-option augment=crop,flip --epochs 20 -o run/
    graphkit train net.onnx --data mnist/ --optimizer adam --lr 1e-3 -o run/
    graphkit train net.json --data digits --epochs 50 --lr-schedule cosine --early-stop 5 --keep-best -o run/
    graphkit train net.onnx --data pets.npz --head classes=37 --train 'fc*' --label-smoothing 0.1 -o run/
    graphkit train net.onnx --data pets.npz --mixup 0.2 --class-weights balanced -o run/
    graphkit train two.json --data both.npz --loss kind=softmax_cross_entropy --loss size=mse --loss-weight size=0.5
    graphkit train bert.onnx --data reviews.npz --head classes=2 --head pool=first --head-at last_hidden_state -o run/
    graphkit train net.json --data digits --find-lr
    graphkit train net.json --data digits --processes 2 --kvstore dist_sync -o run/
    mpiexec -n 2 graphkit train net.json --data digits --kvstore dist_sync -o run/
    graphkit train net.json --data digits --processes 2 --kvstore dist_sync --place a=0 --place b=1 --micro-batches 8
    graphkit train net.json --data sentences:reviews/ --optimizer adam -o run/
    graphkit train net.json -o run/ --resume
    graphkit train net.json --data text:book.txt --metric perplexity --carry h=last_h --carry c=last_c -o run/
    graphkit train config.toml --lr 0.02 -o run/
    graphkit train run/config.toml -o again/
    """
    network = config_file.network_of(context, model)
    if print_config:
        seed = config.SEED.get() if options["seed"] is None else options["seed"]
        epochs = defaults.EPOCHS if options["epochs"] is None else options["epochs"]
        values = {**context.params, "seed": seed, "epochs": epochs}
        click.echo(config_file.effective(context.command, values, network), nl=False)
        return 0
    resume = options["resume"]
    if resume and folder is None:
        raise UsageError("--resume needs the folder, -o")
    if resume and not options["find_lr"]:
        options |= job_of_run(context, options, notes_before(str(folder)))
    job = Job.of(options)
    if resume and job.is_to_be_started and context.get_parameter_source("processes") is ParameterSource.DEFAULT:
        log(f"the run had {job.processes} processes; --processes 1 resumes it with one")
    given = folder is not None or options["find_lr"]
    with contextlib.nullcontext(folder) if given else _dated(network.name or model) as kept:
        return _trained(context, network, model, kept, given, job, options)


def _trained(
    context: click.Context, network: Any, model: str, folder: str | None, given: bool, job: Job, options: dict[str, Any]
) -> int:
    """The exit code of training into a folder, which the command line names if `given`."""
    resume = options["resume"]
    if job.is_to_be_started:
        if options["find_lr"]:
            raise UsageError("--find-lr looks for a rate in one process: leave --processes and --kvstore out")
        arguments = context.meta[ARGUMENTS]
        return job.run(arguments if given else [*arguments, "-o", str(folder)], folder)
    if resume and options["overwrite"]:
        raise UsageError("--resume goes on with the run that --overwrite would remove: choose one")
    if not resume and options["data_spec"] is None:
        raise click.MissingParameter(param=next(p for p in context.command.params if p.name == "data_spec"))
    from graphkit.train import checkpoint

    path = None if folder is None else Path(folder)
    replaces = path is not None and options["overwrite"] and checkpoint.exists(path)
    with stopping.told(model, path, replaces):
        from graphkit.cli.train import run

        if options["find_lr"]:
            run.find_rate(context, network, path, job.store(), options)
        else:
            run.train(context, network, path, job.store(), options)
    return 0


@contextlib.contextmanager
def _dated(model: str) -> Iterator[str]:
    """A new folder for a run that is given none: `runs/2026-11-28-093000-net`, with a number where there is such a one.

    It is removed again where training leaves nothing in it.
    """
    name = Path(f"{datetime.now():%Y-%m-%d-%H%M%S}-{Path(model).stem or 'model'}")
    found, number = Path("runs") / name, 2
    while True:
        try:
            found.mkdir(parents=True)
            break
        except FileExistsError:  # somebody who began in the same second has it
            found, number = Path("runs") / f"{name}-{number}", number + 1
        except OSError as error:
            raise RuntimeFailure(f"{found} cannot be written: {error.strerror or error}; give a folder (-o)") from error
    try:
        yield str(found)
    finally:
        with contextlib.suppress(OSError):  # it is not empty
            found.rmdir()
            found.parent.rmdir()
