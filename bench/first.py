"""Compare the time from an ONNX file to its first result, and the memory of the process, with ONNX Runtime.

    python bench/first.py [--only mlp-1,bert-1] [--files FOLDER] [--threads 1] [--restarts 5]

Rows are those of the inference benchmark and the files of a folder: NAME.onnx with NAME.npz, an array for each input
(`exported.py` writes some). Each engine opens each row in `--restarts` new processes, by turns. The file is in the page
cache. *Session*: from the file until inputs can be given. *First result*: from the file to the end of the first run.
*Memory*: growth of the resident size from before the file is opened to that point. These three start after the engine
is imported. *New process*: processor time of another process from the import of the engine to the first result; only
numpy is imported before. The table is printed as Markdown: medians, and ONNX Runtime's value over graphkit's, paired by
restart (above 1, graphkit is faster, or smaller).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from contention import ENGINES, add_rows, further_rows, source, task_of
from engines import TITLES, load, open_session, versions
from measurement import resident_bytes, return_freed_memory
from processes import HERE, TIMEOUT, add_restarts, log, machine, parse
from tables import heading, table

from graphkit.checks.timing import Groups, geometric_mean, paired_ratio

# Measured quantities: title, and divisor for the table.
PARTS = {
    "session": ("session, ms", 1e-3), "first": ("first result, ms", 1e-3),
    "process": ("new process, ms", 1e-3), "memory": ("memory, MB", 1e6),
}  # fmt: skip
# numpy is imported before: both engines need it.
_IMPORT = "import engines, time; start = time.perf_counter(); engines.load({!r}); print(time.perf_counter() - start)"

# The whole life of a process that uses an engine as its user would. Printed: its processor time.
_PROCESSES = {
    "graphkit": "import graphkit; run = graphkit.load(path).compile(threads=threads).run; run(feeds)",
    "onnxruntime": """
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
options.log_severity_level = 3
onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, feeds)
""",
}
_PROCESS = """
import sys, time
import numpy as np
path, arrays, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
feeds = dict(np.load(arrays))
open(path, "rb").read()
start = time.process_time()
{}
print(time.process_time() - start)
"""

Measured = dict[str, float]


def measure(task: dict[str, Any]) -> Measured:
    """Measure one engine in this process: seconds to a session and to the first result, and bytes."""
    model, feeds = source(task)
    Path(model.path).read_bytes()  # not the file's first reader
    load(task["engine"])
    return_freed_memory()
    before = resident_bytes()
    start = time.perf_counter()
    run = open_session(task["engine"], model.path, task["threads"])
    session = time.perf_counter() - start
    result = run(feeds)
    first = time.perf_counter() - start
    del result
    return_freed_memory()
    return {"session": session, "first": first, "memory": float(resident_bytes() - before)}


def _in_process(*arguments: str) -> Any:
    """Return the JSON that a new process prints."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=TIMEOUT, check=False, cwd=HERE
    )
    if done.returncode:
        raise SystemExit(f"a process ended with {done.returncode}: {arguments}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def measure_row(task: dict[str, Any], restarts: int) -> dict[str, list[Measured]]:
    """Return the measurements of each restart, by engine."""
    found: dict[str, list[Measured]] = {engine: [] for engine in ENGINES}
    try:
        model, feeds = source(task)
    except FileNotFoundError as error:
        raise SystemExit(str(error)) from error
    with tempfile.TemporaryDirectory() as folder:
        arrays = f"{folder}/feeds.npz"
        np.savez(arrays, **feeds)  # type: ignore[arg-type]
        for number in range(restarts):
            for engine in ENGINES if number % 2 == 0 else ENGINES[::-1]:
                opened = _in_process(str(HERE / "first.py"), "--measure", json.dumps(task | {"engine": engine}))
                code = _PROCESS.format(_PROCESSES[engine])
                process = _in_process("-c", code, model.path, arrays, str(task["threads"]))
                found[engine].append(opened | {"process": process})
    return found


def import_seconds(restarts: int) -> dict[str, float]:
    """Return the median time of the import, by engine."""
    return {e: float(np.median([_in_process("-c", _IMPORT.format(e)) for _ in range(restarts)])) for e in ENGINES}


def row_cells(found: dict[str, list[Measured]]) -> tuple[list[str], dict[str, Groups]]:
    """Return the cells of a row of the table, and the ratios of paired processes, by quantity."""
    cells: list[str] = []
    quotients: dict[str, Groups] = {}
    for part, (_, unit) in PARTS.items():
        peer, ours = ([m[part] for m in found[engine]] for engine in ENGINES)
        quotients[part] = [[a / b] for a, b in zip(peer, ours, strict=True)]
        cells += [f"{np.median(of) / unit:.3g}" for of in (peer, ours)]
        cells.append(str(paired_ratio(quotients[part])))
    return cells, quotients


def last_rows(quotients: Sequence[dict[str, Groups]]) -> list[list[str]]:
    """The geometric mean and the median over rows."""
    means, medians = ["**geometric mean**"], ["**median**"]
    for part in PARTS:
        groups = [row[part] for row in quotients]
        means += ["", "", f"**{geometric_mean(groups)}**"]
        medians += ["", "", f"**{np.median([paired_ratio(g).median for g in groups]):.2f}**"]
    return [means, medians]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_rows(parser)
    add_restarts(parser)
    options = parse(parser)
    facts, engines, imports = machine(), versions(), import_seconds(options.restarts)
    names = ", ".join(f"{TITLES[e]} {engines[e]} (imported in {imports[e]:.2f} s)" for e in ENGINES)
    print(f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}; {names}; {options.restarts} processes")
    head = [
        "row",
        *(cell for title, _ in PARTS.values() for cell in (*(f"{title}, {TITLES[e]}" for e in ENGINES), "ratio")),
    ]
    for threads in options.threads:
        body, quotients = [], []
        for row in [*options.only, *further_rows(options.files)]:
            log(f"{row}, {threads} threads")
            task = task_of(row, threads, options)
            source(task)  # makes the file where it is missing
            cells, of_row = row_cells(measure_row(task, options.restarts))
            body.append([row, *cells])
            quotients.append(of_row)
        print("\n".join(["", heading(threads), "", table(head, [*body, *last_rows(quotients)])]), flush=True)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(json.loads(sys.argv[2]))))
        raise SystemExit(0)
    raise SystemExit(main())
