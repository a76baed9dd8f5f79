"""Comparison of settings and steps between ranks. If they differ, all ranks raise the same error."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from graphkit.dist.arrays import as_bytes
from graphkit.dist.communicator import Communicator
from graphkit.dist.wire.packing import pack, unpack
from graphkit.errors import RanksDiffer
from graphkit.text import listed

_MOST, _LONGEST = 5, 120
_DIGEST = 32


def compare(communicator: Communicator, what: str, facts: Mapping[str, Any], advice: str = "") -> None:
    """Collective: raise RanksDiffer on all ranks if their `facts` differ.

    Args:
        what: Name of the call, for the comparison and for errors, such as "set_optimizer".
        facts: Settings by name. Values are equal if their texts (`shown`) are.
    """
    if communicator.size == 1:
        return
    mine = {name: shown(value) for name, value in facts.items()}
    data = pack(mine)
    digest = np.frombuffer(hashlib.blake2b(data.tobytes(), digest_size=_DIGEST).digest(), np.uint8)
    digests = communicator.perform(what, [digest], partial(communicator.allgather, digest))
    if (digests == digests[0]).all():
        return
    size = np.array([data.nbytes], np.int64)
    sizes = communicator.perform(f"{what}: sizes", [size], partial(communicator.allgather, size)).reshape(-1).tolist()
    parts = communicator.perform(f"{what}: details", (), partial(communicator.allgather_parts, data, sizes))
    message = _message(what, [unpack(part)[0] for part in parts])
    raise RanksDiffer(f"{message}. {advice}" if advice else message)


def _message(what: str, facts: Sequence[Mapping[str, str]]) -> str:
    """Return an error text with the values and ranks of each setting that differs. facts: settings by rank."""
    names = list(dict.fromkeys(name for each in facts for name in each))
    differences = []
    for name in names:
        ranks: dict[str, list[int]] = {}
        for rank, each in enumerate(facts):
            ranks.setdefault(each.get(name, "none"), []).append(rank)
        if len(ranks) > 1:
            (value, first), *others = ranks.items()
            sides = [
                f"{_ranks(first)} {name} {_short(value)}",
                *(f"{_ranks(found)} {_short(v)}" for v, found in others),
            ]
            differences.append(", ".join(sides))
    more = f" and {len(differences) - _MOST} more" if len(differences) > _MOST else ""
    advice = "Give every rank the same settings. If you change one, change it on all ranks"
    return f"the ranks differ in {what}: {'; '.join(differences[:_MOST])}{more}. {advice}"


def _short(value: str) -> str:
    if len(value) <= _LONGEST:
        return value
    return f"{value[:_LONGEST]}... (checksum {zlib.crc32(value.encode()):08x})"


def _ranks(found: Sequence[int]) -> str:
    several = len(found) > 1
    return f"rank{'s' if several else ''} {listed(found, len(found), 8)} {'have' if several else 'has'}"


def shown(value: Any) -> str:
    """Return a setting as text for a message. Equal settings have equal texts."""
    match value:
        case None:
            return "none"
        case str():
            return value
        case {"type": "constant", "rate": rate}:
            return shown(rate)
        case {"type": kind}:
            options = ", ".join(f"{name}={shown(each)}" for name, each in _sorted(value) if name != "type")
            return f"{kind}({options})"
        case Mapping():
            return ", ".join(f"{name} {shown(each)}" for name, each in _sorted(value)) or "none"
        case list() | tuple():
            return ", ".join(map(shown, value)) or "none"
    return repr(value)


def _sorted(options: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    # Ranks may build equal mappings in different orders.
    return sorted(options.items(), key=lambda item: str(item[0]))


def arrays_facts(arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    return {name: f"{a.dtype}{list(a.shape)} (checksum {checksum(a):08x})" for name, a in sorted(arrays.items())}


def checksum(array: np.ndarray) -> int:
    if array.dtype.kind in "OT":
        return zlib.crc32(repr(array.tolist()).encode())
    return zlib.crc32(as_bytes(array).data)


# A fingerprint is a checksum of a training step, an integer in [1, LIMIT). Sums of its square over 8192 ranks are exact
# in float64.
LIMIT = 1 << 20


def powers(number: int) -> list[int]:
    """Return a number and its square, for sums over the ranks (see `are_alike`)."""
    return [number, number * number]


def are_alike(sums: np.ndarray, ranks: int) -> bool:
    """Whether all ranks have the same number, and it is not 0.

    (sum of x)^2 = n * (sum of x^2) only if all n numbers are equal (Cauchy-Schwarz inequality).
    """
    first, second = map(int, sums.tolist())
    return first > 0 and first * first == ranks * second


class Fingerprint:
    """The fingerprint of this rank's training step, and whether ranks want to end. Each step sends both."""

    def __init__(self) -> None:
        self.number = 0
        self.leaving = False
        self.leaving_ranks = 0

    def check(self, sums: np.ndarray, ranks: int) -> None:
        """Raise RanksDiffer, on all ranks, if ranks have different numbers. sums: of their `powers`."""
        if not are_alike(sums, ranks) and sums.any():
            raise RanksDiffer(
                "the ranks take steps with different settings, or from different states: give every rank the same "
                "settings, and the same checkpoint or initial weights"
            )
