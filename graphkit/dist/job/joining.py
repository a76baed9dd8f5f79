"""The start of MPI in a process."""

from __future__ import annotations

from graphkit.dist.job import ending, status_pipe, survival
from graphkit.dist.job.mpi import MpiCommunicator, started
from graphkit.dist.job.start import LEAST_TIMEOUT, checked_timeout, deadline, launcher_rank
from graphkit.errors import UsageError

_joined: MpiCommunicator | None = None


def join(servers: int = 0, timeout: float | None = None, replicated: bool = False) -> MpiCommunicator:
    """Return the communicator of the workers: all processes except the last `servers`.

    The first call initialises MPI: every process must make it within `timeout` seconds (default: GRAPHKIT_RANK_TIMEOUT;
    at least start.LEAST_TIMEOUT). Later calls return the same communicator.

    A later call with `servers` above 0 raises UsageError unless its `servers` and `replicated` equal those of the first
    call. replicated: survive the loss of a server.
    """
    global _joined
    if _joined is None:
        _joined = _create(servers, checked_timeout(timeout), replicated)
    if servers and replicated != _joined.replicated:
        raise UsageError(
            f"the first store of this job was created with replicate={_joined.replicated}: pass the same value for "
            "every later store"
        )
    if servers and servers != _joined.servers:
        raise UsageError(
            f"the first store of this job was created with servers={_joined.servers}: pass the same number for every "
            f"later store, not {servers}"
        )
    return _joined


def _create(servers: int, timeout: float, replicated: bool) -> MpiCommunicator:
    place = started()
    if replicated:
        survival.prepare(servers)
    status_pipe.join()
    if (rank := launcher_rank()) is not None:
        status_pipe.report(status_pipe.BEGUN, rank)
    try:
        with deadline(max(timeout, LEAST_TIMEOUT), place):
            communicator = MpiCommunicator(servers, replicated)
    except BaseException:
        if rank is not None:
            status_pipe.report(status_pipe.FAILED, rank)
        raise
    status_pipe.report(status_pipe.STARTED, communicator.job_rank)
    ending.register(communicator)
    return communicator
