"""Views whose bounds follow from the sizes, at one size after another: made without Python, and as numpy has them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item
from onnx import helper
from onnx.reference import ReferenceEvaluator

import graphkit as gk
from graphkit.errors import TypeMismatch
from graphkit.executor.lower.template import _Step
from graphkit.executor.run.sized_program import SizedProgram
from graphkit.ir.graph import Value
from graphkit.ops import F

RNG = np.random.default_rng(0)
LAST = np.int64(2**63 - 1)


def size_of(x: Value, axis: int) -> Value:
    return F.gather(F.shape(x), np.array([axis]))


def taken(x: Value, *bounds: Any) -> Value:
    """F.slice with bounds that are values or lists."""
    return F.slice(x, *(np.array(b) if isinstance(b, list) else b for b in bounds))


def halved(x: Value) -> Value:
    return F.div(size_of(x, 0), np.array([2]))


# From x [N, M], and a table of 9 rows, to one of both; and the same by numpy.
SLICES: dict[str, tuple[Callable[[Value, Value], Value], Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "as many rows of a table": (lambda x, t: taken(t, [0], size_of(x, 0), [0], [1]), lambda x, t: t[: len(x)]),
    "all but so many rows": (lambda x, t: taken(t, size_of(x, 0), [LAST]), lambda x, t: t[len(x) :]),
    "every second row": (lambda x, t: taken(t, [1], size_of(x, 0), [0], [2]), lambda x, t: t[1 : len(x) : 2]),
    "the first half": (lambda x, t: taken(F.exp(x), [0], halved(x)), lambda x, t: np.exp(x)[: len(x) // 2]),
    "the other half": (lambda x, t: taken(F.exp(x), halved(x), [LAST]), lambda x, t: np.exp(x)[len(x) // 2 :]),
    "bounds of two axes": (
        lambda x, t: taken(t, [0, 1], F.concat(size_of(x, 0), np.array([3]), axis=0), [0, 1]),
        lambda x, t: t[: len(x), 1:3],
    ),
    "the last row": (lambda x, t: taken(F.exp(x), [-1], [LAST], [0]), lambda x, t: np.exp(x)[-1:]),
    "backwards": (lambda x, t: taken(F.exp(x), [-1], [-LAST], [0], [-1]), lambda x, t: np.exp(x)[::-1]),
}


def check(net: gk.Model, expected: Callable[[np.ndarray], np.ndarray], sizes: list[int], threads: int) -> None:
    executor = net.compile(threads=threads)
    for number, n in enumerate(sizes):
        x = RNG.standard_normal((n, 4), dtype=np.float32)
        found = executor.run({"x": x})["y"]
        assert number == 0 or isinstance(executor._choice.latest, SizedProgram)
        np.testing.assert_allclose(found, expected(x), rtol=1e-6, err_msg=f"N = {n}")


@in_one_item()
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", SLICES)
def test_slices(case: str, threads: int, steps: list[_Step]) -> None:
    make, expected = SLICES[case]
    table = RNG.standard_normal((9, 4), dtype=np.float32)
    steps.clear()
    net = gk.Model({"y": F.neg(make(gk.input("x", ["N", 4]), F.constant(value=table)))})
    check(net, lambda x: -expected(x, table), [3, 1, 8, 9, 12, 0, 2, 20], threads)
    slices = [step for step in steps if step.node.op.name == "Slice"]
    assert slices
    assert all(step.native is not None for step in slices)


def test_a_slice_whose_bounds_both_depend_on_sizes() -> None:
    """Its start does not follow from shapes."""
    x, table = gk.input("x", ["N", 4]), gk.parameter("t", (40, 4))
    net = gk.Model({"y": F.neg(taken(table, halved(x), size_of(x, 0)))})
    net.params["t"] = RNG.standard_normal((40, 4), dtype=np.float32)
    check(net, lambda x: -net.params["t"][len(x) // 2 : len(x)], [3, 1, 8, 9, 40], 1)


@in_one_item()
@pytest.mark.parametrize("threads", [1, 2])
def test_other_views(threads: int, steps: list[_Step]) -> None:
    def body(x: Value) -> Value:
        turned = F.transpose(F.tile(F.exp(x), np.array([2, 3])), perm=(1, 0))
        return F.concat(turned, F.transpose(F.tile(F.neg(x), np.array([2, 1]))), axis=0)

    steps.clear()
    net = gk.Model({"y": body(gk.input("x", ["N", 4]))})
    check(net, lambda x: np.concatenate([np.tile(np.exp(x), (2, 3)).T, np.tile(-x, (2, 1)).T]), [3, 1, 8, 17], threads)
    views = [step for step in steps if step.node.op.name in ("Tile", "Transpose")]
    assert len(views) == 4
    assert all(step.native is not None for step in views)


@in_one_item()
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_blocks_of_pixels(mode: str, steps: list[_Step]) -> None:
    x = gk.input("x", ["N", 8, "H", "W"])
    wide = F.depth_to_space(F.exp(x), blocksize=2, mode=mode)
    net = gk.Model({"wide": F.neg(wide), "y": F.neg(F.space_to_depth(wide, blocksize=2, mode=mode))})
    steps.clear()
    executor = net.compile(threads=1)
    reference = ReferenceEvaluator(helper.make_node("DepthToSpace", ["x"], ["y"], blocksize=2, mode=mode))
    for shape in ((1, 8, 3, 5), (2, 8, 1, 1), (3, 8, 4, 2)):
        array = RNG.standard_normal(shape, dtype=np.float32)
        found = executor.run({"x": array})
        (expected,) = reference.run(None, {"x": np.exp(array)})
        np.testing.assert_allclose(found["wide"], -expected, rtol=1e-6)
        np.testing.assert_allclose(found["y"], -np.exp(array), rtol=1e-6)
    assert isinstance(executor._choice.latest, SizedProgram)
    blocks = [step for step in steps if step.node.op.name in ("DepthToSpace", "SpaceToDepth")]
    assert len(blocks) == 2
    assert all(step.native is not None for step in blocks)


def test_pixels_that_make_no_whole_blocks() -> None:
    """The sizes of a template must be those that inference accepts."""
    net = gk.Model({"y": F.neg(F.space_to_depth(F.exp(gk.input("x", ["N", 1, "H", "W"])), blocksize=2))})
    executor = net.compile(threads=1)
    for h, w in ((4, 2), (2, 6), (8, 8)):
        assert executor.run({"x": np.ones((1, 1, h, w), np.float32)})["y"].shape == (1, 4, h // 2, w // 2)
    for h, w in ((3, 2), (4, 5)):
        with pytest.raises(TypeMismatch, match=r"SpaceToDepth takes \[N, C, H\*2, W\*2\]"):
            executor.run({"x": np.ones((1, 1, h, w), np.float32)})
