"""Programs and expressions that users of numpy, MXNet or PyTorch write first."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import GraphkitError, InputError, TypeMismatch, UnsupportedError, UsageError
from graphkit.mxnet_io.arrays import read_arrays

nd = gk.nd


def test_linear_regression() -> None:
    nd.random.seed(0)
    x = nd.random.normal(shape=(100, 2))
    y = x.dot(nd.array([2.0, -3.4])) + 4.2
    w, b = nd.zeros(2), nd.zeros(())
    for v in (w, b):
        v.attach_grad()
    for _ in range(60):
        with nd.record():
            loss = ((x.dot(w) + b - y) ** 2).mean()
        loss.backward()
        for v in (w, b):
            v -= 0.2 * v.grad
    np.testing.assert_allclose(w, [2, -3.4], atol=1e-3)
    assert round(b, 2) == 4.2
    assert f"{loss.sum():.3f}" == "0.000"


def test_k_means() -> None:
    nd.random.seed(1)
    centres = nd.array([[0.0, 0], [5, 5], [0, 5]])
    points = np.concatenate([nd.random.normal(0, 0.1, (20, 2)) + c for c in centres])
    guess = points[[0, 20, 40]].copy()
    for _ in range(3):
        nearest = ((points[:, None] - guess) ** 2).sum(axis=2).argmin(axis=1)
        for k in range(len(guess)):
            guess[k] = points[nearest == k].mean(axis=0)
    assert np.allclose(guess, centres, atol=0.1)
    assert np.bincount(nearest).tolist() == [20, 20, 20]


def test_a_convolution_by_hand() -> None:
    x, w = nd.arange(36).reshape(1, 1, 6, 6), nd.arange(9).reshape(1, 1, 3, 3)
    w.attach_grad()
    with nd.record():
        rows = [
            np.stack([(x[:, 0, i : i + 3, j : j + 3] * w[0]).sum((1, 2)) for j in range(4)], axis=-1) for i in range(4)
        ]
        y = np.stack(rows, axis=1)[:, None]
    y.backward()
    v = nd.array(w)
    v.attach_grad()
    with nd.record():
        expected = gk.conv(x, v)
    expected.backward()
    np.testing.assert_allclose(y, expected)
    np.testing.assert_allclose(w.grad, v.grad)


@pytest.mark.parametrize("names", [True, False])
def test_a_saved_file_is_loaded(tmp_path: Path, names: bool) -> None:
    arrays = [nd.arange(6).reshape(2, 3).T, nd.array([1, 2]), nd.array([True]), nd.array([0.5], "bfloat16")]
    given: Any = {str(i): x for i, x in enumerate(arrays)} if names else arrays
    nd.save(tmp_path / "x.params", given)
    found = nd.load(tmp_path / "x.params")
    assert type(found) is type(given)
    loaded = list(found.values()) if isinstance(found, dict) else found
    for x, y in zip(arrays, loaded, strict=True):
        assert (y.dtype, y.tolist()) == (x.dtype, x.tolist())
        y[:] = 0  # the memory is the array's own
    assert list(read_arrays(tmp_path / "x.params")) == ["0", "1", "2", "3"]
    nd.save(tmp_path / "x.params", arrays[1])
    assert nd.load(tmp_path / "x.params")[0].tolist() == [1, 2]


def test_conversions() -> None:
    a, s, h = nd.array([[1.0, 2], [3, 4]]), nd.array(2.5), nd.array([1.5, 2], "bfloat16")
    assert (a.item(3), a.item(0, 1), s.item(), h.item(1)) == (4.0, 2.0, 2.5, 2.0)
    assert (round(s), round(s, 1), math.floor(s), complex(s), int(s)) == (2, 2.5, 2, 2.5 + 0j, 2)
    assert (a.itemsize, h.itemsize, a.tobytes(), bytes(a)) == (4, 2, *[a.asnumpy().tobytes()] * 2)
    assert 3.0 in a
    assert 7.0 not in a
    quotient, rest = divmod(a, 2)
    assert (quotient.tolist(), rest.tolist()) == ([[0, 1], [1, 2]], [[1, 0], [1, 0]])
    assert [part.tolist() for part in divmod(7, nd.array([2, 3]))] == [[3, 2], [1, 1]]
    back = nd.from_dlpack(np.asarray(a))
    back[:] = 0
    assert a.sum() == 10
    assert nd.from_dlpack(a).tolist() == a.tolist()
    a.fill(2)
    assert a.tolist() == [[2, 2], [2, 2]]
    assert nd.full_like(a, 7).tolist() == [[7, 7], [7, 7]]
    assert nd.empty_like(a, "int8").dtype == np.int8


HINTS = {
    "numpy": "write x.asnumpy()", "unsqueeze": "write np.expand_dims", "exp": "write gk.exp(x)", "ctx": "host memory",
    "view": "write x.reshape(shape)", "median": "write np.median(x)",
}  # fmt: skip
FUNCTION_HINTS = {
    "dot": "write a @ b", "sum": "write x.sum(...)", "relu": "write gk.relu(...)", "maximum": "write gk.max(a, b)",
    "meshgrid": "write np.meshgrid(...)", "float32": "write np.float32", "pi": "write np.pi",
}  # fmt: skip


def test_an_unknown_name_has_a_hint() -> None:
    for name, hint in HINTS.items():
        with pytest.raises(AttributeError, match="an NDArray has no attribute") as caught:
            getattr(nd.ones(2), name)
        assert hint in str(caught.value)
    for name, hint in FUNCTION_HINTS.items():
        with pytest.raises(AttributeError, match=r"'graphkit\.nd' has no attribute") as caught:
            getattr(nd, name)
        assert str(caught.value).endswith(hint)
    for owner in (nd, nd.ones(2)):
        for unknown in ("nothing_like_this", "_hidden"):
            with pytest.raises(AttributeError, match=f"{unknown}'$"):
                getattr(owner, unknown)


WRONG: list[tuple[Any, type[GraphkitError], str]] = [
    (lambda x: x.sum(2), TypeMismatch, "sum of array: .* axis 2 must name different axes of its 2"),
    (lambda x: x.mean((0, -2)), TypeMismatch, r"axis \(0, -2\) must name different"),
    (lambda x: x.max("a"), TypeMismatch, "axis must be an integer or a tuple, not 'a'"),
    (lambda x: x[:0].min(0), TypeMismatch, "no elements along axis 0"),
    (lambda x: x.argmax(5), TypeMismatch, "axis 5 must name"),
    (lambda x: x.sum(out=x), UsageError, r"sum cannot write to out=: assign its result, as in y\[...\] = x.sum()"),
    (lambda x: x.mean(dtype="int32"), UsageError, "dtype must be a floating-point type, not int32"),
    (lambda x: x.squeeze(0), TypeMismatch, "axis 0 must have size 1"),
    (lambda x: x.reshape(6, order="F"), UsageError, "order must be 'C', not 'F'"),
    (lambda x: x.repeat([1, 2, 3], 0), UsageError, "repeat of array"),
    (lambda x: x.astype("int32").round(-1), UsageError, "decimals of integers must be at least 0, not -1"),
    (lambda x: x.item(9), UsageError, "item of array: float32.*out of bounds"),
    (lambda x: x[0].mT, TypeMismatch, "it has no two axes"),
    (lambda x: x[..., 0, ..., [1]], UsageError, "it can contain ... only once"),
    (lambda x: x[:, [3]], UsageError, "out of range for axis 1, of size 3"),
    (lambda x: nd.linspace("a", 1), UsageError, "linspace: start, stop and num are 'a', 1 and 50"),
    (lambda x: nd.eye(2, 2, "a"), UsageError, "eye: k is 'a'"),
    (lambda x: nd.from_dlpack(3), InputError, "from_dlpack: 3 cannot be read"),
    (lambda x: nd.save("x.params", [3]), UsageError, "save: '0' must be an NDArray, not 3"),
    (lambda x: nd.save("x.params", 3), UsageError, "save takes an NDArray, or a list or dict of them, not 3"),
    (lambda x: nd.save("x.params", {1: x}), UsageError, "the name of an array must be a string, not 1"),
    (lambda x: nd.save("x.params", [nd.array(1j)]), UnsupportedError, "no such element type"),
    (lambda x: nd.load("/nothing/here"), UsageError, "no such file"),
]


def test_wrong_arguments_are_errors_that_name_them() -> None:
    for call, error, message in WRONG:
        with pytest.raises(error, match=message):
            call(nd.ones((2, 3)))
