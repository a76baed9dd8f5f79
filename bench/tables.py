"""Parts of the reports in Markdown: tables, their cells, the line about machine and engines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]
# Above this load average the machine was not this benchmark's alone when it began.
_QUIET = 0.5


def about(result: Result, titles: Mapping[str, str]) -> str:
    """Return the date, the machine, the versions of the engines, and the number of measurements."""
    machine, options = result["machine"], result["options"]
    versions = ", ".join(f"{titles[e]} {v}" for e, v in result["engines"].items() if v is not None)
    absent = [titles[e] for e, version in result["engines"].items() if version is None]
    return (
        f"{result['date']}; {machine['cpu']}, {machine['cores']} cores, Python {machine['python']}; {versions}"
        + (f". Not installed and left out: {', '.join(absent)}" if absent else "")
        + f". {options['restarts']} processes of {options['rounds']} rounds for each row"
        + (" (a quick run: read nothing but orders of magnitude)." if options["quick"] else ".")
        + (f" Load average {machine['load']:.1f} at the start: other programs ran." if machine["load"] > _QUIET else "")
    )


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body))


def heading(threads: int) -> str:
    return f"## {threads} thread{'s' if threads > 1 else ''}"


def mean_row(means: Mapping[str, Result], engines: Sequence[str], peers: Sequence[str], rest: int) -> list[str]:
    """The last row of a table of times: empty cells for `engines`, means by peer, `rest` empty cells."""
    return ["**geometric mean**", *("" for _ in engines), *(f"**{ratio(means.get(p))}**" for p in peers), *[""] * rest]


def memory(result: Result, present: Sequence[str], titles: Mapping[str, str], note: str) -> str:
    """The table of peak memory, or nothing."""
    if not result["memory"]:
        return ""

    def cell(measured: Result) -> str:
        if "error" in measured:
            return "error"
        return f"{(measured['peak'] - measured['before']) / 1e6:.0f}"

    body = [[row["title"], *(cell(row["engines"][e]) for e in present)] for row in result["memory"]]
    return "\n\n".join(["## Peak memory", table(["workload", *(titles[e] for e in present)], body), note])


def milliseconds(engine: Result) -> str:
    if "error" in engine:
        return "error"
    return f"{1e3 * engine['seconds']['p50']:.3g}" if "seconds" in engine else ""


def ratio(measured: Result | None) -> str:
    return "" if measured is None else f"{measured['median']:.2f} ({measured['low']:.2f} to {measured['high']:.2f})"
