"""Checkpoints of a generator and a discriminator: bit-identical resume, killed runs, folders of other runs, damage."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import InvalidModel, UsageError
from graphkit.train.adversarial import AdversarialTrainer

EPOCHS = 4


def images(count=20):
    return gk.data.Dataset(np.random.default_rng(0).uniform(-1, 1, (count, 1, 8, 8)).astype(np.float32))


def trainer(optimizer=None, seed=0, **options):
    options = {"image": (1, 8, 8), "latent": 4, "width": 4} | options
    nets = [gk.models.build("gan", part=part, **options) for part in ("generator", "discriminator")]
    return AdversarialTrainer(*nets, optimizer, seed=seed, threads=1)


def held(player):
    stores = (player.generator.params, player.discriminator.params, player.states)
    return {name: array.tobytes() for store in stores for name, array in store.items()}


@pytest.fixture(scope="module")
def whole():
    """Return all arrays after the last epoch, and the losses."""
    player = trainer()
    losses = player.fit(images(), epochs=EPOCHS, batch_size=8)
    return held(player), losses


def test_resume_equals_an_uninterrupted_run(tmp_path, whole):
    first = trainer()
    losses = first.fit(images(), epochs=1, batch_size=8, folder=tmp_path)
    first.fit(images(), epochs=1, batch_size=8)  # after the checkpoint
    second = trainer(seed=5)
    second.resume(tmp_path)
    assert second.epochs == 1
    losses += second.fit(images(), epochs=EPOCHS - 1, batch_size=8, folder=tmp_path)
    assert (held(second), losses) == whole
    third = trainer()
    third.resume(tmp_path)
    assert third.epochs == EPOCHS
    assert held(third) == whole[0]


def test_resume_from_a_manual_save(tmp_path):
    first = trainer()
    first.step(images(8).inputs)
    first.save(tmp_path / "run")
    second = trainer()
    second.resume(tmp_path / "run")
    assert held(second) == held(first)
    assert first.step(images(8).inputs) == second.step(images(8).inputs), "the same noise is drawn"


# One process imports graphkit and forks another one for each run. It prints the exit codes as JSON.
WORKER = """
import json, os, signal, sys, time, traceback
from graphkit.errors import UsageError
sys.path.append(sys.argv[2])
from test_adversarial_saving import EPOCHS, images, trainer

def train(folder, begins):
    player = trainer()
    try:
        player.resume(folder)
    except UsageError as error:
        assert "contains no checkpoint" in str(error), error
    os.write(begins, b"!")
    player.fit(images(), epochs=EPOCHS - player.epochs, batch_size=8, folder=folder)

def attempt(folder, moment):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            train(folder, writing)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        pipe.read(1)
    if moment is not None:
        time.sleep(moment)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

trainer()  # what it imports is there for the children
print(json.dumps([attempt(sys.argv[1], moment) for moment in [*map(float, sys.argv[3:]), None]]))
"""


@pytest.mark.parametrize(
    "moments", [(0.0, 0.05), pytest.param((0.0, 0.02, 0.05, 0.1), marks=pytest.mark.full)], ids=["twice", "often"]
)
def test_killed_run_can_resume(tmp_path, whole, moments):
    """After SIGKILL at several moments, the folder contains a complete checkpoint or none."""
    command = [sys.executable, "-P", "-c", WORKER, tmp_path / "run", Path(__file__).parent, *map(str, moments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    *killed, last = json.loads(done.stdout)
    assert killed[0] == -signal.SIGKILL, "nothing was killed: the test proves nothing"
    assert set(killed) <= {-signal.SIGKILL, 0}, done.stderr
    assert last == 0, done.stderr
    player = trainer()
    player.resume(tmp_path / "run")
    assert held(player) == whole[0]
    assert not list((tmp_path / "run").glob("*.tmp*"))


# --- errors -----------------------------------------------------------------------------------------


def test_a_folder_of_another_run_is_refused(tmp_path):
    trainer().fit(images(), batch_size=8, folder=tmp_path)
    other = trainer()
    with pytest.raises(UsageError, match="already contains a run"):
        other.fit(images(), batch_size=8, folder=tmp_path)
    other.fit(images(), batch_size=8, folder=tmp_path, overwrite=True)
    again = trainer()
    again.resume(tmp_path)
    assert held(again) == held(other)


def test_checkpoint_that_does_not_fit_changes_nothing(tmp_path):
    trainer().fit(images(), batch_size=8, folder=tmp_path)
    for other, message in [
        (trainer(gk.optim.SGD(0.1)), "does not fit these networks and optimizers: .*/"),
        (trainer(width=8), "does not fit these networks: parameter .* is "),
    ]:
        before = held(other)
        with pytest.raises(InvalidModel, match=message):
            other.resume(tmp_path)
        assert held(other) == before
        assert other.epochs == 0
    net = gk.models.build("mlp")
    with pytest.raises(InvalidModel, match="does not fit this model and optimizer"):
        gk.Trainer(net).resume(tmp_path)
    gk.Trainer(net).save(tmp_path / "other")
    with pytest.raises(InvalidModel, match="does not fit these networks and optimizers"):
        trainer().resume(tmp_path / "other")
    with pytest.raises(UsageError, match="contains no checkpoint"):
        trainer().resume(tmp_path / "nothing")


def test_a_damaged_checkpoint_is_named(tmp_path):
    trainer().fit(images(), batch_size=8, folder=tmp_path)
    (weights,) = tmp_path.glob("state.*.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(InvalidModel, match=r"state\."):
        trainer().resume(tmp_path)
