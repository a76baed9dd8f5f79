"""Compare a decoder's attention over its past, with grouped and with separate heads, with ONNX Runtime.

    python bench/grouped.py [--threads 1,2] [--rounds 7]

Each row is the attention of one layer over a past, in one of two forms: as PyTorch exports it, where heads are repeated
and then multiplied; or as the operator Attention. The extended keys and values are results, too. Sizes are fixed, and
types are float32. Outputs are compared before timing. Both engines run in one process and take turns in rounds. The
table is printed as Markdown: medians, the bytes of keys and values per second in graphkit, and ONNX Runtime's time over
graphkit's, paired by round (above 1, graphkit is faster).
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import onnxruntime
from processes import machine
from tables import heading, table

import graphkit as gk
from graphkit.checks.timing import interleave, paired_ratio, quotients, summarise
from graphkit.ops import F


class Size(NamedTuple):
    heads: int
    groups: int
    depth: int
    queries: int
    past: int


SIZES = {
    "32 heads of 128 on 8, one query, 1,024 keys": Size(32, 8, 128, 1, 1023),
    "32 heads of 64 on 8, one query, 4,096 keys": Size(32, 8, 64, 1, 4095),
    "14 heads of 64 on 2, one query, 512 keys": Size(14, 2, 64, 1, 511),
    "32 heads of 64 on 8, 256 queries, 256 keys": Size(32, 8, 64, 256, 0),
    "32 heads of 128, one query, 1,024 keys": Size(32, 32, 128, 1, 1023),
    "32 heads of 64, one query, 1,024 keys": Size(32, 32, 64, 1, 1023),
    "12 heads of 64, one query, 512 keys": Size(12, 12, 64, 1, 511),
}


def operands(size: Size) -> tuple[gk.Value, ...]:
    q = gk.input("q", [1, size.heads, size.queries, size.depth])
    new = [gk.input(name, [1, size.groups, size.queries, size.depth]) for name in ("k", "v")]
    past = [gk.input(f"past_{name}", [1, size.groups, size.past, size.depth]) for name in ("k", "v")]
    return (q, *new, *past)


def repeated(size: Size) -> gk.Model:
    q, k, v, past_k, past_v = operands(size)
    keys = size.past + size.queries

    def every(x: gk.Value) -> gk.Value:
        apart = F.unsqueeze(x, np.array([2]))
        many = F.expand(apart, np.array([1, size.groups, size.heads // size.groups, keys, size.depth]))
        whole: gk.Value = F.reshape(many, np.array([1, size.heads, keys, size.depth]))
        return whole

    k, v = F.concat(past_k, k, axis=2), F.concat(past_v, v, axis=2)
    scores = F.mat_mul(q, F.transpose(every(k), perm=(0, 1, 3, 2))) * size.depth**-0.5
    seen = np.tri(size.queries, keys, size.past, dtype=bool)
    scores = F.add(scores, np.where(seen, 0, np.finfo(np.float32).min).astype(np.float32))
    return gk.Model({"y": F.mat_mul(F.softmax(scores, axis=-1), every(v)), "keys": k, "values": v})


def operator(size: Size) -> gk.Model:
    q, k, v, past_k, past_v = operands(size)
    y, keys, values, _ = gk.attention(q, k, v, None, past_k, past_v, is_causal=True)
    return gk.Model({"y": y, "keys": keys, "values": values})


FORMS: dict[str, Callable[[Size], gk.Model]] = {"repeated": repeated, "Attention": operator}


def row(title: str, form: str, threads: int, rounds: int) -> list[str]:
    size = SIZES[title]
    model, rng = FORMS[form](size), np.random.default_rng(0)
    feeds = {name: rng.standard_normal(kind.static_shape, np.float32) for name, kind in model.input_types.items()}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.to_onnx(opset=23).SerializeToString(), options)
    executor = model.compile(threads=threads)
    np.testing.assert_allclose(executor.run(feeds)["y"], session.run(["y"], feeds)[0], rtol=1e-3, atol=1e-4)
    assert not executor.plan.fallbacks, executor.plan.fallbacks
    times = interleave({"ours": lambda: executor.run(feeds), "theirs": lambda: session.run(None, feeds)}, rounds)
    ours, theirs = (summarise(times[who]).p50 for who in ("ours", "theirs"))
    read = 2 * 4 * size.groups * (size.past + size.queries) * size.depth
    ratio = paired_ratio([quotients(times["theirs"], times["ours"])])
    return [f"{title}, {form}", f"{1e3 * ours:.3f}", f"{1e3 * theirs:.3f}", f"{read / ours / 1e9:.1f}", str(ratio)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=lambda text: [int(n) for n in text.split(",")], default=[1])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    about = machine()
    print(
        f"{about['cpu']}, {about['cores']} cores, load {about['load']:.1f}, Python {platform.python_version()};",
        end=" ",
    )
    print(f"graphkit {gk.__version__}, ONNX Runtime {onnxruntime.__version__}; {options.rounds} rounds.")
    for threads in options.threads:
        body = [row(title, form, threads, options.rounds) for title in SIZES for form in FORMS]
        head = ["attention", "graphkit, ms", "ONNX Runtime, ms", "GB/s", "to ONNX Runtime"]
        print(f"\n{heading(threads)}\n\n{table(head, body)}")


if __name__ == "__main__":
    main()
