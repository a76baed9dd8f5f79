"""The handwritten digits that come with the package."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from graphkit.data.dataset import Dataset
from graphkit.data.files.mnist import scaled


def load() -> Dataset:
    """Load the 1,797 images, float32 [N, 1, 8, 8] in [0, 1]; targets int64 [N]."""
    with np.load(Path(__file__).with_name("digits.npz")) as stored:
        images, labels = stored["images"], stored["labels"]
    return Dataset(scaled(images, 16.0), labels.astype(np.int64), classes=[str(d) for d in range(10)], name="digits")
