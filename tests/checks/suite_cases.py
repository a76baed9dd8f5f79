"""ONNX's backend test suite as models and arrays, from the files of the installed onnx and its generators."""

from __future__ import annotations

import importlib
import pkgutil
import random
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
from onnx import numpy_helper
from onnx.backend.test.case import node as node_cases
from onnx.backend.test.loader import load_model_tests

# Cases of these kinds lie in files; those of the kind "node" are computed when their modules are imported.
FILED = ("simple", "pytorch-converted", "pytorch-operator", "real")
LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"


def every_case() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of the suite's own data overflow while they are made
        return [case for kind in ("node", *FILED) for case in load_model_tests(kind=kind)]


def sampled_cases(seed: int, modules: int, filed: int) -> list[Any]:
    """The cases of some of the modules of operators, and some of those in files."""
    draw = random.Random(seed)
    names = sorted(module.name for module in pkgutil.iter_modules(node_cases.__path__) if not module.ispkg)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = len(node_cases._NodeTestCases)
        for name in draw.sample(names, modules):
            importlib.import_module(f"{node_cases.__name__}.{name}")
        found = node_cases._NodeTestCases[before:]
    stored = [case for kind in FILED[:-1] for case in load_model_tests(kind=kind)]
    return [*found, *draw.sample(stored, filed)]


def model_of(case: Any) -> onnx.ModelProto:
    if case.model is not None:
        return case.model
    return onnx.load(LIGHT / Path(case.url).name if case.kind == "real" else Path(case.model_dir) / "model.onnx")


def data_sets(case: Any, model: onnx.ModelProto) -> list[tuple[list[Any], list[Any]]]:
    """(inputs, expected outputs) of each data set."""
    inits = {tensor.name for tensor in model.graph.initializer}
    inputs = [info for info in model.graph.input if info.name not in inits]
    columns = (("input", inputs), ("output", list(model.graph.output)))
    if case.kind == "real":
        file = LIGHT / Path(case.url).name
        outputs = [_read(file.with_name(f"{file.stem}_output_{i}.pb"), o.type) for i, o in enumerate(columns[1][1])]
        return [([_counted(info) for info in inputs], outputs)]
    if case.data_sets is not None:
        return [
            tuple(  # type: ignore[misc]
                [_value(v, info.type) for v, info in zip(values, infos, strict=True)]
                for values, (_, infos) in zip(given, columns, strict=True)
            )
            for given in case.data_sets
        ]
    found = []
    for folder in sorted(Path(case.model_dir).glob("test_data_set*")):
        files = [[folder / f"{tag}_{i}.pb" for i in range(len([*folder.glob(f"{tag}_*.pb")]))] for tag, _ in columns]
        found.append(
            tuple(
                [_read(path, infos[i].type) for i, path in enumerate(paths)]
                for paths, (_, infos) in zip(files, columns, strict=True)
            )
        )
    return found  # type: ignore[return-value]


def _counted(info: onnx.ValueInfoProto) -> np.ndarray:
    """The input that onnx's own runner makes for models without data: 0, 1/n, 2/n, ..."""
    shape = [d.dim_value if d.HasField("dim_value") else 1 for d in info.type.tensor_type.shape.dim]
    count = int(np.prod(shape))
    return (np.arange(count).reshape(shape) / count).astype(np.float32)


def _value(item: Any, declared: onnx.TypeProto) -> Any:
    messages = (onnx.TensorProto, onnx.SequenceProto, onnx.OptionalProto, onnx.MapProto)
    return _parsed(item.SerializeToString(), declared) if isinstance(item, messages) else item


def _read(path: Path, declared: onnx.TypeProto) -> Any:
    return _parsed(path.read_bytes(), declared)


def _parsed(content: bytes, declared: onnx.TypeProto) -> Any:
    match declared.WhichOneof("value"):
        case "sequence_type":
            return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
        case "map_type":
            return numpy_helper.to_dict(onnx.MapProto.FromString(content))
        case "optional_type":
            optional = onnx.OptionalProto.FromString(content)
            fields = ("tensor_value", "sequence_value", "map_value", "optional_value")
            return numpy_helper.to_optional(optional) if any(map(optional.HasField, fields)) else None
        case _:  # some models leave an output untyped
            return numpy_helper.to_array(onnx.TensorProto.FromString(content))


def assert_same(expected: Sequence[Any], found: Sequence[Any], rtol: float, atol: float) -> None:
    """Values, shapes, element types and kinds (tensor, sequence, map, empty optional) are those of the suite."""
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, (list, tuple)):
            assert isinstance(ours, (list, tuple))
            assert_same(theirs, ours, rtol, atol)
        elif isinstance(theirs, dict):
            assert isinstance(ours, dict)
            assert set(ours) == set(theirs)
            keys = list(theirs)
            assert_same([np.asarray(theirs[k]) for k in keys], [np.asarray(ours[k]) for k in keys], rtol, atol)
        elif theirs is None:
            assert ours is None
        else:
            assert not isinstance(ours, (list, tuple, dict, type(None)))
            _assert_arrays(np.asarray(theirs), np.asarray(ours), rtol, atol)


def _assert_arrays(theirs: np.ndarray, ours: np.ndarray, rtol: float, atol: float) -> None:
    assert ours.shape == theirs.shape
    if theirs.dtype.kind in "OUS":
        np.testing.assert_array_equal(ours.astype(object), theirs.astype(object))
        return
    assert ours.dtype == theirs.dtype
    if theirs.dtype.name == "bfloat16":
        ours, theirs, rtol = ours.astype(np.float32), theirs.astype(np.float32), max(rtol, 2**-6)
    np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)
