"""Every standard operator's reference against onnx's reference evaluator, in every element type it allows.

Where the evaluator is wrong or cannot run, ONNX Runtime stands in for it; EVALUATOR_WRONG says why, and a test
fails when an entry is no longer needed.
"""

from __future__ import annotations

import fnmatch
from typing import Any

import numpy as np
import pytest

from graphkit.checks.oracle import onnx_evaluator, onnxruntime_session
from graphkit.checks.samples import Case, all_cases
from graphkit.checks.verify import compare
from graphkit.ir.types import DType
from graphkit.ops import registry
from graphkit.ops.evaluate import evaluate

OPSET = 28
# ONNX Runtime's newest.
RUNTIME_OPSET = 26

# Case name pattern -> why the evaluator's answer is not the standard's.
EVALUATOR_WRONG: dict[str, str] = {}
# Case name pattern -> why neither of the two can be asked.
NO_ORACLE: dict[str, str] = {}

# Rounding of one operator. The evaluator computes halves in halves; graphkit in float32, rounded once.
TOLERANCES = {
    DType.FLOAT64: (1e-9, 1e-11),
    DType.FLOAT32: (2e-5, 2e-6),
    DType.FLOAT16: (1e-2, 4e-3),
    DType.BFLOAT16: (8e-2, 3e-2),
}


def standard_cases() -> list[Case]:
    classes = [cls for cls in registry if cls.onnx is not None and not cls.domain]
    return [case for cls in classes for case in map(Case.as_stored, all_cases(cls)) if case.sample.onnx and not case.op.subgraphs()]


CASES = standard_cases()


def listed_in(ledger: dict[str, str], case: Case) -> bool:
    return any(fnmatch.fnmatchcase(case.name, pattern) for pattern in ledger)


def disagreements(case: Case, expected: list[Any]) -> list[str]:
    results = evaluate(case.graph(), case.feeds())
    assert len(results) == len(expected)
    found = []
    for number, (ours, theirs) in enumerate(zip(results, expected, strict=True)):
        report = compare(f"y{number}", ours, theirs, *TOLERANCES.get(case.dtype, (1e-5, 1e-6)))
        if not report.passed:
            found.append(f"{report}\nours:\n{ours}\ntheirs:\n{theirs}")
    return found


@pytest.mark.parametrize("case", [c for c in CASES if not listed_in(NO_ORACLE, c)], ids=lambda c: f"{c.name}-reference")
def test_reference(case: Case) -> None:
    wrong = listed_in(EVALUATOR_WRONG, case)
    expected = onnxruntime_session(case, RUNTIME_OPSET) if wrong else onnx_evaluator(case, OPSET)
    problems = disagreements(case, expected)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("pattern", EVALUATOR_WRONG)
def test_evaluator_is_still_wrong(pattern: str) -> None:
    matching = [case for case in CASES if fnmatch.fnmatchcase(case.name, pattern)]
    assert matching, "no case has this name"
    for case in matching:
        try:
            if disagreements(case, onnx_evaluator(case, OPSET)):
                return
        except Exception:  # noqa: BLE001 - whatever the evaluator raises shows that it cannot run this
            return
    pytest.fail("onnx's evaluator agrees on all of these; remove the entry")


@pytest.mark.parametrize("pattern", NO_ORACLE)
def test_oracle_is_still_missing(pattern: str) -> None:
    matching = [case for case in CASES if fnmatch.fnmatchcase(case.name, pattern)]
    assert matching, "no case has this name"
    for case in matching:
        try:
            if disagreements(case, onnx_evaluator(case, OPSET)):
                return
        except Exception:  # noqa: BLE001 - as above
            return
    pytest.fail("onnx's evaluator agrees on all of these; remove the entry")


def test_float16_is_rounded_once() -> None:
    x = np.float16([0.1, 0.2, 0.3])
    (result,) = evaluate(Case(registry.get("", "Exp")(), registry.get("", "Exp").samples[0], 0, DType.FLOAT16, (x,)).graph(
        all_inputs=True), [x])
    np.testing.assert_array_equal(result, np.exp(x.astype(np.float32)).astype(np.float16))
