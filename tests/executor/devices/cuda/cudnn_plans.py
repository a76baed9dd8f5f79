"""Asks cuDNN for plans for convolutions, and prints which have none: cudnn_plans.py ARCHITECTURE FOLDER."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import no_driver
from card_cases import cases_of

import graphkit as gk
from graphkit.executor.devices.cuda.launches import CardKernel, Convolution
from graphkit.executor.devices.cuda.libraries import cudnn
from graphkit.executor.devices.cuda.libraries.way import NoWay
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_launched
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import DOMAIN, registry
from graphkit.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight
from graphkit.passes.core.bind import bind


def asked_of(kernel: CardKernel | None) -> Iterator[Convolution]:
    return (work for work in (kernel.launches if kernel else ()) if isinstance(work, Convolution))


def of_samples() -> Iterator[tuple[str, Convolution]]:
    for domain, name in (("", "Conv"), ("", "ConvTranspose"), (DOMAIN, "FusedConv"), (DOMAIN, "ConvGradInput"),
                         (DOMAIN, "ConvGradWeight")):  # fmt: skip
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


def main(architecture: str, folder: str) -> None:
    no_driver.load(Path(folder), architecture)
    card = no_driver.properties(cudnn.frontend(), architecture)
    seen = dict.fromkeys([*of_samples(), *of_a_network("resnet", 64)])
    for name, work in seen:
        try:
            plan = cudnn.planned(work, device_property=card)
            assert plan.get_workspace_size() <= work.workspace
        except NoWay as error:
            sys.stdout.write(f"none: {name}: {error}\n")
    sys.stdout.write(f"asked: {len(seen)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
