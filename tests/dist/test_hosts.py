"""Several simulated hosts: the data that they exchange, and the detection of lost hosts."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from combinations import full, in_one_item
from job_server import command
from jobs import FAILED, finish, start

import graphkit as gk
from graphkit import config
from graphkit.dist.collectives import compression
from graphkit.train import checkpoint

# --- sums and copies ----------------------------------------------------------------------------------

SUMS = """
    import json, zlib
    import numpy as np
    from graphkit.dist import kvstore
    kv = kvstore.create("dist_sync")
    shapes = [(), (0,), (1,), (7, 3), (300_001,)]
    digests, before = [], kv.sent_between_hosts
    for dtype in ("float32", "float64", "int64", "float16"):
        for shape in shapes:
            size = int(np.prod(shape))
            parts = [np.random.default_rng(r).integers(-9, 9, size).reshape(shape) for r in range(kv.num_workers)]
            mine, expected = parts[kv.rank].astype(dtype), sum(parts).astype(dtype)
            total = kv.pushpull("w", mine)
            assert total.dtype == mine.dtype and total.shape == shape and (total == expected).all()
    odd = np.random.default_rng(kv.rank).standard_normal(100_003).astype(np.float32)
    odd[kv.rank] = np.nan
    total = kv.pushpull("w", odd)
    assert np.isnan(total[: kv.num_workers]).all() and np.isfinite(total[kv.num_workers :]).all()
    summed = kv.sent_between_hosts - before
    for root in range(kv.num_workers):
        assert kv.broadcast("b", np.full(1000, kv.rank, np.int16), root).tolist() == [root] * 1000
    kv.barrier()
    row = [kv.rank, zlib.crc32(total.tobytes()), summed, kv.sent_between_hosts - before]
    print(json.dumps(row))
"""


def sums(jobs, ranks, per_host):
    """Return a row per rank: the digest of its sum, and the bytes between hosts for sums, and with copies."""
    rows = [json.loads(line) for line in jobs.run(SUMS, ranks, ranks_per_host=per_host)]
    assert [row[0] for row in rows] == list(range(ranks))
    return rows


@pytest.mark.parametrize(
    ("ranks", "per_host"),
    [(3, 2), full(4, 2), full(2, 1)],
)
def test_sums_are_the_same_bits_on_all_hosts(jobs, ranks, per_host):
    rows = sums(jobs, ranks, per_host)
    assert len({row[1] for row in rows}) == 1
    # One process of each host sends, once.
    assert [row[2] > 0 for row in rows] == [rank % per_host == 0 for rank in range(ranks)]


@pytest.mark.full
def test_bytes_between_hosts_do_not_depend_on_the_ranks_of_a_host(jobs):
    two, four = sums(jobs, 2, 1), sums(jobs, 4, 2)
    sent = [sum(row[2] for row in rows) for rows in (two, four)]
    assert sent[0] == sent[1] > 2 * 4 * 300_001
    # Copies of 2000 bytes, from each rank in turn, leave the root's host once.
    assert [sum(row[3] - row[2] for row in rows) for rows in (two, four)] == [2 * 2000, 4 * 2000]


def test_nothing_is_sent_between_hosts_where_there_is_one(jobs):
    assert all(row[3] == 0 for row in sums(jobs, 2, None))


# --- what is gathered, compressed, or rows ------------------------------------------------------------

# Each part defines `work`, whose results all ranks compute for themselves, and which returns what has to be the same.
MORE = """
    import json, zlib
    import numpy as np
    import graphkit as gk
    from graphkit.dist import kvstore
    from graphkit.dist.collectives import compression
    from graphkit.dist.collectives.layout import Slices
    def numbers(seed, size):
        return np.random.default_rng(seed).integers(-9, 9, size).astype(np.float32)
    {part}
    kv = kvstore.create("dist_sync")
    hosts = [host.ranks for host in kv.transport.communicator.hosts.all]
    ranks, before = range(kv.num_workers), kv.sent_between_hosts
    digest = zlib.crc32(work())
    row = [kv.rank, digest, kv.sent_between_hosts - before, kv.sent_bytes]
    print(json.dumps(row))
