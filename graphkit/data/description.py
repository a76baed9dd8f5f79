"""What a model's numbers mean, from the data it is trained on: the names of classes, the vocabulary of a text."""

from __future__ import annotations

import json

from graphkit.data.dataset import Dataset
from graphkit.ir.types import TensorType
from graphkit.model import CLASSES, VOCABULARY, Model


def described(model: Model, data: Dataset) -> Model:
    """The model with the class names and the vocabulary of `data` in its metadata, where there are any.

    Names in the metadata go into every file that is written of the model, JSON and ONNX. Those of a data set with more
    classes than a model of one output gives are left out.
    """
    meta = dict(model.meta)
    if data.vocabulary is not None:
        meta[VOCABULARY] = data.vocabulary.to_json()
    if data.classes is not None and _gives(model, len(data.classes)):
        meta[CLASSES] = json.dumps(data.classes, ensure_ascii=False)
    return model if meta == model.meta else Model.from_graph(model.graph, model.params.entries(), meta=meta)


def _gives(model: Model, count: int) -> bool:
    """Whether an output tells so many classes apart: by one number for each, or by one for two."""
    sizes = [kind.shape[-1] for kind in model.output_types.values() if isinstance(kind, TensorType) and kind.shape]
    return not sizes or any(not isinstance(s, int) or s >= count or (s == 1 and count == 2) for s in sizes)
