"""Predictions for many samples, compared with ONNX Runtime, numpy and Pillow."""

from __future__ import annotations

import json
import os
import threading

import numpy as np
import onnxruntime
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper
from PIL import Image

import graphkit as gk
from graphkit.data.preprocessing.image import Preprocess
from graphkit.errors import InputError, UsageError
from graphkit.inference.file_names import files_of
from graphkit.inference.writing import write_predictions

RNG = np.random.default_rng(0)
NAMES = ("ant", "bee", "cow")
MADE = Preprocess(resize=(8, 8), mean=(0.5,), std=(0.25,))


def classifier(batch="N", meta=None, features=4):
    x = gk.input("x", [batch, features])
    net = gk.Model({"logits": gk.nn.linear(x, 3, name="fc")}, seed=1)
    return gk.Model.from_graph(net.graph, net.params.entries(), meta=meta or {})


def expected(net, inputs, batch):
    """Return the result of ONNX Runtime, in batches of a size."""
    session = onnxruntime.InferenceSession(net.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    parts = [inputs[i : i + batch] for i in range(0, len(inputs), batch)]
    return np.concatenate([session.run(None, {"x": part})[0] for part in parts])


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for i, name in enumerate(("a/1.png", "a/deep/2.png", "b/1.png", "b/3.jpg", "c.bmp")):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = RNG.integers(0, 256, (10 + i, 12, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / name)
    (tmp_path / "photos" / "readme.txt").write_text("no image")
    return [f"photos/{name}" for name in ("a/1.png", "a/deep/2.png", "b/1.png", "b/3.jpg", "c.bmp")]


def of_pictures(batch="N", size=8, meta=None):
    x = gk.input("x", [batch, 3, size, size])
    net = gk.Model({"logits": gk.nn.linear(gk.flatten(x), 3, name="fc")}, seed=2)
    described = {"preprocessing": MADE.to_json(), "classes": json.dumps(NAMES)} if meta is None else meta
    return gk.Model.from_graph(net.graph, net.params.entries(), meta=described)


def formula(name):
    with Image.open(name) as image:
        pixels = np.asarray(image.convert("RGB").resize((8, 8), Image.Resampling.BILINEAR), np.float64)
    return ((pixels / 255 - 0.5) / 0.25).transpose(2, 0, 1).astype(np.float32)


# --- batches ------------------------------------------------------------------------------------------------


@in_one_item()
@pytest.mark.parametrize(("batch", "size"), [("N", 1), ("N", 3), ("N", 7), ("N", 50), (1, 4), (3, 2), (3, 3), (10, 4)])
@pytest.mark.parametrize("engine", ["graphkit", "onnxruntime"])
def test_every_batch_size_gives_every_sample(batch, size, engine):
    x = RNG.standard_normal((7, 4)).astype(np.float32)
    stream = gk.predict(classifier(batch), x, batch_size=size, engine=engine)
    assert len(stream) == 7
    found = list(stream)
    assert [p.number for p in found] == list(range(7))
    assert all(p.name is None and p.classes == () for p in found)
    wanted = expected(classifier("N"), x, 7)
    np.testing.assert_allclose([p.outputs["logits"] for p in found], wanted, rtol=1e-5, atol=1e-6)


def test_padding_does_not_reach_the_result():
    """The sum over the batch shows which samples a run got: the last batch repeats its last sample."""
    x = gk.input("x", [4, 2])
    net = gk.Model({"y": x + gk.reduce_sum(x, axes=[0], keepdims=True)})
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    found = [p.outputs["y"] for p in gk.predict(net, rows)]
    padded = np.concatenate([rows[4:], rows[5:], rows[5:]])
    np.testing.assert_array_equal(found, [*(rows[:4] + rows[:4].sum(0)), *(rows[4:] + padded.sum(0))])


@in_one_item()
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gk.Model({"y": gk.reduce_sum(gk.input("x", ["N", 2]), keepdims=False)}), "output 'y'"),
        (lambda: gk.Model({"y": gk.transpose(gk.input("x", ["N", 5]), perm=[1, 0])}), "output 'y'"),
        (lambda: gk.Model({"y": gk.relu(gk.input("x", ["T", "N", 2]))}), "input 'x'"),
        (lambda: gk.Model({"y": gk.relu(gk.input("x", [10, "batch", 2]))}), "input 'x'"),
        (lambda: gk.Model({"y": gk.input("x", ["N", 2]) * gk.input("s", [])}), "input 's'"),
        (lambda: gk.Model({"y": gk.reshape(gk.input("x", ["N", 2]), [-1])}), "output 'y' has the shape \\[8\\]"),
    ],
)
def test_a_model_without_batch_axis_is_refused(make, message):
    with pytest.raises(UsageError, match=f"(?s){message}.*graphkit run"):
        list(gk.predict(make(), {"x": np.zeros((4, 2), np.float32), "s": np.zeros(4, np.float32)}))


