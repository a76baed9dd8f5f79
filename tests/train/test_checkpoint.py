"""Checkpoints: bit-identical resume, damage, and SIGKILL at random moments."""

import hashlib
import json
import os
import random
import re
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import GraphkitWarning, InvalidModel, RuntimeFailure, UsageError
from graphkit.ir import atomic
from graphkit.train import checkpoint


def model():
    x = gk.input("x", ["N", 6])
    h = gk.nn.dropout(gk.tanh(gk.nn.linear(x, 8, name="fc1")), 0.3)
    return gk.Model({"logits": gk.nn.linear(h, 3, name="fc2")}, name="small", seed=0)


def data(n=50):
    rng = np.random.default_rng(5)
    return rng.standard_normal((n, 6), np.float32), rng.integers(0, 3, n)


OPTIMIZERS = {"sgd": gk.optim.SGD(0.1, momentum=0.9), "adam": gk.optim.Adam(gk.optim.Cosine(1e-2, 40))}


@in_one_item("pairs")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("stop_after", [4, 9])
def test_resume_continues_bit_for_bit(tmp_path, optimizer, accumulate, stop_after):
    options = {"optimizer": OPTIMIZERS[optimizer], "accumulate": accumulate, "seed": 3}
    straight = model()
    gk.Trainer(straight, **options).fit(data(), epochs=3, batch_size=8)

    class Stop(Exception):
        pass

    first = gk.Trainer(model(), **options)
    steps_taken = 0
    original = first._step

    def limited(*args):
        nonlocal steps_taken
        if steps_taken == stop_after:
            first.save(tmp_path)
            raise Stop
        steps_taken += 1
        return original(*args)

    first._step = limited
    with pytest.raises(Stop):
        first.fit(data(), epochs=3, batch_size=8)

    resumed = gk.load(tmp_path)
    trainer = gk.Trainer(resumed, **options)
    trainer.resume(tmp_path)
    trainer.fit(data(), epochs=3, batch_size=8)
    for name in straight.params:
        assert straight.params[name].tobytes() == resumed.params[name].tobytes(), name


def test_folder_contains_model_checkpoint_and_log(tmp_path):
    trainer = gk.Trainer(model(), optimizer=gk.optim.SGD(0.1))
    trainer.fit(data(), data(10), epochs=2, batch_size=16, metrics=["accuracy"], folder=tmp_path)
    names = sorted(p.name.split(".")[0] + p.suffix for p in tmp_path.iterdir())
    assert names == ["checkpoint.json", "log.jsonl", "model.json", "model.safetensors", "state.safetensors"]
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert {"loss", "accuracy", "valid_accuracy", "learning_rate", "updates"} <= set(lines[0])
    loaded = gk.load(tmp_path)
    x = data()[0]
    np.testing.assert_array_equal(loaded.run({"x": x})["logits"], trainer.net.run({"x": x})["logits"])


