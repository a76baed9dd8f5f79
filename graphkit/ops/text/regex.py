"""Regular expressions, in RE2's language and by RE2 itself: matching takes time linear in the text, for any pattern.

Python's own `re` would take exponential time for patterns that a file may hold. Cox, "Regular expression matching can
be simple and fast", 2007.
"""

from __future__ import annotations

import importlib.util
import re
from functools import lru_cache
from typing import Any

import numpy as np

from graphkit.distribution import how_to_install
from graphkit.errors import MissingDependency, UsageError
from graphkit.ir.types import DType, TensorType
from graphkit.ops._base import Onnx, Sample, op
from graphkit.ops.text.strings import TextOp, no_text, text


@lru_cache(maxsize=64)
def compiled(pattern: str, operator: str, longest: bool = False) -> Any:
    """Return the pattern compiled by RE2. longest: prefer the longest match at a position, not the first alternative.

    Raises UsageError for an invalid pattern, MissingDependency without google-re2.
    """
    try:
        import re2
    except ImportError:
        raise MissingDependency(
            f"{operator} needs the package google-re2; install it with: {how_to_install('text')}"
        ) from None
    options = re2.Options()
    options.log_errors = False
    options.longest_match = longest
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0] if error.args else error
        shown = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise UsageError(f"{pattern!r} is not a regular expression of RE2: {shown}") from None


@lru_cache(maxsize=64)
def run_of_characters(pattern: str) -> re.Pattern[str] | None:
    """The pattern for Python's `re` if it is one class of plain ASCII characters and ranges, repeated: `[a-zA-Z0-9_]+`.

    Both engines then find the same matches, `re` in linear time too, and without a call for each of them. None for any
    other pattern.
    """
    found = re.fullmatch(r"\[((?:[A-Za-z0-9]-[A-Za-z0-9]|[A-Za-z0-9_ .,;:!?@#%&=/<>~])+)\]\+", pattern)
    if found is None or "[:" in pattern or any(a > b for a, b in re.findall(r"(\w)-(\w)", found[1])):
        return None
    return re.compile(pattern)


def check_pattern(pattern: str, operator: str, longest: bool = False) -> None:
    """Raise UsageError for a pattern that RE2 rejects. Without RE2, the pattern is first checked in the run."""
    if importlib.util.find_spec("re2") is not None:
        compiled(pattern, operator, longest)


@op
class RegexFullMatch(TextOp):
    """Whether the whole of each string matches `pattern`, a regular expression of RE2.

    RE2 has neither back-references nor look-around. Needs the optional dependency google-re2.
    """

    pattern: str | None = None
    inputs = ("x",)
    onnx = Onnx("RegexFullMatch", since=20)
    samples = lambda: (
        Sample(text("www.google.com", "www.facebook.com", "www.bbc.co.uk"), pattern=r"www\.[\w.-]+\.\bcom\b"),
        Sample(text(["a@gmail.com", "b@"], ["@x", "c@yahoo.com"]), pattern=r"(\w+)@(yahoo|gmail)\.com"),
        Sample(text("", "a"), pattern=""),
        Sample(text("abb", "b", "ab\n"), pattern="ab*"),
        Sample(np.array("aa", object), pattern="(a+)+"),
        Sample(text("\u0663", "3", "\u00e9", "\n"), pattern=r"\d|\w|\s"),
        Sample(no_text(0, 2), pattern="a"),
    )

    def infer(self, x: TensorType) -> TensorType:
        check_pattern(self.pattern or "", self.name)
        return TensorType(DType.BOOL, x.shape)

    def reference(self, xp: Any, x: Any) -> Any:
        match = compiled(self.pattern or "", self.name).fullmatch
        found = [match(word) is not None for word in x.reshape(-1).tolist()]
        return np.array(found, bool).reshape(x.shape)
