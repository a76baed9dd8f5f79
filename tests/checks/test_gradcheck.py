"""The numeric gradient check finds wrong gradients and passes right ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.checks.gradcheck import check_gradient
from graphkit.checks.precision import in_float64
from graphkit.errors import CheckFailed, UsageError
from graphkit.ops import F, registry


@pytest.fixture
def wrong() -> Iterator[None]:
    @gk.op
    class WrongSquare(gk.Op):
        """x * x, with a gradient that lacks the factor 2 where x > 1."""

        domain = "test.gradcheck"
        inputs = ("x",)

        def infer(self, x: gk.TensorType) -> gk.TensorType:
            return gk.TensorType(x.dtype, x.shape)

        def reference(self, xp: Any, x: Any) -> Any:
            return x * x

        def grad(self, node: Any, dy: Any) -> Any:
            (x,) = node.inputs
            return dy * x * F.where(x > 1.0, x * 0.0 + 1.0, 2.0)

    yield
    registry.remove(WrongSquare)


def network(**options: Any) -> gk.Model:
    x = gk.input("x", ["N", 4])
    h = gk.tanh(gk.nn.linear(x, 3, name="fc"))
    return gk.Model({"y": gk.softmax(h), "h": h}, seed=1, **options)


def test_right_gradients_pass() -> None:
    report = check_gradient(network())
    assert report.passed, str(report)
    assert [e.name for e in report.entries] == ["x", "fc_weight", "fc_bias"]
    assert report.guesses == {"N": 2}
    assert all(e.max_abs < 1e-8 for e in report.entries)


def test_directions() -> None:
    report = check_gradient(network(), directions=3)
    assert report.passed
    assert all(e.checked == 3 for e in report.entries)


def test_elements_that_decide_sizes_are_named() -> None:
    x, scales = gk.input("x", [1, 1, 3, 3]), gk.input("scales", [4])
    net = gk.Model({"y": gk.resize(x, None, scales, mode="linear")})
    feeds = {"scales": np.array([1, 1, 2, 2], np.float32)}
    with pytest.raises(UsageError, match="sizes of outputs depend on the elements of 'scales': leave it out of wrt="):
        gk.check_gradient(net, inputs=feeds)
    assert gk.check_gradient(net, inputs=feeds, wrt=["x"]).passed


def test_chosen_output_and_inputs() -> None:
    report = check_gradient(network(), of="h", wrt=["fc_bias"])
    assert [e.name for e in report.entries] == ["fc_bias"]
    with pytest.raises(UsageError, match="did you mean 'fc_bias'"):
        check_gradient(network(), wrt=["fc_bais"])


@pytest.mark.parametrize("directions", [0, 4])
def test_wrong_gradients_are_found(wrong: None, directions: int) -> None:
    net = gk.Model({"y": gk.wrong_square(gk.input("x", [4]))})
    report = check_gradient(net, {"x": np.float32([0.5, -1, 3, 0.25])}, directions=directions)
    assert not report.passed
    (entry,) = report.entries
    if not directions:
        assert entry.worst == (2,)
        assert entry.numeric == pytest.approx(2 * entry.symbolic)
    assert "FAILED" in str(report)
    with pytest.raises(CheckFailed, match="x: FAILED"):
        report.raise_if_failed()


def test_float64_rebuild_widens_constants_and_types() -> None:
    x = gk.input("x", [2], dtype="float16")
    net = gk.Model({"y": gk.cast(gk.cast(x, to="float32") + 1.0, to="float16")})
    graph = in_float64(net.graph)
    assert {v.dtype.value for v in graph.values} == {"float64"}
    assert graph.output_names == ("y",)


def test_all_together() -> None:
    report = check_gradient(network(), together=True)
    assert report.passed
    assert [(e.name, e.checked) for e in report.entries] == [("3 together", 4)]


def test_the_wrong_one_of_many_is_found_together(wrong: None) -> None:
    values = {name: gk.input(name, [3]) for name in "abcde"}
    squares = [gk.wrong_square(v) if n == "d" else v * v for n, v in values.items()]
    report = check_gradient(gk.Model({"y": gk.sum(*squares)}), {"d": np.float32([2, 3, 4])}, together=True)
    assert [e.name for e in report.entries if not e.passed] == ["d"]
    assert sum(e.passed for e in report.entries) >= 2


def test_kinks_beside_the_point_do_not_spoil_the_quotient() -> None:
    """|x - c| has its kinks at distances of 2e-8 and more: only the smallest step is free of them."""
    x = gk.input("x", [40])
    at = np.float32(np.linspace(-1, 1, 40))
    net = gk.Model({"y": gk.abs(x - (at + np.geomspace(5e-8, 1e-3, 40).astype(np.float32)))})
    assert check_gradient(net, {"x": at}, directions=3, rtol=1e-5).passed


def test_float64_rebuild_of_fills() -> None:
    x = gk.input("x", [2])
    net = gk.Model({"y": gk.concat(x, gk.constant_of_shape(np.array([3])), axis=0)})
    assert {v.dtype.value for v in in_float64(net.graph).values} == {"float64", "int64"}


def test_outputs_that_are_sequences_are_checked_element_by_element() -> None:
    rows = gk.SequenceType(gk.TensorType("float32", ["N", 3]))
    q, x = gk.input("q", rows), gk.input("x", [2, 3])
    net = gk.Model({"y": gk.sequence_insert(q, gk.sin(x)), "z": gk.concat_from_sequence(q, axis=0)}, name="net")
    report = gk.check_gradient(net)
    assert [(e.name, e.passed, e.checked) for e in report.entries] == [("x", True, 6)]
    assert report.entries[0].numeric != 0
