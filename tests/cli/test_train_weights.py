"""`graphkit train --weight-column`: weights of samples from tables and .npz files."""

import json

import numpy as np
import pytest

import graphkit as gk

USAGE, INPUT = 2, 3
ROWS = 40


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """A linear network whose input is not called x, and a table and an .npz file with weights."""
    folder = tmp_path_factory.mktemp("task")
    net = gk.Model({"logits": gk.nn.linear(gk.input("features", ["N", 2]), 3, name="fc")}, name="small", seed=0)
    net.save(folder / "net.json")
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((ROWS, 2)).astype(np.float32), np.arange(ROWS) % 3
    w = np.round(rng.random(ROWS) * 3, 3).astype(np.float32)
    w[:7] = 0
    np.savez(folder / "data.npz", x=x, y=y, w=w)
    columns = (x[:, 0], w, x[:, 1])
    rows = [",".join([*(repr(float(column[i])) for column in columns), str(y[i])]) for i in range(ROWS)]
    (folder / "data.csv").write_text("\n".join(["a,w,b,kind", *rows]))
    (folder / "texts.csv").write_text("\n".join(["a,b,w,kind", "1,2,much,0", "3,4,little,1"] * 1))
    return folder


def weighted_loss(model, x, y, w):
    logits = x.astype(np.float64) @ model.params["fc_weight"].T + model.params["fc_bias"]
    each = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]
    return (w * each).sum() / w.sum()


@pytest.mark.parametrize("file", ["data.npz", "data.csv"])
@pytest.mark.parametrize("more", [(), ("--valid", True)])
def test_losses_are_weighted_means(call, task, tmp_path, file, more):
    run = tmp_path / "run"
    more = ("--valid", task / file) if more else ("--validation-split", 0.25, "--seed", 2)
    given = ("train", task / "net.json", "--data", task / file, "--weight-column", "w", "--lr", 0, "--batch-size", 7)
    code, _, err = call(*given, "-o", run, *more)
    assert code == 0, err
    record = json.loads((run / "log.jsonl").read_text().splitlines()[-1])
    parts = np.load(task / "data.npz")
    whole = gk.data.Dataset({"x": parts["x"], "w": parts["w"]}, parts["y"])
    train, valid = (whole, whole) if "--valid" in more else whole.split(0.25, 2)
    for name, part in (("loss", train), ("valid_loss", valid)):
        expected = weighted_loss(gk.load(run), part.arrays["x"], part.targets, part.arrays["w"])
        assert record[name] == pytest.approx(expected, rel=1e-5)
    assert 'weight-column = "w"\n' in (run / "config.toml").read_text()


def test_resume_keeps_the_weights(call, task, tmp_path):
    given = ("train", task / "net.json", "--data", task / "data.csv", "--weight-column", "w", "--batch-size", 7)
    assert call(*given, "--epochs", 2, "-o", tmp_path / "whole")[0] == 0
    assert call(*given, "--max-steps", 3, "-o", tmp_path / "run")[0] == 0
    code, _, err = call("train", task / "net.json", "-o", tmp_path / "run", "--resume", "--epochs", 2)
    assert code == 0, err
    assert "--weight-column w" in err
    first, second = (gk.load(tmp_path / name).params for name in ("whole", "run"))
    assert all(first[n].tobytes() == second[n].tobytes() for n in first)


def test_learning_rate_is_found_with_weights(call, task):
    code, out, err = call(
        "train", task / "net.json", "--data", task / "data.csv", "--weight-column", "w", "--find-lr", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["losses"]


@pytest.mark.parametrize(
    ("file", "column", "message"),
    [
        ("data.csv", "weight", "there is no column 'weight'"),
        ("data.csv", "kind", "the only target"),
        ("data.npz", "weight", "has no array 'weight'"),
        ("data.npz", "x", "'x' is the only input"),
        ("texts.csv", "w", "contains texts"),
    ],
)
def test_columns_that_have_no_weights_are_errors(call, task, tmp_path, file, column, message):
    if message == "the only target":
        message, more = "is a target", ("--data-option", "target=kind")
    else:
        more = ()
    if (file, column) == ("data.npz", "x"):
        parts = np.load(task / "data.npz")
        np.savez(tmp_path / "data.npz", x=parts["x"], y=parts["y"])
        file = tmp_path / "data.npz"
    code, _, err = call(
        "train", task / "net.json", "--data", task / file, "--weight-column", column, *more, "-o", tmp_path / "r"
    )
    assert code in (USAGE, INPUT)
    assert message in err
