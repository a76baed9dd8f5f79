"""Tokenizer: a Hugging Face tokenizer.json, computed by the package `tokenizers`."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.data.preprocessing.vocabulary import Vocabulary, read_text
from graphkit.distribution import how_to_install
from graphkit.errors import InputError, MissingDependency, UsageError
from graphkit.signatures import typed, typed_constructor
from graphkit.text import quantity

# Names of tokens for padding, and of tokens that end a text or a message, in common tokenizers.
_PADDING = ("[PAD]", "<pad>", "<|pad|>", "<PAD>")
_ENDS = (
    "</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>",
    "<end_of_turn>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
)  # fmt: skip

# The package stores the numbers of tokens in 32 bits.
_NUMBERS = 1 << 32

# A file may number tokens with gaps. With more than this many numbers per token, it is damaged.
_GAPS = 16


@typed_constructor("gk.data")
class Tokenizer(Vocabulary):
    """The tokens and rules of a Hugging Face `tokenizer.json`. It needs the package `tokenizers` (extra `text`).

    Truncation and padding that the file configures are not used.

    Args:
        document: The text of the file.
        source: The name of the file, for errors.

    Raises:
        InputError: The text is not a tokenizer.json.
        MissingDependency: `tokenizers` is not installed.
    """

    def __init__(self, document: str, source: str = "tokenizer.json"):
        self._document, self._source = document, source
        self._tokenizer = _parsed(document, source)
        padding = self._tokenizer.padding
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._lock = threading.Lock()  # `encode` sets the length in the tokenizer
        self._numbers = self._tokenizer.get_vocab(with_added_tokens=True)
        size = max(self._numbers.values(), default=-1) + 1
        if not size or size > _GAPS * len(self._numbers):
            raise InputError(f"{source}: damaged: {len(self._numbers)} tokens have numbers up to {size - 1}")
        tokens = [""] * size
        for token, number in self._numbers.items():
            tokens[number] = token
        self.tokens = tuple(tokens)
        self.level = "token"
        known = [self._numbers[name] for name in _PADDING if name in self._numbers]
        self.padding = int(padding["pad_id"]) if padding else next(iter(known), 0)
        if not 0 <= self.padding < size:
            raise InputError(f"{source}: damaged: pad_id is {self.padding}, but tokens have numbers up to {size - 1}")
        self.unwritten = tuple(number for number, token in enumerate(tokens) if not token)
        self.ends = tuple(self._numbers[name] for name in _ENDS if name in self._numbers)

    @typed("Tokenizer.encode")
    def encode(self, text: str, length: int | None = None) -> np.ndarray:
        """Return the numbers of a text's tokens, int64 [tokens], with the special tokens that the file adds.

        Args:
            text: The text.
            length: Maximum number of tokens. Special tokens at the end are kept.

        Raises:
            InputError: The text cannot be encoded, or `length` is below the number of special tokens.
        """
        return self._encoded(text, length, special=True)

    def encode_part(self, text: str) -> np.ndarray:
        return self._encoded(text, None, special=False)

    def encode_beginning(self, text: str) -> np.ndarray:
        whole, part = self.encode(text), self.encode_part(text)
        if not part.size:
            while whole.size and whole[-1] in self.ends:
                whole = whole[:-1]
            return whole
        for start in range(len(whole) - len(part) + 1):
            if np.array_equal(whole[start : start + len(part)], part):
                return whole[: start + len(part)]
        return whole

    def _encoded(self, text: str, length: int | None, special: bool) -> np.ndarray:
        with self._lock:
            try:
                with _explaining(f"{self._source}: a text cannot be encoded"):
                    if length is not None:
                        self._check_length(length, special)
                        self._tokenizer.enable_truncation(length)
                    numbers = self._tokenizer.encode(text, add_special_tokens=special).ids
            finally:
                self._tokenizer.no_truncation()
        return np.array(numbers, np.int64)

    def _check_length(self, length: int, special: bool) -> None:
        """Raise InputError if the special tokens of a text do not fit. The package would not truncate the text."""
        needed = self._tokenizer.num_special_tokens_to_add(False) if special else 0
        if length < needed:
            raise InputError(
                f"{self._source}: length is {length}, but the special tokens of a text need "
                f"{quantity(needed, 'token')}; give a larger length"
            )

    @typed("Tokenizer.decode")
    def decode(self, numbers: Iterable[int]) -> str:
        """Return the text of numbers, without special tokens. Bytes that are not UTF-8 become U+FFFD.

        A number above that of the last token has no text: a model may have more scores than tokens.

        Raises:
            InputError: A number is negative or does not fit into 32 bits, or the tokenizer cannot decode the tokens.
        """
        given = [int(n) for n in numbers]
        if wrong := [n for n in given if not 0 <= n < _NUMBERS]:
            raise InputError(
                f"{self._source}: {wrong[0]} is not the number of a token; the last one is {len(self) - 1}"
            )
        with _explaining(f"{self._source}: tokens cannot be decoded"):
            text: str = self._tokenizer.decode(given, skip_special_tokens=True)
        return text

    @property
    def description(self) -> str:
        return "tokens"

    def __reduce__(self) -> Any:
        return Tokenizer, (self._document, self._source)

    # --- files -----------------------------------------------------------------------------------

    def to_json(self) -> str:
        """Return the text of the tokenizer.json."""
        return self._document

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """Read the text of a tokenizer.json. Raises InputError for any other text."""
        return cls(text)

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read a tokenizer.json. Raises InputError, which names the file."""
        return cls(read_text(Path(path)), str(path))

    @classmethod
    def build(cls, *args: Any, **options: Any) -> Tokenizer:
        """Raise UsageError: the package `tokenizers` trains tokenizers."""
        raise UsageError("gk.data.Tokenizer cannot be built from texts: train it with the package tokenizers")


def vocabulary_from_json(text: str, source: str) -> Vocabulary:
    """Read a tokenizer.json, or the text of `Vocabulary.to_json`. Raises InputError, which names the source."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: neither a tokenizer.json nor a vocabulary: {error}") from None
    if isinstance(record, dict) and "model" in record:
        return Tokenizer(text, source)
    try:
        return Vocabulary.from_json(text)
    except InputError as error:
        raise InputError(f"{source}: neither a tokenizer.json nor a vocabulary: {error}") from None


def read_vocabulary(path: str | Path) -> Vocabulary:
    """Read a tokenizer.json, or a vocabulary.json of a run folder. Raises InputError, which names the file."""
    return vocabulary_from_json(read_text(Path(path)), str(path))


def _parsed(document: str, source: str) -> Any:
    try:
        from tokenizers import Tokenizer as Parsed
    except ImportError:
        raise MissingDependency(
            f"{source}: a tokenizer needs the package tokenizers; install it with: {how_to_install('text')}"
        ) from None
    with _explaining(f"{source}: not a tokenizer.json"):
        return Parsed.from_str(document)


@contextlib.contextmanager
def _explaining(problem: str) -> Iterator[None]:
    """Context in which errors of the package become InputErrors that begin with `problem`."""
    try:
        yield
    except InputError:
        raise
    except BaseException as error:  # the package raises Exception itself, or Rust's PanicException
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{problem}: {error}") from None
