"""Folders, lists, and CIFAR's files as data sets."""

from __future__ import annotations

import os

import numpy as np
import pytest
from PIL import Image

from graphkit import data
from graphkit.data.images.preprocess import CIFAR
from graphkit.errors import DamagedSample, InputError

RNG = np.random.default_rng(0)


def draw(path, size=(12, 10), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 256, (size[1], size[0], 3), np.uint8)).convert(mode).save(path)
    return path


@pytest.fixture
def photos(tmp_path):
    for name, count in (("dog", 3), ("cat", 2)):
        for i in range(count):
            draw(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path / "photos"


def test_a_folder_for_each_class(photos):
    draw(photos / "cat" / "deep" / "x.JPG")
    (photos / ".hidden").mkdir()
    (photos / "cat" / ".DS_Store").write_bytes(b"")
    found = data.read(photos)
    assert found.classes == ("cat", "dog")
    assert found.store.names == ("cat/0.png", "cat/1.png", "cat/deep/x.JPG", "dog/0.png", "dog/1.png", "dog/2.png")
    assert found.targets.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.shape == (3, 10, 12), "small pictures that are alike keep their size"
    inputs, targets = found.take(np.array([5, 0]))
    assert inputs.shape == (2, 3, 10, 12)
    assert inputs.dtype == np.float32
    assert targets.tolist() == [1, 0]
    assert [len(part) for part in data.load(photos, test_fraction=0.34)] == [4, 2]
    assert data.load(f"images:{photos}").train.classes == ("cat", "dog")


def test_parts(tmp_path):
    for part, names in (("train", ("a", "b")), ("val", ("b",)), ("test", ("a",))):
        for name in names:
            draw(tmp_path / part / name / "0.png")
    train, held_out = data.load(tmp_path, augment="flip")
    assert (len(train), len(held_out)) == (2, 1)
    assert held_out.targets.tolist() == [1], "numbered as in training"
    assert train.augments
    assert not held_out.augments
    joined = data.read(tmp_path)
    np.testing.assert_array_equal(joined.take(slice(2, 3))[0], held_out.take(slice(0, 1))[0])
    draw(tmp_path / "val" / "c" / "0.png")
    with pytest.raises(InputError, match="class 'c' is none of 'a', 'b'"):
        data.load(tmp_path)


def test_what_is_odd_is_told(photos):
    (photos / "notes.txt").write_text("x")
    (photos / "cat" / "readme.md").write_text("x")
    with pytest.warns(UserWarning, match=r"2 that are no pictures are left out: 'readme\.md', 'notes\.txt'|left out"):
        data.read(photos)


def test_empty_classes_and_folders(photos, tmp_path):
    (photos / "empty").mkdir()
    with pytest.raises(InputError, match="empty: no picture of that class"):
        data.read(photos)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(InputError, match="nothing"):
        data.read(f"images:{tmp_path / 'nothing'}")
    with pytest.raises(InputError, match="no such folder"):
        data.read(f"images:{tmp_path / 'none'}")


def test_links_that_go_round(photos):
    os.symlink(photos / "cat", photos / "cat" / "again")
    with pytest.raises(InputError, match="leads back to a folder"):
        data.read(photos)


def test_damaged_pictures(photos):
    (photos / "cat" / "1.png").write_bytes(b"junk")
    found = data.read(photos, size=8)
    with pytest.raises(DamagedSample, match=r"cat/1\.png cannot be read as a picture"):
        found.take(slice(0, 5))
    with pytest.warns(UserWarning, match="stands in for sample 1"):
        inputs, targets = found.configured(on_damaged="skip").take(slice(0, 5))
    np.testing.assert_array_equal(inputs[1], inputs[2])
    assert targets.tolist() == [0, 1, 1, 1, 1]


def test_sizes_and_colours(tmp_path):
    for i, size in enumerate([(300, 200), (100, 400)]):
        draw(tmp_path / "p" / "a" / f"{i}.png", size, "L")
    found = data.read(tmp_path / "p")
    assert found.shape == (1, 224, 224)
    assert found.preprocess.resize == 256
    assert data.read(tmp_path / "p", size=64).shape == (1, 64, 64)
    assert data.read(tmp_path / "p", size="48x64", colours="RGB", layout="NHWC").shape == (48, 64, 3)
    again = data.read(tmp_path / "p", like=data.read(tmp_path / "p", size=32))
    assert again.shape == (1, 32, 32)


def test_lists(photos, tmp_path):
    listing = tmp_path / "list.tsv.txt"
    listing.write_text("photos/dog/0.png\tdog\nphotos/cat/0.png\tcat\n")
    found = data.read(f"images:{listing}")
    assert found.classes == ("cat", "dog")
    assert found.targets.tolist() == [1, 0]
    listing.write_text("photos/dog/0.png\t7\nphotos/cat/0.png\t0\r\n")
    found = data.read(f"images:{listing}")
    assert found.classes is None
    assert found.targets.tolist() == [7, 0]
    for text, message in (("", "without a picture"), ("a.png\n", "line 1: a path, a tab"), ("a\tb\tc\n", "line 1")):
        listing.write_text(text)
        with pytest.raises(InputError, match=message):
            data.read(f"images:{listing}")


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_same_for_any_number_of_workers_and_after_an_interruption(photos, workers):
    found = data.read(photos, size=8, augment="crop,flip,colour,erase")
    plain = [(b.inputs.copy(), b.targets.copy()) for b in found.batches(2, seed=3, epoch=1)]
    again = list(found.batches(2, seed=3, epoch=1, start=1, workers=workers))
    assert len(again) == len(plain) - 1
    for (inputs, targets), batch in zip(plain[1:], again, strict=True):
        np.testing.assert_array_equal(batch.inputs, inputs)
        np.testing.assert_array_equal(batch.targets, targets)
    ranks = [next(iter(found.batches(1, seed=3, epoch=1, rank=r, ranks=2, workers=workers))) for r in range(2)]
    np.testing.assert_array_equal(np.concatenate([b.inputs for b in ranks]), plain[0][0])


# --- CIFAR ------------------------------------------------------------------------------------------


def cifar(folder, names, labels, classes, lists):
    folder.mkdir()
    made = {}
    for name in names:
        records = RNG.integers(0, 256, (3, labels + 3072), np.uint8)
        records[:, labels - 1] %= classes
        (folder / name).write_bytes(records.tobytes())
        made[name] = records
    (folder / lists).write_text("".join(f"class{i}\n" for i in range(classes)))
    return made


@pytest.mark.parametrize("kind", [10, 100])
def test_cifar(tmp_path, kind):
    folder = tmp_path / "cifar"
    if kind == 10:
        names, labels, lists = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"], 1, "batches.meta.txt"
    else:
        names, labels, lists = ["train.bin", "test.bin"], 2, "fine_label_names.txt"
    made = cifar(folder, names, labels, kind, lists)
    train, test = data.load(folder)
    whole = np.concatenate([made[name] for name in names[:-1]])
    assert train.targets.tolist() == whole[:, labels - 1].tolist()
    assert test.targets.tolist() == made[names[-1]][:, labels - 1].tolist()
    assert train.num_classes == kind
    inputs, _ = train.take(slice(0, len(train)))
    pixels = whole[:, labels:].reshape(-1, 3, 32, 32) / 255
    mean, std = (np.array(values)[:, None, None] for values in CIFAR)
    np.testing.assert_allclose(inputs, (pixels - mean) / std, rtol=1e-5, atol=1e-6)


def test_bad_cifar(tmp_path):
    folder = tmp_path / "cifar"
    cifar(folder, ["train.bin", "test.bin"], 2, 100, "fine_label_names.txt")
    content = bytearray((folder / "train.bin").read_bytes())
    content[1] = 200
    (folder / "train.bin").write_bytes(content)
    with pytest.raises(InputError, match=r"train\.bin: record 0 is of class 200, and there are 100"):
        data.load(folder)
    (folder / "train.bin").write_bytes(content[:-1])
    with pytest.raises(InputError, match="it is not whole"):
        data.load(folder)
    (folder / "fine_label_names.txt").unlink()
    with pytest.raises(InputError, match=r"fine_label_names\.txt: the names of the classes"):
        data.load(f"cifar:{folder}")
    pickles = tmp_path / "pickles"
    pickles.mkdir()
    (pickles / "data_batch_1").write_bytes(b"\x80\x02")
    with pytest.raises(InputError, match="pickles: reading one runs what is in it"):
        data.load(pickles)
