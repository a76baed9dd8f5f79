"""Heartbeats: each process writes its current call and its state to shared memory, and checks those of other processes.

The leader of a host also writes the heartbeats of other hosts to this memory.

A process that is stopped or has died sends no heartbeat. A process that is stalled makes no progress while others
wait for it. In both cases, the job ends with an error that names the rank and its last call. Known long work (compiling
a step, an evaluation, a checkpoint) is marked with `working`, and counts as progress. User code, such as a callback,
does not count, because it may never return.

If every rank waits and none makes progress within the timeout, the job ends with an error that lists the call of each
rank. A rank that computes or saves inside `working` does not wait, so other ranks wait for it without a limit.
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

# Times are seconds of the host's monotonic clock, which its processes share. `waits`: when the process
# began to wait, or last made progress while it waited; infinity if it does not wait. `departure`: see
# `HeartbeatMonitor.departures`.
SLOT = np.dtype(
    [
        ("alive", "f8"), ("progress", "f8"), ("waits", "f8"), ("process", "i8"), ("steps", "i8"), ("state", "i8"),
        ("departure", "i8"), ("call", "S160"),
    ]
)  # fmt: skip
# The same layout, to write a whole slot in one call.
_SLOT = struct.Struct("=dddqqqq160s")
# Values of `state`: the process has not started, runs, or has ended.
_NOT_STARTED, _RUNNING, ENDED = 0, 1, 2

# Prefix of a call while user code runs.
_IN = "in "

# Heartbeats per timeout, and the largest interval in seconds.
_HEARTBEATS, _LONGEST = 8, 1.0
# After the job has ended, a process that misses this many heartbeats counts as stopped.
_LATE = 4


class HeartbeatBoard:
    """Shared memory with a slot for each process, and with the time of the last heartbeat of each host.

    All processes of a host map the same file.
    """

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
        board: The shared memory.
        ranks: The rank of each slot.
        mine: Slot of this process.
        timeout: Seconds without a heartbeat after which a process counts as lost.
        hosts: The hosts of the ranks, in the order of `HeartbeatBoard.heard`; default: one host.
        here: Index of this host.
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
        # Waits, long work and calls of user code are numbered in the order in which they begin. `_wait_number` is the
        # number of the current wait, `_working` contains the numbers of current long work.
        self._numbers = itertools.count()
        self._wait_number = -1
        self._working: list[int] = []
        # The numbers of the calls of user code that are running.
        self._running: list[int] = []
        self._progressed = time.monotonic()
        self._waits_since: float | None = None
        self._for_progress = False  # whether a process without progress counts as lost
        self._outer: list[tuple[bool, float | None, int]] = []
        # Contexts in which this process waits for others. A process without heartbeats then counts as lost. In
        # `for_progress`, a process without progress counts as lost, too.
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
        """Report progress: this process has reached this call."""
        now = self._progressed = time.monotonic()
        _SLOT.pack_into(
            self._board.memory, self._at, now, now, math.inf, self._process, steps, _RUNNING, self._departure, call
        )

    def depart(self, number: int) -> None:
        """Send a number with the heartbeats: whether this process can stop, and when. Callers define the numbers."""
        self._departure = number
        self._mine["departure"] = number

    def departures(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the number that each rank gave to `depart` (0 before), and the number of steps that it has begun.

        Both come from the last heartbeat of each rank. None if only some of the processes of the job are monitored.
        """
        if not self._complete:
            return None
        return self._board.slots["departure"][self._order], self._board.slots["steps"][self._order]

    def made_progress(self) -> None:
        """Report that an operation that this process waits for has made progress."""
        self._progressed = time.monotonic()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Context of long work, which counts as progress."""
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

        Others wait for the code only until the timeout, even inside `working`. If the code calls graphkit, or enters
        `working`, this counts as progress again.
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
        """Whether long work runs. If user code runs, work that began before the user code does not count."""
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
        """Continue without a lost process. It does not count as lost again.

        If it was the leader of another host, the processes of that host are no longer checked.
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
        """Return the process ID of a rank; None if it is not monitored or has sent no heartbeat yet."""
        slot = self._ranks.index(rank) if rank in self._ranks else None
        return None if slot is None else int(self._board.slots[slot]["process"]) or None

    def lost(self) -> str | None:
        """Return why a process counts as lost; None if no process does.

        It is always None until this process has waited for longer than the timeout.
        """
        since = self._waits_since
        now = time.monotonic()
        if since is None or now - since <= self.timeout:
            return None
        slots = dict(zip(self._ranks, self._board.slots.copy(), strict=True))
        here = self._hosts[self._here]
        found = [self._loss_of(rank, slots[rank], here, now) for rank in here.ranks]
        # The leader of this host writes the slots of other hosts. So their silence is measured up to the last heartbeat
        # of the leader, and other hosts are not checked if the leader itself is silent.
        latest = float(slots[here.ranks[0]]["alive"])
        if now - latest <= self.timeout:
            for index, host in enumerate(self._hosts):
                if index == self._here or host.ranks[0] in self._excluded:
                    continue
                heard = float(self._board.heard[index])
                if latest - heard > self.timeout:
                    found.append(_silent_host(host, slots, now - heard))
                else:  # check the ranks at time `heard`: their later state is unknown
                    found += [self._loss_of(rank, slots[rank], host, heard) for rank in host.ranks]
        return "; ".join(reason for reason in found if reason is not None) or self._all_wait(slots, now)

    def _all_wait(self, slots: Mapping[int, np.void], now: float) -> str | None:
        """If all ranks have waited without progress, each longer than the timeout, return a text with their calls.

        Otherwise, return None.

        For ranks of other hosts, it uses the last heartbeats.
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
        """Seconds between two heartbeats."""
        return min(_LONGEST, self.timeout / _HEARTBEATS)

    def _write(self, progress: bool) -> None:
        now = time.monotonic()
        self._mine["alive"] = now
        since = self._waits_since
        # During long work, a wait counts only if it began inside the work.
        waits = since is not None and max(self._working, default=-1) < self._wait_number
        self._mine["waits"] = max(since, self._progressed) if since is not None and waits else math.inf
        if progress:
            self._mine["progress"] = now

    def _run(self) -> None:
        while not self._ended.wait(self._interval):
            if self._relay is not None:
                # Read the heartbeats of other hosts before this process writes its own: `lost` compares their times.
                self._relay.read()
            # A process that waits is not stalled itself, so its heartbeats report progress.
            self._write(progress=self.is_working or self._waits_since is not None)
            if self._relay is not None:
                self._relay.send()


def _silent_host(host: Host, slots: Mapping[int, np.void], seconds: float) -> str | None:
    """Return an error text that says that a host sends no heartbeats. None if its processes have ended."""
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
    """Another host: a buffer for its next message, and the message that is being sent to it."""

    def __init__(self, leaders: Any, index: int, host: Host):
        self.index, self.slots = index, list(host.ranks)
        self._leaders = leaders
        self._arriving = np.empty(len(self.slots), SLOT)
        self._sent: Any = None
        self._post_receive()

    def _post_receive(self) -> None:
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
            if int(found[0]["state"]) == ENDED:  # the first slot is that of the leader
                self._arrival = None
            else:
                self._post_receive()
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


class HeartbeatRelay:
    """Exchanges the heartbeats of hosts. Only the leader of a host has one.

    It sends the slots of this host to the other leaders, and writes the slots that it receives to the board. It calls
    MPI concurrently with other threads, so it needs MPI_THREAD_MULTIPLE. Only one thread at a time may use it.

    Args:
        leaders: Communicator of all leaders, in the order of hosts. Nothing else may use it.
        board: The board of this host, with a slot for each rank.
        hosts: All hosts.
    """

    def __init__(self, leaders: Any, board: HeartbeatBoard, hosts: Sequence[Host]):
        self._board = board
        self._slots = list(hosts[leaders.rank].ranks)
        self._peers = [_Peer(leaders, index, host) for index, host in enumerate(hosts) if index != leaders.rank]
        self._forgotten: list[_Peer] = []  # kept, because MPI may still write to their buffers

    def forget(self, host: int) -> None:
        """Stop exchanging heartbeats with a host whose leader is lost."""
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

        The leaders of all hosts call it when the job ends.
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
        """Write the heartbeats that have arrived to the board."""
        for peer in self._peers:
            if (rows := peer.receive()) is not None:
                now = time.monotonic()
                for name in _TIMES:
                    rows[name] = now - rows[name]
                self._board.slots[peer.slots] = rows
                self._board.heard[peer.index] = now
