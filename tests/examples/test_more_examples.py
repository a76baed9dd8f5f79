"""Run each example as in its README, with smaller numbers; check its output and files."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import optuna
import pytest
from PIL import Image

import graphkit as gk
from graphkit.train.run_folder import RunFolder

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.full


@pytest.fixture
def example(tmp_path, monkeypatch) -> Callable[..., str]:
    """Run examples/NAME/NAME.py in an empty folder: its stdout, or its stderr where another `code` than 0 is expected.

    Warnings are errors in all of its processes.
    """
    monkeypatch.chdir(tmp_path)
    # As in the root of the repository, which contains the sources without the extension. They must not be imported.
    (tmp_path / "graphkit").mkdir()
    (tmp_path / "graphkit" / "__init__.py").write_text("raise AssertionError('that is not the installed package')")

    def run(name: str, *arguments: object, code: int = 0) -> str:
        command = [sys.executable, EXAMPLES / name / f"{name}.py", *map(str, arguments)]
        environment = {**os.environ, "PYTHONWARNINGS": "error"}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment)
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stderr if code else ended.stdout

    return run


def found(line: str, out: str) -> list[float]:
    """Return the numbers of the only line of the output that matches this pattern."""
    (numbers,) = re.findall(f"^{line}$", out, re.MULTILINE)
    return [float(number) for number in ([numbers] if isinstance(numbers, str) else numbers)]


def last_epoch(folder: Path | str) -> dict[str, float]:
    lines = [json.loads(line) for line in Path(folder, "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == "epoch"][-1]


def test_pictures_in_folders_become_a_file_that_names_them(example):
    Path("runs/image_folder/shapes-60.unfinished/blot").mkdir(parents=True)  # of a call that was killed while it drew
    out = example("image_folder", "--count", 60, "--epochs", 12)
    assert last_epoch("runs/image_folder/run")["valid_accuracy"] > 0.4  # of six classes
    net = gk.load("runs/image_folder/net.onnx")
    assert net.classes == ("circle", "cross", "hexagon", "square", "star", "triangle")
    assert gk.verify(net).passed
    named = [line.split()[2] for line in out.splitlines() if line.startswith("runs/image_folder/photo.png")]
    assert len(named) == 5
    assert set(named) < set(net.classes)
    # A second call finds its pictures, and trains anew; so do pictures of one's own.
    pictures = "runs/image_folder/shapes-60"
    photo = f"{pictures}/star/3.png"
    out = example("image_folder", "--pictures", pictures, "--photo", photo, "--epochs", 1, "-o", "own")
    assert f"\n{photo}  " in out


def test_an_error_of_a_command_ends_an_example(example):
    Path("empty").mkdir()
    photo = ("--photo", EXAMPLES / "image_folder" / "README.md")
    assert example("image_folder", "--pictures", "empty", *photo, code=2).startswith("graphkit: empty: ")
    assert not Path("runs/image_folder/run/model.json").exists()


def test_a_file_learns_other_classes_by_a_fresh_head(example):
    out = example("fine_tune", "--epochs", 15)
    results = {line[9:]: float(line[:6]) for line in out.splitlines() if line[6:7] == "%"}
    assert list(results) == ["a fresh head", "then everything", "all from random weights"]
    assert results["then everything"] > 85 > 50  # per cent, of two classes
    assert results["then everything"] > results["all from random weights"]
    net = gk.load("runs/fine_tune/net.onnx")
    assert net.classes == ("even", "odd")
    assert net.params["head_weight"].shape == (2, 500)
    assert gk.verify(net).passed
    # The head was trained alone at first, and the rest moved afterwards.
    known, head, whole = (
        gk.load(f"runs/fine_tune/{name}").params["conv1_weight"] for name in ("known.onnx", "head", "whole")
    )
    assert (known == head).all()
    assert (head != whole).any()
    out = example(
        "fine_tune", "--model", "runs/fine_tune/known.onnx", "--at", "flat", "--data", "digits", "--classes", 10,
        "--epochs", 1, "-o", "own",
    )  # fmt: skip
    assert "from random weights" not in out
    assert gk.load("own/net.onnx").params["head_weight"].shape == (10, 200)


def test_a_table_with_gaps_is_learnt_and_other_rows_are_predicted(example):
    out = example("tabular", "--count", 3000, "--epochs", 8)
    reached, best = (float(number) for number in re.findall(r"\d\.\d{4}", out.splitlines()[-1]))
    assert 0.7 < reached < best + 0.02  # 0.5 is chance; `best` is of the true odds, on the same people
    assert last_epoch("runs/tabular/run")["valid_f1"] > 0.35
    net = gk.load("runs/tabular/net.onnx")
    assert net.classes == ("little", "much")
    assert gk.verify(net).passed
    named = re.findall(r"^\d +[01] +(little|much) +[01]\.\d+$", out, re.MULTILINE)
    assert len(named) == 5
    # Rows by their columns' names, whatever their order and what else there is.
    rows = [line.split(",") for line in Path("runs/tabular/rows.csv").read_text().splitlines()]
    Path("turned.csv").write_text("\n".join(",".join([*reversed(row), f"note{i}"]) for i, row in enumerate(rows)))
    table = "runs/tabular/census/train.csv"
    again = example("tabular", "--data", table, "--rows", "turned.csv", "--epochs", 1, "-o", "own")
    assert "true odds" not in again
    for name in ("runs/tabular/rows.csv", "turned.csv"):
        command = [sys.executable, "-P", "-m", "graphkit", "run", "runs/tabular/net.onnx", name, "-o", f"{name}.npz"]
        subprocess.run(command, check=True)
    with np.load("runs/tabular/rows.csv.npz") as straight, np.load("turned.csv.npz") as turned:
        np.testing.assert_array_equal(straight["logits"], turned["logits"])


def test_ratings_are_predicted_between_the_best_constant_and_their_noise(example):
    out = example("recommender", "--users", 200, "--items", 150, "--count", 12000, "--epochs", 30)
    results = {line[8:]: float(line[:6]) for line in out.splitlines()[-4:]}
    assert list(results) == ["the best constant", "matrix_factorization", "ncf", "the noise of the ratings"]
    constant, noise = results["the best constant"], results["the noise of the ratings"]
    assert noise == pytest.approx(0.5, rel=0.1)  # of 2,400 draws with that deviation
    for name in ("matrix_factorization", "ncf"):
        assert noise < results[name] < 0.75 * constant
        assert gk.verify(gk.load(f"runs/recommender/{name}.onnx")).passed
        # graphkit's own metric, of the same ratings
        kept = json.loads(Path(f"runs/recommender/{name}/best.json").read_text())["meta"]
        assert results[name] == pytest.approx(float(kept["best_valid_loss"]) ** 0.5, abs=1e-3)
    assert len(re.findall(r"for user 0, .*: (\d+ \(\d\.\d\d\)(, )?){5}$", out, re.MULTILINE)) == 2


def test_ratings_of_the_older_files(example):
    """u.data has tabs, and no header."""
    draw = np.random.default_rng(0)
    Path("ml").mkdir()
    pairs = draw.choice(40 * 30, 600, replace=False)
    lines = [f"{p // 30 + 1}\t{p % 30 + 1}\t{draw.integers(1, 6)}\t{t}" for t, p in enumerate(pairs)]
    Path("ml/u.data").write_text("\n".join(lines))
    out = example("recommender", "--ratings", "ml", "--epochs", 1)
    assert [line.split("  ")[1] for line in out.splitlines()[-3:]] == [
        "the best constant",
        "matrix_factorization",
        "ncf",
    ]


def test_a_generator_learns_to_draw_digits(example):
    out = example("gan", "--epochs", 8, "--every", 4)
    scores = [float(score) for score in re.findall(r"(?:score|real digits|before the training) (\d+\.\d\d)", out)]
    real, before, *during = scores
    assert 8.5 < real < 10
    assert before < 2.5
    assert len(during) == 2
    assert real > during[-1] > 4  # of what is sure, and of many digits
    pictures = [Image.open(f"runs/gan/made-{epoch:03}.png") for epoch in (4, 8)]
    assert [picture.size for picture in pictures] == [(320, 320)] * 2
    assert (np.asarray(pictures[0]) != np.asarray(pictures[1])).mean() > 0.5
    generator = gk.load("runs/gan/generator.onnx")
    noise = np.random.default_rng(5).standard_normal((3, 32)).astype(np.float32)
    assert generator.run({"noise": noise})["image"].shape == (3, 1, 16, 16)
    assert gk.verify(generator, {"noise": noise}).passed


def test_a_way_through_a_maze_is_learnt(example):
    out = example("reinforcement", "--episodes", 200)
    moves, fewest = found(r"(\d+) moves without exploration, of at least (\d+)", out)
    assert moves == fewest == 14
    rewards = [float(reward) for reward in re.findall(r"reward (-?\d+\.\d+)", out)]
    assert rewards[0] < 0 < 0.6 < rewards[-1]
    assert "the files in ONNX Runtime: PASSED" in out
    assert gk.load("runs/reinforcement/policy.onnx").output_types["q"].shape[1] == 4
    Path("walls.txt").write_text("S#.\n.#G\n")
    assert "no way from S to G" in example("reinforcement", "--maze", "walls.txt", code=2)


def test_one_process_and_two_have_the_same_losses(example):
    out = example("processes", "--epochs", 3)
    updates, first, last, apart = found(r"losses of (\d+) updates, from (\S+) to (\S+): at most (\S+) apart", out)
    assert updates == 3 * 23
    assert last < 0.5 * first
    # The order of a sum differs; the samples do not. Which of two values is the largest of a window may, where they are
    # equal but for rounding: all of the gradient goes to the other one then.
    assert 0 < apart < 1e-4
    assert found(r"parameters at the end: at most (\S+) apart, relative to the largest of each", out)[0] < 1e-2
    assert last_epoch("runs/processes/one")["processes"] == 1
    assert last_epoch("runs/processes/several")["processes"] == 2
    assert Path("runs/processes/curves.html").read_text().count("<svg") >= 1


def trials_of(folder: str) -> list[tuple[str, dict[str, object], dict[int, float]]]:
    """(state, choices, the monitored number by epoch) of every trial of a search."""
    study = optuna.load_study(study_name="digits", storage=f"sqlite:///{Path(folder, 'study.db').absolute()}")
    return [(t.state.name, t.params, t.intermediate_values) for t in study.get_trials(deepcopy=False)]


# The search, whose process is killed in the third epoch of its third trial.
KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import search

class Report(search.Report):
    def on_epoch_end(self, trainer, numbers):
        super().on_epoch_end(trainer, numbers)
        if self.trial.number == 2 and numbers["epoch"] == 3:
            os.kill(os.getpid(), signal.SIGKILL)

search.Report = Report
search.main(sys.argv[2:])
"""


