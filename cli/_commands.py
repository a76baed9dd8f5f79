"""The group of all commands, and the handling of their errors. Each sub-command is a module, imported when called."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import click

from graphkit.cli import _interrupts
from graphkit.cli._meta import ARGUMENTS, MXNET_PARAMETERS
from graphkit.cli._output import log
from graphkit.cli._streams import OutputLost, told
from graphkit.errors import GraphkitWarning, RuntimeFailure, did_you_mean

# Sub-command -> one line of help; the module of the same name defines `command`.
COMMANDS = {
    "quickstart": "Build, train, export, run and verify LeNet on handwritten digits.",
    "build": "Build a model of the zoo, or one that a Python file defines.",
    "train": "Train a model on a data set.",
    "report": "Write an HTML report of training runs: curves, predictions, settings.",
    "export": "Write a model as standard ONNX, and verify it in ONNX Runtime.",
    "simplify": "Write a model with fewer nodes as standard ONNX: fold constants, merge and remove nodes.",
    "quantize": "Quantise a trained model to 8-bit integers, or its weights to 8 or 4 bits; compare and verify it.",
    "prune": "Set the smallest weights of a trained model to 0; with --finetune, train the others; verify it.",
    "reduce": "Find the smallest part of a model for which a command still fails.",
    "run": "Run a model, and show or save its outputs.",
    "predict": "Apply a model to many images, rows or texts, and write a table of predictions.",
    "serve": "Serve models over HTTP: the Open Inference Protocol, images and texts, dynamic batching.",
    "generate": "Continue texts with a language model, token by token.",
    "evaluate": "Compute loss, metrics and a confusion matrix on labelled data.",
    "verify": "Compare a model in graphkit and ONNX Runtime, or two models; find the first node that differs.",
    "diff": "Compare two models: structure, weights, metadata and outputs.",
    "extract": "Write a part of a model, between any two sets of values, as its own model.",
    "grad": "Write the gradient graph of a model, or check gradients numerically.",
    "inspect": "Show nodes, inputs, outputs and parameters of a model.",
    "plan": "Show the memory plan of a model.",
    "records": "Pack images into a RecordIO file (.rec), list or check one.",
    "ops": "List operators; with MODEL, say which of its operators are supported.",
    "bench": "Time a model, and compare it with ONNX Runtime.",
    "doctor": "Report versions, devices and settings of this installation.",
}

# Commands that take several models: for them, a parameter file of MXNet is a model of its own.
_SEVERAL_MODELS = frozenset({"diff", "serve"})


class _Commands(click.Group):
    """Imports a command when it is called, and suggests the closest name for one that does not exist."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = tuple(args)  # for commands that start further processes
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # click would take it for a closed standard output, and exit silently
            raise RuntimeFailure(f"another process closed a pipe that this process writes to: {error}") from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"graphkit.cli.{name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"there is no command {args[0]!r}{did_you_mean(args[0], COMMANDS)}", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        if name not in _SEVERAL_MODELS:
            rest, ctx.meta[MXNET_PARAMETERS] = _without_parameter_files(rest)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _without_parameter_files(args: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Remove each `.params` argument that follows a symbol of MXNet. Return the others, and these files by symbol.

    Raises UsageError if such a symbol is given twice: the file would be read for both models.
    """
    kept: list[str] = []
    files: dict[str, str] = {}
    for argument in args:
        if argument.endswith(".params") and kept and _may_be_symbol(kept) and "--" not in kept:
            files[_value(kept[-1])] = argument
        else:
            kept.append(argument)
    for symbol in files:
        if [_value(argument) for argument in kept].count(symbol) > 1:
            raise click.UsageError(
                f"{symbol} is given twice, so {files[symbol]} would be read for both models; for one of them, give the "
                ".params file of an epoch alone (net-0010.params), or a copy of the symbol"
            )
    return kept, files


def _may_be_symbol(args: Sequence[str]) -> bool:
    """Whether the last argument is a symbol of MXNet, or a .json file that is not the value of an option."""
    path = _value(args[-1])
    if args[-1].startswith("-") or (len(args) > 1 and args[-2].startswith("-")):
        return path.endswith("-symbol.json") and os.path.isfile(path)
    return path.endswith(".json")


def _value(argument: str) -> str:
    """Return the value in an argument `--option=value`, and any other argument itself."""
    return argument.partition("=")[2] if argument.startswith("--") else argument


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        import graphkit

        click.echo(f"graphkit {graphkit.__version__}")
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--traceback", "whole", is_flag=True, help="Show the Python traceback of an error.")
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
def cli(whole: bool) -> None:
    """Build or import neural networks, train, run and differentiate them, and export verified ONNX.

    Results go to stdout, messages to stderr. With --json, errors are also printed to stdout, as a JSON object.

    Exit codes: 0 success, 1 a check failed, 2 wrong usage, 3 unsupported operator, 4 invalid or unsafe model, 5 runtime
    failure, 130 interrupted (Ctrl-C), 141 stdout was closed, 143 terminated (SIGTERM).
    """


def invoke(argv: Sequence[str]) -> int:
    """Run one command line and return the exit code. In a job of several ranks, a failure ends all of them."""
    from graphkit.dist.job import ending

    with ending.abort_on_error():
        return _run(argv, ending.in_running_job)


def _run(argv: Sequence[str], raise_errors: Callable[[], bool] = lambda: False) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("always", GraphkitWarning)
        others = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, GraphkitWarning):
                log(f"graphkit: warning: {message}")
            else:
                others(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        return _command(argv, raise_errors)


def _command(argv: Sequence[str], raise_errors: Callable[[], bool]) -> int:
    try:
        # A command returns its exit code, or nothing for success.
        return cli.main(args=list(argv), prog_name="graphkit", standalone_mode=False) or 0
    except OutputLost as lost:
        if raise_errors():
            raise SystemExit(told(lost)) from None
        return told(lost)
    except Exception as error:
        from graphkit.cli import _failure

        came = _interrupts.came()
        if came is not None and not isinstance(error, click.ClickException | click.Abort):
            error = _failure.Interrupted(came, error)
        if raise_errors() and not isinstance(error, click.ClickException):
            _failure.print_error(error, argv)
            if isinstance(error, click.Abort):  # click raises it for an interrupt
                code = getattr(error, "exit_code", _failure.INTERRUPTED)
                said = (str(error),) if isinstance(error, _failure.Interrupted) else ()
                ending = KeyboardInterrupt(*said) if code == _failure.INTERRUPTED else SystemExit(code)
                if str(error):
                    ending.add_note(str(error))
                raise ending from None
            raise
        try:
            return _failure.report(error, argv, whole="--traceback" in argv)
        except OutputLost as lost:
            told(lost)
            return _failure.exit_code_of(error)
