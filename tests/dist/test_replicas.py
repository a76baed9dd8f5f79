"""Replicated servers: if a server is killed at any time, jobs continue, and no update is lost or applied twice."""

import itertools
import random
from collections import deque

import numpy as np
import pytest
from combinations import covering, in_one_item
from serving import Alone, add_twice, begun

import graphkit as gk
from graphkit.dist import kvstore
from graphkit.dist.servers.remote import RemoteStore
from graphkit.dist.servers.replica import Outbox, Replica, ReplicatedServer, leader_and_follower
from graphkit.dist.transport import Transport
from graphkit.dist.wire.mesh import Frame, FrameKind
from graphkit.dist.wire.packing import pack, unpack
from graphkit.errors import RuntimeFailure, UsageError
from graphkit.train.average import EMA
from graphkit.train.updater import KeyedOptimizer

# --- who holds what -------------------------------------------------------------------------------------


def test_the_next_ones_around_the_ring_hold_a_part():
    assert leader_and_follower(2, 3, set()) == (2, 0)
    assert leader_and_follower(2, 3, {0}) == (2, 1)
    assert leader_and_follower(2, 3, {2}) == (0, 1)
    assert leader_and_follower(2, 3, {0, 2}) == (1, None)
    assert leader_and_follower(1, 2, {0, 1}) == (None, None)


def test_a_loss_moves_a_part_to_its_follower_alone():
    """The leader after a loss was leader or follower before, so it has the state."""
    for servers in range(2, 6):
        for count in range(servers - 1):
            for lost in map(set, itertools.combinations(range(servers), count)):
                for part, next_ in itertools.product(range(servers), set(range(servers)) - lost):
                    before = leader_and_follower(part, servers, lost)
                    assert leader_and_follower(part, servers, lost | {next_})[0] in before


# --- workers and servers in memory ----------------------------------------------------------------------


class Net:
    """Servers and workers that send each other frames, each pair's in order, in an order of the others by chance.

    kill_at: the number of frames that are taken before a server is lost, as `kills` says one after the other; of what
    it has sent, a part by chance still arrives.
    """

    def __init__(self, workers, servers, seed=0, kills=(), kill_at=()):
        self.random = random.Random(seed)
        self.workers, self.servers = workers, servers
        self.pairs = {}
        self.warnings = []
        self.lost = set()
        self.taken = 0
        self.kills = dict(zip(kill_at, kills, strict=True))
        self.holders = [
            ReplicatedServer(me, servers, workers, self.sender(workers + me), self.warnings.append)
            for me in range(servers)
        ]
        self.posts = [ServerConnection(self, rank) for rank in range(workers)]

    def sender(self, source):
        def send(to, frame):
            if to - self.workers not in self.lost:
                self.pairs.setdefault((source, to), deque()).append(frame)

        return send

    def step(self):
        """One frame arrives; whether there was one."""
        ready = [pair for pair, frames in self.pairs.items() if frames]
        if not ready:
            return False
        source, to = self.random.choice(sorted(ready))
        frame = self.pairs[source, to].popleft()
        if to < self.workers:
            self.posts[to].take(source, frame)
        elif frame is None:
            self.holders[to - self.workers].handle_loss(source - self.workers)
        else:
            self.holders[to - self.workers].received(source, frame)
        if to >= self.workers and self.random.random() < 0.7:
            self.holders[to - self.workers].flush()
        self.taken += 1
        if (victim := self.kills.pop(self.taken, None)) is not None:
            self.kill(victim)
        return True

    def flush(self):
        for number, holder in enumerate(self.holders):
            if number not in self.lost:
                holder.flush()

    def kill(self, server):
        rank = self.workers + server
        self.lost.add(server)
        for source, to in list(self.pairs):
            if to == rank:
                del self.pairs[source, to]
        for to in range(self.workers + self.servers):
            if to == rank or to - self.workers in self.lost:
                continue
            sent = self.pairs.setdefault((rank, to), deque())
            for _ in range(self.random.randint(0, len(sent))):
                sent.pop()
            sent.append(None)

    def run(self, until):
        """Frames arrive until that is so."""
        while not until():
            if not self.step():
                self.flush()
                if not any(self.pairs.values()):
                    raise TimeoutError("everybody waits")

    def settle(self):
        """All that is on its way arrives."""
        while self.step() or (self.flush() or any(self.pairs.values())):
            pass


