"""Every Python block of the README and the guides runs, in order, in one namespace per file."""

import importlib
import re
import shlex
from pathlib import Path

import click
import pytest
from combinations import in_one_item

from graphkit import cli
from graphkit.ops import registry

ROOT = Path(__file__).parents[2]
# Tables of operators are generated, and have no examples.
_GENERATED = ("operator_table.md", "mxnet_operators.md")
GUIDES = [path for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in _GENERATED]
FILES = [ROOT / "README.md", *GUIDES]
TUTORIAL = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
# Pages with links, and with commands and options.
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`(graphkit [^`]+)`(?!`)")


@pytest.fixture
def own_operators():
    """Takes operators that an example defines out of the registry again."""
    before = set(registry)
    yield
    for cls in set(registry) - before:
        registry.remove(cls)


# The folders of examples whose modules a guide imports.
MODULES = {"reinforcement.md": "reinforcement"}

# Guides whose examples build, train or measure large networks.
LONG = ("models.md", "benchmarks.md")


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.name, marks=[pytest.mark.full] if p.name in LONG else []) for p in FILES]
)
def test_python_blocks(path, tmp_path, monkeypatch, own_operators):
    monkeypatch.chdir(tmp_path)
    if path.name in MODULES:
        monkeypatch.syspath_prepend(ROOT / "examples" / MODULES[path.name])
    namespace = {"__name__": f"example_{path.stem}"}
    blocks = BLOCK.findall(path.read_text())
    assert blocks
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{path.name}, block {number}", "exec"), namespace)


def test_the_readme_lists_every_command():
    rows = re.findall(r"^\|.*", (ROOT / "README.md").read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`graphkit (\w+)", row)}
    assert named == set(cli.COMMANDS)


def test_links_lead_somewhere():
    for path in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", FENCED.sub("", path.read_text())):
            assert "://" in target or (path.parent / target).exists(), f"{path.name}: {target}"


def shell_commands(text):
    """Yield every `graphkit COMMAND ...` in shell blocks and inline code of a page: the words after `graphkit`."""
    blocks = [block for language, block in FENCED.findall(text) if language in ("", "sh")]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    # Spans may be broken across lines; in blocks nothing but the lines themselves counts.
    lines += [" ".join(span.split()) for span in SPAN.findall(FENCED.sub("", text))]
    for line in lines:
        for part in re.split(r"&&|\| ", line):
            found = re.match(r"\s*(?:mpiexec -n \d+ )?graphkit (\w+\b.*)", part)
            if found and found[1].split()[0] in cli.COMMANDS:
                yield shlex.split(found[1], comments=True)


def check_options(command, words):
    """Parse as the command does, without running it: unknown options and values of the wrong kind raise."""
    if isinstance(command, click.Group):
        command, words = command.commands[words[0]], words[1:]
    context = click.Context(command, info_name=command.name)
    last = words[-1] if words else None  # parsing takes the list apart
    try:
        values, _, given = command.make_parser(context).parse_args(words)
    except click.BadOptionUsage as error:
        if last == error.option_name:
            return  # a sentence names the option, and no value
        raise
    for parameter in given:
        if parameter.name in values and parameter.param_type_name == "option":
            value, _ = parameter.consume_value(context, values)  # an option may have a value for the case of none given
            parameter.type_cast_value(context, value)


@in_one_item()
@pytest.mark.parametrize("path", [*FILES, *TUTORIAL], ids=lambda p: p.name)
def test_shell_commands_have_the_options_that_pages_name(path):
    for name, *words in shell_commands(path.read_text()):
        # In the table of commands placeholders stand for numbers.
        words = ["1" if word == "N" else word for word in words]
        if (name, *words[:1]) == ("bench", "allreduce"):
            name, words = "_allreduce", words[1:]
        check_options(importlib.import_module(f"graphkit.cli.{name}").command, words)


def test_pages_have_shell_commands():
    found = {words[0] for path in FILES for words in shell_commands(path.read_text())}
    assert found == set(cli.COMMANDS)


@in_one_item()
@pytest.mark.parametrize("name", cli.COMMANDS)
def test_examples_in_help_have_options_of_the_command(name):
    command = importlib.import_module(f"graphkit.cli.{name}").command
    for line in command.help.splitlines():
        if line.strip().startswith("graphkit "):
            first, *words = shlex.split(line.split(" | ")[0])[1:]
            assert first == name
            check_options(command, words)


def test_an_option_that_a_page_invents_is_found():
    (words,) = shell_commands("```sh\ngraphkit run net.onnx \\\n    --imaginary 3\n```\n")
    with pytest.raises(click.NoSuchOption, match="--imaginary"):
        check_options(importlib.import_module("graphkit.cli.run").command, words[1:])
