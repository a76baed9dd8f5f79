"""Lines of a text file as inputs of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from graphkit.data.preprocessing.vocabulary import PADDING, Vocabulary, read_text
from graphkit.errors import InputError
from graphkit.ir.types import DType, TensorType, Type
from graphkit.model import VOCABULARY, Model

# Lengths are rounded up to a multiple of this number, as `gk.data.Sentences` does in training by default.
_BUCKET = 8


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
        return f"each line is a string of input {self.name!r}"


@dataclass(frozen=True)
class Tokens:
    """Numbers of tokens are an input of integers [N, T], padded with 0. If there is another input, it is the lengths.

    With a fixed T, longer texts are cut off.
    """

    vocabulary: Vocabulary
    name: str
    kind: TensorType
    lengths: tuple[str, TensorType] | None

    def inputs(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        rows = [self.vocabulary.encode(text) for text in texts]
        longest = max(map(len, rows))
        fixed = self._size
        size = max(-(-longest // _BUCKET), 1) * _BUCKET if fixed is None else fixed
        tokens = np.full((len(rows), size), PADDING, self.kind.dtype.numpy)
        for padded, row in zip(tokens, rows, strict=True):
            padded[: len(row)] = row[:size]
        if self.lengths is None:
            return {self.name: tokens}
        name, kind = self.lengths
        return {self.name: tokens, name: np.array([min(len(row), size) for row in rows], kind.dtype.numpy)}

    @property
    def _size(self) -> int | None:
        size = self.kind.known_shape[1]
        return size if isinstance(size, int) else None

    def __str__(self) -> str:
        kind = "characters" if self.vocabulary.level == "char" else "words"
        cut = "" if self._size is None else f", of which the first {self._size} are used"
        return f"each line is numbered {kind} of the vocabulary in the model's metadata{cut}"


def encoder_for(path: Path, model: Model) -> tuple[list[str], Encoder]:
    """Return the lines of a text file, and how they become inputs.

    Raises:
        InputError: The file cannot be read or is empty, or the model does not take text.
    """
    lines = [line.removesuffix("\r") for line in read_text(path).removesuffix("\n").split("\n")]
    if not any(lines):
        raise InputError(f"{path}: the file contains no text; expected one text per line")
    types = model.input_types
    if VOCABULARY in model.meta:
        return lines, _tokens(path, Vocabulary.from_json(model.meta[VOCABULARY]), types)
    strings = [(n, k) for n, k in types.items() if isinstance(k, TensorType) and k.dtype is DType.STRING]
    if len(types) == len(strings) == 1 and strings[0][1].rank in (1, 2):
        return lines, Strings(*strings[0])
    raise InputError(
        f"{path}: the model does not take text: its metadata contain no vocabulary, and its inputs are "
        f"{', '.join(f'{n} {k}' for n, k in types.items())}. If the file is a list of images, write @{path}"
    )


def _tokens(path: Path, vocabulary: Vocabulary, types: Mapping[str, Type]) -> Tokens:
    integers = {n: k for n, k in types.items() if isinstance(k, TensorType) and np.dtype(k.dtype.numpy).kind in "iu"}
    tokens = [(n, k) for n, k in integers.items() if k.rank == 2]
    lengths = [(n, k) for n, k in integers.items() if k.rank == 1]
    if len(tokens) != 1 or len(lengths) > 1 or len(types) != 1 + len(lengths):
        listed = ", ".join(f"{n} {k}" for n, k in types.items())
        raise InputError(
            f"{path}: a text needs one input of integers [N, T], and perhaps one of lengths [N], but the inputs are "
            f"{listed}"
        )
    return Tokens(vocabulary, *tokens[0], lengths[0] if lengths else None)
