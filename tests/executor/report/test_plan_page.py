"""The page of a plan: complete without any other file, and its picture is the plan."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from graphkit.executor.report import plan_page
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F


def plan_of(depth: int = 12):
    """Chains of results with a few that live long, a view, and a constant."""
    x = Value(TensorType("float32", (16, 64)), "x")
    value, kept = x, []
    for i in range(depth):
        value = F.asinh(value, name=f"layer{i}")
        if i % 3 == 0:
            kept.append(value)
    value = F.reshape(value, np.array([64, 16]))
    for other in reversed(kept):
        value = F.add(value, F.reshape(other, np.array([64, 16])))
    weight = Value(TensorType("float32", (4, 16)), "w", role="parameter")
    product = F.gemm(F.add(value, np.float32(1)), weight, transB=True)
    params = ParamStore({"w": weight.tensor}, {"w": np.ones((4, 16), np.float32)})
    return Executor(Graph([x, weight], [F.neg(product)]), params, optimize=False).plan


def data_of(page: str) -> dict:
    (text,) = re.findall(r'<script type="application/json" id="plan">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def svg_of(page: str, name: str) -> ElementTree.Element:
    (text,) = re.findall(rf'(<svg id="{name}".*?</svg>)', page, re.DOTALL)
    return ElementTree.fromstring(text)


def test_blocks_are_the_arena():
    plan = plan_of()
    live = [0] * len(plan.steps)
    for block in plan.blocks:
        assert 0 <= block.offset <= block.offset + block.bytes <= plan.arena_bytes
        writer, reader = plan.steps[block.first], plan.steps[block.last]
        if block.kind == "value":
            outputs = {o.name: o for o in writer.outputs if o is not None}
            assert outputs[block.name].offset == block.offset
            assert outputs[block.name].type == block.type
            assert writer.inplace == block.inplace
            assert reader.kernel in ("native", "interpreted")
        for step in range(block.first + block.inplace, block.last + 1):
            live[step] += block.bytes
    timed = [i for i, s in enumerate(plan.steps) if s.kernel not in ("view", "constant")]
    assert max(live) == plan.lower_bound
    assert [live[i] for i in timed] == [plan.steps[i].live_bytes for i in timed]
    assert sum(b.bytes for b in plan.blocks) == plan.naive_bytes
    assert sum(b.inplace for b in plan.blocks) == plan.inplace_count > 0
    assert plan.activation_bytes <= plan.lower_bound <= plan.activation_bytes + plan.scratch_bytes


def test_the_picture_shows_every_block_where_it_lies():
    plan = plan_of()
    page = plan.to_html("a < b & c")
    data = data_of(page)
    assert len(data["steps"]) == sum(s.kernel in ("native", "interpreted") for s in plan.steps)
    assert max(s["live"] for s in data["steps"]) == data["steps"][data["peak"]]["live"] == plan.lower_bound
    rects = [r for r in svg_of(page, "map").iter("rect") if "data-block" in r.attrib]
    assert len(rects) == len(plan.blocks)
    for rect in rects:
        block = data["blocks"][int(rect.get("data-block"))]
        top = float(rect.get("y")) / 1000
        assert top == pytest.approx(1 - (block["offset"] + block["bytes"]) / plan.arena_bytes, abs=1e-6)
        assert float(rect.get("height")) / 1000 == pytest.approx(block["bytes"] / plan.arena_bytes, abs=1e-6)
        assert (int(rect.get("x")), int(rect.get("width"))) == (block["first"], block["last"] - block["first"] + 1)
        assert block["name"] in rect.find("title").text
    assert svg_of(page, "curve").find("path").get("d").count("H") == len(data["steps"])


def test_the_page_needs_nothing_from_outside():
    page = plan_of().to_html("a < b & c")
    assert "<title>a &lt; b &amp; c</title>" in page
    assert "@@" not in page
    assert not re.search(r"\b(src|href)\s*=|https?:|@import|url\((?!#)", page)


def test_names_cannot_break_out_of_the_page():
    hostile = "</script><script>alert(1)</script>"
    x = Value(TensorType("float32", (4,)), "x")
    plan = Executor(Graph([x], [F.neg(F.exp(x, name=hostile))]), ParamStore({}), optimize=False).plan
    page = plan.to_html(hostile)
    assert "<script>alert" not in page
    assert any(step["node"] == hostile for step in data_of(page)["steps"])


def test_a_plan_without_an_arena_has_a_page():
    x = Value(TensorType("float32", (4,)), "x")
    plan = Executor(Graph([x], [F.exp(x)]), ParamStore({})).plan
    assert plan.arena_bytes == 0
    assert data_of(plan.to_html())["blocks"] == []


def test_operators_of_one_plan_have_different_colours() -> None:
    names = [f"Operator{i}" for i in range(36)]
    colours = plan_page._colours(names)
    assert len(set(colours.values())) == 36
    assert plan_page._colours(names[::-1]) == colours
    alone = {name: plan_page._colours([name])[name] for name in names}
    assert sum(colours[name] == alone[name] for name in names) >= 12, "most keep the colour that they have in any plan"
    assert set(plan_page._colours([*names, "One", "More"])) == {*names, "One", "More"}
