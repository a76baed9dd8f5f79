"""Comparison with ONNX Runtime: the report, its formula, and the limits of differences."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.checks.comparison import compare, compare_outputs, flattened
from graphkit.cli import invoke
from graphkit.errors import CheckFailed, UsageError


def network() -> gk.Model:
    x = gk.input("x", ["N", 4])
    h = gk.relu(gk.nn.linear(x, 5, name="fc1"))
    return gk.Model({"p": gk.softmax(gk.nn.linear(h, 3, name="fc2")), "best": gk.arg_max(h, axis=1)}, seed=0)


def test_a_right_export_passes() -> None:
    report = gk.verify(network())
    assert report.passed, str(report)
    assert [o.name for o in report.outputs] == ["p", "best"]
    assert report.guesses == {"N": 2}
    p, best = report.outputs
    assert p.shape == (2, 3)
    assert p.max_abs < 1e-6
    assert p.formula == "|a-b| <= 1e-05 + 0.0001 * |b|"
    assert (best.rtol, best.atol) == (0.0, 0.0)
    assert str(report).endswith("PASSED")
    assert json.loads(json.dumps(report.as_dict()))["passed"] is True


@in_one_item()
@pytest.mark.parametrize("opset", [13, 17, 21, 26])
def test_opsets(opset: int) -> None:
    report = gk.verify(network(), opset=opset)
    assert report.passed
    assert report.opset == opset


@in_one_item()
@pytest.mark.parametrize("scale", [1e-3, 1e-6, 1e-10, 1e-30])
def test_small_outputs_are_compared(scale: float) -> None:
    """The scale of the outputs does not matter: a relative error fails, and right results pass."""

    def scaled(factor: float) -> gk.Model:
        return gk.Model({"y": gk.tanh(gk.input("x", ["N", 8])) * np.float32(scale * factor)}, name="net")

    report = gk.verify(scaled(1.0))
    assert report.passed, str(report)
    assert report.outputs[0].atol <= 1e-4 * scale
    wrong = gk.verify(scaled(1.0), against=scaled(1.001).to_onnx())
    assert not wrong.passed
    assert "further from double precision than rounding explains" in wrong.outputs[0].reason
    assert gk.verify(scaled(1.0), against=scaled(1.001).to_onnx(), atol=1e-2 * scale).passed


def test_small_differences_of_large_numbers_are_judged_by_their_rounding() -> None:
    """Their error is that of the subtracted numbers, so it is a large part of the difference."""
    x = gk.input("x", ["N", 64])
    total = gk.reduce_sum(gk.exp(x), [1], keepdims=False)
    net = gk.Model({"y": total - gk.reduce_sum(gk.exp(x) * 1.0000001, [1], keepdims=False)}, name="net")
    report = gk.verify(net)
    assert report.passed, str(report)


def test_outputs_of_zeros_have_to_be_zeros() -> None:
    x = gk.input("x", ["N", 4])
    zeros = gk.Model({"y": x * np.float32(0)}, name="net")
    assert gk.verify(zeros).passed
    assert not gk.verify(zeros, against=gk.Model({"y": x * np.float32(1e-12)}, name="net").to_onnx()).passed


def test_a_wrong_export_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network()
    other = net.to_onnx()
    weights = {t.name: t for t in other.graph.initializer}
    changed = np.frombuffer(weights["fc2_bias"].raw_data, np.float32).copy()
    changed[0] += 0.01
    weights["fc2_bias"].raw_data = changed.tobytes()
    monkeypatch.setattr(type(net), "to_onnx", lambda self, **_: other)
    report = gk.verify(net)
    assert not report.passed
    p, best = report.outputs
    assert best.passed
    assert 1e-4 < p.max_abs < 1e-2
    assert gk.verify(net, atol=p.needed_atol * 1.01).passed
    with pytest.raises(CheckFailed, match="would pass with atol"):
        report.raise_if_failed()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    net = gk.Model(gk.relu(gk.input("x", ["N", 2])))
    with pytest.raises(UsageError, match=r"none\.onnx: no such file"):
        gk.verify(net, against=tmp_path / "none.onnx")


def test_tolerances_that_would_have_passed() -> None:
    a, b = np.float32([1.0, 2.0, 3.0]), np.float32([1.0, 2.1, 3.0])
    report = compare("y", a, b, rtol=0.0, atol=1e-3)
    assert not report.passed
    assert report.mismatches == 1
    assert compare("y", a, b, rtol=0.0, atol=report.needed_atol).passed
    assert compare("y", a, b, rtol=report.needed_rtol * (1 + 1e-6), atol=1e-3).passed
    assert not compare("y", a, b, rtol=report.needed_rtol * 0.99, atol=1e-3).passed
    assert report.max_rel == pytest.approx(0.1 / 2.1, rel=1e-5)
    assert report.mean_abs == pytest.approx(0.1 / 3, rel=1e-5)


@in_one_item()
@pytest.mark.parametrize(
    ("a", "b", "passed"),
    [
        ([np.nan, np.inf, -np.inf, 0.0], [np.nan, np.inf, -np.inf, -0.0], True),
        ([np.nan, 1.0], [1.0, np.nan], False),
        ([np.inf], [-np.inf], False),
        ([np.inf], [3e38], False),
        ([], [], True),
    ],
)
def test_special_values(a: list[float], b: list[float], passed: bool) -> None:
    assert compare("y", np.float32(a), np.float32(b)).passed is passed


def test_integers_booleans_and_strings_must_be_equal() -> None:
    big = np.array([2**62, 5], np.int64)
    assert compare("y", big, big).passed
    assert not compare("y", big, big + np.array([1, 0])).passed
    assert not compare("y", np.array([1]), np.array([2]), rtol=10.0, atol=10.0).passed
    assert not compare("y", np.array([True]), np.array([False])).passed
    assert compare("y", np.array(["a"], object), np.array(["a"], object)).passed
    assert not compare("y", np.array(["a"], object), np.array(["b"], object)).passed


def test_shapes_and_dtypes_are_compared() -> None:
    report = compare("y", np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32))
    assert "graphkit returned float32[2, 3], the reference float32[3, 2]" in str(report)
    assert not compare("y", np.zeros(2, np.float32), np.zeros(2, np.float64)).passed


def test_sequences_are_compared_by_element() -> None:
    flat = list(flattened("s", [np.zeros(1), np.ones(1)], [np.zeros(1)]))
    assert [name for name, _, _ in flat] == ["s (length)", "s[0]"]


def test_random_models_cannot_be_compared() -> None:
    x = gk.input("x", [3])
    net = gk.Model(x + gk.random_normal(shape=(3,), name="noise"))
    with pytest.raises(UsageError, match="noise"):
        gk.verify(net)


def test_special_values_must_be_in_the_same_places():
    special = np.array([np.nan, np.inf, -np.inf, 0.0], np.float32)
    assert compare("y", special, special).passed
    assert compare("y", special[[1, 1, 2, 3]], special).mismatches == 1
    assert compare("y", -special, special).mismatches == 2
    assert compare("y", np.zeros((0, 3)), np.zeros((0, 3))).passed


def test_sequences_are_compared_element_by_element():
    one = np.ones(1, np.float32)
    reports = compare_outputs({"a": one, "s": [one, one]}, {"b": one, "s": [one, 2 * one]})
    assert [(r.name, r.passed) for r in reports] == [("a", True), ("s[0]", True), ("s[1]", False)]
    assert not compare_outputs({"s": []}, {"s": [one]})[0].passed


def test_nothing_compared_is_no_pass() -> None:
    x = gk.input("x", ["N", 3])
    empty = gk.Model({"y": gk.tanh(x)})
    report = gk.verify(empty, {"x": np.zeros((0, 3), np.float32)})
    assert (report.verdict, report.passed) == ("NOT TESTED", False)
    assert "it has no elements" in str(report)
    with pytest.raises(CheckFailed, match="nothing was compared with ONNX Runtime: y: it has no elements"):
        report.raise_if_failed()
    roots = gk.Model({"y": gk.sqrt(x)})
    report = gk.verify(roots, {"x": np.full((2, 3), -1, np.float32)})
    assert report.outputs[0].untested == "all elements are NaN in both engines"
    assert not report.passed
    both = gk.Model({"y": gk.sqrt(x), "z": gk.neg(x)})
    report = gk.verify(both, {"x": np.full((2, 3), -1, np.float32)})
    assert ([o.verdict for o in report.outputs], report.passed) == (["NOT TESTED", "PASSED"], True)


def test_nothing_compared_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = gk.input("x", ["N", 3])
    gk.Model({"y": gk.sqrt(x)}).save(tmp_path / "net.onnx")
    np.save(tmp_path / "x.npy", np.full((2, 3), -1, np.float32))
    assert invoke(["verify", str(tmp_path / "net.onnx"), f"x={tmp_path / 'x.npy'}"]) == 1
    assert "NOT TESTED" in capsys.readouterr().out


def test_gradients_of_nothing_are_no_pass() -> None:
    report = gk.check_gradient(gk.Model({"y": gk.tanh(gk.input("x", [0, 3]))}))
    assert (report.verdict, report.passed) == ("NOT TESTED", False)
    with pytest.raises(CheckFailed, match="no gradient was compared"):
        report.raise_if_failed()
