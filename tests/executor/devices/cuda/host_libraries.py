"""The functions of the GPU libraries, computed with numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from graphkit.executor.devices.cuda.launches import Attention, Convolution, Heads, Matrix, Product, Work
from graphkit.ir.types import DType
from graphkit.ops.nn.conv import convolve, convolve_grad_input, convolve_grad_weight
from graphkit.ops.xp import numpy_xp

Of = Callable[[Any], Any]


def computed(work: Work, memory: Of) -> None:
    """memory: the array of an argument."""
    if isinstance(work, Product):
        multiply(work, memory)
    elif isinstance(work, Convolution):
        convolution(work, memory)
    else:
        attention(work, memory)


def flat(array: Any, kind: DType) -> np.ndarray:
    """The elements of an argument's array, which has bits of other floats as integers; scratch memory has bytes."""
    found: np.ndarray = array.view(np.ndarray).reshape(-1)
    if kind.numpy.isbuiltin != 1 or found.dtype == np.uint8:
        found = found[: found.nbytes // kind.itemsize * kind.itemsize // found.itemsize].view(kind.numpy)
    assert found.dtype == kind.numpy
    return found


def convolution(work: Convolution, memory: Of) -> None:
    wide = np.float64 if work.kind is DType.FLOAT64 else np.float32

    def placed(argument: Any, name: Literal["x", "w", "y"], kind: DType) -> np.ndarray:
        """An array with the channels at axis 1, wherever memory has them."""
        sizes, last = getattr(work, name), work.filters_last if name == "w" else work.last
        elements = flat(memory(argument), kind)[: math.prod(sizes)]
        return np.moveaxis(elements.reshape(sizes[0], *sizes[2:], sizes[1]), -1, 1) if last else elements.reshape(sizes)

    names: list[Literal["x", "w", "y"]] = ["x", "w", "y"]
    names.remove(work.wanted)
    given = {n: placed(argument, n, work.kind).astype(wide) for n, argument in zip(names, work.factors, strict=True)}
    match work.wanted:
        case "y":
            result = convolve(numpy_xp, given["x"], given["w"], work.geometry)
        case "x":
            result = convolve_grad_input(numpy_xp, given["y"], given["w"], work.x[2:], work.geometry)
        case "w":
            result = convolve_grad_weight(numpy_xp, given["x"], given["y"], work.w[2:], work.geometry)
    if work.bias is not None:
        result = result + flat(memory(work.bias), work.kind).astype(wide).reshape(-1, *[1] * (len(work.y) - 2))
    if work.residual is not None:
        result = result + placed(work.residual, "y", work.kind).astype(wide)
    placed(work.result, work.wanted, work.made)[...] = result.astype(work.made.numpy)


def multiply(product: Product, memory: Of) -> None:
    """Compute a matrix product like cuBLASLt. `memory` returns the memory of each argument."""
    wide = np.float64 if product.kind is DType.FLOAT64 else np.float32

    def matrices(matrix: Matrix, kind: DType) -> np.ndarray:
        """[batch, rows, columns]"""
        elements = flat(memory(matrix.memory), kind)
        assert matrix.leading >= matrix.rows
        last = (product.batch - 1) * matrix.stride + (matrix.columns - 1) * matrix.leading + matrix.rows
        assert last <= len(elements), "beyond the memory"
        shape = product.batch, matrix.rows, matrix.columns
        strides = tuple(s * elements.itemsize for s in (matrix.stride, 1, matrix.leading))
        return np.ndarray(shape, elements.dtype, elements.view(np.uint8), strides=strides)

    a, b = (matrices(m, k).astype(wide) for m, k in zip((product.a, product.b), product.factors, strict=True))
    a, b = (x.swapaxes(1, 2) if t else x for x, t in zip((a, b), product.transposed, strict=True))
    alpha = wide(product.alpha)
    if product.scaled is not None:
        assert product.transposed == (True, False), "cards of 8.9 and 9.0 multiply no others"
        for scale in product.scaled.scales:
            alpha = alpha * flat(memory(scale), DType.FLOAT32)[0]
    with np.errstate(invalid="ignore", over="ignore"):
        y = alpha * (a @ b)
    if product.c is not None:
        y += wide(product.beta) * matrices(product.c, product.result).astype(wide)
    if product.bias is not None:
        y += flat(memory(product.bias), product.kind)[:, None].astype(wide)
    result = matrices(product.d, product.result)
    result[...] = y.astype(result.dtype)


def attention(work: Attention, memory: Of) -> None:
    """Compute attention like cuDNN. Its treatment of numbers that are not finite is unknown: here they become 0."""

    def heads(of: Heads) -> np.ndarray:
        elements = flat(memory(of.memory), work.kind)
        last = sum((size - 1) * stride for size, stride in zip(of.sizes, of.strides, strict=True))
        assert last < len(elements), "beyond the memory"
        strides = [stride * elements.itemsize for stride in of.strides]
        return np.lib.stride_tricks.as_strided(elements, of.sizes, strides)

    q, k, v = (
        np.nan_to_num(heads(of).astype(np.float32), nan=0, posinf=0, neginf=0) for of in (work.q, work.k, work.v)
    )
    heads(work.y)[...] = attended(q, k, v, work.scale, work.causal).astype(work.kind.numpy)


# Another kernel replaces results that overflow in the library.
@np.errstate(over="ignore", invalid="ignore")
def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, causal: bool) -> np.ndarray:
    """Compute attention by the formula of cuDNN's documentation. Neighbouring heads of q may share one of k and v."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = np.float32(scale) * (q @ k.swapaxes(2, 3))
    if causal:
        rows, keys = scores.shape[2:]
        assert keys >= rows
        scores = np.where(np.tri(rows, keys, keys - rows, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=3, keepdims=True))
    found: np.ndarray = weights / weights.sum(axis=3, keepdims=True) @ v
    return found
