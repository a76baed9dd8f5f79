"""graphkit generate, and --tokenizer of other commands."""

import io
import json
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

import graphkit as gk
from graphkit.data import Vocabulary

TEXT = "the quick brown fox jumps over the lazy dog.\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A language model with a vocabulary of characters (letters.onnx), one without (plain.onnx), and a tokenizer."""
    folder = tmp_path_factory.mktemp("language")
    rng = np.random.default_rng(0)
    vocabulary = Vocabulary.build([TEXT], level="char")
    for name, size, meta in (("letters", len(vocabulary), {"vocabulary": vocabulary.to_json()}), ("plain", 300, {})):
        built = gk.models.build("transformer_lm", vocab=size, width=16, heads=2, layers=1, length=40)
        params = {n: (rng.standard_normal(a.shape) * 0.8).astype(np.float32) for n, a in built.params.items()}
        gk.Model.from_graph(built.graph, params, meta=meta).save(folder / f"{name}.onnx")
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.train_from_iterator([TEXT], trainers.BpeTrainer(
        vocab_size=290, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    ))  # fmt: skip
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    library.save(str(folder / "tokenizer.json"))
    (folder / "book.txt").write_text(TEXT * 60)
    return folder


def test_text_is_printed_after_the_prompt(call, files):
    code, out, err = call("generate", files / "letters.onnx", "the fox", "--max-tokens", 12)
    assert code == 0, err
    found = gk.generate(files / "letters.onnx", "the fox", max_tokens=12)
    assert out == f"the fox{found.text}\n"
    assert "no cache" in err
    assert "12 tokens in" in err
    assert "stopped by --max-tokens" in err


def test_json(call, files):
    options = ["--temperature", "0.7", "--top-k", 5, "--top-p", 0.9, "--seed", 4, "--max-tokens", 6]
    code, out, err = call("generate", files / "letters.onnx", "the", "a fox", *options, "--probabilities", "--json")
    assert code == 0, err
    record = json.loads(out)
    assert record["schema"] == "graphkit.generate"
    assert record["tokens"] == 12
    found = gk.generate(
        files / "letters.onnx", ["the", "a fox"], temperature=0.7, top_k=5, top_p=0.9, seed=4, max_tokens=6,
        probabilities=True,
    )  # fmt: skip
    for item, expected in zip(record["results"], found, strict=True):
        assert tuple(item["ids"]) == expected.ids
        assert item["text"] == expected.text
        assert item["probabilities"] == pytest.approx(expected.probabilities)


def test_several_prompts_beams_and_probabilities(call, files):
    code, out, _ = call("generate", files / "letters.onnx", "the", "dog", "--max-tokens", 3)
    found = gk.generate(files / "letters.onnx", ["the", "dog"], max_tokens=3)
    assert code == 0
    assert out == f"the{found[0].text}\n\ndog{found[1].text}\n"
    code, out, _ = call("generate", files / "letters.onnx", "the", "--max-tokens", 3, "--beams", 3)
    assert code == 0
    assert out.count("--max-tokens") == 3
    code, out, _ = call("generate", files / "letters.onnx", "the", "--max-tokens", 3, "--probabilities")
    assert code == 0
    assert "probability" in out


def test_numbers_as_prompts(call, files):
    code, out, err = call(
        "generate", files / "plain.onnx", "--ids", "3,14", "--max-tokens", 4, "--engine", "onnxruntime"
    )
    assert code == 0, err
    ids = gk.generate(files / "plain.onnx", [3, 14], max_tokens=4).ids
    assert out.split() == list(map(str, (3, 14, *ids)))
    code, out, _ = call("generate", files / "letters.onnx", "--ids", "3,4", "--max-tokens", 0)
    assert (code, out) == (
        0,
        Vocabulary.from_json(gk.load(files / "letters.onnx").meta["vocabulary"]).decode([3, 4]) + "\n",
    )


def test_onnxruntime_runs_the_file_itself(call, files, monkeypatch):
    monkeypatch.delattr(gk.Model, "to_onnx")
    code, _, err = call("generate", files / "plain.onnx", "--ids", "3", "--max-tokens", 1, "--engine", "onnxruntime")
    assert code == 0, err


