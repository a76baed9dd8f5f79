"""Heartbeats: processes write their calls and states to shared memory, and check those of others.

The leader of a host also writes the heartbeats of other hosts.

If a process has died, or is stalled while others wait for it, the job ends with an error that names the rank and its
last call. Known long work is marked with `working`, and counts as progress. User code does not, because it may never
return.

If every rank waits without progress until the timeout, the job ends with an error that lists their calls. A rank inside
`working` does not count as waiting: others wait for it without a limit.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import mmap
import os
import signal
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.dist.hosts.groups import Host

# Times are seconds of the host's monotonic clock. `waits`: when the process began to wait, or last made progress while
# it waited; infinity if it does not wait. `departure`: see `HeartbeatMonitor.departures`.
SLOT = np.dtype(
    [
        ("alive", "f8"), ("progress", "f8"), ("waits", "f8"), ("process", "i8"), ("steps", "i8"), ("state", "i8"),
        ("departure", "i8"), ("call", "S160"),
    ]
)  # fmt: skip
_SLOT = struct.Struct("=dddqqqq160s")
_NOT_STARTED, _RUNNING, ENDED = 0, 1, 2

_IN = "in "

_HEARTBEATS, _LONGEST = 8, 1.0
# After the end of the job, a process that misses this many heartbeats counts as stopped.
_LATE = 4


class HeartbeatBoard:
    """Shared memory with a slot for each process, and the time of the last heartbeat of each host."""

    def __init__(self, path: str, count: int, hosts: int = 1):
        size = count * SLOT.itemsize
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), size + hosts * 8)
        self.slots = np.frombuffer(self.memory, SLOT, count)
        self.heard = np.frombuffer(self.memory, np.float64, hosts, size)

    @staticmethod
    def create(count: int, hosts: int = 1) -> str:
        """Create the file and return its path. The caller removes it once all processes have mapped it."""
        folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
        descriptor, path = tempfile.mkstemp(prefix="graphkit-", dir=folder)
        slots = np.zeros(count, SLOT)
        slots["waits"] = math.inf
        with os.fdopen(descriptor, "wb") as file:
            file.write(slots.tobytes() + np.full(hosts, time.monotonic()).tobytes())
        return path


class _Wait:
    """A context in which a process waits for others. It may be nested, and entered repeatedly."""

    def __init__(self, monitor: HeartbeatMonitor, for_progress: bool):
        self._monitor, self._for_progress = monitor, for_progress

    def __enter__(self) -> None:
        monitor = self._monitor
        monitor._outer.append((monitor._for_progress, monitor._waits_since, monitor._wait_number))
        monitor._for_progress, monitor._waits_since = self._for_progress, time.monotonic()
        monitor._wait_number = next(monitor._numbers)

    def __exit__(self, *_: object) -> None:
        monitor = self._monitor
        monitor._for_progress, monitor._waits_since, monitor._wait_number = monitor._outer.pop()


class HeartbeatMonitor:
    """Writes the heartbeats of this process, and checks those of others.

    Args:
        timeout: Seconds without a heartbeat after which a process counts as lost.
        hosts: The hosts of the ranks, in the order of `HeartbeatBoard.heard` (default: one host).
        relay: Exchanges heartbeats with other hosts; for leaders only.
        complete: Whether the board has slots for all processes of the job.
    """

    def __init__(
        self, board: HeartbeatBoard, ranks: Sequence[int], mine: int, timeout: float,
        hosts: Sequence[Host] = (), here: int = 0, relay: HeartbeatRelay | None = None, complete: bool = True,
    ):  # fmt: skip
        self._board = board
        self._ranks = tuple(ranks)
        self._order = np.argsort(self._ranks)
        self._hosts = tuple(hosts) or (Host(socket.gethostname(), self._ranks),)
        self._here = here
        self._relay = relay
        self._complete = complete
        self._excluded: set[int] = set()
        self._mine = board.slots[mine : mine + 1]
        self.timeout = timeout
        # Waits, long work and user code are numbered in the order in which they begin. `_wait_number` is the current
        # wait, and `_working` contains the current long work.
        self._numbers = itertools.count()
        self._wait_number = -1
        self._working: list[int] = []
        self._running: list[int] = []
        self._progressed = time.monotonic()
        self._waits_since: float | None = None
        self._for_progress = False
        self._outer: list[tuple[bool, float | None, int]] = []
        # Contexts in which this process waits for others: see `Communicator.waiting`.
        self.for_progress = _Wait(self, for_progress=True)
        self.for_heartbeats = _Wait(self, for_progress=False)
        self._ended = threading.Event()
        self._at, self._process = mine * SLOT.itemsize, os.getpid()
        self._departure = 0
        self.doing(b"", 0)
        self._thread = threading.Thread(target=self._run, name="graphkit-heartbeats", daemon=True)
        self._thread.start()

    # --- this process ---------------------------------------------------------------------------------

    def doing(self, call: bytes, steps: int) -> None:
        now = self._progressed = time.monotonic()
        _SLOT.pack_into(
            self._board.memory, self._at, now, now, math.inf, self._process, steps, _RUNNING, self._departure, call
        )

    def depart(self, number: int) -> None:
        """Send a number with the heartbeats: whether this process can stop, and when."""
        self._departure = number
        self._mine["departure"] = number

    def departures(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the last number that each rank gave to `depart` (0 before), and its number of begun steps.

        None unless all processes of the job are monitored.
        """
        if not self._complete:
            return None
        return self._board.slots["departure"][self._order], self._board.slots["steps"][self._order]

    def made_progress(self) -> None:
        self._progressed = time.monotonic()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        number = next(self._numbers)
        self._working.append(number)
        try:
            yield
        finally:
            self._working.remove(number)
            self._write(progress=True)

    @contextlib.contextmanager
    def running(self, code: str, steps: int) -> Iterator[None]:
        """Context in which user code runs, which does not count as progress.

        Other processes wait for user code only until the timeout, even if `working` encloses this context. If user code
        calls graphkit or enters `working`, that counts as progress.
        """
        number = next(self._numbers)
        self._running.append(number)
        self.doing(f"{_IN}{code}".encode(), steps)
        try:
            yield
        finally:
            self._running.remove(number)
            self.doing(code.encode(), steps)

    @property
    def is_working(self) -> bool:
        """Whether long work runs. While user code runs, only long work that began inside it counts."""
        return max(self._working, default=-1) > max(self._running, default=-1)

    def end(self) -> None:
        """Stop writing heartbeats. The last one says that this process has ended."""
        self._ended.set()
        self._thread.join()
        self._mine["state"] = ENDED
        if self._relay is not None:
            self._relay.close()

    # --- other processes ------------------------------------------------------------------------------

    def exclude(self, rank: int) -> None:
        """Continue without a lost process, which does not count as lost again.

        If the process was the leader of another host, the processes of that host are no longer checked.
        """
        self._excluded.add(rank)
        for index, host in enumerate(self._hosts):
            if self._relay is not None and host.ranks[0] == rank:
                self._relay.forget(index)

    def end_silent(self) -> None:
        """Kill processes of this host that send no heartbeat after the job has ended."""
        late = _LATE * self._interval
        now = time.monotonic()
        for rank in self._hosts[self._here].ranks:
            slot = self._board.slots[self._ranks.index(rank)]
            silent = int(slot["state"]) == _RUNNING and now - float(slot["alive"]) > late
            if silent and rank not in self._excluded and int(slot["process"]) != self._process:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(slot["process"]), signal.SIGKILL)

    def process_of(self, rank: int) -> int | None:
        slot = self._ranks.index(rank) if rank in self._ranks else None
        return None if slot is None else int(self._board.slots[slot]["process"]) or None

    def lost(self) -> str | None:
        """Return why a process counts as lost, or None.

        The result is None until this process has waited for longer than the timeout.
        """
        since = self._waits_since
        now = time.monotonic()
        if since is None or now - since <= self.timeout:
            return None
        slots = dict(zip(self._ranks, self._board.slots.copy(), strict=True))
        here = self._hosts[self._here]
        found = [self._loss_of(rank, slots[rank], here, now) for rank in here.ranks]
        # Only the leader of this host hears other hosts, and writes their slots. So the silence of another host is
        # measured up to the last heartbeat of this leader. If the leader is silent, other hosts are not checked.
        latest = float(slots[here.ranks[0]]["alive"])
        if now - latest <= self.timeout:
            for index, host in enumerate(self._hosts):
                if index == self._here or host.ranks[0] in self._excluded:
                    continue
                heard = float(self._board.heard[index])
                if latest - heard > self.timeout:
                    found.append(_silent_host(host, slots, now - heard))
                else:  # the state after `heard` is unknown
                    found += [self._loss_of(rank, slots[rank], host, heard) for rank in host.ranks]
        return "; ".join(reason for reason in found if reason is not None) or self._all_wait(slots, now)

    def _all_wait(self, slots: Mapping[int, np.void], now: float) -> str | None:
        """If all ranks have waited without progress for longer than the timeout, return a text with their calls, else
        None.
        """
        if not self._complete:
            return None
        texts = []
        for index, host in enumerate(self._hosts):
            if index != self._here and host.ranks[0] in self._excluded:
                return None  # heartbeats of this host no longer arrive
            known = now if index == self._here else float(self._board.heard[index])
            for rank in host.ranks:
                slot = slots[rank]
                if rank in self._excluded:
                    continue
                seconds = known - float(slot["waits"])
                if int(slot["state"]) != _RUNNING or not seconds > self.timeout:
                    return None
                call = slot["call"].decode(errors="replace")
                texts.append(
                    f"rank {rank} on {host.name} (process {int(slot['process'])}) for {seconds:.0f} s in step "
                    f"{int(slot['steps'])}, at {call}"
                )
        return f"all ranks wait for each other: {'; '.join(texts)}"

    def _loss_of(self, rank: int, slot: np.void, host: Host, now: float) -> str | None:
        if int(slot["state"]) != _RUNNING or rank in self._excluded:
            return None
        silent, still = now - float(slot["alive"]), now - float(slot["progress"])
        if silent > self.timeout:
            what = f"has sent no heartbeat for {silent:.0f} s"
        elif self._for_progress and still > self.timeout:
            what = f"has made no progress for {still:.0f} s"
        else:
            return None
        return f"rank {rank} on {host.name} (process {int(slot['process'])}) {what}{_last_seen(slot, 'it')}"

    # --- the thread -----------------------------------------------------------------------------------

    @property
    def _interval(self) -> float:
        return min(_LONGEST, self.timeout / _HEARTBEATS)

    def _write(self, progress: bool) -> None:
        now = time.monotonic()
        self._mine["alive"] = now
        since = self._waits_since
        # During long work, only waits that began inside it count.
        waits = since is not None and max(self._working, default=-1) < self._wait_number
        self._mine["waits"] = max(since, self._progressed) if since is not None and waits else math.inf
        if progress:
            self._mine["progress"] = now

    def _run(self) -> None:
        while not self._ended.wait(self._interval):
            if self._relay is not None:
                # `lost` compares other hosts' heartbeats with that of this process. So read theirs first: otherwise,
                # they would look older than they are.
                self._relay.read()
            # A process that waits is not stalled itself.
            self._write(progress=self.is_working or self._waits_since is not None)
            if self._relay is not None:
                self._relay.send()


