"""The benchmark of the card's kernels on the stand-in for a card: what it measures is computed, and counted right."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "executor" / "devices" / "cuda"))

import card as bench
import card_networks as networks
import training_engines as engines
from emulator import COMPILER, Emulator
from stand_in import Card
from training_workloads import TINY

from graphkit.ops.evaluate import run_node


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Card:
    if COMPILER is None:
        pytest.skip("there is no C++ compiler")
    return Card(Emulator(Path(tmp_path_factory.mktemp("kernels"))))


class Watched:
    """A card that keeps what its kernels were launched on."""

    def __init__(self, card: Card):
        self.card, self.seen = card, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.card, name)

    def prepare(self, node: Any, made: Any, fault: Any) -> Any:
        launched = self.card.prepare(node, made, fault)

        def run(inputs: Any, outputs: Any, scratch: Any) -> None:
            self.seen.append((inputs, outputs))
            launched(inputs, outputs, scratch)

        return run


def test_every_kernel_is_there_and_computes(card: Card) -> None:
    for title, node in bench.nodes(1 << 15).items():
        watched = Watched(card)
        stream = card.stream()
        with card.on(stream):
            call, size = bench.work(watched, node, np.random.default_rng(0))
            call()
            card.synchronize(stream)
        ((inputs, outputs),) = watched.seen
        arrays = [np.asarray(a.view(np.ndarray)) for a in inputs]
        expected = run_node(node, arrays)[0]
        np.testing.assert_allclose(outputs[0].view(np.ndarray), expected, rtol=1e-4, atol=1e-4, err_msg=title)
        assert size == sum(a.nbytes for a in arrays) + expected.nbytes


def test_a_report_of_all(card: Card) -> None:
    found = bench.measure(card, 1 << 13, 1e-4)
    text = bench.report(found, "a stand-in")
    assert len(found) == len(bench.nodes(1 << 13))
    assert all(row["seconds"] > 0 and row["least"] <= row["share"] <= row["most"] for row in found)
    assert all(row["kernel"] in text for row in found)


def test_without_a_card_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(sys, "argv", ["cuda.py"])
    bench.cuda.device.cache_clear()
    assert bench.main() == 5
    assert "needs CuPy" in capsys.readouterr().err


@pytest.mark.parametrize(("precision", "second"), [("f32", "tf32"), ("bf16", "fp8")])
def test_networks_beside_their_peers(precision: str, second: str, card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the stand-in graphkit runs, and every other engine is there with what it could not do."""
    for module in (bench.cuda, bench.cuda.card):
        monkeypatch.setattr(module, "device", lambda number=0: card)
    monkeypatch.setattr(networks, "WORKLOADS", {"tiny": TINY})
    rows = networks.measure(["tiny"], {"rounds": 2, "seconds": 1e-3, "seed": 0, "precision": precision})
    assert [row["part"] for row in rows] == ["inference", "training"]
    for row in rows:
        assert row["engines"]["graphkit"]["seconds"]["p50"] > 0
        assert row["ratio"][second]["median"] > 0
        assert all("error" in result for name, result in row["engines"].items() if name not in ("graphkit", second))
    assert rows[1]["engines"]["graphkit"]["fallbacks"] == []
    assert f"graphkit, {second}" in networks.report(rows, "a stand-in")


@pytest.mark.pytorch
def test_pytorch_infers_what_graphkit_does() -> None:
    pytest.importorskip("torch")
    (found,) = engines.torch_inference(TINY, "cpu", compiled=False)()
    (expected,) = TINY.net().run(TINY.feeds()[0]).values()
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    (rounded,) = engines.torch_inference(TINY, "cpu", compiled=False, half=True)()
    np.testing.assert_allclose(rounded, expected, atol=3e-2 * abs(expected).max())
    assert (rounded != found).any()


@pytest.mark.pytorch
def test_pytorch_trains_in_bfloat16() -> None:
    pytest.importorskip("torch")
    plain, rounded = (engines.open_engine("torch", TINY, 1, half=half) for half in (False, True))
    np.testing.assert_allclose(rounded.step(), plain.step(), rtol=2e-2)