def test_prompt_from_stdin(call, files, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the fox\n")))
    code, out, _ = call("generate", files / "letters.onnx", "-", "--max-tokens", 2)
    assert code == 0
    assert out.startswith("the fox")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    code, _, err = call("generate", files / "letters.onnx", "-")
    assert code == 2
    assert "not UTF-8" in err


def test_tokenizer(call, files):
    code, out, err = call(
        "generate", files / "plain.onnx", "the fox", "--tokenizer", files / "tokenizer.json", "--max-tokens", 5,
        "--json",
    )  # fmt: skip
    assert code == 0, err
    record = json.loads(out)
    library = Library.from_file(str(files / "tokenizer.json"))
    assert record["results"][0]["prompt_ids"] == library.encode("the fox").ids[:-1]
    assert any("the vocabulary has" in note for note in record["notes"])
    code, out, _ = call(
        "generate", files / "plain.onnx", "x", "--tokenizer", files / "tokenizer.json", "--no-end", "--stop",
        "zzz", "--max-tokens", 5,
    )  # fmt: skip
    assert code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["plain.onnx"], 2, "give at least one prompt"),
        (["plain.onnx", "a", "--ids", "1"], 2, "but not both"),
        (["plain.onnx", "a"], 2, "no vocabulary"),
        (["plain.onnx", "--ids", "1,x"], 2, "--ids 1,x: expected numbers"),
        (["plain.onnx", "-", "-"], 2, "only once"),
        (["-", "a"], 2, "cannot read MODEL from stdin"),
        (["none.onnx", "a"], 2, "none.onnx"),
        (["plain.onnx", "a", "--tokenizer", "none.json"], 2, "none.json: No such file"),
        (["plain.onnx", "a", "--tokenizer", "plain.onnx"], 2, "plain.onnx: not UTF-8 text"),
        (["plain.onnx", "--ids", "1", "--stop", "x"], 2, "need a vocabulary"),
        (["plain.onnx", "--ids", "1", "--input", "y=none.npz"], 2, "none.npz"),
        (["plain.onnx", "--ids", "999"], 5, "index 999"),
        (["letters.onnx", "a", "--end", "zz"], 2, "no token 'zz'"),
        (["letters.onnx", "a", "--end", "999"], 2, "no token 999 (end=, --end): it is not in <Vocabulary of"),
        (["letters.onnx", "a", "--end", "b", "--no-end"], 2, "contradict"),
        (["letters.onnx", "x" * 41], 2, "41 tokens, but the model has 40 positions"),
    ],
)
def test_errors(call, files, monkeypatch, arguments, code, message):
    monkeypatch.chdir(files)
    found, out, err = call("generate", *arguments, "--json")
    assert found == code, err
    assert message in err
    assert json.loads(out)["exit_code"] == code


def test_damaged_vocabulary_in_a_file(call, files, tmp_path):
    net = gk.load(files / "letters.onnx")
    gk.Model.from_graph(net.graph, net.params.entries(), meta={"vocabulary": "{"}).save(tmp_path / "net.onnx")
    code, _, err = call("generate", tmp_path / "net.onnx", "the")
    assert code == 2
    assert "neither a tokenizer.json nor a vocabulary" in err


# --- --tokenizer of other commands ------------------------------------------------------------------------


def test_training_and_evaluation_with_a_tokenizer(call, files, tmp_path):
    data, tokenizer = f"text:{files / 'book.txt'}", files / "tokenizer.json"
    sizes = ["-p", "hidden=16", "-p", "layers=1", "-p", "stateful=true"]
    code, _, err = call(
        "build", "lstm_lm", "--data", data, "--tokenizer", tokenizer, *sizes, "-o", tmp_path / "net.json"
    )
    assert code == 0, err
    library = Library.from_file(str(tokenizer))
    assert gk.load(tmp_path / "net.json").params["token_weight"].shape == (library.get_vocab_size(), 16)
    carry = ["--recurrent-state", "h=last_h", "--recurrent-state", "c=last_c", "--output-name", "logits"]
    train = [
        "train", tmp_path / "net.json", "--data", data, "--tokenizer", tokenizer, "--batch-size", 4, "--optimizer",
        "adam", "--lr", "0.05", *carry, "-o", tmp_path / "run", "--threads", 1, "--data-option", "length=10",
    ]  # fmt: skip
    assert call(*train, "--epochs", 1)[0] == 0
    code, _, err = call("train", tmp_path / "net.json", "-o", tmp_path / "run", "--resume", "--epochs", 8)
    assert code == 0, err
    run = gk.load(tmp_path / "run")
    assert gk.data.Tokenizer.load(tmp_path / "run" / "vocabulary.json").tokens == tuple(
        library.id_to_token(i) for i in range(library.get_vocab_size())
    )
    assert call("export", tmp_path / "run", "-o", tmp_path / "net.onnx")[0] == 0
    # The exported file contains the tokenizer.
    code, out, err = call("evaluate", tmp_path / "net.onnx", "--data", data, *carry, "--json")
    assert code == 0, err
    scores = [json.loads(out)["metrics"]["accuracy"]]
    code, out, _ = call("evaluate", tmp_path / "net.onnx", "--data", data, "--tokenizer", tokenizer, *carry, "--json")
    assert [json.loads(out)["metrics"]["accuracy"]] == scores
    assert scores[0] > 0.5
    code, out, err = call("generate", tmp_path / "net.onnx", "the quick", "--max-tokens", 5)
    assert code == 0, err
    assert out.startswith("the quick")
    assert json.loads(run.meta["vocabulary"]) == json.loads(library.to_str())


