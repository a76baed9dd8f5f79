"""The benchmark's networks quantised by onnxruntime.quantization: convolutional ones statically, BERT dynamically."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from workloads import WORKLOADS, ModelFile, model_file

# Images that ranges of activations are found on.
_CALIBRATION = 4


class Quantised(NamedTuple):
    """The file of integers, that of float32 which it was made from, and the workload that both are."""

    name: str
    path: Path
    plain: ModelFile
    workload: str


_ROWS = {"resnet50-int8": "resnet50-1", "mobilenetv2-int8": "mobilenetv2-1", "bert-int8": "bert-1"}
NAMES = tuple(_ROWS)


class _Images:
    """A calibration reader for quantize_static, which yields one feed after the other."""

    def __init__(self, plain: ModelFile):
        self._feeds = iter([plain.arrays(1, seed) for seed in range(_CALIBRATION)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def quantised(name: str, folder: Path) -> Quantised:
    """The files of a row in `folder`, written when they are missing."""
    workload = _ROWS[name]
    plain = model_file(WORKLOADS[workload], folder)
    path = folder / f"{name}.onnx"
    if not path.exists() or path.stat().st_mtime < Path(plain.path).stat().st_mtime:
        _write(Path(plain.path), path, plain, dynamic=workload.startswith("bert"))
    return Quantised(name, path, plain, workload)


def _write(source: Path, target: Path, plain: ModelFile, *, dynamic: bool) -> None:
    from onnxruntime import quantization as q
    from onnxruntime.quantization.shape_inference import quant_pre_process

    logging.getLogger().setLevel(logging.ERROR)
    prepared = target.with_suffix(".prepared")
    quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
    partial = target.with_suffix(".partial")
    options: dict[str, Any] = {"per_channel": True, "weight_type": q.QuantType.QInt8}
    if dynamic:
        q.quantize_dynamic(str(prepared), str(partial), **options)
    else:
        options |= {"quant_format": q.QuantFormat.QDQ, "activation_type": q.QuantType.QUInt8}
        q.quantize_static(str(prepared), str(partial), _Images(plain), **options)
    prepared.unlink()
    partial.rename(target)
