"""Run folders as models: the best model, the data of the run, and its classes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from combinations import default_at

import graphkit as gk
from graphkit.cli import invoke
from graphkit.data import sources
from graphkit.errors import InputError, UnsafeModel


def network(folder: Path, classes: int = 10) -> str:
    net = gk.Model(gk.nn.linear(gk.flatten(gk.input("x", ["N", 1, 8, 8])), classes), name="net", seed=0)
    net.save(folder / "net.json")
    return str(folder / "net.json")


def same(a: gk.Model, b: gk.Model) -> bool:
    return all((np.array(a.params[name]) == np.array(b.params[name])).all() for name in b.params)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose best epoch is not its last: the rate of the last ones is far too large."""
    options = ["--epochs", "4", "--keep-best", "--monitor", "valid_loss", "--lr", "0.1"]
    assert invoke(["train", network(tmp_path), "--data", "digits", *options, "-o", str(tmp_path / "run")]) == 0
    folder = tmp_path / "run"
    best = gk.load(folder / "best.json")
    worse = gk.Model.from_graph(best.graph, {n: np.array(a) + 1 for n, a in best.params.items()}, meta=best.meta)
    worse.save(folder / "model.json")
    return folder


def test_the_best_model_of_a_run_is_exported(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best, last = gk.load(run / "best.json"), gk.load(run)
    assert not same(best, last)
    assert invoke(["export", str(run), "-o", str(tmp_path / "net.onnx")]) == 0
    told = capsys.readouterr().err
    assert (
        f"{run}: using the best model, of epoch {best.meta['best_epoch']}. The last one is {run / 'model.json'}" in told
    )
    assert same(gk.load(tmp_path / "net.onnx"), best)
    assert invoke(["export", str(run / "model.json"), "-o", str(tmp_path / "last.onnx")]) == 0
    assert same(gk.load(tmp_path / "last.onnx"), last)
    assert "the best model" not in capsys.readouterr().err


def test_training_goes_on_from_the_last_model(run: Path, tmp_path: Path) -> None:
    (run / "best.json").write_text("not read")
    assert invoke(["train", str(run), "--data", "digits", "--lr", "0", "-o", str(tmp_path / "again")]) == 0
    assert same(gk.load(tmp_path / "again"), gk.load(run))


def test_a_folder_that_is_called_like_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(sources.read("digits")) == len(sources.read("built-in:digits")) > 1000
    (tmp_path / "digits").mkdir()
    np.savez(tmp_path / "digits/train.npz", x=np.ones((6, 2), np.float32), y=np.arange(6) % 2)
    np.savez(tmp_path / "digits/test.npz", x=np.ones((4, 2), np.float32), y=np.arange(4) % 2)
    with pytest.raises(InputError, match="digits is both a data set of the package and a file or folder here: write"):
        sources.read("digits")
    assert len(sources.read("./digits")) == len(sources.read("digits/")) == 10
    assert len(sources.read("built-in:digits")) > 1000


def pictures(folder: Path, classes: list[str]) -> Path:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(8):
            image.fromarray(rng.integers(0, 255, (8, 8), np.uint8)).save(folder / name / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda folder: (folder / "cat").rename(folder / "zebra"), "missing: cat; new: zebra"),
        (lambda folder: pictures(folder, ["ape"]), "new: ape"),
        (lambda folder: None, None),
    ],
)
def test_a_run_goes_on_with_its_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, told: str | None
) -> None:
    folder = pictures(tmp_path / "photos", ["cat", "dog"])
    data = ["--data", str(folder), "--data-option", "colours=L"]
    train = ["train", network(tmp_path, 2), *data, "-o", str(tmp_path / "run")]
    assert invoke(train) == 0, capsys.readouterr().err
    assert json.loads((tmp_path / "run/checkpoint.json").read_text())["notes"]["classes"] == ["cat", "dog"]
    change(folder)
    capsys.readouterr()
    code = invoke(["train", network(tmp_path, 2), "-o", str(tmp_path / "run"), "--resume", "--epochs", "2"])
    if told is None:
        assert code == 0
        return
    assert code == 2
    assert f"the classes of the data differ from those of the run ({told})" in capsys.readouterr().err


def test_a_run_that_fails_at_once_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for where in ([], ["-o", "new/run"]):
        assert invoke(["train", network(tmp_path), "--data", "absent.npz", *where]) == 2, capsys.readouterr().err
        assert not (tmp_path / "new").exists()
        assert not (tmp_path / "runs").exists()


@pytest.mark.full
def test_runs_that_begin_in_one_second_have_folders_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-P", "-m", "graphkit", "train", network(tmp_path), "--data", "digits", "--epochs", "1"]
    jobs = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(3)]
    assert [job.wait(100) for job in jobs] == [0, 0, 0]
    assert len(list((tmp_path / "runs").glob("*/model.json"))) == 3


