"""The text of tokens while they are generated."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence

from graphkit.data.preprocessing.vocabulary import Vocabulary

# Number of earlier tokens that a piece is decoded with: whether it begins with a space depends on them.
_CONTEXT = 8

# A character has at most 4 bytes, so 4 tokens. If it is not complete after that, its bytes are not valid UTF-8.
_PENDING = 4

# The decoder replaces invalid UTF-8 with this character. At the end of a text, the character may need further tokens.
_INCOMPLETE = "\ufffd"


class TextStream:
    """Decodes tokens one by one. A piece of text is returned when its characters are complete.

    The pieces together are the text. A text that may be the beginning of a stop text is held back.

    Args:
        vocabulary: Decodes the tokens.
        prompt: The tokens before.
        stops: Texts that end the generation. The text before the first of them is kept.

    Attributes:
        text: The text so far, without the part that is held back.
        stopped: Whether a stop text was found.
    """

    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int], stops: Sequence[str] = ()):
        self._vocabulary, self._stops = vocabulary, stops
        self._tokens = _from_character(vocabulary, [int(token) for token in prompt[-_CONTEXT:]])
        self._read = len(self._tokens)  # number of tokens whose text was returned
        self._is_complete = True  # whether that text ends with a complete character; if not, this one is held back
        # Earlier values of `_read` where a character begins. Some decoders read no character after a part of one.
        self._starts = deque([0], maxlen=_CONTEXT + 1)
        if not vocabulary.decode(self._tokens).endswith(_INCOMPLETE):
            self._starts.append(self._read)
        self._held = ""
        self.text = ""
        self.stopped = False

    def copy(self) -> TextStream:
        """Return a stream of the same text, which continues independently."""
        found = copy.copy(self)
        found._tokens, found._starts = list(self._tokens), deque(self._starts, self._starts.maxlen)
        return found

    def add(self, token: int) -> str:
        """Add a token, and return the text that is now complete."""
        self._tokens.append(token)
        return self._accept(self._decoded(whole=False))

    def finish(self) -> str:
        """Return the text that was held back. Incomplete characters become U+FFFD."""
        if self.stopped:
            return ""
        piece = self._accept(self._decoded(whole=True))
        if not self.stopped:
            piece, self._held, self.text = piece + self._held, "", self.text + self._held
        return piece

    def _decoded(self, whole: bool) -> str:
        """Return the text of the new tokens, or nothing if a character is incomplete, unless `whole`.

        If bytes are not valid UTF-8, the text may never end with a complete character. Then all but the last one is
        returned.
        """
        earliest = max(self._read - _CONTEXT, 0)
        start = next((place for place in self._starts if earliest <= place < self._read), earliest)
        before = self._vocabulary.decode(self._tokens[start : self._read])
        after = self._vocabulary.decode(self._tokens[start:])
        if not self._is_complete:
            before = before.removesuffix(_INCOMPLETE)
        same = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))
        is_complete = whole or not after.endswith(_INCOMPLETE)
        if not is_complete and len(self._tokens) - self._read < _PENDING:
            return ""
        self._read, self._is_complete = len(self._tokens), is_complete
        if not is_complete:
            return after[same:-1]
        self._starts.append(self._read)
        return after[same:]

    def _accept(self, piece: str) -> str:
        """Add a piece of text. Return the part that cannot be the beginning of a stop text."""
        text = self._held + piece
        places = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if places:
            self.stopped, self._held = True, ""
            piece = text[: min(places)]
        else:
            keep = max((_overlap(text, stop) for stop in self._stops), default=0)
            piece, self._held = text[: len(text) - keep], text[len(text) - keep :]
        self.text += piece
        return piece


def _from_character(vocabulary: Vocabulary, tokens: list[int]) -> list[int]:
    """Return tokens without the first ones if these are the end of a character."""
    for start in range(min(_PENDING, len(tokens))):
        if not vocabulary.decode(tokens[start:]).startswith(_INCOMPLETE):
            return tokens[start:]
    return tokens


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of a text with which a stop text begins."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
