"""Every network of the zoo with its loss and all its gradients as one ONNX file of standard operators.

ONNX Runtime computes the loss, the outputs, each gradient and the new running statistics that graphkit computes.
"""

from __future__ import annotations

import numpy as np
import pytest
from zoo_training import (
    SMALL,
    WHOLE,
    condition,
    feeds_of,
    is_core,
    is_large,
    joint_error,
    label,
    relative_errors,
    run,
    shuffle,
    training_graph,
)

import graphkit as gk
from graphkit.onnx_io.compare import OnnxRuntimeModel

NEWEST = 26  # that ONNX Runtime 1.31 takes


# Recurrent networks for text, with sequences of any length, are compared in their own tests.
TEXT = {"lstm_lm", "seq2seq", "text_classifier"}


def test_every_network_is_here():
    assert {name for name, _ in SMALL} == {name for name, _ in WHOLE} == set(gk.models.names()) - TEXT


# Networks with many elements at rectifiers and max pools. Rounding decides some of them in every batch.
KINKED = {
    "alexnet",
    "densenet",
    "gan",
    "googlenet",
    "inception_bn",
    "mobilenetv2",
    "mobilenetv3",
    "resnet",
    "ssd",
    "unet",
    "vgg",
}


def training_graph_of(name, options):
    net = gk.models.build(name, **options)
    shuffle(net)
    condition(net)
    return net, training_graph(name, net)


def exported(net, graph, opset):
    proto = gk.Model.from_graph(graph, dict(net.params)).to_onnx(opset=opset, with_updates=True)
    assert {node.domain for node in proto.graph.node} == {""}
    assert proto.opset_import[0].version == opset
    reference = OnnxRuntimeModel(proto, threads=2)
    assert {f"{n}_grad" for n in net.trainable} <= set(reference.outputs)
    return reference


def disagreements(ours, theirs, tolerance, whole=1e-5):
    """Return the errors above the tolerance: of tensors, of the gradient as one vector, of the loss and the outputs."""
    errors = relative_errors(ours, theirs)
    limits = {n: tolerance if n.endswith(("_grad", "_updated")) else 1e-5 for n in errors}
    errors["whole gradient"], limits["whole gradient"] = joint_error(ours, theirs), whole
    return {n: e for n, e in errors.items() if not e <= limits[n]}


CASES = [
    pytest.param(
        name, options, opset, id=f"{name}-{label(options)}-{opset}",
        marks=[] if is_core(name, options) or (opset == NEWEST and not is_large(name, options)) else pytest.mark.full,
    )
    for name, options in SMALL
    for opset in (17, NEWEST)
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "opset"), CASES)
def test_loss_gradients_and_statistics_agree(name, options, opset):
    """In one batch of five at least, and in the first one mostly.

    Rounding decides for a rectifier at its kink and for the maximum of a pool between equals, and one such element
    moves every gradient before it. That is rare, and no batch agrees when a formula is wrong.
    """
    net, graph = training_graph_of(name, options)
    reference = exported(net, graph, opset)
    # Statistics over few elements are ill-conditioned. Through dozens of normalisations one tensor may still be off by
    # more than the gradient as a whole.
    batch, tolerance = (24, 1e-4) if any(n.endswith("running_mean") for n in net.params) else (4, 1e-5)
    found = []
    for seed in range(5):
        feeds = feeds_of(name, net, batch, seed)
        ours = run(graph, net.params, feeds)
        found.append(disagreements(ours, reference.run(feeds), tolerance))
        if not found[-1]:
            return
    pytest.fail(str(min(found, key=len)))


@pytest.mark.full
@pytest.mark.parametrize(("name", "options"), WHOLE, ids=label)
@pytest.mark.long
def test_at_the_sizes_of_the_papers(name, options):
    net, graph = training_graph_of(name, options)
    # One of the largest images: the small networks have several.
    feeds = feeds_of(name, net, 1 if name in ("ssd", "unet", "vgg") else 2)
    limits = (np.inf, 1e-2) if name in KINKED else (1e-5, 1e-5)
    assert disagreements(run(graph, net.params, feeds), exported(net, graph, 21).run(feeds), *limits) == {}
