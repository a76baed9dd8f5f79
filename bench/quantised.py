"""Compare networks of 8-bit integers with ONNX Runtime on the same file, and with float32 in graphkit.

    python bench/quantised.py [--only resnet50-int8] [--threads 2] [--busy 0,1] [--quick]

onnxruntime.quantization makes the files: resnet50 and mobilenetv2 statically (QDQ, int8 weights by channel, uint8
activations), bert-base dynamically. Every engine has its own process. They take turns, and the waiting ones are idle.
With `--busy N`, N counting processes keep the cores busy. Ratios above 1: graphkit with integers is faster. Writes
NAME.json and NAME.md into bench/results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from contention import Server
from engines import TITLES, Model, load, open_engine, versions
from processes import HERE, add_choices, add_output, add_repetition, busy, log, machine, parse
from quantised_files import NAMES, quantised
from tables import about, heading, table

from graphkit.checks.timing import Groups, geometric_mean, paired_ratio

OURS, PEER, PLAIN = "graphkit", "onnxruntime", "graphkit-float32"
CALLED = {OURS: "graphkit", PEER: TITLES["onnxruntime"], PLAIN: "graphkit, float32"}


def serve(task: Mapping[str, Any]) -> int:
    """For every line on stdin, run a turn and print its times as a line."""
    (name,) = task["engines"]
    engine = name.removesuffix("-float32")
    load(engine)
    files = quantised(task["row"], Path(task["models"]))
    path = files.plain.path if name == PLAIN else str(files.path)
    call = open_engine(engine, Model(path, "", {}), task["threads"], files.plain.arrays(1)).call
    for _ in range(3):
        call()
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        times: list[float] = []
        end = time.perf_counter() + task["seconds"]
        while time.perf_counter() < end:
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        print(json.dumps(times), flush=True)
    return 0


def measure(task: Mapping[str, Any], rounds: int, beside: int) -> dict[str, list[list[float]]]:
    """Return the times of each turn, by engine."""
    servers = {name: Server(__file__, [name], dict(task)) for name in CALLED}
    turns: dict[str, list[list[float]]] = {name: [] for name in CALLED}
    with busy(beside):
        for number in range(rounds):
            order = list(servers) if number % 2 == 0 else list(servers)[::-1]
            for name in order:
                turns[name].append(servers[name].turn())
                time.sleep(0.1)
    for server in servers.values():
        server.close()
    return turns


def quotients(processes: Sequence[Mapping[str, list[list[float]]]], engine: str) -> Groups:
    """Return the ratios of an engine's medians to those of graphkit's integers, by process and turn."""
    return [[float(np.median(a) / np.median(b)) for a, b in zip(p[engine], p[OURS], strict=True)] for p in processes]


def row(name: str, processes: Sequence[Mapping[str, list[list[float]]]]) -> dict[str, Any]:
    seconds = {e: float(np.median([t for p in processes for turn in p[e] for t in turn])) for e in CALLED}
    groups = {e: quotients(processes, e) for e in (PEER, PLAIN)}
    ratios = {e: {**paired_ratio(g).as_dict(), "groups": g} for e, g in groups.items()}
    return {"row": name, "seconds": seconds, "ratio": ratios}


def part(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table for one number of threads and one number of busy processes."""

    def shown(ratio: Mapping[str, Any]) -> str:
        return f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"

    head = ["row", *(f"{title}, ms" for title in CALLED.values()), f"of {CALLED[PEER]}", "of its float32"]
    body = [
        [r["row"], *(f"{1e3 * r['seconds'][e]:.3g}" for e in CALLED), *(shown(r["ratio"][e]) for e in (PEER, PLAIN))]
        for r in rows
    ]
    means = [geometric_mean([r["ratio"][e]["groups"] for r in rows]).as_dict() for e in (PEER, PLAIN)]
    body.append(["**geometric mean**", *("" for _ in CALLED), *(f"**{shown(m)}**" for m in means)])
    return table(head, body)


def main() -> int:
    options = _options()
    facts, began = machine(), datetime.date.today().isoformat()
    parts = []
    for threads in options.threads:
        for beside in options.busy:
            rows = []
            for name in options.only:
                log(f"{name}, {threads} threads, beside {beside} busy processes")
                quantised(name, options.models)
                task = {"row": name, "threads": threads, "seconds": options.seconds,
                        "models": str(options.models.resolve())}  # fmt: skip
                rows.append(row(name, [measure(task, options.rounds, beside) for _ in range(options.restarts)]))
            parts.append({"threads": threads, "busy": beside, "rows": rows})
    keys = ("restarts", "rounds", "seconds", "quick")
    result: dict[str, Any] = {
        "date": began, "machine": facts, "options": {k: getattr(options, k) for k in keys},
        "engines": {e: v for e, v in versions().items() if e in (OURS, PEER)}, "parts": parts,
    }  # fmt: skip
    text = report(result)
    stem = options.output / options.name
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    stem.with_suffix(".md").write_text(text)
    print(text)
    return 0


def report(result: Mapping[str, Any]) -> str:
    lines = ["# Networks of 8-bit integers", "", about(result, TITLES), "", __doc__.strip().splitlines()[0], ""]
    lines += [
        "Medians of all calls; ratios of the medians of paired turns, with the interval of 95%. Above 1, graphkit's",
        "integers are faster.", "",
    ]  # fmt: skip
    for found in result["parts"]:
        beside = "" if not found["busy"] else f", beside {found['busy']} busy process{'es' * (found['busy'] > 1)}"
        lines += [heading(found["threads"]) + beside, "", part(found["rows"]), ""]
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_choices(parser, "--only", "row", NAMES)
    parser.add_argument(
        "--busy", type=lambda text: [int(n) for n in text.split(",")], default=[0, 1], metavar="COUNTS",
        help="processes beside (default: 0,1)",
    )  # fmt: skip
    parser.add_argument("--models", type=Path, default=HERE / "models", help="folder for the ONNX files")
    add_repetition(parser)
    add_output(parser, "2026-11-quantised")
    return parse(parser)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        raise SystemExit(serve(json.loads(sys.argv[2])))
    raise SystemExit(main())
