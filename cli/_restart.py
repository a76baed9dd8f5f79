"""The processes of a training: started, and started again from the last checkpoint when a job fails."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

# Where a click.Context's `meta` has the command line.
ARGUMENTS = "graphkit.arguments"


def run_job(processes: int, arguments: Sequence[str], folder: str | None, restarts: int) -> int:
    """Run `graphkit ARGUMENTS` in so many processes; return the exit status.

    A job that ends with a runtime failure (a process that died, stopped or stalled among them) goes on from the
    checkpoint in `folder`, up to so many times.
    """
    from graphkit.cli._output import log
    from graphkit.dist import launch
    from graphkit.errors import RuntimeFailure
    from graphkit.train.checkpoint import MANIFEST

    given = list(arguments)
    while True:
        status = launch.run_processes(processes, given)
        if status != RuntimeFailure.exit_code or restarts == 0:
            return status
        if folder is None or not (Path(folder) / MANIFEST).exists():
            log("the job failed before its first checkpoint: there is nothing to go on from")
            return status
        restarts -= 1
        log(f"the job failed; going on from its last checkpoint ({restarts} restarts left)")
        given = [a for a in given if a != "--overwrite"]
        if "--resume" not in given:
            given.append("--resume")
