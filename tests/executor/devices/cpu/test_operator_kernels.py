"""Kernels that are made from a node's description, without a factory in Python."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import UsageError
from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import KernelRule, register, rule_of
from graphkit.ops import registry

GUARD = ("ai.graphkit", "FiniteGuard")
X, TOKEN, Y = ("x", (2, 3), "float32"), ("token", (), "float64"), ("y", (2, 3), "float32")


def _kernel(inputs, outputs):
    """The kernel of a FiniteGuard for inputs (name, shape, dtype) or None, and outputs (name, shape, dtype)."""
    factory = native.DescribedOperator(*GUARD, {}).factory(
        [None if i is None else (i[0], i[2], None) for i in inputs],
        [(o[0], o[2]) for o in outputs],
        used=[True],
        constants=[],
        threads=1,
        sizes_vary=False,
        deterministic=False,
    )
    return factory([None if i is None else i[1] for i in inputs], [o[1] for o in outputs])


def test_every_one_is_an_operator_with_a_factory() -> None:
    assert GUARD in native.operators()
    for domain, name in native.operators():
        found = registry.find(domain, name)
        assert found is not None, f"GRAPHKIT_KERNEL({domain}, {name}) names no operator"
        assert rule_of("cpu", found).has_kernels


def test_a_kernel_by_its_node() -> None:
    kernel = _kernel([X, TOKEN], [Y])
    assert isinstance(kernel, native.Kernel)
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((2, 3), np.float32)
    kernel([x, np.array(2.0)], [y])
    np.testing.assert_array_equal(y, x)
    with pytest.raises(native.NotFinite, match=r"^inf$"):
        kernel([x, np.array(np.inf)], [y])


def test_what_there_is_no_kernel_for() -> None:
    with pytest.raises(native.Unsupported, match="no kernel for Nothing"):
        native.DescribedOperator("", "Nothing", {})
    with pytest.raises(native.Unsupported, match="an operand is absent"):
        _kernel([X, None], [Y])
    with pytest.raises(native.Unsupported, match="float128"):
        _kernel([("x", (2, 3), "float128"), TOKEN], [Y])
    with pytest.raises(native.Error, match="one element"):
        _kernel([X, ("token", (2,), "float64")], [Y])


def test_elements_that_a_kernel_reads() -> None:
    """Elements of operands that a kernel does not read may depend on sizes."""
    assert native.DescribedOperator(*GUARD, {}).reads(1)
    assert not native.DescribedOperator("", "Range", {}).reads(1)
    x = gk.input("x", ["N", 2])
    size = gk.gather(gk.shape(x), np.int64(0))
    for node, prepared in (
        (gk.range(np.int64(0), size, np.int64(1)).node, True),
        (gk.cum_sum(x, size).node, False),
    ):
        assert (rule_of("cpu", node.op).prepare(node, KernelContext()) is not None) == prepared


def test_what_a_kernel_declares_is_what_its_node_has() -> None:
    """A kernel that is wrong about its operands would read and write beyond them."""
    for outputs, message in (
        ([], "number of outputs: 1 in the kernel, 0 in the node"),
        ([("y", (3, 3), "float32")], r"output is y f32\[2, 3\] in the kernel, but y f32\[3, 3\] in the node"),
        ([("y", (2, 3), "float64")], r"output is y f32\[2, 3\] in the kernel, but y f64\[2, 3\] in the node"),
    ):
        with pytest.raises(native.Error, match=message):
            _kernel([X, TOKEN], outputs)


def test_two_kernels_for_one_operator() -> None:
    with pytest.raises(UsageError, match=r"device 'cpu' has two kernels for ai.graphkit.FiniteGuard"):
        register("cpu", *GUARD, KernelRule(lambda node, context: None))
