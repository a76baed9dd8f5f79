"""`graphkit train`: runs that are interrupted, gone on with, or in each other's way."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap

import pytest

from graphkit.train.run_folder import RunFolder

USAGE = 2


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def options(task, run, *more):
    return ("train", task / "net.json", "--data", task / "data.npz", "-o", run, "--batch-size", 16, *more)


def test_a_line_an_epoch(call, task, tmp_path):
    code, out, err = call(*options(task, tmp_path / "run", "--epochs", 3))
    assert code == 0, err
    assert [line.split(":")[0] for line in out.splitlines()] == ["epoch 1", "epoch 2", "epoch 3"]
    assert re.match(r"epoch 1: loss \S+, accuracy \S+, valid_loss \S+, valid_accuracy \S+$", out.splitlines()[0])
    code, out, err = call(*options(task, tmp_path / "json", "--epochs", 2, "--json"))
    assert len(json.loads(out)["history"]) == 2
    assert err.count("epoch ") == 2


def test_the_line_comes_when_the_epoch_ends(task, tmp_path):
    """Piped, with the process killed after the line: it was not kept back."""
    command = [sys.executable, "-P", "-m", "graphkit", *map(str, options(task, tmp_path / "run", "--epochs", 10**6))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        line = child.stdout.readline()
        child.kill()
    assert line.startswith("epoch 1: loss ")


def test_another_run_is_neither_replaced_nor_mixed(call, task, tmp_path):
    run = tmp_path / "run"
    assert call(*options(task, run, "--epochs", 2))[0] == 0
    before = contents(run)
    code, _, err = call(*options(task, run))
    assert code == USAGE
    assert "already contains a run" in err
    assert "--resume" in err
    assert "--overwrite" in err
    assert contents(run) == before
    assert call(*options(task, run, "--overwrite"))[0] == 0
    assert len((run / "log.jsonl").read_text().splitlines()) == 1
    code, _, err = call(*options(task, run, "--overwrite", "--resume"))
    assert code == USAGE
    assert "--resume and --overwrite contradict each other" in err


def test_two_at_once(call, task, tmp_path):
    with RunFolder(tmp_path):
        code, _, err = call(*options(task, tmp_path))
        assert code == USAGE
        assert re.search(rf"process {os.getpid()} on \S+ \(since .*\) trains into this folder", err)
    assert call(*options(task, tmp_path))[0] == 0


def test_resume_takes_the_options_of_the_run(call, task, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    same = ("--optimizer", "adam", "--lr", 0.01, "--seed", 7, "--metric", "accuracy", "--metric", "f1")
    assert call(*options(task, whole, *same, "--epochs", 3))[0] == 0
    assert call(*options(task, parts, *same, "--epochs", 2))[0] == 0
    code, out, err = call("train", task / "net.json", "-o", parts, "--resume", "--epochs", 3)
    assert code == 0, err
    assert "options taken from the run:" in err
    for text in ("--optimizer adam", "--lr 0.01", "--seed 7", "--batch-size 16", "--metric accuracy --metric f1"):
        assert text in err
    assert out.startswith("epoch 3: ")
    (a,), (b,) = (list(p.glob("state.*.safetensors")) for p in (whole, parts))
    assert a.name == b.name, "named by content"
    code, out, err = call("train", task / "net.json", "-o", parts, "--resume")
    assert (code, out) == (0, "")
    assert "has finished its 3 epochs" in err
    assert "wrote" not in err
    assert "the length of the whole run: --epochs 4 continues it" in err


def test_model_may_be_the_run_that_is_resumed(call, task, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    head = ("--head", "classes=7", "--seed", 3)  # the network of the run already has it
    assert call(*options(task, whole, *head, "--epochs", 2))[0] == 0
    assert call(*options(task, parts, *head))[0] == 0
    code, _, err = call("train", parts, "--resume", "--epochs", 2)
    assert code == 0, err
    (a,), (b,) = (list(p.glob("state.*.safetensors")) for p in (whole, parts))
    assert a.name == b.name, "named by content"
    code, _, err = call("train", task / "net.json", "--resume")
    assert (code, "--resume needs the folder of the run: graphkit train RUN/ --resume" in err) == (USAGE, True)


def test_resume_says_what_changes_and_refuses_what_cannot(call, task, tmp_path):
    assert call(*options(task, tmp_path, "--seed", 3))[0] == 0
    resume = ("train", task / "net.json", "-o", tmp_path, "--resume", "--epochs", 2)
    before = contents(tmp_path)
    for more, message in [
        (("--seed", 4), "cannot change the seed, which decides the order of the data: --seed 4 (was --seed 3)"),
        (("--optimizer", "adam"), "; it contains fc1_bias/momentum, "),
        (("--ema", 0.9), "does not fit this model and optimizer: the checkpoint lacks "),
    ]:
        code, _, err = call(*resume, *more)
        assert code in (2, 4)
        assert message in err
        assert contents(tmp_path) == before
    code, _, err = call(*resume, "--lr", 0.5, "--batch-size", 32)
    assert code == 0, err
    changed = next(line for line in err.splitlines() if "changed by the command line" in line)
    assert "--batch-size 32 (was --batch-size 16)" in changed
    assert "--lr 0.5 (was not given)" in changed
    code, _, err = call("train", task / "net.json", "-o", tmp_path / "typo", "--resume")
    assert code == USAGE
    assert "contains no checkpoint" in err
    assert not (tmp_path / "typo").exists()
    code, _, err = call("train", task / "net.json")
    assert code == USAGE
    assert "--data" in err


STOPPED = """
    import os, signal, sys
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from graphkit import cli
    from graphkit.train.trainer import Trainer
    step, left = Trainer._step, iter(range(9))

    def stopped(self, *arguments):
        if next(left, None) is None:
            os.kill(os.getpid(), int(sys.argv[1]))
        return step(self, *arguments)

    Trainer._step = stopped
    cli.main(sys.argv[2:])
"""


def stopped(number, *arguments):
    """Run a command that sends itself a signal in its tenth step; return the finished process."""
    command = [sys.executable, "-P", "-c", textwrap.dedent(STOPPED), str(int(number)), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


@pytest.mark.parametrize(("number", "code"), [SIGNALS[0], pytest.param(*SIGNALS[1], marks=pytest.mark.full)])
def test_an_interrupt_ends_with_where_it_stopped_and_how_to_go_on(call, task, tmp_path, number, code):
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert call(*options(task, whole, "--epochs", 2))[0] == 0
    done = stopped(number, *options(task, run, "--epochs", 2, "--json"))
    assert done.returncode == code, done.stderr
    assert json.loads(done.stdout)["exit_code"] == code
    assert "Traceback" not in done.stderr
    assert "in epoch 2 of 2, after batch 4" in done.stderr
    advice = re.search(r"continue with: graphkit (train .*)$", done.stderr, re.MULTILINE)
    assert call(*advice[1].split())[0] == 0
    (a,), (b,) = (list(p.glob("state.*.safetensors")) for p in (whole, run))
    assert a.name == b.name


@pytest.mark.full
def test_an_interrupt_without_json_prints_nothing_more(task, tmp_path):
    done = stopped(signal.SIGINT, *options(task, tmp_path / "run", "--epochs", 2))
    assert done.returncode == 130, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["epoch 1"]
