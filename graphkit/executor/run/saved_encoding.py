"""Numbers, texts and lists as saved programs store them. executor/native/runtime/recipe.h reads them."""

from __future__ import annotations

import struct
from collections.abc import Iterable


def number(value: int) -> bytes:
    """Encode an integer of at most 64 bits."""
    return struct.pack("<Q", value & ((1 << 64) - 1))


def raw(value: bytes) -> bytes:
    """Encode bytes."""
    return number(len(value)) + value


def text(value: str) -> bytes:
    """Encode a text."""
    return raw(value.encode())


def sequence(items: Iterable[bytes]) -> bytes:
    """Encode a list of encoded items."""
    parts = list(items)
    return b"".join((number(len(parts)), *parts))


def optional(item: bytes | None) -> bytes:
    """Encode an encoded item, or that there is none."""
    return number(0) if item is None else number(1) + item