def test_several_inputs_and_outputs():
    a, b = gk.input("a", ["N", 2]), gk.input("b", ["N"], dtype="int64")
    net = gk.Model({"p": a * 2.0, "q": b + np.int64(1), "r": gk.cast(a, to="bfloat16")})
    arrays = {"a": RNG.random((5, 2)).astype(np.float32), "b": np.arange(5), "extra": np.zeros(9)}
    found = list(gk.predict(net, arrays, batch_size=2))
    np.testing.assert_array_equal([p.outputs["p"] for p in found], arrays["a"] * 2)
    np.testing.assert_array_equal([p.outputs["q"] for p in found], np.arange(5) + 1)
    assert list(next(iter(gk.predict(net, arrays, outputs=["q"]))).outputs) == ["q"]
    with pytest.raises(InputError, match="no array for input 'b'"):
        gk.predict(net, {"a": arrays["a"]})
    with pytest.raises(InputError, match="first axis must count the samples"):
        gk.predict(net, arrays | {"b": np.arange(4)})
    with pytest.raises(InputError, match="several inputs"):
        gk.predict(net, arrays["a"])
    with pytest.raises(InputError, match="no samples"):
        gk.predict(classifier(), np.zeros((0, 4), np.float32))


def test_types_of_arrays():
    x = RNG.standard_normal((3, 4))
    wanted = expected(classifier(), x.astype(np.float32), 3)
    np.testing.assert_allclose([p.outputs["logits"] for p in gk.predict(classifier(), x)], wanted, rtol=1e-5, atol=1e-6)
    net = gk.Model({"y": gk.identity(gk.input("x", ["N"], dtype="int32"))})
    assert [int(p.outputs["y"]) for p in gk.predict(net, np.array([3, 4]))] == [3, 4]
    with pytest.raises(InputError, match="contains 1099511627776"):
        list(gk.predict(net, np.array([1 << 40])))
    with pytest.raises(InputError, match="uint8"):
        list(gk.predict(classifier(), np.zeros((2, 4), np.uint8)))


@in_one_item()
@pytest.mark.parametrize("options", [{"batch_size": 0}, {"top": 0}, {"engine": "onnx"}, {"outputs": ["z"]}])
def test_wrong_options(options):
    with pytest.raises(UsageError):
        gk.predict(classifier(), np.zeros((1, 4), np.float32), **options)


# --- classes ------------------------------------------------------------------------------------------------


