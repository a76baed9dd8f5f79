"""gk.quantize: quantise a model after training."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graphkit.errors import GraphkitWarning, UnsupportedError, UsageError, did_you_mean
from graphkit.ir.types import DType, TensorType
from graphkit.loading import load
from graphkit.model import Model
from graphkit.onnx_io.quantise.scales import GRIDS
from graphkit.quantisation.ranges import METHODS, collectors
from graphkit.signatures import typed
from graphkit.text import listed
from graphkit.transforms.rewritten import Rewritten, evaluate_constants, message_of

if TYPE_CHECKING:
    from graphkit.onnx_io.editing.reading import Message
    from graphkit.onnx_io.quantise.dynamic import DynamicQuantiser
    from graphkit.onnx_io.quantise.layers import Choice, FloatWeight, Kept, Layers
    from graphkit.onnx_io.quantise.static import StaticQuantiser
    from graphkit.onnx_io.quantise.weights import WeightQuantiser

MODES = ("static", "dynamic", "weights")
PERCENTILE, SAMPLES, BATCH_SIZE, BLOCK_SIZE = 99.999, 128, 16, 32

# Oldest opsets of the operators that each form needs: one scale for each channel, scales of float16, blocks.
_PER_CHANNEL, _DYNAMIC, _FLOAT16, _BLOCKS = 13, 11, 19, 21


@dataclass(frozen=True)
class Quantized(Rewritten):
    """A quantised model.

    Attributes:
        mode: "static", "dynamic" or "weights".
        layers: Quantised convolutions and matrix products: (name, operator) of each node.
        kept: Convolutions and matrix products that stay in float: name, operator and reason.
        between: In static mode, names of the nodes between layers that are quantised, too.
        notes: Sentences about the model, for example that its opset was raised.
        floats: Float weights by the name of the initialiser that contains their integers. `quantization_aware` starts
            from them.
    """

    mode: str = "static"
    layers: tuple[tuple[str, str], ...] = ()
    kept: tuple[Kept, ...] = ()
    between: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    floats: Mapping[str, FloatWeight] = field(default_factory=dict, repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the layers, and the content before and after, as plain data, for JSON."""
        return {
            "mode": self.mode,
            "layers": [{"name": name, "operator": operator} for name, operator in self.layers],
            "kept": [kept._asdict() for kept in self.kept],
            "between": list(self.between),
            "notes": list(self.notes),
            **super().as_dict(),
        }


@dataclass(frozen=True)
class _Settings:
    """The arguments of `quantize` that every form may need."""

    mode: str
    method: str
    percentile: float
    activations: str
    per_channel: bool
    bits: int
    block_size: int | None
    standard: bool
    samples: int
    batch_size: int
    threads: int | None
    progress: bool | None

    def check(self, data: Any) -> None:
        """Raise UsageError for a value that does not exist, or that the mode does not have."""
        for name, given, known in (
            ("mode", self.mode, MODES), ("method", self.method, METHODS), ("activations", self.activations, GRIDS),
        ):  # fmt: skip
            if given not in known:
                raise UsageError(f"{name} must be {', '.join(known)}, not {given!r}{did_you_mean(given, known)}")
        if self.bits not in (4, 8):
            raise UsageError(f"bits (--bits) must be 4 or 8, not {self.bits}")
        if self.mode != "weights" and (self.bits != 8 or self.block_size is not None or self.standard):
            raise UsageError('bits, block_size and standard are only for mode="weights" (--mode weights)')
        block = self.block_size
        if block is not None and (block < 16 or block & (block - 1)):
            raise UsageError(f"block_size (--block-size) must be a power of 2 of at least 16, not {block}")
        if self.mode == "static" and data is None:
            raise UsageError(
                "static quantisation needs data for calibration: give data (--data). Without data, mode can be "
                '"dynamic" or "weights" (--mode)'
            )
        if self.mode != "static" and data is not None:
            raise UsageError(f"mode={self.mode!r} does not use data: leave it out")

    @property
    def block(self) -> int | None:
        """Terms of a block; None if weights have no blocks."""
        return BLOCK_SIZE if self.bits == 4 and self.block_size is None else self.block_size


