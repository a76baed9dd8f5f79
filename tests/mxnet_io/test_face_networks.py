"""Small forms of InsightFace's networks: outputs of MXNet 1.9.1, seven elements of each and the sum of magnitudes."""

import json

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.mxnet_io.importer import import_model
from tests.mxnet_io import face_networks

CASES = {
    "retinaface": (face_networks.pixels(2, 3, 14, 18) / 128, [
        ((2, 4, 7, 9), [0.460126, 0.544942, 0.567286, 0.44786, 0.442206, 0.54118, 0.574486], 252.0),
        ((2, 8, 7, 9), [-0.154969, -0.02071, -0.03886, 0.155305, 0.151573, -0.009574, -0.14588], 142.9725),
        ((2, 20, 7, 9), [0.114565, 0.170174, 0.034879, -0.282834, -0.103396, 0.147982, -0.278126], 339.4404),
    ]),
    "lffd": (face_networks.pixels(2, 3, 12, 14), [
        ((2, 1, 6, 7), [0.510082, 0.545545, 0.500481, 0.538378, 0.511066, 0.490051, 0.540808], 42.6757),
        ((2, 4, 6, 7), [0.150509, 0.154675, -0.114618, 0.031407, 0.094319, 0.07762, -0.210882], 38.602),
    ]),
    "mobileface": (face_networks.pixels(3, 3, 8, 8), [
        ((3, 6), [0.010947, 0.36353, -0.064083, -0.081659, 0.266183, -0.017929, -0.005741], 1.7373),
    ]),
}  # fmt: skip


@in_one_item()
@pytest.mark.parametrize("name", CASES)
def test_outputs_are_those_of_mxnet(name, tmp_path):
    data, wanted = CASES[name]
    net, document = getattr(face_networks, name)()
    (tmp_path / "net-symbol.json").write_text(json.dumps(document))
    sizes = ("N", 3, 8, 8) if name == "mobileface" else ("N", 3, "H", "W")
    found = import_model(tmp_path / "net-symbol.json", params=net.params, shapes={"data": sizes})
    model = gk.Model.from_graph(found.graph, found.params)
    for y, (shape, elements, total) in zip(model.run({"data": data}).values(), wanted, strict=True):
        assert y.shape == shape
        np.testing.assert_allclose(y.ravel()[:: y.size // 7][:7], elements, atol=2e-6)
        assert np.abs(y).sum(dtype=np.float64) == pytest.approx(total, rel=2e-5)
    gk.verify(model, {"data": data}).raise_if_failed()