@in_one_item()
@pytest.mark.parametrize(
    ("end", "size", "count"),
    [
        (lambda y: y, 3, 3),
        (lambda y: gk.softmax(y), 3, 3),
        (lambda y: gk.log_softmax(y), 3, 3),
        (lambda y: gk.reshape(gk.softmax(y), [0, 3, 1, 1]), 3, 3),
        (lambda y: gk.cast(gk.softmax(y), to="float16"), 3, 3),
        (lambda y: y, 1, 2),
        (lambda y: gk.sigmoid(y), 1, 2),
        (lambda y: gk.reshape(gk.sigmoid(y), [-1]), 1, 2),
    ],
    ids=["logits", "softmax", "log", "image", "half", "logit", "sigmoid", "no axis"],
)
def test_probabilities_of_classes(end, size, count):
    net = gk.Model({"y": end(gk.identity(gk.input("x", ["N", size])))}, meta={"classes": json.dumps(NAMES[:count])})
    x = RNG.standard_normal((5, size)).astype(np.float32) * 2
    x[1] = np.nan
    wide = x.astype(np.float64) if size > 1 else np.concatenate([np.zeros((5, 1)), x], 1)
    wanted = np.exp(wide) / np.exp(wide).sum(1, keepdims=True)
    for row, p in zip(wanted, gk.predict(net, x, batch_size=2, top=3), strict=True):
        if np.isnan(row).any():
            continue
        assert [c.name for c in p.classes] == [NAMES[i] for i in np.argsort(-row)]
        assert [c.probability for c in p.classes] == pytest.approx(np.sort(row)[::-1].tolist(), rel=2e-3)
    assert [len(p.classes) for p in gk.predict(net, x)] == [1] * 5


def test_one_batch_decides_what_values_are():
    """Logits that happen to sum to 1 in a later batch stay logits."""
    net = gk.Model({"y": gk.identity(gk.input("x", ["N", 2]))})
    x = np.array([[3, 1], [0.5, 0.5], [0.25, 0.75]], np.float32)
    found = [p.classes[0].probability for p in gk.predict(net, x, batch_size=1, top=1)]
    np.testing.assert_allclose(found, (np.exp(x) / np.exp(x).sum(1, keepdims=True)).max(1))


def test_maps_of_a_classifier_are_classes():
    """The form of scikit-learn's classifiers in ONNX: labels, and a map from classes to probabilities per sample."""
    nodes = [
        helper.make_node(
            "LinearClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", classlabels_strings=["no", "yes"],
            coefficients=[1.0, 0.0, 0.0, 1.0], intercepts=[0.0, 0.0], multi_class=1, post_transform="SOFTMAX",
        ),
        helper.make_node("ZipMap", ["scores"], ["chances"], domain="ai.onnx.ml", classlabels_strings=["no", "yes"]),
    ]  # fmt: skip
    kind = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 2])],
        [helper.make_tensor_value_info("label", TensorProto.STRING, [None]),
         helper.make_value_info("chances", helper.make_sequence_type_proto(kind))],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    x = RNG.standard_normal((5, 2)).astype(np.float32)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    labels, maps = session.run(None, {"x": x})
    for p, label, chances in zip(gk.predict(gk.load(proto), x, batch_size=2), labels, maps, strict=True):
        assert p.outputs["label"] == label == p.classes[0].name
        assert p.classes[0].probability == pytest.approx(chances[label], rel=1e-5)


def test_what_scores_no_classes_with_top():
    x = np.zeros((2, 4), np.float32)
    given = gk.input("x", ["N", 4])
    with pytest.raises(UsageError, match="--output-name"):
        list(gk.predict(gk.Model({"y": given + 1.0, "z": given * 2.0}), x, top=1))
    with pytest.raises(UsageError, match="int64"):
        list(gk.predict(gk.Model({"y": gk.arg_max(gk.input("x", ["N", 4]), axis=1)}), x, top=1))


# --- images -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", ["N", 1, 3])
def test_images_are_preprocessed_by_the_metadata(pictures, batch, threads):
    stream = gk.predict(of_pictures(batch), "photos", batch_size=2, threads=threads)
    assert "resized to 8 x 8" in stream.preprocessing
    assert "by the model's metadata" in stream.preprocessing
    found = list(stream)
    assert [p.name for p in found] == pictures
    pixels = np.stack([formula(name) for name in pictures])
    wanted = expected(of_pictures(), pixels, 5)
    np.testing.assert_allclose([p.outputs["logits"] for p in found], wanted, rtol=1e-4, atol=1e-5)
    assert [p.classes[0].number for p in found] == wanted.argmax(1).tolist()


