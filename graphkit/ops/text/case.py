"""Upper and lower case by Unicode's simple mappings: one character becomes one, as towupper and towlower of C do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

_DOTTED_CAPITAL = "\u0130"
_DOTLESS_SMALL = "\u0131"
# Languages whose i has a dot in both cases, or in none.
_DOTTED = frozenset({"tr", "az"})


def changed_case(words: Sequence[str], action: str, locale: str | None) -> list[str]:
    """`words` in the case that `action` says: NONE, LOWER or UPPER, by the language of `locale`."""
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
    """Filled as characters come; `translate` asks for code points."""

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
    # str.upper has full mappings, whose first choice may be longer: the titlecase is the simple one then, or none.
    for candidate in (character.upper(), character.title()):
        if len(candidate) == 1:
            return candidate
    return character


def _simple_lower(character: str) -> str:
    if character == _DOTTED_CAPITAL:
        return "i"
    lowered = character.lower()
    return lowered if len(lowered) == 1 else character
