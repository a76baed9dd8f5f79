"""Labelled texts as inputs of a classifier, which its vocabulary or tokenizer encodes batch by batch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.data.dataset import Dataset
from graphkit.data.description import encoding_of
from graphkit.data.preprocessing.vocabulary import Vocabulary
from graphkit.data.text.rows import SUFFIXES, read_columns, target_column, targets_of, text_column
from graphkit.data.text.sentences import read_sentences
from graphkit.errors import InputError, UsageError, did_you_mean
from graphkit.inference.texts import MASKS, Encoder, encoder_for
from graphkit.model import VOCABULARY, Model
from graphkit.text import listed

_SENTENCES = "sentences:"
# The names of the columns, and the tokenizer.
_OPTIONS = ("text", "target", "vocabulary")


class LabelledTexts(Dataset):
    """Texts with labels. A batch is as long as its longest text needs.

    Args:
        texts: The texts.
        targets: One label per text.
        encoder: How texts become inputs.
        classes: Names of the classes, if targets are their numbers.
        name: Name of the data in error messages.
    """

    def __init__(
        self, texts: Sequence[str], targets: np.ndarray, encoder: Encoder, *, classes: Sequence[str] | None, name: str
    ):
        # The array contains numbers of texts, so that parts of the data share the texts.
        super().__init__(np.arange(len(texts)), targets, ["text"], classes=classes, name=name)
        self._texts, self.encoder = texts, encoder

    def take(self, index: Any) -> tuple[Any, Any]:
        numbers, targets = super().take(index)
        return self.encoder.inputs([self._texts[number] for number in numbers.tolist()]), targets

    def subset(self, index: Any, name: str | None = None) -> Dataset:
        part = copy.copy(self)
        part.arrays = {"text": self.arrays["text"][index]}
        part.targets, part.name = self.targets[index], name or self.name
        return part


def is_labelled_texts(model: Model, spec: str, options: dict[str, Any]) -> bool:
    """Return whether a data set of texts must be read by `read_texts`, because the data sets of training do not fit.

    Args:
        model: The model.
        spec: The data set.
        options: Options of the data, with the vocabulary if one is given.
    """
    if spec.startswith(_SENTENCES):
        return bool(MASKS.intersection(model.input_types))
    suffix = Path(spec).suffix.lower()
    if suffix == ".jsonl":
        return True
    has_tokens = "vocabulary" in options or (VOCABULARY in model.meta and encoding_of(model.meta) is None)
    return suffix in SUFFIXES and has_tokens


def read_texts(
    model: Model, spec: str, *, vocabulary: Vocabulary | None = None, text: str | None = None,
    target: str | None = None, **options: Any,
) -> LabelledTexts:  # fmt: skip
    """Read labelled texts for a model.

    Args:
        model: The model.
        spec: A .csv, .tsv, .jsonl or .parquet file, or sentences:FOLDER.
        vocabulary: How texts become numbers of tokens, instead of the vocabulary in the model's metadata.
        text: The column of the texts. Default: text, texts, sentence, review or content, else the only other column.
        target: The column of the labels. Default: y, target, targets, label, labels or class, else the last column.
        options: None: those of other data sets are an error.

    Raises:
        UsageError: There is no such option.
        InputError: The file cannot be read, or the model does not take text.
    """
    if options:
        name = next(iter(options))
        raise UsageError(f"{spec}: there is no option {name!r}{did_you_mean(name, _OPTIONS)}")
    if spec.startswith(_SENTENCES):
        path = Path(spec.removeprefix(_SENTENCES))
        texts, targets, classes = read_sentences(path)
        return LabelledTexts(texts, targets, encoder_for(path, model, vocabulary), classes=classes, name=str(path))
    path = Path(spec)
    columns = read_columns(path)
    if target is not None and target not in columns:
        raise InputError(f"{path}: there is no column {target!r}{did_you_mean(target, columns)}")
    label = target or target_column(columns) or [*columns][-1]
    if text == label or len(columns) < 2:
        raise InputError(
            f"{path}: labelled texts need a column of texts and one of labels; the columns are "
            f"{listed(list(columns), len(columns), 8)}"
        )
    texts = text_column(path, columns, text, besides=(label,))
    found, names = targets_of(path, label, columns[label])
    return LabelledTexts(texts, found, encoder_for(path, model, vocabulary), classes=names, name=spec)