"""

COMPRESSED = """
    def work():
        kv.set_gradient_compression(KIND)
        made = compression.create(KIND)
        left, found = [np.zeros(10_001, np.float32) for _ in hosts], []
        for step in range(3):
            # The same from each host, however many ranks it has.
            given = [[numbers(100 * step + at, 10_001) / len(h) for _ in h] for at, h in enumerate(hosts)]
            place = next(at for at, h in enumerate(hosts) if kv.rank in h)
            total = kv.pushpull("w", given[place][hosts[place].index(kv.rank)])
            expected = np.zeros(10_001, np.float32)
            for residual, parts in zip(left, given):
                made.add(made.pack(np.sum(parts, axis=0), residual), expected)
            np.testing.assert_array_equal(total, expected)
            found.append(total.tobytes())
        return b"".join(found)
"""

GATHERED = """
    def work():
        whole = 20_007
        slices = Slices.of([whole], 4, kv.num_workers)
        parts = [numbers(r, whole) for r in ranks]
        done = {}
        scattered = lambda total: total[slices.of_rank(kv.rank)].copy()
        mine = kv.transport.start_scattered_sum("s", parts[kv.rank].copy(), slices, False, scattered).wait()
        np.testing.assert_array_equal(mine, sum(parts)[slices.of_rank(kv.rank)])
        joined = kv.transport.start_gather("g", mine, slices, np.concatenate).wait()
        np.testing.assert_array_equal(joined, sum(parts))
        for dtype, shape in (("int8", (3, 5)), ("bool", ()), ("float64", (0, 2)), ("float16", (7,))):
            each = kv.gather("e", np.full(shape, kv.rank % 2, dtype))
            for rank, array in enumerate(each):
                assert array.dtype == dtype and (array == rank % 2).all()
            assert len(each) == kv.num_workers
        odd = kv.transport.communicator.perform("odd", (), lambda: kv.transport.communicator.allgather_parts(
            np.full(3 + kv.rank, kv.rank, np.uint8), [3 + r for r in ranks]))
        assert [part.tolist() for part in odd] == [[r] * (3 + r) for r in ranks]
        assert all(part.ctypes.data % 8 == 0 for part in odd)
        return joined.tobytes()
"""

ROWS = """
    def work():
        # Of ranks on one host the same rows, and some that two hosts have.
        kinds, found = {"float32": 1, "float64": 1, "float16": 1}, []
        place = next(at for at, h in enumerate(hosts) if kv.rank in h)
        rows = [np.array([[3, 1, 7, 3], [7, 100, 5, 6]][at % 2]) for at in range(len(hosts))]
        for kind in kinds:
            kv.init(kind, np.zeros((101, 5), kind))
            values = numbers(place, 20).reshape(4, 5).astype(kind)
            kv.push(kind, kvstore.RowSparse(rows[place], values))
            expected = np.zeros((101, 5), kind)
            for at, host in enumerate(hosts):
                for _ in host:
                    np.add.at(expected, rows[at], numbers(at, 20).reshape(4, 5).astype(kind))
            np.testing.assert_array_equal(kv.pull(kind), expected)
            found.append(kv.pull(kind).tobytes())
        kv.push("float32", kvstore.RowSparse(np.zeros(0, np.int64), np.zeros((0, 5), np.float32)))
        assert not kv.pull("float32").any()
        return b"".join(found)
