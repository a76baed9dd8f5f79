"""The rows of requests whose sizes change."""

import json
from pathlib import Path

import pytest
import shapes

import graphkit as gk
from graphkit.ops import F


def _write(folder: Path, *dims: int | str) -> Path:
    path = folder / "tanh.onnx"
    gk.Model({"y": F.tanh(gk.input("x", list(dims)))}).save(path)
    return path


def test_rows_of_folder_draw_sizes_within_bounds(tmp_path: Path) -> None:
    path = _write(tmp_path, "N", "T")
    path.with_suffix(".json").write_text(json.dumps({"T": [5, 9, 2]}))
    row = shapes.rows_of_folder(tmp_path)["tanh"]
    assert row.title == "tanh, N 8 to 128, T 5 to 9"
    drawn = row.draw(1000, seed=0)
    assert {size["T"] for size in drawn} == {5, 7, 9}
    assert {size["N"] for size in drawn} == set(range(8, 129))
    row.write(str(tmp_path / "copy.onnx"))
    assert (tmp_path / "copy.onnx").read_bytes() == path.read_bytes()


def test_file_without_symbols_is_rejected(tmp_path: Path) -> None:
    _write(tmp_path, 2, 3)
    with pytest.raises(SystemExit, match="no input has a symbolic dimension"):
        shapes.rows_of_folder(tmp_path)


def test_bounds_of_unknown_symbol_are_rejected(tmp_path: Path) -> None:
    _write(tmp_path, "N", 3).with_suffix(".json").write_text(json.dumps({"M": [1, 2, 1]}))
    with pytest.raises(SystemExit, match="has the symbol 'M'"):
        shapes.rows_of_folder(tmp_path)
