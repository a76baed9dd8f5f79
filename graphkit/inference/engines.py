"""The engines that run a model: graphkit's own, or ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from graphkit.errors import UsageError, did_you_mean
from graphkit.model import Model

if TYPE_CHECKING:
    from graphkit.executor.devices.groups import AnyDevice

ENGINES = ("graphkit", "onnxruntime")

# Computes the outputs with the given names from arrays by input name.
Run: TypeAlias = Callable[[Mapping[str, Any], Sequence[str]], dict[str, Any]]


def open_engine(
    model: Model,
    engine: str,
    *,
    file: str | os.PathLike[str] | None = None,
    device: AnyDevice = "cpu",
    threads: int | None = None,
) -> Run:
    """Return a function that runs a model in an engine.

    Args:
        model: The model.
        engine: "graphkit" or "onnxruntime".
        file: The ONNX file of the model, which ONNX Runtime runs. Default: an export.
        device: Device of graphkit; ONNX Runtime runs on the CPU.
        threads: Number of CPU threads.

    Raises:
        UsageError: The engine is unknown, or ONNX Runtime should run on another device than the CPU.
    """
    if engine not in ENGINES:
        raise UsageError(
            f"engine must be {' or '.join(map(repr, ENGINES))}, not {engine!r}{did_you_mean(engine, ENGINES)}"
        )
    if engine == "graphkit":
        return model.compile(device, threads=threads).run
    if device != "cpu":
        raise UsageError(
            f"engine='onnxruntime' (--engine) runs on the CPU only: leave out device={device!r} (--device)"
        )
    from graphkit.onnx_io.compare import OnnxRuntimeModel

    runtime = OnnxRuntimeModel(model.to_onnx() if file is None else os.fspath(file), threads=threads)

    def run(feeds: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
        # An export may rename outputs, but keeps their order.
        results = dict(zip(model.outputs, runtime.run(feeds).values(), strict=True))
        return {name: results[name] for name in outputs}

    return run
