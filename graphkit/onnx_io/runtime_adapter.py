"""Adapters in ONNX Runtime's format, `.onnx_adapter`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from graphkit.errors import MissingDependency
from graphkit.ir.atomic import scratch_folder, write_whole


def write_adapter(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write parameters to a `.onnx_adapter` file, completely or not at all.

    A session of ONNX Runtime takes them instead of the defaults of its inputs of the same names.

    Raises MissingDependency without onnxruntime, RuntimeFailure if the file cannot be written.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependency(
            f"writing an .onnx_adapter file needs the package onnxruntime, which cannot be imported: {error}"
        ) from None
    adapter = onnxruntime.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    # The adapter does not keep the values alive.
    values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(np.array(a)) for n, a in arrays.items()}
    adapter.set_parameters(values)
    with scratch_folder() as folder:
        file = folder / "adapter"
        adapter.export_adapter(str(file))
        write_whole(path, [file.read_bytes()])
