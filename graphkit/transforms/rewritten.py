"""A model that was rewritten as an ONNX message, with its content before and after."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.errors import GraphkitWarning, UsageError
from graphkit.loading import is_onnx_file, load
from graphkit.model import Model

if TYPE_CHECKING:
    from graphkit.onnx_io.editing.reading import Contents, Message


@dataclass(frozen=True)
class Rewritten:
    """A rewritten model.

    Attributes:
        original: The model before, as an ONNX message.
        message: The model after, as an ONNX message.
        before: The content of the original: nodes by operator, initialisers, bytes.
        after: The content of the rewritten model.
    """

    original: Message
    message: Message
    before: Contents
    after: Contents

    @functools.cached_property
    def model(self) -> Model:
        """The rewritten model as a Model."""
        with warnings.catch_warnings():
            # Reading the original has given these warnings already.
            warnings.simplefilter("ignore", GraphkitWarning)
            return load(self.message)

    def save(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write the rewritten model to an .onnx or .json file; return the files written.

        An .onnx file contains `message`. Its weights are in a data file beside it if they take more than 1 GiB.
        """
        path = Path(path)
        if path.suffix != ".onnx":
            self.model.save(path)
            return [path]
        from graphkit.onnx_io.writing import EXTERNAL_ABOVE, write_proto

        if path.is_dir():
            raise UsageError(f"{path}: is a directory")
        return write_proto(self.message, path, external=self.after.nbytes > EXTERNAL_ABOVE)

    def as_dict(self) -> dict[str, Any]:
        """Return nodes, initialisers and bytes before and after as plain data, for JSON."""
        return {
            name: {
                "nodes": found.node_count,
                "operators": dict(found.nodes),
                "initializers": found.initializers,
                "bytes": found.nbytes,
            }
            for name, found in (("before", self.before), ("after", self.after))
        }


def message_of(model: Model | str | os.PathLike[str], external_root: str | os.PathLike[str] | None = None) -> Message:
    """Return a model as an ONNX message: that of its file if it is an .onnx file, otherwise an export."""
    if isinstance(model, Model):
        return model.to_onnx()
    net = load(model, external_root=None if external_root is None else os.fspath(external_root))
    if not is_onnx_file(model):
        return net.to_onnx()
    from graphkit.onnx_io.editing.reading import read_message

    return read_message(model, external_root)


def evaluate_constants(model: Message) -> Mapping[str, np.ndarray]:
    """Compute the outputs of a model without inputs."""
    return load(model).run({})
