"""Folders and lists of images: classes, parts, and other files."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
from PIL import Image

from graphkit import data
from graphkit.data.preprocessing.image import IMAGENET, Preprocess
from graphkit.errors import DamagedSample, GraphkitWarning, InputError, MissingDependency, UsageError


def test_classes_are_sorted_and_their_pictures_too(photos):
    folder = photos({"dog": 2, "Cat": 3, "änt": 1, "🦊 fox": 1})
    found = data.read(folder)
    assert found.classes == ("Cat", "dog", "änt", "🦊 fox")
    assert found.targets.tolist() == [0, 0, 0, 1, 1, 2, 3]
    assert found.targets.dtype == np.int64
    files = [folder / c / f"{i}.png" for c, n in (("Cat", 3), ("dog", 2), ("änt", 1), ("🦊 fox", 1)) for i in range(n)]
    wanted = [np.asarray(Image.open(path)).transpose(2, 0, 1) for path in files]
    np.testing.assert_array_equal(data.read(folder, dtype="uint8", mean=(), std=()).take(slice(None))[0], wanted)


def test_pictures_lie_in_folders_of_folders_and_links(photos, tmp_path):
    folder = photos({"cat": 1, "cat/more/of/them": 2, "dog": 1})
    (folder / "fox").symlink_to(folder / "dog")
    (folder / "cat" / "linked").symlink_to(folder / "dog")
    found = data.read(folder)
    assert found.classes == ("cat", "dog", "fox")
    assert found.store.names == (
        "cat/0.png", "cat/linked/0.png", "cat/more/of/them/0.png", "cat/more/of/them/1.png", "dog/0.png", "fox/0.png",
    )  # fmt: skip
    (folder / "dog" / "up").symlink_to(folder / "dog")
    (folder / "cat" / "linked").unlink()
    with pytest.raises(InputError, match="dog/up: this link leads back to a folder that contains it"):
        data.read(folder)
    (folder / "dog" / "up").unlink()
    (folder / "dog" / "itself").symlink_to("itself")
    with pytest.raises(InputError, match=r"dog/itself: "):
        data.read(folder)


def test_hidden_files_are_left_out_and_odd_ones_warned_of(photos):
    folder = photos({"cat": 2, "dog": 1})
    (folder / ".DS_Store").write_bytes(b"")
    (folder / "cat" / ".0.png").write_bytes(b"")
    (folder / ".git").mkdir()
    assert len(data.read(folder)) == 3
    (folder / "dog" / "notes.txt").write_text("good dogs")
    (folder / "labels.csv").write_text("")
    os.mkfifo(folder / "cat" / "pipe.png")
    with pytest.warns(
        GraphkitWarning,
        match=r"skipped 3 paths \(not the folder of a class, nor an image in one\): 'cat/pipe\.png', 'dog/notes",
    ):
        assert len(data.read(folder)) == 3


def test_a_link_to_nothing_is_no_picture_that_is_left_out(photos):
    folder = photos({"cat": 2})
    (folder / "cat" / "2.png").symlink_to("gone.png")
    found = data.read(folder, size=4)
    assert len(found) == 3
    with pytest.raises(DamagedSample, match=r"cat/2\.png"):
        found.take([2])


def test_classes_without_pictures(photos, tmp_path):
    folder = photos({"cat": 2})
    (folder / "dog").mkdir()
    with pytest.raises(InputError, match=r"photos/dog: the folder of this class contains no image; known: \.bmp"):
        data.read(folder)
    for name in ("empty", "full/of.txt"):
        (tmp_path / name).mkdir(parents=True)
        with pytest.raises(
            InputError, match=r"found no folder of a class with images|the folder of this class contains no image"
        ):
            data.read(f"images:{tmp_path / name.partition('/')[0]}")
    with pytest.raises(InputError, match="no such folder"):
        data.read(f"images:{tmp_path / 'none'}")


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes")
def test_a_class_that_is_no_text(photos):
    folder = photos({"cat": 1})
    (folder / "cat").rename(folder / os.fsdecode(b"\xff\xfe"))
    with pytest.raises(InputError, match="the name of a class must be UTF-8 text"):
        data.read(f"images:{folder}")


@pytest.mark.parametrize("held_out", ["val", "valid", "validation", "test"])
def test_parts(photos, held_out):
    folder = photos({"train/cat": 3, "train/dog": 2, f"{held_out}/dog": 2})
    train, test = data.load(folder)
    assert (len(train), len(test)) == (5, 2)
    assert train.classes == test.classes == ("cat", "dog")
    assert test.targets.tolist() == [1, 1], "by the numbers of the training part"
    both = data.read(folder)
    assert both.targets.tolist() == [0, 0, 0, 1, 1, 1, 1]
    np.testing.assert_array_equal(both.take([5])[0], test.take([0])[0])
    np.testing.assert_array_equal(
        both.subset([6, 0]).take([0, 1])[0], np.concatenate([test.take([1])[0], train.take([0])[0]])
    )
    assert len(data.read(folder, held_out=False)) == 5
    photos({f"{held_out}/fox": 1})
    with pytest.raises(InputError, match=f"{held_out}: class 'fox' is not one of 'cat', 'dog'"):
        data.load(folder)


def test_a_class_that_is_called_train(photos):
    found = data.read(photos({"bus": 2, "train": 3}))
    assert found.classes == ("bus", "train")
    assert found.targets.tolist() == [0, 0, 1, 1, 1]


def test_one_part_is_split_by_class(photos):
    train, test = data.load(photos({"cat": 10, "dog": 20}), test_fraction=0.3, seed=1, split="position")
    assert np.bincount(train.targets).tolist() == [7, 14]
    assert np.bincount(test.targets).tolist() == [3, 6]


def test_what_is_usual(photos):
    assert data.read(photos({"a": 3}, "small", (32, 30))).preprocess == Preprocess(
        resize=30, crop=(30, 32), mean=IMAGENET[0], std=IMAGENET[1]
    )
    assert data.read(photos({"a": 1}, "large", (97, 30))).preprocess == Preprocess.of_size(
        224, 224, mean=IMAGENET[0], std=IMAGENET[1]
    )
    grey = data.read(photos({"a": 3}, "grey", (28, 28), mode="L"))
    assert grey.preprocess == Preprocess(resize=28, crop=(28, 28), colours="L", mean=(0.5,), std=(0.5,))
    assert grey.shape == (1, 28, 28)
    photos({"b": 1}, "grey", (30, 28), mode="RGB")
    assert data.read(photos({}, "grey")).preprocess == Preprocess.of_size(224, 224, mean=IMAGENET[0], std=IMAGENET[1])


def test_options(photos):
    folder = photos({"a": 2})
    found = data.read(folder, size="10x12", filter="bicubic", colours="BGR", layout="NHWC", dtype="float64")
    assert found.shape == (10, 12, 3)
    assert found.preprocess.mean == IMAGENET[0][::-1]
    assert found.take([0])[0].dtype == np.float64
    found = data.read(folder, resize="none", crop="4x5", scale="1", mean="1,2,3", std="2")
    assert found.preprocess == Preprocess(crop=(4, 5), scale=1.0, mean=(1.0, 2.0, 3.0), std=(2.0,))
    base = Preprocess(resize=7, crop=(7, 7), filter="box")
    assert data.read(folder, preprocess=base, crop=5).preprocess == Preprocess(resize=7, crop=(5, 5), filter="box")
    assert data.read(folder, like=data.read(folder, preprocess=base)).preprocess == base
    for options, message in (
        ({"size": "big"}, "expected a size such as 64, .* not 'big'"),
        ({"mean": "a,b"}, "expected a number, or a list"),
        ({"scale": "1,2"}, "expected one number"),
        ({"sise": 3}, "no option 'sise'; did you mean 'size'"),
        ({"colours": "XYZ"}, "colours of images"),
    ):
        with pytest.raises(UsageError, match=message):
            data.read(folder, **options)


def test_lists(photos, tmp_path):
    photos({"cat": 2, "dog": 1})
    listing = tmp_path / "list.tsv"
    listing.write_bytes(
        "\ufeffphotos/dog/0.png\tdog\r\nphotos/cat/1.png\ta cat\n\n".encode()
        + os.fsencode(f"{tmp_path}/photos/cat/0.png\tdog")
    )
    found = data.read(f"images:{listing}")
    assert found.classes == ("a cat", "dog")
    assert found.targets.tolist() == [1, 0, 1]
    wanted = data.read(tmp_path / "photos")
    np.testing.assert_array_equal(found.take([0, 1, 2])[0], wanted.take([2, 1, 0])[0])
    listing.write_text("photos/dog/0.png\t7\nphotos/cat/1.png\t0\n")
    numbered = data.read(f"images:{listing}")
    assert numbered.classes is None
    assert numbered.targets.tolist() == [7, 0]
    for text, message in (
        ("", "the list contains no image"),
        ("photos/dog/0.png\tdog\nphotos/dog/0.png dog\n", "line 2: expected a path, a tab and a class"),
        ("photos/dog/0.png\t\n", "line 1: expected a path, a tab"),
        ("a\tb\tc\n", "line 1: expected a path, a tab"),
    ):
        listing.write_text(text)
        with pytest.raises(InputError, match=rf"list\.tsv.*{message}"):
            data.read(f"images:{listing}")
    listing.write_bytes(b"\xff\t1\n")
    with pytest.raises(InputError, match=r"list\.tsv: not a list of images"):
        data.read(f"images:{listing}")


def test_sizes_that_a_batch_cannot_hold(photos):
    folder = photos({"a": 1})
    photos({"b": 1}, size=(9, 6))
    with pytest.raises(InputError, match=r"photos: .*shape"):
        data.read(folder, resize="none", crop="none").take(slice(None))


def test_train_and_test_of_other_forms_are_not_joined(photos):
    one = data.read(photos({"a": 1}), size=4)
    assert one.joined(one, "both").targets.tolist() == [0, 0]
    with pytest.raises(InputError, match=r"both: .*their images are preprocessed differently"):
        one.joined(data.read(photos({"a": 1}), size=5), "both")
    with pytest.raises(InputError, match=r"both: .*they have different classes"):
        one.joined(data.read(photos({"a": 1, "b": 1}), size=4), "both")


def test_without_pillow(photos, monkeypatch):
    folder = photos({"a": 1})
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependency, match=r"pip install '\.\[images\]'"):
        data.read(folder)


def sides(folder, **options):
    """Return for each file whether it is in the validation part."""
    parts = data.load(folder, **options)
    return {name: part is parts.test for part in parts for name in part.sample_names()}


def test_pictures_stay_on_their_side_when_others_come_and_go(photos):
    folder = photos({"cat": 40, "dog": 30})
    before = sides(folder)
    assert 5 <= sum(before.values()) <= 25
    (folder / "cat" / "3.png").rename(folder / "dog" / "aaa.png")
    for number in (0, 17):
        (folder / "dog" / f"{number}.png").unlink()
    Image.new("RGB", (8, 8)).save(folder / "cat" / "another.png")
    after = sides(folder)
    kept = before.keys() & after.keys()
    assert len(kept) == 67
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}


def test_every_class_of_two_pictures_is_on_both_sides(photos):
    folder = photos({"cat": 9, "dog": 2, "fox": 3, "owl": 1})
    for seed in range(20):
        found = sides(folder, seed=seed)
        for name in ("cat", "dog", "fox"):
            assert {side for file, side in found.items() if file.startswith(name)} == {True, False}, (seed, name)


def test_seed_and_share_choose_the_pictures(photos):
    folder = photos({"cat": 60, "dog": 60})
    assert sides(folder) != sides(folder, seed=1)
    held_out = [sum(sides(folder, test_fraction=share).values()) for share in (0.1, 0.4, 0.8)]
    assert held_out == sorted(held_out)
    assert all(abs(count - 120 * share) < 20 for count, share in zip(held_out, (0.1, 0.4, 0.8), strict=True))


def test_split_by_position_is_that_of_data_without_names(photos):
    folder = photos({"cat": 10, "dog": 10})
    parts = data.load(folder, split="position")
    assert (len(parts.train), len(parts.test)) == (16, 4)
    with pytest.raises(UsageError, match="samples can be split by 'name' or 'position', not 'size'"):
        data.load(folder, split="size")
    with pytest.raises(UsageError, match="the samples have no names; use by='position'"):
        data.Dataset(np.zeros(4), name="four").split(by="name")