@typed("gk.quantize")
def quantize(
    model: Model | str | os.PathLike[str],
    data: Any = None,
    *,
    mode: str = "static",
    method: str = "minmax",
    percentile: float = PERCENTILE,
    activations: str = "uint8",
    per_channel: bool = True,
    bits: int = 8,
    block_size: int | None = None,
    standard: bool = False,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    samples: int = SAMPLES,
    batch_size: int = BATCH_SIZE,
    threads: int | None = None,
    external_root: str | os.PathLike[str] | None = None,
    progress: bool | None = False,
) -> Quantized:
    """Quantise a trained model: convolutions and matrix products with integers, or weights of fewer bits.

    - `mode="static"`: QDQ form. Activations are quantised with scales that are calibrated on `data`. Layers, and the
      operators between them, run on 8-bit integers.
    - `mode="dynamic"`: MatMul, Gemm and Conv become MatMulInteger and ConvInteger. Activations get their scale in each
      run.
    - `mode="weights"`: layers compute in float. Their weights are stored with 8 bits (DequantizeLinear), or in blocks
      of 4 or 8 bits (MatMulNBits).

    Batch normalisation is folded into layers first, except with `mode="weights"`. All other nodes, names and metadata
    of an ONNX file stay. If the opset of the file is too old, the model is written with opset 21.

    Args:
        model: A Model; or an ONNX or JSON file, or a run folder.
        data: Samples for calibration, for `mode="static"`: a data set or files as `gk.evaluate` and `gk.predict` take
            them, an array, or a dict of arrays by input name. Targets are not used.
        mode: See above.
        method: How the range of an activation is found: "minmax", "entropy" (smallest KL divergence) or "percentile".
        percentile: For `method="percentile"`: percentage of the values that the range contains.
        activations: "uint8" (asymmetric), or "int8" (symmetric).
        per_channel: Whether each output channel of a weight has a scale. False: one scale for each weight.
        bits: For `mode="weights"`: bits of a weight, 4 or 8.
        block_size: For `mode="weights"`: number of weights that share a scale, a power of 2 of at least 16. Default: 32
            for 4 bits, and no blocks for 8 bits. Only MatMul and Gemm have blocks.
        standard: For `mode="weights"`: write blocks with DequantizeLinear of opset 21, which is standard ONNX, and not
            with MatMulNBits of com.microsoft.
        include: Patterns of names or operators of the layers to quantise, such as "layer1*" or "Conv". Default: all.
        exclude: Patterns of names or operators of nodes that stay in float.
        samples: Largest number of samples for calibration. From a data set in memory, they are evenly spaced.
        batch_size: Samples per batch of the calibration.
        threads: Number of CPU threads of the calibration.
        external_root: A second folder from which external data of an .onnx file may be read.
        progress: Whether to show a progress bar on stderr. None: only on a terminal.

    Returns:
        The quantised model, with the layers that were quantised, and those that were not.

    Raises:
        UnsupportedError: No layer can be quantised. The message says why. Or: the model contains training information.
        InputError: The data do not fit the model, or a value is NaN or infinite during calibration.
        UsageError: An argument is wrong, or a pattern fits no node.
    """
    from graphkit.onnx_io.quantise.layers import Choice

    settings = _Settings(
        mode, method, percentile, activations, per_channel, bits, block_size, standard, samples, batch_size, threads,
        progress,
    )  # fmt: skip
    settings.check(data)
    choice = Choice(tuple(include), tuple(exclude))
    label = model.name if isinstance(model, Model) else os.fspath(model)
    original = message_of(model, external_root)
    with warnings.catch_warnings():
        # Reading the original has given these warnings already.
        warnings.simplefilter("ignore", GraphkitWarning)
        return _quantized(original, data, settings, choice, label)


