"""Signs of life between hosts: leaders send each other what their hosts' boards say.

Times travel as ages: the clocks of hosts differ. At most one message to each host is on its way, so that one that has
stopped does not fill the memory of the others.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.dist.hosts.hosts import Host
from graphkit.dist.hosts.watch import ENDED, SLOT, Board

# How long the last signs of other hosts are awaited, and the pause between two looks for them, in seconds.
_LAST, _PAUSE = 5.0, 1e-3
_TIMES = ("alive", "progress", "waits")


class _Peer:
    """Another host: where its message arrives, and this host's that is on its way to it."""

    def __init__(self, leaders: Any, index: int, host: Host):
        self.index, self.slots = index, list(host.ranks)
        self._leaders = leaders
        self._arriving = np.empty(len(self.slots), SLOT)
        self._sent: Any = None
        self._await()

    def _await(self) -> None:
        self._arrival = self._leaders.Irecv(self._arriving.view(np.uint8), source=self.index)

    def send(self, message: np.ndarray) -> bool:
        """Whether the message is on its way; not while the one before is."""
        if self._sent is not None and not self._sent.Test():
            return False
        self._sent = self._leaders.Isend(message.view(np.uint8), dest=self.index)
        return True

    def receive(self) -> np.ndarray | None:
        """The latest message that has come."""
        found = None
        while self._arrival is not None and self._arrival.Test():
            found = self._arriving.copy()
            if int(found[0]["there"]) == ENDED:  # the leader's own sign
                self._arrival = None
            else:
                self._await()
        return found

    def is_done(self) -> bool:
        """Whether nothing is on its way any more."""
        return self._arrival is None and (self._sent is None or bool(self._sent.Test()))

    def cancel(self) -> None:
        if self._arrival is not None:
            self._arrival.Cancel()
            self._arrival.Wait()
            self._arrival = None


class Relay:
    """Of a leader: sends what its host's part of the board says, and writes there what the other hosts say.

    leaders: a communicator of all leaders, by host, that nothing else uses. board: slots by rank. One thread at a time
    calls it, beside others that are in MPI: it needs MPI_THREAD_MULTIPLE.
    """

    def __init__(self, leaders: Any, board: Board, hosts: Sequence[Host]):
        self._board = board
        self._slots = list(hosts[leaders.rank].ranks)
        self._peers = [_Peer(leaders, index, host) for index, host in enumerate(hosts) if index != leaders.rank]
        self._gone: list[_Peer] = []  # MPI may go on to write to what they receive

    def forget(self, host: int) -> None:
        """Of a leader that is lost; what is on its way to or from it stays so."""
        gone = [peer for peer in self._peers if peer.index == host]
        self._gone += gone
        self._peers = [peer for peer in self._peers if peer not in gone]

    def exchange(self) -> None:
        """Send this host's signs to those who have received the ones before, and read what has come."""
        message = self._said()
        for peer in self._peers:
            peer.send(message)
        self._read()

    def close(self) -> None:
        """Send this host's last signs, and wait for those of the others, which end together with it."""
        message, deadline = self._said(), time.monotonic() + _LAST
        told: set[int] = set()
        while time.monotonic() < deadline:
            told |= {peer.index for peer in self._peers if peer.index not in told and peer.send(message)}
            self._read()
            if len(told) == len(self._peers) and all(peer.is_done() for peer in self._peers):
                break
            time.sleep(_PAUSE)
        for peer in self._peers:
            peer.cancel()

    def _said(self) -> np.ndarray:
        rows: np.ndarray = self._board.slots[self._slots]
        now = time.monotonic()
        for name in _TIMES:
            rows[name] = now - rows[name]
        return rows

    def _read(self) -> None:
        for peer in self._peers:
            if (rows := peer.receive()) is not None:
                now = time.monotonic()
                for name in _TIMES:
                    rows[name] = now - rows[name]
                self._board.slots[peer.slots] = rows
                self._board.heard[peer.index] = now
