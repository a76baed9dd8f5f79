"""The benchmark of many ranks: a recorded program, and the chart."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
import scale
from curves import Curve, chart
from simulation import Cluster, Link, Setting
from training_workloads import TINY


def test_a_recorded_program_has_every_gradient():
    program = scale.recorded(TINY, 2)
    params = TINY.net().params
    assert {g.name: g.bytes for g in program.gradients} == {n: params[n].nbytes for n in params}
    assert all(0 < g.written <= program.passes for g in program.gradients)
    assert program.update > 0
    first, last = (min(program.gradients, key=lambda g: s * g.written).name for s in (1, -1))
    assert first != last
    link = Link(1.0, 1e-9)  # seconds for a sum: none hides behind what this machine took to compute
    assert 0 < Setting("ring", 0).efficiency(program, Cluster(link, link), 64) < 1


def test_the_link_is_found_from_sums():
    row = lambda n, mpi, own: {"bytes": n, "median": {"mpi": mpi, "graphkit": own}}  # noqa: E731
    sizes = (4, 1 << 16, 1 << 20)
    two = {"rows": [row(n, 4e-6 + 1e-9 * n, 14e-6 + 1e-9 * n) for n in sizes]}
    one = {"rows": [row(n, 1e-6, 2e-6) for n in sizes]}
    link, call = scale.calibrated(one, two)
    assert (link.alpha, link.beta, call) == pytest.approx((2e-6, 1e-9, 1e-5))


def test_the_chart_is_svg_with_a_point():
    text = chart("A & B", [Curve("ours", (1, 2, 4), (1.0, 0.9, 0.8), (4, 0.7)), Curve("flat", (1, 2, 4), (1, 1, 1))])
    root = ElementTree.fromstring(text)
    assert sum(e.tag.endswith("polyline") for e in root.iter()) == 2
    assert sum(e.tag.endswith("path") for e in root.iter()) == 1
    assert "70% at 4, Horovod" in text
