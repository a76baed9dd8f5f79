"""docs/reference/commands.md is what docs/commands.py writes of the commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import click
import pytest

from graphkit import cli, config

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def commands(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("commands")


def test_the_page_is_up_to_date(commands: ModuleType) -> None:
    assert (DOCS / "reference/commands.md").read_text("utf-8") == commands.page(), "run python docs/commands.py"


def test_every_command_and_setting_is_there(commands: ModuleType) -> None:
    page = commands.page()
    assert all(f"\n## graphkit {name}\n" in page for name in cli.COMMANDS)
    assert "\n### graphkit records pack\n" in page
    assert all(f"| `{knob.name}` |" in page for knob in config.KNOBS)


def test_what_markdown_would_take_for_markup(commands: ModuleType) -> None:
    @click.command()
    @click.argument("model")
    @click.option("--form", type=click.Choice(["a", "b"]), default="a", show_default=True, help="Of *all* top<k>.")
    @click.option("--rate", type=click.FloatRange(0, 1, min_open=True), metavar="A | B", required=True)
    @click.option("--secret", hidden=True)
    def command(**_: object) -> None:
        """Run `x*y` on FILE.

        \b
        graphkit run <file>
        """

    assert list(commands.section("run", command)) == [
        "## run",
        "```\nrun [OPTIONS] MODEL\n```",
        "Run `x*y` on FILE.",
        "```sh\ngraphkit run <file>\n```",
        "| option | meaning |\n| --- | --- |\n"
        "| `--form` `VALUE` | Of \\*all\\* top&lt;k>. (one of `a`, `b`; default `a`) |\n"
        "| `--rate` <code>A &#124; B</code> | (`0 < x <= 1`; required) |",
    ]
