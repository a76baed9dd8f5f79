"""Compare greedy text generation with a cache to the same loop with ONNX Runtime.

    python bench/generation.py [--threads 1] [--tokens 64] [--rounds 5]

A row of the table is a decoder of the zoo with random weights. Its prompt has 16 tokens. For "new lengths", both
engines are opened in each round, and have generated 3 tokens before: each length of the cache occurs for the first
time. For "known lengths", the same generation is repeated. The engines take turns. Times are processor time per token.
Ratios are ONNX Runtime's time over graphkit's, paired by round: above 1, graphkit is faster. The tokens are compared.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import onnxruntime
from processes import machine
from tables import heading, table

import graphkit as gk

# layers, width, heads, vocabulary
SIZES = ((2, 64, 2, 1000), (4, 256, 4, 8000), (6, 512, 8, 8000), (12, 768, 12, 8000))
_PROMPT = 16


def decoder(layers: int, width: int, heads: int, vocab: int, length: int) -> gk.Model:
    net = gk.models.build(
        "transformer_lm", vocab=vocab, width=width, heads=heads, layers=layers, length=length, cache=True
    )
    rng = np.random.default_rng(0)
    params = {name: rng.standard_normal(a.shape, np.float32) * np.float32(0.1) for name, a in net.params.items()}
    return gk.Model.from_graph(net.graph, params)


def opened(file: bytes, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(file, options)


def greedy(session: onnxruntime.InferenceSession, prompt: np.ndarray, count: int) -> tuple[int, ...]:
    names = [output.name for output in session.get_outputs()]
    shapes = {i.name: i.shape for i in session.get_inputs() if i.name != "x"}
    kept = {name: np.zeros((1, shape[1], 0, shape[3]), np.float32) for name, shape in shapes.items()}
    x, found = prompt[None], []
    for _ in range(count):
        results = dict(zip(names, session.run(None, {"x": x, **kept}), strict=True))
        kept = {name: results[name.replace("past_key_values", "present")] for name in kept}
        x = results["logits"][:, -1:].argmax(axis=-1)
        found.append(int(x[0, 0]))
    return tuple(found)


def timed(call: Callable[[], tuple[int, ...]]) -> tuple[float, tuple[int, ...]]:
    start = time.process_time()
    found = call()
    return time.process_time() - start, found


def row(size: tuple[int, int, int, int], threads: int, tokens: int, rounds: int) -> list[str]:
    net = decoder(*size, length=_PROMPT + 2 * tokens)
    file = net.to_onnx().SerializeToString()
    prompt = np.arange(_PROMPT, dtype=np.int64)
    times: dict[str, list[tuple[float, float]]] = {"new": [], "known": []}
    for _ in range(rounds):
        own = gk.Model.from_graph(net.graph, dict(net.params))
        session = opened(file, threads)
        gk.generate(own, prompt[:4], max_tokens=3, threads=threads)
        greedy(session, prompt[:4], 3)
        for lengths in times:
            theirs, expected = timed(lambda s=session: greedy(s, prompt, tokens))
            ours, found = timed(lambda m=own: gk.generate(m, prompt, max_tokens=tokens, threads=threads).ids)
            assert found == expected, f"{size}: other tokens"
            times[lengths].append((theirs, ours))
    cells = []
    for pairs in times.values():
        theirs, ours = (median(pair[i] for pair in pairs) / tokens * 1e3 for i in (0, 1))
        cells += [f"{theirs:.2f}", f"{ours:.2f}", f"{median(a / b for a, b in pairs):.2f}"]
    return [f"{size[0]} layers of {size[1]}", *cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    about = machine()
    print(
        f"{about['cpu']}, {about['cores']} cores, load {about['load']:.1f}, Python {platform.python_version()}; "
        f"graphkit {gk.__version__}, ONNX Runtime {onnxruntime.__version__}; {options.tokens} tokens, "
        f"{options.rounds} rounds."
    )
    engines = ("ONNX Runtime, ms", "graphkit, ms", "ratio")
    head = ["decoder", *(f"{lengths} lengths: {each}" for lengths in ("new", "known") for each in engines)]
    body = [row(size, options.threads, options.tokens, options.rounds) for size in SIZES]
    print(f"\n{heading(options.threads)}\n\n{table(head, body)}")


if __name__ == "__main__":
    main()
