"""Class names are copied from the data to every file, and are printed with their probabilities."""

import json

import numpy as np
import onnx
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import InputError

RNG = np.random.default_rng(0)
NAMES = ("ant", "bee", "cow")


def write(path, names, labels):
    rows = [",".join([*(f"{v:.4f}" for v in np.eye(4)[int(i)] + RNG.normal(0, 0.05, 4)), names[i]]) for i in labels]
    path.write_text("\n".join(["a,b,c,d,class", *rows]))
    return path


@pytest.fixture
def trained(call, tmp_path):
    """The folder of a training on a table of three classes, and the file that was exported of it."""
    table = write(tmp_path / "t.csv", NAMES, np.arange(60) % 3)
    net, run, file = tmp_path / "net.json", tmp_path / "run", tmp_path / "net.onnx"
    assert call("build", "mlp", "--dataset", table, "-p", "hidden=16", "-o", net)[0] == 0
    options = ("--optimizer", "adam", "--lr", "0.03", "--epochs", "12", "--batch-size", "16")
    code, _, err = call("train", net, "--data", table, *options, "-o", run)
    assert code == 0, err
    assert call("export", run, "-o", file, "--for", "inference")[0] == 0
    return run, file


def test_they_are_in_every_file(trained):
    run, file = trained
    assert gk.load(run).classes == NAMES
    stored = {p.key: p.value for p in onnx.load(file).metadata_props}
    assert json.loads(stored["classes"]) == list(NAMES)
    assert gk.load(file).classes == NAMES


def test_run_prints_them_best_first(call, trained, tmp_path):
    _, file = trained
    np.save(tmp_path / "x.npy", np.eye(4, dtype=np.float32)[[2, 0]])
    code, out, _ = call("run", file, f"x={tmp_path / 'x.npy'}", "--top", "2", "--json")
    assert code == 0
    found = json.loads(out)["top"]
    logits = gk.load(file).run({"x": np.load(tmp_path / "x.npy")})["logits"].astype(np.float64)
    wanted = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert [s["sample"] for s in found["samples"]] == [[0], [1]]
    for row, sample in zip(wanted, found["samples"], strict=True):
        assert [c["class"] for c in sample["classes"]] == np.argsort(-row)[:2].tolist()
        assert [c["probability"] for c in sample["classes"]] == pytest.approx(np.sort(row)[::-1][:2].tolist())
    assert [s["classes"][0]["name"] for s in found["samples"]] == ["cow", "ant"]
    _, out, _ = call("run", file, f"x={tmp_path / 'x.npy'}")
    assert "most probable classes, by output logits" in out
    assert out.index("cow") < out.index("ant")


def test_a_new_head_has_the_names_of_the_new_data(call, trained, tmp_path):
    _, file = trained
    other = write(tmp_path / "other.csv", ("red", "blue"), np.arange(40) % 2)
    code, _, err = call("train", file, "--data", other, "--head", "classes=2", "-o", tmp_path / "tuned")
    assert code == 0, err
    assert gk.load(tmp_path / "tuned").classes == ("blue", "red")
    from graphkit.train.head import replace_head

    assert replace_head(gk.load(file), 2).classes is None


def test_data_with_fewer_classes_keep_the_numbers_of_the_model(call, trained, tmp_path):
    """A file is numbered by its own classes: without the model's order cow would be trained as bee."""
    run, _ = trained
    some = write(tmp_path / "some.csv", ("ant", "cow"), np.arange(40) % 2 * 1)
    lines = some.read_text().splitlines()
    some.write_text("\n".join([lines[0], *(line for line in lines[1:] if line)]))
    code, _, err = call("train", run, "--data", some, "--lr", "0", "-o", tmp_path / "again", "--metric", "accuracy")
    assert code == 0, err
    assert gk.load(tmp_path / "again").classes == NAMES
    data = gk.data.read(some).renumbered(NAMES)
    assert set(data.targets.tolist()) == {0, 2}


