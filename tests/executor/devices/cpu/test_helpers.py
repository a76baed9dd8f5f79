"""Helper threads: they take chunks, and the caller does not wait for helpers that do not run."""

import contextlib
import os
import platform
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from combinations import full, in_one_item

import graphkit as gk
from graphkit.executor.devices.cpu import native

linux = pytest.mark.skipif(sys.platform != "linux", reason="threads are told apart by /proc")


def helpers() -> list[int]:
    """Threads of this process that are helpers."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            if (task / "comm").read_text() == "graphkit-helper\n":
                found.append(int(task.name))
    return found


def network():
    x = gk.input("x", ["N", 16, 12, 12])
    h = gk.relu(gk.nn.conv2d(x, 32, kernel=3, pad=1, name="c1"))
    h = gk.relu(gk.nn.conv2d(h, 32, kernel=1, name="c2"))
    h = gk.softmax(gk.nn.linear(gk.flatten(h), 64, name="f"))
    return gk.Model({"y": h, "s": gk.reduce_sum(gk.exp(h) * h, axes=(1,), keepdims=False)}, name="net")


def feeds(images: int = 8) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).standard_normal((images, 16, 12, 12)).astype(np.float32)}


def python(code: str, timeout: float = 300) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=timeout,
        check=False, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@linux
def test_helpers_without_a_core_hold_nobody_up():
    """The helpers may only use a core that another process keeps busy, with idle priority. So they hardly ever run."""
    executor, alone = (network().compile(threads=n, seed=0) for n in (4, 1))
    expected = alone.run(feeds())
    executor.run(feeds())
    core = max(os.sched_getaffinity(0))
    while len(found := helpers()) < 3:  # one that has not run yet has no name
        time.sleep(0.01)
    before = {task: (os.sched_getaffinity(task), os.sched_getscheduler(task)) for task in found}
    busy = subprocess.Popen([sys.executable, "-P", "-c", "while True: pass"])
    try:
        os.sched_setaffinity(busy.pid, {core})
        for task in found:
            os.sched_setaffinity(task, {core})
            os.sched_setscheduler(task, os.SCHED_IDLE, os.sched_param(0))
        for _ in range(200):
            got = executor.run(feeds())
            for name, y in expected.items():
                np.testing.assert_allclose(got[name], y, rtol=1e-5, atol=1e-6)
    finally:
        busy.kill()
        busy.wait()
        for task, (cores, policy) in before.items():
            os.sched_setscheduler(task, policy, os.sched_param(0))
            os.sched_setaffinity(task, cores)


@pytest.fixture(params=[False, True], ids=["work that pays", "all work"])
def shared_work(request: pytest.FixtureRequest) -> Iterator[None]:
    """Very short loops are shared, too: thousands of them follow each other."""
    native.share_all_work(request.param)
    yield
    native.share_all_work(False)


@pytest.mark.usefixtures("shared_work")
def test_many_threads_share_one_executor():
    executor = network().compile(threads=3, seed=0)
    data = [feeds(n) for n in (1, 3, 8)]
    # A size that has come often gets a program of its own, which may round otherwise.
    expected = [executor.run(data[run % len(data)]) for run in range(40 * len(data))][-len(data) :]

    def call(offset: int) -> None:
        for number in range(60):
            which = (number + offset) % len(data)
            for name, y in executor.run(data[which]).items():
                np.testing.assert_array_equal(y, expected[which][name])

    for callers in (1, 2, 8):
        with ThreadPoolExecutor(callers) as threads:
            for done in [threads.submit(call, i) for i in range(callers)]:
                done.result()


def test_more_threads_than_can_share_at_the_same_time():
    """Of more threads than there are places to share from, some compute alone."""
    x = np.random.default_rng(0).standard_normal((64, 16384)).astype(np.float32)
    executor = gk.Model(gk.softmax(gk.input("x", x.shape))).compile(threads=2)
    expected = executor.run({"x": x})["softmax"]
    start = threading.Barrier(80)
    results: list[bool] = []

    def call() -> None:
        start.wait()
        results.extend(np.array_equal(executor.run({"x": x})["softmax"], expected) for _ in range(3))

    threads = [threading.Thread(target=call) for _ in range(80)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 240


FORK = """
    import os, threading, time, numpy as np, graphkit as gk
    x = gk.input("x", [64, 4096])
    net = gk.Model(gk.softmax(gk.exp(x * 0.5)), name="net")
    data = np.random.default_rng(0).standard_normal((64, 4096)).astype(np.float32)
    executor = net.compile(threads=4)
    name = next(iter(executor.run({"x": data})))
    expected = executor.run({"x": data})[name]
    def name_of(thread):
        try:
            return open(f"/proc/self/task/{thread}/comm").read()
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            return ""
    def helpers():
        return [t for t in os.listdir("/proc/self/task") if name_of(t) == "graphkit-helper\\n"]
    def check():
        for _ in range(8):
            assert np.array_equal(executor.run({"x": data})[name], expected)
        while len(helpers()) != 3:  # a helper that has not run yet has no name
            time.sleep(0.01)
    stop = threading.Event()
    def others():
        while not stop.is_set():
            executor.run({"x": data})
    beside = [threading.Thread(target=others) for _ in range(OTHERS)]
    for thread in beside:
        thread.start()
    ended = []
    for _ in range(6):
        child = os.fork()
        if child == 0:
            check()
            grandchild = os.fork()
            if grandchild == 0:
                check()
                os._exit(0)
            os._exit(os.waitpid(grandchild, 0)[1])
        ended.append(os.waitpid(child, 0)[1])
    stop.set()
    for thread in beside:
        thread.join()
    check()
    print(ended == [0] * 6)
