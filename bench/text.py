"""Compare an exported text network with ONNX Runtime, on the validation part of real text.

    python bench/text.py cls.onnx sentences:reviews/
    python bench/text.py lm.onnx text:book.txt --metric perplexity --carry h=last_h --carry c=last_c --length 50

The vocabulary is that of the file's metadata. Both engines read the same batches, and each keeps its own states.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import graphkit as gk
from graphkit import data
from graphkit.onnx_io.compare import OnnxRuntimeModel, runtime_version
from graphkit.train import metrics
from graphkit.train.recurrent_state import RecurrentState

Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def score(net: gk.Model, run: Run, test: data.Dataset, batch_size: int, metric: str, carry: dict[str, str]) -> float:
    """Return the metric of `run` over a data set, read in batches."""
    measured, state = metrics.get(metric), RecurrentState(net, carry)
    for inputs, targets in test.batches(batch_size, shuffle=False):
        feeds = state.feeds(inputs)
        results = run(feeds if isinstance(feeds, Mapping) else {net.inputs[0]: feeds})
        state.keep({name: np.asarray(array) for name, array in results.items()})
        measured.update(np.asarray(results["logits"]), targets)
    return measured.value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="an .onnx file that graphkit wrote")
    parser.add_argument("data", help="sentences:FOLDER or text:FILE")
    parser.add_argument("--metric", default="accuracy")
    parser.add_argument("--carry", action="append", default=[], metavar="INPUT=OUTPUT")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--length", type=int)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    net = gk.load(args.model)
    options: dict[str, Any] = {"vocabulary": data.Vocabulary.from_json(net.meta["vocabulary"])}
    if args.length is not None:
        options["length"] = args.length
    test = data.load(args.data, **options).test
    carry = dict(pair.split("=") for pair in args.carry)
    engines = {
        "graphkit": net.compile(threads=args.threads).run,
        f"ONNX Runtime {runtime_version()}": OnnxRuntimeModel(args.model, threads=args.threads).run,
    }
    for name, run in engines.items():
        begin = time.perf_counter()
        value = score(net, run, test, args.batch_size, args.metric, carry)
        print(f"{name}: {args.metric} {value:.5f} on {test.name}, {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    main()
