"""Checkpoints of L-BFGS: resume is bit-identical, and checkpoints that do not fit are refused."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import InputError, InvalidModel, NotFinite, UnsafeModel, UsageError
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


@in_one_item("pairs")
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
sys.path[:0] = {folders!r}
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


@pytest.mark.full
def test_resume_after_sigkill_is_bit_identical(tmp_path):
    here = Path(__file__)
    code = KILLED.format(folders=[str(here.parent), str(here.parents[1])])  # of the modules that this one imports
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
        (
            {"L-BFGS/direction": np.zeros(0), "L-BFGS/gradient": np.zeros(0)},
            "after 4 iterations, it has a direction of 0",
        ),
        ({"L-BFGS/iterations and evaluations": np.array([0, 9])}, "after 0 iterations, it has a direction of"),
        ({"L-BFGS/iterations and evaluations": np.array([-3, 9])}, "it has -3 iterations"),
        ({"L-BFGS/iterations and evaluations": np.array([6, -9])}, "and -9 evaluations"),
        ({"L-BFGS/scale and length": np.array([np.nan, 1.0])}, "'L-BFGS/scale and length' contains NaN or infinity"),
        ({"L-BFGS/move/0": arrays["L-BFGS/move/0"] * np.inf}, "'L-BFGS/move/0' contains NaN or infinity"),
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


def test_pairs_without_an_iteration_are_refused(tmp_path):
    first = solver()
    take_steps(first, 2)
    first.save(tmp_path)
    saved = checkpoint.load(tmp_path)
    nothing = {"L-BFGS/direction": np.zeros(0), "L-BFGS/gradient": np.zeros(0)}
    saved.arrays = {**saved.arrays, **nothing, "L-BFGS/iterations and evaluations": np.array([0, 0])}
    checkpoint.save(tmp_path, saved)
    with pytest.raises(InvalidModel, match=r"after 0 iterations, it has a direction of 0 elements, and \d+ pairs"):
        solver().resume(tmp_path)


def test_checkpoints_of_another_loss_are_refused(tmp_path):
    first = solver()
    take_steps(first, 1)
    first.save(tmp_path)
    with pytest.raises(InvalidModel, match="that run has the loss mse, but this one has l1"):
        gk.LBFGS(network(), "l1").resume(tmp_path)


def test_run_that_failed_in_a_move_can_be_resumed(tmp_path, monkeypatch):
    first = solver()
    take_steps(first, 1)
    monkeypatch.setattr(first._history, "approximate_newton_step", lambda gradient: gradient * -np.inf)
    with pytest.raises(NotFinite):
        take_steps(first, 1)
    monkeypatch.undo()
    first.save(tmp_path)
    second = solver()
    second.resume(tmp_path)
    assert take_steps(second, 2) == take_steps(first, 2)


def test_notes_of_another_type_are_errors(tmp_path):
    first = solver()
    first.notes = 3
    with pytest.raises(UsageError, match="notes must be a dict of JSON values by name, not 3"):
        first.save(tmp_path)


def pruned(**options):
    """Return a solver of a model whose `fc1_weight` is half zeros, with masks."""
    net = network()
    weight = np.array(net.params["fc1_weight"])
    weight[::2] = 0
    net.params["fc1_weight"] = weight
    return solver(net, masks=gk.zero_masks(net), **options)


@pytest.mark.parametrize("line_search", ["strong_wolfe", None])
def test_masks_keep_zeros_and_continue_bit_for_bit(tmp_path, line_search):
    straight, first = (pruned(line_search=line_search, lr=0.2) for _ in range(2))
    losses = take_steps(straight, 4)
    assert losses[-1] < losses[0]
    weight = straight.net.params["fc1_weight"]
    assert (weight[::2] == 0).all()
    assert (weight[1::2] != pruned().net.params["fc1_weight"][1::2]).all()
    take_steps(first, 2)
    first.save(tmp_path)
    second = pruned(line_search=line_search, lr=0.2)
    second.resume(tmp_path)
    np.testing.assert_array_equal(second.masks()["fc1_weight"], weight != 0)
    assert take_steps(second, 2) == losses[2:]
    assert_same_bits(straight, second)
    with pytest.raises(InvalidModel, match="fc1_weight/mask"):
        solver().resume(tmp_path)
    saved = checkpoint.load(tmp_path)
    mask = saved.arrays["fc1_weight/mask"]
    for damaged, message in ((~mask, "is not 0 everywhere"), (mask[1:], "fc1_weight/mask' is bool")):
        saved.arrays = {**saved.arrays, "fc1_weight/mask": damaged}
        checkpoint.save(tmp_path, saved)
        with pytest.raises(InvalidModel, match=message):
            second.resume(tmp_path)


def test_masked_steps_are_those_of_the_smaller_problem():
    """A masked column of a linear layer gives the result of a layer without this input."""

    def trained(inputs, masks):
        x = gk.input("x", ["N", inputs], dtype="float64")
        net = gk.Model({"y": gk.nn.linear(x, 2, name="fc")}, seed=0)
        weight = np.zeros((2, inputs))
        weight[:, :2] = [[0.5, -0.2], [0.1, 0.3]]
        net.params["fc_weight"], net.params["fc_bias"] = weight, np.zeros(2)
        steps = gk.LBFGS(net, "mse", masks=masks, max_iter=5)
        for _ in range(4):
            steps.step(X[:, :inputs], T)
        return net.params

    full = trained(3, {"fc_weight": np.array([[1, 1, 0], [1, 1, 0]])})
    np.testing.assert_allclose(full["fc_weight"][:, :2], trained(2, None)["fc_weight"], rtol=1e-9)
    assert (full["fc_weight"][:, 2] == 0).all()


def test_wrong_masks_are_errors():
    net = network()
    for masks, message in (
        ({"fc1_weight": np.zeros((6, 3))}, "'fc1_weight' is not 0 everywhere"),
        ({"fc1_weight": np.ones(3)}, "has shape"),
        ({"none": np.ones(3)}, "there is no parameter 'none'"),
    ):
        with pytest.raises(UsageError, match=message):
            gk.LBFGS(net, "mse", masks=masks)


def test_an_empty_batch_is_an_error():
    with pytest.raises(InputError, match="the batch is empty"):
        solver().step(X[:0], T[:0])
