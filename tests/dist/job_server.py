"""A job of MPI ranks that is started once and runs the code of many tests: `python job_server.py` is one of its ranks.

A start costs about 0.7 s of processor time for each rank; a piece of code that a running job gets costs milliseconds.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Client, Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from graphkit import config
from graphkit.dist.job import launch

# Seconds. The bounds are only reached by a job that hangs.
_START, _RUN, _END = 300.0, 300.0, 300.0
# Where the code of a test finds the modules of the tests.
FOLDERS = [str(folder) for folder in Path(__file__).parents[:2]]


class JobKind(NamedTuple):
    """Parameters of a job. The last `servers` ranks are parameter servers; the others run the code of tests."""

    ranks: int
    store: str = "dist_sync"
    servers: int = 0
    ranks_per_host: int | None = None


class JobError(AssertionError):
    """The code failed on a rank, or the job hangs or has ended; the message has the traceback of each rank."""


class Job:
    """A job that has been started. A job whose code failed is `broken` and runs nothing more."""

    def __init__(self, kind: JobKind):
        self.kind, self.broken = kind, False
        self._folder = tempfile.TemporaryDirectory(prefix="graphkit-job-")
        self._errors = open(Path(self._folder.name) / "errors", "w+")  # noqa: SIM115 - open as long as the job runs
        environment = dict(os.environ)
        environment.pop(config.RANKS_PER_HOST.name, None)
        if kind.ranks_per_host is not None:
            environment[config.RANKS_PER_HOST.name] = str(kind.ranks_per_host)
        address = str(Path(self._folder.name) / "socket")
        command = [launch.find_mpiexec(), "-n", str(kind.ranks), sys.executable, "-P", __file__, address]
        command += [kind.store, str(kind.servers)]
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(kind.ranks)
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._errors, stderr=self._errors, env=environment,
                start_new_session=True,
            )  # fmt: skip
            self._ranks = self._connected(listener)

    def _connected(self, listener: socket.socket) -> list[Connection]:
        """The connections to the ranks that run code, by rank."""
        found: dict[int, Connection] = {}
        listener.settimeout(1.0)
        for _ in range(int(_START)):
            with contextlib.suppress(TimeoutError):
                connection = Connection(listener.accept()[0].detach())
                found[connection.recv()] = connection
            if len(found) == self.kind.ranks - self.kind.servers:
                return [found[rank] for rank in sorted(found)]
            if self._process.poll() is not None:
                break
        raise JobError(f"the job does not start: {self._break()}")

    def run(self, code: str, timeout: float = _RUN) -> list[str]:
        """Run code on all worker ranks; return the output of each, stdout and stderr, by rank.

        Args:
            code: Python code. `kv` is the job's store; `kvstore.create("dist_sync")` makes a new one.
            timeout: Seconds after which the job counts as hanging.

        Raises:
            JobError: The code raised on a rank, or did not end in time. The job is broken then.
        """
        self._send(textwrap.dedent(code))
        outputs: dict[int, str] = {}
        failures: dict[int, str] = {}
        while len(outputs) + len(failures) < len(self._ranks):
            waiting = [c for number, c in enumerate(self._ranks) if number not in outputs.keys() | failures.keys()]
            # Ranks that wait for one that failed do not answer.
            ready = wait(waiting, 2.0 if failures else timeout)
            if not ready:
                break
            for connection in ready:
                number = self._ranks.index(connection)
                try:
                    output, failure = connection.recv()
                except (EOFError, ConnectionResetError):  # reset: it ended before it had read all
                    output, failure = "", "it has ended"
                if failure:
                    failures[number] = f"{output}{failure}"
                else:
                    outputs[number] = output
        silent = set(range(len(self._ranks))) - outputs.keys() - failures.keys()
        if failures or silent:
            texts = [f"rank {number}: {text}" for number, text in sorted(failures.items())]
            texts += [f"rank {number} does not answer" for number in sorted(silent)]
            raise JobError("\n".join([*texts, self._break()]))
        return [outputs[number] for number in range(len(self._ranks))]

    def _send(self, code: str | None) -> None:
        """Send to all ranks. One that has ended is found by who waits for its answer, or for the end of the job."""
        for rank in self._ranks:
            with contextlib.suppress(BrokenPipeError):
                rank.send(code)

    def _break(self) -> str:
        """Kill the job; return the output of its processes."""
        self.broken = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_END)
        return self._printed()

    def _printed(self) -> str:
        self._errors.seek(0)
        text = self._errors.read()
        self._errors.close()
        self._folder.cleanup()
        return text

    def end(self) -> None:
        """End the job in order. Raises JobError where it does not, or where its processes have printed something."""
        if self.broken:
            return
        self._send(None)
        try:
            status = self._process.wait(_END)
        except subprocess.TimeoutExpired:
            raise JobError(f"the job does not end: {self._break()}") from None
        printed = self._printed()
        if status or printed:
            raise JobError(f"the job has ended with status {status}: {printed}")


class Jobs:
    """Running jobs by their parameters. At most `_MOST` run at a time, because each needs memory."""

    _MOST = 3

    def __init__(self) -> None:
        self._jobs: dict[JobKind, Job] = {}

    def run(self, code: str, ranks: int = 2, **options: Any) -> list[str]:
        """Call `Job.run` in a job of the given kind. If none is running, start it. options: those of JobKind."""
        kind = JobKind(ranks, **options)
        job = self._jobs.pop(kind, None)
        if job is None or job.broken:
            while len(self._jobs) >= self._MOST:
                self._jobs.pop(next(iter(self._jobs))).end()
            job = Job(kind)
        self._jobs[kind] = job  # the last of them was used last
        return job.run(code)

    def end(self) -> None:
        while self._jobs:
            self._jobs.popitem()[1].end()


def command(*arguments: object) -> str:
    """Code that runs a command of graphkit on a rank, for `Jobs.run`."""
    given = list(map(str, arguments))
    return f"from graphkit.cli import cli\ncli.main({given!r}, prog_name='graphkit', standalone_mode=False)"


@contextlib.contextmanager
def running() -> Iterator[Jobs]:
    jobs = Jobs()
    try:
        yield jobs
    finally:
        jobs.end()


# --- a rank -------------------------------------------------------------------------------------------


def _attempt(code: str, kv: Any) -> tuple[str, str]:
    """Run the code; return its output, and the traceback if it raised."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            exec(compile(code, "<code of a test>", "exec"), {"__name__": "__main__", "kv": kv})
        kv.wait()
        kv.transport.communicator.flush()
        # All ranks have done the same: no call of this code is met by one of the next.
        kv.transport.communicator.perform("end of the code of a test")
    except BaseException:  # noqa: BLE001 - the test raises it
        return printed.getvalue(), traceback.format_exc()
    return printed.getvalue(), ""


def _serve(address: str, store: str, servers: str) -> None:
    """Run received code until None is received. If this process is a parameter server, `create` does not return."""
    from graphkit.dist import kvstore

    sys.path[:0] = FOLDERS
    kv = kvstore.create(store, **({"servers": int(servers)} if int(servers) else {}))
    connection = Client(address, "AF_UNIX")
    connection.send(kv.rank)
    while (code := connection.recv()) is not None:
        if not kv.is_remote:  # servers compare the steps of workers, which never go back
            kv.transport.communicator.steps = 0
        connection.send(_attempt(code, kv))


if __name__ == "__main__":
    _serve(*sys.argv[1:])