class ServerConnection:
    """A worker's, in memory."""

    def __init__(self, net, rank):
        self.net, self.rank = net, rank
        self.servers, self.sent_bytes = net.servers, 0
        self.outbox = Outbox(net.servers, net.workers, net.sender(rank))
        self.come = [deque() for _ in range(net.servers)]

    def take(self, source, frame):
        if frame is None:
            self.outbox.handle_loss(source - self.net.workers)
        elif self.outbox.received(frame):
            self.come[frame.part].append(frame.data)

    def send(self, server, message):
        self.outbox.post(server, message)

    def answers(self, servers, call):
        self.net.run(lambda: all(self.come[server] for server in servers))
        return [self.come[server].popleft() for server in servers]


def stores(net, type="dist_async", bound=None):
    return [RemoteStore(type, Transport(Alone(post.rank), servers_of=type), post, bound) for post in net.posts]


def parts_are_alike(net):
    """Leader and follower of each part have the same values and versions."""
    net.settle()
    for part in range(net.servers):
        leader, follower = leader_and_follower(part, net.servers, net.lost)
        if follower is None:
            continue
        one, two = (net.holders[server].replica(part) for server in (leader, follower))
        assert one.count == two.count
        assert one.server._parts.keys() == two.server._parts.keys()
        for key, held in one.server._parts.items():
            assert (held.value == two.server._parts[key].value).all()
            assert held.version == two.server._parts[key].version


def additions(net, rounds=3):
    """Push values, and compare each key with its expected value at the end."""
    made = stores(net)
    keys = [f"k{number}" for number in range(2 * net.servers)]
    begun(made, {key: np.zeros(2) for key in keys})
    made[0].set_updater(add_twice)
    expected = 0.0
    for round_ in range(rounds):
        for store in made:
            amount = 10.0**store.rank * (round_ + 1)
            store.push(keys, [np.full(2, amount)] * len(keys))
            expected += 2 * amount
            net.step()
        found = made[round_ % len(made)].pull(keys)
        assert all((value <= expected).all() for value in found)
    for store in made:
        store.wait()
    for store in made:
        for value in store.pull(keys):
            assert (value == expected).all()
    return made


def frames_of(history, *sizes):
    net = Net(*sizes)
    history(net)
    net.settle()
    return net.taken


def exchanges(net):
    """Exchanges move values from workers to the centre: the sum of both stays the same for each key."""
    made = stores(net, "elastic")
    keys = [f"k{number}" for number in range(2 * net.servers)]
    begun(made, {key: np.zeros(2) for key in keys})
    mine = [{key: np.full(2, 64.0 * (store.rank + 1)) for key in keys} for store in made]
    total = {key: sum(values[key] for values in mine) for key in keys}
    for _ in range(3):
        for store in made:
            mine[store.rank] = store.exchange(mine[store.rank], 0.5)
            net.step()
    for key, centre in zip(keys, made[0].pull(keys), strict=True):
        assert (sum(values[key] for values in mine) + centre == total[key]).all()  # powers of 2 do not round
    return made


@pytest.mark.parametrize(("history", "servers"), covering([additions, exchanges], [2, 3]))
def test_a_server_killed_at_any_point_of_a_history(history, servers):
    """Each push and each exchange counts once, for each lost server and each frame after which it is lost."""
    frames = frames_of(history, 2, servers)
    for at in range(1, frames, 1 if servers == 2 else 3):
        for victim in range(servers):
            net = Net(2, servers, seed=at, kills=[victim], kill_at=[at])
            history(net)
            parts_are_alike(net)
            assert not net.warnings


@pytest.mark.full
def test_two_losses_one_behind_the_other():
    """The second one falls when the first is repaired; whatever is on its way then."""
    frames = frames_of(additions, 2, 3)
    survived = ended = 0
    for seed in range(300):
        chance = random.Random(seed)
        first, second = chance.sample(range(3), 2)
        at = chance.randrange(1, frames - 1)
        net = Net(2, 3, seed=seed, kills=[first, second], kill_at=[at, at + chance.randrange(1, 40)])
        try:
            additions(net)
        except RuntimeFailure as error:
            assert "its replica was not complete yet" in str(error)  # noqa: PT017 - both ends are right
            ended += 1
        else:
            survived += 1
            parts_are_alike(net)
    assert survived > 100
    assert ended > 10


