"""The benchmark of imported files: from a folder of cases to the table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from imported import report, run_case, succeeded

import graphkit as gk

CASES = {"plain": "a layer", "pixels": "an image", "table": "no numbers to learn", "broken": "not a model"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    x = gk.input("x", ["N", 3])
    hidden = gk.nn.linear(x, 4, name="fc")
    gk.Model({"y": gk.tanh(hidden)}, seed=0).save(tmp_path / "plain.onnx")
    gk.Model({"y": gk.cast(gk.sigmoid(hidden) * np.float32(255), to="uint8")}, seed=0).save(tmp_path / "pixels.onnx")
    ids = gk.input("x", ["N"], dtype="int64")
    gk.Model({"y": ids + ids}).save(tmp_path / "table.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    np.savez(tmp_path / "table.npz", **{"in:x": np.arange(4)})
    for name in ("plain", "pixels"):
        np.savez(tmp_path / f"{name}.npz", **{"in:x": rng.standard_normal((5, 3)).astype(np.float32)})
    (tmp_path / "index.json").write_text(json.dumps([{"name": n, "what": w} for n, w in CASES.items()]))
    return tmp_path


def test_each_case_gives_a_row_or_a_reason(folder: Path) -> None:
    results = [run_case(folder, name, seconds=30) for name in CASES]
    assert [succeeded(r) for r in results] == [True, True, False, False]
    assert results[0]["gradient"]["values"] == 3
    assert results[0]["gradient"]["error"] < 1e-6
    assert results[0]["training"]["last"] < results[0]["training"]["first"]
    assert results[1]["notes"] == ["output before the cast to uint8"]
    assert "no weights among its constants" in results[2]["error"]
    page = report(results, CASES)
    assert "2 of 4 files pass" in page
    assert "| plain: a layer |" in page
    assert "- broken (not a model): InvalidModel" in page
    assert str(folder) not in page


def test_failures_are_listed(folder: Path) -> None:
    result = run_case(folder, "plain", seconds=0)
    assert result["gradient"]["together"]
    result["training"]["last"] = 2 * result["training"]["first"]
    result["gradient"]["failed"] = ["fc_weight: FAILED"]
    assert not succeeded(result)
    page = report([result], CASES)
    assert "- plain: the loss does not fall" in page
    assert "- plain: gradient in fc_weight: FAILED" in page
