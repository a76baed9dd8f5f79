"""Groups of options in `--help`, and older names of options."""

import re

import click
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit import cli
from graphkit.cli._groups import OTHER, GroupedCommand, by_group, option

MANY = 15


def command_of(name):
    return cli.cli.get_command(click.Context(cli.cli), name)


def visible(command):
    return [p for p in command.params if isinstance(p, click.Option) and not p.hidden]


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_commands_with_many_options_show_groups(call, name):
    command = command_of(name)
    assert isinstance(command, GroupedCommand) == (len(visible(command)) > MANY)
    if not isinstance(command, GroupedCommand):
        return
    groups = by_group(command.params)
    assert OTHER not in groups, "every option declares its group"
    code, out, _ = call(name, "--help")
    assert code == 0
    titles = re.findall(r"^(\S.*):$", out, re.MULTILINE)
    assert titles == [*groups, OTHER], "--help is the only other option"
    sections = dict(zip(titles, re.split(r"^\S.*:$", out, flags=re.MULTILINE)[1:], strict=True))
    for title, options in groups.items():
        for found in options:
            assert re.search(rf"^  (-\S+, )?{re.escape(found.opts[0])}\b", sections[title], re.MULTILINE), found.opts


@in_one_item()
@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_option_has_a_meaning(name):
    command = command_of(name)
    commands = command.commands.values() if isinstance(command, click.Group) else [command]
    for found in commands:
        for each in visible(found):
            assert re.fullmatch(r"(?s)[A-Za-z0-9].*\.", each.help or ""), (name, each.opts)


def test_groups_keep_the_order_of_declaration():
    @click.command(cls=GroupedCommand)
    @option("--b", group="Data")
    @option("--secret", group="Data", hidden=True)
    @click.option("--plain")
    @option("--a", group="Data")
    def command(**_):
        pass

    groups = by_group(command.params)
    assert {name: [o.name for o in options] for name, options in groups.items()} == {
        "Data": ["b", "a"],
        OTHER: ["plain"],
    }


@pytest.mark.parametrize("old", [False, True])
def test_older_names_of_options_still_work(call, tmp_path, old):
    x, state = gk.input("x", ["N", 1, 8, 8]), gk.input("h", ["N", 4])
    h = gk.tanh(gk.nn.linear(gk.flatten(x), 4, name="fc") + state)
    gk.Model({"logits": gk.nn.linear(h, 10, name="out"), "last": h}, name="net", seed=0).save(tmp_path / "net.json")
    recurrent, sparse, dynamic = ("--carry", "--lazy", "--no-free-batch") if old else (
        "--recurrent-state", "--sparse-update", "--no-dynamic-batch"
    )  # fmt: skip
    train = ["train", tmp_path / "net.json", "--data", "digits", "--output-name", "logits", "-o", tmp_path / "run"]
    train += [recurrent, "h=last", dynamic]
    code, _, err = call(*train)
    assert code == 0, err
    assert '[recurrent-state]\nh = "last"' in (tmp_path / "run/config.toml").read_text()
    code, _, err = call(*train, sparse, "none*", "--overwrite")
    assert code == 2
    assert "none*" in err
    name = recurrent.removeprefix("--")
    text = (tmp_path / "run/config.toml").read_text()
    (tmp_path / "run/config.toml").write_text(text.replace("[recurrent-state]", f"[{name}]"))
    code, _, err = call("train", tmp_path / "run/config.toml", "-o", tmp_path / "again")
    assert code == 0, err
    assert (tmp_path / "again/config.toml").read_text() == text


def test_an_option_under_two_names_is_refused_in_a_file(call, tmp_path):
    (tmp_path / "a.toml").write_text('network = "net.json"\nlazy = "a"\nsparse-update = "b"\n')
    code, _, err = call("train", tmp_path / "a.toml")
    assert code == 2
    assert "lazy and sparse-update are the same option" in err


@pytest.mark.parametrize(("command", "new", "old"), [
    ("train", "--no-dynamic-batch", "--no-free-batch"), ("train", "--recurrent-state", "--carry"),
    ("train", "--sparse-update", "--lazy"), ("build", "--data", "--dataset"),
    ("grad", "--joint-directions", "--together"),
])  # fmt: skip
def test_help_lists_no_older_names(call, command, new, old):
    _, out, _ = call(command, "--help")
    assert new in out
    assert f"{old} " not in out
    assert f"{old}," not in out
