"""Fixtures of the tests of images."""

from __future__ import annotations

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def photos(tmp_path):
    """`photos({"cat": 3, "dog": 2}, size=(8, 6))`: make a folder with 3 and 2 images; return its path."""
    draw = np.random.default_rng(1)

    def make(classes, below="photos", size=(8, 6), suffix="png", mode="RGB"):
        for name, count in classes.items():
            folder = tmp_path / below / name
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                pixels = draw.integers(0, 256, (size[1], size[0], 3), np.uint8)
                Image.fromarray(pixels).convert(mode).save(folder / f"{number}.{suffix}")
        return tmp_path / below

    return make
