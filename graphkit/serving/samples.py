"""Images and texts of requests as inputs of a model, by the preprocessing in its metadata; the answers as classes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.data.description import preprocessing_of, vocabulary_of
from graphkit.data.images.feeding import Conversion, conversion, picture_input
from graphkit.data.preprocessing.decode import opened
from graphkit.errors import GraphkitError, InputError
from graphkit.inference.class_ranking import ClassRanking
from graphkit.inference.texts import Encoder, encoder_for
from graphkit.ir.types import DType, TensorType
from graphkit.model import Model

# Outputs with more elements are described in answers, but their values are left out.
_MOST_VALUES = 1000
# Classes of an answer, if the request does not say how many.
_CLASSES = 5


class SampleInputs:
    """Converts samples to the inputs of a model, one request per sample. model: The model."""

    def __init__(self, model: Model):
        self._model = model
        self._lock = threading.Lock()

    @cached_property
    def takes(self) -> list[str]:
        """The kinds of samples that the model takes: "image", "text", both or neither."""
        found: list[str] = []
        for kind, ask in (("image", lambda: self._conversion), ("text", lambda: self._encoder)):
            try:
                ask()
                found.append(kind)
            except GraphkitError:
                continue
        return found

    def of_image(self, data: bytes, name: str) -> dict[str, np.ndarray]:
        """Return the inputs for an image. name: of the image, for errors.

        Raises InputError if it cannot be decoded, or the model takes no images.
        """
        converted = self._conversion
        with opened(data, name) as picture:
            array = converted.array(picture)
        return {converted.name: array if converted.kind.rank == 3 else _batch(array, converted.kind)}

    def of_text(self, text: str) -> dict[str, np.ndarray]:
        """Return the inputs for a text. Raises InputError if the model takes no texts."""
        with self._lock:
            return self._encoder.inputs([text])

    def answer(self, outputs: Mapping[str, Any], top: int | None) -> dict[str, Any]:
        """Return the classes of a sample, and its other outputs, as JSON. outputs: of one request.

        top: Number of classes. Default: 5 if the model has class names, else none.

        Raises UsageError if `top` is given, and no output scores classes.
        """
        rows = {name: array[:1] for name, array in outputs.items() if array.ndim}
        ranking = ClassRanking(self._model, top)
        ranking.decide(rows, {})
        ranking.count = top or _CLASSES
        classes = ranking.of(rows) or [()]
        return {
            "classes": [
                {"class": found.number, "name": found.name, "probability": _finite(found.probability)}
                for found in classes[0]
            ],
            "outputs": {n: _described(array) for n, array in outputs.items() if n != ranking.output},
        }

    @cached_property
    def _conversion(self) -> Conversion:
        types = self._model.input_types
        name = picture_input(types)
        if others := [other for other in types if other != name]:
            raise InputError(f"images are for input {name!r}, but the model also needs {', '.join(others)}")
        return conversion(Path("image"), name, types[name], preprocessing_of(self._model.meta))

    @cached_property
    def _encoder(self) -> Encoder:
        types = self._model.input_types
        strings = all(isinstance(kind, TensorType) and kind.dtype is DType.STRING for kind in types.values())
        if vocabulary_of(self._model.meta) is None and not strings:
            raise InputError(
                "the model takes no texts: its metadata contain no vocabulary, and its input is not a string"
            )
        return encoder_for(Path("text"), self._model)


def _batch(array: np.ndarray, kind: TensorType) -> np.ndarray:
    """Return a batch of one image; copies of it if the batch size is fixed."""
    size = kind.known_shape[0]
    return np.repeat(array[None], size if isinstance(size, int) else 1, axis=0)


def _described(array: np.ndarray) -> dict[str, Any]:
    found: dict[str, Any] = {"shape": list(array.shape)}
    if array.size > _MOST_VALUES:
        return found
    values = array.astype(np.float32) if array.dtype.kind == "V" else array
    return {**found, "data": [_finite(value) for value in values.reshape(-1).tolist()]}


def _finite(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if not isinstance(value, float) or np.isfinite(value) else str(value)
