"""Replication of parameters: each part is on two servers, and survives the loss of one.

Here, a part is everything that one server would store without replication, not a `sharding.Part`. The leader of a part
and one follower apply the same messages in the same order: chain replication with chains of two (van Renesse and
Schneider, OSDI 2004). The leader answers after the follower has applied everything on which the answer depends. A
worker keeps its messages until then. After a loss, it sends them to the follower, which skips messages that it has
applied.

Servers form a ring. The leader of part p is server p, or the next server that is not lost, and the follower is the next
one after the leader. So the roles depend only on which servers are lost.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from graphkit.dist.servers.server import Server
from graphkit.dist.wire.mesh import Frame, FrameKind
from graphkit.dist.wire.packing import unpack
from graphkit.errors import RuntimeFailure
from graphkit.named_tuples import NamedTuple

# Calls that change nothing. A follower does not run them, and a new leader answers them again.
READS = frozenset({"pull", "pull_rows", "averages", "clock", "states"})

Send: TypeAlias = Callable[[int, Frame], None]


def leader_and_follower(part: int, servers: int, lost: set[int]) -> tuple[int | None, int | None]:
    """Return the leader and the follower of a part, given the lost servers; None if no server is left."""
    ring = [(part + step) % servers for step in range(servers)]
    live = [server for server in ring if server not in lost]
    return (live[0] if live else None), (live[1] if len(live) > 1 else None)


class Answer(NamedTuple):
    worker: int
    number: int
    data: np.ndarray


class _LastRequest(NamedTuple):
    number: int
    keeps: bool


class Replica:
    """A part on one server: its state, and the number of applied messages of each worker.

    The messages of a worker are numbered from 1. `count` is the number of arrived messages, including repeated ones.
    Leader and follower have the same state at the same `count`.
    """

    def __init__(self, workers: int):
        self.server = Server(workers)
        self.count = 0
        self._applied = [0] * workers
        self._last_requests: dict[int, _LastRequest] = {}
        self._kept: dict[int, Answer] = {}

    def has(self, worker: int, number: int) -> bool:
        return number <= self._applied[worker]

    def lead(self, worker: int, number: int, message: np.ndarray) -> tuple[bool, list[Answer]]:
        """Apply a message if it is new. Return whether its worker waits for an answer, and all answers to send."""
        self.count += 1
        fields, arrays = unpack(message)
        asks = bool(fields["asks"])
        if not self.has(worker, number):
            self._begin(worker, number, fields)
            return asks, self._take(worker, fields, arrays)
        if not asks:
            return False, []
        kept = self._kept.get(worker)
        if kept is not None and kept.number == number:
            return True, [kept]
        # No answer is kept: either the request has changed nothing, or its first copy still waits for other workers.
        # Forget the first copy, if any, and run the request again.
        self.server.forget(worker)
        return True, self._take(worker, fields, arrays)

    def follow(self, worker: int, number: int, message: np.ndarray) -> None:
        """Apply a forwarded message, unless it was applied before.

        If the message is a request that changes nothing, apply only clock and keys.
        """
        self.count += 1
        if self.has(worker, number):
            return
        fields, arrays = unpack(message)
        self._begin(worker, number, fields)
        request = self._last_requests.get(worker)
        is_read = request is not None and request.number == number and not request.keeps
        self._take(worker, fields, arrays, is_read)

    def _begin(self, worker: int, number: int, fields: Mapping[str, Any]) -> None:
        if number != self._applied[worker] + 1:
            raise RuntimeFailure(f"message {number} of rank {worker} comes after message {self._applied[worker]}")
        self._applied[worker] = number
        # A worker that sends a new message has received its last answer.
        self._kept.pop(worker, None)
        if fields["asks"]:
            keeps = fields["call"] not in READS or self.server.has_failed(worker)
            self._last_requests[worker] = _LastRequest(number, keeps)

    def _take(
        self, worker: int, fields: Mapping[str, Any], arrays: list[np.ndarray], answered_elsewhere: bool = False
    ) -> list[Answer]:
        found = []
        for to, data in self.server.handle_unpacked(worker, fields, arrays, answered_elsewhere):
            number, keeps = self._last_requests[to]
            found.append(Answer(to, number, data))
            if keeps:
                self._kept[to] = found[-1]
        return found

    def packed(self) -> np.ndarray:
        return np.frombuffer(pickle.dumps(self, protocol=5), np.uint8)

    @staticmethod
    def unpacked(data: np.ndarray) -> Replica:
        found = pickle.loads(data.data)
        assert isinstance(found, Replica), "the leader has packed one"
        return found


class _Unreleased(NamedTuple):
    """Answers and an acknowledgement of message `number`, held until the follower has applied `position` messages."""

    position: int
    worker: int
    number: int | None
    answers: list[Answer]


@dataclass
class _Role:
    replica: Replica
    leads: bool
    follower: int | None = None
    held: deque[_Unreleased] = field(default_factory=deque)


class ReplicatedServer:
    """A server that leads one part and follows another one. After losses, it may lead and follow several parts.

    Args:
        workers: Number of workers; the ranks of servers come after theirs.
        warn: Prints a problem that does not end the job.
    """

    def __init__(self, me: int, servers: int, workers: int, send: Send, warn: Callable[[str], None]):
        self.lost: set[int] = set()
        self._me, self._servers, self._workers = me, servers, workers
        self._send, self._warn = send, warn
        self._roles: dict[int, _Role] = {}
        # Messages to parts that this server does not lead yet: their senders noticed a loss earlier.
        self._early: dict[int, list[tuple[int, Frame]]] = {}
        # For each worker and part, the number of the last message that cannot be lost: the follower has applied it, or
        # the part has no follower. `flush` sends these numbers.
        self._safe: dict[tuple[int, int], int] = {}
        # For each part with newly applied messages: the rank of its leader, to which `flush` sends their number.
        self._advanced: dict[int, int] = {}
        for part in range(servers):
            leader, follower = leader_and_follower(part, servers, self.lost)
            if me in (leader, follower):
                self._roles[part] = _Role(Replica(workers), me == leader, follower if me == leader else None)

    def replica(self, part: int) -> Replica | None:
        role = self._roles.get(part)
        return None if role is None else role.replica

    # --- frames -----------------------------------------------------------------------------------

    def received(self, source: int, frame: Frame) -> None:
        """Handle a frame about a part. Raises RuntimeFailure if this server does not expect it."""
        role = self._roles.get(frame.part)
        if frame.kind == FrameKind.MESSAGE:
            if role is not None and role.leads:
                self._lead(role, source, frame)
            else:
                self._early.setdefault(frame.part, []).append((source, frame))
        elif frame.kind == FrameKind.SNAPSHOT:
            self._roles[frame.part] = _Role(Replica.unpacked(frame.data), leads=False)
            self._advanced[frame.part] = source
        elif frame.kind == FrameKind.FORWARD and role is not None and not role.leads:
            role.replica.follow(frame.worker, frame.number, frame.data)
            self._advanced[frame.part] = source
        elif frame.kind == FrameKind.APPLIED and role is not None:
            if role.follower is not None and source == self._workers + role.follower:
                self._release(frame.part, role, frame.number)
        else:
            raise RuntimeFailure(f"rank {source} sent {frame.kind.name} of part {frame.part} to server {self._me}")

    def flush(self) -> None:
        """Tell workers which messages cannot be lost, and leaders how many messages this server has applied."""
        for (worker, part), number in self._safe.items():
            self._send(worker, Frame(FrameKind.ACKNOWLEDGED, part, number=number))
        for part, leader in self._advanced.items():
            self._send(leader, Frame(FrameKind.APPLIED, part, number=self._roles[part].replica.count))
        self._safe.clear()
        self._advanced.clear()

    def _lead(self, role: _Role, worker: int, frame: Frame) -> None:
        part, number = frame.part, frame.number
        if role.follower is not None:
            data = frame.data[:0] if role.replica.has(worker, number) else frame.data
            self._send(self._workers + role.follower, Frame(FrameKind.FORWARD, part, worker, number, data))
        asks, answers = role.replica.lead(worker, number, frame.data)
        role.held.append(_Unreleased(role.replica.count, worker, None if asks else number, answers))
        if role.follower is None:
            self._release(part, role, role.replica.count)

    def _release(self, part: int, role: _Role, count: int) -> None:
        """Send the answers and acknowledgements that waited until the follower had applied `count` messages."""
        while role.held and role.held[0].position <= count:
            held = role.held.popleft()
            if held.number is not None:
                self._safe[held.worker, part] = max(held.number, self._safe.get((held.worker, part), 0))
            for answer in held.answers:
                self._send(answer.worker, Frame(FrameKind.ANSWER, part, number=answer.number, data=answer.data))

    # --- lost servers -----------------------------------------------------------------------------

    def handle_loss(self, server: int) -> None:
        """Handle the loss of a server. Call it after handling all frames that the server had sent.

        Raises RuntimeFailure if a part is lost.
        """
        self.lost.add(server)
        for part in range(self._servers):
            leader, follower = leader_and_follower(part, self._servers, self.lost)
            if leader != self._me:
                continue
            role = self._roles.get(part)
            if role is None:
                raise RuntimeFailure(
                    f"part {part} of the parameters is lost with rank {self._workers + server}: its replica was not "
                    f"complete yet on rank {self._workers + self._me}"
                )
            takes_over = not role.leads
            if takes_over:
                role.leads = True
            if takes_over or role.follower != follower:
                self._begin_to_replicate(part, role, follower)
            for source, frame in self._early.pop(part, ()):
                self._lead(role, source, frame)

    def _begin_to_replicate(self, part: int, role: _Role, follower: int | None) -> None:
        """Make a server the follower of this part, and send the whole state to it.

        follower: None if no such server is left.
        """
        role.follower = follower
        if follower is not None:
            try:
                packed = role.replica.packed()
            except Exception as error:  # noqa: BLE001 - an updater of the user may raise anything
                self._warn(
                    f"part {part} of the parameters has no replica from now on: the state of its updater cannot be "
                    f"pickled ({type(error).__name__}: {error})"
                )
                role.follower = None
            else:
                count = role.replica.count
                self._send(self._workers + follower, Frame(FrameKind.SNAPSHOT, part, number=count, data=packed))
        if role.follower is None:
            self._release(part, role, role.replica.count)


class Outbox:
    """The messages of a worker to parts, kept until they cannot be lost.

    A worker has at most one open request per part, and sends nothing else until the answer arrives.
    """

    def __init__(self, servers: int, workers: int, send: Send):
        self.lost: set[int] = set()
        self.kept_bytes = 0
        self._servers, self._workers, self._send = servers, workers, send
        self._kept: list[deque[Frame]] = [deque() for _ in range(servers)]
        self._last = [0] * servers
        self._answered = [0] * servers

    def post(self, part: int, message: np.ndarray) -> None:
        self._last[part] += 1
        frame = Frame(FrameKind.MESSAGE, part, number=self._last[part], data=message)
        self._kept[part].append(frame)
        self.kept_bytes += message.nbytes
        self._send(self._leader(part), frame)

    def received(self, frame: Frame) -> bool:
        """Handle an answer or an acknowledgement. Return whether it is an expected answer."""
        kept = self._kept[frame.part]
        while kept and kept[0].number <= frame.number:
            self.kept_bytes -= kept.popleft().data.nbytes
        if frame.kind != FrameKind.ANSWER or frame.number <= self._answered[frame.part]:
            return False
        self._answered[frame.part] = frame.number
        return True

    def handle_loss(self, server: int) -> None:
        """Handle the loss of a server. Call it after handling all frames that the server had sent."""
        led = [part for part in range(self._servers) if self._leader(part) == self._workers + server]
        self.lost.add(server)
        for part in led:
            leader = self._leader(part)
            for frame in self._kept[part]:
                self._send(leader, frame)

    def _leader(self, part: int) -> int:
        leader, _ = leader_and_follower(part, self._servers, self.lost)
        if leader is None:
            raise RuntimeFailure("all servers are lost")
        return self._workers + leader