"""


def more(jobs, ranks, per_host, part):
    code = MORE.format(part=part.strip())
    rows = [json.loads(line) for line in jobs.run(code, ranks, ranks_per_host=per_host)]
    assert [row[0] for row in rows] == list(range(ranks))
    assert len({row[1] for row in rows}) == 1
    return rows


@pytest.mark.parametrize("sizes", [[(3, 2)], full([(4, 2), (2, 1)])], ids=str)
@pytest.mark.parametrize("kind", ["2bit:0.5", "float16", "top_k:0.05"])
def test_a_host_sends_its_sum_in_fewer_bytes_once(jobs, kind, sizes):
    part = COMPRESSED.replace("KIND", repr(kind))
    packed = 3 * compression.create(kind).packed_bytes(10_001)
    for ranks, per_host in sizes:
        rows = more(jobs, ranks, per_host, part)
        # Bytes between hosts, which only leaders send; and the bytes that each rank would send between hosts.
        assert [row[2] for row in rows] == [packed if rank % per_host == 0 else 0 for rank in range(ranks)]
        assert [row[3] for row in rows] == [packed] * ranks
    assert packed < 3 * 4 * 10_001 * (1 / 15 if kind.startswith("2bit") else 0.51)


@pytest.mark.parametrize("part", [GATHERED, ROWS], ids=["gathered", "rows"])
def test_ranks_of_different_hosts_gather(jobs, part):
    for per_host in (None, 1):
        rows = more(jobs, 2, per_host, part)
        assert [row[2] > 0 for row in rows] == [per_host is not None] * 2


@pytest.mark.full
@pytest.mark.parametrize("part", [GATHERED, ROWS], ids=["gathered", "rows"])
def test_what_is_gathered_crosses_once_for_each_host(jobs, part):
    two, four = (more(jobs, ranks, per_host, part) for ranks, per_host in ((2, 1), (4, 2)))
    if part == ROWS:
        # Merged on the host: as many as one rank would send that has its rows; half floats as float32, until all are
        # added up.
        wider = 2 * (3 + 4) * 5
        assert sum(row[2] for row in two) + wider == sum(row[2] for row in four)
    else:
        small = [ranks * (15 + 1 + 14) + sum(3 + rank for rank in range(ranks)) for ranks in (2, 4)]
        assert [sum(row[2] for row in rows) - less for rows, less in zip((two, four), small, strict=True)] == [
            2 * 4 * 20_007 + 4 * 20_007
        ] * 2
    assert [row[2] > 0 for row in four] == [True, False, True, False]
    more(jobs, 3, 2, part)


APART = """
    import sys
    import numpy as np
    from graphkit.dist.job import ending, joining
    from graphkit.dist.hosts.groups import Hosts
    from graphkit.dist.job.mpi import MpiCommunicator, _mpi
    with ending.abort_on_error():
        communicator = joining.join(0)
        world, mpi = communicator._job, _mpi()
        def complete(request, *used):
            request.Wait()
        # Ranks that follow each other are on different hosts, as launchers may place them.
        hosts = Hosts(world, world.Split(world.rank % 2, world.rank), mpi.IN_PLACE, complete, None)
        assert [host.ranks for host in hosts.all] == [(0, 2), (1, 3)] and hosts.levels is not None
        assert hosts.levels.leading == (0, 1)
        parts = [np.random.default_rng(r).integers(-9, 9, 1000).astype(np.float64) for r in range(4)]
        mine = parts[world.rank]
        np.testing.assert_array_equal(hosts.allgather(mine.reshape(10, 100)), np.stack(parts).reshape(4, 10, 100))
        sizes = [8000, 5, 0, 13]
        found = hosts.allgather_parts(mine.view(np.uint8)[: sizes[world.rank]], sizes)
        for part, whole, size in zip(found, parts, sizes, strict=True):
            np.testing.assert_array_equal(part, whole.view(np.uint8)[:size])
        for bounds in ([0, 10, 20, 500, 1000], [0, 0, 1000, 1000, 1000]):
            slice_ = hosts.reduce_scatter(mine, bounds)
            np.testing.assert_array_equal(slice_, sum(parts)[bounds[world.rank] : bounds[world.rank + 1]])
        total = np.empty_like(mine)
        hosts.allreduce(mine, total, False)
        np.testing.assert_array_equal(total, sum(parts))
        world.Barrier()
