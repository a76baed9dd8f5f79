"""Each operator, and its gradient, has the bits of Python in the C library, unless a step needs Python."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from cases import each_case
from saved_programs import check

import graphkit
from graphkit.autodiff import gradient
from graphkit.checks.samples import Case, dtypes_of, make_case, samples_of
from graphkit.errors import MissingGradient, UnsupportedError
from graphkit.executor.devices.cpu import native
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.saved_program import save_program
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import FLOATS, DType, TensorType
from graphkit.ops import registry

# Operators whose kernels Python makes one by one. The kernels of most others are made from a description of the node.
_GRADIENTS = """
    ConvGradInput ConvGradWeight ChannelsLastConvGradInput ChannelsLastConvGradWeight AveragePoolGrad MaxPoolGrad
    ChannelsLastAveragePoolGrad ChannelsLastMaxPoolGrad ChannelsLastMaxPoolIndices LayerNormGrad RMSNormGrad
    GroupNormGrad BatchNormGrad ChannelsLastBatchNorm ChannelsLastBatchNormGrad SoftmaxCrossEntropyGrad
    SoftmaxCrossEntropyWithGrad RNNRecurrenceGrad GRURecurrenceGrad LSTMRecurrenceGrad GatherGrad TableUpdate
"""
# Operators whose gradients have those kernels, also depthwise and of half precision.
_LAYERS = """
    Conv ChannelsLastConv CausalConvWithState AveragePool MaxPool ChannelsLastMaxPool LayerNormalization
    RMSNormalization GroupNormalization InstanceNormalization BatchNormalization RNN GRU LSTM Gather GridSample
    SoftmaxCrossEntropyLoss Attention Resize LinearSample RoiAlign
"""
GRADIENTS, LAYERS = frozenset(_GRADIENTS.split()), frozenset(_LAYERS.split())


class Saved(NamedTuple):
    """A sample of an operator: the operator itself, or its gradient."""

    case: Case
    differentiated: bool

    @property
    def name(self) -> str:
        return f"{self.case.name}-gradient" if self.differentiated else self.case.name


def is_float(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype in FLOATS


def cases() -> list[Saved]:
    found = []
    for cls in registry:
        listed = cls.name in GRADIENTS or cls.name in LAYERS
        if not listed and (cls.grad is None or not samples_of(cls)):
            continue
        for number, sample in enumerate(samples_of(cls) if listed else samples_of(cls)[:1]):
            allowed = dtypes_of(cls, sample)
            wanted = (DType.FLOAT32, DType.BFLOAT16) if listed and number == 0 else (DType.FLOAT32,)
            found += [Saved(make_case(cls, number, t), cls.name not in GRADIENTS) for t in wanted if t in allowed]
    return found


def graph_of(saved: Saved) -> tuple[Graph, dict[str, np.ndarray]]:
    graph = saved.case.graph()
    feeds = dict(zip(map(graph.name_of, graph.inputs), saved.case.feeds(), strict=True))
    if not saved.differentiated:
        return graph, feeds
    wrt, outputs = list(filter(is_float, graph.inputs)), list(filter(is_float, graph.outputs))
    if not wrt or not outputs or not all(y.tensor.is_static for y in outputs):
        return Graph(graph.inputs, []), feeds
    seeds = [Value(y.type, f"dy{i}") for i, y in enumerate(outputs)]
    rng = np.random.default_rng(1)
    for seed in seeds:
        feeds[seed.name] = rng.standard_normal(seed.tensor.static_shape).astype(seed.dtype.numpy)
    try:
        return Graph([*graph.inputs, *seeds], gradient(outputs, wrt, seeds, allow_unused=True)), feeds
    except (MissingGradient, UnsupportedError):  # updates of an optimizer, trees
        return Graph(graph.inputs, []), feeds


@each_case(
    cases(), group=lambda s: "gradients" if s.differentiated else "operators",
    full=lambda s: s.case.number > 0 or s.case.op.name not in GRADIENTS | LAYERS,
)  # fmt: skip
def test_c_library_has_the_bits_of_python(saved, tmp_path_factory):
    graph, feeds = graph_of(saved)
    if not graph.outputs:
        return
    path = tmp_path_factory.getbasetemp() / "operator.gkp"
    message = ""
    try:
        save_program({"graph": graph, "params": ParamStore({})}, path, [{}], [feeds])  # compares the bits
    except UnsupportedError as error:
        message = str(error)
    # Every native kernel can be saved.
    assert "kernels of the class" not in message


def test_each_class_of_kernels_has_a_recipe():
    """Modules of the CPU make kernels of these classes. Each can be made again by libgraphkit.so."""
    folder = Path(graphkit.__file__).parent / "executor" / "devices" / "cpu"
    used = {
        part.attr
        for path in folder.glob("*.py")
        for part in ast.walk(ast.parse(path.read_text()))
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "native"
    }
    kinds = (native.Kernel, native.KernelFactory)
    classes = {name for name in used if isinstance(getattr(native, name, None), type)}
    made = {name for name in classes if issubclass(getattr(native, name), kinds)}
    assert len(made) > 30
    assert made - {"KernelFactory"} <= set(native.recipe_names())


@pytest.mark.parametrize("name", ["lenet", "text_cnn", pytest.param("lstm_lm", marks=pytest.mark.full)])
def test_gradients_of_networks(name, tmp_path):
    options, size = {"lenet": ({}, 2), "text_cnn": ({"vocab": 30}, 5), "lstm_lm": ({"vocab": 20}, 3)}[name]
    net = graphkit.grad(graphkit.models.build(name, **options), with_outputs=True)
    shapes = {n: tuple(d if isinstance(d, int) else size for d in t.shape) for n, t in net.input_types.items()}
    check(net, tmp_path / "gradients.gkp", shapes)
