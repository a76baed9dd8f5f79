"""The results of the inference benchmark as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from engines import TITLES
from rows import all_rows, failures
from tables import Result, about, heading, mean_row, memory, milliseconds, ratio, table

_MEMORY = "Peak resident memory of a process in MB, beyond what the imported engine takes, from opening the file on."


def report(result: Result) -> str:
    """Return all tables, without quantities that were not measured."""
    present = [e for e, version in result["engines"].items() if version is not None]
    parts = [
        "# Inference, float32",
        about(result, TITLES),
        *(_times(result, threads, present) for threads in sorted({row["threads"] for row in result["rows"]})),
        memory(result, present, TITLES, _MEMORY),
        _creation(result),
        _resize(result),
        _problems(result),
        _fallbacks(result),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _times(result: Result, threads: int, present: Sequence[str]) -> str:
    rows = [row for row in result["rows"] if row["threads"] == threads]
    peers = [e for e in present if e != "graphkit"]
    ceiling = result["ceilings"][str(threads)]
    head = ["workload", *(TITLES[e] for e in present), *(f"to {TITLES[e]}" for e in peers), "ceiling", "difference"]
    body = []
    for row in rows:
        mine = row["engines"].get("graphkit", {})
        body.append(
            [
                row["title"],
                *(milliseconds(row["engines"].get(e, {})) for e in present),
                *(ratio(row["ratio"].get(e)) for e in peers),
                _percent(mine),
                f"{mine['difference']:.0e}" if "difference" in mine else "",
            ]
        )
    means = {m["peer"]: m for m in result["means"] if m["threads"] == threads}
    if means:
        body.append(mean_row(means, present, peers, 2))
    note = (
        "Medians in milliseconds. *to PEER*: the peer's time over graphkit's, paired by round, with its 95% interval: "
        "above 1 graphkit is faster. *ceiling*: graphkit's part of what a large matrix product reaches "
        f"({ceiling['flops'] / 1e9:.0f} GFLOP/s; A) or a copy ({ceiling['bytes'] / 1e9:.0f} GB/s; M, where the "
        "operands exceed the last-level cache), whichever bounds the workload. *difference*: largest, relative to the "
        "largest output of the reference."
    )
    left_out = sorted({w for m in means.values() for w in m["left_out"]})
    if left_out:
        note += f" Not in every mean: {', '.join(left_out)}."
    return "\n\n".join([heading(threads), table(head, body), note])


def _creation(result: Result) -> str:
    if not result["creation"]:
        return ""
    present = list(result["creation"][0]["engines"])
    body = []
    for row in result["creation"]:
        for key, label in (("create", "session"), ("first_result", "first result")):
            cells = [f"{1e3 * r[key]:.0f}" if key in (r := row["engines"][e]) else "error" for e in present]
            body.append([f"{row['title']}: {label}", *cells, ratio(row["ratio"].get(key))])
    head = ["from the file to", *(TITLES[e] for e in present), "graphkit over ONNX Runtime"]
    note = "Milliseconds, each in a new process after the import; here less than 1 means that graphkit is faster."
    return "\n\n".join(["## Session creation", table(head, body), note])


def _resize(result: Result) -> str:
    if not result["resize"]:
        return ""
    body = []
    for row in result["resize"]:
        for engine, measured in row["engines"].items():
            if "error" in measured:
                body.append([row["title"], TITLES[engine], "error", "error"])
                continue
            cells = (_range(measured[key]) for key in ("specialise", "extra"))
            body.append([row["title"], TITLES[engine], *cells])
    note = (
        "Milliseconds, median and largest of five batch sizes never seen before. *specialise*: making the program; "
        "*first run*: what the first run takes beyond later ones, specialising included."
    )
    return "\n\n".join(["## A new batch size", table(["model", "engine", "specialise", "first run"], body), note])


def _problems(result: Result) -> str:
    lines = failures(all_rows(result))
    return "\n\n".join(["## Did not run", "\n".join(f"- {line}" for line in lines)]) if lines else ""


def _fallbacks(result: Result) -> str:
    """Operators that graphkit interpreted, by workload."""
    lines: dict[str, None] = {}
    for row in result["rows"]:
        steps = row["engines"].get("graphkit", {}).get("fallbacks", ())
        if steps:
            counts = Counter(step.rpartition("(")[2].rstrip(")") for step in steps)
            lines[f"- {row['workload']}: " + ", ".join(f"{n} {op}" for op, n in counts.most_common())] = None
    return "\n\n".join(["## Steps of graphkit without a native kernel", "\n".join(lines)]) if lines else ""


# --- cells --------------------------------------------------------------------------------------------


def _percent(engine: Result) -> str:
    """Return the limit that is closest to the measured time."""
    if not engine.get("percent"):
        return ""
    limit, percent = max(engine["percent"].items(), key=lambda item: item[1])
    return f"{percent:.0f}% {limit[0].upper()}"


def _range(seconds: Sequence[float]) -> str:
    if not seconds:
        return ""
    ordered = sorted(seconds)
    return f"{1e3 * ordered[len(ordered) // 2]:.1f}, {1e3 * ordered[-1]:.1f}"