def _silent_host(host: Host, slots: Mapping[int, np.void], seconds: float) -> str | None:
    of_host = [slots[rank] for rank in host.ranks]
    if all(int(slot["state"]) == ENDED for slot in of_host):
        return None
    ranks = f"rank{'s' if len(host.ranks) > 1 else ''} {', '.join(map(str, host.ranks))}"
    where = _last_seen(of_host[0], f"rank {host.ranks[0]}")
    return f"host {host.name} ({ranks}) has sent no heartbeat for {seconds:.0f} s{where}"


def _last_seen(slot: np.void, name: str) -> str:
    call = slot["call"].decode(errors="replace")
    where = call if call.startswith(_IN) else f"after {call}"
    return f"; {name} was last seen in step {int(slot['steps'])}, {where}" if call else ""


# Seconds to wait for the last heartbeats of other hosts, and the pause between two checks.
_LAST, _PAUSE = 5.0, 1e-3
_TIMES = ("alive", "progress", "waits")


class _Peer:
    """Another host: the buffer for the next message from it, and the message that is being sent to it."""

    def __init__(self, leaders: Any, index: int, host: Host):
        self.index, self.slots = index, list(host.ranks)
        self._leaders = leaders
        self._arriving = np.empty(len(self.slots), SLOT)
        self._sent: Any = None
        self._post_receive()

    def _post_receive(self) -> None:
        self._arrival = self._leaders.Irecv(self._arriving.view(np.uint8), source=self.index)

    def send(self, message: np.ndarray) -> bool:
        """Send a message unless the previous one is under way. Return whether it was sent."""
        if self._sent is not None and not self._sent.Test():
            return False
        self._sent = self._leaders.Isend(message.view(np.uint8), dest=self.index)
        return True

    def receive(self) -> np.ndarray | None:
        found = None
        while self._arrival is not None and self._arrival.Test():
            found = self._arriving.copy()
            if int(found[0]["state"]) == ENDED:  # the first slot is that of the leader
                self._arrival = None
            else:
                self._post_receive()
        return found

    def is_done(self) -> bool:
        return self._arrival is None and (self._sent is None or bool(self._sent.Test()))

    def cancel(self) -> None:
        if self._arrival is not None:
            self._arrival.Cancel()
            self._arrival.Wait()
            self._arrival = None


