"""Recipes of kernels in hostile files: a kernel that can be made stays inside of its operands."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from combinations import in_one_item
from test_saved_operators import GRADIENTS

from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.recipes import recorded_recipes
from graphkit.executor.run.saved_encoding import number, optional, raw, sequence, text


def window(*axes):
    return native.Window(*map(list, zip(*axes, strict=True)))


def pool(kernel, *, strides=1):
    every = len(kernel)
    return native.PoolWindow(kernel, [strides] * every, [1] * every, [0] * every, [0] * every)


# Kernels that cannot be made, because sizes of operands or of working memory would overflow, or because the kernel
# would read another number of bytes than the operand has.
REFUSED = {
    "negative size": (lambda: native.GroupNormGrad([2, -4, 3], 2, "float32", 1e-5), "negative size"),
    "too many elements": (lambda: native.BatchNormGrad([1 << 40, 1 << 20], "float32", "float32", 1e-5), "too large"),
    "empty, with large sizes": (lambda: native.MaxPoolGrad([0, 1, 1 << 62, 8], [0, 1, 2, 2]), "too large"),
    "many units": (lambda: native.RecurrentGrad("LSTM", 1, 1, 1 << 62), "too large"),
    "window of 2^64 elements": (
        lambda: native.DepthwiseBackwardData([1, 0, 8, 8, 8], [1, 0, 8, 8, 8], pool([1 << 30, 1 << 30, 16])),
        "too large",
    ),
    "windows far apart": (
        lambda: native.ConvolutionBackwardWeights(
            [1, 1, 1], [1, 1, 2], [1, 1, 1], native.Window([1 << 62], [1], [1 << 61], [1 << 61])
        ),
        "2.31 positions",
    ),
    "long axis": (lambda: native.AveragePoolGrad([1, 1, 1 << 33], [1, 1, 4], pool([1])), "2.31 positions"),
    "one byte": (
        lambda: native.ConvolutionBackwardWeights([1, 1, 4], [1, 1, 4], [1, 1, 1], window((1, 1, 0, 0)), dtype="int8"),
        "gradients of convolutions of int8",
    ),
}


@in_one_item()
@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_overflow_are_refused(name):
    make, message = REFUSED[name]
    with pytest.raises(native.Error, match=message):
        make()


def test_number_of_threads_is_limited():
    with recorded_recipes():
        recipe = native.GroupNormGrad([2, 4, 3], 2, "float32", 1e-5, 6).recipe
    assert native.make_kernel(recipe).threads == 6
    for threads in (0, -1, 1025, (1 << 31) - 1):
        with pytest.raises(native.Error, match="the number of threads is out of range"):
            native.make_kernel(recipe.replace(number(6), number(threads)))


def test_shapes_of_factories_are_checked():
    with recorded_recipes():
        factory = native.PointwiseFactory("Neg", ["float32"], [], [("neg", [0], "")], [(1, "float32")], "", 1).recipe
    recipe = text("from factory") + raw(factory) + sequence([optional(sequence([number(-1)]))]) + sequence([])
    with pytest.raises(native.Error, match="negative size"):
        native.make_kernel(recipe)


def table_update(rows, rest, indices=3):
    """An update of a table of 5 rows with 2 columns: table - gradient."""

    def tile(size):
        shape = [size, 2]
        return native.Pointwise(
            "TableUpdate", shape, inputs=[(shape, "float32")] * 2, constants=[],
            instructions=[("sub", [1, 0], "")], outputs=[(2, "float32")], threads=1,
        )  # fmt: skip

    return native.TableUpdate(
        tile(rows), rest and tile(rest), size=5, indices=[indices], index_dtype="int64", threads=1
    )


def test_tiles_of_a_table_belong_together():
    with pytest.raises(native.Error, match="is not the rest of"):
        table_update(3, 1)
    with recorded_recipes():
        kernel = table_update(3, 2)
    again, results = native.make_kernel(kernel.recipe), []
    operands = [np.ones((3, 2), np.float32), np.array([4, 0, 4]), np.arange(10, dtype=np.float32).reshape(5, 2)]
    for each in (kernel, again):
        results.append(np.empty((5, 2), np.float32))
        each(operands, [results[-1]])
    np.testing.assert_array_equal(results[0], operands[2] - np.array([[1], [0], [0], [0], [2]]))
    np.testing.assert_array_equal(results[1], results[0])
    nested = [text("TableUpdate"), raw(kernel.recipe), number(0), number(5), sequence([number(3)]), text("int64")]
    with pytest.raises(native.Error, match="not updated by a pointwise kernel"):
        native.make_kernel(b"".join(nested) + number(1))


def fuzz(samples, count, seed, names):
    program = Path(__file__).with_name("damaged_recipes.py")
    command = [sys.executable, program, *map(str, (samples, count, seed)), *sorted(names)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert "survived" in done.stdout, (done.returncode, done.stderr[-2000:])
    ran, refused = map(int, done.stdout.split()[1:])
    assert ran > len(names)  # the recipe without damage, and others
    assert refused > ran


def test_kernels_of_damaged_recipes_stay_in_their_memory():
    fuzz(1, 12, 1, GRADIENTS)


@pytest.mark.full
def test_kernels_of_many_damaged_recipes_stay_in_their_memory():
    fuzz(4, 60, 2, GRADIENTS)
