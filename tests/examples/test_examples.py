"""The examples that train from a config.toml, by their own files and commands, on small data of the same formats."""

from __future__ import annotations

import importlib.util
import json
import math
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from scipy.io import wavfile

import graphkit as gk
from graphkit import cli
from graphkit.errors import InputError

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.full, pytest.mark.skipif(not EXAMPLES.is_dir(), reason="examples/ is not there")]


@pytest.fixture
def train(tmp_path):
    """Train by examples/NAME/config.toml, draw the curves, export: the records of the epochs, and the ONNX file."""

    def run(name, data, *options):
        folder, file = tmp_path / "run", tmp_path / "net.onnx"
        command = ["train", str(EXAMPLES / name / "config.toml"), "--threads", "1", "--warmup", "2"]
        command += [] if data is None else ["--data", data]
        assert cli.invoke([*command, *options, "-o", str(folder)]) == 0
        records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        epochs = [record for record in records if record["event"] == "epoch"]
        assert all(np.isfinite([epoch["loss"], epoch["valid_loss"]]).all() for epoch in epochs)
        draw = [sys.executable, EXAMPLES / "curves.py", folder, "-o", tmp_path / "curve.svg", "--target", "loss=1"]
        subprocess.run(draw, check=True, timeout=300)
        titles = [e.text for e in ElementTree.parse(tmp_path / "curve.svg").iter() if e.get("class") == "panel"]
        assert titles[0] == "Loss"
        assert len(titles) == 2
        # `export` compares the file with ONNX Runtime, and fails where they differ.
        assert cli.invoke(["export", str(folder), "-o", str(file)]) == 0
        assert gk.verify(gk.load(file)).passed
        return epochs, file

    return run


