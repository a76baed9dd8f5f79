"""Small files as ONNX Runtime's optimiser and quantiser write them, for `corpus.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from corpus import Made, from_file, to_file, unplaced
from onnxruntime import quantization
from onnxruntime.quantization import QuantFormat, QuantType

import graphkit as gk

_SHAPE = (2, 2, 8, 8)


def makers() -> dict[str, Callable[[], Made]]:
    return {
        "ort_extended_conv": lambda: _optimised(_convolutional(), "ORT_ENABLE_EXTENDED"),
        "ort_extended_attention": lambda: _optimised(_attention(), "ORT_ENABLE_EXTENDED"),
        "ort_basic_attention": lambda: _optimised(_attention(), "ORT_ENABLE_BASIC"),
        "ort_qdq_uint8": lambda: _static(QuantFormat.QDQ, QuantType.QUInt8),
        "ort_qdq_int8_per_channel": lambda: _static(QuantFormat.QDQ, QuantType.QInt8, per_channel=True),
        "ort_qdq_int16": lambda: _static(QuantFormat.QDQ, QuantType.QInt16),
        "ort_qoperator": lambda: _static(QuantFormat.QOperator, QuantType.QUInt8),
        "ort_qdq_optimised": lambda: _optimised(
            onnx.load_model_from_string(_static(QuantFormat.QDQ, QuantType.QUInt8).data), "ORT_ENABLE_EXTENDED"
        ),
        "ort_dynamic": _dynamic,
        "ort_four_bits": _four_bits,
    }


def _convolutional() -> onnx.ModelProto:
    x = gk.input("x", ["N", *_SHAPE[1:]])
    h = gk.relu(gk.nn.conv2d(x, 4, kernel=3, pad=1, name="first"))
    h = gk.nn.conv2d(h, 4, kernel=3, pad=1, name="second") + h
    h = gk.average_pool(gk.sigmoid(h), kernel_shape=[2, 2], strides=[2, 2])
    return gk.Model({"y": gk.nn.linear(gk.flatten(h), 3, name="last")}).to_onnx(opset=17)


def _attention() -> onnx.ModelProto:
    x = gk.input("x", ["N", 4, 8])
    h = gk.nn.layer_norm(x + gk.nn.linear(x, 8, name="mixed"))
    return gk.Model({"y": gk.gelu(gk.nn.linear(h, 6, name="wide")) * 0.5}).to_onnx(opset=17)


def _optimised(model: onnx.ModelProto, level: str) -> Made:
    def write(path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        options.optimized_model_filepath = str(path)
        options.log_severity_level = 3
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    return Made(unplaced(from_file(write)).SerializeToString())


def _folded() -> onnx.ModelProto:
    """Return the attention model as optimised by ONNX Runtime, with its weights as constants."""
    return onnx.load_model_from_string(_optimised(_attention(), "ORT_ENABLE_BASIC").data)


class _Samples(quantization.CalibrationDataReader):
    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self._left: Iterator[dict[str, Any]] = iter([{"x": rng.random(_SHAPE, np.float32)} for _ in range(4)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._left, None)


def _static(form: QuantFormat, kind: QuantType, **options: Any) -> Made:
    def quantise(given: Path) -> onnx.ModelProto:
        extra = {"UseQDQContribOps": True} if kind is QuantType.QInt16 else {}
        return from_file(lambda made: quantization.quantize_static(
            given, made, _Samples(), quant_format=form, activation_type=kind,
            weight_type=QuantType.QInt8 if kind is QuantType.QInt16 else kind, extra_options=extra, **options,
        ))  # fmt: skip

    return Made(unplaced(to_file(_convolutional(), quantise)).SerializeToString())


def _dynamic() -> Made:
    def quantise(given: Path) -> onnx.ModelProto:
        return from_file(lambda made: quantization.quantize_dynamic(given, made, weight_type=QuantType.QInt8))

    return Made(unplaced(to_file(_folded(), quantise)).SerializeToString())


def _four_bits() -> Made:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    made = MatMulNBitsQuantizer(_folded(), bits=4, block_size=16, is_symmetric=False)
    made.process()
    return Made(unplaced(made.model.model).SerializeToString())
