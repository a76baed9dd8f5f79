"""Files of other programs: each file, and its export by graphkit, loads, runs, and equals ONNX Runtime."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.data.files.npz import read_arrays
from graphkit.errors import UnsupportedError, UsageError
from graphkit.ir.types import FLOATS

FOLDER = Path(__file__).parents[1] / "corpus"
# Some files of other programs break rules of the format. They are read with a warning.
pytestmark = pytest.mark.filterwarnings("ignore::graphkit.errors.FileWarning")

MODELS = sorted([*FOLDER.glob("*.onnx"), *FOLDER.glob("*.json")])
LARGEST = 20_000


def inputs_of(path):
    arrays = path.with_suffix(".npz")
    return read_arrays(arrays) if arrays.exists() else {}


def opened(path, tmp_path):
    """Return the model, copied to a new folder. It must not need files elsewhere."""
    for file in FOLDER.glob(f"{path.stem}.*"):
        shutil.copy(file, tmp_path)
    return gk.load(tmp_path / path.name)


@in_one_item()
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_a_file_equals_onnx_runtime(path, tmp_path):
    net = opened(path, tmp_path)
    against = tmp_path / path.name if path.suffix == ".onnx" else None
    gk.verify(net, inputs_of(path), against=against).raise_if_failed()


@in_one_item()
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_a_file_survives_both_formats(path, tmp_path):
    net, inputs = opened(path, tmp_path), inputs_of(path)
    (tmp_path / "again").mkdir()
    net.save(tmp_path / "again" / "net.json")
    again = gk.load(tmp_path / "again" / "net.json")
    assert again.to_text() == net.to_text()
    gk.verify(again, inputs, opset=21).raise_if_failed()


@in_one_item()
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_the_gradient_of_a_file_equals_onnx_runtime(path, tmp_path):
    net = opened(path, tmp_path)
    floats = [
        name for name in net.inputs if getattr(net.graph.find(name, inputs_first=True).type, "dtype", None) in FLOATS
    ]
    try:
        back = gk.grad(net, wrt=[*net.params, *floats] or None)
    except (UsageError, UnsupportedError):  # labels, trees, nothing that results depend on
        return
    inputs = {k: v for k, v in inputs_of(path).items() if k in back.inputs}
    # Gradients of a sum of probabilities are rounding alone.
    gk.verify(back, inputs, rtol=1e-3, atol=1e-5).raise_if_failed()


def test_the_corpus_has_what_it_is_for():
    found = {path.stem: onnx.load(path, load_external_data=False) for path in MODELS if path.suffix == ".onnx"}
    operators = {(node.domain, node.op_type) for model in found.values() for node in model.graph.node}
    assert {"Loop", "If", "Scan", "SplitToSequence", "DynamicQuantizeLinear", "QLinearConv"} <= {
        o for _, o in operators
    }
    assert {"com.microsoft", "ai.onnx.ml"} <= {domain for domain, _ in operators}
    assert any(model.functions for model in found.values())
    assert any(model.graph.sparse_initializer for model in found.values())
    assert min(model.ir_version for model in found.values()) == 3
    assert all(path.stat().st_size <= LARGEST for path in FOLDER.iterdir())
    assert 30 <= len(MODELS) <= 60


def test_the_corpus_says_nothing_of_where_it_was_made():
    for path in FOLDER.iterdir():
        data = path.read_bytes()
        assert not any(text in data for text in (b"/tmp", b"/home", b"/root", b"site-packages", b'File "')), path
