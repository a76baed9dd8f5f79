"""MXNet's files of arrays: every format is read, files are written, and damaged files are errors."""

from __future__ import annotations

import random
import struct

import ml_dtypes
import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.mxnet_io import read_arrays, write_arrays
from tests.mxnet_io.files import dense, listed, sparse

MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3)


def _read(tmp_path, data: bytes) -> dict[str, np.ndarray]:
    path = tmp_path / "net.params"
    path.write_bytes(data)
    return {name: np.asarray(array) for name, array in read_arrays(path).items()}


@in_one_item()
@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_every_format_of_dense_arrays_is_read(tmp_path, version):
    arrays = [MATRIX, np.arange(4, dtype=np.int64), np.ones((1, 2, 3, 4), np.float16)]
    found = _read(tmp_path, listed([dense(a, version) for a in arrays], ["arg:a", "aux:b", "c"]))
    assert list(found) == ["arg:a", "aux:b", "c"]
    for array, expected in zip(found.values(), arrays, strict=True):
        assert array.dtype == expected.dtype
        np.testing.assert_array_equal(array, expected)


@in_one_item()
@pytest.mark.parametrize("dtype", ["float64", "float16", "uint8", "int32", "int8", "int64", "bool"])
def test_every_element_type_is_read(tmp_path, dtype):
    array = (MATRIX % 2).astype(dtype)
    found = _read(tmp_path, listed([dense(array)], ["a"]))["a"]
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def test_arrays_without_names_are_numbered(tmp_path):
    assert list(_read(tmp_path, listed([dense(MATRIX), dense(MATRIX)], []))) == ["0", "1"]


def test_scalars_and_empty_arrays_of_format_v3(tmp_path):
    arrays = [np.array(2.5, np.float32), np.zeros((0, 4), np.float32)]
    found = _read(tmp_path, listed([dense(a, 3) for a in arrays], ["scalar", "empty"]))
    assert found["scalar"] == np.float32(2.5)
    assert found["scalar"].shape == ()
    assert found["empty"].shape == (0, 4)


def test_an_array_without_axes_is_empty_before_v3(tmp_path):
    nothing = struct.pack("<Iii", 0xF993FAC9, 0, 0)
    assert _read(tmp_path, listed([nothing], ["a"]))["a"].size == 0


def test_a_row_sparse_array_becomes_dense(tmp_path):
    data = sparse(1, (4, 3), MATRIX, np.array([1, 3], np.int64))
    expected = np.zeros((4, 3), np.float32)
    expected[[1, 3]] = MATRIX
    np.testing.assert_array_equal(_read(tmp_path, listed([data], ["a"]))["a"], expected)


def test_a_csr_matrix_becomes_dense(tmp_path):
    expected = np.array([[0, 5, 0], [0, 0, 0], [7, 0, 8]], np.float32)
    data = sparse(2, (3, 3), np.float32([5, 7, 8]), np.array([0, 1, 1, 3], np.int64), np.array([1, 0, 2], np.int64))
    np.testing.assert_array_equal(_read(tmp_path, listed([data], ["a"]))["a"], expected)


@in_one_item()
@pytest.mark.parametrize(
    ("indices", "words"),
    [
        ([np.array([0, 1, 1, 3]), np.array([1, 0, 3])], "index 3 of 3"),
        ([np.array([0, 1, 1, 3]), np.array([1, -1, 2])], "index"),
        ([np.array([0, 2, 1, 3]), np.array([1, 0, 2])], "must increase"),
        ([np.array([0, 1, 1, 4]), np.array([1, 0, 2])], "must increase"),
        ([np.array([0, 1, 3]), np.array([1, 0, 2])], "row starts"),
    ],
)
def test_a_csr_matrix_with_wrong_indices_is_an_error(tmp_path, indices, words):
    data = sparse(2, (3, 3), np.float32([5, 7, 8]), *(i.astype(np.int64) for i in indices))
    with pytest.raises(gk.errors.InvalidModel, match=rf"array 0 of 1.*{words}"):
        _read(tmp_path, listed([data], ["a"]))


def test_large_arrays_stay_in_the_file(tmp_path):
    array = np.random.default_rng(0).random((300, 200)).astype(np.float32)
    path = tmp_path / "net.params"
    write_arrays(path, {"arg:w": array})
    found = read_arrays(path)["arg:w"]
    assert not isinstance(found, np.ndarray)
    np.testing.assert_array_equal(np.asarray(found), array)


def test_mxnet_2_files_are_numpy_archives(tmp_path):
    path = tmp_path / "net.params"
    with path.open("wb") as file:
        np.savez(file, **{"dense0.weight": MATRIX})
    np.testing.assert_array_equal(read_arrays(path)["dense0.weight"], MATRIX)


