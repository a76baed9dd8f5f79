"""The benchmark of GPU kernels on a fake GPU: the kernels run, and operations and bytes are counted correctly."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "executor" / "devices" / "cuda"))

import card as bench
import card_host as host
import card_networks as networks
import training_engines as engines
from emulator import COMPILER, Emulator, shared_folder
from stand_in import Card
from training_workloads import TINY

import graphkit as gk
from graphkit.ops.evaluate import run_node


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Card:
    if COMPILER is None:
        pytest.skip("there is no C++ compiler")
    return Card(Emulator(shared_folder(tmp_path_factory.getbasetemp())))


class Watched:
    """A GPU that records the arguments of its launches."""

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
    products = bench.measure_products(card, 16, 1e-4)
    assert [row["kernel"].removeprefix("product in ") for row in products] == list(bench.PRODUCTS)
    text = bench.report(found, products, "a stand-in")
    assert len(found) == len(bench.nodes(1 << 13))
    assert all(row["seconds"] > 0 and row["least"] <= row["share"] <= row["most"] for row in (*found, *products))
    assert all(row["kernel"] in text for row in (*found, *products))


def test_without_a_card_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(sys, "argv", ["cuda.py"])
    bench.cuda.card._device.cache_clear()
    assert bench.main() == 5
    assert "needs CuPy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("precision", "second"), [pytest.param("f32", "tf32", marks=pytest.mark.full), ("bf16", "fp8")]
)
def test_networks_beside_their_peers(precision: str, second: str, card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the fake GPU, graphkit runs, and the result lists the error of every other engine."""
    for module in (bench.cuda, bench.cuda.card):
        monkeypatch.setattr(module, "device", lambda number=0: card)
    monkeypatch.setattr(networks, "WORKLOADS", {"tiny": TINY})
    task = {"rounds": 2, "seconds": 1e-3, "seed": 0, "precision": precision}
    rows = [*networks.measure(["tiny", "tiny@3"], task)]
    assert [row["workload"] for row in rows] == ["tiny", "tiny", "tiny@3", "tiny@3"]
    assert [row["part"] for row in rows] == ["inference", "training"] * 2
    for row in rows:
        assert row["engines"]["graphkit"]["seconds"]["p50"] > 0
        assert row["ratio"][second]["median"] > 0
        assert all("error" in result for name, result in row["engines"].items() if name not in ("graphkit", second))
    assert rows[1]["engines"]["graphkit"]["fallbacks"] == []
    assert f"graphkit, {second}" in networks.report(rows, "a stand-in")


def test_networks_of_a_card_alone() -> None:
    """Their inputs have the declared shapes, with the given batch size."""
    for name in ("bert@3", "gpt@3"):
        workload = networks.workload_of(name)
        net = gk.models.build(workload.network, **workload.options | {"layers": 1, "width": 24, "vocab": 50})
        assert set(workload.shapes) == {v.name for v in net.graph.inputs if v.role == "data"}
        assert {shape[0] for shape in workload.shapes.values()} == {3}


def test_what_a_step_takes_beyond_the_card(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the test lets each replay take 2 ms."""

    class Counting:
        marks = 0

        def mark(self) -> int:
            self.marks += 1
            return self.marks

        def between(self, first: int, last: int) -> float:
            return 2.0 * (last - first)

    for module in (bench.cuda, bench.cuda.card):
        monkeypatch.setattr(module, "device", lambda number=0: card)
    monkeypatch.setattr(card, "record", card.record)
    (row,) = host.measure(card, Counting(), [TINY], steps=3)
    assert row["replays"] == 1
    assert row["card"] == pytest.approx(2e-3)
    assert row["host"] == pytest.approx(row["step"] - 2e-3, abs=1e-3)
    assert TINY.title in host.report([row], "a stand-in")


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