def test_a_second_loss_behind_the_first_ones_repair_is_survived():
    frames = frames_of(additions, 2, 3)
    for first, second in itertools.permutations(range(3), 2):
        net = Net(2, 3, seed=first, kills=[first], kill_at=[frames // 3])
        additions(net)
        net.settle()
        net.kill(second)
        net.settle()
        last = (set(range(3)) - {first, second}).pop()
        seen = {
            key: held.value for part in range(3) for key, held in net.holders[last].replica(part).server._parts.items()
        }
        assert len(seen) == 6
        assert all((value == 2 * (1 + 2 + 3) * (1 + 10)).all() for value in seen.values())


def bump(values):
    for value in values.values():
        value += 1
    return sorted(values)


def questions(net):
    """Requests that change values are executed once and answered with their first result. Errors are reported once."""
    (store,) = stores(net)
    keys = [f"k{number}" for number in range(2 * net.servers)]
    begun([store], {key: np.zeros(2) for key in keys})
    store.set_updater(refuses)
    for count in range(1, 4):
        store.push(keys, [np.full(2, -1.0)] * len(keys))
        with pytest.raises(RuntimeFailure, match="push failed on a server: ValueError: below 0"):
            store.wait()
        store.wait()
        found = store.call_servers(bump)
        assert sorted(itertools.chain.from_iterable(found)) == sorted(keys)
        store.push(keys, [np.full(2, -1.0)] * len(keys))
        with pytest.raises(RuntimeFailure, match="below 0"):
            store.pull(keys)
        assert all((value == count).all() for value in store.pull(keys))
    return [store]


def refuses(key, gradient, stored):
    if (gradient < 0).any():
        raise ValueError("below 0")
    stored += gradient


def bounded(bound):
    def history(net):
        """The second worker is one step on, the first goes ahead of it as far as it may."""
        first, second = stores(net, "dist_bounded", bound)
        keys = [f"k{number}" for number in range(2 * net.servers)]
        begun([first, second], {key: np.zeros(2) for key in keys})
        first.set_updater(add_twice)
        second.begin_step()
        second.pull(keys)
        for _ in range(bound + 1):
            first.begin_step()
            first.pull(keys)
            first.push(keys, [np.ones(2)] * len(keys))
        first.begin_step()
        with pytest.raises(TimeoutError):
            first.pull(keys)
        second.push(keys, [np.full(2, 7.0)] * len(keys))
        second.begin_step()
        second.pull(keys)
        parts = list(first._client.parts_by_server(keys))
        for answer in net.posts[0].answers(parts, "pull"):
            fields, arrays = unpack(answer)
            assert fields["behind"] == bound
            assert all((array == 2 * (bound + 1) + 14).all() for array in arrays)
        return [first, second]

    return history


@pytest.mark.parametrize("bound", [2, pytest.param(0, marks=pytest.mark.full)])
def test_staleness_is_its_bound_whoever_is_lost(bound):
    for at in range(1, frames_of(bounded(bound), 2, 2)):
        for victim in range(2):
            bounded(bound)(Net(2, 2, seed=at, kills=[victim], kill_at=[at]))


@pytest.mark.full
def test_questions_and_errors_outlive_a_loss():
    for at in range(1, frames_of(questions, 1, 2)):
        for victim in range(2):
            net = Net(1, 2, seed=at, kills=[victim], kill_at=[at])
            questions(net)
            parts_are_alike(net)


@in_one_item()
@pytest.mark.parametrize("options", [None, "2bit:0.5", "float16"])
def test_a_new_replica_has_slots_and_compression(options):
    """A loss in the middle does not change the optimizer's results. The new replicas compute the second half."""

    def trained(net, lose):
        (store,) = stores(net)
        values = {f"k{number}": np.linspace(0, 1, 8, dtype=np.float32) for number in range(6)}
        begun([store], values)
        store.set_optimizer(gk.optim.Adam(0.1))
        if options is not None:
            store.set_gradient_compression(options)
        for step in range(6):
            if lose and step in (2, 4):
                net.settle()
                net.kill(step // 2 - 1)
            store.push(list(values), [np.full(8, 0.3 * (step + 1), np.float32)] * 6)
        return store.pull(list(values)), store.optimizer_states()

    (mine, slots), (other, others) = trained(Net(1, 3, 1), True), trained(Net(1, 3, 2), False)
    for a, b in zip(mine, other, strict=True):
        np.testing.assert_array_equal(a, b)
    assert slots.keys() == others.keys()
    assert all((slots[name] == others[name]).all() for name in slots)


def test_a_new_replica_has_averages_factors_and_rows():
    """The same for options by key, moving averages, and pushes of rows."""

    def trained(net, lose):
        (store,) = stores(net)
        values = {f"k{number}": np.linspace(0, 1, 8, dtype=np.float32).reshape(4, 2) for number in range(6)}
        keys = list(values)
        begun([store], values)
        store.set_optimizer(KeyedOptimizer(gk.optim.Adam(0.1), {"k1": 0.5}, {"k2": 0.0}, EMA(0.5)))
        for step in range(6):
            if lose and step in (2, 4):
                net.settle()
                net.kill(step // 2 - 1)
            rows = kvstore.RowSparse([step % 4, (step + 1) % 4], np.full((2, 2), 0.3 * (step + 1), np.float32))
            store.push(keys[::2], [rows] * 3)
            store.push(keys[1::2], [np.full((4, 2), 0.1 * step - 0.2, np.float32)] * 3)
        pulled = store.row_sparse_pull(keys, [np.array([0, 3])] * 6)
        return [found.values for found in pulled] + store.averages(keys), store.optimizer_states()

    (mine, slots), (other, others) = trained(Net(1, 3, 1), True), trained(Net(1, 3, 2), False)
    for a, b in zip(mine, other, strict=True):
        np.testing.assert_array_equal(a, b)
    assert slots.keys() == others.keys()
    assert all((slots[name] == others[name]).all() for name in slots)


class Sticky:
    """An updater that cannot be taken elsewhere."""

    def updater(self):
        return lambda key, gradient, stored: add_twice(key, gradient, stored)


def test_what_cannot_be_replicated_anew_is_said():
    net = Net(1, 3)
    (store,) = stores(net)
    keys = [f"k{number}" for number in range(9)]
    begun([store], {key: np.zeros(2) for key in keys})
    store.set_optimizer(Sticky())
    store.push(keys, [np.ones(2)] * 9)
    net.settle()
    net.kill(1)
    store.push(keys, [np.ones(2)] * 9)
    assert all((value == 4).all() for value in store.pull(keys))
    assert any("part 1 of the parameters has no replica from now on" in said for said in net.warnings)
    net.settle()
    net.kill(2)
    with pytest.raises(RuntimeFailure, match="part 1 of the parameters is lost with rank 3"):
        net.settle()


def test_a_worker_keeps_what_is_not_replicated_and_no_more():
    net = Net(1, 2)
    (store,) = stores(net)
    begun([store], {"w": np.zeros(1000)})
    net.settle()
    assert net.posts[0].outbox.kept_bytes == 0
    for _ in range(5):
        store.push("w", np.ones(1000))
    assert net.posts[0].outbox.kept_bytes > 5 * 8000
    net.settle()
    assert net.posts[0].outbox.kept_bytes == 0


def test_a_question_that_waits_and_is_asked_again_is_answered_once():
    replica = Replica(2)
    names = {"names": [[0, "w"]]}
    init = pack({"call": "init", "asks": True, "parts": [[0, 0, 2]], **names}, [np.zeros(2)])
    pull = pack({"call": "pull", "asks": True, "parts": [[0, -1]], "clock": 1, "bound": 0})
    assert len(replica.lead(0, 1, init)[1]) == 1
    assert list(replica._kept) == [0]
    for _ in range(2):
        assert replica.lead(0, 2, pull) == (True, [])
    assert replica._kept == {}  # what a worker has had is kept no longer
    _, answers = replica.lead(1, 1, pack({"call": "wait", "asks": True, "clock": 1}))
    assert sorted(answer.worker for answer in answers) == [0, 1]


def test_frames_that_cannot_be():
    sent = []
    holder = ReplicatedServer(0, 2, 1, lambda to, frame: sent.append((to, frame)), pytest.fail)
    message = pack({"call": "wait", "asks": True})
    with pytest.raises(RuntimeFailure, match="message 3 of rank 0 comes after message 0"):
        holder.received(0, Frame(FrameKind.MESSAGE, 0, number=3, data=message))
    with pytest.raises(RuntimeFailure, match="rank 2 sent FORWARD of part 0 to server 0"):
        holder.received(2, Frame(FrameKind.FORWARD, 0, 0, 1, message))
    outbox = Outbox(2, 1, lambda to, frame: None)
    outbox.handle_loss(0)
    outbox.post(1, message)
    with pytest.raises(RuntimeFailure, match="all servers are lost"):
        outbox.handle_loss(1)


@in_one_item()
@pytest.mark.parametrize(
    "options", [{"type": "dist_async", "servers": 1}, {"type": "dist_sync"}, {"type": "local"}, {"type": "elastic"}]
)
def test_one_server_is_not_replicated(options):
    with pytest.raises(UsageError, match=r"replicate=True needs type .*, and servers= of at least 2, not "):
        gk.kvstore.create(**options, replicate=True)
