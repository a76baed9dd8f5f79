"""The processes of a training: their options, and how they are started and restarted after a failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphkit import config
from graphkit.cli._groups import PROCESSES, option
from graphkit.cli._output import log
from graphkit.cli._ranges import FloatRange, IntRange
from graphkit.dist.collectives import compression as compressions
from graphkit.dist.job import launch
from graphkit.dist.kvstore import ALIASES, REMOTE, TYPES
from graphkit.dist.progress.engine import OVERLAPS
from graphkit.errors import UsageError
from graphkit.named_tuples import NamedTuple

if TYPE_CHECKING:
    from graphkit.dist.kvstore import KVStore

_OPTIONS = (
    option(
        "--processes", group=PROCESSES, type=IntRange(1), default=1, show_default=True,
        help="Number of worker processes to start on this machine, through MPI. More than one needs a --kvstore other "
        "than local.",
    ),
    option(
        "--kvstore", group=PROCESSES, metavar="TYPE", default="local", show_default=True,
        help="How processes share parameters. local: one process. dist_sync: all-reduce the gradients of all "
        "processes. With parameter servers: dist_async (asynchronous), dist_bounded (bounded staleness), elastic "
        "(elastic averaging).",
    ),
    option(
        "--servers", group=PROCESSES, type=IntRange(1), metavar="N",
        help="Number of parameter servers. With --processes, they are started in addition to the workers; with "
        "mpiexec, the last N processes are the servers. Default: GRAPHKIT_SERVERS, else 1.",
    ),
    option(
        "--replicate-servers", group=PROCESSES, is_flag=True,
        help="Keep a copy of the state of each parameter server on another one, so that training survives the loss of "
        "one. Needs at least two --servers.",
    ),
    option(
        "--staleness", group=PROCESSES, type=IntRange(0), metavar="STEPS",
        help="With --kvstore dist_bounded: maximum number of steps that a process may be ahead of the slowest one. "
        "Default: 3.",
    ),
    option(
        "--elastic-period", group=PROCESSES, type=IntRange(1), metavar="UPDATES",
        help="With --kvstore elastic: updates of a process between two exchanges with the centre variable. "
        "Default: 10.",
    ),
    option(
        "--elastic-strength", group=PROCESSES, type=FloatRange(0, 1, min_open=True), metavar="NUMBER",
        help="With --kvstore elastic: moving rate (beta), 0 to 1. In an exchange, a worker and the centre variable "
        "move towards each other by this rate times their difference, divided by the number of workers. Default: 0.9.",
    ),
    option(
        "--rank-timeout", group=PROCESSES, type=FloatRange(0, min_open=True), metavar="SECONDS",
        help="Time limit in seconds. The job stops if a process sends no heartbeat for this time, does not start MPI "
        "within it, or makes no progress while others wait for it (for example in a callback). The job also stops if "
        "all processes wait for each other for this time. Default: GRAPHKIT_RANK_TIMEOUT, else 60.",
    ),
    option(
        "--max-restarts", group=PROCESSES, type=IntRange(0), default=0, show_default=True,
        help="With --processes or --servers: number of times that a failed job is restarted from its last checkpoint.",
    ),
    option(
        "--compression", group=PROCESSES, metavar="TYPE[:NUMBER]",
        help="With any --kvstore other than local: gradient compression, one of float16, bfloat16, 2bit[:threshold] or "
        "top_k[:ratio].",
    ),
    option(
        "--overlap", group=PROCESSES, type=click.Choice(OVERLAPS), default="chained", show_default=True,
        help="How all-reduces of gradients overlap with the backward pass. funnelled: they run after the backward "
        "pass. chained: they run during it, one bucket of gradients after the other. concurrent: they run during it, "
        "several buckets at a time.",
    ),
    option(
        "--bucket-mb", group=PROCESSES, type=FloatRange(0, min_open=True), metavar="MB",
        help="Size of a bucket of gradients for the all-reduce, in megabytes. Default: chosen by the measured latency "
        "of the network.",
    ),
)  # fmt: skip


def process_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that `Job` is made of."""
    for add in reversed(_OPTIONS):
        command = add(command)
    return command


