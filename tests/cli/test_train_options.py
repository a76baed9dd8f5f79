"""`graphkit train`: end of training, learning rate, and losses."""

import json
import math
import re

import numpy as np
import pytest

import graphkit as gk
from graphkit.cli._options import source_options

USAGE, INPUT = 2, 3


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """A network of one output and one of two, with their data, and weights of classes in files."""
    folder = tmp_path_factory.mktemp("task")
    x = gk.input("x", ["N", 6])
    h = gk.tanh(gk.nn.linear(x, 8, name="fc1"))
    gk.Model({"logits": gk.nn.linear(h, 3, name="fc2")}, name="small", seed=0).save(folder / "net.json")
    heads = {"kind": gk.nn.linear(h, 3, name="kind_fc"), "size": gk.nn.linear(h, 1, name="size_fc")}
    gk.Model(heads, name="two", seed=0).save(folder / "two.json")
    rng = np.random.default_rng(5)
    x, kind = rng.standard_normal((120, 6), np.float32), rng.permutation(np.arange(120) % 6 // 2 % 3)
    kind[:30] = 0
    size = x[:, :1].copy()
    np.savez(folder / "data.npz", x=x, y=kind)
    np.savez(folder / "both.npz", x=x, kind=kind, size=size)
    rows = [
        f"{','.join(map(repr, map(float, row)))},{k},{float(s[0])!r}" for row, k, s in zip(x, kind, size, strict=True)
    ]
    (folder / "both.csv").write_text("\n".join([",".join([*"abcdef", "kind", "size"]), *rows]))
    (folder / "weights.json").write_text("[1, 2, 0.5]")
    np.save(folder / "weights.npy", np.array([1, 2, 0.5]))
    return folder


def options(task, *more):
    return ("train", task / "net.json", "--data", task / "data.npz", "--batch-size", 16, "--lr", 0.1, *more)


def log(run, event="epoch"):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def digests(run):
    return sorted(p.name for p in run.glob("*.safetensors"))


# --- when it ends -----------------------------------------------------------------------------------


def test_training_ends_when_nothing_becomes_better(call, task, tmp_path):
    run = tmp_path / "run"
    early = options(task, "-o", run, "--epochs", 9, "--early-stop", 2)
    code, out, err = call(*early, "--min-delta", 100)
    assert code == 0, err
    assert len(out.splitlines()) == 3
    assert "stopped after epoch 3: valid_loss has not improved for 2 epochs" in err
    (stopped,) = log(run, "stopped")
    assert stopped["epoch"] == 3
    code, out, err = call(*early, "--resume")
    assert (code, out) == (0, "")
    assert "was stopped after 3 of its 9 epochs: valid_loss has not improved" in err
    assert "--epochs 10 continues it" in err
    # With more epochs than planned, the run continues, with the patience that is left.
    code, out, err = call(*options(task, "-o", run, "--resume", "--epochs", 11, "--json"))
    assert code == 0, err
    assert json.loads(out)["epochs"] == 4
    assert "has not improved for 3 epochs" in json.loads(out)["stopped"]


def test_several_best_models_are_kept(call, task, tmp_path):
    run = tmp_path / "run"
    code, _, err = call(*options(task, "-o", run, "--epochs", 4, "--keep-best", "--keep-best-count", 2))
    assert code == 0, err
    losses = [line["valid_loss"] for line in log(run)]
    best = sorted(range(4), key=lambda i: losses[i])[:2]
    assert {p.name for p in run.glob("best-epoch-*.json")} == {f"best-epoch-{i + 1}.json" for i in best}
    code, _, err = call(*options(task, "-o", tmp_path / "other", "--keep-best-count", 2))
    assert code == USAGE
    assert "--keep-best-count only works with --keep-best" in err


def test_the_best_model_is_beside_the_last(call, task, tmp_path):
    run = tmp_path / "run"
    # The rate rises until the loss does: the best epoch is not the last.
    code, _, err = call(*options(task, "-o", run, "--epochs", 6, "--keep-best", "--lr", 30, "--warmup", 60))
    assert code == 0, err
    assert "best.json" in err
    losses = [line["valid_loss"] for line in log(run)]
    best = int(np.argmin(losses))
    assert best < 5
    net = gk.load(run / "best.json")
    valid = gk.data.load(task / "data.npz").test
    logits = net(valid.inputs).astype(np.float64)
    scores = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert -scores[np.arange(len(valid)), valid.targets].mean() == pytest.approx(losses[best], rel=1e-5)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--early-stop", 2, "--monitor", "valid_acuracy"], "did you mean 'valid_accuracy'"),
        (["--monitor", "loss"], "--monitor loss has no effect without --early-stop"),
        (["--min-delta", 1], "--min-delta only works with --early-stop"),
        (["--lr-schedule", "cosine", "--schedule-option", "finl=1"], "did you mean 'final'"),
        (["--lr-schedule", "step", "--schedule-option", "evry=1"], "did you mean 'every'?\n"),
        (["--lr-schedule", "cosine", "--schedule-option", "rate=1"], "give the learning rate with --lr"),
        (
            ["--lr-schedule", "cosine", "--schedule-option", "size=1"],
            "schedule cosine has no option 'size'; known: 'steps', 'final'. The learning rate is --lr",
        ),
        (["--lr", "much"], "'much' is not a valid number."),
        (["--lr", -1], "-1.0 is not in the range x>=0."),
        (["--epochs", "many"], "'many' is not a valid integer."),
        (["--lr-schedule", "plateau", "--schedule-option", "patence=1"], "did you mean 'patience'"),
        (["--lr-schedule", "step"], "schedule step needs every= (--schedule-option every=N)"),
        (["--lr-schedule", "step", "--schedule-option", "every=often"], "expected a number"),
        (["--schedule-option", "every=2"], "a constant learning rate has no options"),
        (["--class-weights", "1,2"], "2 class weights (--class-weights) for 3 classes"),
        (["--class-weights", "1,x"], "expected balanced, a .json or .npy file, or numbers"),
        (["--loss", "l1", "--class-weights", "balanced"], "the loss 'l1' has no classes"),
        (
            ["--loss", "l1", "--label-smoothing", 0.1],
            "label_smoothing= and --label-smoothing only work with softmax_cross_entropy and sigmoid",
        ),
        (["--loss-option", "gamma=1"], "gamma= and --loss-option gamma=X only work with focal and sigmoid_focal"),
        (["--loss", "focal", "--loss-option", "gamma=x"], "--loss-option gamma=x: expected a number"),
        (["--loss", "focal", "--loss-option", "gama=1"], "loss 'focal' has no option 'gama'"),
        (["--loss", "focal", "--ignore-index", 0], "only work with softmax_cross_entropy"),
        (["--loss", "logits=l1", "--loss", "mse"], "with several losses, each needs its output: --loss OUTPUT=mse"),
        (["--loss-weight", "logits=2"], "--loss-weight needs --loss OUTPUT=NAME for each output"),
        (["--find-lr", "--resume", "-o", "run"], "--find-lr looks for the learning rate of a new run"),
        (["--find-lr", "--processes", 2, "--kvstore", "dist_sync"], "--find-lr only works with one process"),
    ],
)
def test_what_does_not_go_together_is_said_before_anything_is_written(call, task, tmp_path, monkeypatch, more, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(*options(task, *more))
    assert (code, out) == (USAGE, "")
    assert message in err
    assert list(tmp_path.iterdir()) == []


# --- how the learning rate goes ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "rate"),
    [
        (["constant"], lambda n: 0.1),
        (["cosine"], lambda n: 0.05 * (1 + math.cos(math.pi * n / 18))),
        (["cosine", "final=0.02"], lambda n: 0.02 + 0.04 * (1 + math.cos(math.pi * n / 18))),
        (["linear", "final=0.04"], lambda n: 0.1 - 0.06 * n / 18),
        (["polynomial", "power=2"], lambda n: 0.1 * (1 - n / 18) ** 2),
        (["exponential", "factor=0.9"], lambda n: 0.1 * 0.9**n),
        (["step", "every=5", "factor=0.5"], lambda n: 0.1 * 0.5 ** (n // 5)),
    ],
)
def test_the_rates_of_a_run(call, task, tmp_path, schedule, rate):
    """6 updates an epoch, 18 in the run; the log has the rate of the update that comes next."""
    more = [part for option in schedule[1:] for part in ("--schedule-option", option)]
    code, _, err = call(
        *options(task, "-o", tmp_path, "--epochs", 3, "--log-every", 1, "--lr-schedule", schedule[0], *more)
    )  # fmt: skip
    assert code == 0, err
    steps = log(tmp_path, "step")
    assert [line["updates"] for line in steps] == list(range(1, 19))
    assert [line["learning_rate"] for line in steps] == pytest.approx([rate(n) for n in range(1, 19)], rel=1e-6)


def test_warmup_comes_before_the_schedule(call, task, tmp_path):
    warm = options(task, "-o", tmp_path, "--epochs", 3, "--log-every", 1, "--warmup", 4, "--lr-schedule", "one-cycle")
    assert call(*warm)[0] == 0
    rates = [line["learning_rate"] for line in log(tmp_path, "step")]
    schedule = gk.optim.Warmup(gk.optim.schedule({"type": "one-cycle", "rate": 0.1}), 4).over(18)
    assert rates == pytest.approx([schedule(n) for n in range(1, 19)])
    assert max(rates) == pytest.approx(0.1, rel=0.05)


def test_the_rate_falls_where_the_monitor_stands_still(call, task, tmp_path):
    code, _, err = call(
        *options(task, "-o", tmp_path, "--epochs", 4, "--lr-schedule", "plateau", "--monitor", "valid_accuracy"),
        "--schedule-option", "patience=1", "--schedule-option", "factor=0.5", "--schedule-option", "min_delta=2",
    )  # fmt: skip
    assert code == 0, err
    # An accuracy that has to rise by 2 never does: behind each epoch but the first the rate is halved.
    assert [line["learning_rate"] for line in log(tmp_path)] == pytest.approx([0.1, 0.1, 0.05, 0.025])


# --- what is minimised ------------------------------------------------------------------------------


def test_weights_of_classes_come_in_several_forms(call, task, tmp_path):
    for name, text in {"a": "1,2,0.5", "b": task / "weights.json", "c": task / "weights.npy"}.items():
        code, _, err = call(*options(task, "-o", tmp_path / name, "--class-weights", text))
        assert code == 0, err
    assert digests(tmp_path / "a") == digests(tmp_path / "b") == digests(tmp_path / "c")
    assert call(*options(task, "-o", tmp_path / "none"))[0] == 0
    assert digests(tmp_path / "a") != digests(tmp_path / "none")


def test_balanced_weights_are_those_of_the_training_part(call, task, tmp_path):
    train, _ = gk.data.load(task / "data.npz")
    counts = np.bincount(train.targets, minlength=3)
    weights = ",".join(map(repr, (len(train) / (3 * counts)).tolist()))  # as scikit-learn's "balanced"
    assert call(*options(task, "-o", tmp_path / "a", "--class-weights", "balanced"))[0] == 0
    assert call(*options(task, "-o", tmp_path / "b", "--class-weights", weights))[0] == 0
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


@pytest.mark.parametrize("text", ["[1, [2], 3]", '{"a": 1}', "[1, 2, NaN]", "nothing", '["a"]'])
def test_files_that_have_no_weights(call, task, tmp_path, text):
    (tmp_path / "odd.json").write_text(text)
    code, _, err = call(*options(task, "--class-weights", tmp_path / "odd.json"))
    assert code not in (0, 1)
    assert "odd.json" in err
    code, _, err = call(*options(task, "--class-weights", tmp_path / "missing.npy"))
    assert code not in (0, 1)
    assert "there is no such file" in err


def test_options_of_the_command_are_those_of_the_trainer(call, task, tmp_path):
    smooth = ("--label-smoothing", 0.1, "--mixup", 0.3, "--lr-schedule", "cosine")
    code, _, err = call(*options(task, "-o", tmp_path, "--epochs", 2, *smooth))
    assert code == 0, err
    train, valid = gk.data.load(task / "data.npz")
    net = gk.load(task / "net.json")
    loss = gk.losses.get("softmax_cross_entropy", label_smoothing=0.1)
    optimizer = gk.optim.get("sgd", lr=gk.optim.schedule({"type": "cosine", "rate": 0.1}))
    gk.Trainer(net, loss, optimizer, mixup=0.3).fit(train, valid, epochs=2, batch_size=16)
    found = gk.load(tmp_path)
    for name, array in net.params.items():
        np.testing.assert_array_equal(found.params[name], array, err_msg=name)


@pytest.mark.parametrize(
    ("given", "loss"),
    [
        (("--ignore-index", 2), gk.losses.get("softmax_cross_entropy", ignore_index=2)),
        (("--loss", "focal", "--loss-option", "gamma=0.5"), gk.losses.get("focal", gamma=0.5)),
    ],
    ids=["ignored", "focal"],
)
def test_losses_with_options_are_those_of_the_trainer(call, task, tmp_path, given, loss):
    code, _, err = call(*options(task, "-o", tmp_path, *given))
    assert code == 0, err
    net = gk.load(task / "net.json")
    gk.Trainer(net, loss, gk.optim.get("sgd", lr=0.1)).fit(*gk.data.load(task / "data.npz"), batch_size=16)
    found = gk.load(tmp_path)
    for name, array in net.params.items():
        np.testing.assert_array_equal(found.params[name], array, err_msg=name)


def test_balanced_weights_do_not_count_ignored_targets(call, task, tmp_path):
    odd = tmp_path / "odd.npz"
    np.savez(odd, x=np.zeros((8, 6), np.float32), y=np.array([0, 0, 1, 2, 9, 9, 1, 2]))
    ignoring = ("train", task / "net.json", "--data", odd, "--valid", odd, "--ignore-index", 9, "--lr", 0.1)
    assert call(*ignoring, "--class-weights", "balanced", "-o", tmp_path / "a")[0] == 0
    assert call(*ignoring, "--class-weights", "1,1,1", "-o", tmp_path / "b")[0] == 0
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_what_is_not_said_is_the_same_in_python(call, task, tmp_path):
    """Defaults are defined in one place: a command and a Trainer without options give the same bits."""
    assert call("train", task / "net.json", "--data", task / "data.npz", "-o", tmp_path)[0] == 0
    net = gk.load(task / "net.json")
    gk.Trainer(net).fit(*gk.data.load(task / "data.npz"))
    found = gk.load(tmp_path)
    for name, array in net.params.items():
        np.testing.assert_array_equal(found.params[name], array, err_msg=name)


@pytest.mark.filterwarnings("ignore:the losses of outputs 'kind' and 'size' have different divisors")
@pytest.mark.parametrize("source", ["both.npz", "both.csv"])
def test_several_targets(call, task, tmp_path, source):
    given = ["--data-option", "target=kind,size"] if source.endswith("csv") else []
    two = ["train", task / "two.json", "--data", task / source, *given, "--epochs", 2, "--batch-size", 16]
    losses = ["--loss", "kind=softmax_cross_entropy", "--loss", "size=mse"]
    code, out, err = call(*two, *losses, "-o", tmp_path / "one")
    assert code == 0, err
    assert "accuracy" in out
    code, _, err = call(*two, *losses, "--loss-weight", "size=0.5", "-o", tmp_path / "weighted")
    assert code == 0, err
    assert digests(tmp_path / "one") != digests(tmp_path / "weighted")
    code, _, err = call("train", tmp_path / "one" / "config.toml", "-o", tmp_path / "again")
    assert code == 0, err
    assert digests(tmp_path / "one") == digests(tmp_path / "again")
    code, _, err = call(*two, "--loss", "kind=softmax_cross_entropy", "--loss", "sze=mse")
    assert code in (USAGE, INPUT)
    assert "sze" in err
    code, _, err = call(*two, *losses, "--class-weights", "1,2,3", "--valid", task / source, "-o", tmp_path / "valid")
    assert code == 0, err


def test_a_table_to_validate_on_is_read_as_the_one_trained_on(call, tmp_path):
    """Its colours are fewer and come in another order; alone they would be two columns, not three, with other means."""
    rng = np.random.default_rng(3)

    def table(name, colours, scale):
        colour = rng.choice(colours, 60)
        size = rng.standard_normal(60) * scale
        rows = [f"{c},{float(s)!r},{'yes' if s > 0 else 'no'}" for c, s in zip(colour, size, strict=True)]
        (tmp_path / name).write_text("\n".join(["colour,size,large", *rows]))
        codes = (colour[:, None] == np.array(["blue", "green", "red"])).astype(np.float32)
        return codes, size, (size > 0).astype(int)

    _, train_size, _ = table("train.csv", ["red", "green", "blue"], 5)
    codes, size, large = table("valid.csv", ["red", "blue"], 1)
    gk.models.build("mlp", inputs=4, hidden=(8,), classes=2).save(tmp_path / "net.json")
    code, out, err = call(
        "train", tmp_path / "net.json", "--data", tmp_path / "train.csv", "--valid", tmp_path / "valid.csv",
        "--data-option", "target=large", "--data-option", "scale=standard", "-o", tmp_path / "run", "--json",
    )  # fmt: skip
    assert code == 0, err
    scaled = (size - train_size.mean()) / train_size.std()
    x = np.column_stack([scaled, codes]).astype(np.float32)
    logits = gk.load(tmp_path / "run")(x)
    accuracy = np.mean(logits.argmax(axis=1) == large)
    assert json.loads(out)["history"][0]["valid_accuracy"] == pytest.approx(accuracy)


def test_one_loss_may_name_its_output(call, task, tmp_path):
    assert call(*options(task, "-o", tmp_path / "a"))[0] == 0
    code, _, err = call(*options(task, "-o", tmp_path / "b", "--loss", "logits=softmax_cross_entropy"))
    assert code == 0, err
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


# --- which learning rate ----------------------------------------------------------------------------


def test_a_learning_rate_is_looked_for(call, task, tmp_path):
    run = tmp_path / "run"
    code, out, err = call(*options(task, "--find-lr", "-o", run))
    assert code == 0, err
    suggestion = float(out.removeprefix("suggested learning rate: "))
    assert re.search(r"\d+ updates; the (loss diverged at|largest) learning rate", err)
    assert 1e-4 < suggestion < 10
    assert sorted(p.name for p in run.iterdir()) == ["learning_rates.csv"]
    rows = np.loadtxt(run / "learning_rates.csv", delimiter=",", skiprows=1)
    assert np.all(np.diff(np.log(rows[:, 0])) > 0)
    code, out, err = call(*options(task, "--find-lr", "--json"))
    found = json.loads(out)
    assert found["suggestion"] == pytest.approx(suggestion, rel=0.01)
    np.testing.assert_array_equal(found["losses"], rows[:, 1])
    # The run may begin in that folder.
    code, _, err = call(*options(task, "-o", run, "--lr", suggestion))
    assert code == 0, err


def test_numbers_of_data_options():
    found = source_options(("test_fraction=0.4", "size=32", "mean=.5", "augment=crop,flip", "version=1.2.3", "name=-1"))
    assert list(map(repr, found.values())) == ["0.4", "32", "0.5", "'crop,flip'", "'1.2.3'", "'-1'"]
