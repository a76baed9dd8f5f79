"""`graphkit train` and signals: the first one writes a checkpoint after the step, the second one ends it at once."""

import json
import re
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}

# A script that sends itself signals within a step, after `AT` steps.
SIGNALLED = """
    import os, signal, sys, time
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from graphkit import cli
    from graphkit.train.stepper import Stepper

    number, at, count = (int(text) for text in sys.argv[1:4])
    take, left = Stepper.take, iter(range(at))

    def taken(self, *arguments):
        found = take(self, *arguments)
        if next(left, None) is None:
            for _ in range(count):
                os.kill(os.getpid(), number)
                time.sleep(0.05)
        return found

    Stepper.take = taken
    cli.main(sys.argv[4:])
"""


@pytest.fixture(scope="module")
def task(write_task):
    """A network with dropout, and 96 training samples with weights."""
    return write_task(w=np.random.default_rng(6).random(120).astype(np.float32))


def options(task, run, *more):
    given = ("train", task / "net.json", "--data", task / "data.npz", "--batch-size", 16, "--epochs", 2, "-o", run)
    return (*given, "--weight-column", "w", *more)


def signalled(number, at, count, arguments):
    command = [sys.executable, "-P", "-c", textwrap.dedent(SIGNALLED), *map(str, (int(number), at, count, *arguments))]
    return subprocess.run(command, capture_output=True, text=True)


def state(run):
    """The names of the weights and states: each contains a hash of its file."""
    manifest = json.loads((run / "checkpoint.json").read_text())
    return sorted(p.name for p in run.glob("*.safetensors")), manifest["position"] | {"seconds": None}


# Each epoch has 6 batches.
CASES = [
    (signal.SIGTERM, 8, ("--accumulate", 4)),
    pytest.param(signal.SIGTERM, 2, ("--ema", 0.9, "--optimizer", "nadam"), marks=pytest.mark.full),
    pytest.param(signal.SIGINT, 8, ("--accumulate", 4, "--mixup", 0.3), marks=pytest.mark.full),
    pytest.param(signal.SIGINT, 5, ("--max-steps", 9), marks=pytest.mark.full),
    pytest.param(signal.SIGTERM, 3, ("--validation-split", 0.3), marks=pytest.mark.full),
]


@pytest.mark.parametrize(("number", "at", "more"), CASES)
def test_run_resumes_bit_for_bit_after_a_signal(call, task, tmp_path, number, at, more):
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert call(*options(task, whole, *more))[0] == 0
    done = signalled(number, at, 1, options(task, run, *more))
    assert done.returncode == CODES[number], done.stderr
    assert "Traceback" not in done.stderr
    epoch, batch = divmod(at, 6)
    where = f"in epoch {epoch + 1} of 2, after batch {batch + 1}"
    assert where in done.stderr or f"after the last batch of epoch {epoch + 1} of 2" in done.stderr
    assert f"{run} contains a checkpoint of this position" in done.stderr
    advice = re.search(r"continue with: graphkit (train .*)$", done.stderr, re.MULTILINE)
    further = more if "--max-steps" in more else ()
    assert call(*advice[1].split(), *(("--epochs", 2, *further) if further else ()))[0] == 0
    assert state(run) == state(whole)


@pytest.mark.full
@pytest.mark.parametrize("number", CODES)
def test_second_signal_ends_at_once_and_keeps_the_checkpoint(call, task, tmp_path, number):
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert call(*options(task, whole))[0] == 0
    done = signalled(number, 8, 2, options(task, run))
    assert done.returncode == CODES[number], done.stderr
    assert "Traceback" not in done.stderr
    assert "within a step: some parameters may be updated, others not; resume from the last checkpoint" in done.stderr
    assert json.loads((run / "checkpoint.json").read_text())["position"]["epoch"] == 1, "that of the last epoch"
    assert call("train", task / "net.json", "-o", run, "--resume")[0] == 0
    assert state(run) == state(whole)


@pytest.mark.full
def test_signal_without_output_folder_writes_nothing(task, tmp_path):
    given = [argument for argument in options(task, None, "--fast-dev-run", 6) if argument not in ("-o", None)]
    command = [sys.executable, "-P", "-c", textwrap.dedent(SIGNALLED), str(int(signal.SIGTERM)), "2", "1"]
    done = subprocess.run([*command, *map(str, given)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == CODES[signal.SIGTERM], done.stderr
    assert "nothing was saved, because there is no output folder" in done.stderr
    assert list(tmp_path.iterdir()) == []
