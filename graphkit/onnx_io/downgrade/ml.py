"""Tree ensembles of ai.onnx.ml. Older versions store their numbers as lists of float32, newer ones as tensors."""

from __future__ import annotations

from graphkit.ir.tensor import Tensor
from graphkit.ir.types import DType
from graphkit.onnx_io.downgrade import ALWAYS, Spelling, spells


@spells("TreeEnsembleRegressor", "TreeEnsembleClassifier", below=16)
def _tensors_to_lists(node: Spelling) -> None:
    for key, value in list(node.attrs.items()):
        if key.endswith("_as_tensor"):
            del node.attrs[key]
            if isinstance(value, Tensor):
                if value.dtype is not DType.FLOAT32:
                    raise node.fail(f"attribute {key} of {value.dtype}")
                node.attrs[key.removesuffix("_as_tensor")] = tuple(value.array.reshape(-1).tolist())


@spells("TreeEnsemble", "TreeEnsembleRegressor", below=ALWAYS)
def _number_of_targets(node: Spelling) -> None:
    # Optional in the standard, but required by ONNX Runtime.
    if node.attrs.get("n_targets") is None:
        node.attrs["n_targets"] = 1