class Job(NamedTuple):
    """The options of a command line that are about processes."""

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
        """Return the job of a command's options. Raises UsageError for options that contradict each other."""
        job = cls(**{name: options[name] for name in cls._fields})
        if job.processes > 1 and job.kvstore == "local":
            raise UsageError(
                f"--processes {job.processes} with --kvstore local would train {job.processes} separate models. Add "
                f"--kvstore dist_sync (or {', '.join(REMOTE)}, with parameter servers)"
            )
        if job.servers is not None and job.kvstore not in REMOTE:
            raise UsageError(
                f"--servers {job.servers}: --kvstore {job.kvstore} has no parameter servers. Use --kvstore "
                f"{' or '.join(REMOTE)}, or leave out --servers"
            )
        if job.compression is not None:
            compressions.create(job.compression)
        for name, given, types in (
            ("--elastic-period", job.elastic_period, ("elastic",)),
            ("--elastic-strength", job.elastic_strength, ("elastic",)),
            ("--staleness", job.staleness, ("dist_bounded",)),
            ("--compression", job.compression, tuple(t for t in TYPES if t != "local")),
        ):
            store = ALIASES.get(job.kvstore, job.kvstore)
            if given is not None and store in TYPES and store not in types:
                raise UsageError(
                    f"{name} only works with --kvstore {' or '.join(types)}, not with --kvstore {job.kvstore}"
                )
        if job.replicate_servers and (job.kvstore not in REMOTE or job.server_count < 2):
            raise UsageError(f"--replicate-servers needs --servers 2 or more, and --kvstore {' or '.join(REMOTE)}")
        if job.max_restarts and job.processes == 1 and job.servers is None:
            raise UsageError(
                "--max-restarts needs --processes or --servers: graphkit can only restart processes that it starts. "
                "If mpiexec or srun starts them, restart that command with --resume"
            )
        return job

    @property
    def is_to_be_started(self) -> bool:
        return (self.processes > 1 or self.servers is not None) and not launch.is_started()

    @property
    def size(self) -> int:
        """Number of workers and servers."""
        if self.kvstore not in REMOTE:
            return self.processes
        return self.processes + self.server_count

    @property
    def server_count(self) -> int:
        """Number of parameter servers, if the store has them."""
        return config.SERVERS.get() if self.servers is None else self.servers

    def run(self, arguments: Sequence[str], folder: str | None) -> int:
        """Run `graphkit ARGUMENTS` in the processes of the job; return the exit status. See `run_job`."""
        return run_job(self.size, arguments, folder, self.max_restarts, self.replicate_servers)

    def store(self) -> KVStore:
        """Return the store of this process."""
        from graphkit.dist import kvstore
        from graphkit.dist.job.start import check_alone, launched_processes, launcher_rank

        if self.kvstore in ("local", "device"):
            check_alone()
            if (launched := launched_processes()) > 1 and launcher_rank() in (None, 0):
                log(
                    f"the launcher has started {launched} processes, and with --kvstore {self.kvstore} each of them "
                    "trains alone; to train one model with all of them, add --kvstore dist_sync"
                )
        size = None if self.bucket_mb is None else max(1, int(self.bucket_mb * 1e6))
        store = kvstore.create(
            self.kvstore, timeout=self.rank_timeout, overlap=self.overlap, bucket_bytes=size, servers=self.servers,
            staleness=self.staleness, period=self.elastic_period, strength=self.elastic_strength,
            replicate=self.replicate_servers,
        )  # fmt: skip
        if self.processes > 1:
            launch.check_size(self.processes, store.num_workers)
        elif self.kvstore == "dist_sync" and store.num_workers == 1:
            log("--kvstore dist_sync has no effect with one process; to train with several, add --processes N")
        if self.compression is not None:
            store.set_gradient_compression(self.compression)
        return store


def run_job(processes: int, arguments: Sequence[str], folder: str | None, restarts: int, survives: bool = False) -> int:
    """Run `graphkit ARGUMENTS` in several processes, restart it after failures, and return the exit status.

    If the job ends with a runtime failure (also if a process dies, stops or stalls), it is restarted with `--resume`
    from the checkpoint in `folder`. Without a checkpoint, it is not restarted. If the checkpoint still belongs to an
    older run, the job is restarted with the same arguments.

    Args:
        processes: Number of workers and servers.
        arguments: Of the command line.
        folder: Output folder of the run.
        restarts: Maximum number of restarts.
        survives: Whether the other processes continue if one is lost.
    """
    from graphkit.errors import RuntimeFailure
    from graphkit.train.checkpoint import MANIFEST

    given = list(arguments)
    resumes, before = "--resume" in given, _run_in(folder)
    while True:
        status = launch.run_processes(processes, given, survives)
        if status != RuntimeFailure.exit_code or restarts == 0:
            return status
        if folder is None or not (Path(folder) / MANIFEST).exists():
            log("the job failed before its first checkpoint, so it cannot be restarted (--max-restarts)")
            return status
        restarts -= 1
        if not resumes and _run_in(folder) == before:
            log(f"the job failed before training began; restarting it (restarts left: {restarts})")
            continue
        log(f"the job failed; restarting it from its last checkpoint (restarts left: {restarts})")
        given = [a for a in given if a != "--overwrite"]
        if "--resume" not in given:
            given.append("--resume")


def _run_in(folder: str | None) -> str | None:
    """Return the name of the run whose checkpoint is in a folder; None if there is no readable checkpoint."""
    from graphkit.errors import InvalidModel, UsageError
    from graphkit.train import checkpoint

    try:
        return None if folder is None else checkpoint.run_of(folder)
    except (InvalidModel, UsageError):
        return None
