"""`graphkit train`: runs that end after a number of steps (--max-steps) or that only try (--fast-dev-run)."""

import json

import numpy as np
import pytest

import graphkit as gk

USAGE = 2


def train(task, *more):
    return ("train", task / "net.json", "--data", task / "data.npz", "--batch-size", 16, *more)


def weights(run):
    return {name: array.tobytes() for name, array in gk.load(run).params.items()}


def test_max_steps_ends_within_epoch_and_resumes(call, task, tmp_path):
    code, out, err = call(*train(task, "-o", tmp_path / "run", "--max-steps", 8))
    assert code == 0, err
    assert "epoch 1: " in out
    assert "epoch 2, ended after 8 updates (--max-steps): loss" in out
    code, out, err = call("train", task / "net.json", "-o", tmp_path / "run", "--resume")
    assert code == 0
    assert "has made its 8 updates. With --resume, --max-steps is the number of updates of the whole run" in err
    assert "--max-steps 9 continues it" in err
    code, out, err = call("train", task / "net.json", "-o", tmp_path / "run", "--resume", "--max-steps", 14, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert (result["updates"], result["epochs"]) == (14, 2)
    assert call(*train(task, "-o", tmp_path / "whole", "--max-steps", 14))[0] == 0
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert "max-steps = 14\n" in (tmp_path / "run" / "config.toml").read_text()
    assert "epochs" not in (tmp_path / "run" / "config.toml").read_text()


@pytest.mark.full
def test_config_of_a_run_with_max_steps_repeats_it(call, task, tmp_path):
    assert call(*train(task, "-o", tmp_path / "run", "--max-steps", 8))[0] == 0
    assert call("train", tmp_path / "run" / "config.toml", "-o", tmp_path / "again")[0] == 0
    assert weights(tmp_path / "run") == weights(tmp_path / "again")


@pytest.mark.full
def test_epochs_on_resume_remove_the_limit(call, task, tmp_path):
    assert call(*train(task, "-o", tmp_path / "run", "--max-steps", 8))[0] == 0
    assert call("train", task / "net.json", "-o", tmp_path / "run", "--resume", "--epochs", 2)[0] == 0
    assert call(*train(task, "-o", tmp_path / "whole", "--epochs", 2))[0] == 0
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


@pytest.mark.parametrize(("given", "count"), [((), 1), ((3,), 3)])
def test_fast_dev_run_writes_nothing(call, task, tmp_path, monkeypatch, given, count):
    monkeypatch.chdir(tmp_path)
    more = ("--keep-best", "--epochs", 5, "--tensorboard", "--fast-dev-run", *given)
    code, out, err = call(*train(task, *more, "--json"))
    assert code == 0, err
    result = json.loads(out)
    assert (result["updates"], result["folder"], len(result["history"])) == (count, None, 1)
    assert "valid_loss" in result["history"][0]
    line = f"--fast-dev-run: training and validation end after {count} batch{'es' * (count > 1)}; no model"
    assert sum(line in each for each in err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_fast_dev_run_with_output_folder_writes_it(call, task, tmp_path):
    code, _, err = call(*train(task, "-o", tmp_path / "run", "--keep-best", "--fast-dev-run"))
    assert code == 0, err
    assert f"the results are written to {tmp_path / 'run'} (-o)" in err
    assert (tmp_path / "run" / "best.json").exists()
    assert gk.verify(gk.load(tmp_path / "run")).passed


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--overwrite",), "--overwrite deletes a run, which a trial cannot replace: leave out --overwrite"),
        (("--find-lr",), "--find-lr takes its own number of steps"),
        (("--resume",), "--resume continues a run, which a trial would spoil"),
    ],
)
def test_fast_dev_run_excludes(call, task, tmp_path, more, message):
    assert call(*train(task, "-o", tmp_path / "run"))[0] == 0
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    code, _, err = call(*train(task, "-o", tmp_path / "run", "--fast-dev-run", *more))
    assert code == USAGE
    assert message in err
    assert before == {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}


@pytest.mark.parametrize("option", ["--max-steps", "--fast-dev-run"])
def test_numbers_of_steps_must_be_positive(call, task, option):
    code, _, err = call(*train(task, option, 0))
    assert code == USAGE
    assert option in err


# --- a share of the data for validation -------------------------------------------------------------


def test_validation_split_holds_out_a_share_by_seed(call, task, tmp_path):
    lines = {}
    for seed in (1, 2):
        run = tmp_path / f"run{seed}"
        code, _, err = call(*train(task, "-o", run, "--validation-split", 0.25, "--seed", seed))
        assert code == 0, err
        assert "90 samples for training, 30 for validation, split at random" in err
        lines[seed] = json.loads((run / "log.jsonl").read_text().splitlines()[-1])
    whole = gk.data.read(str(task / "data.npz"))
    for seed, line in lines.items():
        valid = whole.split(0.25, seed).test
        model = gk.Trainer(gk.load(tmp_path / f"run{seed}"))
        assert line["valid_loss"] == pytest.approx(model.evaluate(valid, ["loss"])["loss"], rel=1e-6)


@pytest.mark.full
def test_validation_split_resumes_with_the_same_samples(call, task, tmp_path):
    more = ("--validation-split", 0.25, "--seed", 3)
    assert call(*train(task, "-o", tmp_path / "whole", "--epochs", 2, *more))[0] == 0
    assert call(*train(task, "-o", tmp_path / "run", *more))[0] == 0
    code, _, err = call("train", task / "net.json", "-o", tmp_path / "run", "--resume", "--validation-split", 0.5)
    assert code == USAGE
    assert "--resume cannot change the split of the data, because training and validation samples would mix" in err
    code, _, err = call("train", task / "net.json", "-o", tmp_path / "run", "--resume", "--epochs", 2)
    assert code == 0, err
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


def test_validation_split_leaves_out_a_test_part(call, task, tmp_path):
    parts = np.load(task / "data.npz")
    rest = {"x_test": parts["x"][:8], "y_test": parts["y"][:8]}
    np.savez(tmp_path / "parts.npz", x_train=parts["x"], y_train=parts["y"], **rest)
    pair = tmp_path / "pair"
    pair.mkdir()
    for name, count in (("train", 100), ("test", 10)):
        rows = [f"{float(x[0])!r},{y}" for x, y in zip(parts["x"][:count], parts["y"], strict=False)]
        (pair / f"{name}.csv").write_text("\n".join(["a,y", *rows]))
    code, _, err = call(*train(task, "--data", tmp_path / "parts.npz", "--validation-split", 0.1, "--fast-dev-run"))
    assert code == 0, err
    assert "108 samples for training, 12 for validation" in err
    net = tmp_path / "narrow.json"
    gk.Model({"logits": gk.nn.linear(gk.input("x", ["N", 1]), 3)}, seed=0).save(net)
    code, _, err = call("train", net, "--data", pair, "--validation-split", 0.1, "--fast-dev-run")
    assert code == 0, err
    assert "90 samples for training, 10 for validation" in err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--validation-split", 0.001), "one part would be empty"),
        (("--validation-split", 1), "--validation-split"),
        (("--validation-split", 0), "--validation-split"),
        (("--validation-split", 0.2, "--data-option", "test_fraction=0.1"), "both choose the validation data"),
        (("--validation-split", 0.2, "--valid", "digits"), "--validation-split and --valid both choose"),
    ],
)
def test_validation_split_that_is_impossible_is_an_error(call, task, tmp_path, more, message):
    code, _, err = call(*train(task, "-o", tmp_path / "run", *more))
    assert code in (USAGE, 3)
    assert message in err
    assert not (tmp_path / "run" / "model.json").exists()