def test_a_search_goes_on_after_a_kill_as_if_there_had_been_none(example):
    options = ("--trials", 8, "--epochs", 15)
    out = example("search", *options, "-o", "whole")
    whole = trials_of("whole")
    assert len(whole) == 8
    assert {state for state, _, _ in whole} == {"COMPLETE", "PRUNED"}
    assert min(len(values) for state, _, values in whole if state == "PRUNED") < 15
    best, tested = found(r"the best trial: (\S+) in validation, (\S+) on 359 test images", out)
    assert best == pytest.approx(max(values[15] for state, _, values in whole if state == "COMPLETE"), abs=1e-4)
    assert tested > 0.85
    assert gk.verify(gk.load("whole/best.onnx")).passed

    command = [sys.executable, "-P", "-c", KILLED, str(EXAMPLES / "search"), *map(str, options), "-o", "killed"]
    ended = subprocess.run(command, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert [state for state, _, _ in trials_of("killed")] == ["COMPLETE", "COMPLETE", "RUNNING"]
    with RunFolder("killed"):
        assert "trains into this folder" in example("search", *options, "-o", "killed", code=1)
    out = example("search", *options, "-o", "killed")
    assert "study.db has 2 trials" in out
    after = trials_of("killed")
    assert after[2][0] == "FAIL"
    assert list(after[2][2]) == [1, 2, 3]
    assert [trial for trial in after if trial[0] != "FAIL"] == whole


@pytest.mark.long
def test_a_detector_finds_rectangles(example):
    out = example("detector", "--count", 200, "--test", 24, "--epochs", 9)
    losses = [loss for epoch in range(1, 10) for loss in found(rf"epoch {epoch}: loss (\S+)", out)]
    assert losses[-1] < 0.6 * losses[0]
    kinds = [found(rf"(\S+)  average precision of {kind}", out)[0] for kind in ("filled", "frame", "striped")]
    (mean,) = found(r"(\S+)  mean average precision at an overlap of 0.5", out)
    assert mean == pytest.approx(sum(kinds) / 3, abs=1e-4)
    assert mean > 0.1  # boxes at random find nothing
    assert "the file in ONNX Runtime: PASSED" in out
    assert np.asarray(Image.open("runs/detector/found.png")).shape == (268, 4 * 268, 3)
    boxes = gk.load("runs/detector/detector.onnx").run({"x": np.zeros((2, 3, 268, 268), np.float32)})["boxes"]
    assert boxes.shape == (2, 10, 4)


@pytest.fixture
def precision(monkeypatch):
    """The module of the detector example that computes average precision."""
    monkeypatch.syspath_prepend(EXAMPLES / "detector")
    return importlib.import_module("average_precision")


def test_average_precision_by_hand(precision):
    def image(boxes, labels, scores=None):
        arrays = np.array(boxes, float).reshape(-1, 4), np.array(labels, np.int64)
        return precision.Boxes(*arrays, None if scores is None else np.array(scores))

    left, right, other = [0, 0, 0.4, 0.4], [0.6, 0.6, 1, 1], [0, 0.5, 0.2, 0.7]
    nearly = [0, 0, 0.4, 0.3]  # 0.75 of `left`
    there = [image([left, right], [1, 1]), image([left], [1]), image([], []), image([left], [2])]
    results = [
        image([left, nearly, right], [1, 1, 1], [0.9, 0.8, 0.5]),  # the second finds what is found
        image([nearly, left], [1, 2], [0.7, 1.0]),  # the last is of the other class
        image([other], [1], [0.6]),
        image([], [], []),
    ]
    # Right are 0.9, 0.7 and 0.5, of 0.9, 0.8, 0.7, 0.6, 0.5.
    assert precision.average_precision(results, there, 1) == pytest.approx((1 + 2 / 3 + 3 / 5) / 3)
    assert precision.average_precision(results, there, 2) == 0
    # A precision that rises again counts from the left on, and what is not found counts 0.
    assert precision.average_precision([image([other, left], [1, 1], [0.9, 0.8])], there[:1], 1) == pytest.approx(0.25)
    assert precision.average_precision([image([], [], [])], there[1:2], 1) == 0
    with pytest.raises(ValueError, match="no object of class 3"):
        precision.average_precision(results, there, 3)


def test_links_of_the_examples_lead_somewhere():
    pages = sorted(EXAMPLES.glob("*/README.md"))
    assert pages
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert re.match("https?://", target) or (page.parent / target).exists(), f"{page}: {target}"