"""


@pytest.mark.full
@linux
@in_one_item()
@pytest.mark.parametrize("others", [full(0), 2])
def test_children_of_forks_have_helpers_of_their_own(others):
    assert python(FORK.replace("OTHERS", str(others))) == "True\n"


@linux
@pytest.mark.full
def test_a_child_claims_nothing_of_the_parents_loops(tmp_path):
    native = Path(gk.__file__).parent / "executor" / "native"
    if not native.exists():  # an installed package has no sources
        native = Path(__file__).parents[4] / "graphkit" / "executor" / "native"
    program = tmp_path / "pool_forks"
    sources = [Path(__file__).with_name("pool_forks.cpp"), native / "runtime" / "pool.cpp"]
    command = ["c++", "-std=c++20", "-O2", "-pthread", f"-I{native}", *map(str, sources), "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "0 of 15 rounds failed\n"), done.stderr


# Of what fegetenv stores: the word that has the flags that flush subnormal numbers (MXCSR, FPCR), and the flags.
FLUSH_FLAGS = {"x86_64": (7, 0x8040), "aarch64": (0, 1 << 24)}
# Subnormal numbers become zeros in the thread that says so, and in no helper that it starts.
FLUSH = """
    import ctypes, sys, numpy as np, graphkit as gk
    libm = ctypes.CDLL("libm.so.6")
    word, bits = FLAGS
    def flush(on):
        state = (ctypes.c_uint32 * 16)()
        libm.fegetenv(state)
        state[word] = state[word] | bits if on else state[word] & ~bits
        libm.fesetenv(state)
    def flushes():
        state = (ctypes.c_uint32 * 16)()
        libm.fegetenv(state)
        return state[word] & bits == bits
    executor = gk.Model(gk.input("x", ["N"]) * np.float32(0.5)).compile(threads=2)
    tiny = np.full(1_000_000, 2e-39, np.float32)
    if BEFORE:
        flush(True)
        executor.run({"x": tiny})  # starts the helpers
        flush(False)
    else:
        executor.run({"x": tiny})
        flush(True)
    zeros = 0
    for _ in range(6):
        (y,) = executor.run({"x": tiny}).values()
        zeros += int((y.view(np.int32) == 0).sum())
    print(zeros, flushes() is not BEFORE)