class HeartbeatRelay:
    """Exchanges the heartbeats of hosts, between their leaders.

    It calls MPI concurrently with other threads, so it needs MPI_THREAD_MULTIPLE. Only one thread at a time may use it.

    Args:
        leaders: Communicator of all leaders, in the order of hosts, which nothing else uses.
    """

    def __init__(self, leaders: Any, board: HeartbeatBoard, hosts: Sequence[Host]):
        self._board = board
        self._slots = list(hosts[leaders.rank].ranks)
        self._peers = [_Peer(leaders, index, host) for index, host in enumerate(hosts) if index != leaders.rank]
        self._forgotten: list[_Peer] = []  # MPI may still write to their buffers

    def forget(self, host: int) -> None:
        gone = [peer for peer in self._peers if peer.index == host]
        self._forgotten += gone
        self._peers = [peer for peer in self._peers if peer not in gone]

    def send(self) -> None:
        """Send heartbeats to hosts that have received the previous ones."""
        message = self._own_slots()
        for peer in self._peers:
            peer.send(message)

    def close(self) -> None:
        """Send the last heartbeats of this host, and wait up to _LAST seconds for those of other hosts.

        All leaders call it when the job ends.
        """
        message, deadline = self._own_slots(), time.monotonic() + _LAST
        reached: set[int] = set()
        while time.monotonic() < deadline:
            reached |= {peer.index for peer in self._peers if peer.index not in reached and peer.send(message)}
            self.read()
            if len(reached) == len(self._peers) and all(peer.is_done() for peer in self._peers):
                break
            time.sleep(_PAUSE)
        for peer in self._peers:
            peer.cancel()

    def _own_slots(self) -> np.ndarray:
        """Return the slots of this host, with ages instead of times: the clocks of hosts differ."""
        rows: np.ndarray = self._board.slots[self._slots]
        now = time.monotonic()
        for name in _TIMES:
            rows[name] = now - rows[name]
        return rows

    def read(self) -> None:
        for peer in self._peers:
            if (rows := peer.receive()) is not None:
                now = time.monotonic()
                for name in _TIMES:
                    rows[name] = now - rows[name]
                self._board.slots[peer.slots] = rows
                self._board.heard[peer.index] = now