def test_images_of_different_sizes_for_a_free_size(pictures):
    x = gk.input("x", ["N", 3, "H", "W"])
    net = gk.Model({"mean": gk.reduce_mean(x, axes=[1, 2, 3], keepdims=False)})
    found = [float(p.outputs["mean"]) for p in gk.predict(net, [*pictures, pictures[0]], batch_size=4)]
    wanted = [np.asarray(Image.open(name).convert("RGB")).mean() / 255 for name in [*pictures, pictures[0]]]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_names_of_images(pictures, tmp_path):
    def found(*names):
        return [str(path) for path in files_of(names)]

    assert found("photos") == pictures
    assert found("photos/*") == pictures
    assert found("photos/**/*.png") == ["photos/a/1.png", "photos/a/deep/2.png", "photos/b/1.png"]
    assert found("photos/**") == pictures
    (tmp_path / "photos/list").write_text("b/1.png\r\n\nc.bmp\na/*.png\n")
    assert found("@photos/list", "photos/c.bmp") == ["photos/b/1.png", "photos/c.bmp", "photos/a/1.png", "photos/c.bmp"]
    (tmp_path / "photos/[1].png").write_bytes((tmp_path / "photos/c.bmp").read_bytes())
    assert found("photos/[1].png") == ["photos/[1].png"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "nothing").write_text("\n")
    for name, message in (
        ("gone.png", "gone.png: no such file"),
        ("empty", "contains an image"),
        ("photos/*.gif", "no image and no folder matches"),
        ("@gone", "there is no file gone"),
        ("@nothing", "contains no name"),
    ):
        with pytest.raises(InputError, match=message):
            found(name)


def test_a_loop_of_links_ends(pictures, tmp_path):
    os.symlink(tmp_path / "photos", tmp_path / "photos" / "a" / "again")
    with pytest.raises(InputError, match="leads back"):
        files_of(["photos"])


@pytest.mark.parametrize("threads", [1, 2])
def test_a_damaged_image_ends_with_its_name_or_is_skipped(pictures, tmp_path, threads):
    (tmp_path / "photos/b/1.png").write_bytes(b"no image")
    stream = gk.predict(of_pictures(), "photos", batch_size=2, threads=threads)
    with pytest.raises(InputError, match=r"photos/b/1\.png cannot be read as an image"):
        list(stream)
    stream = gk.predict(of_pictures(), "photos", batch_size=2, threads=threads, skip_errors=True)
    found = list(stream)
    assert [p.name for p in found] == pictures
    assert [p.number for p in found if p.error] == [2]
    assert stream.failed == 1
    assert found[2].outputs == {}
    wanted = expected(of_pictures(), np.stack([formula(name) for name in pictures if "b/1" not in name]), 4)
    got = [p.outputs["logits"] for p in found if p.error is None]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_images_need_a_model_that_takes_only_images(pictures):
    x, scale = gk.input("x", ["N", 3, 8, 8]), gk.input("s", ["N"])
    with pytest.raises(InputError, match="the model also needs s"):
        gk.predict(gk.Model({"y": gk.relu(x), "z": gk.relu(scale)}), "photos")
    with pytest.raises(InputError, match="no input takes images"):
        gk.predict(classifier(), "photos")
    np.save("x.npy", np.zeros(3))
    with pytest.raises(UsageError, match="must be the only input"):
        gk.predict(of_pictures(), ["photos", "x.npy"])


def test_records(pictures, tmp_path):
    from graphkit.data.records.header import IRHeader, pack
    from graphkit.data.records.writing import RecordWriter

    with RecordWriter(tmp_path / "p.rec") as writer:
        for i, name in enumerate(pictures):
            writer.write(pack(IRHeader(0, 0.0, i, 0), (tmp_path / name).read_bytes()))
    found = list(gk.predict(of_pictures(), "p.rec", batch_size=2))
    wanted = expected(of_pictures(), np.stack([formula(name) for name in pictures]), 5)
    np.testing.assert_allclose([p.outputs["logits"] for p in found], wanted, rtol=1e-4, atol=1e-5)
    assert found[1].name == "p.rec:1"


# --- tables, arrays and texts -------------------------------------------------------------------------------


