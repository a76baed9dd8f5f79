"""gk.reduce_precision: let most nodes of a float32 model compute in float16 or bfloat16."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.errors import GraphkitWarning, InputError, UnsupportedError, UsageError, did_you_mean
from graphkit.ir.types import DType
from graphkit.loading import load
from graphkit.model import Model
from graphkit.quantisation.quantize import BATCH_SIZE
from graphkit.signatures import typed
from graphkit.text import listed
from graphkit.transforms.rewritten import Rewritten, evaluate_constants, message_of

if TYPE_CHECKING:
    from graphkit.onnx_io.editing.reading import Message
    from graphkit.onnx_io.quantise.layers import Choice
    from graphkit.onnx_io.reduced_precision import KeptNode, PrecisionReducer
    from graphkit.quantisation.calibration import Samples

PRECISIONS = {"fp16": DType.FLOAT16, "bf16": DType.BFLOAT16}
SAMPLES = 16
# Oldest opset in which all operators have bfloat16.
_BFLOAT16_OPSET = 22


@dataclass(frozen=True)
class ReducedPrecision(Rewritten):
    """A model whose nodes mostly compute in float16 or bfloat16.

    Attributes:
        precision: "fp16" or "bf16".
        lowered: Nodes in the lower precision: (name, operator) of each node.
        kept: Nodes in float32 with the reason: name, operator, reason. Other nodes are in float32 because this needs
            fewer Casts.
        casts: Number of Cast nodes that were added.
        notes: Sentences about the model, for example that its opset was raised.
    """

    precision: str = "fp16"
    lowered: tuple[tuple[str, str], ...] = ()
    kept: tuple[KeptNode, ...] = ()
    casts: int = 0
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the nodes, and the content before and after, as plain data, for JSON."""
        return {
            "precision": self.precision,
            "lowered": [{"name": name, "operator": operator} for name, operator in self.lowered],
            "kept": [kept._asdict() for kept in self.kept],
            "casts": self.casts,
            "notes": list(self.notes),
            **super().as_dict(),
        }


@typed("gk.reduce_precision")
def reduce_precision(
    model: Model | str | os.PathLike[str],
    precision: str = "fp16",
    *,
    data: Any = None,
    keep_float32: Sequence[str] = (),
    samples: int = SAMPLES,
    opset: int | None = None,
    threads: int | None = None,
    external_root: str | os.PathLike[str] | None = None,
) -> ReducedPrecision:
    """Let convolutions, matrix products and most other nodes of a float32 model compute in float16 or bfloat16.

    Weights are stored in 2 bytes. Inputs and outputs stay float32. These nodes stay in float32:

    - sums and normalisations (Softmax, LayerNormalization, ReduceMean, ...), and operators with a large range (Exp,
      Pow, ...);
    - nodes with a constant that the lower precision cannot represent: beyond its range, or only tiny numbers such as an
      epsilon of 1e-12;
    - for "fp16": nodes that read or compute a value whose magnitude on `data` is above 32,752, half of the largest
      float16, whose elements are all below 6.1e-5, or that has no finite element on `data`;
    - nodes that fit `keep_float32`, and loops, branches and functions.

    Casts are added where the precision changes. Nodes that can be computed in either precision (Add, Relu, Reshape,
    ...) are divided so that the number of Casts is as small as possible. Batch normalisation is folded first.

    Args:
        model: A Model; or an ONNX or JSON file, or a run folder.
        precision: "fp16" or "bf16".
        data: Samples on which values are measured, as `gk.quantize` takes them; or a dict of arrays by input name,
            which is one batch. Needed for "fp16".
        keep_float32: Patterns of names or operators of nodes that stay in float32.
        samples: Largest number of samples.
        opset: Opset of the result, if `model` is a Model. Default: 21, or the first later one that has all
            operators of the model.
        threads: Number of CPU threads.
        external_root: A second folder from which external data of an .onnx file may be read.

    Raises:
        UnsupportedError: No node would compute in the lower precision.
        InputError: The data do not fit the model, or have no samples.
        UsageError: An argument is wrong, or a pattern fits no node.
    """
    from graphkit.onnx_io.quantise.layers import Choice

    _check(precision, data, opset)
    label = model.name if isinstance(model, Model) else os.fspath(model)
    original = _original(model, opset, external_root)
    choice = Choice((), tuple(keep_float32), "keep_float32 (--keep-float32)")
    with warnings.catch_warnings():
        # Reading the original has given these warnings already.
        warnings.simplefilter("ignore", GraphkitWarning)
        return _reduced(original, precision, data, choice, samples, threads, label)


