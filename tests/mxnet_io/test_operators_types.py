"""The tables of the other tests again: in float64, exported, and with sizes that are known only at run time."""

import copy
import importlib

import numpy as np
import pytest

from graphkit.errors import GraphkitError
from graphkit.onnx_io.compare import OnnxRuntimeModel
from tests.mxnet_io.operator_cases import Case, operand_name
from tests.mxnet_io.operator_checks import difference, imported

FAMILIES = (
    "control", "elementwise", "image", "layers", "numpy", "pooling", "recurrent", "reduction", "sequence", "shape",
)  # fmt: skip
# Their outputs are float32 whatever the operand is, or depend on its largest number.
_OF_FLOAT32 = ("one_hot", "topk", "argsort", "_npi_nan_to_num")


def cases_of(family):
    tables = vars(importlib.import_module(f"tests.mxnet_io.test_operators_{family}")).values()
    return [item for table in tables if isinstance(table, list) for item in table if isinstance(item, Case)]


def widened(item):
    """The same case in float64; None if it has other types, or gives its result a type."""
    kinds = {str(v.dtype) for v in item.operands}
    if "float32" not in kinds or kinds & {"float16", "float64"} or "dtype" in item.attributes:
        return None
    if item.subgraphs or item.op in _OF_FLOAT32:
        return None
    item = copy.copy(item)
    item.operands = [v.astype(np.float64) if v.dtype == np.float32 else v for v in item.operands]
    item.gives = [v.astype(np.float64) if v.dtype == np.float32 else v for v in item.gives]
    return item


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES[1:])
def test_float64(family, tmp_path):
    cases = [wide for item in cases_of(family) if (wide := widened(item))]
    model, feeds = imported(cases, tmp_path)
    outputs = iter(model.run(feeds).values())
    for item in cases:
        for wanted in item.gives:
            fault = difference(np.asarray(next(outputs)), wanted, 1e-4)
            assert fault is None, f"{item}: {fault}"


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_onnx_runtime_gives_the_expected_results(family, tmp_path):
    """Compare ONNX Runtime with the tables. The other tests compare it with graphkit, within its limits of rounding."""
    cases = cases_of(family)
    model, feeds = imported(cases, tmp_path)
    outputs = iter(OnnxRuntimeModel(model.to_onnx()).run(feeds).values())
    for item in cases:
        for wanted in item.gives:
            fault = difference(np.asarray(next(outputs)), wanted, 10 * item.tolerance)
            assert fault is None, f"{item}: {fault}"


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_unknown_sizes(family, tmp_path):
    """With no size of the first operand known, an operator computes the same, or an error names its node."""
    for item in cases_of(family):
        shapes = {
            operand_name(0, i): (None,) * v.ndim if i == 0 else v.shape
            for i, v in enumerate(item.operands)
            if i not in (*item.weights, *item.labels)
        }
        try:
            model, feeds = imported([item], tmp_path, shapes)
        except GraphkitError as error:
            assert f"{item.op}_0" in str(error)  # noqa: PT017 - only some operators need sizes
            continue
        for found, wanted in zip(model.run(feeds).values(), item.gives, strict=True):
            fault = difference(np.asarray(found), wanted, 10 * item.tolerance)
            assert fault is None, f"{item}: {fault}"