"""


@pytest.mark.full
@linux
@pytest.mark.skipif(platform.machine() not in FLUSH_FLAGS, reason="flags of this processor are not known")
@in_one_item()
@pytest.mark.parametrize("before", [True, False])
def test_results_do_not_depend_on_how_other_libraries_round(before):
    program = FLUSH.replace("BEFORE", str(before)).replace("FLAGS", str(FLUSH_FLAGS[platform.machine()]))
    assert python(program) == "0 True\n"


def test_loops_inside_of_chunks_are_computed_where_they_are():
    """A product that is cut into pieces runs inside of a loop over sequences, and the other way round."""
    rng = np.random.default_rng(0)
    x = gk.input("x", [12, 64, 96])
    w = rng.standard_normal((96, 96)).astype(np.float32) / 10

    def body(carry, row):
        carry = gk.tanh(carry @ gk.constant(value=w) + row)
        return carry, carry

    last, rows = gk.scan(body, gk.constant(value=np.zeros((64, 96), np.float32)), x)
    net = gk.Model({"last": last, "rows": rows})
    data = {"x": rng.standard_normal((12, 64, 96)).astype(np.float32)}
    one, several = (net.compile(threads=n).run(data) for n in (1, 3))
    for name in one:
        np.testing.assert_allclose(several[name], one[name], rtol=1e-5, atol=1e-5)


@linux
@pytest.mark.parametrize("pinned", [True, False])
def test_helpers_stay_on_a_core_each(monkeypatch, pinned):
    monkeypatch.setenv("GRAPHKIT_PIN", "1" if pinned else "0")
    printed = python(
        """
        import os, pathlib, time
        import graphkit as gk, numpy as np
        model = gk.Model({"y": gk.mat_mul(gk.input("a", [256, 256]), gk.input("b", [256, 256]))})
        a = np.eye(256, dtype=np.float32)
        assert (model.compile(threads=4).run({"a": a, "b": a})["y"] == a).all()
        def named(task): return (task / "comm").read_text() == "graphkit-helper\\n"
        while len(found := [t for t in pathlib.Path("/proc/self/task").iterdir() if named(t)]) < 3:
            time.sleep(0.01)
        def counts(): return sorted(len(os.sched_getaffinity(int(t.name))) for t in found)
        end = time.monotonic() + (60 if PINNED else 0.1)  # a helper has its name before it is pinned
        while counts() != [1, 1, 1] and time.monotonic() < end:
            time.sleep(0.01)
        print(*counts())
        print(len(os.sched_getaffinity(0)))
        """.replace("PINNED", str(pinned))
    )
    of_helpers, own = printed.splitlines()
    cores = len(os.sched_getaffinity(0))
    assert int(own) == cores  # the caller stays where it was
    assert of_helpers == ("1 1 1" if pinned else f"{cores} {cores} {cores}")


def test_a_core_that_cannot_be_is_refused():
    with pytest.raises(native.Error, match="core -1"):
        native.pin_helpers([-1])


def test_short_delays_do_not_keep_helpers_from_long_loops():
    """Delays as by a request that another thread answers, one after another, and by a process with time slices."""
    short = [(0.02 * number, 0.0004) for number in range(1, 50)]
    assert native.shared_after_delays(short, short[-1][0] + 0.001, [0.001, 0.005, 0.2]) == [False, False, True]
    assert native.shared_after_delays(short, short[-1][0] + 0.21, [0.001, 0.005, 0.2]) == [True, True, True]
    long = [(0.02 * number, 0.004) for number in range(1, 50)]
    assert native.shared_after_delays(long, long[-1][0] + 0.001, [0.001, 0.02, 0.2]) == [False, False, True]
    # The longest of delays that follow each other counts.
    assert native.shared_after_delays([*long, (0.99, 0.0004)], 0.991, [0.02, 0.2]) == [False, True]
