"""Weights files, compared with the library of their format: which files are read, and their contents."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import InvalidModel, UsageError
from graphkit.ir import weights
from graphkit.ir.hashing import BLAKE2B8, hash_of
from graphkit.ir.stored import LARGE, StoredArray, StoredFile
from graphkit.ir.types import dtype_of
from graphkit.ir.weights import read_weights

# A header, and how many bytes lie behind it.
FILES: dict[str, tuple[Any, int]] = {
    "nothing": ({}, 0),
    "one tensor": ({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, 8),
    "metadata": ({"__metadata__": {"a": "b"}, "w": {"dtype": "I8", "shape": [], "data_offsets": [0, 1]}}, 1),
    "in another order": (
        {
            "b": {"dtype": "U8", "shape": [3], "data_offsets": [4, 7]},
            "empty": {"dtype": "F64", "shape": [0, 9], "data_offsets": [4, 4]},
            "a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]},
        },
        7,
    ),
    "a large one": (
        {
            "small": {"dtype": "U8", "shape": [5], "data_offsets": [LARGE, LARGE + 5]},
            "large": {"dtype": "BF16", "shape": [LARGE // 2], "data_offsets": [0, LARGE]},
        },
        LARGE + 5,
    ),
    "too few bytes": ({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, 7),
    "too many bytes": ({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, 9),
    "a hole": ({"w": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}}, 8),
    "an unknown type": ({"w": {"dtype": "F33", "shape": [2], "data_offsets": [0, 8]}}, 8),
}


def written(path: Path, entries: Any, size: int) -> dict[str, str]:
    """Writes such a file; returns the reference of a file of version 1 to it."""
    text = json.dumps(entries).encode()
    content = struct.pack("<Q", len(text)) + text + np.arange(size).astype(np.uint8).tobytes()
    path.write_bytes(content)
    return {"sha256": hashlib.sha256(content).hexdigest()}


@in_one_item()
@pytest.mark.parametrize("case", FILES)
def test_files_are_those_that_safetensors_reads(tmp_path: Path, case: str) -> None:
    path = tmp_path / "w.safetensors"
    reference = written(path, *FILES[case])
    try:
        read = safetensors.deserialize(path.read_bytes())
    except safetensors.SafetensorError:
        with pytest.raises(InvalidModel, match=r"'w.safetensors'.* is truncated or damaged"):
            read_weights(path, reference, {})
        return
    wanted = {name: (entry["dtype"], bytes(entry["data"])) for name, entry in read}
    found = read_weights(path, reference, {name: (code, None) for name, (code, _) in wanted.items()})
    assert {name: np.asarray(a).tobytes() for name, a in found.items()} == {n: data for n, (_, data) in wanted.items()}
    assert {n for n, a in found.items() if isinstance(a, StoredArray)} == ({"large"} if "large" in found else set())


def test_a_type_that_arrays_do_not_have_is_named(tmp_path: Path) -> None:
    """Some types of the library take less than a byte per element."""
    path = tmp_path / "w.safetensors"
    reference = written(path, {"w": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}, 2)
    with pytest.raises(InvalidModel, match="'w' is of type 'F4'"):
        read_weights(path, reference, {})


def test_files_of_both_hashes_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    old = written(path, {"w": {"dtype": "U8", "shape": [5000], "data_offsets": [0, 5000]}}, 5000)
    content = path.read_bytes()
    new = {"hash": f"blake2b8:{hash_of(BLAKE2B8, [content])}", "bytes": len(content)}
    for reference in (old, new, {"hash": f"sha256:{old['sha256']}"}):
        path.write_bytes(content)
        assert read_weights(path, reference, {})["w"].shape == (5000,)
        for place in (len(content) - 1, len(content) - 5000, len(content) - 2500):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            with pytest.raises(InvalidModel, match=r"'w.safetensors' is not the one .*(SHA-256|blake2b8) differs"):
                read_weights(path, reference, {})


REFERENCES: dict[str, tuple[dict[str, Any], str]] = {
    "no hash": ({}, "lacks its hash"),
    "hash is a number": ({"hash": 5}, "lacks its hash"),
    "hash without a name": ({"hash": "0123"}, "lacks its hash"),
    "SHA-256 is a number": ({"sha256": 5}, "lacks its hash"),
    "unknown hash": ({"hash": "md5:0123"}, "has the hash 'md5'; this graphkit knows blake2b8, sha256: upgrade"),
    "name of a hash in capitals": ({"hash": "SHA256:0123"}, "has the hash 'SHA256'"),
    "empty hash": ({"hash": "blake2b8:"}, "hash blake2b8 differs"),
    "size": ({"hash": "blake2b8:0", "bytes": 5}, "bytes; the one that the graph was saved with has 5"),
    "size is a float": ({"hash": "blake2b8:0", "bytes": 5.0}, "has 5.0"),
    "size is a long text": ({"hash": "blake2b8:0", "bytes": "5" * 9999}, "has '5555"),
    "size is a boolean": ({"hash": "blake2b8:0", "bytes": True}, "has True"),
}


@in_one_item()
@pytest.mark.parametrize("case", REFERENCES)
def test_references_that_do_not_fit_are_rejected(tmp_path: Path, case: str) -> None:
    path = tmp_path / "w.safetensors"
    written(path, *FILES["one tensor"])
    reference, message = REFERENCES[case]
    with pytest.raises(InvalidModel, match=f"'w.safetensors'.*{message}") as caught:
        read_weights(path, reference, {})
    assert len(str(caught.value)) < 300


def test_content_is_that_of_the_library() -> None:
    arrays = {
        "c": np.array([True, False, True]), "ä": np.arange(5, dtype=np.float32), "b": np.arange(3, dtype=np.int64),
        "a": np.arange(7).astype(np.float16), "none": np.zeros((0, 4), np.float64), "scalar": np.asarray(3, np.float16),
    }  # fmt: skip
    head = weights._head({n: weights.stored(a, dtype_of(a.dtype)) for n, a in arrays.items()})
    written = b"".join(weights._chunks(*head))
    assert written == safetensors.numpy.save(arrays, metadata={"format": "graphkit"})


def test_a_tensor_with_the_name_of_the_metadata(tmp_path: Path) -> None:
    array = np.arange(3000, dtype=np.float32)
    with pytest.raises(UsageError, match="cannot store a tensor named '__metadata__'"):
        weights.write_arrays(tmp_path / "a.safetensors", {"__metadata__": array})
    assert not list(tmp_path.iterdir())
    parameter = gk.parameter("__metadata__", [3000], init="zeros")
    model = gk.Model(gk.relu(parameter))
    model.params["__metadata__"] = array
    model.save(tmp_path / "net.json")
    np.testing.assert_array_equal(gk.load(tmp_path / "net.json").params["__metadata__"], array)


def test_a_folder_is_no_weights_file(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").mkdir()
    with pytest.raises(InvalidModel, match=r"'w.safetensors'.* cannot be read"):
        read_weights(tmp_path / "w.safetensors", {"sha256": ""}, {"w": ("F32", None)})


def test_the_header_is_that_of_the_file_that_is_open(tmp_path: Path) -> None:
    path, other = tmp_path / "w", tmp_path / "other"
    path.write_bytes(b"one")
    other.write_bytes(b"another")
    file = StoredFile(path)
    os.replace(other, path)
    assert Path(file.descriptor_path).read_bytes() == b"one"
