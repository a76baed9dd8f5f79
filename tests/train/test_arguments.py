"""Invalid numbers are rejected by an error that names the argument and the allowed range."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit import cli
from graphkit.errors import UsageError

OPTIMIZERS = [gk.optim.SGD, gk.optim.Adam, gk.optim.AdamW, gk.optim.RMSProp, gk.optim.Adagrad, gk.optim.Adadelta,
              gk.optim.Ftrl, gk.optim.LARS, gk.optim.Lamb, gk.optim.Lion, gk.optim.NAdam]  # fmt: skip
WRONG = ["0.1", -1, -0.5, float("nan"), float("inf"), None, [0.1], True]


@in_one_item()
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("value", WRONG, ids=str)
def test_invalid_learning_rates_are_errors(kind, value):
    with pytest.raises(UsageError, match=f"{kind.__name__}: lr must be a "):
        kind(lr=value)


@in_one_item()
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_option_of_every_optimizer(kind):
    base = {"lr": 0.1}
    for spec in dataclasses.fields(kind):
        name = spec.name
        if name == "lr":
            continue
        for value in ("0.1", None, -1.0, float("nan")):
            with pytest.raises(UsageError, match=f"{kind.__name__}: {name} must be "):
                kind(**base, **{name: value})
        kind(**base, **{name: spec.default})
    with pytest.raises(UsageError, match="did you mean 'lr'"):
        kind(learning_rate=0.1)


@in_one_item()
@pytest.mark.parametrize(
    "make",
    [
        lambda: gk.optim.SGD(0.1, momentum=1.5),
        lambda: gk.optim.SGD(0.1, nesterov=True),
        lambda: gk.optim.SGD(0.1, nesterov=1, momentum=0.9),
        lambda: gk.optim.Adam(beta1=1.0),
        lambda: gk.optim.LARS(trust=0.0),
        lambda: gk.optim.Step(0.1, every=0),
        lambda: gk.optim.Step(0.1, every=1.5),
        lambda: gk.optim.Step(-0.1, every=10),
        lambda: gk.optim.Cosine(0.1, steps=0),
        lambda: gk.optim.Cosine("0.1", steps=10),
        lambda: gk.optim.Exponential(0.1, factor=-1.0),
        lambda: gk.optim.Warmup(gk.optim.Constant(0.1), steps=-1),
        lambda: gk.optim.Warmup("0.1", steps=1),
        lambda: gk.optim.EMA("0.9"),
        lambda: gk.optim.EMA(0.9, warmup=1),
        lambda: gk.optim.get(gk.optim.SGD),
        lambda: gk.optim.get(3),
    ],
)
def test_options_out_of_range(make):
    with pytest.raises(UsageError):
        make()


def test_numbers_of_numpy_are_numbers():
    made = gk.optim.Adam(np.float32(0.5), beta1=np.float64(0.5))
    assert json.loads(json.dumps(made.describe()))["beta1"] == 0.5
    assert gk.optim.get(made.describe()).describe() == gk.optim.Adam(0.5, beta1=0.5).describe()
    assert gk.optim.Warmup(0.5, steps=np.int64(2))(5) == 0.5


@in_one_item()
@pytest.mark.parametrize(
    "options",
    [
        {"clip_norm": -1}, {"clip_norm": 0}, {"clip_norm": "1"}, {"accumulate": 0}, {"accumulate": 1.5}, {"ema": 1.0},
        {"ema": "0.9"}, {"seed": -1}, {"seed": "0"}, {"lr_mult": {"fc*": -1.0}}, {"lr_mult": {"fc*": float("nan")}},
        {"wd_mult": {"fc*": "much"}}, {"loss": gk.optim.SGD(0.1)}, {"loss": 3}, {"optimizer": gk.optim.SGD},
    ],
    ids=str,
)  # fmt: skip
def test_invalid_trainer_arguments_are_errors(options):
    net = gk.models.build("mlp", inputs=4, hidden=(3,), classes=2)
    with pytest.raises(UsageError):
        gk.Trainer(net, **options)


def test_single_strings_are_not_split_into_letters():
    net = gk.models.build("mlp", inputs=4, hidden=(3,), classes=2)
    trainer = gk.Trainer(net, freeze="fc1*")
    assert trainer.trained == ("fc2_weight", "fc2_bias")
    data = (np.zeros((4, 4), np.float32), np.zeros(4, np.int64))
    assert set(trainer.evaluate(data, "accuracy")) == {"accuracy"}
    for wrong in ({"epochs": -1}, {"epochs": "1"}, {"batch_size": 0}, {"batch_size": 1.5}, {"checkpoint_every": 0}):
        with pytest.raises(UsageError):
            trainer.fit(data, **wrong)


@pytest.mark.parametrize(
    "options",
    [["--lr", "-1"], ["--lr", "nan"], ["--clip-norm", "-1"], ["--clip-norm", "0"], ["--momentum", "2"], ["--ema", "1"],
     ["--optimizer-option", "weight_decay=-1"], ["--optimizer-option", "nesterov=0.5"], ["--seed", "-1"]],
    ids=" ".join,
)  # fmt: skip
def test_the_command_line_refuses_before_it_reads_anything(options, capsys):
    assert cli.invoke(["train", "no_such_model.json", "--data", "digits", *options]) == 2
    err = capsys.readouterr().err
    assert "no_such_model" not in err
    assert options[-1].split("=")[0].lstrip("-") in err or options[0] in err
