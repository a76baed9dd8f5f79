"""The benchmark of quantised networks trains a network, quantises it, and writes a report."""

from __future__ import annotations

import json
import sys

import pytest
import quantised_accuracy as accuracy
import quantised_trained as training

import graphkit as gk


@pytest.mark.full
def test_a_network_is_trained_quantised_and_reported(tmp_path, monkeypatch):
    def digits(_):
        return tuple({"x": part.inputs, "y": part.targets} for part in gk.data.load("digits"))

    tiny = training._Row("digits", lambda: gk.models.build("lenet", image=(1, 8, 8), classes=10), 3, 3e-3)
    monkeypatch.setitem(training._ROWS, "tiny", tiny)
    monkeypatch.setitem(training._MAKERS, "digits", digits)
    monkeypatch.setattr(accuracy, "NAMES", ("tiny",))
    monkeypatch.setattr(sys, "argv", ["bench", str(tmp_path), "--models", str(tmp_path), "--output", str(tmp_path)])
    assert accuracy.main() == 0
    assert "\n| tiny | 359 |" in (tmp_path / "2026-11-quantised-accuracy.md").read_text()
    (row,) = json.loads((tmp_path / "2026-11-quantised-accuracy.json").read_text())["rows"]
    assert row["accuracy"]["float"] > 0.8