def log_of(folder, losses):
    folder.mkdir()
    records = [
        {"event": "epoch", "seconds": float(n), "epoch": n, "updates": 10 * n, "loss": loss, "valid_loss": loss}
        for n, loss in enumerate(losses, 1)
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.mark.parametrize("losses", [[2.0], [3.0, math.nan, 1.0], [0.5] * 40, [math.inf, 1e30], [-1e-12, 1e-12]])
def test_curves_of_odd_numbers(tmp_path, losses):
    log_of(tmp_path / "run", losses)
    draw = [sys.executable, EXAMPLES / "curves.py", tmp_path / "run", tmp_path / "run", "-o", tmp_path / "curve.svg"]
    subprocess.run(draw, check=True, timeout=300)
    (panel,) = [e for e in ElementTree.parse(tmp_path / "curve.svg").iter() if e.get("class") == "panel"]
    dots = [e for e in ElementTree.parse(tmp_path / "curve.svg").iter() if e.tag.endswith("circle")]
    assert len(dots) == 2 * np.isfinite(losses).sum()
    assert all(84 <= float(e.get("cy")) <= 324 for e in dots)
    assert panel.text == "Loss"


@pytest.mark.parametrize(("losses", "message"), [(None, "no such folder"), ([], "no epoch"), ([math.nan], "no epoch")])
def test_what_has_no_curves(tmp_path, losses, message):
    if losses is not None:
        log_of(tmp_path / "run", losses)
    draw = [sys.executable, EXAMPLES / "curves.py", tmp_path / "run", "-o", tmp_path / "curve.svg"]
    ended = subprocess.run(draw, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert not (tmp_path / "curve.svg").exists()


def module(path):
    """A Python file of the examples."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def write_idx(path, array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def test_mnist(tmp_path, train):
    rng = np.random.default_rng(0)
    for part, count in (("train", 64), ("t10k", 20)):
        digits = np.arange(count) % 10
        images = rng.integers(0, 60, (count, 28, 28))
        for image, digit in zip(images, digits, strict=True):
            image[4 + 2 * digit : 6 + 2 * digit, 4:24] = 250
        write_idx(tmp_path / f"{part}-images-idx3-ubyte", images)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", digits)
    options = ["--batch-size", "16", "--epochs", "2", "--lr", "0.02", "--workers", "0"]
    epochs, file = train("mnist", f"mnist:{tmp_path}", *options)
    assert epochs[-1]["loss"] < epochs[0]["loss"]
    net = gk.load(file)
    assert net.classes == tuple("0123456789")
    assert net.num_parameters == 269_434
    # A picture of a digit goes through what the metadata say.
    assert json.loads(net.meta["preprocessing"])["colours"] == "L"


def test_reviews(tmp_path, train, capsys):
    (tmp_path / "film.pos").write_text("a good and touching film\nfine acting , great fun\n" * 40)
    (tmp_path / "film.neg").write_text("a dull and lifeless film\npoor acting , no fun at all\n" * 40)
    options = ["--batch-size", "16", "--epochs", "3", "--lr", "0.02", "--ema", "0.5"]
    epochs, file = train("reviews", f"sentences:{tmp_path}", *options)
    assert epochs[-1]["valid_accuracy"] == 1
    capsys.readouterr()
    vocabulary = gk.data.Vocabulary.from_json(gk.load(file).meta["vocabulary"])
    for text, expected in (("a great film", "pos"), ("a poor film", "neg")):
        tokens = vocabulary.encode(text)
        logits = gk.load(file).run({"x": tokens[None], "lengths": np.array([len(tokens)])})["logits"]
        assert gk.load(file).classes[int(logits.argmax())] == expected


def test_shakespeare(tmp_path, train):
    (tmp_path / "book.txt").write_text("To be, or not to be: that is the question.\n" * 200)
    epochs, file = train("shakespeare", f"text:{tmp_path / 'book.txt'}", "--batch-size", "4", "--epochs", "3")
    assert epochs[-1]["valid_loss"] < np.log(10)  # of some twenty characters
    writer = module(EXAMPLES / "shakespeare" / "write.py")
    text = writer.continued(gk.load(file), "To be", 20, temperature=0.5, seed=1)
    assert len(text) == 20
    assert text == writer.continued(gk.load(file), "To be", 20, temperature=0.5, seed=1)
    assert set(text) <= set("To be, or not to be: that is the question.\n")


RECORDINGS = f"{EXAMPLES / 'spoken_digits' / 'recordings.py'}:load"


def speak(folder, speakers=("ann", "bob"), count=8, rate=8000):
    """DIGIT_SPEAKER_NUMBER.wav: a tone for each digit, of any loudness and length."""
    rng = np.random.default_rng(3)
    folder.mkdir()
    for speaker in speakers:
        for digit in range(10):
            for number in range(count):
                times = np.arange(int(rng.integers(2000, 9000))) / rate
                wave = np.sin(2 * np.pi * (250 + 300 * digit) * times) + 0.1 * rng.standard_normal(len(times))
                loud = rng.uniform(500, 15_000)
                wavfile.write(folder / f"{digit}_{speaker}_{number}.wav", rate, (loud * wave).astype(np.int16))


def test_spoken_digits(tmp_path, train):
    speak(tmp_path / "recordings")
    first, test = gk.data.load(RECORDINGS, folder=str(tmp_path / "recordings"))
    assert np.shape(first.inputs) == (2 * 10 * 3, 8192)
    assert np.shape(test.inputs) == (2 * 10 * 5, 8192)
    assert test.inputs.dtype == np.int16
    _, wave = wavfile.read(tmp_path / "recordings" / "7_bob_2.wav")
    of_seven = test.inputs[test.targets == 7]
    assert any((row[: len(wave)] == wave[:8192]).all() and not row[len(wave) :].any() for row in of_seven)
    option = f"folder={tmp_path / 'recordings'}"
    epochs, file = train("spoken_digits", None, "--data-option", option, "--batch-size", "12", "--epochs", "8")
    assert epochs[-1]["loss"] < epochs[0]["loss"]
    assert gk.load(file).classes[3] == "three"
    # The file takes the wave, and does not mind how loud it is.
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    x = np.zeros((1, 8192), np.int16)
    x[0, :4000] = 3000 * np.sin(np.arange(4000) * 0.9)
    quiet, loud = (session.run(["logits"], {"x": factor * x})[0] for factor in (np.int16(1), np.int16(8)))
    np.testing.assert_allclose(quiet, loud, atol=1e-3)
    assert quiet.shape == (1, 10)


def test_the_spectrogram_is_the_power_in_bands():
    """Beside scipy's short-time Fourier transform, and triangles on the mel scale."""
    from scipy.signal import ShortTimeFFT
    from scipy.signal.windows import hann

    network = module(EXAMPLES / "spoken_digits" / "network.py")
    x = gk.input("x", ["N", 2048])
    net = gk.Model({"y": network.log_mel(x)})
    wave = np.random.default_rng(0).standard_normal((2, 2048)).astype(np.float32) * 900
    found = net.run({"x": wave})["y"]
    frames = 1 + (2048 - network.FRAME) // network.STEP
    assert found.shape == (2, frames, network.BANDS)
    window = hann(network.FRAME, sym=False)
    transform = ShortTimeFFT(window, network.STEP, network.RATE, fft_mode="onesided", phase_shift=None)
    signal = wave / np.abs(wave).max(axis=1, keepdims=True)
    first = network.FRAME // 2 // network.STEP  # scipy counts frames by their middle
    spectrum = np.abs(transform.stft(signal)[:, :, first : first + frames]) ** 2
    mel = lambda f: 2595 * np.log10(1 + f / 700)  # noqa: E731 - a scale
    # As ONNX has it, one step short of the upper edge.
    places = np.linspace(mel(20), mel(network.RATE / 2), network.BANDS + 3)[:-1]
    corners = 700 * (10 ** (places / 2595) - 1)
    bins = np.floor((network.FRAME + 1) * corners / network.RATE).astype(int)
    bands = np.zeros((network.FRAME // 2 + 1, network.BANDS))
    for band, (low, middle, high) in enumerate(zip(bins, bins[1:], bins[2:], strict=False)):
        for place in range(low, middle):
            bands[place, band] = (place - low) / (middle - low)
        for place in range(middle, high):
            bands[place, band] = (high - place) / (high - middle)
        bands[middle, band] = 1
    logs = np.log(np.einsum("nft,fb->ntb", spectrum, bands) + 1e-3)
    np.testing.assert_allclose(found, logs - logs.mean(axis=(1, 2), keepdims=True), atol=2e-3)


@pytest.mark.parametrize(
    ("name", "rate", "wave", "message"),
    [
        ("seven.wav", 8000, np.ones(9, np.int16), "'seven' is not DIGIT_SPEAKER_NUMBER"),
        ("7_ann_0.wav", 16000, np.ones(9, np.int16), "1 channels of 16 bits at 16000 Hz, not one of 16 bits"),
        ("7_ann_0.wav", 8000, np.ones((9, 2), np.int16), "2 channels of 16 bits at 8000 Hz"),
        ("7_ann_0.wav", 8000, np.ones(9, np.int32), "1 channels of 32 bits"),
        ("7_ann_0.wav", 8000, np.ones(9, np.int16), "0 recordings to train on and 1 to test"),
        ("7_ann_0.wav", 8000, np.ones(0, np.int16), r"7_ann_0 is int16\[0\]"),
        ("7_ann_0.wav", None, None, r"7_ann_0\.wav: "),
    ],
)
def test_recordings_that_cannot_be_prepared(tmp_path, name, rate, wave, message):
    if wave is None:
        (tmp_path / name).write_bytes(b"RIFX, not")
    else:
        wavfile.write(tmp_path / name, rate, wave)
    with pytest.raises(InputError, match=message):
        gk.data.load(RECORDINGS, folder=str(tmp_path))


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04junk"])
def test_a_file_of_recordings_that_cannot_be_read(tmp_path, content):
    if content is not None:
        (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.npz"):
        gk.data.load(RECORDINGS, folder=str(tmp_path / "a.npz"))
