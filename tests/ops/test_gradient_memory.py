"""Gradients take memory that is linear in the length of an axis: in the reference, compiled, and written as ONNX."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.ir.graph import Value
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate

SHORT, LONG = 2000, 8000
# Limit for the ratio of memory. Quadratic memory exceeds it; n log n with a constant part does not.
MOST = 2.5 * LONG / SHORT


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def resized(factor: float, **attributes: Any) -> Callable[[Value], Any]:
    return lambda x: F.resize(x, None, None, ints(1, 1, int(x.shape[2] * factor)), **attributes)


def grid_sampled(x: Value) -> Any:
    image = F.unsqueeze(x, ints(2))
    places = np.linspace(-1, 1, x.shape[2], dtype=np.float32)
    return F.grid_sample(image, np.stack([places, np.zeros_like(places)], -1)[None, None])


def gathered(x: Value) -> Any:
    return F.gather(x, np.arange(x.shape[2])[::-1].copy(), axis=2)


CASES: dict[str, Callable[[Value], Any]] = {
    **{
        f"pad {mode} {widths}": lambda x, mode=mode, widths=widths: F.pad(
            x, ints(0, 0, widths[0], 0, 0, widths[1]), mode=mode
        )
        for mode in ("constant", "reflect", "edge", "wrap")
        for widths in ((300, 500), (-5, 700), (1500, -20))
    },
    "pad edge, most of it copies": lambda x: F.pad(x, ints(0, 0, x.shape[2] // 2, 0, 0, x.shape[2]), mode="edge"),
    **{
        f"resize {mode} x {factor}": resized(factor, mode=mode)
        for mode in ("nearest", "linear", "cubic")
        for factor in (3, 0.4)
    },
    **{
        f"resize antialias {mode} x {factor}": resized(factor, mode=mode, antialias=True)
        for mode in ("linear", "cubic")
        for factor in (2, 0.01)
    },
    "resize exclude_outside": resized(0.7, mode="cubic", exclude_outside=True),
    "resize align_corners": resized(1.3, mode="linear", coordinate_transformation_mode="align_corners"),
    "resize one place": lambda x: F.resize(
        x, np.array([0, 0, 0, 1, 1, 0], np.float32), None, ints(1, 1, x.shape[2]), mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
    ),
    "gather": gathered,
    "gather_elements": lambda x: F.gather_elements(x, np.arange(x.shape[2])[None, None, ::-1].copy(), axis=2),
    "cum_sum": lambda x: F.cum_sum(x, np.array(2)),
    "cum_prod": lambda x: F.cum_prod(x, np.array(2)),
    "scatter_elements mul": lambda x: F.scatter_elements(
        x, np.arange(0, x.shape[2], 2)[None, None], F.slice(x, ints(0), ints(1 << 40), ints(2), ints(2)),
        axis=2, reduction="mul",
    ),
    "dft": lambda x: F.dft(F.unsqueeze(x, ints(3)), None, np.array(2)),
    "lrn": lambda x: F.lrn(F.transpose(x, perm=(0, 2, 1)), size=5),
    "reverse_sequence": lambda x: F.reverse_sequence(
        F.squeeze(x, ints(0)), np.array([x.shape[2] - 3]), batch_axis=0, time_axis=1
    ),
    "top_k": lambda x: F.top_k(x, ints(50), axis=2)[0],
    "top_k of half": lambda x: F.top_k(x, ints(x.shape[2] // 2), axis=2)[0],
    "reduce_prod": lambda x: F.reduce_prod(x, ints(2)),
    "reduce_max": lambda x: F.reduce_max(x, ints(2)),
    "reduce_log_sum_exp": lambda x: F.reduce_log_sum_exp(x, ints(2)),
    "softmax": lambda x: F.softmax(x, axis=2),
    "einsum": lambda x: F.einsum(x, x, equation="abi,abi->ab"),
    "tile": lambda x: F.tile(x, ints(1, 1, 3)),
    "slice": lambda x: F.slice(x, ints(5), ints(1 << 40), ints(2), ints(3)),
    "center_crop_pad": lambda x: F.center_crop_pad(x, ints(x.shape[2] + 300), axes=(2,)),
    "grid_sample": grid_sampled,
    "conv": lambda x: F.conv(x, np.ones((2, 1, 9), np.float32)),
    "max_pool": lambda x: F.max_pool(x, kernel_shape=(5,), strides=(2,))[0],
    "average_pool": lambda x: F.average_pool(x, kernel_shape=(5,), strides=(2,)),
    "lp_pool": lambda x: F.lp_pool(x, kernel_shape=(5,), strides=(2,)),
    "layer_normalization": lambda x: F.layer_normalization(x, np.ones(x.shape[2], np.float32), axis=2)[0],
    "depth_to_space": lambda x: F.depth_to_space(F.reshape(x, ints(1, 4, -1, 1)), blocksize=2),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def first_use() -> None:
    """Compute gradients once, so that memory of the first use in a process is not measured."""
    for build in (CASES["pad reflect (300, 500)"], CASES["resize cubic x 3"], CASES["conv"]):
        peaks(build, 600)


def gradient_of(build: Callable[[Value], Any], size: int) -> gk.Model:
    x = gk.input("x", [1, 1, size])
    y = build(x)
    # The second factor makes the gradient by y depend on x: none of it is a constant.
    return gk.grad(gk.Model({"y": F.reduce_sum(F.mul(y, y))}, name="net"), of="y", wrt=["x"])


def peak(run: Callable[[], Any]) -> int:
    """Bytes that Python and numpy have at most while `run` runs, beyond those before."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def peaks(build: Callable[[Value], Any], size: int) -> dict[str, int]:
    model = gradient_of(build, size)
    x = np.random.default_rng(0).uniform(0.5, 1.5, (1, 1, size)).astype(np.float32)
    return {
        "reference": peak(lambda: evaluate(model.graph, [x])),
        "compiled": peak(lambda: model.compile(threads=1).run({"x": x})),
        "ONNX": peak(lambda: model.to_onnx(opset=26).SerializeToString()),
    }


@pytest.mark.parametrize("name", CASES)
def test_the_memory_of_a_gradient_is_linear_in_an_axis(name: str) -> None:
    short, long = (peaks(CASES[name], size) for size in (SHORT, LONG))
    for what in short:
        assert long[what] < MOST * max(short[what], 500 * SHORT), f"{what}: {short[what]} bytes, then {long[what]}"
