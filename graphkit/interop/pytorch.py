"""gk.from_torch: a Model from a PyTorch module, with PyTorch's names, roles and running statistics."""

from __future__ import annotations

import importlib
import json
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.distribution import how_to_install
from graphkit.errors import GraphkitWarning, InputError, UnsupportedError
from graphkit.executor.run.state_dict import TIED, array_of_tensor
from graphkit.interop import torch_export
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.names import unique_names
from graphkit.ir.types import TensorType, dtype_of
from graphkit.loading import load
from graphkit.model import Model
from graphkit.named_tuples import NamedTuple
from graphkit.onnx_io.initializers import ATTRIBUTES_KEY, ROLES_KEY
from graphkit.ops import F
from graphkit.passes.core.sweep import rewrite
from graphkit.passes.training.to_training import PYTORCH, RUNNING_STATISTICS, to_inference
from graphkit.signatures import shown, typed


@typed("gk.from_torch")
def from_torch(module: Any, example_inputs: Any, dynamic_shapes: Any = None, train: bool = False) -> Model:
    """Return a Model that computes what a PyTorch module computes. It has a copy of the parameters.

    The module is exported by `torch.onnx.export` and is not changed. Parameters and persistent buffers have the names
    of `module.state_dict()`. Parameters that do not require gradients are not trained, buffers have the role "state",
    and a tensor with several names is stored once, under its first name. Gradients stop at `detach()` and
    `torch.no_grad()`. A training step updates running statistics as PyTorch does, with the unbiased variance.

    Args:
        module: A torch.nn.Module.
        example_inputs: A tensor, a tuple with the arguments of `forward`, or a dict of arguments by name. Their values
            do not matter, except for arguments that are not tensors.
        dynamic_shapes: The axes whose sizes vary, as for torch.export; a name such as `{"x": {0: "N", 1: "T"}}` is
            allowed for each. By default, only the first axis of each tensor varies, under the name N.
        train: Export the training mode of the module. The Model still computes what evaluation mode computes, but it
            contains dropout, which a gk.Trainer applies. If False, dropout is left out.

    Returns:
        The Model. Its inputs have the names of the arguments of `forward`, its outputs the keys of the structure that
        `forward` returns, or else `output`, `output_0`, `output_1`, ...

    Raises:
        MissingDependency: PyTorch or onnxscript, which its exporter needs, is not installed.
        InputError: `module` or `example_inputs` is something else.
        UnsupportedError: The module cannot be exported, or `train` is True and training would differ from PyTorch's.
            The message contains the reason.
        UsageError: By default, the first axis is not the batch.
    """
    torch_export.require("torch", "onnxscript", task="gk.from_torch", command=how_to_install("pytorch"))
    torch: Any = importlib.import_module("torch")
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"from_torch: module must be a torch.nn.Module, not {shown(module)}")
    _check_training(module, error=train)
    stored = _stored(module)
    export = torch_export.export(module, example_inputs, dynamic_shapes, train)
    if train and export.draws:
        evaluated = torch_export.export(module, example_inputs, dynamic_shapes, False)
        if evaluated.draws != export.draws:
            raise UnsupportedError(
                f"from_torch: {type(module).__name__} draws random numbers in training that are not those of "
                "torch.nn.Dropout, such as Dropout2d, AlphaDropout, StochasticDepth or dropout in place. The exported "
                "network would draw them in evaluation, too. Export with train=False to leave them out"
            )
    model = _imported(export.program, stored)
    graph = _with_stopped_gradients(to_inference(model.graph) if train else model.graph, export.detached)
    graph, arrays = _with_names(graph, model, stored)
    names = unique_names(export.outputs)
    if len(names) == len(graph.outputs):
        graph = graph.replace(output_names=names)
    meta = {RUNNING_STATISTICS: PYTORCH} | ({TIED: json.dumps(stored.tied)} if stored.tied else {})
    return Model.from_graph(graph, arrays, name=type(module).__name__, meta=meta)


class _Stored(NamedTuple):
    """The parameters and buffers of a module.

    Attributes:
        tensors: By name. A tensor with several names has the first one.
        roles: "parameter", "state" or "constant" (a buffer that is not persistent), by each name.
        frozen: The names of parameters that do not require gradients.
        tied: The first name of a tensor, by its other names.
    """

    tensors: dict[str, Any]
    roles: dict[str, str]
    frozen: tuple[str, ...]
    tied: dict[str, str]


