"""Bad feeds, each with the message that helps."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from combinations import in_one_item

from graphkit.errors import InputError
from graphkit.executor.run.feeds import convert
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F


def executor(**options: Any) -> Executor:
    image = Value(TensorType("float32", ("N", 2)), "image")
    mask = Value(TensorType("float32", ("N", 1)), "mask")
    return Executor(Graph([image, mask], [F.mul(image, mask)]), ParamStore({}), **options)


IMAGE, MASK = np.ones((3, 2), np.float32), np.ones((3, 1), np.float32)


@in_one_item()
@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"imag": IMAGE, "mask": MASK}, r"no input 'imag'; did you mean 'image'\?"),
        ({"image": IMAGE, "mask": MASK, "other": MASK}, "no input 'other'"),
        ({"image": IMAGE}, r"input not given: 'mask' \(float32\[N, 1\]\)"),
        ({}, "inputs not given: 'image' .*'mask'"),
        ({"image": IMAGE[0], "mask": MASK}, r"'image' is float32\[N, 2\], of rank 2; the array given has shape \[2\]"),
        ({"image": IMAGE.astype(np.float64), "mask": MASK}, r"float64; convert it with .astype\('float32'\)"),
        ({"image": np.ones((3, 5), np.float32), "mask": MASK}, "axis 1 is 5, not 2"),
        ({"image": IMAGE, "mask": MASK[:2]}, "dimension N is 3 in input 'image' and 2 in input 'mask'"),
        ({"image": "text", "mask": MASK}, "a str given"),
        (
            {"image": IMAGE.astype(str), "mask": MASK},
            r"the array given is string; convert it with .astype\('float32'\)",
        ),
        ({"image": [[1, 2], [3]], "mask": MASK}, "different lengths"),
        ({"image": [[1, 2 + 1j]], "mask": [[1]]}, "a list given"),
    ],
)
def test_misfits(feeds: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        executor().run(feeds)


def test_strings_are_numbered_first() -> None:
    with pytest.raises(InputError, match=r"'y' is int64\[N\], but .* contains strings: number them first, .*np.unique"):
        convert("y", TensorType("int64", ("N",)), np.array(["cat", "dog"]))


def test_lists_and_numbers() -> None:
    (found,) = executor()([[1, 2]], [[0.1]])
    np.testing.assert_array_equal(found, np.array([[1, 2]], np.float32) * np.float32(0.1))


@in_one_item()
@pytest.mark.parametrize(
    ("dtype", "given", "fits"),
    [
        ("uint8", 255, True),
        ("uint8", 256, False),
        ("uint8", -1, False),
        ("int32", 2.0, True),
        ("int32", 2.5, False),
        ("float32", 1 << 24, True),
        ("float32", (1 << 24) + 1, False),
        ("float32", 1e300, False),
        ("float32", float("inf"), True),
        ("float32", float("nan"), True),
        ("float16", 1e5, False),
        ("bfloat16", 3, True),
        ("bfloat16", 0.1, True),
        ("bfloat16", 257, False),
        ("bool", True, True),
        ("bool", 1, False),
        ("float64", True, True),
        ("string", "text", True),
        ("string", 1, False),
        ("int64", [], True),
    ],
)
def test_python_values_convert_without_loss(dtype: str, given: Any, fits: bool) -> None:
    kind = TensorType(dtype)
    if fits:
        assert convert("x", kind, given).dtype == kind.dtype.numpy
    else:
        with pytest.raises(InputError, match=r"^input 'x' is .*(given without loss|must contain only strings)$"):
            convert("x", kind, given)


def test_layouts_of_arrays() -> None:
    kind = TensorType("float32", ("N", 3))
    fortran = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    swapped = fortran.astype(">f4")
    for array in (fortran, swapped, fortran[::-1]):
        found = convert("x", kind, array)
        assert found.flags.c_contiguous
        assert found.dtype == np.float32
        assert found.dtype.isnative
        np.testing.assert_array_equal(found, array.astype(np.float32))
    plain = np.ones((2, 3), np.float32)
    assert convert("x", kind, plain) is plain
    half = np.ones((1, 3), ml_dtypes.bfloat16)
    with pytest.raises(InputError, match="bfloat16"):
        convert("x", kind, half)
    with pytest.raises(InputError, match="datetime64"):
        convert("x", kind, np.zeros((1, 3), "datetime64[s]"))


def test_finite_check_is_opt_in() -> None:
    bad = IMAGE.copy()
    bad[1, 0] = np.nan
    assert np.isnan(executor()(bad, MASK)[0][1, 0])
    with pytest.raises(InputError, match=r"'image' contains nan at \[1, 0\] \(not finite: 1 value\)"):
        executor(check_finite=True)(bad, MASK)


def test_static_input_of_another_size() -> None:
    x = Value(TensorType("float32", (2, 3)), "x")
    exe = Executor(Graph([x], [F.exp(x)]), ParamStore({}))
    exe(np.ones((2, 3), np.float32))
    with pytest.raises(InputError, match=r"float32\[2, 3\].*\[3, 2\]"):
        exe(np.ones((3, 2), np.float32))


def test_wrong_number_of_arrays() -> None:
    with pytest.raises(InputError, match=r"expected 2 inputs \(image, mask\), got 1"):
        executor()(IMAGE)


def misaligned(array: np.ndarray) -> np.ndarray:
    made = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    made[...] = array
    assert not made.flags.aligned
    return made


class OnlyDlpack:
    """An array of another library."""

    def __init__(self, array: np.ndarray):
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_misaligned_arrays_are_copied() -> None:
    exe = executor()
    expected = exe(IMAGE, MASK)[0]
    for _ in range(2):
        np.testing.assert_array_equal(exe(misaligned(IMAGE), MASK)[0], expected)
    target = misaligned(np.zeros_like(IMAGE))
    (name,) = exe.outputs
    assert exe.run({"image": IMAGE, "mask": MASK}, out={name: target})[name] is target
    np.testing.assert_array_equal(target, expected)


@in_one_item()
@pytest.mark.parametrize(
    "made", [misaligned, lambda a: a.astype(">f4"), np.asfortranarray], ids=["aligned", "bytes", "order"]
)
def test_layouts_of_parameters(made: Any) -> None:
    kind = TensorType("float32", (2, 3))
    x, w = Value(kind, "x"), Value(kind, "w", role="parameter")
    array = made(np.arange(6, dtype=np.float32).reshape(2, 3))
    array.flags.writeable = False
    exe = Executor(Graph([x, w], [F.add(x, w)]), ParamStore({"w": kind}, {"w": array}))
    np.testing.assert_array_equal(exe(np.ones((2, 3), np.float32))[0], array + 1)


def test_arrays_of_other_libraries() -> None:
    np.testing.assert_array_equal(executor()(OnlyDlpack(IMAGE), MASK)[0], executor()(IMAGE, MASK)[0])
    with pytest.raises(InputError, match=r"'image' is float32.*OnlyDlpack given"):
        executor()(OnlyDlpack(np.zeros((3, 2), object)), MASK)


def test_out_arrays_must_not_overlap() -> None:
    x = Value(TensorType("float32", ("N",)), "x")
    exe = Executor(Graph([x], [F.exp(x), F.neg(x)], output_names=["a", "b"]), ParamStore({}))
    memory = np.zeros(7, np.float32)
    with pytest.raises(InputError, match=r"out\['a'\] and out\['b'\] share memory"):
        exe.run({"x": np.ones(4, np.float32)}, out={"a": memory[:4], "b": memory[3:]})
    interleaved = np.zeros(8, np.float32)
    exe.run({"x": np.ones(4, np.float32)}, out={"a": interleaved[::2], "b": interleaved[1::2]})
    np.testing.assert_allclose(interleaved, np.tile(np.array([np.e, -1], np.float32), 4), rtol=1e-6)


def test_a_negative_size_cannot_be_planned() -> None:
    with pytest.raises(InputError, match=r"'image' is float32\[N, 2\]; the shape \[-1, 2\] has a negative size"):
        executor().specialise({"image": (-1, 2), "mask": (1, 1)})


def test_parameters_of_open_shapes_may_be_fed_in_turns() -> None:
    """The set of fed parameters is part of the key of a program, even if only the array determines the size."""
    a, b = (Value(TensorType("float32", (size,)), name, role="parameter") for name, size in (("a", "N"), ("b", "M")))
    stored = {"a": np.ones(3, np.float32), "b": np.ones(4, np.float32)}
    params = ParamStore({v.name: v.tensor for v in (a, b)}, stored)
    executor = Executor(Graph([a, b], [F.reduce_sum(a), F.reduce_sum(b)], output_names=["a sum", "b sum"]), params)
    other = {"a": np.full(3, 2, np.float32), "b": np.full(4, 10, np.float32)}
    for fed in ((), ("a",), ("a", "b"), ("b",), ()):
        got = executor.run({name: other[name] for name in fed})
        wanted = {f"{name} sum": (other if name in fed else stored)[name].sum() for name in stored}
        assert {name: float(total.item()) for name, total in got.items()} == wanted


def test_data_is_fed_although_the_store_has_its_name() -> None:
    x, w = Value(TensorType("float32", (3,)), "x"), Value(TensorType("float32", (3,)), "w", role="parameter")
    ones = np.ones(3, np.float32)
    params = ParamStore({"x": x.tensor, "w": w.tensor}, {"x": ones, "w": ones})
    executor = Executor(Graph([x, w], [F.mat_mul(x, w), F.neg(w)], output_names=["y", "z"]), params)
    with pytest.raises(InputError, match="input not given: 'x'"):
        executor.run({}, outputs=["y"])
    assert executor.run({"x": 2 * ones}, outputs=["y"])["y"] == 6
