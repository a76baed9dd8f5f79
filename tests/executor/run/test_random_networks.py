"""Random networks of many kinds of operators: compiled with every pass, interpreted, and in ONNX Runtime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from combinations import in_one_item, seeds

from graphkit.checks.random_network import Network
from graphkit.checks.random_nodes import build
from graphkit.errors import InvalidModel, RuntimeFailure
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.onnx_io.exporter import export

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# Relative to the largest element of an output: errors of a chain of a dozen operators.
TOLERANCE = {np.dtype(np.float32): 2e-4, np.dtype(np.float64): 1e-9, np.dtype(np.float16): 3e-2, BFLOAT16: 2e-1}


def disagreement(found: Any, wanted: np.ndarray, slack: float = 1) -> str | None:
    """Return the error of a result as a text; None if it is right."""
    if not isinstance(found, np.ndarray) or found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"{getattr(found, 'dtype', type(found))}{getattr(found, 'shape', '')}, not {wanted.dtype}{wanted.shape}"
    if found.size == 0:
        return None
    tolerance = TOLERANCE.get(wanted.dtype)
    if tolerance is None:
        return None if np.array_equal(found, wanted) else f"{np.sum(found != wanted)} of {found.size} elements differ"
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)) or not np.array_equal(
        a[~np.isfinite(a)], b[~np.isfinite(b)], equal_nan=True
    ):
        return "NaN or infinities differ"
    a, b = a[np.isfinite(a)], b[np.isfinite(b)]
    if a.size == 0:
        return None
    error = np.abs(a - b).max() / max(1.0, np.abs(b).max())
    return None if error <= tolerance * slack else f"error {error:.2g}"


def held(net: Network, graph: Graph) -> tuple[ParamStore, dict[str, Any]]:
    """The parameters and the inputs."""
    feeds = {n: net.arrays[v] for n, v in zip(graph.input_names, graph.inputs, strict=True) if v.role == "data"}
    return ParamStore({v.name: v.tensor for v in graph.inputs if v.role == "parameter"}, net.params), feeds


def failures(seed: int, dtype: Any = np.float32, runtime: bool = True, **options: Any) -> list[str]:
    """Compare one network, compiled and in ONNX Runtime, with the reference. Return the errors as texts."""
    net, graph = build(seed, dtype)
    wanted = [net.arrays[v] for v in graph.outputs]
    store, feeds = held(net, graph)
    wrong = []
    exe = Executor(graph, store, **{"threads": 1 + seed % 4, **options})
    for _ in range(2):
        results = exe.run(feeds)
        for name, result, array in zip(results, results.values(), wanted, strict=True):
            if (message := disagreement(result, array)) is not None:
                wrong.append(f"compiled: {name}: {message}")
    if runtime:
        proto = export(graph, {n: store[n] for n in store})
        try:
            theirs = OnnxRuntimeModel(proto, threads=1, optimize=False).run(feeds)
        except (InvalidModel, RuntimeFailure) as error:
            if not any(text in str(error) for text in ("NOT_IMPLEMENTED", "NotImplemented", "not implemented")):
                wrong.append(f"ONNX Runtime refuses: {error}")
        else:
            # ONNX Runtime computes some float64 in float32.
            slack = 1e4 if net.dtype == np.float64 else 4
            for name, result, array in zip(theirs, theirs.values(), wanted, strict=True):
                if (message := disagreement(result, array, slack)) is not None:
                    wrong.append(f"ONNX Runtime: {name}: {message}")
    return wrong


@in_one_item()
@pytest.mark.parametrize("seed", seeds(80, default=16))
def test_random_networks(seed: int) -> None:
    assert failures(seed) == []


@in_one_item()
@pytest.mark.parametrize("seed", seeds(20, default=4))
@pytest.mark.parametrize("dtype", [np.float64, np.float16, BFLOAT16], ids=str)
def test_random_networks_of_other_types(seed: int, dtype: Any) -> None:
    assert failures(seed, dtype, runtime=dtype == np.float64) == []


@in_one_item()
@pytest.mark.parametrize("seed", seeds(30, default=8))
def test_deterministic_networks(seed: int) -> None:
    """The same bits for any number of threads."""
    net, graph = build(80 + seed)
    store, feeds = held(net, graph)
    results = [Executor(graph, store, threads=n, deterministic=True).run(feeds) for n in (1, 2, 3, 4)]
    for other in results[1:]:
        for name, array in other.items():
            assert array.tobytes() == results[0][name].tobytes(), name


@pytest.mark.full
@pytest.mark.parametrize("first", range(1000, 4000, 100))
def test_many_random_networks(first: int) -> None:
    found = {seed: wrong for seed in range(first, first + 100) if (wrong := failures(seed))}
    # ONNX Runtime does not broadcast matrices over an empty axis.
    assert not {s: w for s, w in found.items() if not all("cannot broadcast on dim" in text for text in w)}
