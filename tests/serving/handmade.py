"""Small models, and requests in binary form that are written by hand."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

import graphkit as gk

HEADER = "Inference-Header-Content-Length"


def write_scaled(path: Path, factor: float = 2.0, name: str = "scaled") -> Path:
    """Write a model y = factor * x of float32 [N, 3]. name: of its graph."""
    path.parent.mkdir(parents=True, exist_ok=True)
    x = gk.input("x", ["N", 3])
    gk.Model({"y": x * gk.constant(np.float32(factor))}, name=name).save(path)
    return path


def encoded(name: str, datatype: str, array: np.ndarray, **header: Any) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a request with one binary input, written by hand."""
    if datatype == "BYTES":
        texts = [str(item).encode() for item in array.reshape(-1)]
        data = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    else:
        data = array.tobytes()
    tensor = {
        "name": name, "datatype": datatype, "shape": list(array.shape), "parameters": {"binary_data_size": len(data)},
    }  # fmt: skip
    text = json.dumps({"inputs": [tensor], **header}).encode()
    return text + data, {HEADER: str(len(text))}
