"""Grids of images without elements."""

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate


@in_one_item()
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("size", [(2, 3, 0, 2), (2, 3, 2, 0), (2, 3, 0, 0)])
def test_a_size_of_zero_stays_zero(size, align_corners):
    theta, wanted = gk.input("theta", [2, 2, 3]), gk.input("size", [4], dtype="int64")
    model = gk.Model({"grid": F.affine_grid(theta, wanted, align_corners=align_corners)})
    feeds = {"theta": np.ones((2, 2, 3), np.float32), "size": np.array(size)}
    shape = (size[0], *size[2:], 2)
    assert evaluate(model.graph, list(feeds.values()))[0].shape == shape
    assert model.compile().run(feeds)["grid"].shape == shape
