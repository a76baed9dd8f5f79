"""Targets are converted if there is one possible meaning. Otherwise the error names the loss to use."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from cases import each_case
from combinations import in_one_item

import graphkit as gk
from graphkit import cli
from graphkit.errors import InputError, UsageError
from graphkit.train.targets import aligned

RNG = np.random.default_rng(0)
X = RNG.standard_normal((8, 3)).astype(np.float32)
NUMBERS = X @ np.array([2.0, -1.0, 0.5], np.float32)
SIGNS = (NUMBERS > 0).astype(np.float32)
REGRESSIONS = ("mse", "l1", "huber")


def network(outputs: int | None, end=None) -> gk.Model:
    """Return a linear model with fixed weights and outputs [N, outputs], or [N] for None."""
    x = gk.input("x", ["N", 3])
    y = gk.nn.linear(x, outputs or 1, init="ones", bias_init="zeros", name="fc")
    y = gk.squeeze(y, [1]) if outputs is None else y
    return gk.Model({"y": y if end is None else end(y)})


def trainer(net: gk.Model, loss: str) -> gk.Trainer:
    return gk.Trainer(net, loss, gk.optim.SGD(0.0))


DTYPES = ("float32", "float64", "float16", "int64", "uint8", "bool", "list")


class Given(NamedTuple):
    """Targets with one number per sample, in the forms in which users pass them."""

    loss: str
    outputs: int | None
    shape: tuple[int, ...]
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.loss}, [N{', 1' * bool(self.outputs)}], {self.shape}, {self.dtype}"

    @property
    def is_full(self) -> bool:
        """Whether only the full lane runs this. The default lane runs each type with one loss, and vice versa."""
        return self.dtype != "float64" and self.loss != "huber"


GIVEN = [
    Given(*case)
    for case in itertools.product(
        [*REGRESSIONS, "sigmoid_binary_cross_entropy"], [None, 1], [(8,), (8, 1), (8, 1, 1)], DTYPES
    )
]


@each_case(GIVEN, group=lambda given: given.loss, full=lambda given: given.is_full)
def test_one_number_per_sample(case):
    loss, outputs, shape, dtype = case
    target = SIGNS.reshape(shape)
    given = target.astype(int).tolist() if dtype == "list" else target.astype(dtype)
    net = network(outputs)
    own = SIGNS.reshape((8,) if outputs is None else (8, 1))
    wanted = float(trainer(net, loss).step(X, own))
    assert float(trainer(net, loss).step(X, given)) == wanted
    # The definition, so that both results cannot have the same error.
    y = X.sum(1).astype(np.float64)
    formulas = {
        "mse": (y - SIGNS) ** 2,
        "l1": np.abs(y - SIGNS),
        "huber": np.where(np.abs(y - SIGNS) <= 1, (y - SIGNS) ** 2 / 2, np.abs(y - SIGNS) - 0.5),
        "sigmoid_binary_cross_entropy": np.logaddexp(0, y) - y * SIGNS,
    }
    assert wanted == pytest.approx(float(formulas[loss].mean()), rel=1e-5)


@in_one_item()
@pytest.mark.parametrize("given", [SIGNS, SIGNS[:, None], SIGNS.astype(bool), SIGNS.astype(np.uint8), SIGNS.tolist()])
def test_class_numbers_in_any_form(given):
    wanted = float(trainer(network(4), "softmax_cross_entropy").step(X, SIGNS.astype(np.int64)))
    assert float(trainer(network(4), "softmax_cross_entropy").step(X, given)) == wanted


@in_one_item()
@pytest.mark.parametrize(
    ("outputs", "loss", "target", "message"),
    [
        (4, "softmax_cross_entropy", NUMBERS, "class numbers from 0 to 3"),
        (4, "softmax_cross_entropy", np.array([0, 1, 2, 3, 4, 0, 0, 0]), "the targets given contain 4"),
        (
            4,
            "softmax_cross_entropy",
            np.array([1, 2, 3, 4, 4, 1, 1, 1]),
            r"contain 4\. Classes count from 0: subtract 1",
        ),
        (4, "softmax_cross_entropy", np.array([1, 2, 99, 1, 1, 1, 1, 1]), "contain 99$"),
        (4, "softmax_cross_entropy", RNG.random(8), "They are not class numbers: for a regression, .*--loss mse"),
        (4, "softmax_cross_entropy", np.eye(4)[[0, 1, 2, 3, 0, 1, 2, 3]], r"targets.argmax\(-1\)"),
        (4, "softmax_cross_entropy", RNG.standard_normal((8, 4)), "--loss mse"),
        (
            4,
            "mse",
            np.arange(8) % 4,
            r'shape \[8\]\. They are whole numbers, one per sample: .* loss="softmax_cross_entropy"',
        ),
        (4, "sigmoid_binary_cross_entropy", np.arange(8) % 4, 'loss="softmax_cross_entropy"'),
        (1, "sigmoid_binary_cross_entropy", NUMBERS, "--loss mse"),
        (1, "sigmoid_binary_cross_entropy", np.array([-1, 1] * 4), "from 0 to 1"),
        (1, "mse", np.zeros((8, 2)), r"shape \[8, 2\]"),
        (2, "mse", np.zeros((2, 8)), r"shape \[2, 8\]"),
    ],
)
def test_error_for_wrong_targets_suggests_a_remedy(outputs, loss, target, message):
    with pytest.raises(InputError, match=message):
        trainer(network(outputs), loss).step(X, target)


def test_a_class_number_above_the_outputs_is_named():
    labels = np.array([1, 2, 99, 1, 1, 1, 1, 1])
    with pytest.raises(InputError, match=r"train: the largest class number is 99, but the network .* has 4 outputs"):
        trainer(network(4), "softmax_cross_entropy").fit((X, labels))


def test_error_for_unknown_array_names_the_data():
    data = gk.data.Dataset({"a": X}, np.arange(8) % 4, name="set.npz")
    with pytest.raises(InputError, match=r"set\.npz: the array 'a' is not an input of the model; known: "):
        trainer(network(4), "softmax_cross_entropy").fit(data)


def test_error_for_one_class_suggests_mse():
    with pytest.raises(UsageError, match="--loss mse"):
        trainer(network(1), "softmax_cross_entropy")


@pytest.mark.parametrize(("name", "ours"), [("mae", "l1"), ("binary_crossentropy", "sigmoid_binary_cross_entropy")])
def test_names_of_other_libraries_give_suggestions(name, ours):
    with pytest.raises(UsageError, match=f"did you mean '{ours}'"):
        gk.losses.get(name)


@in_one_item()
@pytest.mark.parametrize(
    ("given", "shape", "fits"),
    [
        ((8,), ("N", 1), (8, 1)),
        ((8, 1), ("N",), (8,)),
        ((8, 5, 6), ("N", 1, 5, 6), (8, 1, 5, 6)),
        ((8, 5, 6), ("N", 1, "H", "W"), (8, 1, 5, 6)),
        ((8, 5, 6, 1), ("N", 1, 5, 6), (8, 1, 5, 6)),
        ((1, 1), ("N", "T"), (1, 1)),
        ((8, 1, 5), ("N", 5), (8, 5)),
        ((8,), ("N", "T"), None),
        ((8, 5), ("N", 6), None),
        ((8, 2, 3), ("N", 6), None),
        ((), (), ()),
        ((1,), (), ()),
    ],
    ids=str,
)
def test_axes_of_one(given, shape, fits):
    array = np.arange(np.prod(given, dtype=int)).reshape(given)
    found = aligned(array, shape)
    assert (None if found is None else found.shape) == fits
    if found is not None:
        assert found.reshape(-1).tolist() == array.reshape(-1).tolist()


@in_one_item()
@pytest.mark.parametrize("name", ["mse", "rmse", "mae"])
def test_metrics_do_not_broadcast(name):
    output, target = X[:, :1], SIGNS
    metric, same = gk.metrics.get(name), gk.metrics.get(name)
    metric.update(output, target)
    same.update(output[:, 0], target)
    assert metric.value == same.value
    with pytest.raises(InputError, match="must have the same shape"):
        metric.update(X, target)


@in_one_item()
@pytest.mark.parametrize("name", ["accuracy", "f1", "auc"])
def test_metrics_of_one_logit_and_of_its_probability(name):
    logit, probability = network(1), network(1, gk.sigmoid)
    scores = [
        trainer(net, "sigmoid_binary_cross_entropy").evaluate((X, target), [name])[name]
        for net in (logit, probability)
        for target in (SIGNS, SIGNS[:, None], SIGNS.astype(np.int64))
    ]
    assert len(set(scores)) == 1
    if name == "accuracy":
        assert scores[0] == np.mean((X.sum(1) > 0) == SIGNS)


def test_perplexity_of_probabilities_is_that_of_their_logits():
    classes = np.arange(8) % 4
    x = gk.input("x", ["N", 3])
    y = gk.nn.linear(x, 4, name="fc")
    of_logits, of_softmax = gk.Model({"y": y}), gk.Model({"y": gk.softmax(y)})
    wanted = gk.Trainer(of_logits).evaluate((X, classes), ["perplexity"])["perplexity"]
    assert gk.Trainer(of_softmax).evaluate((X, classes), ["perplexity"])["perplexity"] == pytest.approx(wanted, 1e-5)


def test_accuracy_of_one_number_needs_binary_targets():
    with pytest.raises(InputError, match="targets must be 0 or 1"):
        gk.metrics.get("accuracy").update(X[:, :1], np.arange(8))


def test_numbers_to_predict_are_not_split_as_classes():
    """If each number were a class, the split would hold out all of the smallest classes."""
    data = gk.data.Dataset(np.zeros((100, 2), np.float32), np.arange(100))
    test = data.split(0.2).test.targets
    assert len(test) == 20
    assert test.max() > 50


@in_one_item()
@pytest.mark.parametrize(
    ("target", "loss", "options"),
    [
        ("number", "mse", []),
        ("whole", "mse", ["-p", "classes=1"]),
        ("whole", "huber", ["-p", "classes=1"]),
        ("sign", "sigmoid_binary_cross_entropy", ["-p", "classes=1"]),
        ("word", "sigmoid_binary_cross_entropy", ["-p", "classes=1"]),
        ("word", "softmax_cross_entropy", []),
    ],
)
def test_a_table_trains_from_the_command_line(tmp_path, target, loss, options):
    x = RNG.standard_normal((60, 3))
    y = x @ [2.0, -1.0, 0.5]
    texts = {
        "number": y,
        "whole": np.round(10 * y - 10 * y.min()).astype(int),
        "sign": (y > 0).astype(int),
        "word": np.where(y > 0, "yes", "no"),
    }[target]
    lines = [",".join([*map(str, row), str(t)]) for row, t in zip(x, texts, strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,c,y", *lines]))
    net, table = str(tmp_path / "net.json"), str(tmp_path / "table.csv")
    assert cli.invoke(["build", "mlp", "-p", "hidden=4", *options, "--dataset", table, "-o", net]) == 0
    assert gk.load(net).output_types["logits"].shape[1] == (2 if loss == "softmax_cross_entropy" else 1)
    run = str(tmp_path / "run")
    arguments = ["--loss", loss, "--optimizer", "adam", "--lr", "1e-2", "--batch-size", "16", "--epochs", "2"]
    assert cli.invoke(["train", net, "--data", table, *arguments, "-o", run]) == 0
    assert len((tmp_path / "run" / "log.jsonl").read_text().splitlines()) == 2


def test_data_without_targets_are_refused() -> None:
    with pytest.raises(InputError, match=r"^rows has no targets\. Pass a pair .* The loss needs 1 target: 'target'"):
        trainer(network(4), "mse").fit(gk.data.Dataset(X, name="rows"))
    with pytest.raises(
        InputError, match=r"^the data have no targets\. Pass a pair .* The loss needs 1 target: 'target'"
    ):
        trainer(network(4), "mse").fit([{"x": row} for row in X])


def test_text_with_tokens_that_a_language_model_does_not_score():
    vocabulary = gk.data.Vocabulary(["<pad>", "<unk>", "a", "b", "c", "d"], "char")
    ids = gk.input("x", ["T", "N"], "int64")
    net = gk.Model({"y": gk.nn.linear(gk.nn.embedding(ids, 5, 4, name="e"), 5, name="fc")}, seed=0)
    trainer = gk.Trainer(net, threads=1)
    message = r"the text contains token 5 \('d'\), but the network .* 5 outputs.*\(--tokenizer\).*vocab=6"
    with pytest.raises(InputError, match=message):
        trainer.fit(gk.data.TokenStream(vocabulary.encode("abcdabcd"), vocabulary), epochs=1, batch_size=1)
    # A vocabulary may have more tokens than the model scores, if the text does not contain them.
    trainer.fit(gk.data.TokenStream(vocabulary.encode("abcabc"), vocabulary), epochs=1, batch_size=1)
