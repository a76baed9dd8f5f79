"""Which metadata of a model still hold for a part of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from graphkit.ir.graph import Value
from graphkit.ir.types import DType, TensorType, Type
from graphkit.model import CLASSES, COLUMNS, PREPROCESSING, VOCABULARY, Model


def scores_classes(kind: Type, count: int) -> bool:
    """Whether a tensor can hold scores of `count` classes: its last axis has `count` elements, or one for two classes.

    An unknown size counts as large enough.
    """
    if not isinstance(kind, TensorType) or not kind.shape:
        return False
    size = kind.shape[-1]
    return not isinstance(size, int) or size >= count or (size == 1 and count == 2)


def kept_metadata(model: Model, inputs: Collection[Value], outputs: Collection[Value]) -> dict[str, str]:
    """Return the metadata of `model` that hold for a part of it with these inputs and outputs, values of its graph.

    - The class names stay if an output of the model that can score them is still an output.
    - The preprocessing of images stays if the inputs of the model of rank 3 or 4 are still inputs.
    - The vocabulary stays if the inputs of the model of integers or strings are still inputs.
    - The encoding of table columns stays if all inputs of the model are still inputs.
    - All other metadata stay.
    """
    before = model.data_inputs
    tensors = [(v, v.type) for v in before if isinstance(v.type, TensorType)]
    pictures = [v for v, kind in tensors if kind.rank in (3, 4, None)]
    texts = [v for v, kind in tensors if kind.dtype.is_integer or kind.dtype is DType.STRING]
    count = len(model.classes or ())
    holds: Mapping[str, bool] = {
        CLASSES: any(v in outputs and scores_classes(v.type, count) for v in model.graph.outputs),
        PREPROCESSING: bool(pictures) and all(v in inputs for v in pictures),
        VOCABULARY: bool(texts) and all(v in inputs for v in texts),
        COLUMNS: all(v in inputs for v in before),
    }
    return {key: text for key, text in model.meta.items() if holds.get(key, True)}
