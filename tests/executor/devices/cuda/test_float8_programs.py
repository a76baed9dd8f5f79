"""precision="fp8" on a fake GPU: the products that use 8 bits, and the accuracy of the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from stand_in import Card
from together import together

import graphkit as gk
from graphkit.errors import UnsupportedError, UsageError
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F

SIZES = dict(vocab=48, width=32, heads=2, layers=1, length=12)
# Half of a last digit of E4M3, and of all the elements of a product the errors are as often this way as that.
NEAR = 2.0**-4


def apart(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def products(plan: Any) -> Counter[tuple[str, ...]]:
    """The types of the factors of all products, without sizes."""
    found = [(s.op.rpartition(".")[2], [i.type.partition("[")[0] for i in s.inputs]) for s in plan.steps]
    float8 = [(kinds[0], kinds[2]) for name, kinds in found if name == "Float8MatMul"]
    return Counter(float8 + [tuple(kinds[:2]) for name, kinds in found if name in ("MatMul", "Gemm", "FusedMatMul")])


def test_inference(card: Card) -> None:
    """A product of 10 columns stays in bfloat16. Batches have any size, also 1 and 0. NaN stays in its row."""
    net = gk.models.build("mlp")
    exe, plain = net.compile("cuda", precision="fp8"), net.compile("cpu")
    x = np.random.default_rng(0).standard_normal((20, 64), np.float32)
    for batch in (20, 1, 0, 7, 20):
        found, wanted = (e.run({"x": x[:batch]})["logits"] for e in (exe, plain))
        assert found.shape == wanted.shape
        assert batch == 0 or apart(found, wanted) < NEAR
    assert products(exe.plan) == {("float8_e4m3fn",) * 2: 2, ("bfloat16",) * 2: 1}
    assert not card.interpreted
    before = exe.run({"x": x})["logits"]
    x[3, 5], x[11, 60] = np.nan, np.inf
    after = exe.run({"x": x})["logits"]
    assert np.isnan(after[[3, 11]]).all()
    # Elements that are not finite do not affect the scale. Their rows may have had the largest element.
    others = np.delete(np.arange(20), [3, 11])
    assert apart(after[others], before[others]) < NEAR
    assert exe.run({"x": x})["logits"].tobytes() == after.tobytes(), "the same bits every time"


def test_weights_are_rounded_once(card: Card) -> None:
    """They are parameters of programs; a new value is rounded again."""
    net = gk.models.build("mlp")
    exe = net.compile("cuda", precision="fp8")
    x = {"x": np.random.default_rng(0).standard_normal((4, 64), np.float32)}
    first = exe.run(x)["logits"]
    # One for the fed array, and one for the result of the first layer.
    assert card.launched.count("ScaledFloat8") == 2
    (name, *_) = net.params
    net.params[name] = net.params[name] * np.float32(0.5)
    assert not np.array_equal(exe.run(x)["logits"], first)


def test_a_transformer(card: Card) -> None:
    """Scores are of batches and stay in bfloat16, as attention does."""
    net = gk.models.build("transformer_lm", **SIZES)
    exe, plain = net.compile("cuda", precision="fp8"), net.compile("cpu")
    for batch, length in ((2, 7), (1, 12)):
        x = {"x": np.random.default_rng(length).integers(0, 48, (batch, length))}
        assert apart(exe.run(x)["logits"], plain.run(x)["logits"]) < NEAR
    assert products(exe.plan) == {("float8_e4m3fn",) * 2: 5}
    attention = next(step for step in exe.plan.steps if step.op.endswith("FusedAttention"))
    assert all(operand.type.startswith("bfloat16") for operand in attention.inputs)
    assert not card.interpreted


# --- training ---------------------------------------------------------------------------------------


def trained(name: str, precision: str, feeds: Mapping[str, Any], steps: int, **sizes: Any) -> tuple[Any, list[float]]:
    net = gk.models.build(name, **sizes)
    trainer = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.1), device="cuda", seed=1, precision=precision)
    return trainer, [float(trainer.step(feeds["x"], feeds["labels"])) for _ in range(steps)]


@pytest.mark.full
def test_training(card: Card) -> None:
    """Losses are near those of bfloat16, and fall; gradients are E5M2, parameters float32. A batch of 20 is filled up
    to 32 where products sum over it.
    """
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((20, 64), np.float32), "labels": rng.integers(0, 10, 20)}
    (made, losses), (other, wanted) = (trained("mlp", precision, feeds, 3) for precision in ("fp8", "bf16"))
    np.testing.assert_allclose(losses, wanted, rtol=2e-2)
    found = products(made.plan({"x": (20, 64), "target": (20,)}))
    assert found[("float8_e4m3fn",) * 2] == 2
    assert sum(n for kinds, n in found.items() if "float8_e5m2" in kinds) == 4
    for name, array in other.net.params.items():
        assert made.net.params[name].dtype == np.float32
        assert not np.array_equal(made.net.params[name], array), "it makes a difference"
        np.testing.assert_allclose(made.net.params[name], array, atol=2e-2)
    losses += [float(made.step(feeds["x"], feeds["labels"])) for _ in range(27)]
    assert losses[-1] < 0.3 * losses[0]
    assert not card.interpreted


@pytest.mark.full
def test_a_transformer_trains(card: Card) -> None:
    x = np.random.default_rng(0).integers(0, 48, (2, 7))
    (made, losses), (_, wanted) = (
        trained("transformer_lm", precision, {"x": x, "labels": x}, 3, **SIZES) for precision in ("fp8", "bf16")
    )
    np.testing.assert_allclose(losses, wanted, rtol=2e-2)
    losses += [float(made.step(x, x)) for _ in range(27)]
    assert losses[-1] < 0.7 * losses[0]
    assert not card.interpreted


@together()
@pytest.mark.parametrize("dtype", [DType.FLOAT8E4M3FN, DType.FLOAT8E5M2])
def test_arrays_of_8_bits_are_moved(dtype: DType, card: Card) -> None:
    """They are moved as bits, because interpreted operators do not support 8-bit floats."""
    x = Value(TensorType(dtype, (4, 6)), "x")
    given = np.random.default_rng(0).standard_normal((4, 6)).astype(dtype.numpy)
    moved = Executor(Graph([x], [F.transpose(x)]), ParamStore({}), device="cuda")
    found = moved.run({"x": given})
    for array in found.values():
        assert array.dtype == dtype.numpy
        np.testing.assert_array_equal(array.view(np.uint8), given.T.view(np.uint8))
    exe = Executor(Graph([x], [F.cast(x, to=DType.FLOAT32)]), ParamStore({}), device="cuda")
    with pytest.raises(UnsupportedError, match=rf"'cuda:0' has no arrays of these types \({dtype.value}: x"):
        exe.run({"x": given})


# --- where there are none ---------------------------------------------------------------------------


def test_it_is_refused_by_name(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    net = gk.models.build("mlp")
    with pytest.raises(UnsupportedError, match=r"'fp8' needs a GPU \(device='cuda'\); use 'f32' or 'bf16'"):
        net.compile(precision="fp8")
    with pytest.raises(UnsupportedError, match="'fp8' needs a GPU"):
        gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.1), precision="fp8")
    with pytest.raises(UsageError, match="cannot be used with optimize=False"):
        net.compile("cuda", precision="fp8", optimize=False)
    monkeypatch.setattr(type(card), "capability", (8, 6))
    message = r"'fp8': 'cuda:0' has compute capability 8\.6, but 8-bit matrix products need 8\.9 or later; use 'bf16'"
    with pytest.raises(UnsupportedError, match=message):
        net.compile("cuda", precision="fp8")
    for capability in ((8, 9), (9, 0), (10, 0), (12, 0)):
        monkeypatch.setattr(type(card), "capability", capability)
        assert net.compile("cuda", precision="fp8")
