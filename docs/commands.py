"""Writes docs/reference/commands.md: all commands with their options, grouped as in `--help`, and all settings.

python docs/commands.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from markup import code, prose, table

from graphkit import config
from graphkit.cli import _allreduce, cli
from graphkit.cli._groups import GroupedCommand, by_group, shown_names

PAGE = Path(__file__).resolve().parent / "reference" / "commands.md"

_HEAD = """\
# Commands and settings

This page is written by `python docs/commands.py`; a test checks that it is up to date. An option whose meaning says
"Repeatable" may be given several times.
"""

_SETTINGS = """\
## Settings

These environment variables change how graphkit runs. `graphkit doctor` prints the values in effect. In Python, they are
in `gk.config`. Instead of 1 and 0, you may write true and false, yes and no, or on and off.
"""


# --- one option -------------------------------------------------------------------------------------


def value_name(option: click.Option) -> str:
    """Return a name for the value of an option; empty for a flag."""
    if option.is_flag or option.count:
        return ""
    if option.metavar:
        return option.metavar
    return "VALUE" if isinstance(option.type, click.Choice) else option.type.name.split()[0].upper()


def bounds(kind: Any) -> str:
    """Return the range of a number, such as `1 <= x < 2`; empty without limits."""
    if not isinstance(kind, (click.IntRange, click.FloatRange)):
        return ""
    low = "" if kind.min is None else f"{kind.min:g} {'<' if kind.min_open else '<='} "
    high = "" if kind.max is None else f" {'<' if kind.max_open else '<='} {kind.max:g}"
    return f"{low}x{high}"


def meaning(option: click.Option) -> str:
    """Return the help text of an option with its choices, range and default."""
    notes = []
    if isinstance(option.type, click.Choice):
        notes.append("one of " + ", ".join(f"`{choice}`" for choice in option.type.choices))
    if limits := bounds(option.type):
        notes.append(f"`{limits}`")
    if option.required:
        notes.append("required")
    elif option.show_default and not option.is_flag and option.default is not None:
        notes.append(f"default `{option.default}`")
    return " ".join([prose(option.help or ""), f"({'; '.join(notes)})" if notes else ""]).strip()


def row(option: click.Option) -> tuple[str, str]:
    """Return the names of an option with its value, and its meaning."""
    names = ", ".join(code(name) for name in shown_names(option))
    taken = value_name(option)
    return f"{names} {code(taken)}" if taken else names, meaning(option)


def tables(command: click.Command) -> Iterator[str]:
    """The options of a command: a table per group with a title, or one table if the command has no groups."""
    visible = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    for title, options in by_group(visible).items() if isinstance(command, GroupedCommand) else [("", visible)]:
        if title:
            yield f"**{title}**"
        if options:
            yield table(("option", "meaning"), map(row, options))


# --- one command ------------------------------------------------------------------------------------


def described(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text. Those that click does not wrap (\\b) become code."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        first, *rest = paragraph.splitlines()
        yield "\n".join(["```sh", *rest, "```"]) if first.strip() == "\b" else prose(paragraph)


def section(name: str, command: click.Command, depth: int = 2) -> Iterator[str]:
    """Yield the Markdown of a command, and of its sub-commands."""
    arguments = [
        p.metavar or (f"[{p.human_readable_name}]" if not p.required else p.human_readable_name)
        for p in command.params
        if isinstance(p, click.Argument)
    ]
    below = command.commands if isinstance(command, click.Group) else {}
    yield f"{'#' * depth} {name}"
    yield f"```\n{' '.join([name, '[OPTIONS]', *(['COMMAND'] if below else []), *arguments])}\n```"
    yield from described(inspect.cleandoc(command.help or ""))
    yield from tables(command)
    for part, found in below.items():
        yield from section(f"{name} {part}", found, depth + 1)


def shown_default(value: Any) -> str:
    """Return a default as it is typed in the environment; empty if there is none."""
    return (
        "" if value is None else code(value if isinstance(value, str) else f"{value:g}" if value < 1e6 else f"{value}")
    )


def settings() -> str:
    rows = [(code(k.name), shown_default(k.default), prose(k.help)) for k in config.KNOBS]
    return _SETTINGS + "\n" + table(("variable", "default", "meaning"), rows)


def page() -> str:
    """Return the whole page."""
    context = click.Context(cli)
    blocks = [_HEAD.rstrip(), *described(cli.help or "")]
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        blocks += section(f"graphkit {name}", command)
        if name == "bench":
            blocks += section("graphkit bench allreduce", _allreduce.command, 3)
    return "\n\n".join([*blocks, settings()]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
