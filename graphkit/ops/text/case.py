"""Upper and lower case by Unicode's simple mappings: one character becomes one, as towupper and towlower of C do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

_DOTTED_CAPITAL = "\u0130"
_DOTLESS_SMALL = "\u0131"
# Languages with a dotted and a dotless i, each in upper and lower case.
_DOTTED = frozenset({"tr", "az"})


def changed_case(words: Sequence[str], action: str, locale: str | None) -> list[str]:
    """Return `words` converted by `action` (NONE, LOWER or UPPER), with the rules of the language of `locale`."""
    if action == "NONE":
        return list(words)
    upper, language = action == "UPPER", _language(locale)
    table = _table(upper, language)
    if language in _DOTTED:
        return [word.translate(table) for word in words]
    plain = str.upper if upper else str.lower
    return [plain(word) if word.isascii() else word.translate(table) for word in words]


def _language(locale: str | None) -> str:
    return re.split(r"[_\-.@]", locale or "", maxsplit=1)[0].lower() if locale not in ("C", "POSIX") else "ascii"


class _Table(dict[int, int]):
    """Table for str.translate from code points to code points. Entries are computed when they are first used."""

    def __init__(self, upper: bool, language: str):
        super().__init__()
        self.upper = upper
        self.ascii = language == "ascii"
        if language in _DOTTED:
            self.update({ord("i"): ord(_DOTTED_CAPITAL)} if upper else {ord("I"): ord(_DOTLESS_SMALL)})

    def __missing__(self, code: int) -> int:
        if self.ascii and code > 127:
            return code
        found = ord(_simple_upper(chr(code)) if self.upper else _simple_lower(chr(code)))
        self[code] = found
        return found


@cache
def _table(upper: bool, language: str) -> _Table:
    return _Table(upper, language if language in _DOTTED or language == "ascii" else "")


def _simple_upper(character: str) -> str:
    # str.upper may return several characters. Then the titlecase is used if it is one character, else the character
    # itself.
    for candidate in (character.upper(), character.title()):
        if len(candidate) == 1:
            return candidate
    return character


def _simple_lower(character: str) -> str:
    if character == _DOTTED_CAPITAL:
        return "i"
    lowered = character.lower()
    return lowered if len(lowered) == 1 else character
