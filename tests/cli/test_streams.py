"""Commands whose standard streams are closed, full or not read, and commands that are interrupted early."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from combinations import default_at, full, in_one_item

import graphkit as gk
from graphkit.cli import _commands, _failure, _interrupts, invoke
from graphkit.errors import RuntimeFailure

FULL = Path("/dev/full")
LOST = re.compile(r"graphkit: standard output cannot be written: No space left on device\n")


@pytest.fixture
def net(tmp_path):
    x = gk.input("x", ["N", 1, 8, 8])
    gk.Model(gk.nn.linear(gk.flatten(x), 10), name="net").save(tmp_path / "net.json")
    return tmp_path


def started(*arguments, before="", **options):
    """Start a command in a new process, which runs `before` first."""
    code = f"import sys\n{before}\nfrom graphkit.cli import main\nmain(sys.argv[1:])\n"
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen([sys.executable, "-P", "-c", code, *map(str, arguments)], **given)


COMMANDS = [["ops"], ["ops", "--json"], ["--help"], ["--version"]]


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("buffered", [True, full(False)])
def test_a_full_disk_is_named(arguments, buffered):
    environment = os.environ if buffered else {**os.environ, "PYTHONUNBUFFERED": "1"}
    with FULL.open("w") as full:
        process = started(*arguments, stdout=full, env=environment)
        _, errors = process.communicate(timeout=300)
    assert (process.returncode, bool(LOST.fullmatch(errors))) == (5, True), errors


@pytest.mark.full
@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
def test_training_that_cannot_say_where_it_is_ends_by_an_exit_code(net):
    with FULL.open("w") as full:
        arguments = "train", net / "net.json", "--data", "digits", "-o", net / "run"
        process = started(*arguments, stdout=full)
        _, errors = process.communicate(timeout=300)
        assert (process.returncode, bool(LOST.search(errors))) == (5, True), errors
        process = started(*arguments, "--overwrite", stderr=full)
        process.communicate(timeout=300)
        assert process.returncode == 5  # there is nowhere to say why


@default_at(0)
@pytest.mark.parametrize("buffered", [True, False])
def test_a_pipe_that_is_closed_ends_a_command_quietly(net, buffered):
    """The status is that of a process that SIGPIPE has ended, although Python ignores this signal."""
    environment = os.environ if buffered else {**os.environ, "PYTHONUNBUFFERED": "1"}
    reads, writes = os.pipe()
    process = started(
        "train", net / "net.json", "--data", "digits", "--epochs", 500, "-o", net / "run", stdout=writes,
        env=environment,
    )  # fmt: skip
    os.close(writes)
    assert os.read(reads, 1)
    os.close(reads)
    _, errors = process.communicate(timeout=300)
    assert (process.returncode, "Traceback" in errors, "graphkit:" in errors) == (128 + signal.SIGPIPE, False, False)


@in_one_item()
@pytest.mark.parametrize("arguments", [*COMMANDS, ["doctor"]], ids=" ".join)
def test_a_stream_that_is_closed_before_the_start_is_no_fault(arguments):
    before = "import os; os.close(1); sys.stdout = sys.__stdout__ = None"
    process = started(*arguments, before=before)
    _, errors = process.communicate(timeout=300)
    assert "fault" not in errors
    assert process.returncode in (0, 1)  # 1: something is missing here that `doctor` looks for


def test_a_pipe_of_another_process_is_not_taken_for_standard_output(monkeypatch, capsys):
    def broken(name):
        raise BrokenPipeError("[Errno 32] Broken pipe")

    monkeypatch.setattr(_commands.importlib, "import_module", broken)
    monkeypatch.setattr(_commands._Commands, "get_command", lambda self, ctx, name: _commands.click.Command(name))
    monkeypatch.setattr(_commands.click.Command, "invoke", lambda self, ctx: broken(""))
    assert invoke(["ops"]) == 5
    assert "another process closed a pipe that this process writes to" in capsys.readouterr().err


# --- interrupts --------------------------------------------------------------------------------------

# The process gets a signal when it comes to load a module.
SIGNAL_AT = """
import importlib.abc, os, signal
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            sys.meta_path.remove(self)
            {action}
