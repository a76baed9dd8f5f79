"""Whether the GPUs of all ranks sum gradients directly. All ranks decide alike, from what each rank reports."""

from __future__ import annotations

import importlib
import json
import platform
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from graphkit import config
from graphkit.dist.communicator import Communicator
from graphkit.dist.sums.cards import CardSums
from graphkit.dist.sums.fingerprint import Fingerprint
from graphkit.errors import GraphkitError, MissingDependency, RuntimeFailure
from graphkit.executor.devices.cuda.libraries import nccl
from graphkit.executor.devices.loading import DeviceName

# Bytes of the report of a rank, and characters of a reason in it.
_TOLD, _REASON = 1024, 300
# Bytes of NCCL's identifier of a group.
_UNIQUE = 128
# Seconds that a group may take to form, at least, and the pause between two checks.
_JOINING, _LOOK = 30.0, 0.05


class _Said(NamedTuple):
    """What a rank reports about its GPU.

    card: its GPU; "" without one. why: why it takes no part; "" if it does. chosen: whether the user chose that. group:
    number of the group that the GPU already belongs to; 0 for none.
    """

    card: str
    why: str
    chosen: bool = False
    group: int = 0


class Cards:
    """Forms groups of the GPUs of all ranks, one for each choice of GPUs."""

    def __init__(self, communicator: Communicator, fingerprint: Fingerprint | None = None):
        self._communicator = communicator
        self._fingerprint = fingerprint
        self._made: dict[int, tuple[int, CardSums]] = {}
        self._count = 0

    def sums(self, device: str, staged: str = "") -> tuple[CardSums | None, str]:
        """Return the collectives between GPUs, or None and the reason; "" if no rank has a GPU. Every rank must call
        it.

        If one rank cannot take part, no rank does, and rank 0 warns.

        Args:
            device: Device of this rank's program.
            staged: Why this rank takes no part, if the user chose that.

        Raises:
            RuntimeFailure: A rank is lost. Also raises the errors of `load_device`.
        """
        mine, card = (_Said("", staged, chosen=True), None) if staged else self._own(device)
        said = self._told(mine)
        if not any(s.card for s in said):
            return None, staged
        why = _objection(said)
        if not why:
            assert card is not None, "no rank has a reason against it"
            number = DeviceName.of(device).number
            if {s.group for s in said} == {mine.group} and mine.group:
                return self._made[number][1], ""
            sums, why = self._joined(card)
            if sums is not None:
                self._count += 1
                self._made[number] = self._count, sums
                return sums, ""
        if self._communicator.rank == 0 and any(s.card and not s.chosen for s in said):
            text = f"gradients on GPUs are all-reduced through host memory: {why}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return None, why

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank contributed to sums."""
        return sum(sums.sent_bytes for _, sums in self._made.values())

    def _own(self, device: str) -> tuple[_Said, Any]:
        kind, number = DeviceName.of(device)
        if kind != "cuda":
            return _Said("", "computes on the CPU"), None
        card = importlib.import_module("graphkit.executor.devices.cuda").device(number)
        group, sums = self._made.get(number, (0, None))
        place = f"{_machine()} {card.place}"
        if not config.NCCL.get():
            return _Said(place, "has GRAPHKIT_NCCL=0", chosen=True), card
        try:
            nccl.version()
        except MissingDependency as error:
            return _Said(place, f"has no NCCL ({error})"), card
        return _Said(place, "", group=0 if sums is None or sums.broken else group), card

    def _told(self, mine: _Said) -> list[_Said]:
        """Return the reports of all ranks, by rank."""
        why = mine.why[:_REASON].encode("ascii", "replace").decode()
        text = json.dumps(mine._replace(why=why)).encode().ljust(_TOLD)
        array = np.frombuffer(text, np.uint8)
        action = partial(self._communicator.allgather, array)
        return [_Said(*json.loads(row.tobytes())) for row in self._communicator.perform("cards", [array], action)]

    def _joined(self, card: Any) -> tuple[CardSums | None, str]:
        """Return a new group, or the reason why there is none. The result is the same on all ranks."""
        group, why = None, ""
        first, mine = self._communicator.rank == 0, np.zeros(_UNIQUE, np.uint8)
        if first:
            try:
                mine = np.frombuffer(nccl.unique_id(), np.uint8)
            except GraphkitError as error:
                why = f"cannot begin ({error})"
        broadcast = partial(self._communicator.broadcast, mine, 0)
        unique = self._communicator.perform("group of GPUs", [mine], broadcast)
        if unique.any():
            group, why = self._waited_for(card, unique.tobytes())
        why = _objection(self._told(_Said("", why)))
        if group is None:
            return None, why
        if why:
            group.abort()
            return None, why
        return CardSums(self._communicator, card, group, self._fingerprint), ""

    def _waited_for(self, card: Any, unique: bytes) -> tuple[Any, str]:
        """Return the group, or the reason why there is none. A thread forms it, because that may block forever."""
        made: list[Any] = []
        failed: list[str] = []

        def make() -> None:
            try:
                made.append(card.group(unique, self._communicator.rank, self._communicator.size))
            except GraphkitError as error:
                failed.append(f"cannot join ({error})")

        thread = threading.Thread(target=make, name="graphkit-cards", daemon=True)
        thread.start()
        longest = max(_JOINING, config.RANK_TIMEOUT.get())
        end = time.monotonic() + longest
        with self._communicator.waiting(True), self._communicator.working():
            while thread.is_alive() and time.monotonic() < end:
                thread.join(_LOOK)
                if (reason := self._communicator.lost()) is not None:
                    self._communicator.fail(reason)
                    raise RuntimeFailure(reason)
        if made:
            return made[0], ""
        return None, failed[0] if failed else f"has waited for the GPUs of the others for {longest:.0f} s"


def outlook(processes: int) -> str:
    """Return how this number of processes would sum gradients of the GPUs here: "nccl", or "staged" and the reason."""
    cards = importlib.import_module("graphkit.executor.devices.cuda").cards()
    if not config.NCCL.get():
        return "staged: GRAPHKIT_NCCL=0"
    if cards < processes:
        return f"staged: this machine has {'one GPU' if cards == 1 else f'{cards} GPUs'}"
    try:
        return f"nccl {nccl.version()}"
    except MissingDependency as error:
        return f"staged: {error}"


def _objection(said: Sequence[_Said]) -> str:
    """Return why the GPUs cannot sum directly: a rank's reason, or that several ranks share one GPU; "" if they can."""
    for rank, one in enumerate(said):
        if one.why:
            return f"rank {rank} {one.why}"
    ranks = defaultdict(list)
    for rank, one in enumerate(said):
        if one.card:
            ranks[one.card].append(rank)
    for card, several in ranks.items():
        if len(several) > 1:
            return f"ranks {', '.join(map(str, several))} share one GPU, {card.rpartition(' ')[2]}"
    return ""


def _machine() -> str:
    """Return a text that is the same for all processes of a machine, also in containers, and differs elsewhere."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else platform.node()
