"""Digits in idx files as images that are changed at random: the same numbers where nothing is changed."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from PIL import Image

from graphkit import data
from graphkit.data.images.augment import Augment
from graphkit.data.images.dataset import ImageDataset
from graphkit.errors import UsageError


def write_idx(path, array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


@pytest.fixture
def folder(tmp_path, rng):
    """12 images of 16 x 20 to train on, with all 256 greys, and 5 to test."""
    for part, count in (("train", 12), ("t10k", 5)):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte", rng.integers(0, 256, (count, 16, 20)))
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", np.arange(count) % 10)
    return tmp_path


def test_the_numbers_are_those_of_arrays_in_memory(folder):
    plain, changed = data.load(folder), data.load(f"mnist:{folder}", augment="pad:2,rotate:10")
    for arrays, pictures in zip(plain, changed, strict=True):
        assert isinstance(pictures, ImageDataset)
        inputs, targets = pictures.take(slice(None))
        np.testing.assert_array_equal(inputs, arrays.inputs)
        assert inputs.dtype == np.float32
        np.testing.assert_array_equal(targets, arrays.targets)
        assert (pictures.shape, pictures.classes) == (arrays.shape, arrays.classes)
    assert len(np.unique(plain.train.inputs)) == 256


def test_training_sees_shifts_and_testing_does_not(folder):
    train, test = data.load(folder, augment="pad:1")
    plain = data.load(folder)
    edged = np.pad(plain.train.inputs, ((0, 0), (0, 0), (1, 1), (1, 1)))
    seen = set()
    for epoch in range(4):
        order = train.order(3, epoch, 12)
        (batch,) = train.batches(12, seed=3, epoch=epoch)
        for number, image in zip(order, batch.inputs, strict=True):
            places = [
                (top, left)
                for top in range(3)
                for left in range(3)
                if (edged[number][:, top : top + 16, left : left + 20] == image).all()
            ]
            assert len(places) == 1
            seen.add(places[0])
    assert len(seen) == 9
    for batch in test.batches(5, seed=3):
        assert {image.tobytes() for image in batch.inputs} == {image.tobytes() for image in plain.test.inputs}


def test_a_rotation_is_pillows(folder):
    train = data.load(folder, augment=Augment(rotate=20)).train
    order = train.order(0, 0, 12)
    (batch,) = train.batches(12, seed=0)
    pixels = np.rint(data.load(folder).train.inputs[order[0], 0] * 255).astype(np.uint8)
    candidates = [
        np.asarray(Image.fromarray(pixels).rotate(degrees, Image.Resampling.BILINEAR)) / np.float32(255)
        for degrees in np.linspace(-20, 20, 401)
    ]
    assert min(np.abs(c - batch.inputs[0, 0]).mean() for c in candidates) < 0.01
    assert np.abs(pixels / np.float32(255) - batch.inputs[0, 0]).mean() > 0.05


@pytest.mark.parametrize("workers", [0, 1])
def test_workers_change_no_bit(folder, workers):
    train = data.load(folder, augment="pad,rotate,erase").train
    for one, other in zip(
        train.batches(5, seed=1, epoch=2), train.batches(5, seed=1, epoch=2, workers=workers), strict=True
    ):
        np.testing.assert_array_equal(one.inputs, other.inputs)
        np.testing.assert_array_equal(one.targets, other.targets)


def test_all_of_it_and_one_part_alone(folder):
    whole = data.read(folder, augment="pad")
    np.testing.assert_array_equal(whole.take(slice(None))[0], data.read(folder).inputs)
    assert whole.augments
    assert not data.load(folder, augment="pad").test.augments
    for name in ("images-idx3", "labels-idx1"):
        (folder / f"t10k-{name}-ubyte").unlink()
    train, test = data.load(folder, augment="pad", test_fraction=0.25)
    assert (len(train), len(test)) == (9, 3)


def test_none_and_what_is_no_change(folder):
    assert not isinstance(data.load(folder, augment="none").train, ImageDataset)
    with pytest.raises(UsageError, match="augment: unknown 'shear'"):
        data.load(folder, augment="shear")
    with pytest.raises(UsageError, match="there is no option 'size'; known: 'augment'"):
        data.load(folder, size=32)
