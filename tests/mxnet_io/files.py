"""Files of MXNet that tests write, byte by byte from the format's description."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# MXNet's numbers of element types.
TYPES = {"float32": 0, "float64": 1, "float16": 2, "uint8": 3, "int32": 4, "int8": 5, "int64": 6, "bool": 7}


def dense(array: np.ndarray, version: int = 2) -> bytes:
    """An array of format V0, V1, V2 or V3."""
    kind = struct.pack("<iii", 1, 0, TYPES[array.dtype.name])
    if version == 0:
        return struct.pack(f"<I{array.ndim}I", array.ndim, *array.shape) + kind + array.tobytes()
    shape = struct.pack(f"<i{array.ndim}q", array.ndim, *array.shape)
    begin = struct.pack("<I", 0xF993FAC7 + version) + (struct.pack("<i", 0) if version > 1 else b"")
    return begin + shape + kind + array.tobytes()


def sparse(storage: int, shape: Sequence[int], values: np.ndarray, *indices: np.ndarray) -> bytes:
    """A row-sparse (1) or CSR (2) array. As in files of MXNet, the shape of the stored part of a CSR array is wrong."""

    def sized(sizes: Sequence[int]) -> bytes:
        return struct.pack(f"<i{len(sizes)}q", len(sizes), *sizes)

    head = struct.pack("<Ii", 0xF993FAC9, storage) + sized(values.shape if storage == 1 else (0,)) + sized(shape)
    kinds = b"".join(struct.pack("<i", TYPES[i.dtype.name]) + sized(i.shape) for i in indices)
    data = values.tobytes() + b"".join(i.tobytes() for i in indices)
    return head + struct.pack("<iii", 1, 0, TYPES[values.dtype.name]) + kinds + data


def listed(arrays: Sequence[bytes], names: Sequence[str]) -> bytes:
    """A file of arrays."""
    texts = b"".join(struct.pack("<Q", len(name.encode())) + name.encode() for name in names)
    return struct.pack("<QQQ", 0x112, 0, len(arrays)) + b"".join(arrays) + struct.pack("<Q", len(names)) + texts


def node(op: str, name: str, inputs: Sequence[tuple[int, int]] = (), **fields: Any) -> dict[str, Any]:
    return {"op": op, "name": name, "inputs": [[*entry, 0] for entry in inputs], **fields}


def symbol(nodes: Sequence[Mapping[str, Any]], heads: Sequence[tuple[int, int]], **fields: Any) -> dict[str, Any]:
    variables = [i for i, n in enumerate(nodes) if n["op"] == "null"]
    return {"nodes": list(nodes), "arg_nodes": variables, "heads": [[*head, 0] for head in heads], **fields}


def write_model(folder: Path, document: Mapping[str, Any], arrays: Mapping[str, np.ndarray], epoch: int = 0) -> str:
    """Write NAME-symbol.json and NAME-EPOCH.params into a folder; return the path of the symbol."""
    path = folder / "net-symbol.json"
    path.write_text(json.dumps(document))
    (folder / f"net-{epoch:04d}.params").write_bytes(listed([dense(a) for a in arrays.values()], list(arrays)))
    return str(path)
