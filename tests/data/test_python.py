"""Data from a function in a Python file: allowed results, options, and errors."""

from __future__ import annotations

import pytest

import graphkit as gk
from graphkit import cli
from graphkit.errors import InputError, UsageError, UserCodeError

CODE = """
import numpy as np
import graphkit as gk

def rows(count: int = 8, seed: int = 0):
    rng = np.random.default_rng(seed)
    return {"x": rng.random((count, 3)), "y": np.arange(count) % 2, "classes": np.array(["no", "yes"])}

def parts(count: int = 8):
    whole = rows(count)
    return {f"{name}_{part}": whole[name][:count // 2] for name in ("x", "y") for part in ("train", "test")}

def pair():
    return np.zeros((4, 3), np.float32), np.zeros(4, np.int64)

def data():
    return gk.data.Dataset(np.zeros((4, 3), np.float32), np.zeros(4, np.int64))

def splits():
    return gk.data.load("digits")

def nothing():
    return 7

def broken(folder="x"):
    return open("/nowhere/at/all")

def needs(size, *, more):
    return 7

def refused():
    raise gk.errors.InputError("the third row")
"""


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "mine.py").write_text(CODE)
    return lambda name: f"{tmp_path / 'mine.py'}:{name}"


def test_what_a_function_returns(spec):
    whole = gk.data.read(spec("rows"), count=10)
    assert whole.inputs.shape == (10, 3)
    assert whole.inputs.dtype == "float32"
    assert whole.classes == ("no", "yes")
    first, second = gk.data.load(spec("parts"), count=6)
    assert (len(first), len(second)) == (3, 3)
    assert len(gk.data.read(spec("pair"))) == len(gk.data.read(spec("data"))) == 4
    assert len(gk.data.load(spec("splits")).train) == 1438


def test_a_whole_is_split_by_the_seed(spec):
    """The function also gets the seed, if it has such an argument."""
    one, other = (gk.data.load(spec("rows"), count=50, seed=seed, test_fraction=0.5) for seed in (1, 2))
    assert len(one.test) == 25
    assert one.train.inputs.tolist() != other.train.inputs.tolist()


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("rows", {"cout": 3}, UsageError, "there is no option 'cout'.*count"),
        ("row", {}, UsageError, "has no function 'row'.*rows"),
        ("nothing", {}, InputError, "must return a dict of arrays by name, .* not int"),
        ("broken", {}, UserCodeError, r"mine.py:\d+, in broken: FileNotFoundError: .*nowhere"),
        (
            "needs",
            {"size": 1},
            UsageError,
            r"mine.py:needs needs a value for more: pass more=... \(--data-option more=...\)",
        ),
        ("refused", {}, InputError, r"mine.py:\d+, in refused: the third row"),
    ],
)
def test_what_goes_wrong(spec, name, options, error, message):
    with pytest.raises(error, match=message):
        gk.data.load(spec(name), **options)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="there is no file"):
        gk.data.load(f"{tmp_path / 'other.py'}:rows")


def test_training_by_a_config_beside_it(spec, tmp_path, capsys):
    (tmp_path / "config.toml").write_text(
        'data = "mine.py:rows"\nepochs = 1\n\n[network]\nname = "mlp"\n\n[data-option]\ncount = 40\n'
    )
    assert cli.invoke(["train", str(tmp_path / "config.toml"), "-o", str(tmp_path / "run")]) == 0
    assert gk.load(tmp_path / "run" / "model.json").classes == ("no", "yes")
    assert cli.invoke(["train", str(tmp_path / "config.toml"), "-o", str(tmp_path / "run"), "--resume",
                       "--epochs", "2"]) == 0  # fmt: skip
    capsys.readouterr()
