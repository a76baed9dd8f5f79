"""The machine's limits as programs reach them: a large matrix product, and a copy of large arrays."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

_SIDE = 2048
# Copies of this many bytes, by all threads together: near and far above a last-level cache.
_COPIES = (24 << 20, 256 << 20)
_REPEAT = 7


def ceilings(task: dict[str, Any]) -> dict[str, Any]:
    """The best of several, with `threads` threads: float32 operations a second of a product of 2048x2048 matrices by
    each library that is there, and bytes a second, read and written, of a copy.

    numpy's BLAS takes its threads from the environment: the caller sets OPENBLAS_NUM_THREADS and the like.
    """
    threads = task["threads"]
    products = {name: 2 * _SIDE**3 / _best(call) for name, call in _products(threads).items()}
    copies = {str(size): 2 * size / _best_copy(size, threads) for size in _COPIES}
    return {"flops": max(products.values()), "bytes": max(copies.values()), "products": products, "copies": copies}


def _products(threads: int) -> dict[str, Callable[[], object]]:
    import graphkit as gk

    random = np.random.default_rng(0)
    a, b = (random.standard_normal((_SIDE, _SIDE), np.float32) for _ in range(2))
    c = np.empty_like(a)
    calls: dict[str, Callable[[], object]] = {"numpy": lambda: np.matmul(a, b, out=c)}
    x = gk.input("a", [_SIDE, _SIDE])
    y = gk.input("b", [_SIDE, _SIDE])
    executor = gk.Model({"c": gk.mat_mul(x, y)}, name="product").compile(threads=threads)
    calls["oneDNN, by graphkit"] = lambda: executor.run({"a": a, "b": b}, out={"c": c})
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.set_num_threads(threads)
        p, q, r = torch.from_numpy(a), torch.from_numpy(b), torch.from_numpy(c)
        calls["torch"] = lambda: torch.matmul(p, q, out=r)
    return calls


def _best_copy(size: int, threads: int) -> float:
    """Seconds of the fastest copy, a part by each thread; numpy releases the interpreter's lock meanwhile."""
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        return _best(lambda: list(pool.map(lambda part: np.copyto(part[1], part[0]), parts)))


def _best(call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(_REPEAT):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
