"""Compare a file with gigabytes of weights with ONNX Runtime: first result, memory, few and many rows, and saving.

    python bench/large_weights.py [--layers 10] [--width 8192] [--threads 1] [--restarts 3] [--rows 1,7,256]

The file is a chain of products with matrices [width, width], by default 2.7 GB of external data. Each engine opens it
in new processes, by turns. The file is in the page cache. Times are processor times of a process, from the import of
the engine; numpy is imported before. *First result*: until the end of the first run, with the first number of rows.
*N rows*: the median of the later runs. *first run*: the first of them, in which weights may be packed again. *Peak*:
the largest resident size. *save*: the processor time in which graphkit writes the loaded file again, compared with a
copy by `cp`. The table is printed as Markdown: medians, and ONNX Runtime's value over graphkit's, paired by restart
(above 1, graphkit is faster, or smaller).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper
from processes import TIMEOUT, log, machine
from tables import heading, table

_OPEN = {
    "graphkit": """
import graphkit
run = graphkit.load(path).compile(threads=threads)
""",
    "onnxruntime": """
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
run = lambda x: session.run(None, {"x": x})
""",
}
_RUN = r"""
import json, re, sys, time
import numpy as np
path, threads, width, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
feeds = [np.random.default_rng(n).standard_normal((n, width), dtype=np.float32) for n in rows]
start = time.process_time()
{}
found = {{}}
for n, x in zip(rows, feeds):
    times = []
    for _ in range(4):
        begin = time.process_time()
        run(x)
        times.append(time.process_time() - begin)
    found.setdefault("first result, s", begin - start - sum(times[:3]) + times[0])
    if n != rows[0]:
        found[f"{{n}} rows: first run, s"] = times[0]
    found[f"{{n}} rows, s"] = sorted(times[1:])[1]
found["peak, GB"] = int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) * 1024 / 1e9
print(json.dumps(found))
"""
_SAVE = r"""
import json, re, resource, subprocess, sys, time
import graphkit
model = graphkit.load(sys.argv[1])
found = {}
for suffix in ("onnx", "json"):
    start = time.process_time()
    model.save(f"{sys.argv[2]}/saved.{suffix}")
    found[f"save .{suffix}, s"] = time.process_time() - start
before = resource.getrusage(resource.RUSAGE_CHILDREN)
subprocess.run(["cp", sys.argv[3], sys.argv[2] + "/copy"], check=True)
after = resource.getrusage(resource.RUSAGE_CHILDREN)
found["cp, s"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
found["save: peak, GB"] = int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) * 1024 / 1e9
print(json.dumps(found))
"""


def write(folder: Path, layers: int, width: int) -> Path:
    """Write the file, and return its path."""
    rng, nodes, tensors = np.random.default_rng(0), [], []
    with (folder / "weights.data").open("wb") as file:
        for i in range(layers):
            matrix = rng.standard_normal((width, width), dtype=np.float32)
            matrix *= width**-0.5
            tensor = TensorProto(name=f"w{i}", dims=matrix.shape, data_type=TensorProto.FLOAT)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "weights.data"), ("offset", file.tell()), ("length", matrix.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            file.write(matrix.data)
            tensors.append(tensor)
            nodes.append(helper.make_node("MatMul", [f"y{i}" if i else "x", f"w{i}"], [f"y{i + 1}"]))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", width]) for name in ("x", f"y{layers}"))
    graph = helper.make_graph(nodes, "large", [x], [y], tensors)
    model: ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "large.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def process(code: str, *arguments: object) -> dict[str, float]:
    """Run code in a process of its own, and return what it prints."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 10), ("width", 8192), ("threads", 1), ("restarts", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rows", type=lambda text: [int(n) for n in text.split(",")], default=[1, 7, 256])
    options = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {engine: [] for engine in _OPEN}
    saves = []
    with tempfile.TemporaryDirectory() as name:
        path = write(Path(name), options.layers, options.width)
        for restart in range(options.restarts):
            log(f"restart {restart + 1} of {options.restarts}")
            for engine, opened in _OPEN.items():
                arguments = options.threads, options.width, json.dumps(options.rows)
                runs[engine].append(process(_RUN.format(opened), path, *arguments))
            with tempfile.TemporaryDirectory(dir=name) as target:
                saves.append(process(_SAVE, path, target, path.parent / "weights.data"))
        size = os.path.getsize(path.parent / "weights.data")
    facts = machine()
    print(f"{facts['cpu']}, {facts['cores']} cores, load {facts['load']:.1f}, Python {facts['python']}; ", end="")
    print(f"{size / 1e9:.1f} GB of weights; {options.restarts} processes of each engine.\n")
    print(heading(options.threads) + "\n")
    own, peer = runs["graphkit"], runs["onnxruntime"]
    body = []
    for key in own[0]:
        mine, theirs = np.array([r[key] for r in own]), np.array([r[key] for r in peer])
        body.append([key, f"{np.median(mine):.3f}", f"{np.median(theirs):.3f}", f"{np.median(theirs / mine):.2f}"])
    body += [[key, f"{np.median([save[key] for save in saves]):.3f}", "", ""] for key in saves[0]]
    print(table(["", "graphkit", "ONNX Runtime", "ratio"], body))


if __name__ == "__main__":
    main()
