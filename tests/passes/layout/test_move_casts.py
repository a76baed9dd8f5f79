"""Casts move so that data movement handles float16 or bfloat16 instead of float32. The results keep their bits."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from combinations import in_one_item
from device_pipelines import patch_pipelines

import graphkit as gk
from graphkit.executor.devices.cpu import native
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import HALVES, DType, TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes import pipeline
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.declare import Pass
from graphkit.passes.core.sweep import run_passes
from graphkit.passes.layout.move_casts import move_casts

KINDS = sorted(HALVES, key=str)
# Rounded ones, and some that no half float holds.
NUMBERS = np.array([0, -0.0, 1, 1 / 3, -2.7182817, 65519, 65520, 1e38, 1e-8, np.inf, -np.inf, np.nan], np.float32)


def wide(v: Value) -> Value:
    return F.cast(v, to=DType.FLOAT32)


def value(kind: DType, *shape: int, name: str = "x") -> Value:
    return Value(TensorType(kind, shape), name)


def check(inputs: Sequence[Value], outputs: Sequence[Value], **counts: int) -> Graph:
    """Check that the results keep their bits, and the numbers of nodes after casts are merged."""
    graph = Graph(inputs, outputs)
    made = run_passes(graph, [move_casts, *CLEANUP])
    found = Counter(node.op.name for node in made.nodes)
    assert {name: found[name] for name in ("Cast", *counts)} == {"Cast": 0} | counts
    with np.errstate(all="ignore"):
        arrays = [np.resize(NUMBERS, v.tensor.static_shape).astype(v.dtype.numpy) for v in graph.inputs]
        for new, old in zip(evaluate(made, arrays), evaluate(graph, arrays), strict=True):
            assert (new.dtype, new.tobytes()) == (old.dtype, old.tobytes())
    return made


MOVES: dict[str, Callable[[Value], Sequence[Value]]] = {
    "reshape": lambda v: [F.reshape(v, np.array([6, 4]))],
    "flatten": lambda v: [F.flatten(v)],
    "unsqueeze": lambda v: [F.unsqueeze(v, np.array([1]))],
    "transpose": lambda v: [F.transpose(v, perm=(2, 0, 1))],
    "split": lambda v: F.split(v, axis=2, num_outputs=2),
    "slice": lambda v: [F.slice(v, np.array([1]), np.array([3]), np.array([1]))],
    "gather": lambda v: [F.gather(v, np.array([2, 0, 2]), axis=1)],
    "several": lambda v: [F.flatten(p) for p in F.split(F.transpose(v), axis=0, num_outputs=2)],
}
PARTS = ("slice", "gather")


@in_one_item()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MOVES)
def test_what_was_widened_and_is_rounded_again(name: str, kind: DType) -> None:
    x = value(kind, 2, 3, 4)
    check([x], [F.cast(v, to=kind) for v in MOVES[name](wide(x))])


@in_one_item()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MOVES)
def test_what_is_rounded_behind(name: str, kind: DType) -> None:
    """If all elements are read, they are rounded once. If only some are read, only these are rounded."""
    x = value(DType.FLOAT32, 2, 3, 4)
    made = check([x], [F.cast(v, to=kind) for v in MOVES[name](x)], Cast=1)
    is_first = made.nodes[0].op.name == "Cast" or made.nodes[0].op.name == "Constant"
    assert is_first or name in PARTS


@in_one_item()
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_rounding_of_several_shapes_is_one(kind: DType) -> None:
    x = value(DType.FLOAT32, 2, 3, 4)
    rounded = [F.cast(x, to=kind), F.cast(F.flatten(x), to=kind), F.cast(F.transpose(x), to=kind)]
    check([x], rounded, Cast=1)


@in_one_item()
@pytest.mark.parametrize("kind", KINDS)
def test_joins_of_what_was_widened(kind: DType) -> None:
    """This also applies if another node reads them in float32, because they were cast from 16 bits."""
    a, b = value(kind, 2, 4, name="a"), value(kind, 3, 4, name="b")
    joined = F.concat(wide(a), wide(b), axis=0)
    check([a, b], [F.cast(joined, to=kind)])
    check([a, b], [F.cast(F.transpose(joined), to=kind), F.reduce_sum(joined, np.array([0]))], Cast=1)
    c = value(DType.FLOAT32, 1, 4, name="c")
    check([a, b, c], [F.cast(F.concat(wide(a), wide(b), c, axis=0), to=kind)], Cast=1)


def test_what_stays() -> None:
    """Outputs, values that are rounded to two types, values with a float32 reader, and other types are kept."""
    kind, x = DType.BFLOAT16, value(DType.FLOAT32, 4, 6)
    moved = F.transpose(x)
    for outputs, casts in (
        ([moved, F.cast(moved, to=kind)], 1),
        ([F.cast(moved, to=k) for k in KINDS], 2),
        ([F.cast(moved, to=kind), F.neg(moved)], 1),
        ([F.cast(moved, to=DType.FLOAT64)], 1),
        ([moved], 0),
    ):
        graph = Graph([x], outputs)
        assert move_casts(graph) is graph
        check([x], outputs, Cast=casts, Transpose=1)
    half = value(kind, 4, 6)
    graph = Graph([half], [F.neg(F.transpose(wide(half)))])
    assert move_casts(graph) is graph, "nobody rounds it"


def test_in_branches() -> None:
    condition, x = value(DType.BOOL, name="c"), value(DType.BFLOAT16, 4, 6)
    y = gk.cond(
        condition,
        lambda: F.cast(F.transpose(wide(x)), to=DType.BFLOAT16),
        lambda: F.reshape(x, np.array([6, 4])),
    )
    made = run_passes(Graph([condition, x], [y]), [move_casts, *CLEANUP])
    (chosen,) = (node for node in made.nodes if node.op.name == "If")
    inner = [n.op.name for body in chosen.op.subgraphs().values() for n in body.nodes]
    assert "Transpose" in inner
    assert "Cast" not in inner


@pytest.mark.skipif(not native.has_bfloat16(), reason="the processor has no bfloat16 arithmetic")
def test_a_transformer_trains_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = np.arange(32).reshape(2, 16) % 11
    found = []
    for moves in (Pass(lambda graph: graph, "nothing"), move_casts):
        with monkeypatch.context() as patch:
            patch.setattr(pipeline, "move_casts", moves)
            patch_pipelines(patch)
            net = gk.models.build("transformer_lm", vocab=11, width=32, heads=2, layers=2, length=16, dropout=0.0)
            run = gk.Trainer(
                net, "softmax_cross_entropy", gk.optim.SGD(0.1), precision="bf16", seed=1, deterministic=True
            )
            losses = [float(run.step(tokens, tokens[:, ::-1].copy())) for _ in range(3)]
        digest = hashlib.sha256(b"".join(net.params[name].tobytes() for name in sorted(net.params))).hexdigest()
        found.append((losses, digest))
    assert found[0] == found[1]
