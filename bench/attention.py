"""Compare attention, with and without gradients, with PyTorch's scaled_dot_product_attention.

    python bench/attention.py [--threads 1,2] [--rounds 5] [--lengths 1024,2048,4096] [--depths 32,64,128] [--forms ...]

Each row is the attention of one layer: 8 heads, as many keys as queries, float32, batch 1. Forms: "causal" is the
operator Attention with is_causal, "full" without it. "mask" is the form of exported files: matrix products and a
softmax with an added constant mask of 0 and minus infinity. Results and gradients are compared before timing. Both
engines run in one process and take turns in rounds. The table is printed as Markdown: medians, operations per second,
and PyTorch's time over graphkit's, paired by round (above 1, graphkit is faster). The operations are those of the 2
matrix products of the result and the 5 of the gradients; causal forms count half. With --memory, each row shows by how
much the peak resident memory of a process grows if it computes the result and the gradients once, with 2 threads.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from processes import machine
from tables import heading, table

import graphkit as gk
from graphkit.checks.footprint import peak_bytes
from graphkit.checks.timing import interleave, paired_ratio, quotients, summarise
from graphkit.ops import F

HEADS = 8
OPERANDS = ("q", "k", "v", "dy")
FORMS = ("causal", "full", "mask")
HEAD = ("attention", "graphkit, ms", "PyTorch, ms", "Gflop/s", "to PyTorch")


def model(form: str, length: int, depth: int, gradients: bool) -> gk.Model:
    q, k, v, dy = (gk.input(name, [1, HEADS, length, depth]) for name in OPERANDS)
    if form == "mask":
        mask = np.where(np.tri(length, dtype=bool), 0, -np.inf).astype(np.float32)
        scores = F.mat_mul(q, F.transpose(k, perm=(0, 1, 3, 2))) * depth**-0.5
        y = F.mat_mul(F.softmax(scores + mask, axis=-1), v)
    else:
        y = gk.attention(q, k, v, is_causal=form == "causal")[0]
    found = dict(zip(("dq", "dk", "dv"), gk.gradient([y], [q, k, v], [dy]), strict=True)) if gradients else {}
    return gk.Model({"y": y, **found})


def ours(form: str, length: int, depth: int, threads: int, gradients: bool) -> Callable[[], list[Any]]:
    compiled = model(form, length, depth, gradients)
    executor = compiled.compile(threads=threads)
    feeds = {name: x for name, x in arrays(length, depth).items() if name in compiled.input_types}
    assert not executor.plan.fallbacks, executor.plan.fallbacks
    return lambda: list(executor.run(feeds).values())


def theirs(form: str, length: int, depth: int, threads: int, gradients: bool) -> Callable[[], list[Any]]:
    torch.set_num_threads(threads)
    q, k, v, dy = (torch.from_numpy(x) for x in arrays(length, depth).values())
    for x in (q, k, v):
        x.requires_grad_(gradients)

    def call() -> list[Any]:
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=form != "full")
        return [y, *torch.autograd.grad(y, (q, k, v), dy)] if gradients else [y]

    return call


def arrays(length: int, depth: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal((1, HEADS, length, depth), np.float32) for name in OPERANDS}


def row(form: str, length: int, depth: int, threads: int, gradients: bool, rounds: int) -> list[str]:
    calls = {name: make(form, length, depth, threads, gradients) for name, make in (("ours", ours), ("theirs", theirs))}
    for a, b in zip(calls["ours"](), calls["theirs"](), strict=True):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-3, atol=1e-4)
    times = interleave(calls, rounds)
    mine, other = (summarise(times[who]).p50 for who in ("ours", "theirs"))
    operations = 4 * HEADS * length * length * depth * (3.5 if gradients else 1) / (1 if form == "full" else 2)
    ratio = paired_ratio([quotients(times["theirs"], times["ours"])])
    title = f"{form}, {length:,} positions, heads of {depth}, {'with gradients' if gradients else 'result'}"
    return [title, f"{1e3 * mine:.1f}", f"{1e3 * other:.1f}", f"{operations / mine / 1e9:.0f}", str(ratio)]


def memory_row(form: str, length: int, depth: int) -> list[str]:
    """Return the row of memory growth of both engines, measured in new processes."""
    grown = []
    for who in ("ours", "theirs"):
        command = [sys.executable, __file__, "--grow", f"{who},{form},{length},{depth}"]
        grown.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])
    return [f"{form}, {length:,} positions, heads of {depth}", *grown]


def grow(who: str, form: str, length: str, depth: str) -> None:
    """Print by how many megabytes one run raises the peak."""
    call = {"ours": ours, "theirs": theirs}[who](form, int(length), int(depth), 2, gradients=True)
    before = peak_bytes()
    call()
    print(f"{(peak_bytes() - before) / 1e6:.0f}")


def numbers(text: str) -> Sequence[int]:
    return [int(n) for n in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=numbers, default=[1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lengths", type=numbers, default=[1024, 2048, 4096])
    parser.add_argument("--depths", type=numbers, default=[32, 64, 128])
    parser.add_argument("--forms", type=lambda text: text.split(","), default=list(FORMS))
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--grow", type=lambda text: text.split(","), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.grow:
        return grow(*options.grow)
    about = machine()
    print(
        f"{about['cpu']}, {about['cores']} cores, load {about['load']:.1f}, Python {platform.python_version()}; "
        f"graphkit {gk.__version__}, PyTorch {torch.__version__}; {options.rounds} rounds."
    )
    sizes = [(form, length, depth) for form in options.forms for length in options.lengths for depth in options.depths]
    if options.memory:
        print("\n" + table(["attention", "graphkit, MB", "PyTorch, MB"], [memory_row(*size) for size in sizes]))
        return None
    for threads in options.threads:
        print(f"\n{heading(threads)}\n\n{table(HEAD, [])}", flush=True)
        for size in sizes:
            for gradients in (False, True):
                found = row(*size, threads, gradients, options.rounds)
                print("| " + " | ".join(found) + " |", flush=True)
    return None


if __name__ == "__main__":
    main()
