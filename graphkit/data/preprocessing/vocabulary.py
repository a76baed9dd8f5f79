"""Vocabulary: divides text into tokens, and numbers them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.errors import InputError, RuntimeFailure, UsageError
from graphkit.ir.atomic import write_whole
from graphkit.signatures import typed, typed_constructor
from graphkit.text import quantity

LEVELS = ("word", "char")
PADDING, UNKNOWN = 0, 1
_SPECIAL = ("<pad>", "<unk>")
# Words, including parts that apostrophes or hyphens join, and every other character except spaces.
_WORDS = re.compile(r"\w+(?:['\u2019-]\w+)*|[^\w\s]")


@typed_constructor("gk.data")
class Vocabulary:
    """Tokens in the order of their numbers. 0 is padding, 1 represents every token that is not in the list.

    level: with "word", tokens are lower-case words and single punctuation marks; with "char", characters. `tokens` must
    begin with "<pad>" and "<unk>", and contain each token once.

    Attributes:
        padding: The number of padding.
        unwritten: Numbers of tokens that have no text, so `gk.generate` never chooses them.
        ends: Numbers of tokens that end a text.
    """

    padding: int = PADDING
    unwritten: tuple[int, ...] = (PADDING, UNKNOWN)
    ends: tuple[int, ...] = ()

    def __init__(self, tokens: Sequence[str], level: str = "word"):
        if level not in LEVELS:
            raise UsageError(f"the level of a vocabulary must be {' or '.join(LEVELS)}, not {level!r}")
        self.tokens = tuple(tokens)
        self.level = level
        self._numbers = {token: number for number, token in enumerate(self.tokens)}
        if self.tokens[:2] != _SPECIAL or len(self._numbers) != len(self.tokens):
            raise InputError("a vocabulary must begin with <pad> and <unk>, and contain every token once")

    @classmethod
    @typed("Vocabulary.build")
    def build(
        cls, texts: Iterable[str], level: str = "word", *, min_count: int = 1, size: int | None = None
    ) -> Vocabulary:
        """Build a vocabulary of the tokens of `texts` that occur at least `min_count` times.

        The most frequent tokens come first; equally frequent ones are sorted.

        Args:
            texts: The texts.
            level: "word" or "char".
            min_count: How often a token must occur.
            size: Maximum number of tokens, including "<pad>" and "<unk>".

        Raises:
            InputError: No token is left.
        """
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(tokens_of(text, level))
        ranked = sorted((t for t, n in counts.items() if n >= min_count), key=lambda t: (-counts[t], t))
        kept = ranked if size is None else ranked[: max(size - len(_SPECIAL), 0)]
        if not kept:
            why = (
                f"size={size} includes <pad> and <unk>, so it must be at least {len(_SPECIAL) + 1}"
                if ranked
                else f"of {quantity(len(counts), 'token')}, none occurs {min_count} times or more (min_count)"
            )
            raise InputError(f"no token is left for the vocabulary: {why}")
        return cls([*_SPECIAL, *kept], level)

    def __len__(self) -> int:
        return len(self.tokens)

    @typed("Vocabulary.encode")
    def encode(self, text: str, length: int | None = None) -> np.ndarray:
        """Return the numbers of a text's tokens, int64 [tokens]. length: the first tokens to keep; None for all."""
        numbers = self._numbers
        return np.array([numbers.get(token, UNKNOWN) for token in tokens_of(text, self.level)][:length], np.int64)

    def encode_part(self, text: str) -> np.ndarray:
        """Return the numbers of a part of a longer text, int64 [tokens]: no tokens for its begin and end are added."""
        return self.encode(text)

    def encode_beginning(self, text: str) -> np.ndarray:
        """Return the numbers of a text that will be continued, int64 [tokens]: no token for its end is added."""
        return self.encode(text)

    def token_number(self, token: str) -> int | None:
        """Return the number of a token, or None if the vocabulary does not contain it."""
        return self._numbers.get(token)

    @property
    def description(self) -> str:
        """The kind of the tokens, in words: "words", "characters" or "tokens"."""
        return "characters" if self.level == "char" else "words"

    @typed("Vocabulary.decode")
    def decode(self, numbers: Iterable[int]) -> str:
        """Return the text of numbers, without padding; words are separated by spaces."""
        found = (self.tokens[n] for n in numbers if n != PADDING)
        return ("" if self.level == "char" else " ").join(found)

    # --- files -----------------------------------------------------------------------------------

    def to_json(self) -> str:
        """Return the level and the tokens as JSON, for `from_json`."""
        return json.dumps({"level": self.level, "tokens": self.tokens}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Vocabulary:
        """Read the text of `to_json`. Raises InputError for any other text."""
        try:
            record: Any = json.loads(text)
            tokens, level = record["tokens"], record["level"]
            if not all(isinstance(token, str) for token in tokens):
                raise TypeError("tokens must be strings")
            return cls(tokens, level)
        except KeyError as error:
            raise InputError(f"not a vocabulary: the key {error} is missing") from None
        except (ValueError, TypeError, UsageError) as error:
            raise InputError(f"not a vocabulary: {error}") from None

    def save(self, path: str | Path) -> None:
        """Write the vocabulary as JSON, as in a model's metadata. Raises RuntimeFailure if the disk fails."""
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RuntimeFailure(f"{path} cannot be written: {error.strerror or error}") from error
        write_whole(path, [self.to_json().encode()])

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read a file of `save`. Raises InputError if it cannot be read, or is not a vocabulary."""
        return cls.from_json(read_text(Path(path)))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} {self.level}s>"


def tokens_of(text: str, level: str) -> list[str]:
    """Return the tokens of a text: see Vocabulary."""
    if level == "char":
        return list(text)
    return _WORDS.findall(text.lower())


def read_text(path: Path) -> str:
    """Read a UTF-8 file with its line ends unchanged. Raises InputError, which names the file."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start}); convert it, for example with iconv") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
