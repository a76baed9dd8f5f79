"""graphkit bench allreduce"""

from __future__ import annotations

from statistics import median
from typing import Any

import click

from graphkit import config
from graphkit.cli._meta import ARGUMENTS
from graphkit.cli._options import json_option
from graphkit.cli._output import print_json, print_table
from graphkit.cli._ranges import IntRange
from graphkit.dist.collectives import compression as compressions
from graphkit.dist.job import mpi
from graphkit.text import human

# Latency of small arrays, bandwidth of large ones.
_SIZES = "4,1KiB,64KiB,1MiB,4MiB,16MiB,64MiB,256MiB"
# Elements are float32.
_ELEMENT = 4


class _Sizes(click.ParamType):
    """Amounts of memory separated by commas, each a multiple of one float32 element."""

    name = "SIZES"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        found = []
        for text in value.split(","):
            size = config.memory_size(text.strip())
            if size is None:
                self.fail(f"{text!r} is not an amount of memory such as 64KiB or 16MB", param, ctx)
            if size == 0 or size % _ELEMENT:
                self.fail(
                    f"{text!r}: expected a positive multiple of {_ELEMENT} bytes (float32), not {size}", param, ctx
                )
            found.append(size)
        return tuple(found)


@click.command()
@click.pass_context
@click.option(
    "--sizes",
    type=_Sizes(),
    default=_SIZES,
    show_default=True,
    help="Sizes of the arrays, separated by commas, in bytes, KiB, MB, ...",
)
@click.option(
    "--rounds", type=IntRange(1), default=9, show_default=True,
    help="Number of measurements of each implementation; the two take turns.",
)  # fmt: skip
@click.option(
    "--processes", type=IntRange(1), default=2, show_default=True,
    help="Number of MPI processes to start, unless mpiexec started this command.",
)  # fmt: skip
@click.option(
    "--compression", metavar="TYPE[:NUMBER]",
    help="Gradient compression of graphkit's all-reduce: float16, bfloat16, 2bit[:threshold] or top_k[:ratio].",
)  # fmt: skip
@json_option
def command(
    context: click.Context, sizes: tuple[int, ...], rounds: int, processes: int, compression: str | None, as_json: bool
) -> int:
    """Time the all-reduce over processes: graphkit's KVStore.pushpull and MPI's Allreduce take turns.

    Each call sums one float32 array of every process. In each round, every process measures its mean time per call, and
    the slowest process counts. The time shown is the median of the rounds. GB/s is the size of the array divided by
    this time. Both results are compared before timing begins.

    \b
    graphkit bench allreduce --processes 4
    mpiexec -n 4 graphkit bench allreduce --sizes 4,1MiB,256MiB --json
    """
    if compression is not None:
        compressions.create(compression)
    if not mpi.launched_by_mpi():
        from graphkit.dist.job import launch

        return launch.run_processes(processes, context.meta[ARGUMENTS])
    from graphkit.dist.job.joining import join
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
        overhead = times["graphkit"] - times["mpi"]
        microseconds = (f"{1e6 * t:.1f}" for t in (times["mpi"], times["graphkit"], overhead))
        rows.append((human(row["bytes"]), *microseconds, *rates, str(ratio), human(row["sent_bytes"])))
    if as_json:
        print_json("bench.allreduce", result)
        return
    count, fewer = result["processes"], result["compression"]
    title = f"all-reduce of float32 arrays, {count} process{'es' * (count != 1)}; {result['library']}"
    head = ["array", "MPI us", "graphkit us", "overhead us", "MPI GB/s", "graphkit GB/s", "MPI / graphkit", "sent"]
    print_table(title + (f"; compression {fewer}" if fewer else ""), head, rows)
