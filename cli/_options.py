"""Options that several commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from graphkit import config, models
from graphkit.cli._output import log
from graphkit.errors import UsageError
from graphkit.model import Model, load

# In the context of a command, whether --trust-run-folder is given.
_TRUSTED = "graphkit.trust_run_folder"


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")(command)


def _permitted(ctx: click.Context, parameter: click.Parameter, threads: int | None) -> int | None:
    return None if threads is None else config.num_threads(threads)


def device_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--threads",
        type=click.IntRange(1),
        callback=_permitted,
        help="Threads (default: GRAPHKIT_NUM_THREADS, else all cores).",
    )(command)
    return click.option(
        "--device", default="cpu", show_default=True, metavar="DEVICE | GROUP=DEVICE,...",
        help="Where to run: cpu, cuda, or cuda:1 for the second card; with a=cuda:0,b=cuda:1,cpu, groups of nodes, and "
        "what is in none.",
    )(command)  # fmt: skip


def device_of(text: str) -> str | dict[str | None, str]:
    """What `--device` says: a name, or names by group, None for nodes in no group. Raises UsageError."""
    parts = text.split(",")
    if len(parts) == 1 and "=" not in text:
        return text
    alone = [part for part in parts if "=" not in part]
    if len(alone) > 1:
        raise UsageError(f"--device {text!r}: {' and '.join(alone)} are both for nodes in no group")
    default: dict[str | None, str] = {None: alone[0]} if alone else {}
    return default | dict(key_values(tuple(part for part in parts if "=" in part), "--device").items())


class Recompute(click.ParamType):
    """`sqrt`, or an amount of memory."""

    name = "sqrt|MEMORY"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        if value == "sqrt" or isinstance(value, int):
            return value
        size = config.memory_size(value)
        if size is None:
            self.fail(f"{value!r} is neither 'sqrt' nor an amount of memory such as 500MB", param, ctx)
        return size


def memory_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--recompute and --swap-memory: what a training step does for less memory."""
    command = click.option(
        "--swap-memory", is_flag=True,
        help="On a card, what the forward pass saves waits in the host's memory, copied beside the steps.",
    )(command)  # fmt: skip
    return click.option(
        "--recompute", type=Recompute(),
        help="Compute activations again in the backward pass: most (sqrt), or as many as the memory asks for.",
    )(command)  # fmt: skip


def input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option("--seed", type=int, default=0, show_default=True, help="Seed of random inputs.")(command)
    command = click.option(
        "--fill", type=click.Choice(["random", "ones", "zeros", "arange"]), default="random", show_default=True,
        help="Values of inputs that are not given as files.",
    )(command)  # fmt: skip
    return click.argument("inputs", nargs=-1, metavar="[NAME:SHAPE | NAME=FILE | PICTURE]...")(command)


def external_root_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--allow-external-root", "external_root", type=click.Path(exists=True, file_okay=False), default=None,
        help="Folder that external data of an ONNX file may also come from.",
    )(command)  # fmt: skip


def model_file_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What a command may read beside MODEL: --allow-external-root, and --trust-run-folder, which `read_model` asks."""
    return external_root_option(trust_option(command, expose=False))


def read_model(source: str, external_root: str | None = None, *, best: bool = False) -> Model:
    """Load a path, or a model from stdin for `-`; raises UsageError, which says how to build one of the zoo.

    best: of a run folder that has its best model (--keep-best), take that one, and say so.
    """
    if source == "-":
        data = sys.stdin.buffer.read()
        return load(data, external_root=external_root)
    if not Path(source).exists() and source in models.names():
        raise UsageError(f"there is no file {source!r}; `graphkit build {source} -o {source}.json` makes one")
    path = Path(source)
    external_root = external_root or trusted_root()
    if path.is_dir():
        check_run_folder(path)
    if best and path.is_dir():
        from graphkit.train.run_folder import BEST, MODEL

        if not (path / BEST).exists():
            return load(path, external_root=external_root)
        found = load(path / BEST, external_root=external_root)
        epoch = found.meta.get("best_epoch", "unknown")
        log(f"{source}: the best model, of epoch {epoch}; the last one is {path / MODEL}")
        return found
    return load(path, external_root=external_root)


def trust_option(command: Callable[..., Any], expose: bool = True) -> Callable[..., Any]:
    """--trust-run-folder, for `check_run_folder`. expose: whether the command gets it as `trust_run_folder`."""
    return click.option(
        "--trust-run-folder", is_flag=True, expose_value=expose, callback=_trusted,
        help="Read files, and call functions of files, that the run folder names and the command does not, also by "
        "symbolic links. For folders of your own.",
    )(command)  # fmt: skip


def _trusted(ctx: click.Context, parameter: click.Parameter, value: bool) -> bool:
    ctx.meta[_TRUSTED] = value
    return value


def trusted_root() -> str | None:
    """The folder that links of a trusted run folder may lead into: any; None without --trust-run-folder."""
    context = click.get_current_context(silent=True)
    return os.sep if context is not None and context.meta.get(_TRUSTED) else None


def check_run_folder(folder: str | Path) -> None:
    """Refuse a run folder with links that lead out of it, unless the command line trusts it (see `check_links`)."""
    from graphkit.train.run_folder import check_links

    if trusted_root() is None:
        check_links(folder)


def data_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--data-option", "data_options", multiple=True, metavar="NAME=VALUE",
        help="Options of the data, such as size=64 and augment=crop,flip of pictures, level=char of text; repeat.",
    )(command)  # fmt: skip


def source_options(pairs: tuple[str, ...]) -> dict[str, Any]:
    """`--data-option` texts as keywords of `data.load`: numbers where they are numbers."""
    return {k: int(v) if v.isdecimal() else v for k, v in key_values(pairs, "--data-option").items()}


def key_values(pairs: tuple[str, ...], option: str) -> dict[str, str]:
    """`name=value` texts as a dict; raises UsageError, also for a name that comes twice."""
    table: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise UsageError(f"{option} {pair!r}: expected name=value")
        if name in table:
            raise UsageError(f"{option} {name} is given twice: {table[name]} and {value}")
        table[name] = value
    return table
