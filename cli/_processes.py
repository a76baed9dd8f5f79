"""The processes of a training: their options, and how they are started, again after a failure if so wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from graphkit import config
from graphkit.dist.job import launch
from graphkit.dist.kvstore import REMOTE
from graphkit.dist.rounds.channel import OVERLAPS
from graphkit.errors import UsageError

if TYPE_CHECKING:
    from graphkit.dist.kvstore import KVStore

_OPTIONS = (
    click.option(
        "--processes", type=click.IntRange(1), default=1, show_default=True,
        help="Start that many MPI processes that train; needs a --kvstore of several processes.",
    ),
    click.option(
        "--kvstore", default="local", show_default=True,
        help="local; dist_sync: sum gradients over all processes; with servers: dist_async, dist_bounded, elastic.",
    ),
    click.option(
        "--servers", type=click.IntRange(1), metavar="N",
        help="Processes that hold parameters, beside those of --processes, or the last ones of mpiexec. Default: 1.",
    ),
    click.option(
        "--replicate-servers", is_flag=True,
        help="Keep the state of each server on another one too, and go on when a server is lost; needs two --servers.",
    ),
    click.option(
        "--staleness", type=click.IntRange(0), metavar="STEPS",
        help="How far a process may be ahead of the slowest one. Default: 3. With --kvstore dist_bounded.",
    ),
    click.option(
        "--elastic-period", type=click.IntRange(1), metavar="UPDATES",
        help="Updates of a process between two exchanges with the centre. Default: 10. With --kvstore elastic.",
    ),
    click.option(
        "--elastic-strength", type=click.FloatRange(0, 1, min_open=True), metavar="NUMBER",
        help="How far processes and centre move together in an exchange, over all of them. Default: 0.9. With "
        "--kvstore elastic.",
    ),
    click.option(
        "--rank-timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
        help="End the job when a process gives no sign, does not go on while others wait (in a callback, for example), "
        "has not started MPI, or all processes wait for each other, for so long. Default: 60.",
    ),
    click.option(
        "--max-restarts", type=click.IntRange(0), default=0, show_default=True,
        help="With --processes, go on from the last checkpoint so many times when the job fails.",
    ),
    click.option(
        "--compression", metavar="TYPE[:NUMBER]",
        help="Send gradients as float16, bfloat16, 2bit[:threshold], top_k[:ratio]. With --kvstore dist_sync.",
    ),
    click.option(
        "--overlap", type=click.Choice(OVERLAPS), default="chained", show_default=True,
        help="How sums of gradients go on during the backward pass: not, one by one, or together.",
    ),
    click.option(
        "--bucket-mb", type=click.FloatRange(0, min_open=True), metavar="MB",
        help="Sum so many megabytes of gradients at once. Default: as the network's latency asks for.",
    ),
)  # fmt: skip


def process_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that `Job` is made of."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


class Job(NamedTuple):
    """What a command line says of processes."""

    processes: int
    kvstore: str
    servers: int | None
    replicate_servers: bool
    staleness: int | None
    elastic_period: int | None
    elastic_strength: float | None
    rank_timeout: float | None
    max_restarts: int
    compression: str | None
    overlap: str
    bucket_mb: float | None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Job:
        """Made of the options of a command; raises UsageError for those that do not go together."""
        job = cls(**{name: options[name] for name in cls._fields})
        if job.processes > 1 and job.kvstore == "local":
            raise UsageError(
                "--processes needs --kvstore dist_sync, or one with servers: with a local store every process would "
                "train alone"
            )
        if job.servers is not None and job.kvstore not in REMOTE:
            raise UsageError(f"--servers: {job.kvstore!r} has none; {', '.join(REMOTE)} do")
        for option, given in (("period", job.elastic_period), ("strength", job.elastic_strength)):
            if given is not None and job.kvstore != "elastic":
                raise UsageError(f"--elastic-{option} is of --kvstore elastic, not of {job.kvstore!r}")
        if job.replicate_servers and (job.kvstore not in REMOTE or job.server_count < 2):
            raise UsageError(f"--replicate-servers needs two servers at least, of --kvstore {', '.join(REMOTE)}")
        if job.max_restarts and job.processes == 1 and job.servers is None:
            raise UsageError("--max-restarts needs --processes: what started this process ends with its job")
        return job

    @property
    def is_to_be_started(self) -> bool:
        return (self.processes > 1 or self.servers is not None) and not launch.is_started()

    @property
    def size(self) -> int:
        """Processes that train, and servers."""
        if self.kvstore not in REMOTE:
            return self.processes
        return self.processes + self.server_count

    @property
    def server_count(self) -> int:
        """Where the store has servers, how many."""
        return config.SERVERS.get() if self.servers is None else self.servers

    def run(self, arguments: Sequence[str], folder: str | None) -> int:
        """Run `graphkit ARGUMENTS` in the processes of the job; return the exit status. See `run_job`."""
        return run_job(self.size, arguments, folder, self.max_restarts, self.replicate_servers)

    def store(self) -> KVStore:
        """The store of this process, which is one of the job's."""
        from graphkit.dist import kvstore
        from graphkit.dist.job.start import check_alone

        if self.kvstore in ("local", "device"):
            check_alone()
        size = None if self.bucket_mb is None else max(1, int(self.bucket_mb * 1e6))
        store = kvstore.create(
            self.kvstore, timeout=self.rank_timeout, overlap=self.overlap, bucket_bytes=size, servers=self.servers,
            staleness=self.staleness, period=self.elastic_period, strength=self.elastic_strength,
            replicate=self.replicate_servers,
        )  # fmt: skip
        if self.processes > 1:
            launch.check_size(self.processes, store.num_workers)
        if self.compression is not None:
            store.set_gradient_compression(self.compression)
        return store


def run_job(processes: int, arguments: Sequence[str], folder: str | None, restarts: int, survives: bool = False) -> int:
    """Run `graphkit ARGUMENTS` in so many processes, of which the others go on, if so wanted, when one is lost; return
    the exit status.

    A job that ends with a runtime failure (a process that died, stopped or stalled among them) goes on from the
    checkpoint in `folder`, up to so many times. One that fails while the folder still has the run that it was to
    replace is started again as it was.
    """
    from graphkit.cli._output import log
    from graphkit.errors import RuntimeFailure
    from graphkit.train.checkpoint import MANIFEST

    given = list(arguments)
    resumes, before = "--resume" in given, _run_in(folder)
    while True:
        status = launch.run_processes(processes, given, survives)
        if status != RuntimeFailure.exit_code or restarts == 0:
            return status
        if folder is None or not (Path(folder) / MANIFEST).exists():
            log("the job failed before its first checkpoint: there is nothing to go on from")
            return status
        restarts -= 1
        if not resumes and _run_in(folder) == before:
            log(f"the job failed before its run began; starting it again ({restarts} restarts left)")
            continue
        log(f"the job failed; going on from its last checkpoint ({restarts} restarts left)")
        given = [a for a in given if a != "--overwrite"]
        if "--resume" not in given:
            given.append("--resume")


def _run_in(folder: str | None) -> str | None:
    """The name of the run whose checkpoint is in a folder; None without one that can be read."""
    from graphkit.errors import InvalidModel, UsageError
    from graphkit.train import checkpoint

    try:
        return None if folder is None else checkpoint.run_of(folder)
    except (InvalidModel, UsageError):
        return None