def test_validation_and_test_files_are_numbered_as_the_training_file(call, tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    write(folder / "train.csv", NAMES, np.arange(30) % 3)
    test = write(folder / "test.csv", NAMES, np.array([1, 2] * 5))
    train_part, test_part = gk.data.load(folder)
    assert test_part.classes == train_part.classes == NAMES
    assert test_part.targets.tolist() == [1, 2] * 5
    net = tmp_path / "net.json"
    assert call("build", "mlp", "--dataset", folder, "-p", "hidden=4", "-o", net)[0] == 0
    write(tmp_path / "strange.csv", ("ant", "yak"), np.arange(10) % 2)
    train = ("train", net, "--data", folder / "train.csv", "--valid")
    assert call(*train, test)[0] == 0
    code, _, err = call(*train, tmp_path / "strange.csv")
    assert code == 2
    assert "class 'yak' is not one of 'ant', 'bee', 'cow'" in err
    with pytest.raises(InputError, match=r"strange\.csv: class 'yak' is not one of 'ant', 'bee', 'cow'$"):
        gk.data.read(tmp_path / "strange.csv").renumbered(NAMES)


def test_names_of_an_npz(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((6, 2), np.float32), y=np.arange(6) % 3, classes=np.array(NAMES))
    found = gk.data.read(tmp_path / "a.npz")
    assert found.classes == NAMES
    x, y = np.zeros((6, 2), np.float32), np.arange(6) % 3
    np.savez(tmp_path / "b.npz", x_train=x, y_train=y, x_test=x[:3], y_test=y[:3], classes=np.array(NAMES))
    assert [part.classes for part in gk.data.load(str(tmp_path / "b.npz"))] == [NAMES, NAMES]
    assert found.names == ("x",)


@pytest.mark.parametrize(
    ("end", "size", "count"),
    [
        (lambda y: y, 3, 3),
        (lambda y: gk.softmax(y), 3, 3),
        (lambda y: gk.identity(gk.softmax(y)), 3, 3),
        (lambda y: gk.log_softmax(y), 3, 3),
        (lambda y: gk.reshape(y, [0, 3, 1, 1]), 3, 3),
        (lambda y: y, 1, 2),
        (lambda y: gk.sigmoid(y), 1, 2),
    ],
    ids=["logits", "softmax", "behind", "log", "image", "logit", "sigmoid"],
)
def test_probabilities_of_what_networks_end_in(call, tmp_path, end, size, count):
    x = gk.input("x", ["N", size])
    net = gk.Model({"y": end(gk.identity(x))}, meta={"classes": json.dumps(NAMES[:count])})
    net.save(tmp_path / "net.json")
    given = RNG.standard_normal((2, size)).astype(np.float32) * 2
    np.save(tmp_path / "x.npy", given)
    _, out, _ = call("run", tmp_path / "net.json", f"x={tmp_path / 'x.npy'}", "--top", "3", "--json")
    wide = given.astype(np.float64) if size > 1 else np.concatenate([np.zeros((2, 1)), given], 1)
    wanted = np.exp(wide) / np.exp(wide).sum(1, keepdims=True)
    for row, sample in zip(wanted, json.loads(out)["top"]["samples"], strict=True):
        assert [c["name"] for c in sample["classes"]] == [NAMES[i] for i in np.argsort(-row)]
        assert [c["probability"] for c in sample["classes"]] == pytest.approx(np.sort(row)[::-1].tolist(), rel=1e-5)


def test_outputs_that_are_no_classes(call, tmp_path):
    x = gk.input("x", ["N", 3])
    gk.Model({"y": gk.identity(x), "z": x + 1.0}).save(tmp_path / "two.json")
    gk.Model({"y": gk.arg_max(x, axis=1)}).save(tmp_path / "ints.json")
    code, _, err = call("run", tmp_path / "two.json", "--top", "2")
    assert code == 2
    assert "--output-name" in err
    assert call("run", tmp_path / "two.json", "--top", "2", "--output-name", "z")[0] == 0
    code, _, err = call("run", tmp_path / "ints.json", "--top", "2")
    assert code == 2
    assert "int64" in err
    code, out, _ = call("run", tmp_path / "two.json")
    assert code == 0
    assert "probability" not in out


@in_one_item()
@pytest.mark.parametrize("text", ["", "not json", "3", '{"0": "cat"}'])
def test_metadata_that_are_no_list_are_no_names(text):
    assert gk.Model({"y": gk.relu(gk.input("x", ["N", 3]))}, meta={"classes": text}).classes is None
