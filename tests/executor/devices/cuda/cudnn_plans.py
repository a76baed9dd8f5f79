"""Asks cuDNN for plans, and prints which have none: cudnn_plans.py convolutions|attention ARCHITECTURE FOLDER."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import no_driver
from card_cases import cases_of

import graphkit as gk
from graphkit.executor.devices.cuda.launches import Attention, CardKernel, Convolution
from graphkit.executor.devices.cuda.libraries import attention, convolutions, cudnn
from graphkit.executor.devices.cuda.libraries.workspace import NotInLibrary
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_launched
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import DOMAIN, registry
from graphkit.ops.internal.channels_last import ChannelsLastConv
from graphkit.ops.internal.channels_last_gradient import ChannelsLastConvGradInput, ChannelsLastConvGradWeight
from graphkit.ops.internal.fused_attention import FusedAttention
from graphkit.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight
from graphkit.passes.core.bind import bind


def asked_of(kernel: CardKernel | None) -> Iterator[Convolution]:
    """Yield the convolutions that all GPUs support. Only some can write float32 results of float16 operands."""
    launches = (launch for way in (kernel.alternatives if kernel else ()) for launch in way.launches)
    return (work for work in launches if isinstance(work, Convolution) and work.made is work.kind)


def of_samples() -> Iterator[tuple[str, Convolution]]:
    own = ("FusedConv", "ConvGradInput", "ConvGradWeight", "ChannelsLastConv", "ChannelsLastConvGradInput",
           "ChannelsLastConvGradWeight", "ChannelsLastConvTranspose")  # fmt: skip
    for domain, name in (("", "Conv"), ("", "ConvTranspose"), *((DOMAIN, name) for name in own)):
        for case in cases_of(registry.get(domain, name)):
            for work in asked_of(case.kernel):
                yield f"{case.name} {work.kind.value}", work


def of_a_network(name: str, batch: int) -> Iterator[tuple[str, Convolution]]:
    """Its convolutions and their gradients, in every type that cards train in."""
    model = gk.models.build(name)
    shapes = {i: (batch, *t.shape[1:]) for i, t in model.input_types.items()}
    graph = bind(model.graph, shapes)
    for node in graph.nodes:
        if not isinstance(node.op, Conv):
            continue
        attrs = node.op.related()
        for kind in ("float32", "float16", "bfloat16"):
            x, w, y = (Value(TensorType(kind, v.tensor.static_shape)) for v in (*node.inputs[:2], node.output))
            for one in (Node(node.op, [x, w]), Node(ConvGradInput(**attrs), [y, w, x]),
                        Node(ConvGradWeight(**attrs), [x, y, w]),
                        Node(ConvGradWeight(**attrs), [x, y, node.inputs[1]])):  # fmt: skip
                for tf32 in (False, True) if kind == "float32" else (False,):
                    for work in asked_of(make_launched("cuda", one, KernelContext(tf32=tf32))):
                        yield f"{name} {one.op.name} {kind} {work.x} {work.w}", work


def of_a_network_with_channels_last(name: str, batch: int) -> Iterator[tuple[str, Convolution]]:
    """The same, with all that may stand behind its convolutions, as tensor cores compute them."""
    model = gk.models.build(name)
    graph = bind(model.graph, {i: (batch, *t.shape[1:]) for i, t in model.input_types.items()})
    for node in graph.nodes:
        if not isinstance(node.op, Conv):
            continue
        attrs = {**node.op.related(), "filters_last": True}
        sizes = [(s[0], *s[2:], s[1]) for s in (v.tensor.static_shape for v in (*node.inputs[:2], node.output))]
        for kind in ("float32", "float16", "bfloat16"):
            x, w, y = (Value(TensorType(kind, of)) for of in sizes)
            bias = Value(TensorType(kind, sizes[1][:1]))
            for op, operands in (
                (ChannelsLastConv(**attrs), [x, w]), (ChannelsLastConv(**attrs, activation="Relu"), [x, w, bias, y]),
                (ChannelsLastConvGradInput(**attrs), [y, w, x]), (ChannelsLastConvGradWeight(**attrs), [x, y, w]),
                (ChannelsLastConvGradWeight(**attrs), [x, y, Value(TensorType("float32", sizes[1]))]),
            ):  # fmt: skip
                kernel = make_launched("cuda", Node(op, operands), KernelContext(tf32=True))
                for work in asked_of(kernel):
                    yield f"{name} {op.name} {kind} {work.x} {work.w}", work


def of_heads() -> Iterator[tuple[str, Attention]]:
    """Attention over many sizes, in every type and layout that is the library's."""
    sizes = ((1, 1, 1, 1), (3, 3, 1, 1000), (8, 2, 1, 1000), (8, 8, 77, 100), (8, 2, 77, 100), (16, 16, 2048, 2048))
    columns = [(n, n) for n in (8, 16, 32, 40, 64, 80, 96, 128, 160, 192, 256)] + [(72, 40), (192, 128), (136, 8)]
    for (heads, groups, rows, keys), (depth, width), kind, layout, causal in itertools.product(
        sizes, columns, ("float16", "bfloat16"), ("NHLD", "NLHD"), (False, True)
    ):
        shapes = ((heads, rows, depth), (groups, keys, depth), (groups, keys, width))
        order = (0, 1, 2) if layout == "NHLD" else (1, 0, 2)
        given = [Value(TensorType(kind, (2, *(shape[axis] for axis in order)))) for shape in shapes]
        op = FusedAttention(scale=0.125, causal=causal, layout=layout, output_layout=layout)
        kernel = make_launched("cuda", Node(op, given), KernelContext())
        assert isinstance(kernel, CardKernel)
        for work in kernel.launches:
            if isinstance(work, Attention):
                yield f"{shapes} {kind} {layout} causal={causal}", work


def convolutions_of_all() -> Iterator[tuple[str, Convolution]]:
    yield from of_samples()
    yield from of_a_network("resnet", 64)
    for name in ("resnet", "mobilenetv2"):
        yield from of_a_network_with_channels_last(name, 64)


def main(what: str, architecture: str, folder: str) -> None:
    no_driver.load(Path(folder), architecture)
    card = no_driver.properties(cudnn.frontend(), architecture)
    seen = dict.fromkeys(convolutions_of_all() if what == "convolutions" else of_heads())
    for name, work in seen:
        planned = convolutions.planned if isinstance(work, Convolution) else attention.planned
        try:
            plan = planned(work, device_property=card)
            assert plan.get_workspace_size() <= work.workspace
        except NotInLibrary as error:
            sys.stdout.write(f"none: {name}: {error}\n")
    sys.stdout.write(f"asked: {len(seen)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