def _check(precision: str, data: Any, opset: int | None) -> None:
    """Raise UsageError for a precision that is unknown, needs data, or needs a newer opset."""
    if precision not in PRECISIONS:
        raise UsageError(f"precision must be fp16 or bf16, not {precision!r}{did_you_mean(precision, PRECISIONS)}")
    if precision == "fp16" and data is None:
        raise UsageError('precision "fp16" needs data, on which the range of values is measured')
    if precision == "bf16" and opset is not None and opset < _BFLOAT16_OPSET:
        raise UsageError(f"bf16 needs opset {_BFLOAT16_OPSET} or newer, not {opset} (--opset)")


def _original(
    model: Model | str | os.PathLike[str], opset: int | None, external_root: str | os.PathLike[str] | None
) -> Message:
    """Return the model as an ONNX message."""
    if opset is None:
        return message_of(model, external_root)
    if not isinstance(model, Model):
        raise UsageError("opset only works with a Model; load the file first")
    return model.to_onnx(opset=opset)


def _reduced(
    original: Message, precision: str, data: Any, choice: Choice, samples: int, threads: int | None, label: str
) -> ReducedPrecision:
    """Return the model in the lower precision."""
    from graphkit.onnx_io.editing.reading import contents
    from graphkit.onnx_io.reduced_precision import PrecisionReducer

    source, notes = _raised(original, precision)
    reducer = PrecisionReducer(source, evaluate_constants, PRECISIONS[precision], choice, label)
    largest = {} if precision == "bf16" else _measured(reducer, load(source), data, samples, threads)
    message = reducer.write(largest)
    if not reducer.lowered:
        reasons = dict.fromkeys(f"{kept.name} ({kept.operator}): {kept.reason}" for kept in reducer.kept)
        why = listed(reasons, len(reasons)) if reasons else "the model has no layers in float32"
        raise UnsupportedError(f"{label}: no node would compute in {precision}: {why}")
    return ReducedPrecision(
        original, message, contents(original), contents(message), precision, tuple(reducer.lowered),
        tuple(reducer.kept), reducer.casts, notes,
    )  # fmt: skip


def _raised(model: Message, precision: str) -> tuple[Message, tuple[str, ...]]:
    """Return a model of an opset whose operators have bfloat16, if that is needed, and a note if it was converted."""
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)
    if precision == "fp16" or opset >= _BFLOAT16_OPSET:
        return model, ()
    note = f"the opset is {_BFLOAT16_OPSET}, because bfloat16 needs it; it was {opset}"
    return load(model).to_onnx(opset=_BFLOAT16_OPSET), (note,)


def _measured(reducer: PrecisionReducer, model: Model, data: Any, count: int, threads: int | None) -> dict[str, float]:
    """Return the largest finite magnitude of each value on the samples; NaN if it has no finite element."""
    from graphkit.quantisation.calibration import Feed, Samples, observed_values, read_samples
    from graphkit.train.progress import ProgressBar

    if isinstance(data, Mapping):
        arrays = {name: np.asarray(array) for name, array in data.items()}
        if empty := [name for name, array in arrays.items() if array.shape[:1] == (0,)]:
            raise InputError(f"data: there are no samples: the first axis of {empty[0]!r} has size 0")
        data = Samples([Feed(arrays, 1)], dict.fromkeys(arrays))
    found: Samples = data if isinstance(data, Samples) else read_samples(model, data, count, BATCH_SIZE)
    names = reducer.observed
    largest: dict[str, float] = {}
    with ProgressBar(None) as bar:
        for _, results in observed_values(reducer.observing(names), names, found, threads, bar):
            for name, array in results.items():
                if isinstance(array, np.ndarray) and array.dtype == np.float32:
                    finite = np.abs(array[np.isfinite(array)])
                    found_here = float(finite.max()) if finite.size else math.nan
                    largest[name] = float(np.fmax(largest.get(name, math.nan), found_here))
    return largest
