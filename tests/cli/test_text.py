"""From text on disk to a verified file, by the command line."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

import graphkit as gk
from graphkit.data import Vocabulary


@pytest.fixture
def reviews(tmp_path):
    folder = tmp_path / "reviews"
    folder.mkdir()
    rng = np.random.default_rng(0)
    filling = ["film", "plot", "the", "a", "and", "scene", "actor", "music"]
    for kind, words in (("pos", ["good", "great", "fine"]), ("neg", ["bad", "dull", "poor"])):
        lines = [[*rng.choice(filling, rng.integers(1, 12)), rng.choice(words)] for _ in range(100)]
        (folder / f"film.{kind}").write_text("\n".join(" ".join(rng.permutation(line)) for line in lines))
    return folder


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("the quick brown fox jumps over the lazy dog.\n" * 120)
    return path


def test_sentences(call, reviews, tmp_path):
    net, run, file = tmp_path / "net.json", tmp_path / "run", tmp_path / "net.onnx"
    options = ["-p", "width=8", "-p", "hidden=8", "-p", "dropout=0"]
    assert call("build", "text_classifier", "--dataset", f"sentences:{reviews}", *options, "-o", net)[0] == 0
    built = gk.load(net)
    words = Vocabulary.from_json(built.meta["vocabulary"])
    assert built.params["token_weight"].shape == (len(words), 8)
    assert len(words) == 2 + 8 + 6
    assert json.loads(built.meta["classes"]) == ["neg", "pos"]
    code, out, err = call(
        "train", net, "--data", f"sentences:{reviews}", "--optimizer", "adam", "--lr", "0.02", "--epochs", 8,
        "--batch-size", 16, "-o", run, "--threads", 1, "--json",
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["history"][-1]["valid_accuracy"] > 0.9
    assert Vocabulary.load(run / "vocabulary.json").tokens == words.tokens
    assert call("export", run, "-o", file)[0] == 0
    stored = {p.key: p.value for p in onnx.load(file).metadata_props}
    assert Vocabulary.from_json(stored["vocabulary"]).tokens == words.tokens
    code, out, _ = call("verify", file, "x:4,9")
    assert code == 0
    assert "PASSED" in out
    trained = gk.load(file)
    numbers = words.encode("a good film")[None]
    assert trained.run({"x": numbers, "lengths": np.array([3])})["logits"].argmax() == 1


def test_validation_text_has_the_words_of_training(call, reviews, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.pos").write_text("good unheard words\n")
    (other / "a.neg").write_text("bad\n")
    net = tmp_path / "net.json"
    build = ["build", "text_classifier", "-p", "width=4", "-p", "hidden=4", "-o", net]
    assert call(*build, "-p", "vocab=16")[0] == 0
    data = ["--data", f"sentences:{reviews}", "--valid", f"sentences:{other}"]
    code, out, err = call("train", net, *data, "--threads", 1, "-o", tmp_path / "run", "--json")
    assert code == 0, err
    assert json.loads(out)["history"][0]["valid_accuracy"] in (0.0, 0.5, 1.0)
    # A model without a vocabulary got that of the training part.
    assert len(Vocabulary.from_json(gk.load(tmp_path / "run").meta["vocabulary"])) == 16


def test_text(call, book, tmp_path):
    net, run, file = tmp_path / "net.json", tmp_path / "run", tmp_path / "net.onnx"
    options = ["-p", "hidden=16", "-p", "layers=1", "-p", "stateful=true"]
    assert call("build", "lstm_lm", "--dataset", f"text:{book}", *options, "-o", net)[0] == 0
    train = [
        "train", net, "--data", f"text:{book}", "--data-option", "length=15", "--batch-size", 8, "--optimizer", "adam",
        "--lr", "0.02", "--output-name", "logits", "--carry", "h=last_h", "--carry", "c=last_c", "--metric",
        "perplexity", "-o", run, "--threads", 1, "--json",
    ]  # fmt: skip
    code, _, err = call(*train, "--epochs", 2)
    assert code == 0, err
    assert "for validation: the end of the text" in err
    code, _, err = call(*train, "--epochs", 4, "--resume")
    assert code == 0, err
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    records = [line for line in lines if line["event"] == "epoch"]
    scores = [r["valid_perplexity"] for r in records]
    assert len(scores) == 4
    assert scores[3] < scores[1] < scores[0] < len(Vocabulary.load(run / "vocabulary.json"))
    assert call("export", run, "-o", file)[0] == 0
    assert call("verify", file, "x:7,2")[0] == 0
    code, _, err = call(*train[:-1], "--overwrite", "--carry", "hh=last_h")
    assert code == 2
    assert "no input 'hh'" in err


def test_a_decoder_takes_over_the_weights(call, tmp_path):
    net, writer = tmp_path / "net.json", tmp_path / "writer.onnx"
    sizes = ["-p", "vocab=9", "-p", "width=4", "-p", "hidden=5"]
    assert call("build", "seq2seq", *sizes, "--seed", 3, "-o", net)[0] == 0
    code, _, err = call("build", "seq2seq", *sizes, "-p", "decode=6", "--weights", net, "-o", writer)
    assert code == 0, err
    trained, loaded = gk.load(net), gk.load(writer)
    np.testing.assert_array_equal(loaded.params["fc_weight"], trained.params["fc_weight"])
    code, out, _ = call("run", writer, "--json")
    assert code == 0
    (tokens,) = json.loads(out)["outputs"]
    assert (tokens["name"], tokens["shape"]) == ("tokens", [2, 6])
    assert call("verify", writer)[0] == 0
    code, _, err = call("build", "seq2seq", *sizes[:-1], "hidden=7", "--weights", net, "-o", writer)
    assert code == 2
    assert "encoder0_weight" in err
    assert call("build", "lenet", "-o", tmp_path / "lenet.json")[0] == 0
    code, _, err = call("build", "seq2seq", *sizes, "--weights", tmp_path / "lenet.json", "-o", writer)
    assert code == 2
    assert "lenet and seq2seq have no parameter name in common" in err


def test_pairs_of_sequences(call, tmp_path):
    """A network that repeats two letters: trained on arrays, then writing by itself."""
    rng = np.random.default_rng(0)
    source = rng.integers(3, 8, (512, 2))
    y = np.concatenate([source, np.full((512, 1), 2)], axis=1)
    previous = np.concatenate([np.full((512, 1), 1), source], axis=1)
    np.savez(tmp_path / "pairs.npz", source=source, lengths=np.full(512, 2), previous=previous, y=y)
    np.savez(tmp_path / "two.npz", source=source[:2], lengths=np.full(2, 2))
    net, run, writer = tmp_path / "net.json", tmp_path / "run", tmp_path / "writer.onnx"
    sizes = ["-p", "vocab=8", "-p", "width=8", "-p", "hidden=24"]
    assert call("build", "seq2seq", *sizes, "-o", net)[0] == 0
    code, out, err = call(
        "train", net, "--data", tmp_path / "pairs.npz", "--optimizer", "adam", "--lr", "0.02", "--epochs", 10,
        "--batch-size", 32, "-o", run, "--threads", 1, "--json",
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["history"][-1]["valid_accuracy"] > 0.95
    assert call("build", "seq2seq", *sizes, "-p", "decode=4", "--weights", run, "-o", writer)[0] == 0
    code, out, _ = call("run", writer, tmp_path / "two.npz", "--json")
    assert code == 0
    (tokens,) = json.loads(out)["outputs"]
    np.testing.assert_array_equal(tokens["values"], np.concatenate([y[:2], np.full((2, 1), 2)], axis=1))
    assert call("verify", writer, tmp_path / "two.npz")[0] == 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (["sentences:nowhere"], "nowhere: no such folder"),
        (["text:nowhere.txt"], "nowhere.txt: No such file"),
        (["text:"], "text does not come with the package and needs a path"),
        (["text:book.txt", "--data-option", "lenght=3"], "did you mean 'length'"),
        (["text:book.txt", "--data-option", "length"], "expected NAME=VALUE"),
        (["digits", "--data-option", "length=3"], "digits has no options (--data-option), so leave out length"),
    ],
)
def test_errors(call, tmp_path, monkeypatch, data, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("text " * 50)
    assert call("build", "lstm_lm", "-p", "vocab=9", "-p", "hidden=4", "-o", "net.json")[0] == 0
    for command in (["train", "net.json", "--data", *data], ["build", "lstm_lm", "-o", "n.json", "--dataset", *data]):
        code, _, err = call(*command)
        assert code == 2
        assert message in err
