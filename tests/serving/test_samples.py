"""POST /predict: images and texts by the preprocessing of the file, and forms that are wrong."""

from __future__ import annotations

import io
import json
import struct
import threading
import time
import zlib

import numpy as np
import onnxruntime
import pytest
from handmade import write_scaled
from PIL import Image

import graphkit as gk
from graphkit.data.preprocessing.image import Preprocess
from graphkit.serving.samples import SampleInputs

NAMES = ("ant", "bee", "cow")


@pytest.fixture
def insects(tmp_path):
    """The file of a classifier of images of 8 x 8 pixels, with preprocessing and class names."""
    x = gk.input("x", ["N", 3, 8, 8])
    model = gk.Model({"logits": gk.nn.linear(gk.flatten(x), 3, name="fc")}, seed=2, name="insects")
    made = Preprocess(resize=(8, 8), mean=(0.5,), std=(0.25,))
    meta = {"preprocessing": made.to_json(), "classes": json.dumps(NAMES)}
    gk.Model.from_graph(model.graph, model.params.entries(), meta=meta).save(tmp_path / "insects.onnx")
    return tmp_path / "insects.onnx"


def png(seed, size=(12, 10)):
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def probabilities(path, images):
    """Return the result of Pillow, ONNX Runtime and a softmax, [images, classes]."""
    rows = []
    for data in images:
        image = Image.open(io.BytesIO(data)).resize((8, 8), Image.Resampling.BILINEAR)
        rows.append((np.asarray(image, np.float32) / 255 - 0.5) / 0.25)
    feeds = {"x": np.stack(rows).transpose(0, 3, 1, 2).astype(np.float32)}
    logits = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


def test_images_equal_onnx_runtime(served, insects):
    client = served([insects])
    images = [png(seed, (12 + seed, 10)) for seed in range(3)]
    answer = client.post("/predict", files=[("file", (f"{i}.png", data)) for i, data in enumerate(images)])
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["model_name"], found["model_version"]) == ("insects", "1")
    wanted = probabilities(insects, images)
    for place, (prediction, row) in enumerate(zip(found["predictions"], wanted, strict=True)):
        assert prediction["file"] == f"{place}.png"
        assert [item["name"] for item in prediction["classes"]] == [NAMES[i] for i in np.argsort(-row)]
        np.testing.assert_allclose([c["probability"] for c in prediction["classes"]], np.sort(row)[::-1], rtol=1e-4)
    one = client.post("/predict", files={"file": ("a.png", images[0])}, data={"top": "1"}).json()
    assert len(one["predictions"][0]["classes"]) == 1


def form(client, *fields, **headers):
    """Send a form of fields (name, text)."""
    parts = "".join(f'--b\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{text}\r\n' for n, text in fields)
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    return client.post("/predict", content=f"{parts}--b--\r\n".encode(), headers=kind | headers)


def test_texts_by_the_vocabulary(served, tmp_path):
    x = gk.input("x", ["N", "T"], dtype="int64")
    vocabulary = gk.data.Vocabulary.build(["a good film", "a bad film"])
    table = gk.constant(np.arange(32, dtype=np.float32).reshape(16, 2))
    total = gk.reduce_sum(gk.gather(table, x), [1], keepdims=0)
    gk.Model({"y": total}, meta={"vocabulary": vocabulary.to_json()}).save(tmp_path / "texts.onnx")
    client = served([tmp_path / "texts.onnx"])
    answer = form(client, ("text", "a bad film"), ("text", "good"))
    assert answer.status_code == 200, answer.text
    for text, found in zip(("a bad film", "good"), answer.json()["predictions"], strict=True):
        tokens = np.full(8, vocabulary.padding)
        row = vocabulary.encode(text)
        tokens[: len(row)] = row
        assert found["outputs"]["y"]["data"] == np.arange(32.0).reshape(16, 2)[tokens].sum(0).tolist()


def test_texts_as_strings(served, tmp_path):
    x = gk.input("x", ["N"], dtype=str)
    gk.Model({"y": gk.identity(x)}).save(tmp_path / "echo.onnx")
    client = served([tmp_path / "echo.onnx"])
    answer = form(client, ("text", "süß"), ("text", "two words"))
    assert [p["outputs"]["y"]["data"] for p in answer.json()["predictions"]] == [["süß"], ["two words"]]


def test_several_models_need_a_name(served, insects, tmp_path):
    client = served([insects, write_scaled(tmp_path / "scaled.onnx")])
    files = {"file": ("a.png", png(0))}
    assert "insects, scaled" in client.post("/predict", files=files).json()["error"]
    assert client.post("/predict", files=files, data={"model": "insects"}).status_code == 200
    assert client.post("/predict", files=files, data={"model": "none"}).status_code == 404
    assert client.post("/predict", files=files, data={"model": "insects", "version": "2"}).status_code == 404
    assert client.post("/predict", files=files, data={"model": "scaled"}).status_code == 400
    assert client.get("/predict").json()["models"] == [
        {"name": "insects", "versions": ["1"], "takes": ["image"]}, {"name": "scaled", "versions": ["1"], "takes": []},
    ]  # fmt: skip