def test_folder_is_synced_before_old_state_is_removed(tmp_path, monkeypatch):
    """Otherwise a power cut could restore the old manifest after its weights were removed."""
    trainer = gk.Trainer(model(), optimizer=gk.optim.SGD(0.1))
    trainer.save(tmp_path)
    before = json.loads((tmp_path / "checkpoint.json").read_text())["weights"]["file"]
    trainer.fit(data(), epochs=1, batch_size=16)
    synced, of_system = [], os.fsync

    def fsync(descriptor):
        of_system(descriptor)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            manifest = json.loads((tmp_path / "checkpoint.json").read_text())
            synced.append((manifest["weights"]["file"] != before, (tmp_path / before).exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    trainer.save(tmp_path)
    assert (True, True) in synced
    assert not (tmp_path / before).exists()


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    gk.Trainer(model(), optimizer=gk.optim.SGD(0.1)).save(tmp_path)
    with pytest.raises(InvalidModel, match="does not fit"):
        gk.Trainer(model(), optimizer=gk.optim.Adam()).resume(tmp_path)
    with pytest.raises(UsageError, match="contains no checkpoint"):
        gk.Trainer(model()).resume(tmp_path / "nothing")


@in_one_item()
@pytest.mark.parametrize("damage", ["truncate", "flip", "missing", "not json", "outside"])
def test_a_damaged_checkpoint_is_named(tmp_path, damage):
    trainer = gk.Trainer(model(), optimizer=gk.optim.SGD(0.1))
    trainer.save(tmp_path)
    (weights,) = tmp_path.glob("state.*.safetensors")
    manifest = tmp_path / checkpoint.MANIFEST
    match damage:
        case "truncate":
            weights.write_bytes(weights.read_bytes()[:-5])
        case "flip":
            raw = bytearray(weights.read_bytes())
            raw[-1] ^= 1
            weights.write_bytes(raw)
        case "missing":
            weights.unlink()
        case "not json":
            manifest.write_text("{")
        case "outside":
            content = json.loads(manifest.read_text())
            content["weights"]["file"] = "../secret"
            manifest.write_text(json.dumps(content))
    with pytest.raises(InvalidModel, match=r"state\.|checkpoint\.json"):
        trainer.resume(tmp_path)


LIES = {
    "arrays": [None, [], {"fc1/weight": None}, {"fc1/weight": {"dtype": "float99", "shape": [8, 6]}}],
    "weights": [None, "state", {"file": 5, "sha256": ""}, {"file": "..", "sha256": ""}, {}],
    "parts": [None, {"a": 1}, [5], ["abc"], [["unknown"]]],
    "rng": [None, [], [1], [1, 2, 3], [-1, 0], [0, 1 << 64], ["0", 0], [True, 0]],
    "position": [None, [], {"epoch": "1"}, {"batch": -1}, {"trained": 5}, {"length": 1.5}, {"loss_sum": None}],
    "settings": [None, {"waiting": None}, {"waiting": 1 << 70}, {"skipped": "x"}, {"waiting_weight": []}],
    "updates": [None, -1, 1e300, "7"],
    "data_seed": [None, "0", []],
    "run": [None, 5],
    "notes": [None, []],
    "version": [None, "2", 99],
    "format": [None, "other"],
}


@in_one_item()
@pytest.mark.parametrize("name", LIES)
def test_inconsistent_manifest_changes_nothing(tmp_path, name):
    trainer = gk.Trainer(model(), optimizer=gk.optim.SGD(0.1))
    trainer.save(tmp_path)
    before = {key: array.tobytes() for key, array in trainer.net.params.items()}
    path = tmp_path / checkpoint.MANIFEST
    content = json.loads(path.read_text())
    for lie in LIES[name]:
        path.write_text(json.dumps({**content, name: lie}))
        with pytest.raises(InvalidModel, match=r"checkpoint"):
            trainer.resume(tmp_path)
    assert before == {key: array.tobytes() for key, array in trainer.net.params.items()}


def test_newer_checkpoint_asks_for_an_upgrade(tmp_path):
    trainer = gk.Trainer(model())
    trainer.save(tmp_path)
    path = tmp_path / checkpoint.MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 4}))
    with pytest.raises(InvalidModel, match="has version 4; this graphkit reads up to 3: upgrade graphkit"):
        trainer.resume(tmp_path)


@pytest.mark.parametrize(("digits", "shown"), [(60, "1" * 60), (61, "1" * 57 + "...")])
def test_error_shows_beginning_of_long_value(tmp_path, digits, shown):
    trainer = gk.Trainer(model())
    trainer.save(tmp_path)
    manifest = tmp_path / "checkpoint.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "run": int("1" * digits)}))
    with pytest.raises(InvalidModel, match=f"'run' is {re.escape(shown)}$"):
        trainer.resume(tmp_path)


