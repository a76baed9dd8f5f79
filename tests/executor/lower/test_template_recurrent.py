"""Recurrent layers and their gradients at one size after another, against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.autodiff import gradient
from graphkit.executor.lower.template import _Step
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.executor.run.sized_program import SizedProgram
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F

RNG = np.random.default_rng(0)
HIDDEN, FEATURES = 12, 6
# Where PyTorch has each gate of ONNX: RNN; z, r, h of GRU; i, o, f, c of LSTM.
GATES = {"rnn": (0,), "gru": (1, 0, 2), "lstm": (0, 3, 1, 2)}


def by_torch(kind: str, bidirectional: bool, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """y, and the gradients of the sum of y * y by x, w, r and b."""
    torch = pytest.importorskip("torch")
    order, directions = GATES[kind], 2 if bidirectional else 1
    made = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[kind]
    layer = made(FEATURES, HIDDEN, bidirectional=bidirectional).double()
    leaves = {name: torch.tensor(array, dtype=torch.float64, requires_grad=True) for name, array in feeds.items()}
    rows = np.concatenate([np.arange(HIDDEN) + order.index(gate) * HIDDEN for gate in range(len(order))])
    named = {}
    for d in range(directions):
        suffix = "l0_reverse" if d else "l0"
        named[f"weight_ih_{suffix}"], named[f"weight_hh_{suffix}"] = leaves["w"][d][rows], leaves["r"][d][rows]
        of_w, of_r = leaves["b"][d].reshape(2, -1)
        named[f"bias_ih_{suffix}"], named[f"bias_hh_{suffix}"] = of_w[rows], of_r[rows]
    y, _ = torch.func.functional_call(layer, named, (leaves["x"],))
    (y * y).sum().backward()
    steps, batch, _ = y.shape
    whole = y.detach().numpy().reshape(steps, batch, directions, HIDDEN).transpose(0, 2, 1, 3)
    return [whole, *(leaves[name].grad.numpy() for name in "xwrb")]


@pytest.mark.pytorch
@in_one_item()
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("kind", GATES)
def test_a_layer_and_its_gradient(kind: str, direction: str, threads: int, steps: list[_Step]) -> None:
    gates, directions = len(GATES[kind]), 2 if direction == "bidirectional" else 1
    shapes = {
        "x": ("T", "N", FEATURES),
        "w": (directions, gates * HIDDEN, FEATURES),
        "r": (directions, gates * HIDDEN, HIDDEN),
        "b": (directions, 2 * gates * HIDDEN),
    }
    operands = [Value(TensorType("float32", shape), name) for name, shape in shapes.items()]
    options = {"linear_before_reset": True} if kind == "gru" else {}
    y, *_ = getattr(F, kind)(*operands, direction=direction, **options)
    steps.clear()
    executor = Executor(Graph(operands, [y, *gradient([F.mul(y, y)], operands)]), ParamStore({}), threads=threads)
    for time, batch in ((3, 2), (8, 1), (1, 5), (20, 3)):
        feeds = {
            name: RNG.standard_normal([{"T": time, "N": batch}.get(n, n) for n in shape]).astype(np.float32)
            * np.float32(0.3)
            for name, shape in shapes.items()
        }
        for found, expected in zip(
            executor.run(feeds).values(), by_torch(kind, direction == "bidirectional", feeds), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert isinstance(executor._choice.latest, SizedProgram)
    made = {step.node.op.name: step for step in steps}
    assert all(made[f"{kind.upper()}{part}"].native is not None for part in ("Recurrence", "RecurrenceGrad"))