def test_all_samples_are_answered_by_one_version(served, insects, monkeypatch):
    client = served([insects])
    repository = client.app.repository
    before, taken = SampleInputs.of_image, []

    def replacing(samples, data, name):
        taken.append(samples)
        if len(taken) == 1:  # between the samples of the request
            repository.load("insects")
            client.app.repository.get("insects").version = "2"
        return before(samples, data, name)

    monkeypatch.setattr(SampleInputs, "of_image", replacing)
    found = client.post("/predict", files=[("file", ("a.png", png(0))), ("file", ("b.png", png(1)))])
    assert found.status_code == 200, found.text
    assert found.json()["model_version"] == "2"
    assert [samples is taken[-1] for samples in taken] == [False] * (len(taken) - 2) + [True] * 2

    def unloading(samples, outputs, top):
        if repository.is_ready:
            repository.unload("insects")
        return {}

    monkeypatch.setattr(SampleInputs, "answer", unloading)
    found = client.post("/predict", files={"file": ("a.png", png(0))})
    assert (found.status_code, found.json().get("model_version")) == (200, "2")


def test_malformed_forms_are_named(served, insects):
    client = served([insects])
    head = b"IHDR" + struct.pack(">II", 20_000, 20_000) + png(0)[24:29]
    bomb = png(0)[:12] + head + struct.pack(">I", zlib.crc32(head)) + png(0)[33:]
    for data, message in ((b"", "a.png"), (png(0)[:60], "a.png"), (bomb, "400000000 pixels")):
        answer = client.post("/predict", files={"file": ("a.png", data)})
        assert answer.status_code == 400
        assert message in answer.json()["error"]
    assert "no sample" in form(client, ("model", "insects")).json()["error"]
    assert "file: expected a file" in form(client, ("file", "text")).json()["error"]
    assert "the form has no field 'other'" in form(client, ("other", "x")).json()["error"]
    assert "takes no texts" in form(client, ("text", "x")).json()["error"]
    assert "top: expected a number" in form(client, ("text", "x"), ("top", "0")).json()["error"]
    for field in (("o" * 4000, "x"), ("top", "9" * 300_000)):
        assert len(form(client, ("text", "x"), field).content) < 400
    assert "at most 64" in form(client, *[("text", "x")] * 70).json()["error"]
    assert "multipart/form-data" in client.post("/predict", json={}).json()["error"]
    for kind in ("multipart/form-data", "multipart/form-data; boundary=b"):
        answer = client.post("/predict", content=b"--x\r\nno", headers={"Content-Type": kind})
        assert answer.status_code == 400


def test_images_are_decoded_within_a_budget(served, insects, monkeypatch):
    """Small images together, an image above the budget alone."""
    monkeypatch.setattr("graphkit.serving.sample_routes._MOST_PIXELS", 250)
    of_image = SampleInputs.of_image
    lock, now, seen = threading.Lock(), [], []

    def recorded(self, data, name):
        with lock:
            now.append(int(name))
            seen.append(sum(now))
        time.sleep(0.02)
        with lock:
            now.remove(int(name))
        return of_image(self, data, name)

    client = served([insects])
    monkeypatch.setattr(SampleInputs, "of_image", recorded)
    sizes = [100, 100, 400, 100, 100]  # pixels, and names
    images = [("file", (str(size), png(size, (10, size // 10)))) for size in sizes]
    assert client.post("/predict", files=images).status_code == 200
    assert max(total for total in seen if total != 400) <= 250
    assert seen.count(400) == 1


def test_inputs_of_images_are_bounded(served, insects):
    client = served([insects], max_pending=1000)
    answer = client.post("/predict", files=[("file", ("a", png(0, (3, 3))))] * 3)
    assert answer.status_code == 503
    assert "--max-pending" in answer.json()["error"]
    assert "graphkit_http_pending_bytes 0.0" in client.get("/metrics").text


def test_a_failing_sample_cancels_the_others(served, insects, monkeypatch):
    of_image = SampleInputs.of_image
    decoded = []

    def recorded(self, data, name):
        decoded.append(name)
        return of_image(self, data, name)

    monkeypatch.setattr("graphkit.serving.sample_routes._MOST_PIXELS", 1)  # one image at a time
    client = served([insects])
    monkeypatch.setattr(SampleInputs, "of_image", recorded)
    images = [("file", ("bad", png(0)[:60]))] + [("file", (str(seed), png(seed))) for seed in range(8)]
    with client:  # its event loop runs on after the answer
        assert client.post("/predict", files=images).status_code == 400
        time.sleep(0.2)
    assert len(decoded) < 9


def test_the_page_loads_nothing_from_elsewhere(client):
    page = client.get("/")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "http://" not in page.text.replace("http://www.w3.org", "")
    assert "https://" not in page.text


def test_max_memory_limits_decoding(served, insects):
    client = served([insects], max_memory="1MB")
    answer = client.post("/predict", files=[("file", ("small.png", png(0)))])
    assert answer.status_code == 200, answer.text
    answer = client.post("/predict", files=[("file", ("large.png", png(0, (400, 400))))])
    assert answer.status_code == 413
    assert "large.png: decoding an image of 160000 pixels takes about 1280000 bytes" in answer.json()["error"]
    assert "--max-memory" in answer.json()["error"]