"""


@pytest.mark.full
def test_ranks_of_a_host_need_not_follow_each_other():
    status, _, errors = finish(start(4, APART, before=""))
    assert (status, errors) == (0, "")


@pytest.mark.full
def test_compressed_gradients_of_hosts_go_on_from_a_checkpoint_to_the_bit(jobs, tmp_path):
    x = gk.input("x", ["N", 1, 8, 8])
    net = str(tmp_path / "net.json")
    gk.Model(gk.nn.linear(gk.relu(gk.nn.linear(gk.flatten(x), 64)), 10), name="net").save(net)
    fewer = ["--compression", "2bit:0.001"]
    for folder, epochs, options in [
        ("whole", "2", fewer), ("parts", "1", fewer), ("parts", "2", [*fewer, "--resume"]), ("plain", "2", []),
    ]:  # fmt: skip
        train = ["train", net, "--data", "digits", "--epochs", epochs, "--optimizer", "adam", "--lr", "0.003"]
        train += ["--kvstore", "dist_sync", "--batch-size", "64", "--deterministic", "--seed", "1"]
        jobs.run(command(*train, "-o", tmp_path / folder, *options), 4, ranks_per_host=2)
    whole, parts, plain = (gk.load(tmp_path / name / "model.json") for name in ("whole", "parts", "plain"))
    for name, array in whole.params.items():
        np.testing.assert_array_equal(parts.params[name], array)
    assert any((plain.params[name] != array).any() for name, array in whole.params.items())
    saved = checkpoint.load(tmp_path / "parts").residuals
    assert [bool(part) for part in saved] == [True, False, True, False]  # the leaders'


# --- jobs ---------------------------------------------------------------------------------------------

STOPS = """
    import os, signal, time
    steps(3)
    kv.transport.communicator.set_timeout(2)  # not before: processes of a busy machine do not start as one
    with kv.working():
        time.sleep(1.5)  # so that all hosts have heard of it
    if kv.rank == {rank}:
        {how}
    steps(2)
"""


STOP, STALL = "os.kill(os.getpid(), signal.SIGSTOP)", "time.sleep(1000)"


@pytest.mark.full
@pytest.mark.parametrize(
    ("ranks", "per_host", "rank", "how", "said"),
    [
        (2, 1, 1, STOP, r"rank 0: host \S+:1 \(rank 1\) has sent no heartbeat for \d+ s; rank 1 .* in step 3"),
        full(2, 1, 0, STALL, r"rank 1: rank 0 on \S+:0 \(process \d+\) has made no progress for \d+ s; .* in step 3"),
        # The leader of a host of two: those of its own host see which process it is, others that they hear nothing.
        full(
            4,
            2,
            2,
            STOP,
            r"rank 3: rank 2 on \S+:1 .* no heartbeat|rank [01]: host \S+:1 \(ranks 2, 3\) has sent no heartbeat",
        ),
        full(4, 2, 3, STOP, r"rank [012]: rank 3 on \S+:1 \(process \d+\) has sent no heartbeat"),
    ],
)
def test_a_rank_of_another_host_that_does_not_come_ends_the_job(monkeypatch, ranks, per_host, rank, how, said):
    monkeypatch.setenv(config.RANKS_PER_HOST.name, str(per_host))
    status, _, errors = finish(start(ranks, STOPS.format(rank=rank, how=how)))
    assert status in FAILED
    assert re.search(f"graphkit: ({said})", errors), errors


COMPRESSED_STOPS = """
    import os, signal, time
    import numpy as np
    from graphkit.dist import kvstore
    from graphkit.dist.job import ending
    with ending.abort_on_error():
        kv = kvstore.create("dist_sync")
        kv.set_gradient_compression("float16")
        def steps(n):
            for _ in range(n):
                kv.begin_step()
                kv.pushpull("w", np.ones(1000, np.float32))
                kv.transport.start_row_sum("rows", kvstore.RowSparse([kv.rank], np.ones((1, 2)))).wait()
        steps(3)
        kv.transport.communicator.set_timeout(2)
        with kv.working():
            time.sleep(1.5)
        if kv.rank == {rank}:
            os.kill(os.getpid(), signal.SIGSTOP)
        steps(2)