def test_a_table_is_encoded_as_in_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = ["age,city,y", *(f"{20 + i},{('Bern', 'Chur')[i % 2]},{i % 2}" for i in range(8))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    data = gk.data.read("t.csv", scale="standard")
    x = gk.input("x", ["N", *data.shape])
    net = gk.data.described(gk.Model({"y": gk.nn.linear(x, 2, name="fc")}, seed=3), data)
    (tmp_path / "new.csv").write_text("city,id,age\nChur,7,30\nOslo,8,10\n")
    stream = gk.predict(net, "new.csv", batch_size=1)
    assert "as in training" in stream.preprocessing
    age = (np.array([30, 10]) - 23.5) / np.std(np.arange(20, 28))
    rows = np.stack([age, [0, 0], [1, 0]], axis=1).astype(np.float32)
    np.testing.assert_allclose([p.outputs["y"] for p in stream], expected(net, rows, 2), rtol=1e-5, atol=1e-6)


def test_a_table_without_encoding(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = RNG.standard_normal((4, 4)).astype(np.float32)
    np.savetxt("t.csv", rows, delimiter=",", header="a,b,c,d", comments="", fmt="%.9g")
    stream = gk.predict(classifier(), "t.csv")
    assert "the columns a, b, c, d are input 'x'" in stream.preprocessing
    np.testing.assert_allclose(
        [p.outputs["logits"] for p in stream], expected(classifier(), rows, 4), rtol=1e-5, atol=1e-6
    )
    a, d = gk.input("a", ["N", 1]), gk.input("d", ["N"])
    named = gk.Model({"y": gk.reshape(a, [-1]) + d})
    np.testing.assert_allclose([p.outputs["y"] for p in gk.predict(named, "t.csv")], rows[:, 0] + rows[:, 3], rtol=1e-6)
    with pytest.raises(InputError, match="the file has 4 columns"):
        gk.predict(classifier(features=3), "t.csv")
    (tmp_path / "gap.csv").write_text("a,b,c,d\n1,2,3,4\n1,,3,4\n")
    with pytest.raises(InputError, match="column 'b' has no value in line 3"):
        gk.predict(classifier(), "gap.csv")
    (tmp_path / "text.csv").write_text("a,b,c,d\n1,x,3,4\n")
    with pytest.raises(InputError, match="column 'b' contains text"):
        gk.predict(classifier(), "text.csv")
    (tmp_path / "none.csv").write_text("a,b,c,d\n")
    with pytest.raises(InputError, match="no sample"):
        gk.predict(classifier(), "none.csv")


def test_arrays_in_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = RNG.standard_normal((5, 4))
    wanted = expected(classifier(), x.astype(np.float32), 5)
    np.save("x.npy", x)
    np.savez("named.npz", x=x, y=np.arange(5))
    np.savez("other.npz", whatever=x)
    np.savez("wrong.npz", a=x, b=x)
    for name in ("x.npy", "named.npz", "other.npz"):
        found = [p.outputs["logits"] for p in gk.predict(classifier(), name, batch_size=2)]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="no array for input 'x'; it has a, b"):
        gk.predict(classifier(), "wrong.npz")
    (tmp_path / "damaged.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:60])
    np.save("objects.npy", np.array([{}], object), allow_pickle=True)
    for name in ("damaged.npy", "objects.npy"):
        with pytest.raises(InputError, match=f"{name}: the .npy file cannot be read"):
            gk.predict(classifier(), name)
    np.save("scalar.npy", np.float32(1))
    with pytest.raises(InputError, match="first axis must count the samples"):
        gk.predict(classifier(), "scalar.npy")


@pytest.mark.parametrize("size", ["T", 4])
def test_texts_by_the_vocabulary(tmp_path, monkeypatch, size):
    monkeypatch.chdir(tmp_path)
    vocabulary = gk.data.Vocabulary.build(["a good film", "a bad film"])
    tokens, lengths = gk.input("x", ["N", size], dtype="int64"), gk.input("lengths", ["N"], dtype="int64")
    net = gk.Model(
        {"sum": gk.reduce_sum(tokens, axes=[1], keepdims=False), "count": gk.identity(lengths)},
        meta={"vocabulary": vocabulary.to_json()},
    )
    texts = ["A good film!", "", "bad", "a a a a a a a a a"]
    (tmp_path / "t.txt").write_text("\n".join(texts) + "\n")
    stream = gk.predict(net, "t.txt", batch_size=3)
    assert "vocabulary" in stream.preprocessing
    rows = [vocabulary.encode(text)[: None if size == "T" else size] for text in texts]
    found = list(stream)
    assert [int(p.outputs["count"]) for p in found] == [len(row) for row in rows]
    assert [int(p.outputs["sum"]) for p in found] == [row.sum() for row in rows]
    with pytest.raises(InputError, match=r"write @t\.txt"):
        gk.predict(of_pictures(), "t.txt")


def test_texts_as_strings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = gk.Model({"y": gk.string_normalizer(gk.input("x", ["N"], dtype="string"), case_change_action="UPPER")})
    (tmp_path / "t.txt").write_text("one two\nthree")
    assert [str(p.outputs["y"]) for p in gk.predict(net, "t.txt")] == ["ONE TWO", "THREE"]
    (tmp_path / "none.txt").write_text("\n\n")
    with pytest.raises(InputError, match="contains no text"):
        gk.predict(net, "none.txt")


def test_stopping_early_leaves_no_thread(pictures):
    stream = gk.predict(of_pictures(), [*pictures] * 20, batch_size=2, threads=2)
    next(stream)
    assert any(thread.name.startswith("graphkit-read") for thread in threading.enumerate())
    stream.close()
    assert not any(thread.name.startswith("graphkit-read") for thread in threading.enumerate())


# --- files --------------------------------------------------------------------------------------------------


def test_npz_holds_the_outputs(tmp_path):
    x = RNG.standard_normal((7, 4)).astype(np.float32)
    written = write_predictions(gk.predict(classifier(), x, batch_size=2), tmp_path / "o.npz")
    assert (written.samples, written.failed) == (7, 0)
    with np.load(tmp_path / "o.npz") as found:
        np.testing.assert_allclose(found["logits"], expected(classifier(), x, 7), rtol=1e-5, atol=1e-6)


def test_outputs_of_different_shapes_only_fit_jsonl(tmp_path, pictures):
    net = gk.Model({"y": gk.reduce_mean(gk.input("x", ["N", 3, "H", "W"]), axes=[1, 3], keepdims=False)})
    for suffix in ("csv", "npz"):
        with pytest.raises(InputError, match=r"photos/a/deep/2\.png: output 'y' has the shape \[11\]"):
            write_predictions(gk.predict(net, "photos"), tmp_path / f"o.{suffix}")
        assert not (tmp_path / f"o.{suffix}").exists()
    write_predictions(gk.predict(net, "photos"), tmp_path / "o.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert [len(row["outputs"]["y"]) for row in rows] == [10, 11, 12, 13, 14]
    wanted = np.asarray(Image.open(pictures[4])).mean(axis=(1, 2)) / 255
    np.testing.assert_allclose(rows[4]["outputs"]["y"], wanted, rtol=1e-5)


def test_values_that_json_lacks_are_strings(tmp_path):
    x = gk.input("x", ["N", 2])
    net = gk.Model({"y": gk.log(x), "h": gk.cast(x, to="bfloat16")})
    write_predictions(gk.predict(net, np.array([[0, -1], [1, 1]], np.float32)), tmp_path / "o.jsonl")
    first, second = map(json.loads, (tmp_path / "o.jsonl").read_text().splitlines())
    assert first["outputs"] == {"y": ["-inf", "nan"], "h": [0.0, -1.0]}
    assert second["outputs"] == {"y": [0.0, 0.0], "h": [1.0, 1.0]}


def test_large_outputs_are_not_for_csv(tmp_path):
    net = gk.Model({"y": gk.identity(gk.input("x", ["N", 40, 40]))})
    with pytest.raises(UsageError, match="at most 1,024 columns"):
        write_predictions(gk.predict(net, np.zeros((2, 40, 40), np.float32)), tmp_path / "o.csv")
    assert list(tmp_path.iterdir()) == []
