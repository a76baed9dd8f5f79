"""The benchmark of quantised networks trains a network, quantises it, and replaces its section of the report."""

from __future__ import annotations

import sys

import pytest
import quantised_accuracy as accuracy
import quantised_trained as training

import graphkit as gk


def test_a_section_is_replaced_and_kept():
    report = accuracy.replaced("# Report\n\nfirst\n", f"{accuracy.TITLE}\n\nold\n")
    assert accuracy.accuracy_section(report) == f"{accuracy.TITLE}\n\nold\n"
    report = accuracy.replaced(report, f"{accuracy.TITLE}\n\nnew\n")
    assert report == f"# Report\n\nfirst\n\n{accuracy.TITLE}\n\nnew\n"
    assert accuracy.accuracy_section("# Report\n") == ""


@pytest.mark.full
def test_a_network_is_trained_quantised_and_reported(tmp_path, monkeypatch):
    def digits(_):
        return tuple({"x": part.inputs, "y": part.targets} for part in gk.data.load("digits"))

    tiny = training._Row("digits", lambda: gk.models.build("lenet", image=(1, 8, 8), classes=10), 3, 3e-3)
    monkeypatch.setitem(training._ROWS, "tiny", tiny)
    monkeypatch.setitem(training._MAKERS, "digits", digits)
    monkeypatch.setattr(accuracy, "NAMES", ("tiny",))
    monkeypatch.setattr(sys, "argv", ["bench", str(tmp_path), "--models", str(tmp_path), "--output", str(tmp_path)])
    (tmp_path / "2026-11-quantised.md").write_text("# Report\n")
    assert accuracy.main() == 0
    report = (tmp_path / "2026-11-quantised.md").read_text()
    assert report.startswith(f"# Report\n\n{accuracy.TITLE}\n")
    assert "| tiny | 359 |" in report
    assert (tmp_path / "2026-11-quantised-accuracy.json").exists()
