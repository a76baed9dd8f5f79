"""Targets that are large whole numbers: kept to the last digit, or refused by name; classes never merge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.data import sources
from graphkit.data.records.header import IRHeader, pack, unpack
from graphkit.errors import GraphkitError, InputError
from graphkit.train.targets import Targets

X = np.ones((2, 3), np.float32)


def npz(folder: Path, targets: np.ndarray) -> Path:
    np.savez(folder / "data.npz", x=X, y=targets)
    return folder / "data.npz"


@in_one_item()
@pytest.mark.parametrize("numbers", [(2**53, 2**53 + 1), (2**63 - 2, 2**63 - 1)])
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_integers_of_archives_keep_their_digits(tmp_path: Path, numbers: tuple[int, int], dtype: str) -> None:
    found = sources.read(str(npz(tmp_path, np.array(numbers, dtype)))).targets
    assert found.dtype == np.int64
    assert found.tolist() == list(numbers)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (np.array([1, 2**63], np.uint64), "y contains 9223372036854775808, which is too large for int64"),
        (np.array([1.5, 1e300]), r"y contains 1e\+300, which is too large for float32"),
    ],
)
def test_numbers_of_archives_that_do_not_fit_are_named(tmp_path: Path, targets: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sources.read(str(npz(tmp_path, targets)))


def csv(folder: Path, cells: list[str]) -> Path:
    path = folder / "table.csv"
    path.write_text("a,target\n" + "".join(f"{i},{cell}\n" for i, cell in enumerate(cells)))
    return path


def parquet(folder: Path, cells: list[str]) -> Path:
    pyarrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = folder / "table.parquet"
    numbers = [int(cell) for cell in cells]
    kind = pyarrow.uint64() if min(numbers) >= 0 else pyarrow.int64()
    table = pyarrow.table({"a": list(range(len(cells))), "target": pyarrow.array(numbers, kind)})
    writer.write_table(table, path)
    return path


@in_one_item()
@pytest.mark.parametrize("write", [csv, parquet])
@pytest.mark.parametrize("numbers", [(2**53, 2**53 + 1), (1, 2**63)])
def test_whole_numbers_that_tables_round_are_refused(tmp_path: Path, write: Any, numbers: tuple[int, int]) -> None:
    path = write(tmp_path, [str(n) for n in numbers])
    with pytest.raises(InputError, match=rf"the target 'target' is about {2**53 if numbers[0] > 1 else 2**63}"):
        sources.read(str(path), target="target")


@pytest.mark.parametrize("write", [csv, parquet])
def test_the_largest_whole_number_of_a_table(tmp_path: Path, write: Any) -> None:
    found = sources.read(str(write(tmp_path, ["0", str(2**53 - 1)])), target="target")
    assert found.targets.tolist() == [0, 2**53 - 1]


@in_one_item()
@pytest.mark.parametrize("label", [2**24 + 1, [0, 2**24 + 1], np.int64(2**53 + 1), 2**70 + 1])
def test_labels_that_records_round_are_refused(label: Any) -> None:
    with pytest.raises(InputError, match="labels of records are float32, which cannot represent the integer"):
        pack(IRHeader(0, label, 1, 0), b"")


@in_one_item()
@pytest.mark.parametrize("label", [2**24, -5, 0.1, 123456789.0, np.float32(3.5)])
def test_labels_that_records_hold(label: Any) -> None:
    assert unpack(pack(IRHeader(0, label, 1, 0), b""))[0].label == np.float32(label)


def test_floats_beyond_their_digits_are_no_classes() -> None:
    targets = Targets({"t": gk.TensorType("int64", (2,))}, {})
    for dtype in (np.float64, np.float32, np.float16):
        end = 2 ** (np.finfo(dtype).nmant + 1)
        assert targets.fitted({"t": np.array([0, end - 1], dtype)})["t"].tolist() == [0, end - 1]
        with pytest.raises(GraphkitError, match=f"contain {float(end)}"):
            targets.fitted({"t": np.array([0, end], dtype)})
