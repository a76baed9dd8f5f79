"""Convolutions between input and output, in the standard order of axes: in the C library and ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from combinations import in_one_item
from saved_programs import check

import graphkit as gk
from graphkit.executor.devices.cpu import native

if not native.has_onednn():  # whose kernels are replaced
    pytest.skip("built without oneDNN", allow_module_level=True)

CASES: list[tuple[str, str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("conv", "shallow", (1, 13, 9, 31), (7, 13, 3, 3), dict(pads=(0, 1, 2, 1))),
    ("conv", "shallow", (2, 7, 10, 70), (5, 7, 3, 3), dict(strides=(3, 3), pads=(1, 1, 1, 1))),
    ("conv", "shallow", (1, 13, 13, 17), (39, 1, 3, 3), dict(group=13, strides=(2, 2), pads=(1, 1, 1, 1))),
    ("conv", "shallow", (2, 12, 5, 31), (16, 3, 2, 2), dict(group=4)),
    ("conv", "shallow", (1, 61, 200), (67, 61, 5), dict(dilations=(2,))),
    ("conv", "shallow", (2, 26, 98), (34, 13, 3), dict(group=2, strides=(3,), dilations=(2,))),
    ("conv", "shallow", (1, 24, 5, 31), (10, 12, 3, 3), dict(group=2)),
    ("conv", "", (2, 5, 9, 8), (10, 1, 1, 1), dict(group=5, strides=(2, 1))),
    ("conv", "", (2, 26, 5, 7), (10, 13, 1, 1), dict(group=2)),
    ("conv", "", (2, 61, 17, 19), (7, 61, 1, 1), dict(strides=(2, 2))),
    ("conv", "", (1, 3, 5, 6, 7), (4, 3, 1, 1, 1), {}),
    ("conv_transpose", "scattered", (1, 17, 5, 31), (17, 3, 4, 4), dict(strides=(2, 2), pads=(1, 1, 1, 1))),
    ("conv_transpose", "scattered", (2, 5, 37), (5, 31, 3), dict(strides=(3,), pads=(0, 1))),
    ("conv_transpose", "scattered", (1, 61, 3, 5, 9), (61, 2, 2, 3, 2), dict(strides=(2, 1, 2))),
    ("conv_transpose", "scattered", (1, 16, 5, 31), (16, 3, 3, 3), {}),
    ("conv_transpose", "scattered", (2, 6, 5, 31), (6, 5, 3, 3), dict(group=2, strides=(2, 2), pads=(1, 0, 0, 1))),
    ("conv_transpose", "scattered", (1, 7, 5, 31), (7, 20, 5, 1), dict(strides=(3, 3))),
]


@in_one_item()
@pytest.mark.parametrize(("operator", "kernel", "x", "w", "attributes"), CASES, ids=str)
def test_the_same_in_the_c_library_and_onnx_runtime(operator, kernel, x, w, attributes, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    filters = w[0] if operator == "conv" else w[1] * attributes.get("group", 1)
    weights, bias = rng.standard_normal(w, dtype=np.float32), rng.standard_normal(filters, dtype=np.float32)
    net = gk.Model({"y": getattr(gk, operator)(gk.input("x", x), weights, bias, **attributes)})
    feeds = {"x": rng.standard_normal(x, dtype=np.float32)}
    with gk.profile() as profile:
        got = net.compile(threads=1).run(feeds)["y"]
    used = [s["args"]["implementation"] for s in profile.trace()["traceEvents"] if "Conv" in s["name"]]
    assert [name.partition(":")[0] for name in used] == ([kernel] if kernel else [])
    net.save(tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, feeds)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    check(net, tmp_path / "net.gkp")
