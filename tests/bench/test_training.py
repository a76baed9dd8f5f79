"""The training benchmark: the same first step in all engines, rows and report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import recompute
import reimported
import training_engines as engines
import training_tasks
from chart import Comparison, chart
from combinations import in_one_item
from paired import means
from training_report import report
from training_rows import failures, training_row
from training_workloads import WORKLOADS, Workload

BENCH = Path(__file__).parents[2] / "bench"
ONCE = {"rounds": 1, "seconds": 0, "seed": 0, "threads": 1}

# The networks of the table at sizes that take no time.
SMALL = [
    Workload("mlp", "mlp", "mlp", {"x": (4, 6)}, {"inputs": 6, "hidden": (5,), "classes": 3}),
    Workload("lenet", "lenet", "lenet", {"x": (2, 1, 8, 8)}, {"image": (1, 8, 8)}),
    Workload("resnet", "resnet", "resnet", {"x": (4, 3, 64, 64)}, {"layers": 18, "image": (3, 64, 64), "classes": 5}),
    Workload("mobilenetv2", "mobilenetv2", "mobilenetv2", {"x": (2, 3, 64, 64)},
             {"image": (3, 64, 64), "classes": 5, "dropout": 0.0}),
    Workload("lstm_lm", "lstm", "lstm_lm", {"x": (5, 3)}, {"vocab": 20, "hidden": 6, "layers": 2, "dropout": 0.0}),
    Workload("transformer_lm", "transformer", "transformer_lm", {"x": (2, 5)},
             {"vocab": 40, "width": 16, "heads": 2, "layers": 2, "length": 8, "dropout": 0.0}),
    Workload("matrix_factorization", "factors", "matrix_factorization", {"user": (7,), "item": (7,)},
             {"users": 6, "items": 9, "factors": 4}, "mse"),
]  # fmt: skip


@pytest.fixture
def small(monkeypatch):
    """The table at small sizes, by name of network."""
    workloads = {w.network: w for w in SMALL}
    monkeypatch.setattr(training_tasks, "WORKLOADS", workloads)
    return workloads


def test_every_network_is_here() -> None:
    assert {w.network for w in SMALL} == {w.network for w in WORKLOADS.values()}


@pytest.mark.parametrize("network", [w.network for w in SMALL])
@pytest.mark.pytorch
def test_the_first_step_is_that_of_pytorch(network: str, small) -> None:
    pytest.importorskip("torch")
    workload = small[network]
    if not workload.available:
        pytest.skip(f"there is no network {network} here")
    found = {}
    for name in ("graphkit", "torch"):
        runner = engines.open_engine(name, workload, 1)
        found[name] = runner.step(), runner.states()
    difference = training_tasks.differences(found["graphkit"], found["torch"], runner.statistics)
    assert difference["loss"] < 1e-6
    assert difference["gradients"] < 1e-4
    if runner.statistics:
        assert difference["statistics"] < 1e-5
    else:
        assert difference["gradient"] < 1e-5, difference["worst"]


def test_times_and_profile_of_a_workload(small) -> None:
    (measured,) = training_tasks.time_engines(ONCE | {"workload": "lenet", "engines": ["graphkit"]}).values()
    assert len(measured["rounds"]) == 1
    assert 0 < measured["profile"]["convolutions"] < measured["profile"]["seconds"]
    assert measured["profile"]["times_floor"] > 1
    operators = {o["operator"] for o in measured["profile"]["operators"]}
    assert "ai.graphkit.SgdUpdate" in operators
    assert any(o.endswith("ConvGradWeight") for o in operators)


def test_no_convolutions_no_floor(small) -> None:
    (measured,) = training_tasks.time_engines(ONCE | {"workload": "mlp", "engines": ["graphkit"]}).values()
    assert measured["profile"]["times_floor"] is None


def test_an_engine_that_fails_leaves_the_others(small, monkeypatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(engines, "_torch", broken)
    measured = training_tasks.time_engines(ONCE | {"workload": "mlp", "engines": ["torch", "graphkit"]})
    assert measured["torch"] == {"error": "RuntimeError: no"}
    assert measured["graphkit"]["rounds"]


def test_differences() -> None:
    theirs = {"w_weight": np.array([3.0, 4.0]), "w_bias": np.array([0.0]), "m": np.array([10.0])}
    ours = {"w_weight": np.array([3.0, 4.5]), "w_bias": np.array([0.1]), "m": np.array([11.0])}
    found = training_tasks.differences((2.0, ours), (1.0, theirs), ["m"])
    assert found["loss"] == 1
    assert found["gradient"] == pytest.approx(0.1)
    assert found["worst"] == "w_weight", "a bias that vanishes is measured by its weight"
    assert found["gradients"] == pytest.approx(np.hypot(0.5, 0.1) / 5)
    assert found["statistics"] == pytest.approx(0.1)
    with pytest.raises(ValueError, match="parameters"):
        training_tasks.differences((2.0, {}), (1.0, theirs), ["m"])


@pytest.mark.full
def test_recomputation(small) -> None:
    measured = training_tasks.recomputation(ONCE | {"workload": "transformer_lm"})
    plain, root = measured["plain"], measured["sqrt"]
    assert root["activation_bytes"] < plain["activation_bytes"]
    assert root["loss"] == plain["loss"]
    row = recompute.row("transformer_lm", 1, [measured])
    lines = recompute.report([row]).splitlines()
    assert lines[4].startswith("| causal transformer 4x256, 8x128 tokens | kept | ")
    assert len(lines) == 7


def test_files_train_as_their_networks(small) -> None:
    measured = training_tasks.reimported(ONCE | {"workload": "lenet", "batch": 3})
    assert {way: m["same"] for way, m in measured.items()} == dict.fromkeys(reimported.WAYS, True)
    row = reimported.row("lenet", 1, [measured])
    assert row["title"] == "lenet 28x28, batch 64"
    row["ways"]["inference"]["ratio"] = {"median": 1.02, "low": 1.0, "high": 1.04}
    row["ways"]["training"]["ratio"] = {"median": 1.05, "low": 1.04, "high": 1.06}
    assert reimported.differences(row) == ["its file in training mode takes 1.050 times as long"]
    row["ways"]["inference"] |= {"same": False, "steps": 1}
    assert len(reimported.differences(row)) == 2
    lines = reimported.report([row]).splitlines()
    assert lines[4].endswith("| 1.020 (1.000 to 1.040) | 1.050 (1.040 to 1.060) |")
    assert "has other steps: 1, not" in lines[-2]
    failed = reimported.row("lenet", 1, [{way: {"error": "no memory"} for way in reimported.WAYS}])
    assert len(reimported.differences(failed)) == len(reimported.WAYS)
    assert "| error | error | error |" in reimported.report([failed])


# --- from measurements to results ---------------------------------------------------------------------


def times(*rounds: float, **facts: Any) -> dict[str, Any]:
    seconds = {"runs": 3, "best": min(rounds), "p50": rounds[0], "p90": 9.0, "p99": 9.0}
    return {"seconds": seconds, "rounds": list(rounds), **facts}


def difference(**changed: Any) -> dict[str, Any]:
    return {"loss": 1e-7, "gradients": 1e-6, "gradient": 1e-5, "worst": "fc_weight", "statistics": None} | changed


PROFILE = {
    "seconds": 0.02,
    "convolutions": 0.008,
    "times_floor": 2.5,
    "operators": [
        {"operator": "Conv", "kind": "native", "seconds": 0.008},
        {"operator": "ai.graphkit.SgdUpdate", "kind": "native", "seconds": 0.002},
    ],
}


def process(ours: dict[str, Any]) -> dict[str, Any]:
    return {
        "graphkit": times(0.01, 0.02, difference=ours, profile=PROFILE, fallbacks=["a (Odd)", "b (Odd)"]),
        "torch": times(0.04, 0.08),
        "compiled": times(0.02, 0.04, difference=difference()),
    }


def result(*rows: dict[str, Any]) -> dict[str, Any]:
    return {
        "date": "2026-01-01",
        "machine": {"cpu": "a CPU", "cores": 4, "python": "3.11", "load": 0.1},
        "engines": {"graphkit": "1", "torch": "2", "compiled": "2"},
        "options": {"restarts": 2, "rounds": 2, "quick": False},
        "left_out": ["lstm_lm"],
        "rows": list(rows),
        "means": list(means(rows)),
        "memory": [
            {"workload": "mlp", "title": "mlp", "engines": {
                "graphkit": {"before": 10**7, "peak": 2 * 10**7}, "torch": {"before": 0, "peak": 10**8},
                "compiled": {"error": "no compiler"},
            }}
        ],
    }  # fmt: skip


def test_a_row() -> None:
    row = training_row("mlp", 4, [process(difference()), process(difference(loss=2e-7))])
    assert {peer: r["median"] for peer, r in row["ratio"].items()} == {"torch": 4.0, "compiled": 2.0, "fastest": 2.0}
    assert row["ratio"]["fastest"]["engine"] == "compiled"
    assert row["engines"]["graphkit"]["difference"]["loss"] == 2e-7
    assert failures([row]) == []


@in_one_item()
@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"loss": 2e-5}, "loss differs by 2.0e-05"),
        ({"gradients": float("nan")}, "gradients differs by nan"),
        ({"gradient": 1e-3}, "the gradient of fc_weight differs by 1.0e-03"),
        ({"gradient": 1e-1, "statistics": 1e-7}, "the gradient of fc_weight differs by 1.0e-01"),
        ({"statistics": 1e-3}, "statistics differs by 1.0e-03"),
    ],
)
def test_other_first_steps_are_failures(changed: dict[str, float], problem: str) -> None:
    # One wrong process makes the row fail, even if the others are right.
    right = difference(statistics=changed.get("statistics") and 1e-7)
    row = training_row("mlp", 1, [process(right), process(difference(**changed)), process(right)])
    assert failures([row]) == [f"mlp, graphkit: {problem}"]


def test_rounding_at_kinks_is_allowed_with_batch_normalisation() -> None:
    row = training_row("resnet18", 1, [process(difference(gradient=1e-3, statistics=1e-7))])
    assert failures([row]) == []
    assert "differs by up to 1e-03" in report(result(row))


def test_the_report() -> None:
    text = report(result(training_row("mlp", 1, [process(difference())])))
    ratios = "4.00 (4.00 to 4.00) | 2.00 (2.00 to 2.00) | 2.00 (2.00 to 2.00)"
    assert f"| 15 | 60 | 30 | {ratios} | 2.50 | 1e-07 | 1e-06 |" in text
    assert "Left out, because graphkit has no such network: lstm_lm." in text
    assert "| Conv 80%, SgdUpdate 20% | 50% |" in text
    assert "| mlp | 10 | 100 | error |" in text
    assert "- mlp, compiled: no compiler" in text
    assert "- mlp: Odd" in text


def test_the_chart() -> None:
    comparison = Comparison("Speed", engines.TITLES, "torch", {"compiled": "diamond"})
    root = ElementTree.fromstring(chart(result(training_row("mlp", 1, [process(difference())])), comparison))
    texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("4.00x") == 2, "the row and the mean"
    assert "torch.compile" in texts


def test_usage_errors() -> None:
    done = subprocess.run(
        [sys.executable, BENCH / "training.py", "--only", "resnet5"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no workload 'resnet5'; did you mean 'resnet50'" in done.stderr


@pytest.mark.full
@pytest.mark.pytorch
def test_the_command(tmp_path) -> None:
    pytest.importorskip("torch")
    options = ["--quick", "--only", "mlp", "--engines", "graphkit,torch", "--threads", "1"]
    done = subprocess.run(
        [sys.executable, BENCH / "training.py", *options, "--output", tmp_path, "--name", "trial"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "trial.json").read_text())
    assert found["rows"][0]["ratio"]["torch"]["median"] > 0
    assert found["memory"][0]["engines"]["graphkit"]["peak"] > 0
    assert (tmp_path / "trial.md").read_text() == done.stdout.rstrip("\n") + "\n"
    assert (tmp_path / "trial.svg").read_text().startswith("<svg")
