"""The picture of a network: every node in one box, groups in the order in which they are computed."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

import graphkit as gk
from graphkit.report.network import MOST_BOXES, draw, grouped

pytestmark = pytest.mark.usefixtures("unset_parameters")

SVG = "{http://www.w3.org/2000/svg}"


def parts_of(graph):
    nodes = [n for n in graph.nodes if n.op.name != "Constant"]
    return nodes, grouped(graph, nodes)


@pytest.mark.parametrize("name", ["lenet", "resnet", "googlenet", "unet", "bert", "transformer_lm", "seq2seq"])
def test_parts_are_the_nodes_in_order(name):
    graph = gk.models.build(name).graph
    nodes, parts = parts_of(graph)
    assert [n for _, members in parts for n in members] == nodes
    assert len(parts) <= MOST_BOXES
    known = set(graph.inputs)
    for _, members in parts:
        inside = {v for n in members for v in n.outputs}
        for node in members:
            assert all(v in known or v in inside or v.node.op.name == "Constant" for v in node.operands)
        known |= inside


def test_a_small_network_has_a_box_for_each_node():
    graph = gk.models.build("lenet").graph
    assert all(not name and len(members) == 1 for name, members in parts_of(graph)[1])


def test_blocks_of_a_large_one_are_boxes():
    _, parts = parts_of(gk.models.build("resnet").graph)
    assert {"layer1/0", "layer4/2"} <= {name for name, _ in parts}
    svg = ET.fromstring(draw(gk.models.build("resnet").graph))
    titles = [t.text for t in svg.iter(f"{SVG}title")]
    assert any(t.startswith("layer1/0, layer1/0/conv1 to ") and "4 BatchNormalization" in t for t in titles)


def test_parameters_are_counted_once():
    net = gk.models.build("resnet")
    texts = re.findall(r"([\d.]+) ?([kM]?) parameters<", draw(net.graph))
    total = sum(float(number) * {"": 1, "k": 1e3, "M": 1e6}[unit] for number, unit in texts)
    assert total == pytest.approx(net.num_parameters, rel=0.02)


def test_thousands_of_nodes_without_prefixes_are_bounded():
    x = gk.input("x", ["N"])
    h = x
    for _ in range(3000):
        h = gk.relu(h)
    svg = draw(gk.Model({"y": h}).graph)
    assert "3000 nodes" in svg
    assert len(svg) < 20_000


def test_more_prefixes_than_boxes():
    x = gk.input("x", ["N"])
    h = x
    for i in range(200):
        h = gk.relu(gk.relu(h, name=f"block{i}/a"), name=f"block{i}/b")
    assert f"{400 - 2 * MOST_BOXES} more nodes" in draw(gk.Model({"y": h}).graph)


def test_names_are_escaped():
    x = gk.input("<script>", ["N"])
    ET.fromstring(draw(gk.Model({"</svg>": gk.relu(x, name="<img/onerror=x>")}).graph))
