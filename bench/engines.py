"""The engines behind one small interface: open an ONNX file with a number of threads, run arrays, give outputs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import numpy as np

TITLES = {"graphkit": "graphkit", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "torch": "PyTorch eager"}


@dataclass(frozen=True)
class Runner:
    """`call` runs the arrays that it was opened with, as a user of the engine would; `fetch` makes numpy arrays of
    its result, outside of any timing. `facts` go into the report.
    """

    call: Callable[[], Any]
    fetch: Callable[[Any], list[np.ndarray]]
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """A model to open: a file, and the network and options it was made from, which PyTorch needs."""

    path: str
    network: str
    options: Mapping[str, Any]


def versions() -> dict[str, str | None]:
    """Return the version of every engine; None if it is not installed."""
    from graphkit.distribution import version

    others = {
        n: metadata.version(n) if importlib.util.find_spec(n) is not None else None for n in TITLES if n != "graphkit"
    }
    return {"graphkit": version(), **others}


def load(name: str) -> None:
    """Import an engine, so that what is measured afterwards does not include that."""
    match name:
        case "graphkit":
            # `import graphkit` is lazy: what it imports and loads on first use belongs to the import here.
            import graphkit.executor.run.session
            import graphkit.loading
            import graphkit.onnx_io.importer  # noqa: F401
            from graphkit.executor.devices.loading import load_device, load_native

            load_device("cpu")
            if (native := load_native()).has_onednn():
                native.onednn_version()  # loads the library
        case "onnxruntime":
            import onnxruntime  # noqa: F401
        case "openvino":
            import openvino  # noqa: F401
        case "torch":
            import torch_models  # noqa: F401


def open_engine(name: str, model: Model, threads: int, feeds: Mapping[str, np.ndarray]) -> Runner:
    """Load and compile a model for the shapes of `feeds`."""
    return _OPEN[name](model, threads, feeds)


def open_session(name: str, path: str, threads: int) -> Callable[[Mapping[str, np.ndarray]], object]:
    """Open a file as a user of the engine would; return a function that runs feeds of any size."""
    return _SESSIONS[name](path, threads)


def _graphkit_session(path: str, threads: int) -> Callable[[Mapping[str, np.ndarray]], object]:
    import graphkit as gk

    return gk.load(path).compile(threads=threads).run


def _onnxruntime_session(path: str, threads: int) -> Callable[[Mapping[str, np.ndarray]], object]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, dict(feeds))


_SESSIONS = {"graphkit": _graphkit_session, "onnxruntime": _onnxruntime_session}


def _graphkit(model: Model, threads: int, feeds: Mapping[str, np.ndarray]) -> Runner:
    import graphkit as gk

    executor = gk.load(model.path).compile(threads=threads)
    executor.specialise({name: array.shape for name, array in feeds.items()})
    fallbacks = list(executor.plan.fallbacks)
    return Runner(lambda: executor.run(feeds), lambda result: list(result.values()), {"fallbacks": fallbacks})


def _onnxruntime(model: Model, threads: int, feeds: Mapping[str, np.ndarray]) -> Runner:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    run = onnxruntime.InferenceSession(model.path, options, providers=["CPUExecutionProvider"]).run
    arrays = dict(feeds)
    return Runner(lambda: run(None, arrays), list)


def _openvino(model: Model, threads: int, feeds: Mapping[str, np.ndarray]) -> Runner:
    import openvino

    core = openvino.Core()
    network = core.read_model(model.path)
    network.reshape({name: array.shape for name, array in feeds.items()})
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        # Without this it computes in bfloat16 where the CPU can.
        "INFERENCE_PRECISION_HINT": "f32",
    }
    request = core.compile_model(network, "CPU", settings).create_infer_request()
    arrays = dict(feeds)
    return Runner(
        lambda: request.infer(arrays, share_inputs=True, share_outputs=True),
        lambda result: [np.array(a) for a in result.to_tuple()],
    )


def _torch(model: Model, threads: int, feeds: Mapping[str, np.ndarray]) -> Runner:
    import torch
    import torch_models

    torch.set_num_threads(threads)
    module = torch_models.load(model.network, dict(model.options), model.path)
    operands = [torch.from_numpy(array) for array in feeds.values()]

    def call() -> Any:
        with torch.inference_mode():
            return module(*operands)

    return Runner(call, lambda result: [t.numpy() for t in ([result] if isinstance(result, torch.Tensor) else result)])


_OPEN: dict[str, Callable[[Model, int, Mapping[str, np.ndarray]], Runner]] = {
    "graphkit": _graphkit, "onnxruntime": _onnxruntime, "openvino": _openvino, "torch": _torch,
}  # fmt: skip
