"""Forks, the end of the interpreter, interruptions and lost executors, each in a new process."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import pytest

HEAD = """
import multiprocessing, os, signal, threading, time
import numpy as np
import graphkit as gk

x = gk.input("x", ["N", 64])
net = gk.Model(gk.softmax(gk.nn.linear(gk.tanh(gk.nn.linear(x, 256, name="one")), 64, name="two")))
array = np.random.default_rng(0).standard_normal((256, 64)).astype(np.float32)

def compiled(threads):
    exe = net.compile(threads=threads)
    return exe, exe(array)[0]
"""

FORK = """
exe, expected = compiled(4)
single, _ = compiled(1)

def child(queue):
    queue.put([np.array_equal(model(array)[0], expected) for model in (single, exe, exe, net.compile(threads=4))])

def forked():
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(*queue.get(timeout=120))
    process.join()

forked()
busy = True

def work():
    while busy:
        exe(array)

thread = threading.Thread(target=work)
thread.start()
for _ in range(3):
    forked()
busy = False
thread.join()
"""

LEAVE = """
exe, _ = compiled(THREADS)

def work():
    while True:
        exe(array)

for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""

# A thread that is not in a run, and holds a model.
LEAVE_IDLE = """
ready = threading.Event()

def work():
    exe, _ = compiled(THREADS)
    ready.set()
    time.sleep(1000)

threading.Thread(target=work, daemon=True).start()
assert ready.wait(120)
"""

# A run that takes longer than the end of the process.
LEAVE_IN_A_RUN = """
x = h = gk.input("x", ["N", 64])
for i in range(200):
    h = gk.relu(gk.nn.linear(h, 64, name=f"fc{i}"))
exe = gk.Model(h).compile(threads=THREADS)
rows = np.random.rand(6000, 64).astype(np.float32)
exe(rows)

def work():
    while True:
        exe(rows)

for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
"""

# Python is called inside of a loop, for what is interpreted.
LEAVE_LOOPS = """
@gk.op
class Twice(gk.Op):
    \'\'\'2 x\'\'\'
    domain = "test.leave"
    inputs = ("x",)
    samples = (gk.Sample((2,)),)

    def infer(self, x):
        return x

    def reference(self, xp, x):
        return 2 * x

x = gk.input("x", [2])
end = gk.while_loop(lambda y: gk.reduce_sum(y, keepdims=False) < np.float32(1), gk.twice, x)
exe = gk.Model(end).compile(threads=THREADS)

def work():
    exe(np.zeros(2, np.float32))  # never ends

for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
"""

INTERRUPT = """
count = gk.while_loop(lambda i: i < np.array(10**12), lambda i: i + np.array(1), gk.ops.F.constant(value=np.array(0)))
exe = gk.Model(count).compile(threads=2)
signal.signal(signal.SIGALRM, signal.default_int_handler)
for _ in range(2):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        exe()
    except KeyboardInterrupt:
        print("interrupted")
model, expected = compiled(2)
print(np.array_equal(model(array)[0], expected))
"""

INTERRUPT_PARTS = """
x = h = gk.input("x", ["N", 16, 64, 64])
for _ in range(40):
    h = gk.relu(gk.nn.conv2d(h, 16, 3, pad=1))
exe = gk.Model({"y": h}).compile(threads=2)
images = np.ones((256, 16, 64, 64), np.float32)
expected = exe(images[:8])[0]
exe.specialise({"x": images.shape})  # the signal comes in the run
signal.signal(signal.SIGALRM, signal.default_int_handler)
for _ in range(2):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        exe(images)
    except KeyboardInterrupt:
        print("interrupted", exe.plan.examples[1])
print(np.allclose(exe(images[:8])[0], expected))
"""

LEAK = """
import gc

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

def grown(times, act):
    for _ in range(times):  # caches fill
        act()
    gc.collect()
    before = resident()
    for _ in range(times):
        act()
    gc.collect()
    return resident() - before

exe, _ = compiled(2)
def lengths():
    for rows in range(1, 101):
        exe(np.ones((rows, 64), np.float32))

print(grown(3, lengths) < 10, grown(50, lambda: compiled(2)) < 4)
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    # Run in another folder, so that the installed package is imported and not the sources.
    command = [sys.executable, "-P", "-c", HEAD + script]
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder)


# Without oneDNN, numpy computes matrix products. They hang in a child that is forked while another thread runs them.
@pytest.mark.onednn
@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork here")
def test_children_of_a_fork_run_models() -> None:
    done = run(FORK)
    assert done.stdout.split() == ["True"] * 16, done.stderr


ALL = (LEAVE, LEAVE_IDLE, LEAVE_LOOPS, LEAVE_IN_A_RUN)
# Scripts and numbers of threads of what runs in one process.
LEAVING = [
    [(script, 4) for script in ALL],
    *(pytest.param([(script, threads)], marks=pytest.mark.full) for threads in (1, 4) for script in ALL),
]


@pytest.mark.full
@pytest.mark.parametrize("scripts", LEAVING)
def test_the_interpreter_may_end_while_threads_run(scripts: list[tuple[str, int]]) -> None:
    """Each script has names of its own."""
    begun = [f"exec({s.replace('THREADS', str(n))!r}, dict(globals()))\n" for s, n in scripts]
    done = run("".join(begun) + 'print("leaving")\n')
    assert (done.returncode, done.stdout, done.stderr) == (0, "leaving\n", "")


def test_a_loop_can_be_interrupted() -> None:
    done = run(INTERRUPT)
    assert done.stdout.split() == ["interrupted", "interrupted", "True"], done.stderr


@pytest.mark.onednn
def test_a_batch_in_parts_can_be_interrupted() -> None:
    done = run(INTERRUPT_PARTS)
    assert done.stdout.split() == ["interrupted", "256"] * 2 + ["True"], done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_neither_lengths_nor_executors_leak() -> None:
    done = run(LEAK)
    assert done.stdout.split() == ["True", "True"], done.stderr
