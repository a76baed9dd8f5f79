"""How tests start jobs of several processes, and wait for their ends."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from graphkit.dist.job import launch
from graphkit.errors import RuntimeFailure


def statuses(code):
    """Return the statuses that a launcher may have if a rank ends its job with `code`.

    MPICH's launcher kills the other ranks. Its status is the code, or the number of the signal, or the bitwise or of
    both.
    """
    return (code, signal.SIGKILL, code | signal.SIGKILL)


FAILED = statuses(RuntimeFailure.exit_code)


def command_statuses(code):
    """Return the statuses that a command may have if it starts a job and a rank of the job ends with `code`.

    If the launcher's status contains a signal, the command reports a RuntimeFailure.
    """
    return (code, RuntimeFailure.exit_code)


# Beginnings of the code of a job, which define `steps(n)`: steps of one all-reduce each, or of a trainer. The imports
# and the compilation of a trainer take a second of processor time on each rank.
STEPS = """
    import sys, time, numpy as np, graphkit as gk
    kv = gk.kvstore.create("dist_sync")
    def steps(n):
        for _ in range(n):
            kv.begin_step()
            kv.pushpull("loss", np.ones(2))
"""
TRAINER = """
    import sys, time, numpy as np, graphkit as gk
    kv = gk.kvstore.create("dist_sync")
    x = gk.input("x", ["N", 3])
    trainer = gk.Trainer(gk.Model(gk.nn.linear(x, 2, name="fc")), "mse", gk.optim.SGD(0.1), kvstore=kv, threads=1)
    def steps(n):
        for _ in range(n):
            trainer.step(np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32))
"""


def start(processes, code, before=STEPS, options=()):
    """Start a job whose ranks run `before`, then `code`. options: of the launcher."""
    code = textwrap.dedent(before) + textwrap.dedent(code)
    command = [launch.find_mpiexec(), *options, "-n", str(processes), sys.executable, "-u", "-P", "-c", code]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **pipes, text=True, start_new_session=True)


def finish(job, timeout=300):
    """Exit status, output and errors of a job; one that hangs is killed, and fails the test."""
    try:
        out, errors = job.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        out, errors = job.communicate()
        pytest.fail(f"the job hangs: {out} {errors}")
    return job.returncode, out, errors
