"""Data sets: digits of the package, arrays, tables, images and text from files, and reproducible batches.

Names are imported when they are first used, so worker processes import only what their data set needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphkit.data.batches import Batch, Batches
    from graphkit.data.dataset import Dataset, Splits
    from graphkit.data.description import described
    from graphkit.data.foreign import IterableDataset, MapDataset, as_dataset
    from graphkit.data.images.augment import Augment
    from graphkit.data.images.dataset import ImageDataset
    from graphkit.data.lazy import LazyDataset
    from graphkit.data.prefetching import prefetch
    from graphkit.data.preprocessing.families import with_preprocessing
    from graphkit.data.preprocessing.image import Preprocess
    from graphkit.data.preprocessing.tokenizer import Tokenizer
    from graphkit.data.preprocessing.vocabulary import Vocabulary
    from graphkit.data.sources import TEXT_SOURCES, load, names, read
    from graphkit.data.tables.dataset import TableData
    from graphkit.data.tables.ratings import Ratings
    from graphkit.data.text.sentences import Sentences
    from graphkit.data.text.stream import TokenStream
    from graphkit.data.workers.pool import Workers

    Iterated, Pictures = IterableDataset, ImageDataset

__all__ = [
    "TEXT_SOURCES", "Augment", "Batch", "Batches", "Dataset", "ImageDataset", "IterableDataset", "LazyDataset",
    "MapDataset", "Preprocess", "Ratings", "Sentences", "Splits", "TableData", "TokenStream", "Tokenizer", "Vocabulary",
    "Workers", "as_dataset", "described", "load", "names", "prefetch", "read", "with_preprocessing",
]  # fmt: skip

# Public names -> the modules that define them. A module must not have the name of a public object.
_HOMES = {
    "batches": ("Batch", "Batches"),
    "dataset": ("Dataset", "Splits"),
    "description": ("described",),
    "preprocessing.families": ("with_preprocessing",),
    "foreign": ("IterableDataset", "MapDataset", "as_dataset"),
    "images.augment": ("Augment",),
    "images.dataset": ("ImageDataset",),
    "lazy": ("LazyDataset",),
    "prefetching": ("prefetch",),
    "preprocessing.image": ("Preprocess",),
    "preprocessing.tokenizer": ("Tokenizer",),
    "preprocessing.vocabulary": ("Vocabulary",),
    "sources": ("TEXT_SOURCES", "load", "names", "read"),
    "tables.dataset": ("TableData",),
    "tables.ratings": ("Ratings",),
    "text.sentences": ("Sentences",),
    "text.stream": ("TokenStream",),
    "workers.pool": ("Workers",),
}
_HOME = {name: module for module, defined in _HOMES.items() for name in defined}
# Former names that still work -> present names.
_RENAMED = {"Iterated": "IterableDataset", "Pictures": "ImageDataset"}


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        return __getattr__(_RENAMED[name])
    if name not in _HOME:
        raise AttributeError(f"module 'graphkit.data' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"graphkit.data.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
