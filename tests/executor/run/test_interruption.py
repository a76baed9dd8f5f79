"""Ctrl-C in a run: between its steps, with states as they were or all new, and the executor usable afterwards."""

import subprocess
import sys

import pytest
from combinations import in_one_item

HEAD = """
import os, signal, sys, threading, time
import numpy as np, graphkit as gk

class Alarm:
    '''Send a signal after some seconds; record how long after it the block was left.'''
    def __init__(self, seconds): self.seconds = seconds
    def __enter__(self):
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
    def __exit__(self, *_): signal.setitimer(signal.ITIMER_REAL, 0)

x = gk.input("x", [ROWS, 256])
h = x
for i in range(LAYERS):
    h = gk.tanh(gk.nn.linear(h, 256, name=f"layer{i}"))
net = gk.Model({"y": gk.nn.linear(h, 4, name="last")})
data = np.random.default_rng(0).standard_normal((ROWS, 256)).astype(np.float32)
"""


def run(code, layers, rows=64, timeout=300):
    script = (HEAD + code).replace("LAYERS", str(layers)).replace("ROWS", str(rows))
    command = [sys.executable, "-P", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# A trace records which steps have begun. An interrupted run has fewer than a complete one.
BETWEEN = """
from graphkit.executor.run import base_program as programs

seen, took = [], []
class Record:
    seconds = 0  # after which SIGINT comes; 0: never
    def run(self, program, native, run):
        native.trace(True)
        sent = threading.Timer(self.seconds, os.kill, (os.getpid(), signal.SIGINT))
        began = time.perf_counter()
        if self.seconds:
            sent.start()
        try:
            return run()
        finally:
            took.append(time.perf_counter() - began)
            seen.append(len(native.events()))
            sent.cancel()  # a signal that is late comes here, and not after the run
            if self.seconds:
                sent.join()

runner = net.compile(threads=1)
(expected,) = runner(data)
programs.recorder = record = Record()
runner(data)
runner(data)
stopped = 0
while not stopped:
    record.seconds = 0.3 * min(took[:2])
    try:
        runner(data)
    except KeyboardInterrupt:
        stopped = seen[-1] < seen[0]
    # Interrupted work is not used again: the weights are packed again.
    record.seconds = 0
    runner(data)
programs.recorder = None
print(stopped, np.array_equal(runner(data)[0], expected))
"""


def test_a_run_ends_between_its_steps():
    assert run(BETWEEN, layers=200, rows=512) == "True True\n"


OTHERS = """
runner = net.compile(threads=1)
(expected,) = runner(data)
results = []
def work():
    for _ in range(10):
        results.append(np.array_equal(runner(data)[0], expected))
thread = threading.Thread(target=work)
thread.start()
try:
    with Alarm(0.05):
        while True:
            runner(data)
except KeyboardInterrupt:
    print("interrupted")
thread.join()
print(results == [True] * 10)
"""


def test_runs_in_other_threads_go_on():
    assert run(OTHERS, layers=150) == "interrupted\nTrue\n"


# After each interruption the states are those of as many steps without any.
TRAIN = """
targets = np.random.default_rng(1).standard_normal((ROWS, 4)).astype(np.float32)

def trainer():
    model = gk.Model.from_graph(net.graph, dict(net.params))
    return gk.Trainer(model, "mse", gk.optim.SGD(0.01, momentum=0.9), threads=1)

calm, hasty = trainer(), trainer()
names = [calm.graph.name_of(v) for v in calm.graph.inputs if v.role == "data"]
feeds = dict(zip(names, (data, targets, np.float32(0.01)), strict=True))

def step(one):
    STEP

def steps(one):
    return int(one._stepper.slots["optimizer_step"])

step(calm), step(hasty)
interrupted = 0
rng = np.random.default_rng(2)
while interrupted < TIMES or steps(hasty) < 3:
    try:
        with Alarm(float(rng.uniform(0.001, 0.06))):
            while True:
                step(hasty)
    except KeyboardInterrupt:
        interrupted += 1
    while steps(calm) < steps(hasty):
        step(calm)
    for mine, theirs in ((calm.net.params, hasty.net.params), (calm._stepper.slots, hasty._stepper.slots)):
        for name in mine:
            assert np.array_equal(mine[name], theirs[name]), (name, steps(hasty), interrupted)
print("same", steps(hasty) > 1)
"""


@in_one_item()
@pytest.mark.parametrize("times", [3, pytest.param(40, marks=pytest.mark.full)])
@pytest.mark.parametrize("step", ["one.step(data, targets)", "one.executor.run(feeds)"], ids=["trainer", "executor"])
def test_an_interrupted_step_is_whole_or_not_taken(step, times):
    assert run(TRAIN.replace("STEP", step).replace("TIMES", str(times)), layers=40) == "same True\n"
