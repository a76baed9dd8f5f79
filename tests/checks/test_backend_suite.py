"""ONNX's backend test suite on graphkit: a part of it always, all of it with `-m full`.

backend_suite.toml lists the cases that differ, with reasons. If a listed case passes, the test fails.
"""

from __future__ import annotations

import fnmatch
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from suite_cases import assert_same, data_sets, every_case, model_of, sampled_cases

from graphkit.checks import backend
from graphkit.errors import UnsupportedError
from graphkit.executor.devices.registry import rule_of
from graphkit.onnx_io.uses import implements
from graphkit.ops import registry

LEDGER: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("backend_suite.toml").read_text())
# Smallest number of passing cases in which all steps have native kernels.
NATIVE_AT_LEAST = 1770


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function is test_case:
        part = "not full" in metafunc.config.getoption("markexpr")
        cases = sampled_cases(seed=28, modules=16, filed=30) if part else every_case()
        marks = () if part else (pytest.mark.full,)
        metafunc.parametrize("case", [pytest.param(case, id=case.name, marks=marks) for case in cases])


# Missing operators of the standard; test_every_operator_of_the_standard_is_there reports them.
MISSING = {s.name for s in onnx.defs.get_all_schemas() if not implements(s.domain, s.name, s.since_version)}


def run(case: Any, model: onnx.ModelProto) -> None:
    prepared = backend.prepare(model)
    sets = data_sets(case, model)
    assert sets
    for inputs, expected in sets:
        assert_same(expected, prepared.run(inputs), case.rtol, case.atol)


def is_listed(case: Any) -> bool:
    return any(fnmatch.fnmatchcase(case.name, pattern) for pattern in LEDGER["different"])


def test_case(case: Any) -> None:
    model = model_of(case)
    if is_listed(case):
        with pytest.raises(AssertionError):
            run(case, model)
        return
    try:
        run(case, model)
    except UnsupportedError as error:
        if not any(name in str(error) for name in MISSING):
            raise


@pytest.mark.full
def test_entries_name_cases() -> None:
    names = [case.name for case in every_case()]
    for pattern in LEDGER["different"]:
        assert fnmatch.filter(names, pattern), f"no case is called {pattern}"


def interpreted(error: UnsupportedError) -> set[str]:
    """The operators that GRAPHKIT_STRICT refused."""
    listed = re.search(r"these nodes have no native kernel: (.*)", str(error))
    if listed:
        return set(re.findall(r" \((\w+)\)(?:, |$)", listed[1]))
    at_run_time = re.search(r"no native kernel: .*?(\w+)\(", str(error))
    assert at_run_time, str(error)
    return {at_run_time[1]}


@pytest.mark.full
def test_what_is_interpreted(monkeypatch: pytest.MonkeyPatch, record_property: Any) -> None:
    """Operators without a native kernel are interpreted. If an operator has kernels, only listed cases are."""
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
    native, found = 0, Counter[str]()
    for case in every_case():
        if is_listed(case):
            continue
        try:
            run(case, model_of(case))
        except UnsupportedError as error:
            if "GRAPHKIT_STRICT" in str(error):
                found.update(interpreted(error))
        else:
            native += 1
    record_property("native", native)
    with_kernels = {cls.name for cls in registry if not cls.domain and rule_of("cpu", cls).has_kernels}
    unexpected = {name: count for name, count in found.items() if name in with_kernels}
    assert set(unexpected) == set(LEDGER["interpreted"]), unexpected
    assert native >= NATIVE_AT_LEAST, f"{native} cases run natively"


def halved(graph: onnx.GraphProto) -> None:
    """A network in float16, as a converter makes it: parameters, inputs and outputs."""
    inside = (attribute.t for node in graph.node for attribute in node.attribute)
    for tensor in (*graph.initializer, *inside):
        if tensor.data_type == onnx.TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16


@pytest.mark.full
@pytest.mark.parametrize("case", load_model_tests(kind="real"), ids=lambda c: f"{c.name}-float16")
def test_networks_in_float16(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only native kernels run, and the results differ from float32 only by rounding."""
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
    model = model_of(case)
    (([x], expected),) = data_sets(case, model)
    halved(model.graph)
    found = backend.prepare(model).run([x.astype(np.float16)])
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == np.float16
        np.testing.assert_allclose(ours.astype(np.float32), theirs, rtol=2e-2, atol=1e-5)


def test_every_operator_of_the_standard_is_there() -> None:
    assert not MISSING, f"not implemented: {', '.join(sorted(MISSING))}"
