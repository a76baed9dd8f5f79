"""What is taken of a folder: its best model, data that are meant, and classes that are those of the run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.cli import invoke
from graphkit.data import sources
from graphkit.errors import InputError


def network(folder: Path) -> str:
    net = gk.Model(gk.nn.linear(gk.flatten(gk.input("x", ["N", 1, 8, 8])), 10), name="net", seed=0)
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
    assert f"{run}: the best model, of epoch {best.meta['best_epoch']}; the last one is {run / 'model.json'}" in told
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
    with pytest.raises(InputError, match="digits is a data set of the package, and a file or folder here: write"):
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
        (lambda folder: (folder / "cat").rename(folder / "zebra"), "gone: cat; new: zebra"),
        (lambda folder: pictures(folder, ["ape"]), "new: ape"),
        (lambda folder: None, None),
    ],
)
def test_a_run_goes_on_with_its_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, told: str | None
) -> None:
    folder = pictures(tmp_path / "photos", ["cat", "dog"])
    data = ["--data", str(folder), "--data-option", "colours=L"]
    train = ["train", network(tmp_path), *data, "-o", str(tmp_path / "run")]
    assert invoke(train) == 0, capsys.readouterr().err
    assert json.loads((tmp_path / "run/checkpoint.json").read_text())["notes"]["classes"] == ["cat", "dog"]
    change(folder)
    capsys.readouterr()
    code = invoke(["train", network(tmp_path), "-o", str(tmp_path / "run"), "--resume", "--epochs", "2"])
    if told is None:
        assert code == 0
        return
    assert code == 2
    assert f"the classes of the data are not those of the run ({told})" in capsys.readouterr().err


def test_a_run_that_fails_at_once_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for where in ([], ["-o", "new/run"]):
        assert invoke(["train", network(tmp_path), "--data", "absent.npz", *where]) == 2, capsys.readouterr().err
        assert not (tmp_path / "new").exists()
        assert not (tmp_path / "runs").exists()


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
