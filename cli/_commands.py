"""All commands: one file per sub-command, loaded when it is called; what becomes of their errors."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import click

from graphkit.cli import _interrupts
from graphkit.cli._meta import ARGUMENTS
from graphkit.cli._output import log
from graphkit.cli._streams import OutputLost, told
from graphkit.errors import GraphkitWarning, RuntimeFailure, did_you_mean

# Sub-command -> one line of help; the module of the same name defines `command`.
COMMANDS = {
    "quickstart": "Build, train, export, run and verify LeNet on handwritten digits.",
    "build": "Write a model of the zoo, or one defined in a Python file.",
    "train": "Train a model on a data set.",
    "report": "Write a page with curves and predictions of runs.",
    "export": "Write a model as standard ONNX, and verify it.",
    "run": "Run a model and write its outputs.",
    "verify": "Compare graphkit with ONNX Runtime on one model.",
    "grad": "Write the gradient graph of a model, or check it numerically.",
    "inspect": "Show what is in a model.",
    "plan": "Show the memory plan of a model.",
    "records": "Pack pictures into a record file, list or check one.",
    "ops": "List operators, and how a model's operators are supported.",
    "bench": "Time a model, side by side with ONNX Runtime.",
    "doctor": "Report on this installation and machine.",
}


class _Commands(click.Group):
    """Finds commands by name without importing the others, and suggests the closest name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = tuple(args)  # for commands that start others like themselves
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # click would take it for that of standard output, and end without a word
            raise RuntimeFailure(f"another process has closed a pipe that this one writes to: {error}") from error

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
            raise click.UsageError(f"no command {args[0]!r}{did_you_mean(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        import graphkit

        click.echo(f"graphkit {graphkit.__version__}")
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--traceback", "whole", is_flag=True, help="Show where an error was raised, down to the line of Python.")
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Show the version."
)
def cli(whole: bool) -> None:
    """Define or import a network, differentiate, run and train it, and prove what it exports.

    Results go to stdout, everything else to stderr. Exit codes: 0 ok, 1 a check failed, 2 usage, 3 unsupported
    operator, 4 invalid or unsafe model, 5 runtime failure, 130 Ctrl-C, 141 stdout closed, 143 SIGTERM. With --json an
    error is an object on stdout too.
    """


def invoke(argv: Sequence[str]) -> int:
    """Run one command line; return the exit code. In a job of several ranks a failure ends all of them."""
    from graphkit.dist.job import ending

    with ending.abort_on_error():
        return _run(argv, ending.in_company)


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
            if isinstance(error, click.Abort):  # that is what click makes of an interruption
                code = getattr(error, "exit_code", _failure.INTERRUPTED)
                said = (str(error),) if isinstance(error, _failure.Interrupted) else ()
                raise (KeyboardInterrupt(*said) if code == _failure.INTERRUPTED else SystemExit(code)) from None
            raise
        try:
            return _failure.report(error, argv, whole="--traceback" in argv)
        except OutputLost as lost:
            told(lost)
            return _failure.exit_code_of(error)