def _stored(module: Any) -> _Stored:
    """Return the parameters and buffers of a module, in the order of its state_dict."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = dict(module.named_buffers(remove_duplicate=False))
    persistent = module.state_dict(keep_vars=True)
    order = [n for n in persistent if n in parameters or n in buffers]
    first: dict[int, str] = {}
    tensors, roles, tied = {}, {}, {}
    for name in [*order, *(n for n in buffers if n not in persistent)]:
        tensor = parameters[name] if name in parameters else buffers[name]
        roles[name] = "parameter" if name in parameters else "state" if name in persistent else "constant"
        known = first.setdefault(id(tensor), name)
        if known != name:
            if known in tensors:
                tied[name] = known
        elif roles[name] != "constant":
            tensors[name] = tensor.detach()
    frozen = tuple(name for name, tensor in parameters.items() if not tensor.requires_grad and name not in tied)
    return _Stored(tensors, roles, frozen, tied)


def _check_training(module: Any, error: bool) -> None:
    """Raise UnsupportedError, or warn, if a layer trains in PyTorch in a way that ONNX cannot express.

    error: whether to raise. Without it, only layers that also differ without dropout are reported, as a warning.
    """
    torch: Any = importlib.import_module("torch")
    found = []
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.Embedding) and (part.padding_idx is not None or part.scale_grad_by_freq):
            option = "padding_idx, whose row gets no gradient" if part.padding_idx is not None else "scale_grad_by_freq"
            found.append(f"{name or 'the module'} (Embedding) has {option} in PyTorch")
        if error and isinstance(part, torch.nn.RNNBase) and part.dropout and part.num_layers > 1:
            found.append(f"{name or 'the module'} ({type(part).__name__}) has dropout between its layers")
    if not found:
        return
    text = f"from_torch: {'; '.join(found)}. The exporter leaves this out, so training differs from PyTorch's"
    if error:
        raise UnsupportedError(f"{text}. Export with train=False if this does not matter")
    warnings.warn(text, GraphkitWarning, stacklevel=4)


def _imported(program: Any, stored: _Stored) -> Model:
    """Return the exported program as a Model, in which parameters and buffers have the roles of the module."""
    ir = program.model
    names = list(ir.graph.initializers)
    roles = {name: stored.roles.get(name, "constant") for name in names}
    ir.metadata_props[ROLES_KEY] = json.dumps(roles)
    ir.metadata_props[ATTRIBUTES_KEY] = json.dumps({
        name: {"trainable": False} for name in names if stored.tied.get(name, name) in stored.frozen
    })  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="graphkit-") as folder:
        path = Path(folder) / "module.onnx"
        program.save(path)
        return load(path)


def _with_stopped_gradients(graph: Graph, detached: frozenset[str]) -> Graph:
    """Return the graph with StopGradient instead of the Identity nodes of these names."""

    def rule(node: Node, operands: Any) -> Any:
        return [F.stop_gradient(operands[0], name=node.name)] if node.name in detached else None

    return rewrite(graph, rule, at=("Identity",))


def _with_names(graph: Graph, model: Model, stored: _Stored) -> tuple[Graph, Mapping[str, Any]]:
    """Return the graph with all parameters and buffers of the module, in its order, and their arrays.

    Tensors that `forward` does not read are inputs that no node reads.
    """
    present: dict[str, Value] = {}
    table: dict[Value, Value] = {}
    data = [v for v in graph.inputs if v.role not in ("parameter", "state")]
    for value in graph.inputs:
        if value.role in ("parameter", "state"):
            name = graph.name_of(value)
            name = stored.tied.get(name, name)
            present[name] = table[value] = value.like(name=name)
    arrays = {name: np.array(array_of_tensor(name, tensor)) for name, tensor in stored.tensors.items()}
    for name, array in arrays.items():
        if name not in present:
            attrs = {"trainable": False} if name in stored.frozen else {}
            kind = TensorType(dtype_of(array.dtype), array.shape)
            present[name] = Value(kind, name, role=stored.roles[name], attrs=attrs)
    named = rewrite(graph, lambda node, operands: None, inputs=table)
    named = named.replace(inputs=[*data, *(present[name] for name in arrays)], output_names=graph.output_names)
    return named, arrays
