"""Checkpoints of L-BFGS: resume is bit-identical, and checkpoints that do not fit are refused."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import InvalidModel, UnsafeModel, UsageError
from graphkit.train import checkpoint

RNG = np.random.default_rng(0)
X, T = RNG.standard_normal((40, 3)), RNG.standard_normal((40, 2))


def network(dtype="float64", dropout=0.0):
    x = gk.input("x", ["N", 3], dtype=dtype)
    h = gk.nn.dropout(gk.tanh(gk.nn.linear(x, 6, name="fc1")), dropout)
    return gk.Model({"y": gk.nn.linear(h, 2, name="fc2")}, seed=0)


def solver(net=None, **options):
    return gk.LBFGS(network() if net is None else net, "mse", **{"max_iter": 3, "seed": 7, **options})


def take_steps(trainer, count, dtype="float64"):
    return [trainer.step(X.astype(dtype), T.astype(dtype)) for _ in range(count)]


def assert_same_bits(one, other):
    assert (one.iterations, one.evaluations) == (other.iterations, other.evaluations)
    for name, array in one.net.params.items():
        assert array.tobytes() == other.net.params[name].tobytes(), name


@pytest.mark.parametrize(
    "options", [{}, {"history_size": 4}, {"line_search": None, "lr": 0.5}, {"train": ["fc2*"]}], ids=str
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("done", [0, 3])
def test_resume_continues_bit_for_bit(tmp_path, options, dtype, done):
    straight = solver(network(dtype), **options)
    losses = take_steps(straight, 6, dtype)
    first = solver(network(dtype), **options)
    assert take_steps(first, done, dtype) == losses[:done]
    first.notes["epoch"] = 3
    first.save(tmp_path)
    take_steps(first, 1, dtype)  # the checkpoint must not follow the trainer
    second = solver(network(dtype), **{"seed": 99, **options})
    second.resume(tmp_path)
    assert second.notes == {"epoch": 3}
    assert second.seed == 7
    assert take_steps(second, 6 - done, dtype) == losses[done:]
    assert_same_bits(straight, second)


def test_random_numbers_of_dropout_continue(tmp_path):
    straight, first, second = (solver(network(dropout=0.2), line_search=None, lr=0.1) for _ in range(3))
    losses = take_steps(straight, 4)
    take_steps(first, 2)
    first.save(tmp_path)
    second.resume(tmp_path)
    assert take_steps(second, 2) == losses[2:]
    assert_same_bits(straight, second)


def test_smaller_history_keeps_the_last_pairs(tmp_path):
    first = solver()
    take_steps(first, 4)
    assert len(first._history.pairs) > 5
    first.save(tmp_path)
    small, large = solver(history_size=5), solver(history_size=50)
    for trainer in (small, large):
        trainer.resume(tmp_path)
    assert len(small._history.pairs) == 5
    for kept, pair in zip(small._history.pairs, first._history.pairs[-5:], strict=True):
        np.testing.assert_array_equal(kept[0], pair[0])
        np.testing.assert_array_equal(kept[1], pair[1])
    # The pairs decide the next direction, so the larger history alone gives the results of the first run.
    assert take_steps(large, 2) == take_steps(first, 2)
    assert_same_bits(first, large)
    take_steps(small, 2)
    assert len(small._history.pairs) == 5
    assert any((array != first.net.params[name]).any() for name, array in small.net.params.items())


KILLED = """
import os, signal, sys
import numpy as np
sys.path.insert(0, {tests!r})
from test_lbfgs_checkpoint import solver, take_steps
from graphkit.ir.atomic import PendingFile
from graphkit.train import checkpoint

folder, at = sys.argv[1], int(sys.argv[2])
trainer = solver()
if checkpoint.exists(folder):
    trainer.resume(folder)
commits, commit, evaluate = 0, PendingFile.commit, trainer._evaluate

def event(*args):
    global commits
    commits += 1
    if commits == at:
        os.kill(os.getpid(), signal.SIGKILL)

def counted(file, path):
    event()
    commit(file, path)

PendingFile.commit = counted
trainer._evaluate = lambda feeds: (event(), evaluate(feeds))[1]
while trainer.iterations < 12:
    take_steps(trainer, 1)
    trainer.save(folder)
"""


def test_resume_after_sigkill_is_bit_identical(tmp_path):
    code = KILLED.format(tests=str(Path(__file__).parent))
    ends = []
    for at in (9, 7, 0):  # killed in a save or in a step; the last process is not killed
        done = subprocess.run([sys.executable, "-P", "-c", code, tmp_path, str(at)], capture_output=True, text=True)
        ends.append(done.returncode)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
    assert ends == [-signal.SIGKILL, -signal.SIGKILL, 0]
    straight, resumed = solver(), solver()
    while straight.iterations < 12:
        take_steps(straight, 1)
    resumed.resume(tmp_path)
    assert_same_bits(straight, resumed)


@pytest.mark.parametrize("optimizer", [gk.optim.SGD(0.1), gk.optim.Adam(0.1)], ids=["sgd", "adam"])
def test_checkpoints_of_other_optimizers_are_refused(tmp_path, optimizer):
    data = X.astype("float32"), T.astype("float32")
    other = gk.Trainer(network("float32"), loss="mse", optimizer=optimizer)
    other.step(*data)
    other.save(tmp_path / "other")
    trainer = solver(network("float32"))
    before = trainer.net.state_dict()
    with pytest.raises(InvalidModel, match=r"does not fit this model and optimizer: the checkpoint lacks .*L-BFGS/dir"):
        trainer.resume(tmp_path / "other")
    for name, array in trainer.net.state_dict().items():
        np.testing.assert_array_equal(array, before[name])
    trainer.step(*data)
    trainer.save(tmp_path / "own")
    with pytest.raises(InvalidModel, match=r"does not fit this model and optimizer: .*it contains .*L-BFGS"):
        other.resume(tmp_path / "own")


def test_checkpoints_that_do_not_fit_are_refused(tmp_path):
    first = solver()
    take_steps(first, 2)
    first.save(tmp_path)
    with pytest.raises(InvalidModel, match="trained other parameters"):
        solver(train=["fc2*"]).resume(tmp_path)
    with pytest.raises(InvalidModel, match="'fc1_weight' is float32"):
        solver(network("float32")).resume(tmp_path)
    with pytest.raises(UsageError, match="contains no checkpoint"):
        first.resume(tmp_path / "nothing")
    saved = checkpoint.load(tmp_path)
    arrays = dict(saved.arrays)
    for damage, message in [
        ({"L-BFGS/direction": arrays["L-BFGS/direction"][:-1]}, "'L-BFGS/direction' is float64"),
        ({"L-BFGS/move/0": arrays["L-BFGS/move/0"].astype("float32")}, "'L-BFGS/move/0' is float32"),
        ({"L-BFGS/scale and length": np.zeros(3)}, "'L-BFGS/scale and length' is"),
        ({"L-BFGS/factors": np.zeros(0)}, "it contains .*L-BFGS/change/0"),
    ]:
        saved.arrays = {**arrays, **damage}
        checkpoint.save(tmp_path, saved)
        with pytest.raises(InvalidModel, match=message):
            first.resume(tmp_path)


def test_link_to_a_place_outside_is_refused(tmp_path):
    first = solver()
    first.save(tmp_path / "run")
    manifest = tmp_path / "run" / checkpoint.MANIFEST
    manifest.rename(tmp_path / "elsewhere.json")
    manifest.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(UnsafeModel, match="symbolic link"):
        first.resume(tmp_path / "run")
    first.resume(tmp_path / "run", trusted=True)