def _quantized(original: Message, data: Any, settings: _Settings, choice: Choice, label: str) -> Quantized:
    from graphkit.onnx_io.editing.reading import contents
    from graphkit.onnx_io.quantise.layers import functions_with_layers

    source, notes = _raised(original, settings)
    if inside := functions_with_layers(source):
        notes = (*notes, f"layers inside functions stay in float: {listed(inside, len(inside))}")
    quantiser: StaticQuantiser | DynamicQuantiser | WeightQuantiser
    between: Sequence[str] = ()
    if settings.mode == "static":
        from graphkit.onnx_io.quantise.static import StaticQuantiser

        quantiser = StaticQuantiser(
            source,
            evaluate_constants,
            choice,
            grid=GRIDS[settings.activations],
            per_channel=settings.per_channel,
            label=label,
        )
        _require_layers(quantiser.layers, label)
        message = quantiser.write(_ranges(quantiser, load(source), data, settings))
        between = quantiser.names_between()
    elif settings.mode == "dynamic":
        from graphkit.onnx_io.quantise.dynamic import DynamicQuantiser

        quantiser = DynamicQuantiser(source, evaluate_constants, choice, per_channel=settings.per_channel, label=label)
        message = quantiser.write()
    else:
        from graphkit.onnx_io.quantise.weights import WeightQuantiser

        quantiser = WeightQuantiser(
            source, evaluate_constants, choice, bits=settings.bits, block=settings.block, standard=settings.standard,
            per_channel=settings.per_channel, label=label,
        )  # fmt: skip
        message = quantiser.write()
    found = quantiser.layers
    _require_layers(found, label)
    return Quantized(
        original, message, contents(original), contents(message), settings.mode, tuple(found.names()),
        tuple(found.kept), tuple(between), notes, quantiser.floats,
    )  # fmt: skip


def _require_layers(layers: Layers, label: str) -> None:
    """Raise UnsupportedError if no layer can be quantised."""
    if layers.found or layers.products:
        return
    if not layers.kept:
        raise UnsupportedError(
            f"{label}: nothing to quantise: the model has no Conv, ConvTranspose, Gemm or MatMul in float"
        )
    reasons: dict[str, list[str]] = {}
    for kept in layers.kept:
        reasons.setdefault(kept.reason, []).append(f"{kept.name} ({kept.operator})")
    text = "; ".join(f"{listed(names, len(names))}: {reason}" for reason, names in reasons.items())
    raise UnsupportedError(f"{label}: nothing could be quantised. {text}")


def _ranges(quantiser: StaticQuantiser, model: Model, data: Any, settings: _Settings) -> Mapping[str, Any]:
    """Run the calibration."""
    from graphkit.quantisation.calibration import Calibration, Samples, read_samples
    from graphkit.train.progress import ProgressBar

    make = collectors(settings.method, settings.percentile)
    if not isinstance(data, Samples):
        data = read_samples(model, data, settings.samples, settings.batch_size)
    with ProgressBar(settings.progress) as bar:
        return Calibration(quantiser, data, make, settings.threads).ranges(bar)


def _raised(model: Message, settings: _Settings) -> tuple[Message, tuple[str, ...]]:
    """Return a model of an opset that has the operators of the form, and a note if it was converted."""
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)
    needed = _DYNAMIC if settings.mode == "dynamic" else _PER_CHANNEL
    if settings.mode == "weights" and settings.block is not None:
        needed = _BLOCKS if settings.standard else 1
    if opset >= max(needed, _FLOAT16):
        return model, ()
    net = load(model)
    if settings.mode != "dynamic" and needed > 1 and _has_float16(net):
        needed = max(needed, _FLOAT16)
    if opset >= needed:
        return model, ()
    raised = net.to_onnx()
    version = next(entry.version for entry in raised.opset_import if entry.domain in ("", "ai.onnx"))
    return raised, (f"the opset is {version}, because quantisation needs opset {needed} or newer; it was {opset}",)


def _has_float16(net: Model) -> bool:
    """Whether an input, a parameter or a result of a node has the type float16."""
    outputs = (value for node in net.graph.nodes for value in node.outputs)
    kinds = [value.type for value in (*net.graph.inputs, *outputs)]
    return any(isinstance(kind, TensorType) and kind.dtype is DType.FLOAT16 for kind in kinds)
