"""Heartbeats between hosts: leaders send each other the heartbeats of their hosts.

Times are sent as ages, because the clocks of hosts differ. At most one message to each host is under way, so that a
stopped host does not fill the memory of the others.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.dist.hosts.hosts import Host
from graphkit.dist.hosts.watch import ENDED, SLOT, Board

# Seconds to wait for the last heartbeats of other hosts, and the pause between two checks.
_LAST, _PAUSE = 5.0, 1e-3
_TIMES = ("alive", "progress", "waits")


class _Peer:
    """Another host: a buffer for its next message, and the message that is being sent to it."""

    def __init__(self, leaders: Any, index: int, host: Host):
        self.index, self.slots = index, list(host.ranks)
        self._leaders = leaders
        self._arriving = np.empty(len(self.slots), SLOT)
        self._sent: Any = None
        self._await()

    def _await(self) -> None:
        self._arrival = self._leaders.Irecv(self._arriving.view(np.uint8), source=self.index)

    def send(self, message: np.ndarray) -> bool:
        """Send a message unless the previous one is still under way. Return whether it was sent."""
        if self._sent is not None and not self._sent.Test():
            return False
        self._sent = self._leaders.Isend(message.view(np.uint8), dest=self.index)
        return True

    def receive(self) -> np.ndarray | None:
        """Return the latest message; None if there is no new one."""
        found = None
        while self._arrival is not None and self._arrival.Test():
            found = self._arriving.copy()
            if int(found[0]["there"]) == ENDED:  # the first slot is that of the leader
                self._arrival = None
            else:
                self._await()
        return found

    def is_done(self) -> bool:
        """Return whether no message is under way."""
        return self._arrival is None and (self._sent is None or bool(self._sent.Test()))

    def cancel(self) -> None:
        """Cancel the receipt of a message."""
        if self._arrival is not None:
            self._arrival.Cancel()
            self._arrival.Wait()
            self._arrival = None


class Relay:
    """Exchanges heartbeats for the leader of a host: sends those of its board, and writes those of other hosts to it.

    It calls MPI beside other threads, so it needs MPI_THREAD_MULTIPLE. Only one thread at a time may call it.

    Args:
        leaders: Communicator of all leaders, in the order of hosts, that nothing else uses.
        board: The board of this host, with a slot for each rank.
        hosts: All hosts.
    """

    def __init__(self, leaders: Any, board: Board, hosts: Sequence[Host]):
        self._board = board
        self._slots = list(hosts[leaders.rank].ranks)
        self._peers = [_Peer(leaders, index, host) for index, host in enumerate(hosts) if index != leaders.rank]
        self._gone: list[_Peer] = []  # kept, because MPI may still write to their buffers

    def forget(self, host: int) -> None:
        """Stop exchanging heartbeats with a host whose leader is lost."""
        gone = [peer for peer in self._peers if peer.index == host]
        self._gone += gone
        self._peers = [peer for peer in self._peers if peer not in gone]

    def exchange(self) -> None:
        """Send heartbeats to hosts that have received the previous ones, and read those that have arrived."""
        message = self._said()
        for peer in self._peers:
            peer.send(message)
        self._read()

    def close(self) -> None:
        """Send the last heartbeats of this host, and wait for those of other hosts, which end at the same time."""
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
