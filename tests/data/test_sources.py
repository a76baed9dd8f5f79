from __future__ import annotations

import gzip
import hashlib
import struct

import numpy as np
import pytest
from combinations import in_one_item

from graphkit import data
from graphkit.errors import InputError, UsageError


def write_idx(path, array):
    content = (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


# --- digits -----------------------------------------------------------------------------------------


def test_digits_are_the_uci_numbers():
    digits = data.read("digits")
    assert digits.arrays["x"].shape == (1797, 1, 8, 8)
    assert digits.arrays["x"].dtype == np.float32
    assert digits.targets.dtype == np.int64
    assert digits.num_classes == 10
    assert np.bincount(digits.targets).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert digits.inputs.min() == 0.0
    assert digits.inputs.max() == 1.0
    pixels = (digits.inputs * 16).astype(np.uint8)
    assert pixels[0, 0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert hashlib.sha256(pixels.tobytes() + digits.targets.astype(np.uint8).tobytes()).hexdigest() == DIGEST


DIGEST = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"


def test_digits_split():
    train, test = data.load("digits")
    assert (len(train), len(test)) == (1438, 359)
    assert np.abs(np.bincount(test.targets) - 36).max() <= 1
    again, other = data.load("digits").test, data.load("digits", seed=1).test
    np.testing.assert_array_equal(test.inputs, again.inputs)
    assert (test.targets != other.targets).any()
    assert len(data.load("digits", test_fraction=0.5).test) == 898


def test_the_attribution_is_beside_the_numbers():
    from pathlib import Path

    text = (Path(data.__file__).parent / "files" / "digits.LICENSE.txt").read_text()
    assert "Alpaydin" in text
    assert "Kaynak" in text
    assert "CC BY 4.0" in text


# --- idx folders ------------------------------------------------------------------------------------

IMAGES, LABELS = np.arange(5 * 6 * 7).reshape(5, 6, 7) % 256, np.array([3, 0, 9, 1, 1])


@in_one_item()
@pytest.mark.parametrize("form", ["{}-{}-ubyte", "{}-{}-ubyte.gz", "dotted"])
@pytest.mark.parametrize("prefix", ["", "mnist:"])
def test_mnist_folder(tmp_path, form, prefix):
    for part, count in (("train", 5), ("t10k", 2)):
        for kind, array in (("images-idx3", IMAGES), ("labels-idx1", LABELS)):
            name = f"{part}-{kind.replace('-idx', '.idx')}-ubyte" if form == "dotted" else form.format(part, kind)
            write_idx(tmp_path / name, array[:count])
    train, test = data.load(f"{prefix}{tmp_path}")
    assert (len(train), len(test)) == (5, 2)
    assert train.inputs.shape == (5, 1, 6, 7)
    assert train.inputs.dtype == np.float32
    np.testing.assert_allclose(train.inputs[:, 0], IMAGES / 255.0, rtol=1e-6)
    assert train.targets.tolist() == LABELS.tolist()
    assert train.num_classes == 10
    assert len(data.read(tmp_path)) == 7


def test_mnist_problems_name_the_file(tmp_path):
    with pytest.raises(InputError, match="does not come with the package"):
        data.load("mnist")
    with pytest.raises(InputError, match="no such folder"):
        data.load(f"mnist:{tmp_path / 'none'}")
    with pytest.raises(InputError, match="the folder contains no train-images"):
        data.load(f"mnist:{tmp_path}")
    images, labels = tmp_path / "train-images-idx3-ubyte", tmp_path / "train-labels-idx1-ubyte"
    write_idx(images, IMAGES)
    with pytest.raises(InputError, match="train-labels-idx1-ubyte is missing"):
        data.load(tmp_path)
    write_idx(labels, LABELS[:4])
    with pytest.raises(InputError, match="contains 5 images, but train-labels-idx1-ubyte contains 4 labels"):
        data.load(tmp_path)
    write_idx(labels, IMAGES)
    with pytest.raises(InputError, match="labels of rank 1"):
        data.load(tmp_path)
    write_idx(images, LABELS)
    with pytest.raises(InputError, match="images of rank 3"):
        data.load(tmp_path)


# --- npz --------------------------------------------------------------------------------------------


def test_npz(tmp_path):
    path = tmp_path / "set.npz"
    np.savez(path, x=np.arange(20.0).reshape(10, 2), y=np.arange(10, dtype=np.uint8) % 2)
    found = data.read(path)
    assert found.inputs.dtype == np.float32
    assert found.targets.dtype == np.int64
    assert found.names == ("x",)
    assert [len(part) for part in data.load(path)] == [8, 2]
    np.savez(path, ids=np.arange(10), mask=np.ones((10, 2)), labels=np.arange(10.0))
    found = data.read(path)
    assert found.names == ("ids", "mask")
    assert found.targets.dtype == np.float32
    np.savez(path, x_train=np.zeros((6, 2)), y_train=np.zeros(6, int), x_test=np.zeros((3, 2)), y_test=np.ones(3, int))
    assert [len(part) for part in data.load(path)] == [6, 3]
    assert data.read(path).targets.sum() == 3
    assert data.read(path, held_out=False).targets.sum() == 0


def test_bad_npz(tmp_path):
    path = tmp_path / "set.npz"
    for content, message in (
        (b"", "not a .npy or .npz file: it is empty or has another format"),
        (b"<html></html>", "not a .npy or .npz file: it is empty or has another format"),
        (b"PK\x03\x04junk", "not a readable .npz file: "),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=message) as caught:
            data.load(path)
        assert str(path) in str(caught.value)
    np.savez(path, x=np.arange(1000.0))
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(InputError, match=r"not a readable \.npz file"):
        data.load(path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(InputError, match=r"not a readable \.npz file: it contains one array without a name"):
        data.load(path)
    np.savez(path, x=np.array([{}], dtype=object))
    with pytest.raises(InputError, match=r"not a readable \.npz file"):
        data.load(path)
    np.savez(path, y=np.zeros(3))
    with pytest.raises(InputError, match=r"no input array; give an input the name x \(the file contains y\)"):
        data.load(path)
    np.savez(path, x=np.zeros((3, 2)), y=np.zeros(2))
    with pytest.raises(InputError, match="different numbers of samples: x has 3, targets has 2"):
        data.load(path)
    np.savez(path, x=np.array([[1.0], [np.nan]]))
    with pytest.raises(InputError, match=r"set\.npz: x holds NaN"):
        data.load(path)


# --- csv --------------------------------------------------------------------------------------------


def test_csv(tmp_path):
    path = tmp_path / "set.csv"
    path.write_text("1,2.5,0\n3,4,1\n-1,0,1\n")
    found = data.read(path)
    assert found.inputs.tolist() == [[1, 2.5], [3, 4], [-1, 0]]
    assert found.inputs.dtype == np.float32
    assert found.targets.tolist() == [0, 1, 1]
    assert found.targets.dtype == np.int64
    path.write_text("label,a,b\n1,2,3\n0,5,6\n")
    assert data.read(path).inputs.tolist() == [[2, 3], [5, 6]]
    assert data.read(path).targets.tolist() == [1, 0]
    path.write_text("a,b\n1,2.5\n3,-4\n")
    assert data.read(path).targets.dtype == np.float32
    path.write_text('\ufeff1,"setosa"\n2,virginica\n3,setosa\n', encoding="utf-8")
    found = data.read(path)
    assert found.classes == ("setosa", "virginica")
    assert found.targets.tolist() == [0, 1, 0]


@in_one_item()
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "comma-separated"),
        ("<html>\n", "there is a header, but no sample"),
        ("a,b\n", "there is a header, but no sample"),
        ("1,2,0\n3,x,1\n", "set.csv: line 2: 'x' in column '1' is not a number, but '2' in line 1 is"),
        ("1,2,0\n3,1\n5,6,1\n", r"set.csv: line 2 has 2 columns \('3,1'\); the first line has 3"),
        ("1,2,0\n3,nan,1\n", "set.csv: column '1' has no value in 1 of 2 rows, first in line 2"),
        ("1,2,0\n3,4,nan\n", "set.csv: the target '2' has no value in 1 of 2 rows, first in line 2"),
        ("1,2,0\n3,inf,1\n", "set.csv.*: x holds infinity in 1 of 2 samples, first in sample 1"),
    ],
)
def test_bad_csv(tmp_path, text, message):
    path = tmp_path / "set.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        data.read(path)
    path.write_bytes(b"\xfa\xfe\x00\x01")
    with pytest.raises(InputError, match="cannot be read as text"):
        data.read(path)