def test_prediction_with_a_tokenizer(call, files, tmp_path):
    names = ("input_ids", "attention_mask", "token_type_ids")
    ids, mask, segments = (gk.input(name, ["N", "T"], "int64") for name in names)
    h = gk.nn.embedding(ids, 290, 4, name="token")
    h = gk.add(gk.mul(h, gk.cast(gk.unsqueeze(mask, np.array([2])), to="float32")), gk.cast(
        gk.unsqueeze(segments, np.array([2])), to="float32"
    ))  # fmt: skip
    model = gk.Model({"sum": gk.reduce_sum(h, np.array([1]), keepdims=False)}, seed=0)
    model.save(tmp_path / "net.onnx")
    lines = ["the fox", "", "a lazy dog jumps over the fox"]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    code, _, err = call(
        "predict", tmp_path / "net.onnx", tmp_path / "lines.txt", "--tokenizer", files / "tokenizer.json", "-o",
        tmp_path / "out.npz", "--batch-size", 2,
    )  # fmt: skip
    assert code == 0, err
    assert "split into tokens by the tokenizer given" in err
    library = Library.from_file(str(files / "tokenizer.json"))
    expected = [model.params["token_weight"][library.encode(line).ids].sum(axis=0) for line in lines]
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["sum"], expected, rtol=1e-4, atol=1e-6)
    code, _, err = call("predict", tmp_path / "net.onnx", tmp_path / "lines.txt", "-o", tmp_path / "out.npz")
    assert code == 2
    assert "--tokenizer" in err
    code, _, err = call(
        "predict", tmp_path / "net.onnx", tmp_path / "net.onnx", "--tokenizer", files / "tokenizer.json", "-o", "o.npz"
    )
    assert code == 2
    assert "give one .txt file" in err


def test_prediction_cuts_texts_and_keeps_special_tokens(call, files, tmp_path):
    ids = gk.input("input_ids", ["N", 4], "int64")
    gk.Model({"same": gk.cast(ids, to="float32")}).save(tmp_path / "net.onnx")
    lines = ["the fox", "a lazy dog jumps over the fox", "x"]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    options = ["--tokenizer", files / "tokenizer.json", "-o", tmp_path / "out.npz"]
    code, _, err = call("predict", tmp_path / "net.onnx", tmp_path / "lines.txt", *options)
    assert code == 0, err
    library = Library.from_file(str(files / "tokenizer.json"))
    library.enable_truncation(4)
    library.enable_padding(length=4)
    expected = [library.encode(line).ids for line in lines]
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["same"], expected)
    assert expected[1][-1] == library.token_to_id("</s>")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "digits"], "--tokenizer is for texts"),
        (["--data", "text:book.txt", "--data-option", "level=word"], "leave out --data-option level"),
        ([], "also give them (--data)"),
    ],
)
def test_tokenizer_with_other_data(call, files, monkeypatch, arguments, message):
    monkeypatch.chdir(files)
    code, _, err = call("build", "lstm_lm", *arguments, "--tokenizer", "tokenizer.json", "-o", "net.json")
    assert code == 2
    assert message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ids", "1,2,300"], "contains the token 300, but the vocabulary has"),
        (["the", "--tokenizer", "tokenizer.json"], "the tokenizer has 290 tokens, the model only"),
        (["the", "--tokenizer", "bad.json"], "the key 'tokens' is missing"),
        (["the", "--input", "states=one.npz"], "the file has no array 'states'; its arrays: 'a'"),
        (["the", "--recurrent-state", "input=foo"], "--recurrent-state"),
    ],
)
def test_wrong_prompts_and_files_are_named(call, files, monkeypatch, arguments, message):
    monkeypatch.chdir(files)
    (files / "bad.json").write_text('{"level": "word"}')
    np.savez(files / "one.npz", a=np.ones(2))
    code, out, err = call("generate", "letters.onnx", *arguments)
    assert code == 2 or code == 4, err
    assert message in err
    assert not out
    assert "Traceback" not in err
