"""Operators of ai.onnx.ml: LabelEncoder."""

from __future__ import annotations

import math

from graphkit.errors import InvalidModel
from graphkit.ir.types import DType
from graphkit.onnx_io.upgrade import NodeView, upgrade

_DOMAIN = "ai.onnx.ml"


@upgrade("LabelEncoder", below=2, domain=_DOMAIN)
def _classes_to_table(node: NodeView) -> None:
    """In version 1, strings became their positions in `classes_strings`, and integers the string at that position."""
    classes = node.require("classes_strings")
    if node.operand(0).dtype is DType.STRING:
        node.attrs |= {"keys_strings": classes, "values_int64s": tuple(range(len(classes)))}
    else:
        node.attrs |= {"keys_int64s": tuple(range(len(classes))), "values_strings": classes}


@upgrade("LabelEncoder", below=4, domain=_DOMAIN)
def _nan_is_no_key(node: NodeView) -> None:
    """Before version 4, NaN did not match any key, so NaN keys are removed."""
    keys = node.attrs.get("keys_floats")
    if keys is None or not any(map(math.isnan, keys)):
        return
    kept = [i for i, key in enumerate(keys) if not math.isnan(key)]
    for name, items in node.attrs.items():
        if name == "keys_floats" or (name.startswith("values_") and items):
            if len(items) != len(keys):
                raise InvalidModel(f"{node.label}: {len(keys)} keys, and {name} has {len(items)} entries")
            node.attrs[name] = tuple(items[i] for i in kept)
