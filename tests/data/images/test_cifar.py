"""CIFAR's binary files, written here by the layout on A. Krizhevsky's page."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from graphkit import data
from graphkit.data.preprocessing.image import CIFAR
from graphkit.errors import InputError

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def write(path, labels, pictures):
    """<1 x label>...<3072 x pixel>: the first 1024 bytes are the red channel, row by row."""
    path.write_bytes(
        b"".join(
            bytes(np.atleast_1d(label).tolist()) + image.tobytes()
            for label, image in zip(labels, pictures, strict=True)
        )
    )


@pytest.fixture
def ten(tmp_path, rng):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    pictures = rng.integers(0, 256, (24, 3, 32, 32), np.uint8)
    labels = np.arange(24) % 10
    for number in range(5):
        part = slice(4 * number, 4 * number + 4)
        write(folder / f"data_batch_{number + 1}.bin", labels[part], pictures[part])
    write(folder / "test_batch.bin", labels[20:], pictures[20:])
    (folder / "batches.meta.txt").write_text("\n".join(NAMES) + "\n\n")
    return folder, labels, pictures


def test_ten_classes(ten):
    folder, labels, pictures = ten
    train, test = data.load(folder, mean=(), std=(), dtype="uint8")
    assert train.classes == test.classes == tuple(NAMES)
    np.testing.assert_array_equal(train.targets, labels[:20])
    np.testing.assert_array_equal(test.targets, labels[20:])
    np.testing.assert_array_equal(train.take(slice(None))[0], pictures[:20])
    np.testing.assert_array_equal(test.take([3, 0])[0], pictures[[23, 20]])
    usual = data.read(folder)
    assert usual.shape == (3, 32, 32)
    mean, std = (np.array(values)[:, None, None] for values in CIFAR)
    np.testing.assert_allclose(usual.take(slice(None))[0], (pictures / 255 - mean) / std, rtol=1e-6, atol=1e-6)


def test_changes_workers_and_other_sizes(ten):
    folder, _, _ = ten
    found = data.load(folder, augment="pad,flip", size=16).train
    assert found.shape == (3, 16, 16)
    with data.Workers(2) as workers:
        for one, other in zip(found.batches(6, seed=1), found.batches(6, seed=1, workers=workers), strict=True):
            np.testing.assert_array_equal(one.inputs, other.inputs)


def test_a_hundred_classes_by_their_fine_labels(tmp_path, rng):
    pictures = rng.integers(0, 256, (9, 3, 32, 32), np.uint8)
    labels = np.stack([rng.integers(0, 20, 9), rng.integers(0, 100, 9)], 1)
    write(tmp_path / "train.bin", labels[:6], pictures[:6])
    write(tmp_path / "test.bin", labels[6:], pictures[6:])
    names = [f"fine {i:02}" for i in range(100)]
    (tmp_path / "fine_label_names.txt").write_text("\n".join(names))
    (tmp_path / "coarse_label_names.txt").write_text("\n".join(f"coarse {i}" for i in range(20)))
    train, test = data.load(tmp_path, mean=(), std=(), dtype="uint8")
    assert train.classes == tuple(names)
    np.testing.assert_array_equal(np.concatenate([train.targets, test.targets]), labels[:, 1])
    np.testing.assert_array_equal(test.take(slice(None))[0], pictures[6:])


class Fires:
    def __reduce__(self):
        return (pytest.fail, ("the pickle was read",))


@pytest.mark.parametrize("names", [("data_batch_1", "batches.meta"), ("train", "test", "meta")])
def test_pickles_are_refused_and_not_read(tmp_path, names):
    for name in names:
        (tmp_path / name).write_bytes(pickle.dumps(Fires()))
    for spec in (tmp_path, f"cifar:{tmp_path}"):
        with pytest.raises(
            InputError, match=r"the Python version of CIFAR consists of pickles.* Use the binary version"
        ):
            data.load(spec)


def test_a_file_called_meta_is_no_pickle_yet(photos):
    folder = photos({"cat": 2})
    (folder / "meta").write_text("of something else")
    with pytest.warns(match=r"skipped 1 path \(not the folder of a class, nor an image in one\): 'meta'$"):
        assert data.read(folder).classes == ("cat",)


def test_damaged_files(ten):
    folder, labels, pictures = ten
    path = folder / "data_batch_2.bin"
    whole = path.read_bytes()
    for content, message in (
        (whole[:-1], r"data_batch_2\.bin: truncated file: its 12291 bytes are not a multiple of the 3073"),
        (b"", r"data_batch_2\.bin: truncated file: its 0 bytes"),
        (
            whole[:3073] + b"\x0a" + whole[3074:],
            r"data_batch_2\.bin: record 1 has class number 10, but there are only 10 class names",
        ),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            data.load(folder)
    path.write_bytes(whole)
    found = data.read(folder)
    path.write_bytes(whole[:5000])
    found.take([4])
    with pytest.raises(InputError, match=r"data_batch_2\.bin: record 1 is truncated"):
        found.take([5])
    path.unlink()
    for _ in range(2):
        with pytest.raises(InputError, match=r"data_batch_2\.bin"):
            data.load(folder)
    write(path, labels[4:8], pictures[4:8])
    (folder / "batches.meta.txt").write_text("")
    with pytest.raises(InputError, match=r"batches\.meta\.txt: expected 1 to 256 class names.* found 0"):
        data.load(folder)
    (folder / "batches.meta.txt").unlink()
    with pytest.raises(InputError, match=r"batches\.meta\.txt: the names of the classes cannot be read"):
        data.load(f"cifar:{folder}")
    with pytest.raises(InputError, match=r"the folder contains no data_batch_1\.bin or train\.bin"):
        data.load(f"cifar:{folder.parent}")
