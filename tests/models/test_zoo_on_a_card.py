"""The zoo on a GPU, compared with the CPU: results and training steps in each precision."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from zoo_training import TRAINED, condition, feeds_of, label, loss_of

import graphkit as gk
from graphkit.train.programs import loss_scale

sys.path.append(str(Path(__file__).parents[1] / "executor" / "devices" / "cuda"))

from card_cases import needs_card, why_not

STEPS = 3


def trained(name, options, device, precision):
    """Return the losses, and the trained parameters and momenta."""
    net = gk.models.build(name, **options)
    condition(net)
    loss, targets = loss_of(name, net)
    output = net.outputs[0] if targets is None else None
    trainer = gk.Trainer(
        net, loss, gk.optim.SGD(1e-5, momentum=0.9), targets=targets, output=output, seed=1, device=device,
        precision=precision,
    )  # fmt: skip
    feeds = feeds_of(name, net, 3)
    inputs = {n: feeds[n] for n in net.inputs}
    targets = {n: a for n, a in feeds.items() if n not in inputs}
    losses = [float(trainer.step(inputs, targets)) for _ in range(STEPS)]
    assert not trainer.skipped
    return losses, {n: trainer.executor.params[f"{n}/momentum"] for n in trainer.trained}


def error(found, wanted):
    """The norm of the difference over the norm, of all arrays as one vector."""
    pairs = [(np.asarray(found[n], np.float64), np.asarray(a, np.float64)) for n, a in wanted.items()]
    assert all(np.isfinite(a).all() for a, _ in pairs)
    return (sum(np.sum((a - b) ** 2) for a, b in pairs) / sum(np.sum(b**2) for _, b in pairs)) ** 0.5


@needs_card
@pytest.mark.parametrize("precision", ["f32", "bf16", "f16"])
@pytest.mark.parametrize(("name", "options"), TRAINED if not why_not() else [(None, None)], ids=label)
def test_training_on_a_card(name, options, precision, monkeypatch):
    """float32 gives the results of the CPU. float16 and bfloat16 are as close to them as bfloat16 on the CPU."""
    # No step is left out.
    monkeypatch.setattr(loss_scale, "start", lambda: np.array([16, 0], np.float32))
    losses, momenta = trained(name, options, "cpu", "f32")
    found, there = trained(name, options, "cuda", precision)
    if precision == "f32":
        np.testing.assert_allclose(found, losses, rtol=1e-4)
        assert error(there, momenta) < 2e-3
        return
    halves, here = trained(name, options, "cpu", "bf16")
    bound = 3 * max(abs(a - b) for a, b in zip(halves, losses, strict=True)) + 1e-3 * max(map(abs, losses))
    assert max(abs(a - b) for a, b in zip(found, losses, strict=True)) < bound
    assert error(there, momenta) < 3 * error(here, momenta) + 1e-2
