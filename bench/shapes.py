"""Compare requests with changing shapes with ONNX Runtime: new sizes in each request, and sizes of a fixed set.

    python bench/shapes.py [--only encoder,lstm] [--files FOLDER] [--sizes 200] [--quick]

Rows are networks with symbolic dimensions, and the files of a folder: NAME.onnx, with the bounds and the step of each
symbol in NAME.json, for example {"T": [5, 150, 1]}. Without them, a symbol is 8 to 128. The size of a request is
random. *Cold*: every size is new to the session. *Warm*: the same sizes in another order. *New size*: the first run of
a size minus the median of the next two, as median and 90th percentile over the sizes. *Memory*: growth of the resident
size from the first to the last request. Each engine has a process, and they take turns of ten sizes. The table is
printed as Markdown: mean times of requests, and ONNX Runtime's over graphkit's (above 1, graphkit is faster).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from contention import ENGINES, Server
from engines import TITLES, load, open_session, versions
from measurement import resident_bytes, return_freed_memory
from networks import mobilenetv2
from processes import add_choices, add_repetition, log, machine, parse
from tables import heading, table

import graphkit as gk
from graphkit.checks.timing import Groups, geometric_mean, paired_ratio

TURN = 10
_BOUNDS = (8, 128, 1)  # of a symbol in a file without bounds
Size = dict[str, int]


@dataclass(frozen=True)
class Row:
    """`write` makes the file; `sizes` are the bounds and the step of each symbol."""

    title: str
    write: Callable[[str], object]
    sizes: Mapping[str, tuple[int, int, int]]

    def draw(self, count: int, seed: int) -> list[Size]:
        """Draw this number of different sizes, or all of them."""
        random = np.random.default_rng(seed)
        steps = {name: range(low, high + 1, step) for name, (low, high, step) in self.sizes.items()}
        every = [dict(zip(steps, place, strict=True)) for place in np.ndindex(*(len(s) for s in steps.values()))]
        chosen = random.permutation(len(every))[:count]
        return [{name: steps[name][at] for name, at in every[i].items()} for i in chosen]


def _written(network: str, **options: Any) -> Callable[[str], None]:
    def write(path: str) -> None:
        gk.models.build(network, **options).save(path)

    return write


def _images(path: str) -> None:
    _save_with_free_sizes(mobilenetv2("N")[0], path)


def _zoo_images(network: str) -> Callable[[str], None]:
    def write(path: str) -> None:
        model = gk.models.build(network).to_onnx()
        del model.graph.value_info[:]
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")
        _save_with_free_sizes(model, path)

    return write


def _save_with_free_sizes(model: onnx.ModelProto, path: str) -> None:
    """Save a network with symbolic height and width of the images."""
    shape = model.graph.input[0].type.tensor_type.shape
    shape.dim[2].dim_param, shape.dim[3].dim_param = "H", "W"
    onnx.save(model, path)


ROWS = {
    "encoder": Row(
        "encoder 4 x 256, batch 1 to 8, 8 to 128 tokens",
        _written("bert", vocab=8192, width=256, heads=4, layers=4, length=128),
        {"N": (1, 8, 1), "T": (8, 128, 1)},
    ),
    "lstm": Row(
        "lstm 2 x 256, 5 to 40 steps, batch 1 to 16",
        _written("lstm_lm", vocab=10000, hidden=256, layers=2),
        {"T": (5, 40, 1), "N": (1, 16, 1)},
    ),
    "mobilenetv2-batch": Row(
        "mobilenetv2, batch 1 to 16", _images, {"N": (1, 16, 1), "H": (224, 224, 1), "W": (224, 224, 1)}
    ),
    "mobilenetv2-image": Row(
        "mobilenetv2, images of 96 to 256 pixels", _images, {"N": (1, 1, 1), "H": (96, 256, 8), "W": (96, 256, 8)}
    ),
    "googlenet-image": Row(
        "googlenet, images of 96 to 256 pixels",
        _zoo_images("googlenet"),
        {"N": (1, 1, 1), "H": (96, 256, 8), "W": (96, 256, 8)},
    ),
    "unet-image": Row(
        "unet, images of 32 to 128 pixels",
        _zoo_images("unet"),
        {"N": (1, 1, 1), "H": (32, 128, 16), "W": (32, 128, 16)},
    ),
}


def rows_of_folder(folder: Path) -> dict[str, Row]:
    """Return a row for each ONNX file of a folder, by the name of the file without its suffix."""
    return {path.stem: _row_of_file(path) for path in sorted(folder.glob("*.onnx"))}


def _row_of_file(path: Path) -> Row:
    """Return the row of a file. Its symbols have the bounds in the file with the suffix .json, or `_BOUNDS`."""
    symbols = sorted({d for _, dims in _inputs(str(path)).values() for d in dims if isinstance(d, str)})
    if not symbols:
        raise SystemExit(f"{path}: no input has a symbolic dimension")
    described = path.with_suffix(".json")
    given = json.loads(described.read_text()) if described.exists() else {}
    if unknown := sorted(given.keys() - set(symbols)):
        raise SystemExit(f"{described}: no input of {path.name} has the symbol {unknown[0]!r}; known: {symbols}")
    sizes = {name: tuple(given.get(name, _BOUNDS)) for name in symbols}
    bounds = ", ".join(f"{name} {low} to {high}" for name, (low, high, _) in sizes.items())
    return Row(f"{path.stem}, {bounds}", lambda target: shutil.copyfile(path, target), sizes)


# --- the process of an engine -------------------------------------------------------------------------


def serve(task: dict[str, Any]) -> int:
    """A line for every line on stdin: times of requests of its sizes (`again`: three of each), and resident bytes."""
    (engine,) = task["engines"]
    load(engine)
    session = open_session(engine, task["path"], task["threads"])
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        times = []
        for size in request["sizes"]:
            feeds = _feeds(task["inputs"], size)
            times.append([_timed(session, feeds) for _ in range(3 if request["again"] else 1)])
        return_freed_memory()
        print(json.dumps({"times": times, "resident": resident_bytes()}), flush=True)
    return 0


def _timed(session: Callable[[Mapping[str, np.ndarray]], object], feeds: Mapping[str, np.ndarray]) -> float:
    start = time.perf_counter()
    session(feeds)
    return time.perf_counter() - start


def _inputs(path: str) -> dict[str, tuple[str, list[int | str]]]:
    """Element type and shape of every input of the file."""
    graph = onnx.load(path, load_external_data=False).graph
    stored = {tensor.name for tensor in graph.initializer}
    found = {}
    for value in graph.input:
        if value.name not in stored:
            kind = value.type.tensor_type
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
            found[value.name] = (dtype, [d.dim_param or d.dim_value for d in kind.shape.dim])
    return found


def _feeds(inputs: Mapping[str, tuple[str, list[int | str]]], size: Size) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    feeds = {}
    for name, (dtype, dims) in inputs.items():
        shape = [size[d] if isinstance(d, str) else d for d in dims]
        plain = random.integers(0, 2, shape) if dtype.startswith("int") else random.standard_normal(shape)
        feeds[name] = plain.astype(dtype)
    return feeds


# --- turns --------------------------------------------------------------------------------------------


@dataclass
class Measured:
    """Of one engine: mean requests by turn in seconds, what new sizes cost, resident bytes at the start and the end."""

    cold: list[float]
    warm: list[float]
    new: list[float]
    resident: tuple[int, int] = (0, 0)


def measure(task: dict[str, Any], sizes: list[Size], seed: int) -> dict[str, Measured]:
    servers = {engine: Server(__file__, [engine], task) for engine in ENGINES}
    found = {engine: Measured([], [], []) for engine in ENGINES}
    for engine, server in servers.items():
        first = server.turn({"sizes": sizes[:1], "again": True})
        found[engine].resident = (first["resident"], 0)
    shuffled = [sizes[i] for i in np.random.default_rng(seed).permutation(len(sizes))]
    for again, of in ((True, sizes[1:]), (False, shuffled)):
        for number, at in enumerate(range(0, len(of) - len(of) % TURN or len(of), TURN)):
            for engine in ENGINES if number % 2 == 0 else ENGINES[::-1]:
                answer = servers[engine].turn({"sizes": of[at : at + TURN], "again": again})
                times = answer["times"]
                mine = found[engine]
                (mine.cold if again else mine.warm).append(float(np.mean([t[0] for t in times])))
                if again:
                    mine.new += [t[0] - float(np.median(t[1:])) for t in times]
                mine.resident = (mine.resident[0], answer["resident"])
                time.sleep(0.05)
    for server in servers.values():
        server.close()
    return found


def row_cells(processes: Sequence[dict[str, Measured]]) -> tuple[list[str], list[Groups]]:
    cells: list[str] = []
    all_groups: list[Groups] = []
    for phase in ("cold", "warm"):
        turns = [{engine: getattr(p[engine], phase) for engine in ENGINES} for p in processes]
        groups = [[a / b for a, b in zip(*(t[engine] for engine in ENGINES), strict=True)] for t in turns]
        ratio = paired_ratio(groups)
        cells += [f"{1e3 * np.mean([x for t in turns for x in t[engine]]):.3g}" for engine in ENGINES]
        cells.append(f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})")
        all_groups.append(groups)
    for engine in ENGINES:
        p50, p90 = np.percentile([x for p in processes for x in p[engine].new], (50, 90))
        cells.append(f"{1e3 * p50:.2f}, {1e3 * p90:.2f}")
    for engine in ENGINES:
        cells.append(f"{np.median([p[engine].resident[1] / p[engine].resident[0] for p in processes]):.2f}")
    return cells, all_groups


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_choices(parser, "--only", "row", ROWS)
    parser.add_argument("--files", type=Path, help="folder with further rows: NAME.onnx, NAME.json")
    parser.add_argument("--sizes", type=int, default=200, help="different sizes of a row (default: 200)")
    add_repetition(parser)
    options = parse(parser)
    further = {} if options.files is None else rows_of_folder(options.files)
    rows = {**{name: ROWS[name] for name in options.only}, **further}
    facts, engines = machine(), versions()
    names = ", ".join(f"{TITLES[engine]} {engines[engine]}" for engine in ENGINES)
    print(f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}; {names}; {options.restarts} processes")
    of = [TITLES[engine] for engine in ENGINES]
    head = ["row", *(cell for phase in ("cold", "warm") for cell in (*(f"{phase}, {n}, ms" for n in of), phase))]
    head += [*(f"new size, {n}, ms" for n in of), *(f"memory, {n}" for n in of)]
    with tempfile.TemporaryDirectory() as folder:
        for name, row in rows.items():
            row.write(f"{folder}/{name}.onnx")
        for threads in options.threads:
            body, means = [], [[], []]  # type: ignore[var-annotated]
            for name, row in rows.items():
                log(f"{name}, {threads} threads")
                path = f"{folder}/{name}.onnx"
                task = {"path": path, "threads": threads, "inputs": _inputs(path)}
                runs = [measure(task, row.draw(options.sizes, n), n) for n in range(options.restarts)]
                cells, groups = row_cells(runs)
                body.append([row.title, *cells])
                for mean, group in zip(means, groups, strict=True):
                    mean.append(group)
            total = [geometric_mean(groups) for groups in means]
            last = [cell for m in total for cell in ("", "", f"**{m.median:.2f} ({m.low:.2f} to {m.high:.2f})**")]
            body.append(["**geometric mean**", *last, "", "", "", ""])
            print("\n".join(["", heading(threads), "", table(head, body)]), flush=True)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        raise SystemExit(serve(json.loads(sys.argv[2])))
    raise SystemExit(main())
