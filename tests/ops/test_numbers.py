"""Equal operators and types have equal numbers, by which inferred types are kept."""

import copy
import pickle
import weakref
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import UsageError
from graphkit.ir import dims
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F, Op
from graphkit.ops._op import declared, number_of
from graphkit.ops.internal.fused import Fused
from graphkit.ops.linalg.matmul import MatMul
from graphkit.ops.math.arithmetic import Neg
from graphkit.ops.ml.linear import LinearRegressor
from graphkit.ops.tensor.layout import Transpose


def test_nodes_share_operators_of_equal_attributes() -> None:
    x = Value(TensorType("float32", [2, 3]))

    def alpha_of(value: float) -> Any:
        return F.leaky_relu(x, alpha=value).node.op

    assert alpha_of(0.5) is alpha_of(0.5)
    assert alpha_of(0.5).replace(alpha=0.25) is alpha_of(0.5).replace(alpha=0.25)
    assert alpha_of(0.5) is not alpha_of(0.25)
    # Equal numbers with other bits, and numbers that differ from themselves.
    assert str(alpha_of(0.0).alpha) == "0.0"
    assert str(alpha_of(-0.0).alpha) == "-0.0"
    assert alpha_of(float("nan")) is not alpha_of(float("nan"))


def test_tables_of_operators_keep_no_long_texts() -> None:
    shared = F.regex_full_match.op.shared
    assert shared(pattern="a" * 256) is shared(pattern="a" * 256)
    assert shared(pattern="a" * 257) is not shared(pattern="a" * 257)


def test_infinite_attribute_of_an_integer_is_an_error() -> None:
    x = Value(TensorType("float32", [2, 3]))
    with pytest.raises(UsageError, match="axis=inf must be an integer"):
        F.softmax(x, axis=float("inf"))
    with pytest.raises(UsageError, match="too large"):
        F.leaky_relu(x, alpha=10**400)


def test_equal_types_have_equal_numbers() -> None:
    made = [TensorType("float32", ["N", 3]) for _ in range(2)]
    assert made[0].number == made[1].number != TensorType("float32", ["M", 3]).number
    shapes = [TensorType("int64", [2], value) for value in ([2, 3], [2, 4], None)]
    assert len({kind.number for kind in shapes}) == 3


def test_number_distinguishes_signs_of_zero() -> None:
    zeros = [TensorType("float32", [1], None, [value]) for value in (0.0, -0.0)]
    assert zeros[0].number != zeros[1].number


@in_one_item()
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))])
def test_copies_are_numbered_again(copied) -> None:
    kind, op = TensorType("float32", ["N", 3]), Transpose(perm=[1, 0])
    assert (kind.number, number_of(op)) == (copied(kind).number, number_of(copied(op)))
    assert copied(op) == op
    assert b"_number" not in pickle.dumps([kind, op])


def test_operators_with_long_lists_are_not_kept() -> None:
    def made(count: int) -> Op:
        return LinearRegressor(coefficients=[0.375] * count)

    long = made(10_000)
    assert number_of(long) != number_of(made(10_000))
    assert number_of(made(10)) == number_of(made(10))
    kept = weakref.ref(long)
    del long
    assert kept() is None


def body(name: str, factor: float = 2.0, build=F.mul, kind: str = "float32") -> Fused:
    x = Value(TensorType(kind, ["N"]), name)
    y = build(F.abs(x), np.array(factor, kind), name=name)
    return Fused(body=Graph([x], [y]))


def test_regions_that_differ_in_names_have_equal_numbers() -> None:
    assert number_of(body("a")) == number_of(body("b")) != number_of(body("a", 3.0))
    assert number_of(body("a")) != number_of(body("a", build=F.add))


def test_regions_whose_errors_name_nodes_have_their_own_numbers() -> None:
    divisions = [body(name, build=F.div, kind="int32") for name in "ab"]
    assert number_of(divisions[0]) != number_of(divisions[1])


def test_types_are_inferred_once_for_equal_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, infer = [], Transpose.infer
    monkeypatch.setattr(Transpose, "infer", lambda *given: calls.append(given) or infer(*given))
    x = gk.input("x", [2, 3, 4, 5, 6, 7])
    results = [F.transpose(x, perm=[0, 5, 1, 4, 2, 3]) for _ in range(3)]
    assert len(calls) <= 1
    assert [v.shape for v in results] == [(2, 7, 3, 6, 4, 5)] * 3


def test_unknown_sizes_differ_in_each_node() -> None:
    x = gk.input("x", ["N"])
    sizes = [F.non_zero(x).tensor.known_shape[1] for _ in range(3)]
    assert len(set(sizes)) == 3


def test_assumptions_are_collected_again() -> None:
    a, b = TensorType("float32", ["N", "K"]), TensorType("float32", ["L", "M"])
    for _ in range(2):
        MatMul().infer_types([a, b])
        with dims.assumptions() as found:
            MatMul().infer_types([a, b])
        assert found


@pytest.mark.parametrize("decorator", [declared, lambda cls: cls], ids=["declared", "without decorator"])
def test_operators_from_elsewhere_are_inferred_each_time(decorator: Any) -> None:
    calls = []

    @decorator
    class Other(Neg):
        def infer(self, x: TensorType) -> TensorType:
            calls.append(x)
            return x

    for _ in range(2):
        Other().infer_types([TensorType("float32", [2])])
    assert len(calls) == 2
