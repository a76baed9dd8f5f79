"""gk.quantization_aware: train the float weights of a quantised model, and compute its integers anew."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from graphkit.errors import GraphkitWarning, InputError, UnsupportedError, UsageError, did_you_mean
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.names import Names
from graphkit.ir.types import DType, TensorType
from graphkit.loading import load
from graphkit.model import Model
from graphkit.ops import F, operator
from graphkit.ops.quant.linear import DequantizeLinear, QuantizeLinear
from graphkit.ops.quant.rounding import SCALES as FLOAT_SCALES
from graphkit.passes.core.match import array_of, is_op
from graphkit.passes.core.sweep import rewrite
from graphkit.quantisation.quantize import Quantized
from graphkit.signatures import typed
from graphkit.transforms.rewritten import evaluate_constants, message_of

if TYPE_CHECKING:
    from graphkit.onnx_io.editing.reading import Message
    from graphkit.onnx_io.quantise.layers import FloatWeight
    from graphkit.onnx_io.quantise.requantise import StoredWeight

SCALES = ("fixed", "learned")
_INTEGERS = frozenset({DType.INT2, DType.UINT2, DType.INT4, DType.UINT4, DType.INT8, DType.UINT8})


@typed("gk.quantization_aware")
def quantization_aware(
    model: Quantized | Model | str | os.PathLike[str],
    *,
    scales: str = "fixed",
    external_root: str | os.PathLike[str] | None = None,
) -> QuantizationAware:
    """Return a trainable form of a quantised model, for quantisation-aware fine-tuning.

    In the trainable model, each weight of integers is a float parameter. It passes through QuantizeLinear and
    DequantizeLinear, as the activations do. Train it with `gk.Trainer`. Then `quantized()` returns the quantised model
    with new integers. Its outputs are those of the trained model, except for the rounding of biases to int32.

    The float weights start at those of the float model if `model` is a result of `gk.quantize`, otherwise at the
    dequantised integers. Float weights of the quantised model are trained, too.

    Args:
        model: A result of `gk.quantize` with `mode="static"` or `"weights"` (without MatMulNBits); or a model or file
            in QDQ form.
        scales: "fixed": scales stay as they are. "learned": each scale of a weight or an activation is the old scale
            times exp(t), where t is a parameter `<scale>_log` that starts at 0. Its gradient is that of LSQ (Esser et
            al. 2020). Zero points stay as they are.
        external_root: A second folder from which external data of an .onnx file may be read.

    Raises:
        UnsupportedError: The model has no weights of integers that DequantizeLinear reads.
        UsageError: `scales` is unknown.
    """
    from graphkit.onnx_io.quantise.requantise import with_initializers

    if scales not in SCALES:
        raise UsageError(f"scales must be {' or '.join(SCALES)}, not {scales!r}{did_you_mean(scales, SCALES)}")
    label = model.name if isinstance(model, Model) else "model" if isinstance(model, Quantized) else os.fspath(model)
    source = model if isinstance(model, Quantized) else as_quantized(model, external_root)
    message = with_initializers(source.message, evaluate_constants, label)
    with warnings.catch_warnings():
        # Reading the original has given these warnings already.
        warnings.simplefilter("ignore", GraphkitWarning)
        net = load(message)
    return QuantizationAware(source, message, net, scales, label)


def has_quantised_weights(graph: Graph) -> bool:
    """Whether a DequantizeLinear of a graph reads a constant of 2, 4 or 8 bits."""
    return any(
        is_op(node, "DequantizeLinear")
        and node.operands[0].dtype in _INTEGERS
        and array_of(node.operands[0]) is not None
        for node in graph.nodes
    )


def as_quantized(
    model: Model | str | os.PathLike[str], external_root: str | os.PathLike[str] | None = None
) -> Quantized:
    """Return a model that is quantised already as a result of `gk.quantize`, without its float weights."""
    from graphkit.onnx_io.editing.reading import contents
    from graphkit.onnx_io.quantise.requantise import quantised_layers

    message = message_of(model, external_root)
    found = contents(message)
    mode = "static" if "QuantizeLinear" in found.nodes else "weights"
    return Quantized(message, message, found, found, mode, tuple(quantised_layers(message)))


class QuantizationAware:
    """A trainable form of a quantised model. `quantization_aware` returns it.

    Attributes:
        model: The trainable model. Its inputs and outputs are those of the quantised model.
        weights: Names of the parameters that are quantised.
        scales: Names of the parameters that determine scales; empty if scales are fixed.
    """

    def __init__(self, source: Quantized, message: Message, net: Model, scales: str, label: str):
        self._source, self._message, self._label = source, message, label
        names = {tensor.name for tensor in message.graph.initializer}
        found = _Opened(net.graph, names, source.floats)
        if not found.weights:
            raise UnsupportedError(
                f"{label}: nothing to train: no DequantizeLinear of the top-level graph reads a weight of 2, 4 or 8 "
                "bits. Quantise the model first, in mode static, or in mode weights without MatMulNBits (--standard)"
            )
        self._stored, self._biases, self._parameters = found.weights, found.biases, found.parameters
        self._base = found.learned_scales() if scales == "learned" else {}
        graph, arrays, self._logs = found.graph(self._base)
        self.model = Model.from_graph(graph, {**net.params.entries(), **arrays})
        self._others = [name for name in net.params if name in names]
        self.weights = tuple(dict.fromkeys(found.parameters[name] for name in found.weights))
        self.scales = tuple(self._logs.values())

    def quantized(self) -> Quantized:
        """Return the quantised model with integers of the present parameters of `model`.

        If the trainer has moving averages, call this in `with trainer.averaged():`.

        Raises:
            InputError: A parameter is NaN or infinite.
        """
        from graphkit.onnx_io.editing.reading import contents
        from graphkit.onnx_io.quantise.requantise import Requantiser

        params = self.model.params
        for name in (*self._parameters.values(), *self._others, *self.scales):
            array = np.asarray(params[name])
            if array.dtype.kind in "fV" and not np.isfinite(array.astype(np.float32)).all():
                raise InputError(f"{self._label}: parameter {name!r} contains NaN or infinity after training")
        floats = {name: np.asarray(params[parameter]) for name, parameter in self._parameters.items()}
        scales = {
            name: (base.astype(np.float32) * np.exp(np.asarray(params[self._logs[name]]))).astype(base.dtype)
            for name, base in self._base.items()
        }
        others = {name: np.asarray(params[name]) for name in self._others}
        message = Requantiser(self._message, self._stored, self._biases).write(floats, scales, others)
        return replace(self._source, message=message, after=contents(message), floats={})


class _Opened:
    """The quantised weights of a graph, and the graph in which they are parameters.

    Attributes:
        weights: Weights of 2, 4 and 8 bits, by the name of their integers.
        biases: The same for int32.
        parameters: The name of the parameter of each of them.
    """

    def __init__(self, graph: Graph, initializers: set[str], floats: Mapping[str, FloatWeight]):
        self._graph, self._initializers, self._floats = graph, initializers, floats
        self.weights: dict[str, StoredWeight] = {}
        self.biases: dict[str, StoredWeight] = {}
        self.parameters: dict[str, str] = {}
        self._arrays: dict[str, np.ndarray] = {}
        self._nodes: set[Node] = set()
        self._names = Names((*graph.input_names, *graph.output_names))
        # The parameter of each float weight that several initialisers of integers share.
        self._shared: dict[str, str] = {}
        readers: dict[Value, list[Node]] = {}
        for node in graph.nodes:
            for value in node.operands:
                readers.setdefault(value, []).append(node)
        self._readers = readers
        for value, nodes in readers.items():
            if isinstance(value.type, TensorType):
                self._add(value, nodes)

    def _add(self, value: Value, nodes: Sequence[Node]) -> None:
        """Add the integers `value` that `nodes` read, if they are a weight or a bias."""
        from graphkit.onnx_io.quantise.requantise import StoredWeight, spread

        numbers = array_of(value)
        name = value.name or ""
        if numbers is None or name not in self._initializers or any(n.inputs[0] is not value for n in nodes):
            return
        is_bias = value.dtype is DType.INT32
        if not (is_bias or value.dtype in _INTEGERS) or not all(is_op(n, "DequantizeLinear") for n in nodes):
            return
        scale, zero = nodes[0].operands[1], (*nodes[0].inputs, None, None)[2]
        op = operator(nodes[0], DequantizeLinear)
        alike = all(n.inputs[1:] == nodes[0].inputs[1:] and n.op == nodes[0].op for n in nodes)
        if not alike or scale.dtype not in FLOAT_SCALES or scale.name not in self._initializers:
            return
        steps, shift = array_of(scale), None if zero is None else array_of(zero)
        if steps is None or (zero is not None and (shift is None or zero.name not in self._initializers)):
            return
        if is_bias and shift is not None and shift.any():
            return
        stored = StoredWeight(name, scale.name or "", None if zero is None else zero.name, op.axis, op.block_size)
        known = None if is_bias else self._floats.get(name)
        if known is not None and known.array.shape == numbers.shape:
            array, title = known.array, known.name
        else:
            wide = numbers.astype(np.float32)
            wide = wide if shift is None else wide - spread(shift, stored, numbers.shape).astype(np.float32)
            array = (wide * spread(steps, stored, numbers.shape).astype(np.float32)).astype(steps.dtype)
            title, known = name.removesuffix("_quantized"), None
        if known is None or title not in self._shared:
            parameter = self._names.take(title)
            self._arrays[parameter] = array
            if known is not None:
                self._shared[title] = parameter
        else:
            parameter = self._shared[title]
        (self.biases if is_bias else self.weights)[name] = stored
        self.parameters[name] = parameter
        self._nodes.update(nodes)

    def learned_scales(self) -> dict[str, np.ndarray]:
        """Return the scales by name that only quantisation and dequantisation of other types than int32 read."""
        found = {}
        for value, nodes in self._readers.items():
            array = array_of(value)
            if array is None or value.name not in self._initializers or array.dtype.kind != "f":
                continue
            reads = [_reads_scale(node, value) for node in nodes]
            if all(reads):
                found[value.name or ""] = array
        return found

    def graph(self, scales: Mapping[str, np.ndarray]) -> tuple[Graph, dict[str, np.ndarray], dict[str, str]]:
        """Return the graph with parameters, their arrays, and the parameter of each of `scales` by its name."""
        parameters = {
            name: Value(TensorType(DType.of(array.dtype), array.shape), name, role="parameter")
            for name, array in self._arrays.items()
        }
        arrays, logs = dict(self._arrays), {name: self._names.take(f"{name}_log") for name in scales}
        exponents = {
            log: Value(TensorType(DType.FLOAT32, scales[name].shape), log, role="parameter")
            for name, log in logs.items()
        }
        arrays |= {log: np.zeros(scales[name].shape, np.float32) for name, log in logs.items()}

        def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
            if is_op(node, "Constant") and node.output.name in logs:
                factor = F.exp(exponents[logs[node.output.name]])
                wide = F.mul(F.cast(node.output, to="float32"), factor)
                return [F.cast(wide, to=node.output.dtype)]
            if node not in self._nodes:
                return None
            numbers = node.operands[0]
            parameter = parameters[self.parameters[numbers.name or ""]]
            if numbers.dtype is DType.INT32:
                return [parameter]
            op = operator(node, DequantizeLinear)
            first = QuantizeLinear(axis=op.axis, block_size=op.block_size, output_dtype=numbers.dtype)
            rounded = Node(first, [parameter, *operands[1:]]).output
            return node.rebuilt([rounded, *operands[1:]]).outputs

        opened = rewrite(self._graph, rule, extra_inputs=[*parameters.values(), *exponents.values()])
        return opened, arrays, logs


def _reads_scale(node: Node, value: Value) -> bool:
    """Whether a node quantises with `value` as its scale, and reads it nowhere else."""
    if not is_op(node, "QuantizeLinear", "DequantizeLinear"):
        return False
    counts = Counter(map(id, node.operands))
    numbers = node.output if is_op(node, "QuantizeLinear") else node.operands[0]
    return (
        node.operands[1] is value
        and counts[id(value)] == 1
        and numbers.dtype in _INTEGERS | {DType.INT16, DType.UINT16}
    )
