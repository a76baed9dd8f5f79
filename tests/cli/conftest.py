"""What the tests of commands share."""

import numpy as np
import pytest

import graphkit as gk
from graphkit import cli


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Commands that write into the current folder leave the checkout as it is."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(capsys):
    """Run a command line in this process: (exit code, stdout, stderr)."""

    def run(*arguments):
        code = cli.invoke([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def write_task(tmp_path_factory):
    """Write a network with dropout, and its data: 96 training samples, 24 for validation. Return their folder.

    Keywords are further arrays of the data.
    """

    def write(**arrays):
        folder = tmp_path_factory.mktemp("task")
        x = gk.input("x", ["N", 6])
        h = gk.nn.dropout(gk.tanh(gk.nn.linear(x, 8, name="fc1")), 0.3)
        gk.Model({"logits": gk.nn.linear(h, 3, name="fc2")}, name="small", seed=0).save(folder / "net.json")
        rng = np.random.default_rng(5)
        inputs, targets = rng.standard_normal((120, 6), np.float32), rng.integers(0, 3, 120)
        np.savez(folder / "data.npz", x=inputs, y=targets, **arrays)
        return folder

    return write


@pytest.fixture(scope="module")
def task(write_task):
    return write_task()