@in_one_item()
@pytest.mark.parametrize("text", [b"", b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe", b"9" * 10_000, b"[]", b"null"])
def test_invalid_manifests_are_rejected(tmp_path, text):
    (tmp_path / checkpoint.MANIFEST).write_bytes(text)
    with pytest.raises(InvalidModel, match=r"checkpoint\.json"):
        gk.Trainer(model()).resume(tmp_path)


def test_a_weights_file_of_another_run_is_refused(tmp_path):
    trainer = gk.Trainer(model(), optimizer=gk.optim.SGD(0.1))
    trainer.save(tmp_path)
    path = tmp_path / checkpoint.MANIFEST
    content = json.loads(path.read_text())
    for lie in ("blake2b8:" + "0" * 64, content["weights"]["hash"][:-1], "blake2b8:", "md5:00", ""):
        path.write_text(json.dumps({**content, "weights": {**content["weights"], "hash": lie}}))
        with pytest.raises(InvalidModel, match=r"state\."):
            trainer.resume(tmp_path)


def test_a_checkpoint_of_version_2_is_resumed(tmp_path):
    trainer = gk.Trainer(model(), optimizer=gk.optim.SGD(0.1))
    trainer.save(tmp_path)
    path = tmp_path / checkpoint.MANIFEST
    content = json.loads(path.read_text())
    (weights,) = tmp_path.glob("state.*.safetensors")
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    path.write_text(json.dumps({**content, "version": 2, "weights": {"file": weights.name, "sha256": digest}}))
    gk.Trainer(model(), optimizer=gk.optim.SGD(0.1)).resume(tmp_path)
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with pytest.raises(InvalidModel, match="SHA-256 differs"):
        gk.Trainer(model(), optimizer=gk.optim.SGD(0.1)).resume(tmp_path)


@in_one_item()
@pytest.mark.parametrize("size", [0, 7, 8, 60, -1])
def test_truncated_weights_are_rejected(tmp_path, size):
    trainer = gk.Trainer(model(), optimizer=gk.optim.SGD(0.1))
    trainer.save(tmp_path)
    (weights,) = tmp_path.glob("state.*.safetensors")
    weights.write_bytes(weights.read_bytes()[:size])
    with pytest.raises(InvalidModel, match=r"state\."):
        trainer.resume(tmp_path)


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    trainer = gk.Trainer(model(), optimizer=gk.optim.SGD(0.1))
    trainer.save(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    trainer.step(*data(8))

    def full(self, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.PendingFile, "write", full)
    with pytest.raises(RuntimeFailure, match="No space left on device"):
        trainer.save(tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_new_checkpoint_is_valid_if_removal_fails(tmp_path, monkeypatch):
    trainer = gk.Trainer(model(), optimizer=gk.optim.SGD(0.1))
    trainer.save(tmp_path)
    (old,) = tmp_path.glob("state.*.safetensors")
    trainer.step(*data(8))

    def refused(path, missing_ok=False):
        if path == old:
            raise PermissionError(1, "Operation not permitted", str(path))
        return unlink(path, missing_ok)

    unlink = Path.unlink
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refused)
        with pytest.raises(RuntimeFailure, match=rf"{old.name}.* cannot be removed: Operation not permitted"):
            trainer.save(tmp_path)
    again = gk.Trainer(model(), optimizer=gk.optim.SGD(0.1))
    again.resume(tmp_path)
    assert again.updates == 1


LOOP = """
    import signal
    import sys
    # A shell that starts the tests in the background makes children ignore the interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import numpy as np
    import graphkit as gk
    x = gk.input("x", ["N", 64])
    net = gk.Model({"logits": gk.nn.linear(gk.tanh(gk.nn.linear(x, 256, name="a")), 10, name="b")}, seed=0)
    trainer = gk.Trainer(net, optimizer=gk.optim.SGD(0.01, momentum=0.9))
    rng = np.random.default_rng(0)
    data = rng.standard_normal((256, 64), np.float32), rng.integers(0, 10, 256)
    trainer.save(sys.argv[1])
    print("ready", flush=True)
    trainer.fit(data, epochs=100000, batch_size=64, folder=sys.argv[1], checkpoint_every=1)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.full)])
def test_killed_at_random_moments_the_last_checkpoint_loads(tmp_path, number, kills):
    moments = random.Random(int(number))
    updates = []
    for i in range(kills):
        folder = tmp_path / f"run{i}"
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", textwrap.dedent(LOOP), str(folder)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdout.readline().strip() == "ready", child.stderr.read()
        manifest = folder / checkpoint.MANIFEST
        while i == 0 and json.loads(manifest.read_text())["updates"] == 0:
            time.sleep(0.01)  # at least one run has written a checkpoint
        time.sleep(moments.uniform(0.0, 0.6 if kills > 1 else 0.1))
        child.send_signal(number)
        child.communicate(timeout=300)
        assert child.returncode != 0
        net = gk.load(folder)
        trainer = gk.Trainer(net, optimizer=gk.optim.SGD(0.01, momentum=0.9))
        trainer.resume(folder)
        assert all(np.isfinite(net.params[n]).all() for n in net.params)
        updates.append(trainer.updates)
    assert max(updates) > 0, "no checkpoint was written between the kills: the test proves nothing"


def test_resume_with_another_loss_warns(tmp_path):
    first = gk.Trainer(model(), optimizer=gk.optim.SGD(0.1))
    first.step(*data())
    first.save(tmp_path)
    second = gk.Trainer(model(), loss="focal", optimizer=gk.optim.SGD(0.1))
    with pytest.warns(GraphkitWarning, match="of a run with the loss softmax_cross_entropy; from now on, .* is focal"):
        second.resume(tmp_path)
    assert second.updates == 1
    gk.Trainer(model(), optimizer=gk.optim.SGD(0.5)).resume(tmp_path)  # the same loss: no warning
