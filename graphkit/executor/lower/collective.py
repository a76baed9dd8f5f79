"""Collectives in a program: one step starts a collective, and another one waits for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.executor.devices.device import address_of
from graphkit.executor.devices.kernel import Kernel
from graphkit.executor.lower.arrays.launched_sum import LaunchedGather, LaunchedStart, LaunchedSum, LaunchedWait
from graphkit.executor.lower.arrays.staged import Begins, BeginsRows, Exchanges, StagedStep, Waits, WaitsForRows
from graphkit.executor.lower.collaborators import Collectives, DeviceSums
from graphkit.executor.lower.lowering import Lowering, Site
from graphkit.executor.lower.python_step import PythonFunction, PythonKernel
from graphkit.ir.graph import Node
from graphkit.ops.internal.collective import AllReduceStart, AllReduceWait
from graphkit.ops.internal.moments import AllReduce, AllReduceMoments, merged_moments
from graphkit.ops.internal.row_sum import RowSparseAllReduceStart, RowSparseAllReduceWait
from graphkit.ops.internal.sharded import AllGatherStart, ReduceScatterStart, ReduceScatterWait

_OPERATORS = (
    AllReduceStart, AllReduceWait, ReduceScatterStart, ReduceScatterWait, AllGatherStart,
    RowSparseAllReduceStart, RowSparseAllReduceWait,
    AllReduceMoments, AllReduce,
)  # fmt: skip


def collective(site: Site) -> Lowering | None:
    """Return the lowering of an operator that starts a collective or waits for it, or None."""
    node, collectives = site.node, site.settings.collectives
    if collectives is None or not isinstance(node.op, _OPERATORS):
        return None
    if site.settings.device != "cpu":
        if collectives.on_device is not None:
            return _launched(node, collectives.on_device)
        staged = _staged(node, collectives)
        staged.reason = collectives.staged
        return staged
    if isinstance(node.op, RowSparseAllReduceWait):
        return PythonFunction("native", partial(_wait_rows, collectives, node.op.key))
    return PythonKernel("native", node, _kernel(node, collectives))


def _kernel(node: Node, collectives: Collectives) -> Kernel:
    """Return the kernel on host arrays. RowSparseAllReduceWait has none: it returns new arrays."""
    match node.op:
        case AllReduceStart(key=key):
            return _Start(collectives.start, key, len(node.inputs))
        case ReduceScatterStart(key=key):
            return _Start(collectives.start_scattered, key, len(node.inputs))
        case AllGatherStart() as op:
            return _StartGather(collectives, op)
        case RowSparseAllReduceStart(key=key):
            return _StartRows(collectives, key)
        case AllReduceMoments(key=key):
            return partial(_all_moments, collectives, key)
        case AllReduce(key=key):
            return partial(_all_sum, collectives, key)
        case AllReduceWait(keys=keys):
            return _Wait(collectives, keys)
        case ReduceScatterWait(key=key):
            return _Wait(collectives, (key,))
    raise AssertionError(f"{node.op.name} is not a collective operator")


def _staged(node: Node, collectives: Collectives) -> Lowering:
    match node.op:
        case AllReduceStart(key=key) | ReduceScatterStart(key=key):
            return StagedStep(partial(Begins, node=node, run=_kernel(node, collectives), key=key, inplace=True))
        case AllGatherStart(key=key):
            return StagedStep(partial(Begins, node=node, run=_kernel(node, collectives), key=key, inplace=False))
        case AllReduceWait(keys=keys):
            return StagedStep(partial(Waits, node=node, run=_kernel(node, collectives), keys=keys))
        case ReduceScatterWait(key=key):
            return StagedStep(partial(Waits, node=node, run=_kernel(node, collectives), keys=(key,)))
        case AllReduceMoments() | AllReduce():
            return StagedStep(partial(Exchanges, node=node, run=_kernel(node, collectives)))
        case RowSparseAllReduceStart(key=key):
            return StagedStep(partial(BeginsRows, node=node, begin=partial(collectives.start_rows, key)))
        case RowSparseAllReduceWait(key=key):
            return StagedStep(partial(WaitsForRows, node=node, wait=partial(collectives.wait_rows, key)))
    raise AssertionError(f"{node.op.name} is not a collective operator")


def _launched(node: Node, sums: DeviceSums) -> Lowering:
    if isinstance(node.op, (AllReduceStart, ReduceScatterStart, AllGatherStart)):
        dtype = node.outputs[0].dtype
        if not sums.supports(dtype):
            raise UnsupportedError(f"{node.describe()}: GPUs cannot all-reduce {dtype.value}; use GRAPHKIT_NCCL=0")
        inplace = [(i, i) for i in range(len(node.inputs))]
        match node.op:
            case AllReduceStart():
                launch = partial(sums.all_reduce, dtype=dtype)
                return LaunchedSum(sums, partial(LaunchedStart, node=node, launch=launch), inplace=inplace)
            case ReduceScatterStart():
                launch = partial(sums.reduce_scatter, dtype=dtype)
                return LaunchedSum(sums, partial(LaunchedStart, node=node, launch=launch), inplace=inplace)
            case AllGatherStart():
                launch = partial(sums.all_gather, dtype=dtype)
                return LaunchedSum(sums, partial(LaunchedGather, node=node, launch=launch))
    if isinstance(node.op, AllReduceWait):
        return LaunchedSum(sums, partial(LaunchedWait, keys=node.op.keys), node.op.keys)
    if isinstance(node.op, ReduceScatterWait):
        return LaunchedSum(sums, partial(LaunchedWait, keys=(node.op.key,)), (node.op.key,))
    raise UnsupportedError(f"{node.describe()}: GPUs can all-reduce only dense gradients; use GRAPHKIT_NCCL=0")


class _Start:
    def __init__(self, begin: Callable[[str, Sequence[np.ndarray], int], None], key: str, count: int):
        self._begin, self._key = begin, key
        self.inplace = tuple((i, i) for i in range(count))

    def __call__(self, inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray | None]) -> None:
        sums, copied = [], 0
        for x, total in zip(inputs, outputs, strict=True):
            assert x is not None, "every operand is present"
            if total is None:  # other processes need this sum
                total, copied = x.copy(), copied + x.nbytes
            elif address_of(x) != address_of(total):
                np.copyto(total, x)
                copied += x.nbytes
            sums.append(total)
        self._begin(self._key, sums, copied)


class _StartGather:
    """Starts an all-gather. Its results are complete after the step that waits."""

    def __init__(self, collectives: Collectives, op: AllGatherStart):
        self._collectives, self._op = collectives, op

    def __call__(self, inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray | None]) -> None:
        wholes = [whole for whole in outputs if whole is not None]
        assert len(wholes) == len(outputs), "every result is used"
        pieces = [piece for piece in inputs if piece is not None]
        placed = list(zip(self._op.of, self._op.begins, pieces, strict=True))
        self._collectives.start_gather(self._op.key, wholes, placed)


class _Wait:
    def __init__(self, collectives: Collectives, keys: tuple[str, ...]):
        self._collectives, self._keys = collectives, keys

    def __call__(self, inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray | None]) -> None:
        self._collectives.wait(self._keys)
        for done in outputs:
            if done is not None:
                done.fill(0)


class _StartRows:
    def __init__(self, collectives: Collectives, key: str):
        self._collectives, self._key = collectives, key

    def __call__(self, inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray | None]) -> None:
        indices, rows = inputs
        assert indices is not None, "every operand is present"
        assert rows is not None, "every operand is present"
        self._collectives.start_rows(self._key, indices, rows)
        for started in outputs:
            if started is not None:
                started.fill(0)


def _wait_rows(collectives: Collectives, key: str, _inputs: Sequence[np.ndarray | None]) -> Sequence[np.ndarray]:
    return collectives.wait_rows(key)


def _all_moments(
    collectives: Collectives, key: str, inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray | None]
) -> None:
    own = [x.reshape(-1) for x in inputs if x is not None]
    size = len(own[1])
    gathered = collectives.gather(key, np.concatenate(own))
    counts, means, deviations = gathered[:, :1], gathered[:, 1 : 1 + size], gathered[:, 1 + size :]
    for found, result in zip(merged_moments(counts, means, deviations), outputs, strict=True):
        if result is not None:
            result[...] = found.reshape(result.shape)


def _all_sum(
    collectives: Collectives, key: str, inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray | None]
) -> None:
    own = [x.reshape(-1) for x in inputs if x is not None]
    together = np.concatenate(own)
    collectives.start(key, [together], 0)
    collectives.wait([key])
    for part, result in zip(np.split(together, np.cumsum([len(x) for x in own[:-1]])), outputs, strict=True):
        if result is not None:
            np.copyto(result, part.reshape(result.shape))
