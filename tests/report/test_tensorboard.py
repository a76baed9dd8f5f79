"""Event files of a training, read back by a reader of our own, and by TensorBoard's where it is installed."""

from __future__ import annotations

import io
import json
import math
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit import cli
from graphkit.errors import InputError, MissingDependency, RuntimeFailure, UsageError
from graphkit.report import events
from graphkit.report.events import EventFile
from graphkit.report.png import pixels
from tests.report.event_reader import Events, crc32c, frames

RNG = np.random.default_rng(0)


def test_the_checksum_of_the_reader():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C/iSCSI
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, appendix B.4


def small(name: str = "small") -> gk.Model:
    x = gk.input("x", ["N", 1, 4, 4])
    h = gk.relu(gk.nn.linear(gk.flatten(x), 8, name="block/fc1"))
    return gk.Model({"logits": gk.nn.linear(h, 3, name="block/fc2")}, name=name)


def made(count: int = 60) -> gk.data.Dataset:
    x = RNG.random((count, 1, 4, 4)).astype(np.float32)
    return gk.data.Dataset(x, (x.mean((1, 2, 3)) * 3).astype(np.int64) % 3, classes=["a", "<b>", "c|d"])


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A run of two epochs of six updates, its trainer, and the log of its steps."""
    folder = tmp_path_factory.mktemp("events")
    data = made()
    trainer = gk.Trainer(small(), optimizer=gk.optim.SGD(0.1))
    board = gk.TensorBoard(every=2, samples=data, count=3)
    trainer.fit(
        data, data, epochs=2, batch_size=10, metrics=["accuracy"], folder=folder, callbacks=[board], log_every=2
    )
    return folder, trainer, data


@pytest.fixture(scope="module")
def read(fitted):
    return Events(fitted[0] / "tensorboard")


def test_scalars_are_those_of_the_log(fitted, read):
    log = [json.loads(line) for line in (fitted[0] / "log.jsonl").read_text().splitlines()]
    steps = [line for line in log if line["event"] == "step"]
    epochs = [line for line in log if line["event"] == "epoch"]
    assert [s for s, _ in read.scalars["step/loss"]] == [2, 4, 6, 8, 10, 12]
    tags = {"step/loss": (steps, "loss"), "step/learning_rate": (steps, "learning_rate")}
    tags |= {f"train/{n}": (epochs, n) for n in ("loss", "accuracy")}
    tags |= {f"valid/{n}": (epochs, f"valid_{n}") for n in ("loss", "accuracy")}
    tags |= {f"speed/{n}": (epochs, n) for n in ("samples_per_second", "peak_memory", "processes")}
    tags |= {"learning_rate": (epochs, "learning_rate")}
    assert set(read.scalars) == set(tags)
    for tag, (lines, name) in tags.items():
        assert read.scalars[tag] == [(line["updates"], np.float32(line[name])) for line in lines], tag


def test_histograms_are_those_of_the_parameters(fitted, read):
    _, trainer, _ = fitted
    assert set(read.histograms) == {f"weights/{name}" for name in trainer.net.params}
    for name, values in trainer.net.params.items():
        assert [step for step, _ in read.histograms[f"weights/{name}"]] == [6, 12]
        _, found = read.histograms[f"weights/{name}"][-1]
        wide = np.asarray(values, np.float64)
        assert (found["min"], found["max"], found["num"]) == (wide.min(), wide.max(), wide.size)
        np.testing.assert_allclose([found["sum"], found["sum_squares"]], [wide.sum(), (wide**2).sum()], rtol=1e-12)
        edges = [found["min"], *found["limits"]]
        np.testing.assert_array_equal(found["counts"], np.histogram(wide, edges)[0])


def test_histograms_of_gradients(tmp_path):
    data = made()
    board = gk.TensorBoard(tmp_path, samples=data, count=20, gradients=True, histograms=2)
    trainer = gk.Trainer(small(), optimizer=gk.optim.SGD(0.1))
    trainer.fit(data, epochs=4, batch_size=10, callbacks=[board])
    found = {n: h for n, h in Events(tmp_path).histograms.items() if n.startswith("gradients/")}
    assert set(found) == {f"gradients/{name}" for name in trainer.trained}
    assert all([step for step, _ in h] == [12, 24] for h in found.values())
    # Of softmax and cross-entropy by hand.
    x, y = (np.asarray(a) for a in data.take(np.arange(20)))
    params = {n.removeprefix("block/"): np.asarray(p, np.float64) for n, p in trainer.net.params.items()}
    h = np.maximum(x.reshape(20, 16) @ params["fc1_weight"].T + params["fc1_bias"], 0)
    scores = np.exp(h @ params["fc2_weight"].T + params["fc2_bias"])
    delta = (scores / scores.sum(1, keepdims=True) - np.eye(3)[y]) / 20
    for name, expected in {"fc2_bias": delta.sum(0), "fc2_weight": delta.T @ h}.items():
        told = found[f"gradients/block/{name}"][-1][1]
        assert told["num"] == expected.size
        np.testing.assert_allclose([told["min"], told["max"]], [expected.min(), expected.max()], rtol=1e-4)
        np.testing.assert_allclose(told["sum_squares"], (expected**2).sum(), rtol=1e-4)


def test_gradients_need_samples_with_targets(tmp_path):
    with pytest.raises(UsageError, match="gradients=True needs samples with targets"):
        gk.TensorBoard(tmp_path, gradients=True)
    data = made()
    board = gk.TensorBoard(tmp_path, samples=gk.data.Dataset(data.take(np.arange(5))[0]), gradients=True)
    gk.Trainer(small()).fit(data, epochs=1, batch_size=10, callbacks=[board])
    ((_, text),) = Events(tmp_path).texts["gradients/text_summary"]
    assert text.startswith("No gradients: ")


def test_pictures_are_the_first_samples(fitted, read):
    from PIL import Image

    for number in range(3):
        ((step, png),) = read.pictures[f"samples/{number}"]
        expected = pixels(fitted[2].take(np.array([number]))[0][0])
        with Image.open(io.BytesIO(png)) as picture:
            np.testing.assert_array_equal(np.asarray(picture), expected[..., 0])
        assert step == 0
    assert len(read.pictures) == 3


def test_the_graph_is_the_model(read):
    (graph,) = read.graphs
    kinds = {name: kind for name, (kind, _) in graph.items()}
    assert kinds["x"] == "Placeholder"
    assert list(kinds.values()).count("Variable") == 4
    assert all(source in graph for _, sources in graph.values() for source in sources)
    readers = {source: name for name, (_, sources) in graph.items() for source in sources}
    assert readers["block/fc1_weight"].startswith("block/fc1")
    (result,) = graph["logits/output"][1]
    assert result == readers["block/fc2_weight"]


def test_texts(fitted, read):
    _, trainer, data = fitted
    assert [step for step, _ in read.texts["predictions/text_summary"]] == [6, 12]
    head, line, *rows = [r.split(" | ") for r in read.texts["predictions/text_summary"][-1][1].splitlines()]
    assert head == ["| sample", "target", "predicted", "probability", "loss |"]
    assert len(line) == 5
    x, y = data.take(np.arange(3))
    scores = np.exp(trainer.net.run({"x": x})["logits"].astype(np.float64))
    scores /= scores.sum(1, keepdims=True)
    names = ["a", "&lt;b&gt;", "c&#124;d"]
    for i, row in enumerate(rows):
        assert row[:3] == [f"| {i}", names[y[i]], names[scores[i].argmax()]]
        assert float(row[3]) == pytest.approx(scores[i].max(), rel=1e-3)
    assert "| optimizer.type | sgd |" in read.texts["settings/text_summary"][0][1]
    assert "    graph small {" in read.texts["network/text_summary"][0][1]


def test_tensorboard_reads_the_same(fitted, read):
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    kinds = ("scalars", "histograms", "images", "tensors")
    found = accumulators.EventAccumulator(str(fitted[0] / "tensorboard"), dict.fromkeys(kinds, 0))
    found.Reload()
    tags = found.Tags()
    assert (set(tags["scalars"]), set(tags["histograms"])) == (set(read.scalars), set(read.histograms))
    assert (set(tags["images"]), set(tags["tensors"])) == (set(read.pictures), set(read.texts))
    for tag, pairs in read.scalars.items():
        assert [(e.step, e.value) for e in found.Scalars(tag)] == pairs
    for tag, pairs in read.histograms.items():
        assert [tuple(e.histogram_value.bucket) for e in found.Histograms(tag)] == [h["counts"] for _, h in pairs]
    assert {node.name: (node.op, list(node.input)) for node in found.Graph().node} == read.graphs[0]


# --- resumed runs ---------------------------------------------------------------------------------------


def test_a_run_that_goes_on_has_every_step_once(tmp_path):
    data = made()
    start = {name: np.array(value) for name, value in small().params.items()}

    class Interrupted(Exception):
        pass

    class Interrupt(gk.Callback):
        def on_step_end(self, trainer, numbers):
            if numbers["updates"] == 9:
                raise Interrupted

    def trainer():
        model = small()
        for name, value in start.items():
            model.params[name] = value
        return gk.Trainer(model, optimizer=gk.optim.SGD(0.1), seed=1)

    def fit(trainer, folder, *further):
        callbacks = [gk.TensorBoard(every=1), *further]
        trainer.fit(data, epochs=2, batch_size=10, folder=folder, checkpoint_every=4, callbacks=callbacks)

    fit(trainer(), tmp_path / "whole")
    with pytest.raises(Interrupted):
        fit(trainer(), tmp_path / "parts", Interrupt())
    second = trainer()
    second.resume(tmp_path / "parts")
    fit(second, tmp_path / "parts")
    expected, found = (Events(tmp_path / name / "tensorboard") for name in ("whole", "parts"))
    assert len(found.files) == 2
    assert len(found.graphs) == 1
    for tag in ("step/loss", "train/loss"):
        assert found.scalars[tag] == expected.scalars[tag]
    assert [s for s, _ in found.scalars["step/loss"]] == list(range(1, 13))


def test_an_overwritten_run_is_void(tmp_path):
    for epochs in (3, 1):
        trainer = gk.Trainer(small())
        trainer.fit(made(), epochs=epochs, folder=tmp_path, overwrite=True, callbacks=[gk.TensorBoard()])
    found = Events(tmp_path / "tensorboard")
    assert len(found.files) == 2
    assert len(found.scalars["train/loss"]) == 1
    assert len(found.texts["network/text_summary"]) == 1


TRAINING = """
import sys
import numpy as np
import graphkit as gk
x = gk.input("x", ["N", 4])
net = gk.Model({"y": gk.nn.linear(x, 3, name="fc")})
data = gk.data.Dataset(np.random.rand(64, 4).astype("float32"), np.arange(64) % 3)
gk.Trainer(net).fit(data, data, epochs=100000, batch_size=8, callbacks=[gk.TensorBoard(sys.argv[1], every=1)])
"""


@pytest.mark.parametrize(
    "sizes", [(7_001,), pytest.param((1, 7_001, 33_333), marks=pytest.mark.full)], ids=["once", "often"]
)
def test_killed_it_leaves_whole_records(tmp_path, sizes):
    for number, more in enumerate(sizes):
        folder = tmp_path / str(number)
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", TRAINING, str(folder)], stderr=subprocess.PIPE, text=True
        )
        try:
            for _ in range(1200):
                written = sum(p.stat().st_size for p in folder.glob("*")) if folder.exists() else 0
                if written > 20_000 + more:
                    break
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.05)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        found = Events(folder)
        steps = [step for step, _ in found.scalars["step/loss"]]
        assert steps == list(range(1, len(steps) + 1))
        assert len(steps) > 20


def test_cut_anywhere_a_file_has_the_records_before(fitted):
    (path,) = (fitted[0] / "tensorboard").iterdir()
    data = path.read_bytes()
    count = len(list(frames(data)))
    ends = np.unique(RNG.integers(0, len(data), 40))
    counts = [len(list(frames(data[:end]))) for end in ends]
    assert counts == sorted(counts)
    assert counts[-1] <= count


# --- odd numbers and errors -----------------------------------------------------------------------------


@in_one_item()
@pytest.mark.parametrize(
    ("values", "odd"),
    [
        ([1.0, math.nan, 2.0, math.inf, -math.inf], 3),
        ([math.nan], 1),
        ([], 0),
        ([0.0, 0.0], 0),
        ([5e-324, 0.0], 0),
        ([-1.7e308, 1.7e308, 0.0], 0),
        ([1.0, 1.0 + 2**-52], 0),
        ([3], 0),
    ],
)
def test_histograms_of_odd_numbers(tmp_path, values, odd):
    with EventFile(tmp_path) as file:
        assert file.histogram("h", np.array(values), 1) == odd
    found = Events(tmp_path).histograms["h"]
    finite = [v for v in values if math.isfinite(v)]
    assert len(found) == bool(finite)
    for _, histogram in found:
        assert sum(histogram["counts"]) == histogram["num"] == len(finite)
        assert (histogram["min"], histogram["max"]) == (min(finite), max(finite))
        assert list(histogram["limits"]) == sorted(histogram["limits"])


def test_numbers_that_are_not_finite(tmp_path):
    net = small()
    trainer = gk.Trainer(net, optimizer=gk.optim.SGD(1e30), on_nonfinite="ignore")
    trainer.fit(made(), epochs=1, batch_size=10, callbacks=[gk.TensorBoard(tmp_path, every=1)])
    found = Events(tmp_path)
    losses = [value for _, value in found.scalars["step/loss"]]
    assert not all(map(math.isfinite, losses))
    assert found.scalars["not_finite/block/fc2_weight"] == [(6, 24.0)]


def test_data_without_targets_are_pictures_alone(tmp_path):
    data = made()
    samples = gk.data.Dataset(np.asarray(data.take(np.arange(4))[0]))
    gk.Trainer(small()).fit(data, callbacks=[gk.TensorBoard(tmp_path, samples=samples)])
    found = Events(tmp_path)
    assert len(found.pictures) == 4
    assert "has no targets" in found.texts["predictions/text_summary"][0][1]


def test_texts_as_samples(tmp_path):
    (tmp_path / "texts").mkdir()
    for name, word in (("good", "fine"), ("bad", "<i>awful</i>")):
        lines = "".join(f"a {word} thing {i}\n" for i in range(6))
        (tmp_path / "texts" / f"{name}.txt").write_text(lines)
    train = gk.data.load(f"sentences:{tmp_path / 'texts'}").train
    x, lengths = gk.input("x", ["N", "T"], "int64"), gk.input("lengths", ["N"], "int64")
    total = gk.reduce_sum(gk.nn.embedding(x, len(train.vocabulary), 4, name="e"), axes=[1], keepdims=False)
    h = total / gk.unsqueeze(gk.cast(lengths, to="float32"), axes=[1])
    net = gk.Model({"y": gk.nn.linear(h, 2, name="fc")})
    gk.Trainer(net).fit(train, callbacks=[gk.TensorBoard(tmp_path / "events", samples=train, count=4)])
    text = Events(tmp_path / "events").texts["predictions/text_summary"][0][1]
    assert text.startswith("| sample | text | target |")
    assert "thing" in text
    assert "<i>" not in text


def test_two_in_the_same_second_have_files_of_their_own(tmp_path):
    for number in range(3):
        with EventFile(tmp_path) as file:
            file.scalar("s", number, number)
    assert Events(tmp_path).scalars["s"] == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_usage(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="no folder"):
        gk.Trainer(small()).fit(made(), callbacks=[gk.TensorBoard()])
    with pytest.raises((UsageError, InputError), match="every"):
        gk.TensorBoard(tmp_path, every=-1)
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeFailure, match="file: events cannot be written"):
        gk.Trainer(small()).fit(made(), callbacks=[gk.TensorBoard(tmp_path / "file")])
    monkeypatch.setattr(events.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"'\.\[curves\]'"):
        gk.TensorBoard(tmp_path)


@pytest.mark.full
def test_a_full_disk_is_told(tmp_path):
    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    command = [sys.executable, "-P", "-c", TRAINING, str(tmp_path / "events")]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limited, timeout=300, check=False)
    assert done.returncode == 1
    assert "RuntimeFailure" in done.stderr
    assert f"{tmp_path / 'events'}: events cannot be written: File too large" in done.stderr
    assert Events(tmp_path / "events").scalars["step/loss"]


# --- the command ----------------------------------------------------------------------------------------


WAYS = {
    "alone": (),
    "together": ("--processes", "2", "--kvstore", "dist_sync", "--shard-optimizer", "--ema", "0.9"),
    "placed": ("--processes", "2", "--kvstore", "dist_sync", "--place", "a=0", "--place", "b=1"),
    "servers": ("--processes", "3", "--servers", "1", "--kvstore", "dist_async"),
}


@pytest.mark.parametrize("way", [pytest.param(w, marks=[pytest.mark.full] if w != "alone" else []) for w in WAYS])
def test_train(tmp_path, way):
    """Rank 0 has the parameters of all, as they are saved."""
    x = gk.input("x", ["N", 1, 4, 4])
    with gk.attr_scope(ctx_group="a"):
        h = gk.relu(gk.nn.linear(gk.flatten(x), 8, name="one"))
    with gk.attr_scope(ctx_group="b"):
        y = gk.nn.linear(h, 3, name="two")
    gk.Model({"logits": y}).save(tmp_path / "net.json")
    inputs, targets = made().take(np.arange(60))
    np.savez(tmp_path / "data.npz", x=inputs, y=targets)
    arguments = ["train", str(tmp_path / "net.json"), "--data", str(tmp_path / "data.npz"), "--batch-size", "10"]
    assert cli.invoke([*arguments, *WAYS[way], "--tensorboard", "-o", str(tmp_path / "run")]) == 0
    found = Events(tmp_path / "run/tensorboard")
    assert len(found.files) == 1
    log = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert found.scalars["valid/accuracy"] == [(log[-1]["updates"], np.float32(log[-1]["valid_accuracy"]))]
    saved = gk.load(tmp_path / "run").params
    assert set(found.histograms) == {f"weights/{name}" for name in saved}
    for name, values in saved.items():
        histogram = found.histograms[f"weights/{name}"][-1][1]
        assert (histogram["min"], histogram["max"]) == (np.min(values), np.max(values))
    assert found.texts["predictions/text_summary"][-1][1].count("\n") == 9
