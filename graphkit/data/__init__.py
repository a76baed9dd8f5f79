"""Data sets: the handwritten digits that come with the package, files from disk, reproducible batches."""

from __future__ import annotations

from graphkit.data.batches import Batch, Batches
from graphkit.data.dataset import Dataset, Splits
from graphkit.data.sources import load, names, read

__all__ = ["Batch", "Batches", "Dataset", "Splits", "load", "names", "read"]
