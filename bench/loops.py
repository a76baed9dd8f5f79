"""Measure the overhead of a loop iteration, and compare the same loops with ONNX Runtime.

    python bench/loops.py [--repeat 7] [--threads 1]

The first table shows the time of an iteration (a long run minus a short run, divided by the difference of iterations),
and the number of steps of the bodies. If the body is one kernel, it also shows how much longer the iteration takes than
this kernel in a program without a loop. For two nested loops, an iteration of each is counted. The second table shows
whole runs of exported models, the best of the repetitions.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import graphkit as gk
from graphkit.autodiff import gradient
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F

SMALL = 16
FEW, MANY = 100, 1100


def best(run: Callable[[], Any], repeat: int) -> float:
    """Return the seconds of the fastest of `repeat` runs."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def step(s: Any, w: Any) -> Any:
    return F.tanh(F.add(F.mul(s, w), w))


def loops(trips: int) -> dict[str, tuple[list[Value], list[Any]]]:
    """Graphs of one small pointwise body, by what the loop is: static and run-time numbers of iterations."""
    row = TensorType("float32", (SMALL,))
    x, w, m = Value(row, "x"), Value(row, "w"), Value(TensorType("int64", ()), "m")
    i, going, s, v = Value(TensorType("int64", ()), "i"), Value(TensorType("bool", ()), "going"), Value(row), Value(row)
    count = F.constant(value=np.array(trips))
    plain = Graph([i, going, s, v], [going, step(s, v)])
    after = step(s, v)
    stacking = Graph([i, going, s, v], [going, after, after])
    a, b = Value(row), Value(row)
    result = step(a, b)
    scanned = Graph([a, b], [result, result])
    grown = Value(TensorType("float32", ("k", SMALL)))
    one = F.unsqueeze(v, np.array([0]))
    growing = Graph([i, going, grown, v], [going, F.concat(grown, one, axis=0)])
    nothing = np.zeros((0, SMALL), np.float32)
    xs = Value(TensorType("float32", (trips, SMALL)), "xs")
    _, stack = F.loop(m, None, x, w, body=stacking, captures=1)
    return {
        "Loop, known trips": ([x, w], [F.loop(count, None, x, w, body=plain, captures=1)]),
        "Loop, known trips, stacking": ([x, w], list(F.loop(count, None, x, w, body=stacking, captures=1))),
        "Loop, run-time trips": ([m, x, w], [F.loop(m, None, x, w, body=plain, captures=1)]),
        "Loop, run-time trips, stacking": ([m, x, w], list(F.loop(m, None, x, w, body=stacking, captures=1))),
        "Loop, a state that grows": ([m, w], [F.loop(m, None, nothing, w, body=growing, captures=1)]),
        "Scan": ([x, xs], list(F.scan(x, xs, body=scanned, num_scan_inputs=1))),
        "Loop, then Scan of its stack": ([m, x, w], list(F.scan(x, stack, body=scanned, num_scan_inputs=1))),
        "Loop and its gradient": ([m, x, w], gradient([F.loop(m, None, x, w, body=plain, captures=1)], [x, w])),
    }


