"""graphkit train: the command. `run` does the training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from graphkit import config
from graphkit.cli._groups import OUTPUT, REPORTING, GroupedCommand, option
from graphkit.cli._limits import limit_options
from graphkit.cli._meta import ARGUMENTS
from graphkit.cli._options import (
    data_option,
    device_options,
    external_root_option,
    json_option,
    memory_options,
    model_shape_option,
    preprocessing_option,
)
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


@click.command(cls=GroupedCommand)
@click.pass_context
@click.argument("model", is_eager=True, callback=config_file.argument)
@data_options
@data_option
@option(
    "-o", "--output", "folder", group=OUTPUT, type=click.Path(file_okay=False),
    help="Output folder for the model, checkpoints and the log. Default: runs/DATE-MODEL.",
)  # fmt: skip
@network_options
@loss_options
@optimizer_options
@memory_options
@run_options
@parallel_options
@process_options
@device_options
@external_root_option
@partial(model_shape_option, expose=True)
@partial(preprocessing_option, expose=True)
@limit_options
@option("--print-config", group=REPORTING, is_flag=True, help="Print all options in effect as a .toml file, and exit.")
@json_option
def command(context: click.Context, model: str, folder: str | None, print_config: bool, **options: Any) -> int:
    """Train MODEL: a .json or .onnx file, the output folder of an earlier run, or a .toml file.

    A .toml file names the network (network = "net.json") and contains options by their long names without the
    leading -- (batch-size = 32). Options of the command line override it. --print-config prints such a file.

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
    graphkit train net.json --data digits --fast-dev-run
    graphkit train net.json --data digits --max-steps 1000 -o run/
    graphkit train net.json --data digits --processes 2 --kvstore dist_sync -o run/
    mpiexec -n 2 graphkit train net.json --data digits --kvstore dist_sync -o run/
    graphkit train net.json --data digits --processes 2 --kvstore dist_sync --place a=0 --place b=1 --micro-batches 8
    graphkit train net.json --data sentences:reviews/ --optimizer adam -o run/
    graphkit train net.json -o run/ --resume
    graphkit train lm.json --data text:book.txt --output-name logits --recurrent-state h=last_h -o run/
    graphkit train config.toml --lr 0.02 -o run/
    graphkit train run/config.toml -o again/
    """
    network = config_file.network_of(context, model)
    if print_config:
        seed = config.SEED.get() if options["seed"] is None else options["seed"]
        epochs = options["epochs"]
        if epochs is None and options["max_steps"] is None:
            epochs = defaults.EPOCHS
        values = {**context.params, "seed": seed, "epochs": epochs}
        click.echo(config_file.effective(context.command, values, network), nl=False)
        return 0
    resume = options["resume"]
    if resume and folder is None:
        folder = _resumed(model)
    if resume and not options["find_lr"]:
        options |= job_of_run(context, options, notes_before(str(folder)))
    job = Job.of(options)
    if resume and job.is_to_be_started and context.get_parameter_source("processes") is ParameterSource.DEFAULT:
        log(f"resuming with {job.processes} processes, as before; to resume with one process: --processes 1")
    _check_trial(options)
    # Neither --find-lr nor --fast-dev-run makes a folder that the command line does not name.
    given = folder is not None or options["find_lr"] or options["fast_dev_run"] is not None
    with contextlib.nullcontext(folder) if given else _dated(network.name or model) as kept:
        return _trained(context, network, model, kept, given, job, options)


def _check_trial(options: dict[str, Any]) -> None:
    """Raise UsageError if --fast-dev-run is combined with an option of real runs."""
    if options["fast_dev_run"] is None:
        return
    for name, why in (
        ("resume", "continues a run, which a trial would spoil"),
        ("overwrite", "deletes a run, which a trial cannot replace"),
        ("find_lr", "takes its own number of steps"),
    ):
        if options[name]:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"--fast-dev-run tries a new run, but {flag} {why}: leave out {flag}")


def _trained(
    context: click.Context, network: Any, model: str, folder: str | None, given: bool, job: Job, options: dict[str, Any]
) -> int:
    """Train, and return the exit code. given: whether the command line decides about the output folder."""
    resume = options["resume"]
    if job.is_to_be_started:
        if options["find_lr"]:
            raise UsageError("--find-lr only works with one process: leave out --processes, --kvstore and --servers")
        arguments = context.meta[ARGUMENTS]
        return job.run(arguments if given else [*arguments, "-o", str(folder)], folder)
    if resume and options["overwrite"]:
        raise UsageError(
            "--resume and --overwrite contradict each other: --resume continues the run in the folder, --overwrite "
            "deletes it. Leave out one of them"
        )
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


def _resumed(model: str) -> str:
    """Return MODEL if it is the folder of a run, which --resume continues. Raises UsageError if it is not."""
    from graphkit.train import checkpoint

    if not checkpoint.exists(model):
        raise UsageError(f"--resume needs the folder of the run: graphkit train RUN/ --resume, or {model} with -o RUN/")
    return model


@contextlib.contextmanager
def _dated(model: str) -> Iterator[str]:
    """Make a folder for a run without -o: `runs/2026-11-28-093000-net`, with a number if that exists.

    The folder is removed again if it is empty at the end.
    """
    name = Path(f"{datetime.now():%Y-%m-%d-%H%M%S}-{Path(model).stem or 'model'}")
    found, number = Path("runs") / name, 2
    while True:
        try:
            found.mkdir(parents=True)
            break
        except FileExistsError:  # another run began in the same second
            found, number = Path("runs") / f"{name}-{number}", number + 1
        except OSError as error:
            raise RuntimeFailure(
                f"{found} cannot be written: {error.strerror or error}; choose an output folder: -o RUN/"
            ) from error
    try:
        yield str(found)
    finally:
        with contextlib.suppress(OSError):  # not empty
            found.rmdir()
            found.parent.rmdir()
