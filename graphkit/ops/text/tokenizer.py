"""Tokenizer of com.microsoft: split strings into words, by separators or by a pattern that words match."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from graphkit.errors import TypeMismatch, UsageError
from graphkit.ir import dims
from graphkit.ir.types import DType, TensorType
from graphkit.ops._base import Onnx, Sample, op
from graphkit.ops.text.regex import check_pattern, compiled, run_of_characters
from graphkit.ops.text.strings import TextOp, no_text, padded, text

# The marks of ONNX Runtime: start and end of text.
MARKS = ("\x02", "\x03")


@op
class Tokenizer(TextOp):
    """Split each string of x, [C] or [rows, C], into words along one more axis, padded with `pad_value`.

    separators: RE2 expressions. The string is split at the matches of the first expression, its parts at the matches
    of the second, and so on. The single separator "" makes each character a word. tokenexp: an RE2 expression; the
    words are its matches. Both use the longest match. Words of fewer than `mincharnum` characters are dropped. With
    `mark`, the words of each string stand between U+0002 and U+0003. If no string has a word, the new axis has size 0.
    Results are those of ONNX Runtime, except that tensors without elements get the new axis, too.
    """

    mark: bool
    mincharnum: int
    pad_value: str
    separators: tuple[str, ...] | None = None
    tokenexp: str | None = None
    domain = "com.microsoft"
    inputs = ("x",)
    onnx = Onnx("Tokenizer", since=1, domain="com.microsoft")
    samples = lambda: (
        Sample(text("ab cd", "e"), mark=False, mincharnum=1, pad_value="#", separators=[""]),
        Sample(text(["a,b;cd", ""], [";", "x"]), mark=True, mincharnum=1, pad_value="", separators=[",", ";"]),
        Sample(text("a1bb22c", "zz"), mark=False, mincharnum=2, pad_value="#", tokenexp="[a-y]+"),
        Sample(text("", " "), mark=True, mincharnum=1, pad_value="#", separators=[" "]),
        Sample(no_text(0, 2), mark=False, mincharnum=1, pad_value="#", separators=[" "]),
    )

    def infer(self, x: TensorType) -> TensorType:
        if self.mincharnum < 1:
            raise UsageError(f"mincharnum must be 1 or more, not {self.mincharnum}")
        if not self.separators and not self.tokenexp:
            raise UsageError("give separators or tokenexp, and not empty")
        if self._characters and self.mincharnum > 1:
            raise UsageError(
                f"if every character is a word, mincharnum must be 1, not {self.mincharnum}: no word would be left"
            )
        if not self._characters:
            for pattern in self.separators or (self.tokenexp or "",):
                check_pattern(pattern, self.name, longest=True)
        if x.rank not in (None, 1, 2):
            raise TypeMismatch(f"Tokenizer takes [C] or [rows, C], not {x}")
        return TensorType(DType.STRING, None if x.shape is None else (*x.shape, dims.fresh()))

    def reference(self, xp: Any, x: Any) -> Any:
        lists = list(map(self._splitter(), x.reshape(-1).tolist()))
        if self.mark and any(lists):
            start, end = MARKS
            lists = [[start, *words, end] for words in lists]
        return padded(lists, x.shape, self.pad_value)[0]

    @property
    def _characters(self) -> bool:
        return self.separators == ("",)

    def _splitter(self) -> Callable[[str], list[str]]:
        if self._characters:
            return list
        least = self.mincharnum
        if not self.separators:
            if (fast := run_of_characters(self.tokenexp or "")) is not None:
                find = fast.findall
                return find if least == 1 else lambda word: [part for part in find(word) if len(part) >= least]
            expression = compiled(self.tokenexp or "", self.name, longest=True)
            return lambda word: [part.decode() for part in _matches(expression, word.encode(), least)]
        separators = [compiled(pattern, self.name, longest=True) for pattern in self.separators]

        def split(word: str) -> list[str]:
            parts = [word.encode()]
            for separator in separators:
                parts = [part for whole in parts for part in _between(separator, whole, least)]
            return [part.decode() for part in parts]

        return split


# These functions search in bytes: for a str, RE2 would convert the whole text in each call of `search`.
def _between(separator: Any, whole: bytes, least: int) -> Iterator[bytes]:
    """Yield the parts between matches. The character after an empty match belongs to no part."""
    start = 0
    while start <= len(whole) and (match := separator.search(whole, start)) is not None:
        before, end = match.span()
        if _length(whole[start:before]) >= least:
            yield whole[start:before]
        start = end if end > before else _following(whole, before)
    if _length(whole[start:]) >= least:
        yield whole[start:]


def _matches(expression: Any, whole: bytes, least: int) -> Iterator[bytes]:
    """Yield the matches that are long enough. After a shorter one, continue one character after its start."""
    start = 0
    while start <= len(whole) and (match := expression.search(whole, start)) is not None:
        first, start = match.span()
        if _length(match.group()) >= least:
            yield match.group()
        else:
            start = _following(whole, first)


def _length(part: bytes) -> int:
    return len(part) if part.isascii() else len(part.decode())


def _following(whole: bytes, place: int) -> int:
    """Return the position of the next character."""
    place += 1
    while place < len(whole) and whole[place] & 0xC0 == 0x80:
        place += 1
    return place