def feeds_of(inputs: Sequence[Value], trips: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    made: dict[str, np.ndarray] = {}
    for value in inputs:
        is_count = value.name == "m"
        shape = value.tensor.static_shape
        made[value.name or ""] = np.array(trips) if is_count else rng.standard_normal(shape).astype(np.float32)
    return made


def time_of(
    inputs: Sequence[Value], outputs: Sequence[Any], trips: int, threads: int, repeat: int
) -> tuple[float, int]:
    """Return the seconds of a run, and the number of steps inside its loops. Interpreted steps are an error."""
    executor = Executor(Graph(inputs, outputs), ParamStore({}), threads=threads)
    feeds = feeds_of(inputs, trips)
    executor.run(feeds)
    with gk.profile() as profile:
        executor.run(feeds)
    if any(o.kind == "interpreted" for o in profile.operators):
        raise SystemExit(f"interpreted steps: {executor.plan.fallbacks}")
    steps = sum(o.calls for o in profile.operators if o.operator not in ("Loop", "Scan"))
    return best(lambda: executor.run(feeds), 10 * repeat), steps


def iteration(name: str, threads: int, repeat: int) -> tuple[float, float]:
    """Return the seconds and steps of one iteration."""
    few, many = (time_of(*loops(trips)[name], trips, threads, repeat) for trips in (FEW, MANY))
    return (many[0] - few[0]) / (MANY - FEW), (many[1] - few[1]) / (MANY - FEW)


def kernel_alone(threads: int, repeat: int) -> float:
    """Return the seconds of the body's kernel, in a program that runs it many times without a loop."""
    spent = []
    for count in (FEW, MANY):
        x, w = (Value(TensorType("float32", (SMALL,)), name) for name in ("x", "w"))
        y = x
        for _ in range(count):
            y = F.stop_gradient(step(y, w))  # a view, which keeps the next one from being fused
        spent.append(time_of([x, w], [y], count, threads, repeat)[0])
    return (spent[1] - spent[0]) / (MANY - FEW)


# --- against ONNX Runtime ---------------------------------------------------------------------------


def lstm_cell(x: Any, h: Any, c: Any, w: Any, b: Any) -> tuple[Any, Any]:
    gates = F.add(F.mat_mul(F.concat(x, h, axis=-1), w), b)
    i, f, g, o = F.split(gates, num_outputs=4, axis=-1)
    c = F.add(F.mul(F.sigmoid(f), c), F.mul(F.sigmoid(i), F.tanh(g)))
    return F.mul(F.sigmoid(o), F.tanh(c)), c


def exported(threads: int) -> dict[str, tuple[gk.Model, dict[str, np.ndarray]]]:
    """Models that both engines run, and their inputs."""
    rng = np.random.default_rng(1)
    made: dict[str, tuple[gk.Model, dict[str, np.ndarray]]] = {}
    for name, size, hidden, batch in (("small", 8, 8, 1), ("LSTM 64", 64, 64, 1), ("LSTM 256, batch 8", 256, 256, 8)):
        steps = 100
        xs, h, c = gk.input("xs", [steps, batch, size]), gk.input("h", [batch, hidden]), gk.input("c", [batch, hidden])
        w = gk.input("w", [size + hidden, 4 * hidden])
        b = gk.input("b", [4 * hidden])
        arrays = {
            v.name: (0.1 * rng.standard_normal(v.tensor.static_shape)).astype(np.float32) for v in (xs, h, c, w, b)
        }

        def over(carry: Any, x: Any, w: Any = w, b: Any = b) -> Any:
            carry = lstm_cell(x, *carry, w, b)
            return carry, carry[0]

        made[f"Scan, {name}"] = gk.Model(list(gk.scan(over, (h, c), xs)[1:])), arrays
        x = F.gather(xs, np.int64(0), axis=0)
        limit = gk.input("limit", [], dtype="float32")

        def holds(state: Any, limit: Any = limit) -> Any:
            return F.less(F.reduce_max(state[1], keepdims=False), limit)

        def again(state: Any, x: Any = x, w: Any = w, b: Any = b) -> Any:
            return lstm_cell(x, *state, w, b)

        last = gk.while_loop(holds, again, (h, c), maximum_iterations=steps)
        made[f"Loop, {name}"] = gk.Model(list(last)), {**arrays, "limit": np.array(1e9, np.float32)}
    return made


def against_onnx_runtime(
    name: str, model: gk.Model, arrays: Mapping[str, np.ndarray], threads: int, repeat: int
) -> str:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.to_onnx().SerializeToString(), options)
    names = {i.name for i in session.get_inputs()}
    theirs_feeds = {k: v for k, v in arrays.items() if k in names}
    executor = model.compile(threads=threads)
    ours_feeds = {k: v for k, v in arrays.items() if k in model.inputs}
    a, b = list(executor.run(ours_feeds).values()), session.run(None, theirs_feeds)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)
    ours = theirs = float("inf")
    for _ in range(repeat * 5):
        ours = min(ours, best(lambda: executor.run(ours_feeds), 2))
        theirs = min(theirs, best(lambda: session.run(None, theirs_feeds), 2))
    return f"{name:24}  {ours * 1e6:9.0f}  {theirs * 1e6:9.0f}  {theirs / ours:6.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    alone = kernel_alone(options.threads, options.repeat)
    print(f"the kernel of the body alone: {alone * 1e9:.0f} ns")
    print(f"{'loop':32}  {'ns/iteration':>12}  {'steps':>5}  {'beyond the kernel, ns':>21}")
    for name in loops(FEW):
        spent, steps = iteration(name, options.threads, options.repeat)
        beyond = f"{(spent - alone) * 1e9:21.0f}" if steps == 1 else f"{'':>21}"
        print(f"{name:32}  {spent * 1e9:12.0f}  {steps:5.0f}  {beyond}".rstrip())
    print(f"\n{'model':24}  {'ours, us':>9}  {'ORT, us':>9}  {'ratio':>6}")
    for name, (model, arrays) in exported(options.threads).items():
        print(against_onnx_runtime(name, model, arrays, options.threads, options.repeat))


if __name__ == "__main__":
    main()
