"""Small files as PyTorch's two exporters and onnxscript write them, for `corpus.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxscript
import torch
from corpus import Made, unplaced
from onnxscript import FLOAT
from onnxscript import opset18 as op
from torch import Tensor, nn
from torch.nn import functional


def makers() -> dict[str, Callable[[], Made]]:
    return {**{f"torch_{name}": build for name, build in _TRACED.items()}, **_exported(), "onnxscript": _onnxscript}


# --- the exporter that traces -------------------------------------------------------------------------


def _traced(
    module: nn.Module, *arguments: Any, opset: int = 17, inputs: str = "x", free: Any = None, **options: Any
) -> Made:
    """Export a module with torch.onnx.export(dynamo=False). `inputs` are names, `free` their dynamic axes."""
    import io

    file = io.BytesIO()
    torch.onnx.export(
        module.eval() if not isinstance(module, torch.jit.ScriptModule) else module, arguments, file,
        input_names=inputs.split(), opset_version=opset, dynamic_axes=free, dynamo=False, **options,
    )  # fmt: skip
    return Made(file.getvalue())


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(20, 8), nn.LayerNorm(8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, activation="gelu")

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(self.words(x))).mean(1)


class _Picture(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        wide = functional.interpolate(x, scale_factor=1.5, mode="bicubic", align_corners=False)
        grid = functional.affine_grid(torch.eye(2, 3)[None].repeat(2, 1, 1), [2, 3, 4, 4], align_corners=False)
        return functional.grid_sample(wide, grid, align_corners=False) + functional.interpolate(x, size=(4, 4))


class _Steps(nn.Module):
    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for i in range(int(n)):
            if bool(total.sum() > 3):  # noqa: SIM108 - it is to become an If
                total = total * 0.5
            else:
                total = total + x * i
        return total


class _Lists(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        parts = torch.jit.annotate(list[Tensor], [])
        for i in range(x.size(0)):
            parts.append(x[i] * i)
        return torch.stack(parts) + torch.cat(x.split(1, 1), 0).sum()


class _Indices(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, places = x.topk(2, 1)
        spread = torch.zeros_like(x).scatter_add(1, places, values)
        spread = torch.where(spread > 0.5, spread, x.cumsum(1))
        return spread.masked_fill(x < 0.2, -1.0), x.nonzero(), torch.einsum("ij,kj->ik", x, spread)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, 1, bidirectional=True, batch_first=True)
        self.gru, self.rnn = nn.GRU(8, 3), nn.RNN(3, 2, nonlinearity="relu")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found, (h, _) = self.lstm(x)
        return self.rnn(self.gru(found)[0])[0], h


def _convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU6(), nn.MaxPool2d(2, ceil_mode=True),
        nn.Conv2d(4, 4, 3, 2, 1, groups=2), nn.Hardswish(), nn.ConvTranspose2d(4, 3, 2, 2),
        nn.InstanceNorm2d(3, affine=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2), nn.LogSoftmax(1),
    )  # fmt: skip


def _mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 6), nn.PReLU(), nn.Dropout(), nn.Linear(6, 3), nn.Softmax(1)
    )


def _old() -> Made:
    """As files of 2018: opset 7, version 3 of the format, weights among the inputs."""
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ELU(), nn.Flatten(), nn.Linear(8, 3))
    data = _traced(module, torch.rand(1, 1, 4, 4), opset=7, keep_initializers_as_inputs=True).data
    model = onnx.load_model_from_string(data)
    model.ir_version = 3
    return Made(model.SerializeToString())


_TRACED: dict[str, Callable[[], Made]] = {
    "opset7": _old,
    "mlp": lambda: _traced(_mlp(), torch.rand(2, 4), opset=9, free={"x": {0: "batch"}}),
    "conv": lambda: _traced(_convolutional(), torch.rand(2, 2, 8, 8), opset=14),
    "training": lambda: _traced(_convolutional(), torch.rand(2, 2, 8, 8), opset=15, do_constant_folding=False,
                                training=torch.onnx.TrainingMode.PRESERVE),
    "recurrent": lambda: _traced(_Recurrent(), torch.rand(2, 3, 3), opset=14, free={"x": {0: "batch", 1: "time"}}),
    "attention": lambda: _traced(_Attention(), torch.arange(10).view(2, 5))._replace(
        inputs={"x": np.arange(10).reshape(2, 5)}
    ),
    "picture": lambda: _traced(_Picture(), torch.rand(2, 3, 4, 4), opset=20),
    "steps": lambda: _traced(
        torch.jit.script(_Steps()), torch.rand(2, 3), torch.tensor(4), opset=16, inputs="x n"
    )._replace(inputs={"x": _numbers(2, 3), "n": np.array(4)}),
    "lists": lambda: _traced(torch.jit.script(_Lists()), torch.rand(3, 2), opset=13, free={"x": {0: "rows"}}),
    "indices": lambda: _traced(_Indices(), torch.rand(2, 4), opset=16, free={"x": {0: "rows"}}),
}  # fmt: skip


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).random(shape, np.float32)


# --- the exporter of graphs ---------------------------------------------------------------------------


class _Cond(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 1, lambda a: a.sin(), lambda a: a * 2, (x,))


class _Scanned(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        from torch._higher_order_ops.scan import scan

        return scan(lambda carry, row: (carry + row, (carry * row).clone()), torch.zeros(3), x, dim=0)


class _Scaled(nn.Module):
    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, k, is_causal=True)


def _graph(module: nn.Module, *arguments: Any, free: Any = None, opset: int = 18) -> Made:
    program = torch.onnx.export(
        module.eval(), arguments, dynamic_shapes=free, opset_version=opset, dynamo=True, verbose=False
    )
    return Made(unplaced(program.model_proto).SerializeToString())


def _exported() -> dict[str, Callable[[], Made]]:
    batch = torch.export.Dim("batch")
    return {
        "dynamo_mlp": lambda: _graph(_mlp(), torch.rand(2, 4), free=({0: batch},)),
        "dynamo_conv": lambda: _graph(_convolutional(), torch.rand(2, 2, 8, 8)),
        "dynamo_cond": lambda: _graph(_Cond(), torch.rand(2, 3)),
        "dynamo_scan": lambda: _graph(_Scanned(), torch.rand(4, 3)),
        "dynamo_opset23": lambda: _graph(_Scaled(), torch.rand(1, 2, 3, 4), torch.rand(1, 2, 3, 4), opset=23),
        "dynamo_external": _external,
    }


def _external() -> Made:
    """Return a model with its weights in a second file."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dynamo_external.onnx"
        program = torch.onnx.export(nn.Linear(16, 8).eval(), (torch.rand(1, 16),), dynamo=True, verbose=False)
        program.save(path, external_data=True)
        model = unplaced(onnx.load(path, load_external_data=False))
        return Made(model.SerializeToString(), {path.name + ".data": path.with_name(path.name + ".data").read_bytes()})


_LOCAL = onnxscript.values.Opset("local", 1)
_ROWS = "N"


@onnxscript.script(_LOCAL, default_opset=op)
def _scaled(x, alpha: float = 2.0):
    return x * op.Constant(value_float=alpha)


@onnxscript.script(_LOCAL, default_opset=op)
def _softened(x, y):
    return op.Softmax(_scaled(x, alpha=0.5) + y, axis=-1)


@onnxscript.script(default_opset=op)
def _script(x: FLOAT[_ROWS, 3], y: FLOAT[3]) -> FLOAT[_ROWS, 3]:
    return _softened(_scaled(x), y) + op.ReduceMean(x, keepdims=1)


def _onnxscript() -> Made:
    """A model with functions of their own domain. One calls another, with an attribute."""
    return Made(_script.to_model_proto().SerializeToString())
