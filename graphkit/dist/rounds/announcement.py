"""What a process tells the others in a round of the channel: where it is, what it waits for, what it has posted.

Arrays of some bytes that are to be summed travel with it: their sum needs no exchange of its own.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

# What a process says that takes part in nothing any more.
ENDED = "ended"

# Steps, calls, digest of all that is posted, how many these are, who waits; what for.
_FORMAT = struct.Struct("<qqQqB95s")
# Where the digest and the number lie in it.
POSTED = slice(16, 32)
# The longest text.
TEXT = 95
# Behind it: so many bytes of arrays that are to be summed.
CARRIED = slice(_FORMAT.size, _FORMAT.size + 64)
# All of it.
LENGTH = CARRIED.stop

# Calls whose digests are kept.
_KEPT = 4096


class Waits(IntEnum):
    """Who waits in a process: nobody, some of the threads that have taken part in anything, or all of these."""

    NOBODY = 0
    SOME = 1
    ALL = 2


class Announcement(NamedTuple):
    """What a process waits for or has posted: in how many steps and calls, and who waits."""

    steps: int
    calls: int
    digest: int
    posted: int
    waits: Waits
    text: bytes

    def pack(self, carried: bytes) -> bytes:
        return _FORMAT.pack(*self) + carried.ljust(CARRIED.stop - CARRIED.start, b"\0")

    @classmethod
    def unpack(cls, data: bytes) -> Announcement:
        steps, calls, digest, posted, waits, text = _FORMAT.unpack_from(data)
        return cls(steps, calls, digest, posted, Waits(waits), text.rstrip(b"\0"))

    def __str__(self) -> str:
        text = self.text.decode(errors="replace")
        if text == ENDED:
            return f"{ENDED} after {self.steps} steps"
        return f"{text} in step {self.steps}" if self.steps else f"{text} as call {self.calls}"


def alike(mine: bytes, rows: Sequence[bytes]) -> bool:
    """Whether all have posted the same, by their announcements."""
    posted = mine[POSTED]
    return all(row[POSTED] == posted for row in rows)


def disagreement(found: Sequence[Announcement]) -> str:
    """What is wrong where processes do not go on together, by rank."""
    groups: dict[str, list[int]] = {}
    for rank, announced in enumerate(found):
        groups.setdefault(str(announced), []).append(rank)
    said = [f"rank{'s' if len(r) > 1 else ''} {', '.join(map(str, r))}: {what}" for what, r in groups.items()]
    if len(said) == 1:  # texts that were cut
        said.append("with different arrays")
    return (
        f"the processes make different calls: {'; '.join(said)}. All must take the same steps and make the same calls"
    )


class Digests:
    """What is said of calls, kept for those that come again."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[int, int, bytes]] = {}

    def of(self, call: str, arrays: Sequence[np.ndarray], operation: str = "") -> tuple[int, int, bytes]:
        """The digests of a call without and with its operation and the types of its arrays, and its text."""
        key = (call, operation, *((a.dtype, a.shape) for a in arrays))
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            done = (operation,) if operation else ()
            what = " ".join((call, *(f"{a.dtype}{list(a.shape)}" for a in arrays), *done))
            text = what if len(arrays) <= 1 else " ".join((call, *done))
            found = self._known[key] = digest_of(call), digest_of(what), text.encode()[:TEXT]
        return found


def digest_of_all(calls: Sequence[tuple[int, int]]) -> int:
    """The digest of calls in any order, each with its own digest and priority."""
    if len(calls) == 1 and not calls[0][1]:
        return calls[0][0]
    return unsigned(sum(digest if priority == 0 else _mixed(digest, priority) for digest, priority in calls))


def digest_of(text: str) -> int:
    """64 bits that are not 0."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") | 1


def _mixed(digest: int, priority: int) -> int:
    """64 bits of a call and its priority (the finaliser of SplitMix64, Steele et al., OOPSLA 2014)."""
    bits = (digest ^ unsigned(priority) * 0x9E3779B97F4A7C15) & BITS
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & BITS
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & BITS
    return bits ^ bits >> 31


BITS = (1 << 64) - 1


def unsigned(number: int) -> int:
    """The 64 bits of an integer with a sign."""
    return number & BITS


def signed(bits: int) -> int:
    """The integer with a sign of 64 bits."""
    return bits - (1 << 64) if bits >> 63 else bits
