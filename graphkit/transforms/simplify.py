"""Simplify models: fewer nodes of the same standard operators and opset, with the same results."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphkit.config import memory_size
from graphkit.errors import GraphkitWarning, UsageError
from graphkit.model import Model
from graphkit.signatures import typed
from graphkit.transforms.rewritten import Rewritten, evaluate_constants, message_of

if TYPE_CHECKING:
    pass

# Bytes that constants may add to a file.
FOLD_LIMIT = 1 << 20


@dataclass(frozen=True)
class Simplified(Rewritten):
    """A simplified model."""


@typed("gk.simplify")
def simplify(
    model: Model | str | os.PathLike[str],
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    fold_limit: int | str = FOLD_LIMIT,
    external_root: str | os.PathLike[str] | None = None,
) -> Model:
    """Return a model with fewer nodes that computes the same outputs.

    Constants and shape arithmetic are folded, equal nodes are merged, nodes that do nothing are removed, and batch
    normalisation is folded into the convolution or matrix product before it. The result has no more nodes than the
    original. Names of inputs and outputs stay.

    Args:
        model: A Model, or the path of an .onnx or .json file. An .onnx file is not converted to another opset.
        shapes: Sizes of inputs by name. With known sizes, more shape arithmetic can be folded.
        fold_limit: Bytes that constants may add to the file, as a number or a text such as "1MB".
        external_root: A second folder from which external data of an .onnx file may be read.

    Returns:
        The simplified model. Parameters that were folded have new values and may have new names.

    Raises:
        InputError: `shapes` names an input that does not exist, or has sizes that contradict its declared shape.
        UnsupportedError: The model contains training information or a Gradient node.
    """
    return simplify_onnx(model, shapes=shapes, fold_limit=fold_limit, external_root=external_root).model


def simplify_onnx(
    model: Model | str | os.PathLike[str],
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    fold_limit: int | str = FOLD_LIMIT,
    external_root: str | os.PathLike[str] | None = None,
) -> Simplified:
    """Simplify a model as ONNX, and return the messages and contents before and after. See `simplify`."""
    from graphkit.onnx_io.editing.reading import contents
    from graphkit.onnx_io.editing.simplifier import simplified

    limit = memory_size(fold_limit) if isinstance(fold_limit, str) else fold_limit
    if limit is None or limit < 0:
        raise UsageError(f"fold_limit {fold_limit!r}: expected a number of bytes of at least 0, or a text such as 1MB")
    label = model.name if isinstance(model, Model) else os.fspath(model)
    original = message_of(model, external_root)
    before = contents(original)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphkitWarning)
        for allowed in dict.fromkeys((limit, 0)):
            found = simplified(original, evaluate_constants, shapes=shapes or {}, limit=allowed, label=label)
            after = contents(found)
            if after.node_count <= before.node_count and after.nbytes <= before.nbytes + limit:
                return Simplified(original, found, before, after)
    return Simplified(original, original, before, before)
