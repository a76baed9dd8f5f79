"""The message of a rank in each progress step: its number of begun steps, and its pending operations.

Small arrays to be summed are sent with this message.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.named_tuples import NamedTuple

ENDED = "ended"

_FORMAT = struct.Struct("<qqQqB95s")
PENDING = slice(16, 32)
TEXT = 95
# The bytes after the name, for small arrays that are summed.
PAYLOAD = slice(_FORMAT.size, _FORMAT.size + 64)
LENGTH = PAYLOAD.stop

_KEPT = 4096


class Announcement(NamedTuple):
    """The report of a rank in a progress step.

    Attributes:
        number: Serial number of the operation in `text`, in the order of posting.
        digest: One digest of all heads. The head of a name is its first pending operation.
        text: The operation that the rank waits for, or else a pending operation.
    """

    steps: int
    number: int
    digest: int
    pending: int
    waits: int
    text: bytes

    def pack(self, payload: bytes) -> bytes:
        return _FORMAT.pack(*self) + payload.ljust(PAYLOAD.stop - PAYLOAD.start, b"\0")

    @classmethod
    def unpack(cls, data: bytes) -> Announcement:
        steps, number, digest, pending, waits, text = _FORMAT.unpack_from(data)
        return cls(steps, number, digest, pending, waits, text.rstrip(b"\0"))

    def __str__(self) -> str:
        text = self.text.decode(errors="replace")
        if text == ENDED:
            return f"{ENDED} after {self.steps} steps"
        return f"{text} in step {self.steps}" if self.steps else f"{text} as call {self.number}"


def alike(mine: bytes, rows: Sequence[bytes]) -> bool:
    pending = mine[PENDING]
    return all(row[PENDING] == pending for row in rows)


def disagreement(found: Sequence[Announcement]) -> str:
    groups: dict[str, list[int]] = {}
    for rank, announced in enumerate(found):
        groups.setdefault(str(announced), []).append(rank)
    sides = [f"rank{'s' if len(r) > 1 else ''} {', '.join(map(str, r))}: {what}" for what, r in groups.items()]
    # Different calls may have the same text: it is truncated, and without types if a call has several arrays.
    if len(sides) == 1:
        sides.append("with different arrays")
    return (
        f"the processes make different calls: {'; '.join(sides)}. All must take the same steps and make the same calls"
    )


class Digests:
    def __init__(self) -> None:
        self._digests: dict[Any, tuple[int, int, bytes]] = {}

    def of(self, call: str, arrays: Sequence[np.ndarray], operation: str = "") -> tuple[int, int, bytes]:
        """Return two digests and a text for a call.

        The first digest is of the name, the second also of the operation and the array types.
        """
        key = (call, operation, *((a.dtype, a.shape) for a in arrays))
        found = self._digests.get(key)
        if found is None:
            if len(self._digests) >= _KEPT:
                self._digests.clear()
            suffix = (operation,) if operation else ()
            what = " ".join((call, *(f"{a.dtype}{list(a.shape)}" for a in arrays), *suffix))
            text = what if len(arrays) <= 1 else " ".join((call, *suffix))
            found = self._digests[key] = digest_of(call), digest_of(what), text.encode()[:TEXT]
        return found


def digest_of_all(calls: Sequence[tuple[int, int]]) -> int:
    """Return a digest of calls that does not depend on their order. calls: digest and priority of each."""
    if len(calls) == 1 and not calls[0][1]:
        return calls[0][0]
    return unsigned(sum(digest if priority == 0 else _mixed(digest, priority) for digest, priority in calls))


def digest_of(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") | 1


def _mixed(digest: int, priority: int) -> int:
    """Mix digest and priority into 64 bits (finaliser of SplitMix64, Steele et al., OOPSLA 2014)."""
    bits = (digest ^ unsigned(priority) * 0x9E3779B97F4A7C15) & BITS
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & BITS
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & BITS
    return bits ^ bits >> 31


BITS = (1 << 64) - 1


def unsigned(number: int) -> int:
    return number & BITS


def signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits
