from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.data.files.idx import read_idx
from graphkit.errors import InputError


def idx_bytes(array):
    code = {"uint8": 0x08, "int8": 0x09, "int16": 0x0B, "int32": 0x0C, "float32": 0x0D, "float64": 0x0E}[
        array.dtype.name
    ]
    header = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


@in_one_item()
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "float32", "float64"])
@pytest.mark.parametrize("packed", [False, True])
def test_round_trip(tmp_path, dtype, packed):
    array = (np.arange(24).reshape(2, 3, 4) - 5 * (dtype != "uint8")).astype(dtype)
    data = idx_bytes(array)
    # The content decides, not the suffix.
    (tmp_path / "a").write_bytes(gzip.compress(data, mtime=0) if packed else data)
    found = read_idx(tmp_path / "a")
    np.testing.assert_array_equal(found, array)
    assert found.dtype == np.dtype(dtype)
    assert found.dtype.isnative
    assert found.flags.writeable


GOOD = idx_bytes(np.arange(200, dtype=np.uint8).reshape(2, 100))


@in_one_item()
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file: .* but starts with nothing"),
        (b"<!DOCTYPE html>", "not an idx file: .* but starts with 3c21444f"),
        (b"\0\0\x07\x01\0\0\0\0", "not an idx file"),
        (GOOD[:9], "truncated idx file: it has 9 bytes, but its header alone takes 12"),
        (GOOD[:-1], r"truncated idx file: shape \[2, 100\] of uint8 takes 212 bytes, found 211"),
        (GOOD + b"\0", "overlong idx file"),
        (gzip.compress(GOOD, mtime=0)[:-20], "damaged gzip file"),
        (gzip.compress(GOOD, mtime=0)[:20] + b"\xff" * 30, "damaged gzip file"),
        (gzip.compress(GOOD, mtime=0)[:5], "damaged gzip file"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "truncated idx file: shape"),
    ],
)
def test_damaged_files_are_named(tmp_path, content, message):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 2


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match="none: cannot be read: No such file"):
        read_idx(tmp_path / "none")
