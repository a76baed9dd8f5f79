"""Compare the time from a file to the first result in C programs: graphkit's C interface and ONNX Runtime's C API.

    python bench/first_c.py FOLDER [--only mlp,gru] [--threads 1] [--restarts 7]

FOLDER contains NAME.onnx with NAME.npz, an array for each input (`exported.py` writes some). graphkit reads a program
that `graphkit export` has saved for these shapes, without Python. Each program runs in new processes, by turns; files
are in the page cache. *First result*: wall time from before the file is opened to the end of the first run. *New
process*: processor time from the start of the process to that point, so it includes loading the library. Results are
compared first: they differ by at most 1e-3 of the largest element. The table is printed as Markdown: medians, and ONNX
Runtime's time over graphkit's, paired by restart (above 1, graphkit is faster).
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from processes import HERE, TIMEOUT, add_restarts, log, machine, parse
from tables import heading, table

import graphkit as gk
from graphkit.checks.timing import Groups, geometric_mean, paired_ratio
from graphkit.executor.run.c_package import write_c_runtime

PARTS = ("first result", "new process")
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Commands:
    """The commands of both programs for a file. {results} is replaced by the path for the outputs."""

    onnxruntime: list[str]
    graphkit: list[str]
    outputs: list[np.ndarray]  # expected


def _compiled(source: str, folder: Path, *options: str | Path) -> Path:
    program = folder / source
    text = HERE / "native" / f"{source}.c"
    subprocess.run(["cc", "-O2", "-Wall", text, "-o", program, *options], check=True, timeout=TIMEOUT)
    return program


def programs(folder: Path) -> dict[str, Path]:
    """Compile both programs."""
    write_c_runtime(folder / "runtime")
    libraries = folder / "runtime" / "lib"
    capi = Path(onnxruntime.__file__).parent / "capi"
    peer = next(capi.glob("libonnxruntime.so.*"), None)
    if peer is None:
        raise SystemExit(f"{capi} has no libonnxruntime.so.*: this package of ONNX Runtime has no C API")
    (folder / "libonnxruntime.so.1").symlink_to(peer)  # the name that the library gives itself
    return {
        "onnxruntime": _compiled("first_onnxruntime", folder, peer, f"-Wl,-rpath,{folder}"),
        "graphkit": _compiled(
            "first_graphkit", folder, f"-I{folder / 'runtime' / 'include'}", f"-L{libraries}", "-lgraphkit",
            f"-Wl,-rpath,{libraries}",
        ),
    }  # fmt: skip


def commands(path: Path, threads: int, made: dict[str, Path], folder: Path) -> Commands:
    """Write the saved program and the inputs of a file."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    with np.load(path.with_suffix(".npz")) as arrays:
        feeds = {i.name: np.ascontiguousarray(arrays[i.name]) for i in session.get_inputs()}
    names = [output.name for output in session.get_outputs()]
    outputs = [np.asarray(output) for output in session.run(names, feeds)]
    program = folder / f"{path.stem}.gkp"
    net = gk.load(path)
    net.save(program, shapes={name: array.shape for name, array in feeds.items()}, threads=threads)
    words, files = [str(len(feeds))], {}
    for number, (name, array) in enumerate(feeds.items()):
        files[name] = folder / f"{path.stem}-{number}.bin"
        files[name].write_bytes(array.tobytes())
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        words += [name, str(kind), str(array.nbytes), ",".join(map(str, array.shape)), str(files[name])]
    for name, output in zip(names, outputs, strict=True):
        words += [name, str(output.nbytes)]
    peer = [str(made["onnxruntime"]), str(path), str(threads), "{results}", *words]
    ours = [str(made["graphkit"]), str(program), str(threads), "{results}", *(str(files[n]) for n in net.input_types)]
    return Commands(peer, ours, outputs)


def run(command: list[str], results: Path) -> dict[str, float]:
    """Return the seconds that a program prints."""
    done = subprocess.run(
        [str(results) if word == "{results}" else word for word in command],
        capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{command[0]} ended with {done.returncode}: {done.stderr}")
    return dict(zip(PARTS, map(float, done.stdout.split()), strict=True))


def check(results: Path, outputs: list[np.ndarray]) -> None:
    """Compare the outputs that a program wrote. Raises SystemExit if they differ, or if there are none."""
    data = results.read_bytes()
    if not data or len(data) != sum(output.nbytes for output in outputs):
        raise SystemExit(f"{results}: {len(data)} bytes")
    begin = 0
    for output in outputs:
        found = np.frombuffer(data, output.dtype, output.size, begin).astype(np.float64)
        expected = output.ravel().astype(np.float64)
        begin += output.nbytes
        if not np.abs(found - expected).max(initial=0) <= _TOLERANCE * np.abs(expected).max(initial=0):
            raise SystemExit(f"{results}: the results differ")


def measure(found: Commands, restarts: int, folder: Path) -> dict[str, list[dict[str, float]]]:
    """Return the times of each restart, by engine. The first processes are not counted: they read the files."""
    by_engine = {"onnxruntime": found.onnxruntime, "graphkit": found.graphkit}
    times: dict[str, list[dict[str, float]]] = {engine: [] for engine in by_engine}
    for restart in range(restarts + 1):
        for engine in by_engine if restart % 2 else reversed(by_engine):
            results = folder / engine
            measured = run(by_engine[engine], results)
            if restart == 0:
                check(results, found.outputs)
            else:
                times[engine].append(measured)
    return times


def row(name: str, times: dict[str, list[dict[str, float]]]) -> tuple[list[str], dict[str, Groups]]:
    cells: list[str] = [name]
    groups: dict[str, Groups] = {}
    for part in PARTS:
        peer, ours = ([one[part] for one in times[engine]] for engine in ("onnxruntime", "graphkit"))
        groups[part] = [[a / b] for a, b in zip(peer, ours, strict=True)]
        cells += [f"{1e3 * np.median(peer):.3g}", f"{1e3 * np.median(ours):.3g}", str(paired_ratio(groups[part]))]
    return cells, groups


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with NAME.onnx and NAME.npz")
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of files, without .onnx")
    add_restarts(parser)
    options = parse(parser)
    known = {file.stem: file for file in sorted(options.folder.glob("*.onnx")) if file.with_suffix(".npz").exists()}
    if not known:
        parser.error(f"{options.folder} has no NAME.onnx with NAME.npz")
    names = options.only or list(known)
    if missing := [name for name in names if name not in known]:
        parser.error(f"{options.folder} has no {missing[0]}.onnx with {missing[0]}.npz")
    files = [known[name] for name in names]
    facts = machine()
    print(f"{facts['cpu']}, {facts['cores']} cores, load {facts['load']:.1f}; graphkit {gk.__version__}, "
          f"ONNX Runtime {onnxruntime.__version__}; {options.restarts} processes")  # fmt: skip
    head = ["file", *(f"{part}, ms, {engine}" if engine else "ratio"
                      for part in PARTS for engine in ("ONNX Runtime", "graphkit", ""))]  # fmt: skip
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        made = programs(folder)
        for threads in options.threads:
            body, groups = [], []
            for file in files:
                log(f"{file.stem}, {threads} threads")
                times = measure(commands(file, threads, made, folder), options.restarts, folder)
                cells, of_row = row(file.stem, times)
                body.append(cells)
                groups.append(of_row)
            means = [f"**{geometric_mean([g[part] for g in groups])}**" for part in PARTS]
            body.append(["**geometric mean**", "", "", means[0], "", "", means[1]])
            print("\n".join(["", heading(threads), "", table(head, body)]), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
