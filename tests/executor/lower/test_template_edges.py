"""Programs for new sizes: no elements, views of constants, products with one column, sizes that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import TypeMismatch
from graphkit.executor.lower.template import Template
from graphkit.executor.run.sized_program import SizedProgram
from graphkit.ir.graph import Value
from graphkit.ops import F

RNG = np.random.default_rng(0)


def check(build: Callable[[Value], Value], shape: Sequence[Any], *sizes: tuple[int, ...]) -> gk.Model:
    """Compare the programs for `sizes` with those that are compiled for each of them."""
    net = gk.Model({"y": build(gk.input("x", shape))})
    executor, compiled = net.compile(threads=1), net.compile(threads=1, deterministic=True)
    for size in sizes:
        x = RNG.standard_normal(size, dtype=np.float32)
        found, expected = executor.run({"x": x})["y"], compiled.run({"x": x})["y"]
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    return executor


def rows_of(x: Value) -> Value:
    return F.gather(F.shape(x), np.array([0]))


def test_a_constant_reshaped_to_a_symbolic_shape() -> None:
    table = F.constant(value=np.arange(12, dtype=np.float32))
    check(lambda x: F.exp(F.reshape(table, F.concat(rows_of(x), np.array([-1]), axis=0))), ["N", 4], (3, 4), (6, 4))


def test_a_parameter_reshaped_to_a_symbolic_shape() -> None:
    def product(x: Value) -> Value:
        w = gk.parameter("w", [24], init="uniform")
        return F.mat_mul(x, F.reshape(w, F.concat(rows_of(x), np.array([-1]), axis=0)))

    check(product, ["N", "N"], (2, 2), (3, 3), (4, 4), (6, 6))


@pytest.mark.parametrize("allowzero", [False, True])
def test_the_open_dimension_of_a_reshape_beside_no_elements(allowzero: bool) -> None:
    def reshaped(x: Value) -> Value:
        columns = F.gather(F.shape(x), np.array([1]))
        return F.reshape(F.exp(x), F.concat(F.mul(columns, np.array([2])), np.array([-1]), axis=0), allowzero=allowzero)

    empty = (
        [(4, 0, 2), (5, 0, 2)] if allowzero else []
    )  # otherwise, 0 copies a dimension, and nothing is left to divide
    check(reshaped, ["N", "M", 2], (3, 2, 2), (5, 4, 2), *empty)


@pytest.mark.onednn
@pytest.mark.parametrize(("depth", "kernel"), [(16, "PackedProduct"), (96, "BlockedMatMul")])
def test_products_with_one_column(depth: int, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = set()
    structured = Template.make_structure

    def recorded(self: Template, made: Any, sizes: Any) -> Any:
        kernels.update(type(m.kernel).__name__ for m in made)
        return structured(self, made, sizes)

    monkeypatch.setattr(Template, "make_structure", recorded)
    w = F.constant(value=RNG.standard_normal((depth, 1), dtype=np.float32))
    sizes = [(40, depth), (50, depth), (60, depth)]
    executor = check(lambda x: F.mat_mul(F.exp(x), w), ["N", depth], *sizes)
    assert isinstance(executor._choice.latest, SizedProgram)
    assert kernels == {"Pointwise", kernel}


def test_sizes_that_do_not_broadcast_are_named_as_in_a_compiled_program() -> None:
    c = F.constant(value=np.ones(4, np.float32))
    net = gk.Model({"y": F.exp(F.mul(F.sub(F.neg(gk.input("x", ["N", "M"])), c), c))})
    executor = net.compile()
    for n in (2, 3):
        executor.run({"x": np.ones((n, 4), np.float32)})
    with pytest.raises(TypeMismatch):
        executor.run({"x": np.ones((3, 8), np.float32)})
    assert executor.run({"x": np.zeros((5, 4), np.float32)})["y"].shape == (5, 4)


def test_a_signal_shorter_than_a_frame_has_no_spectrum() -> None:
    def spectrum(x: Value) -> Value:
        return F.neg(F.stft(x, np.int64(4), None, np.int64(8)))

    executor = check(spectrum, [1, "N", 1], (1, 16, 1), (1, 20, 1), (1, 8, 1), (1, 7, 1), (1, 3, 1))
    assert executor.run({"x": np.ones((1, 7, 1), np.float32)})["y"].shape == (1, 0, 5, 2)


def test_groups_of_no_channels() -> None:
    none = np.zeros(0, np.float32)
    net = gk.Model({"y": F.group_normalization(gk.input("x", ["N", 0, 2, 2]), none, none, num_groups=2)})
    for n in (1, 2, 3):
        assert net.compile().run({"x": np.zeros((n, 0, 2, 2), np.float32)})["y"].shape == (n, 0, 2, 2)


def test_indices_of_maxima_of_an_empty_plane() -> None:
    x = gk.input("x", [1, 3, 0, 3])
    found = F.max_pool(
        F.exp(x), kernel_shape=(3, 3), pads=(1, 1, 1, 1), strides=(2, 2), ceil_mode=True, storage_order=1
    )
    indices = gk.Model({"i": found[1]}).compile().run({"x": np.zeros((1, 3, 0, 3), np.float32)})["i"]
    assert not indices.any()


@in_one_item()
@pytest.mark.parametrize("name", ["batch_norm_grad", "layer_norm_grad", "rms_norm_grad", "group_norm_grad"])
def test_gradients_of_norms_have_the_shape_of_the_operand(name: str) -> None:
    channels = 4 if name in ("layer_norm_grad", "rms_norm_grad") else 3
    dy, x, scale = (gk.input(n, s) for n, s in (("dy", [2, 3, 2]), ("x", [2, 3, 4]), ("scale", [channels])))
    options = {"num_groups": 1} if name == "group_norm_grad" else {}
    with pytest.raises(TypeMismatch, match="dy and x must have one shape"):
        getattr(F, name)(dy, x, scale, **options)
