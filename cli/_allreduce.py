"""graphkit bench allreduce"""

from __future__ import annotations

from statistics import median
from typing import Any

import click

from graphkit import config
from graphkit.cli._meta import ARGUMENTS
from graphkit.cli._options import json_option
from graphkit.cli._output import print_json, print_table
from graphkit.dist.job import mpi
from graphkit.dist.sums import compression as compressions
from graphkit.text import human

# Latency of small arrays, bandwidth of large ones.
_SIZES = "4,1KiB,64KiB,1MiB,4MiB,16MiB,64MiB,256MiB"
# Elements are float32.
_ELEMENT = 4


class _Sizes(click.ParamType):
    """Amounts of memory after commas, each of whole float32 elements."""

    name = "SIZES"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        found = []
        for text in value.split(","):
            size = config.memory_size(text.strip())
            if size is None:
                self.fail(f"{text!r} is no amount of memory such as 64KiB or 16MB", param, ctx)
            if size == 0 or size % _ELEMENT:
                self.fail(f"{text!r} is no array of float32 elements: {size} bytes, of {_ELEMENT} each", param, ctx)
            found.append(size)
        return tuple(found)


@click.command()
@click.pass_context
@click.option(
    "--sizes", type=_Sizes(), default=_SIZES, show_default=True, help="Bytes of the arrays, in KiB, MB, ..., by commas."
)
@click.option("--rounds", type=click.IntRange(1), default=9, show_default=True, help="Turns of each of the two.")
@click.option(
    "--processes", type=click.IntRange(1), default=2, show_default=True,
    help="Start that many MPI processes, where none are started by mpiexec.",
)  # fmt: skip
@click.option(
    "--compression", metavar="TYPE[:NUMBER]", help="Of pushpull: float16, bfloat16, 2bit[:threshold], top_k[:ratio]."
)
@json_option
def command(
    context: click.Context, sizes: tuple[int, ...], rounds: int, processes: int, compression: str | None, as_json: bool
) -> int:
    """Time sums over processes: KVStore.pushpull beside MPI's own Allreduce, in turns.

    A call of either sums one float32 array of each process into a given one. Times are medians over rounds of the
    slowest process's mean. GB/s are bytes of the array by time. Both sums are compared before anything is timed.

    \b
    graphkit bench allreduce --processes 4
    mpiexec -n 4 graphkit bench allreduce --sizes 4,1MiB,256MiB --json
    """
    if compression is not None:
        compressions.create(compression)
    if not mpi.launched_by_mpi():
        from graphkit.dist.job import launch

        return launch.run_processes(processes, context.meta[ARGUMENTS])
    from graphkit.dist.job.ending import join
    from graphkit.dist.measure import measure

    result = {"compression": compression, "rounds": rounds, **measure(sizes, rounds, compression)}
    if join().rank == 0:
        _report(result, as_json)
    return 0


def _report(result: dict[str, Any], as_json: bool) -> None:
    from graphkit.checks.timing import paired_ratio

    rows = []
    for row in result["rows"]:
        times = {name: median(seconds) for name, seconds in row["seconds"].items()}
        row["median"] = times
        row["bytes_per_second"] = {name: row["bytes"] / time for name, time in times.items()}
        ratio = paired_ratio([[a / b for a, b in zip(row["seconds"]["mpi"], row["seconds"]["graphkit"], strict=True)]])
        row["ratio"] = ratio.as_dict()
        rates = (f"{row['bytes_per_second'][name] / 1e9:.3g}" for name in times)
        beyond = times["graphkit"] - times["mpi"]
        microseconds = (f"{1e6 * t:.1f}" for t in (times["mpi"], times["graphkit"], beyond))
        rows.append((human(row["bytes"]), *microseconds, *rates, str(ratio), human(row["sent_bytes"])))
    if as_json:
        print_json("bench.allreduce", result)
        return
    count, fewer = result["processes"], result["compression"]
    title = f"sums of float32 arrays over {count} process{'es' * (count != 1)}; {result['library']}"
    head = ["array", "MPI us", "graphkit us", "beyond us", "MPI GB/s", "graphkit GB/s", "MPI / graphkit", "sent"]
    print_table(title + (f"; compression {fewer}" if fewer else ""), head, rows)
