"""Einsum's letters: an axis of size 1 broadcasts against that letter's axes in other operands, as in ONNX Runtime."""

from __future__ import annotations

import re

import numpy as np
import onnxruntime as ort
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import GraphkitError, TypeMismatch

BROADCAST = [
    ("ij,jk->ik", (2, 1), (3, 4)),
    ("ij,ij->ij", (1, 3), (2, 1)),
    ("ij,ij->i", (1, 3), (2, 1)),
    ("ij,ij->", (1, 1), (2, 3)),
    ("ij,i->j", (3, 2), (1,)),
    ("ii,i->i", (1, 1), (3,)),
    ("bij,bjk->bik", (1, 2, 3), (5, 1, 4)),
    ("ij,ij,jk->ik", (1, 3), (2, 1), (1, 4)),
    ("ij,ij,j->i", (2, 1), (2, 1), (3,)),
    ("...i,...i->...", (2, 1, 3), (1, 4, 1)),
]


def network(equation, shapes, names=False):
    """Einsum of inputs x0, x1, ..., all of whose sizes are names if `names`."""
    xs = [
        gk.input(f"x{i}", [f"d{i}{k}" for k in range(len(shape))] if names else shape) for i, shape in enumerate(shapes)
    ]
    return gk.Model({"y": gk.einsum(*xs, equation=equation)})


def arrays(shapes):
    random = np.random.default_rng(0)
    return {f"x{i}": random.standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)}


@in_one_item()
@pytest.mark.parametrize(("equation", "shapes"), [(e, s) for e, *s in BROADCAST])
def test_letters_of_size_one_broadcast(equation, shapes):
    net, feeds = network(equation, shapes), arrays(shapes)
    (right,) = ort.InferenceSession(net.to_onnx().SerializeToString()).run(None, feeds)
    (y,) = net.graph.outputs
    assert y.shape == right.shape
    np.testing.assert_allclose(net.run(feeds)["y"], right, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.einsum(equation, *feeds.values()), right, rtol=1e-5, atol=1e-6)


@in_one_item()
@pytest.mark.parametrize(("equation", "shapes"), [(e, s) for e, *s in BROADCAST])
def test_gradients_sum_over_what_broadcast(equation, shapes):
    net = network(equation, shapes)
    assert gk.check_gradient(net, wrt=[f"x{i}" for i in range(len(shapes))]).passed


def test_a_size_one_beside_a_name_keeps_the_name():
    x, w = gk.input("x", ["N", 2, 3]), gk.input("w", [1, 3, 4])
    y = gk.einsum(x, w, equation="bij,bjk->bik")
    assert str(y.shape[0]) == "N"
    feeds = {"x": np.ones((5, 2, 3), np.float32), "w": np.ones((1, 3, 4), np.float32)}
    np.testing.assert_array_equal(gk.Model({"y": y}).run(feeds)["y"], np.full((5, 2, 4), 3, np.float32))


@in_one_item()
@pytest.mark.parametrize(
    ("equation", "shapes"), [("ij,ij->ij", [(2, 2), (2, 3)]), ("ij,jk->ik", [(2, 2), (3, 4)]), ("ii->i", [(1, 3)])]
)
def test_sizes_that_differ_are_refused(equation, shapes):
    with pytest.raises(TypeMismatch, match=r"have [123] and [123] elements"):
        network(equation, shapes)


@in_one_item()
@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize(
    ("equation", "shape"),
    [
        ("bii->b", (5, 3, 3)),
        ("iij->ij", (4, 4, 2)),
        ("iji->j", (4, 5, 4)),
        ("iii->i", (3, 3, 3)),
        ("ijjki->kj", (2, 3, 3, 4, 2)),
        ("aijij->ji", (2, 3, 4, 3, 4)),
        ("ii->i", (0, 0)),
        ("ii->", (1, 1)),
    ],
)
def test_diagonals_equal_numpy(equation, shape, names):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    if x.size > 1:
        x.flat[1] = np.nan  # not on the diagonal
    letters = equation.partition("->")[0]
    sizes = [f"size_{letter}" for letter in letters] if names else shape
    net = gk.Model({"y": gk.einsum(gk.input("x", sizes), equation=equation)})
    np.testing.assert_allclose(net.run({"x": x})["y"], np.einsum(equation, x), rtol=1e-5, atol=1e-6)


def test_gradients_of_diagonals_that_are_apart():
    assert gk.check_gradient(network("ibici->bc", [(3, 2, 3, 2, 3)]), wrt=["x0"]).passed


@in_one_item()
@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (2, 3)])
def test_a_diagonal_needs_equal_sizes_at_run_time(shape):
    with pytest.raises(GraphkitError):
        network("ii->i", [shape], names=True).run(arrays([shape]))


@pytest.mark.parametrize("shapes", [[(2, 3), (3, 2)], [(6, 1), (2, 3)]])
def test_letters_summed_together_need_sizes_that_fit_at_run_time(shapes):
    with pytest.raises(GraphkitError):
        network("ij,ij->", shapes, names=True).run(arrays(shapes))


@in_one_item()
@pytest.mark.parametrize("shapes", [[(2, 3), (2, 3)], [(1, 3), (2, 3)], [(2, 1), (1, 3)]])
def test_letters_summed_together_broadcast_at_run_time(shapes):
    net, feeds = network("ij,ij->", shapes, names=True), arrays(shapes)
    np.testing.assert_allclose(net.run(feeds)["y"], np.einsum("ij,ij->", *feeds.values()), rtol=1e-5)


@in_one_item()
@pytest.mark.parametrize(
    ("equation", "message"),
    [
        ("ij->iz", "'z' in the result is not in any operand"),
        ("ij->ii", "'i' is in the result twice"),
        ("...j->j", "'...' is in an operand, but not in the result"),
        ("ij->...i", "'...' is in the result, but not in an operand"),
        ("ij,jk", "has 2 terms for 1 operand"),
    ],
)
def test_wrong_equations_name_the_letter(equation, message):
    with pytest.raises(GraphkitError, match=re.escape(message)):
        network(equation, [(3, 3)])
