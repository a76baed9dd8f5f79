"""Images in record files: packed as im2rec does, read as a data set, checked."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from combinations import in_one_item
from PIL import Image

from graphkit import data
from graphkit.data.records import RecordFile, RecordWriter, pack, unpack
from graphkit.data.records.checking import check
from graphkit.data.records.packing import pack_images
from graphkit.errors import DamagedSample, InputError, UsageError

RNG = np.random.default_rng(0)


def png(size=(12, 10), mode="RGB"):
    pixels = RNG.integers(0, 256, (size[1], size[0], 3), np.uint8)
    made = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(made, "PNG")
    return made.getvalue()


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    for name, count in (("cat", 3), ("dog", 2)):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            (folder / name / f"{i}.png").write_bytes(png())
    return folder


def test_a_folder_is_packed_byte_for_byte_and_read_as_the_folder_is(photos, tmp_path):
    path = tmp_path / "photos.rec"
    assert pack_images(photos, path).records == 5
    records = RecordFile(path)
    files = [*sorted((photos / "cat").iterdir()), *sorted((photos / "dog").iterdir())]
    for number, file in enumerate(files):
        header, content = unpack(records[number])
        assert (header.flag, header.label, header.id) == (0, float(number >= 3), number)
        assert bytes(content) == file.read_bytes()
    found, folder = data.read(path), data.read(photos)
    assert found.classes == folder.classes == ("cat", "dog")
    assert found.targets.tolist() == folder.targets.tolist()
    assert found.preprocess == folder.preprocess
    np.testing.assert_array_equal(found.take(slice(0, 5))[0], folder.take(slice(0, 5))[0])


def test_workers_read_records(photos, tmp_path):
    path = tmp_path / "photos.rec"
    pack_images(photos, path)
    here = list(data.read(path, size=8, augment="crop,flip").batches(2, seed=1))
    there = list(data.read(path, size=8, augment="crop,flip").batches(2, seed=1, workers=2))
    for one, other in zip(here, there, strict=True):
        np.testing.assert_array_equal(one.inputs, other.inputs)
        np.testing.assert_array_equal(one.targets, other.targets)


def test_resized_shuffled_and_encoded(photos, tmp_path):
    path = tmp_path / "small.rec"
    pack_images(photos, path, resize=5, encoding="png", shuffle=True, seed=4)
    records = RecordFile(path)
    assert sorted(records.keys.tolist()) == [0, 1, 2, 3, 4]
    assert records.keys.tolist() != [0, 1, 2, 3, 4]
    for number in range(5):
        image = Image.open(io.BytesIO(unpack(records[number])[1]))
        assert (image.format, image.size) == ("PNG", (6, 5))
    again = tmp_path / "again.rec"
    pack_images(photos, again, resize=5, encoding="png", shuffle=True, seed=4)
    assert again.read_bytes() == path.read_bytes()
    pack_images(photos, path, encoding="jpg", quality=50)
    assert Image.open(io.BytesIO(unpack(RecordFile(path)[0])[1])).format == "JPEG"
    for options in ({"encoding": "gif"}, {"quality": 0}, {"resize": 0}):
        with pytest.raises(UsageError):
            pack_images(photos, path, **options)


def test_lists_of_im2rec_with_several_labels(photos, tmp_path):
    listing = tmp_path / "photos.lst"
    listing.write_text("7\t1.5\t2.0\tphotos/cat/0.png\n3\t-1.0\t0.25\tphotos/dog/1.png\n")
    pack_images(listing, tmp_path / "boxes.rec")
    records = RecordFile(tmp_path / "boxes.rec")
    assert records.keys.tolist() == [7, 3]
    header, content = unpack(records[1])
    assert header.label.tolist() == [-1.0, 0.25]
    assert header.id == 3
    assert bytes(content) == (photos / "dog" / "1.png").read_bytes()
    found = data.read(tmp_path / "boxes.rec")
    assert found.targets.tolist() == [[1.5, 2.0], [-1.0, 0.25]]
    assert found.classes is None
    for line in ("x\t1\tphotos/cat/0.png", "1\tphotos/cat/0.png\textra", "1"):
        listing.write_text(line + "\n")
        with pytest.raises(InputError, match=r"photos\.lst, line 1: expected a number, labels and a path"):
            pack_images(listing, tmp_path / "boxes.rec")
    listing.write_text("1\t0\tphotos/none.png\n")
    with pytest.raises(InputError, match=r"none\.png cannot be read"):
        pack_images(listing, tmp_path / "boxes.rec")


def test_what_is_damaged_is_named_or_left_out(photos, tmp_path):
    (photos / "cat" / "1.png").write_bytes(b"no image")
    path = tmp_path / "photos.rec"
    with pytest.raises(InputError, match=r"1\.png cannot be read as an image"):
        pack_images(photos, path)
    assert not path.exists()
    packed = pack_images(photos, path, skip_damaged=True)
    assert packed.records == 4
    assert "1.png" in packed.damaged[0]
    assert RecordFile(path).keys.tolist() == [0, 2, 3, 4]


def test_a_damaged_picture_in_a_record_is_a_damaged_sample(tmp_path):
    path = tmp_path / "a.rec"
    with RecordWriter(path) as writer:
        for number, content in enumerate((png(), b"junk", png())):
            writer.write(pack((0, 0.0, number, 0), content))
    found = data.read(path)
    with pytest.raises(DamagedSample, match=r"a\.rec: record 1 \(key 1, at byte \d+\) cannot be read as an image"):
        found.take(slice(0, 3))
    with pytest.warns(UserWarning, match="sample 1 is replaced by the next readable one"):
        inputs, _ = found.configured(on_damaged="skip").take(slice(0, 3))
    np.testing.assert_array_equal(inputs[1], inputs[2])


@in_one_item()
@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([b"short"], r"record 0 .*: a record of 5 bytes is too short for its header"),
        ([struct.pack("<IfQQ", 9, 0, 0, 0)], "too short for the 9 labels"),
        (
            [pack((0, 1.0, 0, 0), b"x"), pack((0, [1.0, 2.0], 1, 0), b"x")],
            r"record 1 .*: it has 2 labels, but the first record has 1",
        ),
        ([], "the file contains no record"),
    ],
)
def test_headers_that_cannot_be(tmp_path, contents, message):
    path = tmp_path / "a.rec"
    with RecordWriter(path) as writer:
        for content in contents:
            writer.write(content)
    with pytest.raises(InputError, match=message) as caught:
        data.read(path)
    assert "a.rec" in str(caught.value)


def test_labels_of_other_kinds(tmp_path):
    path = tmp_path / "a.rec"
    for labels, dtype in (([0.0, 3.0], np.int64), ([0.5, 1.0], np.float32), ([-1.0, 1.0], np.float32)):
        with RecordWriter(path) as writer:
            for number, label in enumerate(labels):
                writer.write(pack((0, label, number, 0), png()))
        targets = data.read(path).targets
        assert targets.dtype == dtype
        assert targets.tolist() == labels
    (tmp_path / "a.classes.txt").write_text("one\n")
    with RecordWriter(path) as writer:
        writer.write(pack((0, 1.0, 0, 0), png()))
    with pytest.raises(InputError, match=r"a\.classes\.txt: it has 1 classes, but a\.rec contains the label 1"):
        data.read(path)


# --- checks and commands ----------------------------------------------------------------------------


def test_check(photos, tmp_path):
    path = tmp_path / "photos.rec"
    pack_images(photos, path)
    assert check(path, decode=True).problems == []
    content = bytearray(path.read_bytes())
    positions = RecordFile(path).positions
    content[positions[2]] ^= 1
    content[positions[4] + 60] ^= 0xFF
    path.write_bytes(content)
    found = check(path, decode=True)
    assert found.records == 4
    assert any(f"damaged at byte {positions[2]}" in p for p in found.problems)
    assert any(f"lists byte {positions[2]}, but no record begins there" in p for p in found.problems)
    assert any("cannot be read as an image" in p for p in found.problems)
    (tmp_path / "photos.idx").write_text("0\t0\n")
    assert sum("does not list the record" in p for p in check(path).problems) == 3


def test_commands(photos, tmp_path, capsys):
    import json

    from graphkit.cli import invoke

    path = str(tmp_path / "photos.rec")
    assert invoke(["records", "pack", str(photos), "-o", path]) == 0
    assert "5 records" in capsys.readouterr().err
    assert invoke(["records", "list", path, "--first", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [r["label"] for r in rows["records"]] == [0.0, 0.0]
    assert rows["count"] == 5
    assert invoke(["records", "list", path]) == 0
    assert "5 records" in capsys.readouterr().out
    assert invoke(["records", "check", path, "--decode"]) == 0
    assert "0 problems" in capsys.readouterr().out
    content = (tmp_path / "photos.rec").read_bytes()
    (tmp_path / "photos.rec").write_bytes(content[:-8])
    assert invoke(["records", "check", path]) == 1
    assert "the file ends within a record" in capsys.readouterr().out
    (photos / "dog" / "0.png").write_bytes(b"")
    assert invoke(["records", "pack", str(photos), "-o", path]) == 2
    assert invoke(["records", "pack", str(photos), "-o", path, "--on-damaged", "skip", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["records"] == 4
    assert "left out" in captured.err
