"""The results of the training benchmark as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from tables import Result, about, heading, mean_row, memory, milliseconds, ratio, table
from training_engines import TITLES
from training_rows import FASTEST, TENSOR_AT_KINKS, failures

_TIMES = (
    "Medians in milliseconds of a step: forward, backward, update. *to PEER*: the peer's time over graphkit's, paired "
    "by round, with its 95% interval: above 1 graphkit is faster; *to the faster* of the row's two peers. *floor*: "
    "graphkit's time over that of its convolutions alone, in the same step. *loss*, *gradients*: difference of the "
    "first step from the first peer's, relative; gradients are compared as one vector."
)
_MEMORY = (
    "Peak resident memory of a process in MB during three steps, beyond what the loaded engine takes: parameters, "
    "momenta, and all that a step needs."
)
_OPERATORS = "Share of a step of graphkit, by the profile of several; the largest five of each row."
_LARGEST = 5


def report(result: Result) -> str:
    """Return all tables, without quantities that were not measured."""
    present = [e for e, version in result["engines"].items() if version is not None]
    counts = sorted({row["threads"] for row in result["rows"]})
    parts = [
        "# Training, float32, SGD with momentum" + _beside(result["options"].get("busy", 0)),
        about(result, TITLES),
        _left_out(result),
        _TIMES if counts else "",
        *(_times(result, threads, present) for threads in counts),
        memory(result, present, TITLES, _MEMORY),
        *(_operators(result, threads) for threads in counts),
        _problems(result),
        _fallbacks(result),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _beside(processes: int) -> str:
    return f", beside {processes} busy process{'es' if processes > 1 else ''}" if processes else ""


def _left_out(result: Result) -> str:
    names = ", ".join(result["left_out"])
    return f"Left out, because graphkit has no such network: {names}." if names else ""


def _times(result: Result, threads: int, present: Sequence[str]) -> str:
    peers = [e for e in present if e != "graphkit"]
    compared = [*peers, *([FASTEST] if len(peers) > 1 else [])]
    titles = {**TITLES, FASTEST: "the faster"}
    head = [
        "workload", *(TITLES[e] for e in present), *(f"to {titles[e]}" for e in compared), "floor", "loss", "gradients"
    ]  # fmt: skip
    body = []
    for row in result["rows"]:
        if row["threads"] != threads:
            continue
        mine = row["engines"].get("graphkit", {})
        floor = mine.get("profile", {}).get("times_floor")
        difference = mine.get("difference", {})
        body.append(
            [
                row["title"],
                *(milliseconds(row["engines"].get(e, {})) for e in present),
                *(ratio(row["ratio"].get(e)) for e in compared),
                "" if floor is None else f"{floor:.2f}",
                *(f"{difference[key]:.0e}" if difference else "" for key in ("loss", "gradients")),
            ]
        )
    means = {m["peer"]: m for m in result["means"] if m["threads"] == threads}
    if means:
        body.append(mean_row(means, present, compared, 3))
    missing = sorted({w for m in means.values() for w in m["left_out"]})
    note = f"Not in every mean: {', '.join(missing)}." if missing else ""
    parts = [heading(threads), table(head, body), note, _at_kinks(result, threads)]
    return "\n\n".join(part for part in parts if part)


def _at_kinks(result: Result, threads: int) -> str:
    """Return the differences of single tensors in networks with batch normalisation, as a text."""
    found = [
        difference["gradient"]
        for row in result["rows"]
        if row["threads"] == threads
        and (difference := row["engines"].get("graphkit", {}).get("difference"))
        and difference["statistics"] is not None
    ]
    if not found:
        return ""
    return (
        f"In networks with batch normalisation a single tensor's gradient differs by up to {max(found):.0e} "
        f"(allowed: {TENSOR_AT_KINKS:.0e}): rounding decides about elements at the kink of a rectifier."
    )


def _operators(result: Result, threads: int) -> str:
    lines = []
    for row in result["rows"]:
        profile = row["engines"].get("graphkit", {}).get("profile")
        if profile is None or row["threads"] != threads:
            continue
        total = sum(o["seconds"] for o in profile["operators"])
        shares = ", ".join(
            f"{o['operator'].removeprefix('ai.graphkit.')} {o['seconds'] / total:.0%}"
            for o in profile["operators"][:_LARGEST]
        )
        outside = max(0.0, 1 - total / profile["seconds"])
        lines.append([row["title"], shares, f"{outside:.0%}"])
    if not lines:
        return ""
    title = f"## Where the time goes, {threads} thread{'s' if threads > 1 else ''}"
    return "\n\n".join([title, table(["workload", "operators", "outside of operators"], lines), _OPERATORS])


def _problems(result: Result) -> str:
    lines = failures([*result["rows"], *result["memory"]])
    return "\n\n".join(["## Did not run", "\n".join(f"- {line}" for line in lines)]) if lines else ""


def _fallbacks(result: Result) -> str:
    """Operators that graphkit interpreted, by workload."""
    lines: dict[str, None] = {}
    for row in result["rows"]:
        steps = row["engines"].get("graphkit", {}).get("fallbacks", ())
        if steps:
            names = sorted({step.rpartition("(")[2].rstrip(")") for step in steps})
            lines[f"- {row['workload']}: {', '.join(names)}"] = None
    return "\n\n".join(["## Steps of graphkit without a native kernel", "\n".join(lines)]) if lines else ""
