"""What a model's numbers mean, from the data it is trained on: names of classes, vocabulary, preprocessing."""

from __future__ import annotations

import json
from collections.abc import Mapping

from graphkit.data.dataset import Dataset
from graphkit.data.images.preprocess import Preprocess
from graphkit.data.tables.encoding import Encoding
from graphkit.ir.types import TensorType
from graphkit.model import CLASSES, COLUMNS, PREPROCESSING, VOCABULARY, Model
from graphkit.signatures import typed


@typed("gk.data.described")
def described(model: Model, data: Dataset) -> Model:
    """The model with class names, vocabulary, preprocessing, columns of `data` in its metadata, where there are any.

    Names in the metadata go into every file that is written of the model, JSON and ONNX. Those of a data set with more
    classes than a model of one output gives are left out.
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
    """What pictures go through, by the metadata of a model; None where they do not say it.

    Raises InvalidModel for metadata that are damaged.
    """
    return Preprocess.from_json(meta[PREPROCESSING]) if PREPROCESSING in meta else None


def encoding_of(meta: Mapping[str, str]) -> Encoding | None:
    """What the columns of a table become, by the metadata of a model; None where they do not say it.

    Raises InputError for metadata that are damaged.
    """
    return Encoding.from_json(meta[COLUMNS]) if COLUMNS in meta else None


def _gives(model: Model, count: int) -> bool:
    """Whether an output tells so many classes apart: by one number for each, or by one for two."""
    sizes = [kind.shape[-1] for kind in model.output_types.values() if isinstance(kind, TensorType) and kind.shape]
    return not sizes or any(not isinstance(s, int) or s >= count or (s == 1 and count == 2) for s in sizes)
