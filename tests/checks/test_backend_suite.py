"""ONNX's own backend test suite on graphkit. What is left out stands in a ledger; an unexpected pass fails."""

from __future__ import annotations

import fnmatch
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from graphkit.checks import backend
from graphkit.errors import UnsupportedError

# Operators that have no implementation yet: every test that needs one must be refused by name.
NOT_IMPLEMENTED = frozenset(
    """
    ConvInteger DequantizeLinear DynamicQuantizeLinear ImageDecoder MatMulInteger QLinearConv QLinearMatMul
    QuantizeLinear RegexFullMatch
    StringConcat StringNormalizer StringSplit TfIdfVectorizer
    ai.onnx.ml.ArrayFeatureExtractor ai.onnx.ml.Binarizer ai.onnx.ml.LabelEncoder ai.onnx.ml.TreeEnsemble
    ai.onnx.preview.training.Adagrad ai.onnx.preview.training.Adam ai.onnx.preview.training.Gradient
    ai.onnx.preview.training.Momentum
    """.split()  # noqa: SIM905 - a list of names that people read
)
# Test name pattern -> why the results differ.
DIFFERENT = {
    "test_bernoulli*": "draws random numbers; generators are not specified",
    "test_training_dropout": "draws random numbers; generators are not specified",
    "test_training_dropout_mask": "draws random numbers; generators are not specified",
    "test_training_dropout_default*": "draws random numbers; generators are not specified",
    "test_resize_downsample_scales_*_align_corners": "expects coordinates of a fractional output size; "
    "ONNX Runtime gives graphkit's",
}


def load_cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of the suite's own data overflow while they are made
        # The models of the kind "real" have no data of their own.
        kinds = ("node", "simple", "pytorch-converted", "pytorch-operator")
        return [case for kind in kinds for case in load_model_tests(kind=kind)]


CASES = load_cases()


def matches(ledger: dict[str, str], name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in ledger)


def model_of(case: Any) -> onnx.ModelProto:
    return onnx.load(Path(case.model_dir) / "model.onnx") if case.model is None else case.model


def operators(model: onnx.ModelProto) -> set[str]:
    """Operators of a model, its functions and its subgraphs."""
    found: set[str] = set()
    stack = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while stack:
        node = stack.pop()
        found.add(f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                stack.extend(graph.node)
    return found - {function.name for function in model.functions}


def read(path: Path, declared: onnx.TypeProto) -> Any:
    content = path.read_bytes()
    kind = declared.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
    if kind == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
    return numpy_helper.to_array(onnx.TensorProto.FromString(content))


def array(item: Any) -> Any:
    return numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item


def data_sets(case: Any, model: onnx.ModelProto) -> list[tuple[list[Any], list[Any]]]:
    """(inputs, expected outputs) of each data set."""
    if case.data_sets is not None:
        return [([array(v) for v in inputs], [array(v) for v in outputs]) for inputs, outputs in case.data_sets]
    found = []
    for folder in sorted(Path(case.model_dir).glob("test_data_set*")):
        columns = []
        for prefix, infos in (("input", model.graph.input), ("output", model.graph.output)):
            files = [folder / f"{prefix}_{i}.pb" for i in range(len(list(folder.glob(f"{prefix}_*.pb"))))]
            columns.append([read(file, infos[i].type) for i, file in enumerate(files)])
        found.append((columns[0], columns[1]))
    return found


def flat(value: Any) -> list[Any]:
    """The arrays in sequences of sequences."""
    return [array for item in value for array in flat(item)] if isinstance(value, (list, tuple)) else [value]


def lengths(value: Any) -> Any:
    return [lengths(item) for item in value] if isinstance(value, (list, tuple)) else None


def run(case: Any, model: onnx.ModelProto) -> None:
    prepared = backend.prepare(model)
    sets = data_sets(case, model)
    assert sets
    for inputs, expected in sets:
        outputs = prepared.run(inputs)
        for ours, theirs in zip(outputs, expected, strict=True):
            if isinstance(theirs, np.ndarray):
                assert np.asarray(ours).dtype == theirs.dtype
        # The runner takes the elements of a sequence for sequences.
        assert lengths(outputs) == lengths(expected)
        Runner.assert_similar_outputs(flat(expected), flat(outputs), rtol=case.rtol, atol=case.atol)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_backend(case: Any) -> None:
    model = model_of(case)
    missing = operators(model) & NOT_IMPLEMENTED
    if missing:
        with pytest.raises(UnsupportedError) as caught:
            run(case, model)
        assert any(name.rpartition(".")[2] in str(caught.value) for name in missing)
    elif matches(DIFFERENT, case.name):
        with pytest.raises(AssertionError):
            run(case, model)
    else:
        run(case, model)


@pytest.mark.parametrize("pattern", DIFFERENT)
def test_ledger_patterns_name_tests(pattern: str) -> None:
    assert any(fnmatch.fnmatchcase(case.name, pattern) for case in CASES)


@pytest.mark.parametrize("name", sorted(NOT_IMPLEMENTED))
def test_not_implemented_is_in_use(name: str) -> None:
    domain, _, operator = name.rpartition(".")
    assert onnx.defs.has(operator, domain)