# --- specs ------------------------------------------------------------------------------------------


def test_folders_with_train_and_test(tmp_path):
    (tmp_path / "train.csv").write_text("1,0\n2,1\n3,0\n4,1\n5,1\n")
    assert len(data.read(tmp_path)) == 5
    (tmp_path / "test.csv").write_text("9,1\n")
    assert [len(part) for part in data.load(tmp_path)] == [5, 1]


def test_unknown_specs(tmp_path):
    with pytest.raises(InputError, match="no data set of that name; did you mean 'digits'"):
        data.load("digit")
    (tmp_path / "a.txt").write_text("1")
    with pytest.raises(InputError, match=r"the suffix is '.txt'; known: .npz, .csv, .tsv, .parquet, .rec, or a folder"):
        data.load(tmp_path / "a.txt")
    with pytest.raises(InputError, match=r"contains no data set; expected .*; found a\.txt"):
        data.load(tmp_path)
    (tmp_path / "a.py").write_text("")
    with pytest.raises(InputError, match=r"a\.py is a Python file: also name the function .*a\.py:FUNCTION$"):
        data.load(tmp_path / "a.py")
    with pytest.raises(UsageError, match=r"^the seed of a data set must be an integer from 0 to .*, not -1$"):
        data.load("digits", seed=-1)


