"""Text classifiers of Hugging Face: evaluation and prediction from texts, compared with numpy and `tokenizers`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit import cli
from graphkit.data.preprocessing import parquet
from graphkit.data.text.rows import read_columns
from graphkit.errors import InputError, UsageError

pytest.importorskip("tokenizers")

from text_classifiers import CLASSES, classifier, logits, tokenizer_json, write_folder

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")

TEXTS = ["a good film", "bad", "", "a very , very long film", "not bad , not good", "boring " * 12, "good good"]
LABELS = [2, 0, 1, 1, 1, 0, 2]


def expected(net, limit=None):
    """Accuracy and mean loss of the data."""
    scores = logits(net, TEXTS, limit)
    shifted = scores - scores.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return float((scores.argmax(1) == LABELS).mean()), float(-logs[np.arange(len(LABELS)), LABELS].mean())


def write_data(folder, form, names=CLASSES):
    """Write the data in one of several forms. names: the labels; None for class numbers."""
    labels = LABELS if names is None else [names[label] for label in LABELS]
    if form == "folder":
        found = folder / "texts"
        found.mkdir()
        for number, name in enumerate(names):
            lines = [text for text, label in zip(TEXTS, LABELS, strict=True) if label == number]
            (found / f"{name}.txt").write_text("\n".join(lines) + "\n")
        return f"sentences:{found}"
    path = folder / f"data.{form}"
    if form == "parquet":
        pictures = pa.array([b"\x89PNG"] * len(TEXTS))  # a column that is neither text nor label
        pa.parquet.write_table(
            pa.table({"id": range(len(TEXTS)), "picture": pictures, "text": TEXTS, "label": labels}), path
        )
        return str(path)
    if form == "jsonl":
        rows = [json.dumps({"text": text, "id": i, "label": label}) for i, (text, label) in enumerate(
            zip(TEXTS, labels, strict=True))]  # fmt: skip
    else:
        mark = "\t" if form == "tsv" else ","
        rows = [mark.join(["id", "text", "label"])]
        rows += [
            mark.join([str(i), f'"{t}"', str(label)]) for i, (t, label) in enumerate(zip(TEXTS, labels, strict=True))
        ]
    path.write_text("\n".join(rows) + "\n")
    return str(path)


@in_one_item()
@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "parquet"])
@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("names", [CLASSES, None], ids=["names", "numbers"])
def test_evaluation_of_rows(tmp_path, form, segments, names):
    net = classifier(segments)
    model = write_folder(tmp_path, net)
    accuracy, loss = expected(net)
    found = gk.evaluate(model, write_data(tmp_path, form, names), batch_size=3)
    assert found.samples == len(TEXTS)
    assert found.classes == tuple(CLASSES)
    assert found.metrics["accuracy"] == pytest.approx(accuracy)
    assert found.metrics["loss"] == pytest.approx(loss, rel=1e-5)
    assert "tokenizer.json" in found.notes[0]


def test_evaluation_of_a_folder(tmp_path):
    net = classifier()
    model = write_folder(tmp_path, net)
    found = gk.evaluate(model, write_data(tmp_path, "folder"))
    whole = [(t, label) for t, label in zip(TEXTS, LABELS, strict=True) if t]
    right = logits(net, [t for t, _ in whole]).argmax(1) == [label for _, label in whole]
    assert found.samples == len(whole)
    assert found.metrics["accuracy"] == pytest.approx(right.mean())


@in_one_item()
@pytest.mark.parametrize("engine", ["graphkit", "onnxruntime"])
@pytest.mark.parametrize("size", [1, 4, 64])
def test_results_do_not_depend_on_batches(tmp_path, engine, size):
    if engine == "onnxruntime":
        pytest.importorskip("onnxruntime")
    net = classifier()
    model = write_folder(tmp_path, net)
    found = gk.evaluate(model, write_data(tmp_path, "jsonl"), batch_size=size, engine=engine)
    assert found.metrics["loss"] == pytest.approx(expected(net)[1], rel=1e-5)


@in_one_item()
@pytest.mark.parametrize(
    ("model", "config", "limit"),
    [
        (lambda: classifier(positions=6), {}, 6),
        (classifier, {"max_position_embeddings": 6}, 6),
        (
            classifier,
            {"max_position_embeddings": 8, "model_type": "roberta", "pad_token_id": 1},
            6,
        ),
        (lambda: classifier(length=5), {}, 5),
        (lambda: classifier(length=7, batch=2), {"max_position_embeddings": 512}, 7),
    ],
    ids=["positions", "config", "roberta", "fixed length", "fixed length and batch"],
)
def test_texts_are_truncated_to_the_maximum_of_the_model(tmp_path, model, config, limit):
    net = model()
    path = write_folder(tmp_path, net, **config)
    found = gk.evaluate(path, write_data(tmp_path, "jsonl"), batch_size=4)
    assert found.metrics["loss"] == pytest.approx(expected(net, limit)[1], rel=1e-5)
    assert found.metrics["loss"] != pytest.approx(expected(classifier())[1], rel=1e-5)


@in_one_item()
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "txt"])
def test_predictions(tmp_path, form):
    net = classifier()
    model = write_folder(tmp_path, net)
    data = tmp_path / "lines.txt"
    data.write_text("\n".join(TEXTS) + "\n")
    stream = gk.predict(model, data if form == "txt" else write_data(tmp_path, form), batch_size=3)
    found = list(stream)
    assert len(found) == len(TEXTS)
    np.testing.assert_allclose([p.outputs["logits"] for p in found], logits(net, TEXTS), rtol=1e-4, atol=1e-6)
    assert [p.classes[0].name for p in found] == [CLASSES[i] for i in logits(net, TEXTS).argmax(1)]


def test_order_of_the_classes_of_the_data_is_that_of_the_model(tmp_path):
    net = classifier()
    order = [2, 0, 1]
    model = write_folder(tmp_path, net, id2label={str(i): CLASSES[order[i]] for i in range(3)})
    found = gk.evaluate(model, write_data(tmp_path, "csv"))
    best = [CLASSES[order[i]] for i in logits(net, TEXTS).argmax(1)]
    right = np.mean([name == CLASSES[label] for name, label in zip(best, LABELS, strict=True)])
    assert found.metrics["accuracy"] == pytest.approx(right)
    assert any("matched by name" in note for note in found.notes)


def test_placeholders_are_no_class_names(tmp_path):
    model = write_folder(tmp_path, classifier(), id2label={"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"})
    found = gk.evaluate(model, write_data(tmp_path, "csv"))
    assert found.classes == tuple(CLASSES)


@pytest.fixture
def run(capsys):
    """Run a command line in this process: (exit code, stdout, stderr)."""

    def called(*arguments):
        code = cli.invoke([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return called


def test_commands(tmp_path, run):
    net = classifier()
    model = write_folder(tmp_path, net)
    (tmp_path / "tokenizer.json").rename(tmp_path / "elsewhere.json")
    data = tmp_path / "data.jsonl"
    rows = ({"review": t, "verdict": CLASSES[label]} for t, label in zip(TEXTS, LABELS, strict=True))
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = ["--data-option", "text=review", "--data-option", "target=verdict"]
    tokenizer = ["--tokenizer", tmp_path / "elsewhere.json"]
    code, out, err = run("evaluate", model, "--data", data, *columns, *tokenizer, "--json")
    assert code == 0, err
    assert json.loads(out)["metrics"]["accuracy"] == pytest.approx(expected(net)[0])
    output = tmp_path / "classes.csv"
    code, _, err = run("predict", model, write_data(tmp_path, "csv"), *tokenizer, "-o", output)
    assert code == 0, err
    assert "class names of" in err
    best = logits(net, TEXTS).argmax(1)
    assert [line.split(",")[1] for line in output.read_text().splitlines()[1:]] == [CLASSES[i] for i in best]


def test_parts_are_disjoint_and_complete(tmp_path, run):
    net = classifier()
    model = write_folder(tmp_path, net)
    data = write_data(tmp_path, "jsonl")
    parts = [run("evaluate", model, "--data", data, "--part", part, "--json") for part in ("train", "test", "all")]
    counts = [json.loads(out)["samples"] for _, out, _ in parts]
    assert counts[0] + counts[1] == counts[2] == len(TEXTS)
    assert counts[1]


@in_one_item()
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n', r"a\.jsonl, line 2: expected a JSON object with the"),
        ("a.jsonl", '{"text": "a", "label": 1}\n[1]\n', "line 2: expected a JSON object"),
        ("a.jsonl", "nonsense\n", "line 1: not valid JSON"),
        ("a.jsonl", "\n", "contains no row"),
        ("a.jsonl", '{"text": 3, "label": 1}\n', r"a\.jsonl, line 1: 'text' must be a text, not 3"),
        ("a.jsonl", '{"text": "a", "label": 1}\n\n{"text": null, "label": 1}\n', "line 3: .* must be a text, not null"),
        ("a.jsonl", '{"text": 0, "label": 1}\n', "must be a text, not 0"),
        ("a.jsonl", '{"text": false, "label": 1}\n', "must be a text, not false"),
        ("a.jsonl", '{"text": [], "label": 1}\n', r"must be a text, not \[\]"),
        ("a.jsonl", '{"text": {}, "label": 1}\n', "must be a text, not {}"),
        ("a.jsonl", '{"text": "a", "label": null}\n', "the label 'label' of sample 0 is missing"),
        ("a.jsonl", '{"text": "a", "label": "x"}\n{"text": "a", "label": 1.5}\n', "is text in some samples, and 1.5"),
        ("a.jsonl", '{"one": "a", "two": "b", "label": 1}\n', "it is not clear which column contains the texts"),
        ("a.csv", "text,label\n", "contains no row"),
        ("a.csv", "text,label\na,1\nb\n", "line 3: 1 cells, but the first line has 2"),
        ("a.csv", "text,text\na,1\n", "two columns have one name"),
        ("a.csv", 'text,label\n"a,1\n', "line 2: unexpected end of data"),
        ("a.csv", "text\na\n", "need a column of texts and one of labels"),
        ("a.csv", "text,label\na,wonderful\n", "has no class 'wonderful'"),
    ],
)  # fmt: skip
def test_damaged_data_are_refused(tmp_path, name, content, message):
    model = write_folder(tmp_path, classifier())
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        gk.evaluate(model, tmp_path / name)


@in_one_item()
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a", None], "label": [0, 1]}, r"a\.parquet, row 1: 'text' must be a text, not null"),
        ({"text": [1.5], "label": [0]}, "row 0: 'text' must be a text, not 1.5"),
        ({"text": ["a"], "label": pa.array([None], pa.int64())}, "the label 'label' of sample 0 is missing"),
        ({"text": ["a"], "id": [0], "label": [[0]]}, r"column 'label' contains list<.*>, neither numbers nor text"),
        ({"text": [b"a"], "title": ["a"], "label": [0]}, "column 'text' contains binary, neither numbers nor text"),
        ({"text": pa.array([b"\xff"]).view(pa.string()), "label": [0]}, "'text' contains a text that is not UTF-8"),
        ({"text": pa.array([], pa.string()), "label": pa.array([], pa.int8())}, "the file contains no row"),
        ({"text": ["a"]}, "need a column of texts and one of labels"),
    ],
)  # fmt: skip
def test_parquet_without_texts_and_labels_is_refused(tmp_path, columns, message):
    model = write_folder(tmp_path, classifier())
    pa.parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=message):
        gk.evaluate(model, tmp_path / "a.parquet")


def test_parquet_columns_of_one_name_are_refused(tmp_path):
    model = write_folder(tmp_path, classifier())
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["text", "text"])
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match="two columns have one name; the columns are text, text"):
        gk.evaluate(model, tmp_path / "a.parquet")


def test_columns_of_other_arrow_types(tmp_path):
    """Dictionaries, views and decimals are read. A name that differs in case is not taken if one fits exactly."""
    net = classifier()
    model = write_folder(tmp_path, net)
    others = {"Text": ["x"] * len(TEXTS), "LABEL": [0] * len(TEXTS)}
    names = pa.array([CLASSES[label] for label in LABELS]).dictionary_encode()
    for texts, labels in [
        (pa.array(TEXTS).dictionary_encode(), names),
        (pa.array(TEXTS, pa.large_string()), pa.array(LABELS, pa.decimal128(3, 1))),
        (pa.array(TEXTS).cast(pa.string_view()), pa.array(LABELS, pa.uint8())),
    ]:
        pa.parquet.write_table(pa.table({"text": texts, "label": labels, **others}), tmp_path / "a.PARQUET")
        assert gk.evaluate(model, tmp_path / "a.PARQUET").metrics["accuracy"] == pytest.approx(expected(net)[0])


@pytest.mark.full
def test_equal_texts_are_in_memory_once(tmp_path):
    """Otherwise a small file could take any amount of memory."""
    pa.parquet.write_table(pa.table({"text": ["a" * 100_000] * 1000, "n": range(1000)}), tmp_path / "a.parquet")
    texts = read_columns(tmp_path / "a.parquet")["text"]
    assert len({id(text) for text in texts}) == 1


def test_memory_is_that_of_the_column(tmp_path, monkeypatch):
    """A nested column before it, such as an image with its path, is several columns of the file."""
    table = pa.table({"image": [{"path": "a.png", "bytes": b"x" * 200_000}] * 9, "text": ["a"] * 9})
    pa.parquet.write_table(table, tmp_path / "a.parquet", use_dictionary=False)
    required = []
    monkeypatch.setattr(parquet, "require_memory", lambda nbytes, what: required.append(nbytes))
    assert read_columns(tmp_path / "a.parquet")["text"] == ["a"] * 9
    assert 9 * 8 < sum(required) < 1000


def test_damaged_files_beside_the_model_are_refused(tmp_path):
    model, data = write_folder(tmp_path, classifier()), write_data(tmp_path, "csv")
    for content, message in [
        ("{", "not valid JSON"), ("[]", "must contain a JSON object"),
        ('{"id2label": {"a": "b"}}', "keys of id2label must be class numbers"),
        ('{"id2label": {"0": "a", "2": "b"}}', "class numbers from 0 to 1"),
    ]:  # fmt: skip
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(InputError, match=message):
            gk.evaluate(model, data)


@in_one_item()
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"pad_token_id": "x"}, "pad_token_id must be a token number below max_position_embeddings - 1, .* not 'x'"),
        ({"pad_token_id": 600}, "pad_token_id must be a token number"),
        ({"pad_token_id": True}, "pad_token_id must be a token number"),
        ({"model_type": [1]}, r"model_type must be a text, not \[1\]"),
        ({"max_position_embeddings": True}, "max_position_embeddings must be a whole number above 0, not True"),
        ({"max_position_embeddings": 0.5}, "max_position_embeddings must be a whole number above 0, not 0.5"),
        ({"max_position_embeddings": "9"}, "max_position_embeddings must be a whole number above 0, not '9'"),
        ({"max_position_embeddings": float("nan")}, "max_position_embeddings must be a whole number"),
        ({"id2label": {"0": "a", "1": "b", "2": "a"}}, "id2label gives the classes 0 and 2 the same name 'a'"),
    ],
)
def test_settings_of_a_wrong_type_name_the_file(tmp_path, config, message):
    config = {"model_type": "roberta", "max_position_embeddings": 512, **config}
    model = write_folder(tmp_path, classifier(), **config)
    with pytest.raises(InputError, match=rf"config\.json: {message}"):
        gk.evaluate(model, write_data(tmp_path, "csv"))


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "roberta", "max_position_embeddings": 8, "pad_token_id": None},
        {"model_type": None, "max_position_embeddings": 6.0},
    ],
)
def test_settings_without_a_value_have_their_defaults(tmp_path, config):
    net = classifier()
    path = write_folder(tmp_path, net, **config)
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 1e30}')
    found = gk.evaluate(path, write_data(tmp_path, "jsonl"))
    assert found.metrics["loss"] == pytest.approx(expected(net, 6)[1], rel=1e-5)


@in_one_item()
@pytest.mark.parametrize("content", ["{", '{"model": 3}', "[]"])
def test_a_damaged_tokenizer_names_the_file(tmp_path, content):
    model, data = write_folder(tmp_path, classifier()), write_data(tmp_path, "csv")
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(InputError, match=r"[^ ]*tokenizer\.json: "):
        gk.evaluate(model, data)


def test_class_names_are_compared_with_the_output_first(tmp_path):
    names = [*CLASSES, "other", "none"]
    model = write_folder(tmp_path, classifier(), id2label={str(i): name for i, name in enumerate(names)})
    (tmp_path / "two.csv").write_text("text,label\na,positive\nb,negative\n")
    with pytest.raises(InputError, match=r"has 5 class names .* but its output 'logits' has 3 classes.* config\.json"):
        gk.evaluate(model, tmp_path / "two.csv")


def test_repeated_class_names_in_metadata_are_refused():
    net = gk.Model({"y": gk.nn.linear(gk.input("x", ["N", 2]), 3)}, meta={"classes": '["a", "b", "a"]'}, seed=0)
    data = gk.data.Dataset(np.zeros((2, 2), np.float32), np.array([0, 1]), classes=["a", "b"])
    with pytest.raises(InputError, match="contain the class 'a' twice"):
        gk.evaluate(net, data)


def test_wrong_options_are_refused(tmp_path, run):
    model, data = write_folder(tmp_path, classifier()), write_data(tmp_path, "csv")
    code, _, err = run("evaluate", model, "--data", data, "--data-option", "level=char")
    assert code == 2
    assert "no option 'level'" in err
    _, _, err = run("evaluate", model, "--data", data, "--data-option", "text=words")
    assert "no column 'words'" in err
    (tmp_path / "x.npz").write_bytes(b"")
    with pytest.raises(UsageError, match="a tokenizer"):
        gk.predict(model, str(tmp_path / "x.npz"), tokenizer=gk.data.Tokenizer(tokenizer_json()))


def test_tables_of_other_models_stay_tables(tmp_path):
    net = gk.Model({"y": gk.nn.linear(gk.input("x", ["N", 2]), 2)}, seed=0)
    path = tmp_path / "table.csv"
    path.write_text("a,b,label\n1,2,0\n3,4,1\n")
    assert gk.evaluate(net, str(path)).samples == 2
