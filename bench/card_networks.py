"""Compare networks on a GPU with PyTorch (eager and compiled) and ONNX Runtime, in one process and by turns.

    python bench/card_networks.py [--only mlp,resnet50@64] [--precision f32|bf16] [--rounds 7] [--seconds 0.5]
                                  [--without compiled,onnxruntime] [--record NAME]

NAME@SIZE is a network with SIZE samples per batch. Results are written after each network.

Training is a step of SGD with momentum, from a batch in host memory to the loss in host memory. Inference is a run from
arrays to arrays. The results of the first steps are compared before timing. Engines that are not installed are left
out, with a message. graphkit runs with a second precision, too: with "tf32" in addition to float32, because the other
engines may use it (PyTorch for convolutions, ONNX Runtime for everything); and with "fp8" in addition to bfloat16. For
bfloat16, PyTorch uses autocast, and ONNX Runtime is left out. MB is the memory that the engine's allocator uses in the
first two steps: parameters, momenta and everything else that a step needs. Needs a GPU, see bench/cuda.sh. Writes
NAME.json and NAME.md.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import training_engines as engines
from card import about, on_card
from measurement import one_line, timed
from paired import ratios
from tables import table
from training_tasks import differences
from training_workloads import WORKLOADS as TRAINED
from training_workloads import Workload

_TOKENS = (8, 256)
WORKLOADS = TRAINED | {
    "bert": Workload("bert", "bert-base, 8x256 tokens", "bert", dict.fromkeys(("x", "segments", "mask"), _TOKENS),
                     {"dropout": 0.0}),
    "gpt": Workload("gpt", "causal transformer 12x768, 8x256 tokens", "transformer_lm", {"x": _TOKENS},
                    {"vocab": 50257, "width": 768, "heads": 12, "layers": 12, "length": 256, "dropout": 0.0}),
}  # fmt: skip
# As many as a card's figures are of.
_ALL = ",".join((*WORKLOADS, "resnet50@1", "resnet50@64", "resnet50@256", "mobilenetv2@64"))

TITLES = {**engines.TITLES, "tf32": "graphkit, tf32", "fp8": "graphkit, fp8", "onnxruntime": "ONNX Runtime"}
# Of graphkit's runs, by what the others compute in.
PRECISIONS = {"f32": {"graphkit": "f32", "tf32": "tf32"}, "bf16": {"graphkit": "bf16", "fp8": "fp8"}}


def training(workload: Workload, task: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the times of steps and the difference of the first step from PyTorch's, or the error, by engine."""
    half = task["precision"] == "bf16"
    opened: dict[str, Callable[[], engines.Runner]] = {
        name: lambda precision=precision: engines.graphkit(workload, 1, device="cuda", precision=precision)
        for name, precision in PRECISIONS[task["precision"]].items()
    }
    if engines.versions()["torch"] is not None:
        for name in ("torch", "compiled"):
            opened[name] = lambda name=name: engines.open_engine(name, workload, 1, "cuda", half)
    results: dict[str, dict[str, Any]] = {}
    calls: dict[str, Callable[[], object]] = {}
    firsts = {}
    for name in task.get("without", ()):
        opened.pop(name, None)
    for name, made in opened.items():
        gc.collect()  # what is left of others is not given back while this one is measured
        try:
            taken = _taken(name)
            runner = made()
            firsts[name] = runner.step(), runner.states(), runner.statistics
            runner.step()
            runner.facts["device_bytes"] = taken()
        except Exception as error:  # noqa: BLE001 - the engines' exceptions have no common base; the row shows it
            results[name] = {"error": one_line(error, task)}
        else:
            results[name], calls[name] = dict(runner.facts), runner.step
    for name, (loss, states, statistics) in firsts.items():
        if "torch" in firsts and name != "torch":
            results[name]["difference"] = differences((loss, states), firsts["torch"][:2], statistics)
    for name, times in timed(calls, task).items():
        results[name] |= times
    return results


