"""Class names, vocabulary, preprocessing and column encodings of data, in the metadata of a model."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphkit.data.dataset import Dataset
from graphkit.data.preprocessing.encoding import Encoding
from graphkit.data.preprocessing.image import Preprocess
from graphkit.ir.types import TensorType
from graphkit.model import CLASSES, COLUMNS, PREPROCESSING, VOCABULARY, VOCABULARY_FILE, Model
from graphkit.signatures import typed
from graphkit.transforms.metadata import scores_classes

if TYPE_CHECKING:
    from graphkit.data.preprocessing.vocabulary import Vocabulary


@typed("gk.data.described")
def described(model: Model, data: Dataset) -> Model:
    """Return the model with class names, vocabulary, preprocessing and column encodings of `data` in its metadata.

    The metadata is part of every JSON and ONNX file that is written. Class names are omitted if every output of the
    model has fewer elements along its last axis than there are classes. (One element is enough for two classes.)
    """
    meta = dict(model.meta)
    if data.vocabulary is not None:
        meta[VOCABULARY] = data.vocabulary.to_json()
    if data.preprocess is not None:
        meta[PREPROCESSING] = data.preprocess.to_json()
    if data.encoding is not None:
        meta[COLUMNS] = data.encoding.to_json()
    if data.classes is not None and _gives(model, len(data.classes)):
        meta[CLASSES] = json.dumps(data.classes, ensure_ascii=False)
    return model if meta == model.meta else Model.from_graph(model.graph, model.params.entries(), meta=meta)


def preprocessing_of(meta: Mapping[str, str]) -> Preprocess | None:
    """Return the preprocessing of images from the metadata of a model; None if there is none.

    Raises InvalidModel if the metadata is damaged.
    """
    return Preprocess.from_json(meta[PREPROCESSING]) if PREPROCESSING in meta else None


def encoding_of(meta: Mapping[str, str]) -> Encoding | None:
    """Return the encoding of table columns from the metadata of a model; None if there is none.

    Raises InputError if the metadata is damaged.
    """
    return Encoding.from_json(meta[COLUMNS]) if COLUMNS in meta else None


def vocabulary_of(meta: Mapping[str, str]) -> Vocabulary | None:
    """Return the vocabulary, or the tokenizer, from the metadata of a model; None if there is none.

    Raises InputError if the metadata is damaged, MissingDependency without the package `tokenizers`.
    """
    if VOCABULARY not in meta:
        return None
    return _vocabulary(meta[VOCABULARY], meta.get(VOCABULARY_FILE, "the model's metadata"))


@functools.lru_cache(maxsize=4)  # reading a large tokenizer takes longer than a step of the model
def _vocabulary(text: str, source: str) -> Vocabulary:
    from graphkit.data.preprocessing.tokenizer import vocabulary_from_json

    return vocabulary_from_json(text, source)


def options_of_model(model: Model, spec: str, *, is_new: bool = False) -> dict[str, Any]:
    """Return options for reading the data `spec` that a model determines: vocabulary, preprocessing or image size.

    is_new: see `options_for` of feeding.py.
    """
    from graphkit.data.images.feeding import options_for
    from graphkit.data.sources import takes

    if takes(spec, "vocabulary") and (vocabulary := vocabulary_of(model.meta)) is not None:
        return {"vocabulary": vocabulary}
    if not takes(spec, "preprocess"):
        return {}
    known = preprocessing_of(model.meta)
    return options_for(model.input_types, is_new=is_new) if known is None else {"preprocess": known}


def _gives(model: Model, count: int) -> bool:
    """Whether an output can distinguish `count` classes, as far as shapes are known."""
    shaped = [kind for kind in model.output_types.values() if isinstance(kind, TensorType) and kind.shape]
    return not shaped or any(scores_classes(kind, count) for kind in shaped)