def test_a_run_that_is_given_no_folder_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for count in (1, 2):
        assert invoke(["train", network(tmp_path), "--data", "digits", "--keep-best", "--tensorboard"]) == 0
        folders = sorted((tmp_path / "runs").iterdir())
        assert len(folders) == count
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\d-\d{6}-net(-2)?", folder.name) for folder in folders)
        told = capsys.readouterr().err
        assert f"wrote {folders[-1].relative_to(tmp_path)}: model.json, best.json, checkpoint.json" in told
        assert (folders[-1] / "best.json").exists()
        assert list((folders[-1] / "tensorboard").iterdir())
    assert invoke(["train", network(tmp_path), "--data", "digits", "--find-lr"]) == 0
    assert invoke(["train", network(tmp_path), "--data", "no such data"]) != 0
    assert len(list((tmp_path / "runs").iterdir())) == 2


def losses(folder: Path) -> list[float]:
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [row["valid_loss"] for row in rows if row["event"] == "epoch"]


def test_resume_divides_pictures_as_the_run_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An old checkpoint does not contain the rule of the split. Such runs were split by position."""
    folder = pictures(tmp_path / "photos", ["cat", "dog"])
    train = ["train", network(tmp_path, 2), "--data", str(folder), "--data-option", "colours=L", "--epochs", "1"]
    for name, rule in (("new", "name"), ("old", "position")):
        run, parts = tmp_path / name, gk.data.load(folder, split=rule, colours="L")
        assert invoke([*train, "-o", str(run)]) == 0, capsys.readouterr().err
        notes = json.loads((run / "checkpoint.json").read_text())
        assert notes["notes"]["split"] == "name"
        if rule == "position":
            del notes["notes"]["split"]
            (run / "checkpoint.json").write_text(json.dumps(notes))
        assert invoke(["train", network(tmp_path, 2), "-o", str(run), "--resume", "--epochs", "2"]) == 0
        told = capsys.readouterr().err
        assert f"{len(parts.test)} for validation, split {'by file name' if rule == 'name' else 'at random'}" in told
        assert len(losses(run)) == 2


@pytest.mark.parametrize(
    "targets", [np.eye(2, dtype=np.float32)[[0, 1, 0, 1, 0]], np.array([0.5, 1, 0, 1, 0])], ids=str
)
def test_targets_that_are_no_numbers_of_classes_are_not_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], targets: np.ndarray
) -> None:
    x = gk.input("x", ["N", 3])
    gk.Model(gk.nn.linear(x, targets[0].size), name="net").save(tmp_path / "net.json")
    inputs = np.ones((5, 3), np.float32)
    np.savez(tmp_path / "data.npz", x=inputs, y=targets.reshape(5, -1), classes=np.array(["cat", "dog"]))
    data = ["--data", str(tmp_path / "data.npz"), "--loss", "mse", "--epochs", "1"]
    assert invoke(["train", str(tmp_path / "net.json"), *data, "-o", str(tmp_path / "run")]) == 0
    assert "4 samples for training, 1 for validation, split at random; 2 classes\n" in capsys.readouterr().err


def test_pictures_are_counted_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pictures(tmp_path / "photos", ["cat", "dog"])
    parts = gk.data.load(folder)
    counts = np.bincount(parts.train.targets)
    train = [
        "train",
        network(tmp_path, 2),
        "--data",
        str(folder),
        "--data-option",
        "colours=L",
        "-o",
        str(tmp_path / "r"),
    ]
    assert invoke(train) == 0
    told = capsys.readouterr().err
    assert (
        f"{folder}: {len(parts.train)} images for training, {len(parts.test)} for validation, split by file name"
        in told
    )
    assert f"2 classes (training samples of each class: cat: {counts[0]}, dog: {counts[1]})" in told


@default_at(0)
@pytest.mark.parametrize(("classes", "has"), [(10, 2), (2, 3)])
def test_a_head_for_another_number_of_classes_names_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], classes: int, has: int
) -> None:
    folder = pictures(tmp_path / "photos", ["cat", "dog", "owl"][:has])
    run = tmp_path / "run"
    options = ["--data", str(folder), "--data-option", "colours=L", "-o", str(run)]
    assert invoke(["train", network(tmp_path, classes), *options]) == 2
    message = f"there are {has} classes (cat, dog{', owl' * (has - 2)}), but the network 'net' has {classes} outputs, "
    assert message in capsys.readouterr().err
    assert not run.exists()
    assert invoke(["train", network(tmp_path, classes), "--head", f"classes={has}", *options]) == 0


def test_run_says_how_it_reads_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, net = pictures(tmp_path / "photos", ["cat", "dog"]), network(tmp_path, 2)
    assert invoke(["run", net, str(folder / "cat" / "0.png"), "--image-mean", "0.5", "--image-std", "0.25"]) == 0
    told = capsys.readouterr().err
    assert "1 image for input 'x': resized to 8 x 8, grey, (pixel / 255 - 0.5) / 0.25, NCHW float32" in told
    assert (
        "(chosen by the input's shape, because the model's metadata do not describe it, --image-mean, --image-std)"
        in told
    )
    options = ["--data-option", "colours=L", "--data-option", "mean=0.25", "-o", str(tmp_path / "run")]
    assert invoke(["train", net, "--data", str(folder), *options]) == 0
    assert invoke(["run", str(tmp_path / "run"), str(folder / "cat")]) == 0
    assert "8 images for input 'x': " in (told := capsys.readouterr().err)
    assert "(pixel / 255 - 0.25) / 0.5, NCHW float32 (by the model's metadata)" in told


READERS = {
    "report": ["report", "{run}", "-o", "{out}/page.html"],
    "resume": ["train", "{net}", "-o", "{run}", "--resume", "--epochs", "2"],
    "run": ["run", "{run}"],
    "export": ["export", "{run}", "-o", "{out}/net.onnx"],
    "inspect": ["inspect", "{run}"],
    "train": ["train", "{run}", "--data", "digits", "-o", "{out}/again"],
    "weights": ["build", "mlp", "--weights", "{run}", "-o", "{out}/mlp.json"],
}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    assert invoke(["train", network(tmp_path), "--data", "digits", "-o", str(tmp_path / "run")]) == 0
    return tmp_path / "run"


def lead_out(run: Path, name: str) -> Path:
    """The file of the run becomes a link to where it has been moved."""
    outside = run.parent / "outside" / name
    outside.parent.mkdir(exist_ok=True)
    (run / name).rename(outside)
    (run / name).symlink_to(outside)
    return outside


def weights_of(run: Path, kind: str) -> str:
    (found,) = (path.name for path in run.glob(f"{kind}.*.safetensors"))
    return found


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("file", ["state", "model", "log.jsonl"])
def test_links_that_lead_out_of_a_run_folder_are_refused(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], reader: str, file: str
) -> None:
    lead_out(small, file if "." in file else weights_of(small, file))
    call = [part.format(run=small, net=tmp_path / "net.json", out=tmp_path) for part in READERS[reader]]
    capsys.readouterr()
    assert invoke(call) == 4
    assert "is a symbolic link to " in (told := capsys.readouterr().err)
    assert "--trust-run-folder" in told
    code = invoke([*call, "--trust-run-folder"])
    assert code == (2 if reader == "weights" else 0), "the networks have no parameters in common"
    assert "symbolic link" not in capsys.readouterr().err


def test_links_inside_of_a_run_folder_are_followed(small: Path) -> None:
    name = weights_of(small, "state")
    (small / name).rename(small / "moved.bin")
    (small / name).symlink_to("moved.bin")
    (small / "photos").symlink_to(small.parent)
    trainer = gk.Trainer(gk.load(small))
    trainer.resume(small)
    assert trainer.epoch == 1


def test_resume_from_python_refuses_links_out(small: Path) -> None:
    lead_out(small, "checkpoint.json")
    trainer = gk.Trainer(gk.load(small))
    with pytest.raises(UnsafeModel, match=r"checkpoint.json is a symbolic link to .*outside.*trusted=True"):
        trainer.resume(small)
    assert trainer.epoch == 0
    trainer.resume(small, trusted=True)
    assert trainer.epoch == 1


def test_a_lock_that_is_a_link_empties_no_file(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("kept")
    (small / ".lock").symlink_to(precious)
    call = ["train", network(tmp_path), "-o", str(small), "--resume", "--epochs", "2", "--trust-run-folder"]
    assert invoke(call) == 4
    assert ".lock is a symbolic link, not the lock of a run" in capsys.readouterr().err
    assert precious.read_text() == "kept"


def test_the_way_to_divide_is_an_option_of_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pictures(tmp_path / "photos", ["cat", "dog"])
    train = ["train", network(tmp_path, 2), "--data", str(folder), "--data-option", "colours=L"]
    for call in (
        [*train, "--data-option", "split=position"],
        ["train", network(tmp_path, 2), "--resume", "--epochs", "2"],
    ):
        assert invoke([*call, "-o", str(tmp_path / "run")]) == 0
        assert "13 images for training, 3 for validation, split at random; " in capsys.readouterr().err
    assert invoke([*train, "--data-option", "split=size", "-o", str(tmp_path / "a")]) == 2
    assert "by 'name' or 'position', not 'size'" in capsys.readouterr().err
    assert invoke([*train, "--data-option", "axes=1", "-o", str(tmp_path / "a")]) == 2
    assert "--batch-axis" in capsys.readouterr().err
