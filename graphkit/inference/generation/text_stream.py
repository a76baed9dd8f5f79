"""The text of tokens while they are generated."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.data.preprocessing.vocabulary import Vocabulary

# Number of tokens of the prompt that the first piece is decoded with: whether it begins with a space depends on them.
_CONTEXT = 8

# Bytes that are no UTF-8 become this character: a character may need further tokens.
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
        self._tokens = [int(token) for token in prompt[-_CONTEXT:]]
        self._read = len(self._tokens)  # number of tokens whose text is complete
        self._held = ""
        self.text = ""
        self.stopped = False

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
        """Return the text of the new tokens, or nothing if a character is incomplete, unless `whole`."""
        start = max(self._read - _CONTEXT, 0)
        before = self._vocabulary.decode(self._tokens[start : self._read])
        after = self._vocabulary.decode(self._tokens[start:])
        if after.endswith(_INCOMPLETE) and not whole:
            return ""
        self._read = len(self._tokens)
        same = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))
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


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of a text with which a stop text begins."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
