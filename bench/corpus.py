"""Write the files of tests/corpus: small models as other programs export them.

    pip install torch==2.13.0 torchvision==0.28.0 onnxscript     # for the files of PyTorch
    pip install skl2onnx onnxmltools lightgbm xgboost            # for those of scikit-learn and of trees
    python bench/corpus.py tests/corpus [--only torch_mlp,skl_forest]

A model is NAME.onnx or NAME.json. NAME.npz contains its inputs, if random ones are not suitable. Other files in the
folder have the names that the model refers to. If a producer is not installed, its models stay unchanged, with a
message. Weights and data are drawn with fixed seeds. Another version of a producer writes another file.
"""

from __future__ import annotations

import argparse
import importlib
import io
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

# Bytes: a seed that takes longer to read is tried less often.
LARGEST = 20_000

# By how the names of their models begin.
_PRODUCERS = {
    ("torch", "dynamo", "onnxscript"): "corpus_torch",
    ("ort",): "corpus_runtime",
    ("skl", "lightgbm", "xgboost"): "corpus_trained",
    ("onnx", "graphkit"): "corpus_own",
}


class Made(NamedTuple):
    """A model file, the files that belong to it by name, and its inputs if random ones are not suitable."""

    data: bytes
    beside: Mapping[str, bytes] = {}
    inputs: Mapping[str, np.ndarray] = {}
    suffix: str = ".onnx"


def unplaced(model: onnx.ModelProto) -> onnx.ModelProto:
    """Remove texts from a model, in place, that name the machine and the source lines it was made with."""
    del model.metadata_props[:]
    for graph in (model.graph, *model.functions):
        _unplace(graph)
    return model


def _unplace(graph: Any) -> None:
    for item in (graph, *graph.node, *graph.value_info, *getattr(graph, "initializer", ())):
        del item.metadata_props[:]
        item.doc_string = ""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _unplace(attribute.g)


def models(only: tuple[str, ...] = ()) -> Iterator[tuple[str, Callable[[], Made]]]:
    """Name and maker of every model, or of `only` these; those of a producer that is not installed are said."""
    for begins, module in _PRODUCERS.items():
        if only and not any(name.startswith(begins) for name in only):
            continue
        try:
            makers = importlib.import_module(module).makers()
        except ModuleNotFoundError as error:
            print(f"{', '.join(begins)}: left alone, {error.name} is not installed", file=sys.stderr)
            continue
        yield from ((name, make) for name, make in makers.items() if not only or name in only)


def write(folder: Path, name: str, made: Made) -> None:
    if len(made.data) > LARGEST:
        raise ValueError(f"{name}: {len(made.data)} bytes, and {LARGEST} are the most")
    (folder / f"{name}{made.suffix}").write_bytes(made.data)
    for other, data in made.beside.items():
        (folder / other).write_bytes(data)
    if made.inputs:
        file = io.BytesIO()
        np.savez_compressed(file, **made.inputs)
        (folder / f"{name}.npz").write_bytes(file.getvalue())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="models, with commas between them")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name, make in models(tuple(filter(None, given.only.split(",")))):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                write(given.folder, name, make())
        except Exception as error:  # noqa: BLE001 - what a producer's version does not do is named
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            failed += 1
    return int(failed > 0)


def from_file(write_model: Callable[[Path], Any]) -> onnx.ModelProto:
    """Return the model of a producer that can only write files."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        write_model(path)
        return onnx.load(path)


def to_file(model: onnx.ModelProto | bytes, use: Callable[[Path], Any]) -> Any:
    """Return the result of a producer that can only read files, for a model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "given.onnx"
        path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
        return use(path)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.modules["corpus"] = sys.modules["__main__"]
    sys.exit(main())
