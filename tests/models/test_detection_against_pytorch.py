"""SSD with torchvision's weights gives its outputs, default boxes, matches, loss and boxes."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.models._multibox import decoded
from graphkit.models.ssd import default_boxes, match, multibox_loss

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
torch.set_num_threads(2)
pytestmark = [pytest.mark.pytorch, pytest.mark.filterwarnings("ignore")]

BOXES = [
    [[30.0, 40.0, 130.0, 200.0], [150.0, 20.0, 290.0, 280.0], [140.0, 30.0, 280.0, 290.0]],
    [[5.0, 5.0, 40.0, 30.0]],
]
LABELS = [[2, 1, 3], [3]]


@pytest.fixture(scope="module")
def detector(torchvision):
    torch.manual_seed(0)
    module = torchvision.models.detection.ssd300_vgg16(weights=None, weights_backbone=None, num_classes=4).eval()
    for name, tensor in module.named_parameters():
        if name.endswith("bias"):
            tensor.data.normal_(0, 0.1)
    return module


def in_our_order(module):
    """Layer by layer; the scores of a map follow it, the offsets of all maps come last."""
    backbone, scores = module.backbone, list(module.head.classification_head.module_list)
    layers = [backbone.features, backbone.scale_weight, scores[0]]
    for block, head in zip(backbone.extra, scores[1:], strict=True):
        layers += [block, head]
    layers += list(module.head.regression_head.module_list)
    return [p for part in layers for p in ([part] if isinstance(part, torch.nn.Parameter) else part.parameters())]


@pytest.fixture(scope="module")
def outputs(detector):
    with torch.no_grad():
        maps = list(detector.backbone(pixels()).values())
        head = detector.head(maps)
    return head, maps


def pixels():
    return torch.randn(2, 3, 300, 300, generator=torch.Generator().manual_seed(1)) * 60


def anchors(detector, maps):
    sizes = [list(m.shape[2:]) for m in maps]
    centred = detector.anchor_generator._grid_default_boxes(sizes, [300, 300])
    corners = torch.cat([centred[:, :2] - centred[:, 2:] / 2, centred[:, :2] + centred[:, 2:] / 2], dim=1)
    return centred, corners * 300


def test_outputs(detector, outputs, unset_parameters):
    net = gk.models.build("ssd", classes=4)
    tensors = in_our_order(detector)
    assert sum(t.numel() for t in tensors) == sum(p.numel() for p in detector.parameters()) == net.num_parameters
    for name, tensor in zip(net.params, tensors, strict=True):
        net.params[name] = tensor.detach().numpy()
    found = net.compile(threads=2).run({"x": pixels().numpy()})
    for name, theirs in (("logits", "cls_logits"), ("offsets", "bbox_regression")):
        expected = outputs[0][theirs].numpy()
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_default_boxes(detector, outputs):
    np.testing.assert_allclose(default_boxes(), anchors(detector, outputs[1])[0].numpy(), atol=1e-6)


def test_matches_and_loss(detector, outputs, torchvision):
    head, maps = outputs
    defaults = anchors(detector, maps)[1]
    targets = [{"boxes": torch.tensor(b), "labels": torch.tensor(n)} for b, n in zip(BOXES, LABELS, strict=True)]
    overlaps = [torchvision.ops.boxes.box_iou(t["boxes"], defaults) for t in targets]
    matched = [detector.proposal_matcher(table) for table in overlaps]
    logits, offsets = (head[n].clone().requires_grad_() for n in ("cls_logits", "bbox_regression"))
    losses = detector.compute_loss(
        targets, {"cls_logits": logits, "bbox_regression": offsets}, [defaults, defaults], matched
    )
    sum(losses.values()).backward()

    classes, places = match([np.array(b) / 300 for b in BOXES], [np.array(n) for n in LABELS], default_boxes())
    for image, (indices, names) in enumerate(zip(matched, LABELS, strict=True)):
        expected = [names[i] if i >= 0 else 0 for i in indices.tolist()]
        np.testing.assert_array_equal(classes[image], expected)
    arrays = {"logits": logits.detach().numpy(), "offsets": offsets.detach().numpy(), "c": classes, "p": places}
    values = {n: gk.input(n, a.shape, a.dtype.name) for n, a in arrays.items()}
    net = gk.grad(gk.Model({"loss": multibox_loss(*values.values())}), of="loss", wrt=["logits", "offsets"])
    found = net.compile(threads=1).run(arrays)
    for name, tensor in (("logits_grad", logits.grad), ("offsets_grad", offsets.grad)):
        expected = tensor.numpy()
        np.testing.assert_allclose(found[name], expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
    (loss,) = gk.Model(multibox_loss(*values.values())).compile(threads=1)(*arrays.values())
    assert float(loss) == pytest.approx(float(sum(losses.values())), rel=1e-4)


def test_boxes_of_offsets(detector, outputs, torchvision):
    head, maps = outputs
    offsets = head["bbox_regression"] * 3
    values = gk.input("offsets", offsets.shape)
    (found,) = gk.Model(decoded(values, default_boxes())).compile(threads=1)(offsets.numpy())
    boxes = detector.box_coder.decode_single(offsets[0], anchors(detector, maps)[1])
    expected = torchvision.ops.boxes.clip_boxes_to_image(boxes, (300, 300)) / 300
    np.testing.assert_allclose(found[0], expected.numpy(), atol=1e-5)
