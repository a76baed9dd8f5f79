"""Data sets: the handwritten digits that come with the package, files from disk, text, reproducible batches."""

from __future__ import annotations

from graphkit.data.batches import Batch, Batches
from graphkit.data.dataset import Dataset, Splits
from graphkit.data.described import described
from graphkit.data.foreign import Iterated, MapDataset, as_dataset
from graphkit.data.lazy import LazyDataset
from graphkit.data.prefetching import prefetch
from graphkit.data.sources import TEXT_SOURCES, load, names, read
from graphkit.data.text.sentences import Sentences
from graphkit.data.text.stream import TokenStream
from graphkit.data.text.vocabulary import Vocabulary

__all__ = [
    "TEXT_SOURCES", "Batch", "Batches", "Dataset", "Iterated", "LazyDataset", "MapDataset", "Sentences", "Splits",
    "TokenStream", "Vocabulary", "as_dataset", "described", "load", "names", "prefetch", "read",
]  # fmt: skip