def test_written_arrays_are_read_bit_for_bit(tmp_path):
    path = tmp_path / "net.params"
    arrays = {
        "arg:a": np.array([[np.nan, -0.0], [np.inf, 1e-42]], np.float32),
        "aux:ü": np.arange(3, dtype=np.int8),
        "scalar": np.array(1.5),
        "empty": np.zeros((2, 0), np.float16),
        "bool": np.array([True, False]),
        "bfloat16": np.array([1.5, -2.0], ml_dtypes.bfloat16),
        "transposed": MATRIX.T,
    }
    write_arrays(path, arrays)
    found = read_arrays(path)
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert np.asarray(found[name]).tobytes() == np.ascontiguousarray(array).tobytes()


def test_written_bytes_are_those_of_format_v2(tmp_path):
    path = tmp_path / "net.params"
    write_arrays(path, {"arg:a": MATRIX})
    assert path.read_bytes() == listed([dense(MATRIX)], ["arg:a"])


def test_with_an_empty_array_all_are_in_format_v3(tmp_path):
    """MXNet reads a file with scalars or empty arrays only in a mode in which every array must have this format."""
    path = tmp_path / "net.params"
    arrays = {"a": MATRIX, "empty": np.zeros((0, 2), np.float32)}
    write_arrays(path, arrays)
    assert path.read_bytes() == listed([dense(a, 3) for a in arrays.values()], list(arrays))


def test_types_that_mxnet_lacks_are_not_written(tmp_path):
    with pytest.raises(gk.errors.UnsupportedError, match="'a' is complex64"):
        write_arrays(tmp_path / "net.params", {"a": np.zeros(1, np.complex64)})
    assert not list(tmp_path.iterdir())


GOOD = listed([dense(MATRIX), sparse(1, (4, 3), MATRIX, np.array([1, 3], np.int64))], ["arg:a", "arg:b"])


@in_one_item()
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not a file of MXNet arrays"),
        (b"{}" * 20, "is not a file of MXNet arrays"),
        (GOOD[:40], "array 0 of 2: the file ends there"),
        (GOOD[:80], "float32.*take 24 bytes, but the file has only"),
        (GOOD[:-5], "bytes of a name do not fit"),
        (GOOD + b"x", "1 bytes follow the last name"),
        (listed([dense(MATRIX)], ["a", "b"]), "there are 1 arrays, but 2 names"),
        (listed([dense(MATRIX)] * 2, ["a", "a"]), "two arrays have the name 'a'"),
        (struct.pack("<QQQ", 0x112, 0, 1 << 60), "do not fit into the rest of the file"),
        (struct.pack("<QQQII", 0x112, 0, 1, 0xF993FAC8, 99) + bytes(400), "it has 99 axes"),
        (struct.pack("<QQQIiq", 0x112, 0, 1, 0xF993FAC8, 1, -3) + bytes(400), r"it has the shape \[-3\]"),
        (struct.pack("<QQQIiqiii", 0x112, 0, 1, 0xF993FAC8, 1, 1 << 62, 1, 0, 0) + bytes(400), "take 18446744073709"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_the_place(tmp_path, data, words):
    with pytest.raises(gk.errors.InvalidModel, match=words) as caught:
        _read(tmp_path, data)
    assert "net.params" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (struct.pack("<QQQIi", 0x112, 0, 1, 0xF993FAC9, 7) + bytes(40), "storage type 7"),
        (struct.pack("<QQQIiqiii", 0x112, 0, 1, 0xF993FAC8, 1, 1, 1, 0, 99) + bytes(40), "element type 99"),
    ],
)
def test_unknown_kinds_of_arrays_are_named(tmp_path, data, words):
    with pytest.raises(gk.errors.UnsupportedError, match=f"array 0 of 1 has {words}"):
        _read(tmp_path, data)


def test_a_huge_sparse_array_is_refused(tmp_path):
    data = sparse(1, (1 << 40, 3), MATRIX, np.array([1, 3], np.int64))
    with pytest.raises(gk.errors.OutOfMemory, match="array 0 of 1"):
        _read(tmp_path, listed([data], ["a"]))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(gk.errors.UsageError, match=r"nothing\.params': no such file"):
        read_arrays(tmp_path / "nothing.params")


def test_randomly_damaged_npz_files_end_in_named_errors(tmp_path):
    draw = random.Random(0)
    path = tmp_path / "net.params"
    np.savez(tmp_path / "net.npz", a=np.arange(6, dtype=np.float32), b=np.arange(4))
    good = (tmp_path / "net.npz").read_bytes()
    errors = []
    for _ in range(400):
        data = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            place = draw.randrange(4, len(data))
            data[place] = draw.choice([0, 1, 127, 128, 255, draw.randrange(256)])
        path.write_bytes(data)
        try:
            read_arrays(path)
        except gk.GraphkitError as error:
            errors.append(str(error))
    assert len(errors) > 100
    assert all("net.params" in error for error in errors)


def test_randomly_damaged_files_end_in_named_errors(tmp_path):
    draw = random.Random(0)
    errors = 0
    for _ in range(400):
        data = bytearray(GOOD)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] = draw.choice([0, 1, 127, 128, 255, draw.randrange(256)])
        try:
            _read(tmp_path, bytes(data[: draw.choice([len(data), draw.randrange(len(data))])]))
        except gk.GraphkitError:
            errors += 1
    assert errors > 200
