"""Connections between processes: arrival and order of messages, and detection of an end."""

import os
import random
import socket
import sys
import tempfile
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from graphkit.dist.servers import replicated
from graphkit.dist.wire import mesh
from graphkit.dist.wire.mesh import Frame, FrameKind, Listener, Mesh, open_mesh
from graphkit.errors import RuntimeFailure


class Together:
    """`allgather_objects` of threads that stand for processes."""

    def __init__(self, count):
        self.said = [None] * count
        self.barrier = threading.Barrier(count)

    def of(self, rank):
        def allgather_objects(mine):
            self.said[rank] = mine
            self.barrier.wait(120)
            return list(self.said)

        return allgather_objects


@pytest.fixture
def meshes():
    """`meshes(workers, servers, hosts)`: connect processes. hosts: the host of each rank."""
    made = []

    def make(workers, servers, hosts=None):
        count = workers + servers
        places = dict(enumerate(hosts or [0] * count))
        together = Together(count)

        def one(rank):
            return open_mesh(rank, range(workers, count), range(workers), places, together.of(rank), 30)

        with ThreadPoolExecutor(count) as pool:
            made.extend(pool.map(one, range(count)))
        return made

    yield make
    for each in made:
        each.close(1)


def received(one, count, seconds=60):
    found, end = [], time.monotonic() + seconds
    while len(found) < count and time.monotonic() < end:
        found += one.receive(0.05)
    return found


@pytest.mark.parametrize("hosts", [None, [0, 0, 1, 2], [0, 1, 1, 1]])
def test_everybody_is_connected_with_every_server(meshes, hosts):
    made = meshes(2, 2, hosts)
    assert [sorted(each.ranks) for each in made] == [[2, 3], [2, 3], [0, 1, 3], [0, 1, 2]]
    for rank, each in enumerate(made):
        for to in each.ranks:
            each.send(to, Frame(FrameKind.FORWARD, to, rank, -7, np.arange(rank * 3, dtype=np.uint8)))
    for rank, each in enumerate(made):
        found = received(each, len(each.ranks))
        assert sorted(source for source, _ in found) == sorted(each.ranks)
        for source, frame in found:
            assert frame[:4] == (FrameKind.FORWARD, rank, source, -7)
            assert frame.data.tolist() == list(range(source * 3))


@pytest.mark.parametrize("turn", [48, 1 << 20])
def test_frames_of_all_sizes_arrive_in_order_while_both_ends_send(meshes, monkeypatch, turn):
    monkeypatch.setattr(mesh, "_TURN", turn)
    pair = meshes(1, 1)
    chance = random.Random(0)
    sizes = [chance.choice([0, 1, 23, 24, 25, 4096, 1 << 16, 3 << 20]) for _ in range(60)]
    frames = [Frame(FrameKind.MESSAGE, 0, 0, n, np.full(size, n, np.uint8)) for n, size in enumerate(sizes)]
    found = [], []
    end = time.monotonic() + 60

    def receive(side):
        while min(map(len, found)) < 60 and time.monotonic() < end:
            found[side].extend(frame for _, frame in pair[side].receive(0.05))

    threads = [threading.Thread(target=receive, args=(side,)) for side in (0, 1)]
    for thread in threads:
        thread.start()
    for frame in frames:
        for side in (0, 1):
            pair[side].send(1 - side, frame)
    for thread in threads:
        thread.join()
    for got in found:
        assert [frame.number for frame in got] == list(range(60))
        assert all((a.data == b.data).all() and len(a.data) == len(b.data) for a, b in zip(got, frames, strict=True))


def test_who_is_gone_is_told_behind_what_it_sent_and_who_says_goodbye_is_not(meshes):
    one, two, three = meshes(0, 3)
    two.send(0, Frame(FrameKind.APPLIED, 1, number=5, data=np.zeros(1 << 16, np.uint8)))
    for line in two._connections.values():
        line.socket.close()  # as the system does for a process that is killed
    two._connections.clear()
    (first, second) = received(one, 2)
    assert first[1].number == 5
    assert second == (1, None)
    three.close(5)
    assert received(one, 1, 0.5) == []
    assert one.ranks == []
    one.send(1, Frame(FrameKind.LOST))  # goes nowhere


