"""Compare models of text and of string columns, as sklearn-onnx writes them, with ONNX Runtime.

    python bench/strings.py [--seconds 0.1] [--rounds 7]

Each row is one model at one batch size on one thread: medians in milliseconds over rounds in which the engines take
turns, and graphkit's time over ONNX Runtime's. A table in Markdown goes to stdout.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper
from tables import table

import graphkit as gk
from graphkit.checks.timing import interleave, paired_ratio, summarise
from graphkit.onnx_io.compare import OnnxRuntimeModel

ML = "ai.onnx.ml"
RNG = np.random.default_rng(0)
WORDS = [f"w{number}" for number in range(2000)]
COLOURS = ["red", "green", "blue", "black"]
OPSETS = [helper.make_opsetid(*pair) for pair in (("", 17), (ML, 3), ("com.microsoft", 1))]


def model(nodes: list, columns: int, width: int, constants: dict[str, np.ndarray] | None = None) -> ModelProto:
    """The nodes from strings `x` [N, columns] to floats `y` [N, width]."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.STRING, ["N", columns])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", width])]
    weights = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "strings", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=9)


def counts(weighted: bool, longest: int) -> ModelProto:
    """Words of `[a-zA-Z0-9_]+`, counted as 1-grams, or as 1-grams and 2-grams of a vocabulary."""
    pairs = [word for first in RNG.choice(WORDS, (6000, 2)) for word in first] if longest == 2 else []
    pairs = [word for pair in {tuple(pairs[i : i + 2]) for i in range(0, len(pairs), 2)} for word in pair]
    size = len(WORDS) + len(pairs) // 2
    vectorizer = helper.make_node(
        "TfIdfVectorizer", ["flat"], ["y"], mode="TFIDF" if weighted else "TF", min_gram_length=1,
        max_gram_length=longest, max_skip_count=0, ngram_counts=[0, len(WORDS)][:longest],
        ngram_indexes=list(range(size)), pool_strings=[*WORDS, *pairs], weights=RNG.uniform(1, 5, size).tolist(),
    )  # fmt: skip
    return model(
        [
            helper.make_node(
                "Tokenizer", ["x"], ["words"], domain="com.microsoft", mark=0, mincharnum=1, pad_value="#",
                tokenexp="[a-zA-Z0-9_]+",
            ),
            helper.make_node("Flatten", ["words"], ["flat"], axis=1),
            vectorizer,
        ],
        1, size,
    )  # fmt: skip


def columns(kind: str, count: int) -> ModelProto:
    """Each column by itself through an encoder, and their results side by side."""
    nodes, constants = [], {f"at{i}": np.array([i], np.int64) for i in range(count)}
    for i in range(count):
        nodes.append(helper.make_node("Gather", ["x", f"at{i}"], [f"column{i}"], axis=1))
        if kind == "OneHotEncoder":
            nodes.append(helper.make_node(kind, [f"column{i}"], [f"hot{i}"], domain=ML, cats_strings=COLOURS))
            nodes.append(helper.make_node("Reshape", [f"hot{i}", "shape"], [f"part{i}"]))
        else:
            nodes.append(
                helper.make_node(
                    kind, [f"column{i}"], [f"part{i}"], domain=ML, keys_strings=COLOURS, values_floats=[0.0, 1, 2, 3]
                )
            )
    width = len(COLOURS) if kind == "OneHotEncoder" else 1
    constants["shape"] = np.array([-1, width], np.int64)
    nodes.append(helper.make_node("Concat", [f"part{i}" for i in range(count)], ["y"], axis=1))
    return model(nodes, count, count * width, constants)


def rows() -> Iterator[tuple[str, ModelProto, np.ndarray]]:
    texts = np.array([" ".join(RNG.choice(WORDS, 50)) for _ in range(300)], object)[:, None]
    for batch in (10, 300):
        for name, proto in (("counts", counts(False, 1)), ("TF-IDF", counts(True, 1)), ("2-grams", counts(True, 2))):
            yield f"{name}, {batch} texts of 50 words", proto, texts[:batch]
    table_of = RNG.choice(COLOURS, (1000, 20)).astype(object)
    for kind, count in (("OneHotEncoder", 5), ("OneHotEncoder", 20), ("LabelEncoder", 20)):
        yield f"{count} x {kind}, 1,000 rows", columns(kind, count), table_of[:, :count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.1, help="of an engine's turn in a round")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    lines = []
    for name, proto, x in rows():
        ours, theirs = gk.load(proto).compile(threads=1), OnnxRuntimeModel(proto, threads=1)
        np.testing.assert_allclose(ours.run({"x": x})["y"], theirs.run({"x": x})["y"], rtol=1e-5)
        feeds = {"x": x}
        calls = {"graphkit": partial(ours.run, feeds), "onnxruntime": partial(theirs.run, feeds)}
        times = interleave(calls, rounds=given.rounds, seconds=given.seconds)
        medians = {engine: summarise(found).p50 for engine, found in times.items()}
        pairs = zip(*(map(np.median, times[engine]) for engine in ("graphkit", "onnxruntime")), strict=True)
        ratio = paired_ratio([[a / b for a, b in pairs]])
        lines.append([name, f"{medians['graphkit'] * 1e3:.3g}", f"{medians['onnxruntime'] * 1e3:.3g}", str(ratio)])
    print(table(["model", "graphkit ms", "ONNX Runtime ms", "graphkit over ONNX Runtime"], lines))


if __name__ == "__main__":
    main()
