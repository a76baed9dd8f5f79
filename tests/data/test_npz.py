"""Untrusted archives of arrays: their contents are not executed, and they respect the memory limit."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import zipfile

import numpy as np
import pytest
from cases import each_case
from combinations import in_one_item

from graphkit.data.files.idx import read_idx
from graphkit.data.files.npz import read_arrays
from graphkit.errors import InputError, OutOfMemory
from graphkit.ir.limits import limited
from graphkit.ir.npz import member_name


def npy(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def test_arrays_by_name(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.eye(2))
    np.save(tmp_path / "a.npy", np.arange(4))
    assert list(read_arrays(tmp_path / "a.npz")) == ["x", "y"]
    np.testing.assert_array_equal(read_arrays(tmp_path / "a.npy")[""], np.arange(4))


NAMES = [
    "x", "a/b", "/Relu_output_0", "../../x", "/tmp/x", "a//b", "a/../b", "..", ".", "C:\\x", "a%41", "aA", "x.npy",
    "x.npy.npy", "a\0b", "é/ü", "a/", "...", "bn:0", "\n", "%2E",
]  # fmt: skip


def test_no_name_of_a_member_is_a_path_out_of_a_folder():
    members = [member_name(name) for name in NAMES]
    assert len(set(members)) == len(NAMES)
    for member in members:
        assert not {"", ".", ".."} & {*member.split("/")}
        assert not any(letter in member for letter in "\\\0\n")
        assert not member.endswith(".npy")
    assert [name for name in NAMES if member_name(name) == name] == ["x", "a/b", "aA", "é/ü", "...", "bn:0"]


def test_names_of_members_are_read_back(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for number, name in enumerate(NAMES):
            archive.writestr(f"{member_name(name)}.npy", npy(np.int64(number)))
        archive.writestr("100%.npy", npy(np.int64(-1)))
        archive.writestr("b%2fc.npy", npy(np.int64(-2)))
        archive.writestr("50%FF.npy", npy(np.int64(-3)))  # no text of UTF-8
    wanted = {name: number for number, name in enumerate(NAMES)} | {"100%": -1, "b%2fc": -2, "50%FF": -3}
    assert {name: int(array) for name, array in read_arrays(tmp_path / "a.npz").items()} == wanted


def test_pickles_are_refused(tmp_path):
    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    (tmp_path / "a.npy").write_bytes(npy(np.array([Hostile()], object), allow_pickle=True))
    np.savez(tmp_path / "a.npz", x=np.array([Hostile()], object))
    for name in ("a.npy", "a.npz"):
        with pytest.raises(InputError, match=name):
            read_arrays(tmp_path / name)
    assert not (tmp_path / "executed").exists()


def test_an_archive_unpacks_to_no_more_than_memory(tmp_path):
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros(1 << 22))
    assert (tmp_path / "bomb.npz").stat().st_size < 1 << 17
    with limited(memory=1 << 20), pytest.raises(OutOfMemory, match=r"bomb\.npz: array 'x': 33554"):
        read_arrays(tmp_path / "bomb.npz")
    assert read_arrays(tmp_path / "bomb.npz")["x"].size == 1 << 22


@in_one_item()
@pytest.mark.parametrize("shape", [(1 << 40,), (1 << 62, 1 << 62), (-1,), (1 << 80,)])
def test_headers_that_lie(tmp_path, shape):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": shape})
    lying = buffer.getvalue() + bytes(56)
    (tmp_path / "a.npy").write_bytes(lying)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", lying)
    for name in ("a.npy", "a.npz"):
        with pytest.raises((InputError, OutOfMemory), match=name):
            read_arrays(tmp_path / name)


def test_headers_that_are_cut_off(tmp_path):
    data = npy(np.zeros(7))
    for place in range(len(data)):
        (tmp_path / "a.npy").write_bytes(data[:place] + b"(" + data[place + 1 :])
        with contextlib.suppress(InputError, OutOfMemory):
            read_arrays(tmp_path / "a.npy")


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.npy")
    with pytest.raises(InputError, match="not a regular file"):
        read_arrays(tmp_path / "pipe.npy")


@each_case(range(200), group=lambda seed: "archives", full=lambda seed: seed >= 50)
def test_damaged_archives_are_named(seed, tmp_path):
    rng = np.random.default_rng(seed)
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(300), y=np.array(["a", "b"]))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    for place in rng.integers(0, len(data), 3):
        data[place] = rng.integers(0, 256)
    (tmp_path / "a.npz").write_bytes(bytes(data[: rng.integers(1, len(data) + 1)]) if seed % 3 == 0 else data)
    with contextlib.suppress(InputError, OutOfMemory):
        read_arrays(tmp_path / "a.npz")


def test_a_packed_idx_file_unpacks_to_no_more_than_memory(tmp_path):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x01" + (1 << 24).to_bytes(4, "big") + bytes(1 << 24)))
    with limited(memory=1 << 20), pytest.raises(OutOfMemory, match=r"bomb\.gz"):
        read_idx(path)
    assert read_idx(path).shape == (1 << 24,)