def test_a_connection_that_is_cut_gives_what_has_come(meshes):
    one, two = meshes(0, 2)
    for number in range(3):
        two.send(0, Frame(FrameKind.FORWARD, number=number))
    time.sleep(0.2)
    assert [frame.number for frame in one.disconnect(1)] == [0, 1, 2]
    assert one.ranks == []
    assert one.disconnect(1) == []
    assert received(two, 1) == [(0, None)]


def test_last_words_are_heard(meshes):
    one, two = meshes(0, 2)
    one.close(5, Frame(FrameKind.FAILED, number=143))
    (first,) = received(two, 1)[:1]
    assert first[1].kind == FrameKind.FAILED
    assert first[1].number == 143


def test_strangers_are_not_let_in():
    secret = os.urandom(32)
    with Listener(True, 1) as listener:
        address = listener.address
        stranger = socket.create_connection(("127.0.0.1", address.port))
        stranger.sendall(mesh._HELLO.pack(0, os.urandom(32)))
        again = socket.create_connection(("127.0.0.1", address.port))
        again.close()
        with ThreadPoolExecutor(1) as pool:
            coming = pool.submit(mesh.connect, 0, address, False, secret, 10)
            lines = listener.accept([0], secret, 10)
            mine = coming.result()
        assert list(lines) == [0]
        assert stranger.recv(10) == b""
        for each in (stranger, mine, lines[0]):
            each.close()


def test_where_names_of_sockets_are_files_they_are_in_a_folder_of_their_own(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "darwin")
    with Listener(False, 1) as listener:
        path = listener.address.path
        assert os.stat(os.path.dirname(path)).st_mode & 0o077 == 0
    assert not os.path.exists(os.path.dirname(path))
    (tmp_path / ("x" * 100)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 100)))
    with pytest.raises(RuntimeFailure, match=r"processes of this host cannot connect at .*AF_UNIX path too long"):
        Listener(False, 1)
    assert not [*tmp_path.glob("*/*")]


def test_on_linux_no_file_is_made(monkeypatch, tmp_path, meshes):
    """So a killed process leaves no file, and no name is too long."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 100)))
    (tmp_path / ("x" * 100)).mkdir()
    one, two = meshes(0, 2)
    two.send(0, Frame(FrameKind.APPLIED, number=5))
    assert received(one, 1)[0][1].number == 5
    with Listener(False, 1) as listener:
        assert listener.address.path.startswith("\0graphkit-")
        assert not [*tmp_path.glob("*/*")]


def test_descriptors_of_any_number(meshes, many_descriptors):
    """Some calls take those below 1024 alone."""
    one, two = meshes(0, 2)
    two.send(0, Frame(FrameKind.SNAPSHOT, data=np.zeros(8 << 20, np.uint8)))  # more than goes at once
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(received, one, 1)
        two.close(10)
        assert len(coming.result()[0][1].data) == 8 << 20


def test_processes_are_given_some_time_to_connect_however_short_the_timeout(monkeypatch):
    told = []

    def opened(*arguments):
        told.append(arguments[-1])
        return Mesh({})

    monkeypatch.setattr(replicated, "open_mesh", opened)
    for timeout in (0.5, 300.0):
        replicated._connected(
            types.SimpleNamespace(
                processes=2,
                servers=1,
                job_rank=0,
                host_by_rank={},
                allgather_objects=None,
                timeout=timeout,
                on_abort=lambda callback: None,
            )
        )
    assert told == [10.0, 300.0]


def test_who_does_not_come_is_named():
    with Listener(False, 2) as listener, pytest.raises(RuntimeFailure, match=r"no connection from rank 0, 1 in 0\.1 s"):
        listener.accept([0, 1], b"x" * 32, 0.1)
    with pytest.raises(RuntimeFailure, match=r"rank 3 cannot connect to another process: @graphkit-.*refused"):
        mesh.connect(3, listener.address, True, b"x" * 32, 1)


def test_a_mesh_of_nobody():
    empty = Mesh({})
    assert empty.receive(0) == []
    empty.close(1)
