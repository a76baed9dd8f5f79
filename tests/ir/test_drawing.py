"""The drawing of a graph: whole, escaped, bounded, and without anything from outside."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from combinations import full, in_one_item

import graphkit as gk
from graphkit.ir.drawing import MAX_NODES, boxes_of, to_svg
from graphkit.ir.layered import arranged

SVG = "{http://www.w3.org/2000/svg}"


def drawn(net: gk.Model) -> ET.Element:
    return ET.fromstring(to_svg(net.graph))


def branches(depth: int) -> gk.Model:
    x = gk.input("x", ["N", 8])
    h = x
    for _ in range(depth):
        h = gk.relu(h) + gk.tanh(gk.sigmoid(h))
    return gk.Model({"y": h, "last": gk.identity(h)})


def test_every_node_and_edge_is_there():
    net = branches(4)
    svg = drawn(net)
    titles = [t.text for t in svg.iter(f"{SVG}title")]
    assert len(titles) == 1 + len(net.graph.nodes) + 2
    assert sum("Sigmoid" in t for t in titles) == 4
    operands = sum(len(n.operands) for n in net.graph.nodes) + len(net.outputs)
    lines, arrows = (g for g in svg.findall(f"{SVG}g") if g.get("fill") == "none" or g.get("fill") == "#8a8f98")
    assert len(lines) == len(arrows) == operands


@in_one_item()
@pytest.mark.parametrize("name", ["lenet", "googlenet", full("unet"), "lstm_lm"])
def test_boxes_of_a_layer_do_not_overlap_and_lie_in_the_picture(name):
    graph = gk.models.build(name).graph
    boxes, edges = boxes_of(graph)
    layers, _ = arranged(boxes, edges)
    assert sum(map(len, layers)) >= len(boxes)
    for source, target in edges:
        assert source.layer < target.layer
    for layer in layers:
        assert all(box.x - box.width / 2 > 0 for box in layer)
        assert all(b.x - a.x >= (a.width + b.width) / 2 for a, b in pairwise(layer))


def test_names_are_escaped():
    x = gk.input("<script>alert('x')</script>", ["N"])
    net = gk.Model({"</svg><b>": gk.relu(x)}, name="<img src=x>")
    page = net._repr_html_()
    assert "<script" not in page
    assert "<img" not in page
    assert "<b>" not in page
    drawn(net)


def test_it_stands_alone():
    page = branches(3)._repr_html_()
    assert re.findall(r"https?://[^\"]+", page) == ["http://www.w3.org/2000/svg"]
    assert "href" not in page
    assert "<script" not in page


def test_a_large_graph_is_drawn_in_part():
    page = branches(5000)._repr_html_()
    assert f"The first {MAX_NODES:,} of 20,001 nodes are drawn." in page
    assert "more nodes" in page
    assert len(page) < 200_000


def test_a_graph_of_many_long_edges_stays_bounded():
    x = gk.input("x", ["N", 4])
    values = [x]
    for _ in range(120):
        values.append(gk.sum(values))
    assert len(to_svg(gk.Model({"y": values[-1]}).graph)) < 3_000_000


def test_text_is_asked_for(capsys):
    net = branches(1)
    assert (
        str(net)
        == repr(net)
        == "<Model 'model': (x: float32[N, 8]) -> (y: float32[N, 8], last: float32[N, 8]), 0 parameters, 0 B>"
    )
    net.show()
    assert capsys.readouterr().out == net.to_text() + "\n"
    assert net.to_text().count("\n") > 5


def test_a_graph_without_nodes_or_inputs():
    drawn(gk.Model({"y": gk.input("x", ["N"])}))
    drawn(gk.Model({"y": gk.constant([1.0])}))
