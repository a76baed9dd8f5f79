"""Texts as inputs of a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from graphkit.data.description import vocabulary_of
from graphkit.data.preprocessing.vocabulary import Vocabulary, read_text
from graphkit.errors import InputError
from graphkit.inference.position_table import position_table
from graphkit.ir.types import DType, TensorType, Type
from graphkit.model import MAX_TOKENS, VOCABULARY_FILE, Model

# Lengths are rounded up to a multiple of this number, as `gk.data.Sentences` does in training by default.
_BUCKET = 8

# Names of inputs with the attention mask (1: a token, 0: padding), and with the segment of each token.
MASKS = frozenset({"attention_mask", "decoder_attention_mask", "mask"})
SEGMENTS = frozenset({"token_type_ids", "segment_ids", "segments"})


class Encoder(Protocol):
    """Converts texts to inputs. Its text says how."""

    def inputs(self, texts: Sequence[str]) -> dict[str, np.ndarray]: ...


@dataclass(frozen=True)
class Strings:
    """The texts themselves are an input of strings, [N] or [N, 1]."""

    name: str
    kind: TensorType

    def inputs(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        array = np.array(texts, object)
        return {self.name: array if self.kind.rank == 1 else array[:, None]}

    def __str__(self) -> str:
        return f"each text is a string of input {self.name!r}"


@dataclass(frozen=True)
class Tokens:
    """Numbers of tokens are an input of integers [N, T] with padding.

    Other inputs of integers may be the lengths [N], the attention mask [N, T] (1 at tokens, 0 at padding) and the
    segments [N, T] (all 0). Texts of more than T or `longest` tokens are cut off, if T is fixed or `longest` is given.
    """

    vocabulary: Vocabulary
    origin: str
    name: str
    kind: TensorType
    lengths: tuple[str, TensorType] | None
    mask: tuple[str, TensorType] | None
    segments: tuple[str, TensorType] | None
    longest: int | None = None

    def inputs(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        fixed, limit = self._size, self._limit
        rows = [self.vocabulary.encode(text, limit) for text in texts]
        size = max(-(-max(map(len, rows)) // _BUCKET), 1) * _BUCKET
        size = fixed if fixed is not None else size if limit is None else min(size, limit)
        lengths = np.array([len(row) for row in rows])
        tokens = np.full((len(rows), size), self.vocabulary.padding, self.kind.dtype.numpy)
        for padded, row in zip(tokens, rows, strict=True):
            padded[: len(row)] = row
        given = {self.name: tokens}
        if self.lengths is not None:
            given[self.lengths[0]] = lengths.astype(self.lengths[1].dtype.numpy)
        if self.mask is not None:
            given[self.mask[0]] = (np.arange(size) < lengths[:, None]).astype(self.mask[1].dtype.numpy)
        if self.segments is not None:
            given[self.segments[0]] = np.zeros(tokens.shape, self.segments[1].dtype.numpy)
        return given

    @property
    def _size(self) -> int | None:
        size = self.kind.known_shape[1]
        return size if isinstance(size, int) else None

    @property
    def _limit(self) -> int | None:
        """The largest number of tokens of a text; None if any number works."""
        return min((size for size in (self._size, self.longest) if size is not None), default=None)

    def __str__(self) -> str:
        cut = "" if self._limit is None else f", of which the first {self._limit} are used"
        return f"each text is split into {self.vocabulary.description} by {self.origin}{cut}"


def lines_of(path: Path) -> list[str]:
    """Return the lines of a text file. Raises InputError if it cannot be read or is empty."""
    lines = [line.removesuffix("\r") for line in read_text(path).removesuffix("\n").split("\n")]
    if not any(lines):
        raise InputError(f"{path}: the file contains no text; expected one text per line")
    return lines


def encoder_for(path: Path, model: Model, tokenizer: Vocabulary | None = None) -> Encoder:
    """Return how texts become inputs.

    Args:
        path: The file of the texts, for errors.
        model: The model.
        tokenizer: A vocabulary or tokenizer instead of that in the model's metadata.

    Raises:
        InputError: The model does not take text.
    """
    types = model.input_types
    longest = _longest(model)
    if tokenizer is not None:
        return _tokens(path, tokenizer, "the tokenizer given", types, longest)
    if (vocabulary := vocabulary_of(model.meta)) is not None:
        file = model.meta.get(VOCABULARY_FILE)
        origin = "the vocabulary in the model's metadata" if file is None else f"the tokenizer of {file}"
        return _tokens(path, vocabulary, origin, types, longest)
    if (strings := _strings(model)) is not None:
        return strings
    raise InputError(
        f"{path}: the model does not take text: its metadata contain no vocabulary, and its inputs are "
        f"{', '.join(f'{n} {k}' for n, k in types.items())}. If they are numbers of tokens, give a tokenizer.json "
        f"(tokenizer=, --tokenizer). If the file is a list of images, write @{path}"
    )


def _strings(model: Model) -> Strings | None:
    """Return the encoder of a model whose only input is one of strings, [N] or [N, 1]; None for other models."""
    types = model.input_types
    strings = [(n, k) for n, k in types.items() if isinstance(k, TensorType) and k.dtype is DType.STRING]
    return Strings(*strings[0]) if len(types) == len(strings) == 1 and strings[0][1].rank in (1, 2) else None


def _longest(model: Model) -> int | None:
    """Return the largest number of tokens by the metadata and the table of positions; None if there is no limit.

    Raises InputError if the metadata are damaged.
    """
    text = model.meta.get(MAX_TOKENS)
    if text is not None and (not text.isdecimal() or not int(text)):
        raise InputError(f"the model's metadata are damaged: {MAX_TOKENS} is {text!r}, not a number above 0")
    table = position_table(model, None, next((name for name in model.inputs if name in MASKS), None))
    limits = (None if text is None else int(text), None if table is None else table.rows)
    return min((limit for limit in limits if limit is not None), default=None)


def _tokens(path: Path, vocabulary: Vocabulary, origin: str, types: Mapping[str, Type], longest: int | None) -> Tokens:
    integers = {n: k for n, k in types.items() if isinstance(k, TensorType) and np.dtype(k.dtype.numpy).kind in "biu"}
    rows = [(n, k) for n, k in integers.items() if k.rank == 2]
    lengths = [(n, k) for n, k in integers.items() if k.rank == 1 and k.dtype.is_integer]
    mask, segments = _only(rows, MASKS), _only(rows, SEGMENTS)
    tokens = [item for item in rows if item not in (mask, segments)]
    used = len(tokens) + len(lengths) + (mask is not None) + (segments is not None)
    if len(tokens) != 1 or len(lengths) > 1 or len(types) != used:
        listed = ", ".join(f"{n} {k}" for n, k in types.items())
        raise InputError(
            f"{path}: a text needs one input of integers [N, T], and perhaps one of lengths [N], an attention_mask and "
            f"token_type_ids [N, T], but the inputs are {listed}"
        )
    return Tokens(vocabulary, origin, *tokens[0], lengths[0] if lengths else None, mask, segments, longest)


def _only(inputs: Sequence[tuple[str, TensorType]], names: Collection[str]) -> tuple[str, TensorType] | None:
    """Return the input with one of these names; None if there is none, or more than one."""
    found = [item for item in inputs if item[0] in names]
    return found[0] if len(found) == 1 else None
