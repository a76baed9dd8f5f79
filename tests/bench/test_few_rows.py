"""The benchmark of products with few rows."""

from __future__ import annotations

import few_rows as bench
import pytest

from graphkit.executor.devices.cpu import native

pytestmark = pytest.mark.skipif(not native.has_onednn(), reason="built without oneDNN")


def test_a_cell_compares_three_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_BYTES", 1e5)
    made = []
    monkeypatch.setattr(
        native, "MatMul", lambda *shapes, make=native.MatMul, **options: made.append(shapes) or make(*shapes, **options)
    )
    speed, to_runtime, to_library = bench.cell(2, (64, 32), 1, 1).replace(";", ",").split(",")
    assert min(map(float, (speed, to_runtime, to_library))) > 0
    assert made == [((2, 64), (64, 32))], "the library's kernel, which all products share"