def test_samples_along_other_axes(tmp_path):
    path = tmp_path / "set.npz"
    state = np.arange(24.0).reshape(2, 6, 2)
    np.savez(path, x=np.arange(6.0)[:, None], state=state, rate=np.float32(16), y=np.arange(6.0))
    with pytest.raises(InputError, match="rate is a single number"):
        data.read(path)
    axes = {"state": 1, "rate": None}
    found = data.read(path, axes=axes)
    assert len(found) == 6
    train, test = data.load(path, axes=axes)
    assert (len(train), len(test)) == (5, 1)
    for batch in train.batches(2, seed=1):
        rows = batch.targets.astype(int)
        np.testing.assert_array_equal(batch.inputs["state"], state[:, rows])
        np.testing.assert_array_equal(batch.inputs["x"][:, 0], batch.targets)
        assert batch.inputs["rate"] == 16
    with pytest.raises(InputError, match="did you mean 'state'"):
        data.read(path, axes={"stat": 1, "rate": None})
    with pytest.raises(InputError, match="no axis 3 to count samples"):
        data.read(path, axes={"state": 3, "rate": None})
    with pytest.raises(InputError, match="numbers of samples: x has 6, state has 2"):
        data.read(path, axes={"rate": None})
    with pytest.raises(InputError, match=r"axes= \(--batch-axis\) is only for \.npz"):
        data.read("digits", axes={"x": 1})
    state[1, 4, 0] = np.nan
    np.savez(path, x=np.arange(6.0)[:, None], state=state, y=np.arange(6.0))
    with pytest.raises(InputError, match="state holds NaN in 1 of 6 samples, first in sample 4"):
        data.read(path, axes={"state": 1})


def test_parts_that_are_joined_along_their_axis(tmp_path):
    path = tmp_path / "set.npz"
    np.savez(path, x_train=np.ones((2, 6)), x_test=np.zeros((2, 3)), y_train=np.ones(6), y_test=np.zeros(3))
    assert [len(part) for part in data.load(path, axes={"x": 1})] == [6, 3]
    joined = data.read(path, axes={"x": 1})
    np.testing.assert_array_equal(joined.inputs[0], joined.targets)
