"""Named groups of options in `--help` and in docs/reference/commands.md.

click lists all options of a command under one heading. A command with many options is a `GroupedCommand`, and each of
its options says its group where it is declared:

    @click.command(cls=GroupedCommand)
    @option("--lr", group=OPTIMISATION, type=float, help="Learning rate.")
    def command(lr): ...

A command that is not a `GroupedCommand` ignores the groups of the options that it shares with others.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import click

INPUTS = "Inputs of the model"
IMAGES = "Image preprocessing"
DATA = "Data"
NETWORK = "Model and parameters"
LOSS = "Loss and metrics"
OPTIMISATION = "Optimisation"
EPOCHS = "Epochs, early stopping and the best model"
TRAINING_STEP = "Training step (--training)"
STEP_FILE = "Training step as a file (--training-step)"
COMPARISON = "Measurement and comparison"
GRADIENT = "Gradients"
PRECISION = "Device, precision and memory"
OUTPUT = "Checkpoints and output"
PROCESSES = "Several processes"
REPORTING = "Progress and reports"
GENERATION = "Choice of tokens"
BATCHING = "Batches"
LISTENING = "Address and access"
LIMITS = "Limits and safety"
OTHER = "Other options"

# The order in which `--help` shows the groups.
_ORDER = (
    INPUTS, GENERATION, IMAGES, DATA, NETWORK, LOSS, OPTIMISATION, EPOCHS, GRADIENT, STEP_FILE, COMPARISON,
    TRAINING_STEP, LISTENING, BATCHING, PRECISION, OUTPUT, PROCESSES, REPORTING, LIMITS, OTHER,
)  # fmt: skip


class GroupedOption(click.Option):
    """An option with the heading under which `--help` lists it. The first of several long names is shown.

    The other long names are older ones: they work as before, but are not listed.
    """

    def __init__(self, *args: Any, group: str = OTHER, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.group = group

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        shown = copy.copy(self)
        shown.opts, shown.secondary_opts = _shown(self.opts), _shown(self.secondary_opts)
        return click.Option.get_help_record(shown, ctx)


def _shown(names: Sequence[str]) -> list[str]:
    """Return the names without all long ones but the first."""
    longs = [name for name in names if name.startswith("--")]
    return [name for name in names if name not in longs[1:]]


def shown_names(option: click.Option) -> list[str]:
    """Return the names of an option that `--help` shows, and those that switch a flag off."""
    return [*_shown(option.opts), *_shown(option.secondary_opts)]


# Declares an option like `click.option`, with one more argument: `group`.
option = functools.partial(click.option, cls=GroupedOption)


def by_group(parameters: Iterable[click.Parameter]) -> dict[str, list[click.Option]]:
    """Return the visible options by group, in the order of the help text. Groups without options are left out."""
    found: dict[str, list[click.Option]] = {name: [] for name in _ORDER}
    for parameter in parameters:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            found[getattr(parameter, "group", OTHER)].append(parameter)
    return {name: options for name, options in found.items() if options}


class GroupedCommand(click.Command):
    """A command whose `--help` lists options by group."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for name, options in by_group(self.get_params(ctx)).items():
            records = [record for o in options if (record := o.get_help_record(ctx)) is not None]
            with formatter.section(name):
                formatter.write_dl(records)
