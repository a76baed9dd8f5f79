"""Workers and servers in one process, for tests of their messages."""

from collections import deque

from graphkit.dist.collectives.row_sparse import RowSparse
from graphkit.dist.communicator import LocalCommunicator
from graphkit.dist.servers.remote import RemoteStore
from graphkit.dist.servers.server import Server
from graphkit.dist.transport import Transport
from graphkit.dist.wire.packing import unpack


class Alone(LocalCommunicator):
    """One of several workers, which sends no messages to the others."""

    def __init__(self, rank=0):
        super().__init__()
        self.rank = rank


class Counter:
    """A connection to servers in this process, which answer immediately. Waiting for a later answer is an error.

    counters: the connections of all workers, by rank. They may get answers to messages of this one.
    """

    def __init__(self, servers, worker, counters):
        self.all, self.worker, self.counters = servers, worker, counters
        self.servers, self.sent_bytes = len(servers), 0
        self.sent = []
        self.inbox = [deque() for _ in servers]

    def send(self, server, message):
        self.sent_bytes += message.nbytes
        self.sent.append(unpack(message)[0])
        for to, answer in self.all[server].handle(self.worker, message):
            self.counters[to].inbox[server].append(answer)

    def answers(self, servers, call):
        if not all(self.inbox[s] for s in servers):
            raise TimeoutError(call)
        return [self.inbox[s].popleft() for s in servers]


def workers(count, servers=1, type="dist_async", bound=None, **options):
    """Return the stores of `count` workers, and their servers."""
    there = [Server(count) for _ in range(servers)]
    counters = []
    counters += [Counter(there, rank, counters) for rank in range(count)]
    return [
        RemoteStore(type, Transport(Alone(c.worker), servers_of=type), c, bound, **options) for c in counters
    ], there


def begun(stores, values):
    for store in stores:
        store.init(list(values), list(values.values()))
    return stores


def add_twice(key, gradient, stored):
    """Add the pushed value twice. Servers find this updater by the name of this module."""
    if isinstance(gradient, RowSparse):
        stored[gradient.indices] += 2 * gradient.values
    else:
        stored += 2 * gradient