def inference(workload: Workload, task: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the times of runs, or the error, by engine."""
    net, (inputs, _) = workload.net(), workload.feeds()
    results: dict[str, dict[str, Any]] = {}
    calls: dict[str, Callable[[], object]] = {}

    def opened(name: str, made: Callable[[], Callable[[], object]]) -> None:
        if name in task.get("without", ()):
            return
        try:
            call = made()
            call()
        except Exception as error:  # noqa: BLE001 - as above
            results[name] = {"error": one_line(error, task)}
        else:
            results[name], calls[name] = {}, call

    def graphkit(precision: str) -> Callable[[], object]:
        run = net.compile("cuda", precision=precision).run
        return lambda: run(inputs)

    half = task["precision"] == "bf16"
    for name, precision in PRECISIONS[task["precision"]].items():
        opened(name, lambda precision=precision: graphkit(precision))
    if engines.versions()["torch"] is not None:
        for name in ("torch", "compiled"):
            opened(name, lambda name=name: engines.torch_inference(workload, "cuda", name == "compiled", half))
    if not half and importlib.util.find_spec("onnxruntime") is not None:
        with tempfile.TemporaryDirectory() as folder:
            opened("onnxruntime", lambda: _onnxruntime(workload, Path(folder) / "net.onnx"))
    for name, times in timed(calls, task).items():
        results[name] |= times
    return results


def _taken(name: str) -> Callable[[], int | None]:
    """Return a function that returns the GPU memory of an engine since this call, in bytes; None without a GPU.

    For PyTorch, this is the peak of its allocator. For graphkit, it is the memory that stays allocated: all memory of a
    step is one block.
    """
    if name in ("torch", "compiled"):
        import torch

        if not torch.cuda.is_available():
            return lambda: None
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return lambda: torch.cuda.max_memory_allocated() - before
    if importlib.util.find_spec("cupy") is None:
        return lambda: None
    import cupy

    pool = cupy.get_default_memory_pool()
    held = pool.used_bytes()
    return lambda: pool.used_bytes() - held


def _onnxruntime(workload: Workload, path: Path) -> Callable[[], object]:
    import onnxruntime

    provider = "CUDAExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        raise RuntimeError(f"this onnxruntime has no {provider}: pip install onnxruntime-gpu")
    workload.net().save(path)
    run = onnxruntime.InferenceSession(str(path), providers=[provider]).run
    inputs, _ = workload.feeds()
    return lambda: run(None, inputs)


def report(rows: list[dict[str, Any]], about: str) -> str:
    """Return a table of times in milliseconds, and of the ratios of the other engines to graphkit."""
    body = []
    for row in rows:
        for name, result in row["engines"].items():
            ratio = row["ratio"].get(name)
            time = f"{result['seconds']['p50'] * 1e3:.3f}" if "seconds" in result else result["error"]
            shown = "" if ratio is None else f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
            taken = result.get("device_bytes")
            memory = "" if taken is None else f"{taken / 1e6:.0f}"
            body.append((row["workload"], row["part"], TITLES[name], time, shown, memory))
    return f"{about}\n\n" + table(("network", "what", "engine", "ms", "times graphkit's", "MB"), body)


def workload_of(text: str) -> Workload:
    """NAME, or NAME@SIZE of a batch."""
    name, _, size = text.partition("@")
    return WORKLOADS[name].with_batch(int(size)) if size else WORKLOADS[name]


def measure(names: list[str], task: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Return a row for the inference and one for the training of each network."""
    for name in names:
        for part, run in (("inference", inference), ("training", training)):
            found = run(workload_of(name), task)
            ran = {engine: result for engine, result in found.items() if "seconds" in result}
            yield {"workload": name, "part": part, "engines": found, "ratio": ratios([ran], found)}


def record(path: Path, said: str, rows: list[dict[str, Any]]) -> None:
    found = {"about": said, "versions": engines.versions(), "rows": rows}
    path.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    path.with_suffix(".md").write_text(report(rows, said))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=_ALL, help="workloads, by comma")
    parser.add_argument("--precision", choices=list(PRECISIONS), default="f32")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of one engine in one round")
    parser.add_argument("--without", default="", help="engines that are left out, by comma")
    parser.add_argument("--record", type=Path, metavar="NAME")
    options = parser.parse_args()
    return on_card(lambda card: _measured(about(card), options))


def _measured(said: str, options: argparse.Namespace) -> int:
    task = {
        "rounds": options.rounds, "seconds": options.seconds, "seed": 0, "precision": options.precision,
        "without": options.without.split(","),
    }  # fmt: skip
    rows = []
    for row in measure(options.only.split(","), task):
        rows.append(row)
        print(report(rows[-1:], ""), file=sys.stderr, flush=True)
        if options.record is not None:
            record(options.record, said, rows)
    print(report(rows, said))
    return 1 if any("error" in result for row in rows for result in row["engines"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
