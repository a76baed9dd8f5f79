"""From measurements to rows, tables and the chart."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import engines
import pytest
from chart import Comparison, chart
from paired import means, quotients
from report import report
from rows import all_rows, creation_row, failures, time_row

SPEED = Comparison("Speed & more", engines.TITLES, "onnxruntime", {"openvino": "dot", "torch": "diamond"})
CEILING = {"flops": 1e11, "bytes": 1e10}
COST = {"flops": 10**8, "bytes": 10**7}


def measured(*rounds: float, **facts: Any) -> dict[str, Any]:
    seconds = {"runs": 10, "best": min(rounds), "p50": rounds[0], "p90": 9.0, "p99": 9.0}
    return {"seconds": seconds, "rounds": list(rounds), **facts}


PROCESSES = [
    {
        "graphkit": measured(0.01, 0.02, difference=1e-7, fallbacks=["relu1 (Relu)", "relu2 (Relu)"]),
        "onnxruntime": measured(0.02, 0.04),
        "torch": {"error": "RuntimeError: no"},
    },
    {
        "graphkit": measured(0.02, 0.02, difference=2e-7, fallbacks=["relu1 (Relu)", "relu2 (Relu)"]),
        "onnxruntime": measured(0.04, 0.04),
        "torch": measured(0.1, 0.1),
    },
]


def row(threads: int = 1, name: str = "mlp-1", processes: list[dict[str, Any]] = PROCESSES) -> dict[str, Any]:
    return time_row(name, threads, processes, COST, CEILING, cache_bytes=10**6)


def result(*rows: dict[str, Any]) -> dict[str, Any]:
    return {
        "date": "2026-01-01",
        "machine": {"cpu": "a <CPU>", "cores": 4, "python": "3.11", "load": 2.5},
        "engines": {"graphkit": "1", "onnxruntime": "2", "openvino": None, "torch": "3"},
        "options": {"restarts": 2, "rounds": 2, "quick": False},
        "ceilings": {str(r["threads"]): CEILING for r in rows},
        "rows": list(rows),
        "means": list(means(rows)),
        "memory": [],
        "creation": [],
        "resize": [],
    }


def test_a_row() -> None:
    made = row()
    mine = made["engines"]["graphkit"]
    assert mine["seconds"]["p50"] == 0.02
    assert mine["seconds"]["best"] == 0.01
    assert mine["seconds"]["runs"] == 20
    assert mine["difference"] == 2e-7
    assert mine["correct"]
    assert made["ratio"]["onnxruntime"]["median"] == 2.0
    assert made["limits"] == {"arithmetic": 1e-3, "memory": 1e-3}
    assert mine["percent"]["arithmetic"] == pytest.approx(5.0)
    assert made["engines"]["torch"] == {"error": "RuntimeError: no"}, "an engine runs in all processes or in none"
    assert list(made["ratio"]) == ["onnxruntime"]
    assert quotients(PROCESSES, "onnxruntime", "graphkit") == [[2.0, 2.0], [2.0, 2.0]]


def test_what_fits_into_the_cache_has_no_memory_limit() -> None:
    made = time_row("mlp-1", 1, PROCESSES, COST, CEILING, cache_bytes=10**8)
    assert list(made["limits"]) == ["arithmetic"]


def test_means_are_per_number_of_threads_and_name_what_is_missing() -> None:
    alone = [{"graphkit": {"error": "no LSTM"}, "onnxruntime": measured(1.0, 1.0)}]
    slow = [{"graphkit": measured(2.0, 2.0), "onnxruntime": measured(1.0, 1.0)}]
    rows = [row(), row(name="mlp-64", processes=slow), row(name="lstm-1", processes=alone), row(threads=4)]
    one, four = (m for m in means(rows) if m["peer"] == "onnxruntime")
    assert (one["threads"], one["median"], one["left_out"]) == (1, pytest.approx(1.0), ["lstm-1"])
    assert (four["threads"], four["median"], four["left_out"]) == (4, pytest.approx(2.0), [])


def test_wrong_outputs_and_errors_are_failures() -> None:
    wrong = [{"graphkit": measured(1.0, difference=0.01), "onnxruntime": measured(1.0)}]
    lines = failures(all_rows(result(row(processes=wrong), row(threads=4))))
    assert lines == ["mlp-1, graphkit: outputs differ by 1.0e-02 of the largest", "mlp-1, torch: RuntimeError: no"]


def test_creation_rows() -> None:
    ours = [{"create": 2.0, "first_result": 3.0}, {"create": 4.0, "first_result": 6.0}]
    theirs = [{"create": 1.0, "first_result": 3.0}, {"create": 2.0, "first_result": 6.0}]
    made = creation_row("bert-1", 4, {"graphkit": ours, "onnxruntime": theirs})
    assert made["engines"]["graphkit"] == {"create": 3.0, "first_result": 4.5}
    assert made["ratio"]["create"]["median"] == 2.0
    failed = creation_row("bert-1", 4, {"graphkit": [{"error": "x"}], "onnxruntime": theirs})
    assert failed["ratio"] == {}


def test_the_report() -> None:
    everything = result(row(), row(threads=4))
    everything["memory"] = [
        {"workload": "mlp-1", "title": "mlp", "engines": {
            "graphkit": {"before": 10**7, "peak": 3 * 10**7}, "onnxruntime": {"before": 0, "peak": 10**6},
            "torch": {"error": "x"},
        }}
    ]  # fmt: skip
    everything["resize"] = [
        {"workload": "bert-1", "title": "bert", "engines": {
            "graphkit": {"specialise": [0.01, 0.03, 0.02], "extra": [0.1, 0.1, 0.1]},
            "onnxruntime": {"specialise": [], "extra": [0.001, 0.002, 0.003]},
        }}
    ]  # fmt: skip
    text = report(everything)
    assert "Not installed and left out: OpenVINO" in text
    assert "Load average 2.5" in text
    assert "## 1 thread\n" in text
    assert "## 4 threads\n" in text
    assert "| 20 | 40 | error | 2.00 (2.00 to 2.00) |  | 5% A | 2e-07 |" in text
    assert "| mlp | 20 | 1 | error |" in text
    assert "| bert | graphkit | 20.0, 30.0 | 100.0, 100.0 |" in text
    assert "- mlp-1: 2 Relu" in text
    assert "## Session creation" not in text


def test_the_chart_is_svg_with_every_row() -> None:
    missing = [{"graphkit": {"error": "x"}, "onnxruntime": measured(1.0), "openvino": measured(0.001)}]
    root = ElementTree.fromstring(chart(result(row(), row(name="lstm-1", processes=missing), row(threads=4)), SPEED))
    texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("2.00x") == 4, "two rows and their means"
    assert texts.count("n/a") == 2
    assert "lstm 2x256, 35 steps, batch 1" in texts
    assert any("a <CPU>" in text for text in texts)
    width, height = float(root.get("width")), float(root.get("height"))
    places = [
        float(e.get("cx")) for e in root.iter("{http://www.w3.org/2000/svg}circle") if "grid" not in e.get("class")
    ]
    assert all(0 < x < width for x in places), "what is far off is drawn at the axis' end"
    assert height > 100
