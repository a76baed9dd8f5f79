"""docs/operator_table.md equals the output of `graphkit ops --markdown`."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphkit import cli
from graphkit.checks import operator_table
from graphkit.checks.operator_table import markdown, operator_rows
from graphkit.ops import registry

PAGE = Path(__file__).parents[2] / "docs" / "operator_table.md"


@pytest.fixture(scope="module")
def rows():
    """The rows of all operators, which are tried for it."""
    native = pytest.importorskip("graphkit.executor.devices.cpu._base").native
    if not native.has_onednn():
        pytest.skip("the page is that of an engine with oneDNN")
    return {(row.domain, row.name): row for row in operator_rows()}


@pytest.mark.full
def test_the_page_is_up_to_date(rows):
    assert PAGE.read_text() == markdown(list(rows.values())), "run: graphkit ops --markdown > docs/operator_table.md"


def test_rows_say_what_operators_do(monkeypatch):
    shown = {"Sin", "Round", "ArgMax", "Reshape", "Loop", "Relu", "StopGradient"}
    monkeypatch.setattr(operator_table, "registry", [cls for cls in registry if cls.name in shown])
    rows = {(row.domain, row.name): row for row in operator_rows()}
    assert {name for _, name in rows} == shown
    assert (rows["", "Sin"].first, rows["", "Sin"].second, rows["", "Sin"].native) == ("yes", "yes", "yes")
    assert rows["", "Round"].first == "zero"
    assert rows["", "ArgMax"].first == "-"
    assert rows["", "Reshape"].native == "yes"
    assert rows["", "Loop"].first == "yes"
    assert rows["", "Relu"].since == 14
    assert rows["ai.graphkit", "StopGradient"].exports


@pytest.mark.full
def test_everything_of_the_standard_that_has_a_derivative_has_a_second_one(rows):
    lacking = [row.name for row in rows.values() if not row.domain and "no" in (row.first, row.second)]
    assert not lacking


def test_it_takes_no_model():
    assert cli.invoke(["ops", "net.onnx", "--markdown"]) == 2