"""


@pytest.mark.full
@pytest.mark.parametrize("rank", [2, 3])
def test_who_does_not_come_to_a_sum_inside_of_a_host_ends_the_job(monkeypatch, rank):
    monkeypatch.setenv(config.RANKS_PER_HOST.name, "2")
    status, _, errors = finish(start(4, COMPRESSED_STOPS.format(rank=rank), before=""))
    assert status in FAILED
    stopped = rf"rank {rank} on \S+:1 .* no heartbeat|host \S+:1 \(ranks 2, 3\) has sent no heartbeat"
    assert re.search(f"graphkit: rank [0-3]: ({stopped})", errors), errors


@pytest.mark.parametrize(("per_host", "level"), [(None, "SERIALIZED"), (1, "MULTIPLE")])
def test_ranks_share_a_file_without_a_name_and_mpi_has_the_threads_it_needs(jobs, per_host, level):
    code = f"""
    from pathlib import Path
    from mpi4py import MPI
    assert MPI.Query_thread() == MPI.THREAD_{level}, MPI.Query_thread()
    shared = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/graphkit-" in line]
    assert shared and all(line.endswith("(deleted)") for line in shared), shared
    """
    jobs.run(code, ranks_per_host=per_host)


@pytest.mark.full
def test_who_is_lost_while_hosts_connect_leaves_no_file(monkeypatch):
    monkeypatch.setenv(config.RANKS_PER_HOST.name, "1")
    code = """
    import os
    from graphkit.dist import kvstore
    from graphkit.dist.job import mpi
    create, relay, paths = mpi.HeartbeatBoard.create, mpi.HeartbeatRelay, []
    def created(*sizes):
        paths.append(create(*sizes))
        return paths[-1]
    def connected(*of):
        print([os.path.exists(path) for path in paths])
        return relay(*of)
    mpi.HeartbeatBoard.create, mpi.HeartbeatRelay = created, connected
    kvstore.create("dist_sync")
    """
    status, out, errors = finish(start(2, code, before=""))
    assert (status, out) == (0, "[False]\n[False]\n"), errors


@pytest.mark.full
def test_who_works_for_long_on_another_host_is_waited_for(monkeypatch):
    monkeypatch.setenv(config.RANKS_PER_HOST.name, "1")
    how = "with kv.working():\n            time.sleep(4)"
    status, _, errors = finish(start(2, STOPS.format(rank=1, how=how)))
    assert (status, errors) == (0, "")


@pytest.mark.full
def test_jobs_end_in_order_with_signs_on_their_way(monkeypatch):
    monkeypatch.setenv(config.RANKS_PER_HOST.name, "1")
    code = """
        import time
        from graphkit.dist import kvstore
        kv = kvstore.create("dist_sync", timeout=0.08)  # a hundred messages a second
        time.sleep(2)
        kv.transport.communicator.set_timeout(1000)
        print("over", kv.rank, flush=True)
    """
    status, out, errors = finish(start(2, code, before=""))
    assert (status, errors) == (0, "")
    assert out.count("over") == 2


LEVEL = """
    import atexit, mpi4py
    import numpy as np
    mpi4py.rc(initialize=False)
    from mpi4py import MPI
    from graphkit.dist import kvstore
    {first}
    kv = kvstore.create("dist_sync")
    assert MPI.Query_thread() == MPI.THREAD_{level}, MPI.Query_thread()
    assert (kv.transport.communicator._monitor is not None) == {watched}
    assert kv.pushpull("w", np.ones(3)).tolist() == [2] * 3
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("per_host", "first", "level", "watched"),
    [
        (None, "", "SERIALIZED", True),  # what does not cost time
        ("1", "", "MULTIPLE", True),
        (
            "1",
            "MPI.Init_thread(MPI.THREAD_SERIALIZED); atexit.register(MPI.Finalize)",
            "SERIALIZED",
            False,
        ),  # as a script has it
    ],
)
def test_threads_of_mpi_are_asked_for_where_there_are_hosts(monkeypatch, per_host, first, level, watched):
    if per_host is not None:
        monkeypatch.setenv(config.RANKS_PER_HOST.name, per_host)
    code = LEVEL.format(first=first, level=level, watched=watched)
    status, _, errors = finish(start(2, code, before=""))
    assert (status, errors) == (0, "")


@in_one_item()
@pytest.mark.parametrize("text", ["0", "-1", "two"])
def test_hosts_of_no_ranks(monkeypatch, text):
    monkeypatch.setenv(config.RANKS_PER_HOST.name, text)
    with pytest.raises(config.UsageError, match="GRAPHKIT_RANKS_PER_HOST"):
        config.RANKS_PER_HOST.get()
