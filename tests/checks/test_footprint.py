"""The measurement of the memory of a run, compared with arrays of known size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graphkit as gk
from graphkit.checks import footprint
from graphkit.errors import UnsupportedError

MIB = 1 << 20

needs_proc = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="resident memory is read from /proc")


@pytest.mark.onednn
@needs_proc
def test_a_run_takes_about_what_was_planned():
    # Matrix products have native kernels that write straight into the arena and the result. They are large and cheap.
    x = gk.input("x", [131072, 16])
    h = gk.nn.linear(x, 128, bias=False, name="fc1")
    net = gk.Model({"y": gk.nn.linear(h, 128, bias=False, name="fc2")})
    exe = net.compile(threads=1)
    found = footprint.measure(exe, {"x": np.ones((131072, 16), np.float32)})
    plan = exe.plan
    assert plan.arena_bytes >= 64 * MIB
    assert plan.result_bytes == 64 * MIB
    assert found.planned_bytes == plan.arena_bytes + plan.result_bytes + plan.packed_bytes
    assert found.measured_bytes == pytest.approx(found.planned_bytes, abs=24 * MIB)
    assert found.first_bytes >= found.measured_bytes - 24 * MIB


@pytest.mark.onednn
@needs_proc
@pytest.mark.parametrize("threads", [1, 2])
def test_a_batch_in_parts_takes_the_arenas_of_some(threads):
    x = gk.input("x", ["N", 128])
    h = gk.nn.linear(x, 128, bias=False, name="fc1")
    net = gk.Model({"y": gk.reduce_sum(gk.nn.linear(h, 128, bias=False, name="fc2"), np.array([1]))})
    exe = net.compile(threads=threads)
    found = footprint.measure(exe, {"x": np.ones((131072, 128), np.float32)})
    plan = exe.plan
    assert plan.examples is not None
    assert plan.examples[1] == 131072
    assert plan.arenas == threads
    assert plan.arena_bytes <= 16 * MIB
    assert found.measured_bytes == pytest.approx(found.planned_bytes, abs=24 * MIB)


@pytest.mark.onednn
@needs_proc
def test_weights_that_kernels_packed_are_there_once():
    # The normalisation is folded into 36 MiB of new weights, and only their packed form is needed.
    x = gk.input("x", ["N", 1024, 4, 4])
    net = gk.Model({"y": gk.nn.batch_norm(gk.nn.conv2d(x, 1024, 3, pad=1, bias=False, name="conv"), name="norm")})
    exe = net.compile(threads=1)
    found = footprint.measure(exe, {"x": np.ones((1, 1024, 4, 4), np.float32)})
    assert exe.plan.packed_bytes == pytest.approx(36 * MIB, abs=MIB)
    assert found.measured_bytes < found.planned_bytes + 24 * MIB


@needs_proc
def test_a_run_that_does_not_fit_is_not_tried():
    x = gk.input("x", ["N"])
    exe = gk.Model({"y": gk.exp(gk.neg(x))}).compile(threads=1)
    huge = np.broadcast_to(np.float32(1), (1 << 42,))
    with pytest.raises(UnsupportedError, match=r"a run needs [\d,]+ bytes, but only [\d,]+ are free"):
        footprint.measure(exe, {"x": huge})


def test_where_nothing_can_be_read_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(footprint, "_MEMORY", tmp_path / "none")
    net = gk.models.build("mlp", inputs=4, hidden=())
    with pytest.raises(UnsupportedError, match="cannot be read"):
        footprint.measure(net.compile(threads=1), {"x": np.ones((1, 4), np.float32)})