sys.meta_path.insert(0, Finder())
"""
KILL = "os.kill(os.getpid(), signal.{name}); signal.sigtimedwait([], 0.1)"


@in_one_item()
@pytest.mark.parametrize("module", ["graphkit.cli._interrupts", "click", "graphkit.cli.ops", "numpy", "graphkit.ops"])
def test_ctrl_c_while_modules_load_ends_a_command_without_a_traceback(module):
    process = started("ops", before=SIGNAL_AT.format(name=module, action=KILL.format(name="SIGINT")))
    out, errors = process.communicate(timeout=300)
    assert (process.returncode, out, errors.strip()) == (130, "", "graphkit: interrupted")


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_that_turns_into_another_error_is_no_fault(net, name, status):
    """As when an extension is loaded, which raises an ImportError for whatever has gone wrong."""
    action = f"""
            try:
                {KILL.format(name=name)}
            except BaseException as error:
                raise ImportError("multiarray failed to import") from error"""
    before = SIGNAL_AT.format(name="graphkit.train.trainer", action=action)
    process = started("train", net / "net.json", "--data", "digits", "-o", net / "run", before=before)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == status
    assert errors.strip() == ("graphkit: interrupted" if name == "SIGINT" else "graphkit: terminated")


def test_an_error_behind_a_signal_is_told(monkeypatch, capsys):
    """As when the checkpoint that a training writes at Ctrl-C does not fit on the disk."""
    monkeypatch.setattr(_interrupts, "_came", None)

    def interrupted(**_):
        _interrupts.has_come(signal.SIGINT)
        raise RuntimeFailure("no space left")

    monkeypatch.setattr(_commands.cli, "main", interrupted)
    assert _commands.invoke(["run"]) == 130
    assert capsys.readouterr().err == "graphkit: interrupted; then: no space left\n"


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@default_at(0)
@pytest.mark.parametrize(
    ("arguments", "streams", "status"),
    [
        (["ops"], ["stdout", "stderr"], 5),
        (["inspect", "missing.json"], ["stderr"], 2),
        (["inspect", "--json", "missing.json"], ["stdout"], 2),
    ],
    ids=str,
)
def test_an_error_that_cannot_be_told_keeps_its_exit_code(arguments, streams, status):
    with FULL.open("w") as full:
        process = started(*arguments, **dict.fromkeys(streams, full))
        _, errors = process.communicate(timeout=300)
    assert (process.returncode, "Traceback" in (errors or "")) == (status, False), errors


def test_an_error_without_a_signal_stays_what_it_is(monkeypatch, capsys):
    monkeypatch.setattr(_interrupts, "_came", None)
    monkeypatch.setattr(_commands.cli, "main", lambda **_: 1 / 0)
    assert invoke(["ops"]) == 5
    assert "ZeroDivisionError" in capsys.readouterr().err
    monkeypatch.setattr(_interrupts, "_came", signal.SIGINT)
    assert invoke(["ops"]) == _failure.INTERRUPTED
    assert capsys.readouterr().err == "graphkit: interrupted; then: division by zero\n"


def test_a_run_that_was_not_yet_replaced_is_not_offered_to_go_on(net):
    train = ["train", str(net / "net.json"), "--data", "digits", "-o", str(net / "run")]
    assert invoke(train) == 0
    before = SIGNAL_AT.format(name="graphkit.train.trainer", action=KILL.format(name="SIGINT"))
    process = started(*train, "--overwrite", before=before)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert errors.strip().endswith(f"{net / 'run'} still holds the old run, which --overwrite did not replace yet")


def test_resume_without_a_checkpoint_is_refused(net, capsys):
    assert invoke(["train", str(net / "net.json"), "-o", str(net / "none"), "--resume"]) == 2
    assert "none contains no checkpoint (checkpoint.json is missing)" in capsys.readouterr().err
    assert not (net / "none").exists()
