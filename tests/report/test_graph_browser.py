"""The page of a graph in a browser: no errors, and working controls. Skipped without a browser."""

import html
import json
import re

import pytest

import graphkit as gk
from graphkit.report.graph_page import graph_page


@pytest.fixture
def seen(browse, tmp_path):
    """Open the page of a model, run a script on it, and return the script's `result`."""

    def run(net, script):
        path = tmp_path / "page.html"
        tail = f"<script>let result; {script}; document.body.dataset.result = JSON.stringify(result);</script></body>"
        path.write_text(graph_page(net).replace("</body>", tail))
        found = browse(path)
        assert found.complaints == []
        return json.loads(html.unescape(re.search(r'data-result="(.*?)"', found.document)[1]))

    return run


def branched():
    evil = "</script><script>alert(1)</script>"
    x = gk.input("x", [3])
    h = x
    for i in range(50):
        h = gk.relu(h, name=f"op{i}")
    up = gk.cond(gk.reduce_sum(h, keepdims=False) > 0, lambda: gk.sin(h, name="up"), lambda: gk.cos(h, name=evil))
    return gk.Model({"y": up}, name=evil)


def test_search_selection_and_views(seen):
    script = """
        const type = value => { byId("query").value = value; find(); };
        type("RELU"); step(1); step(1);
        result = [byId("matches").textContent, byId("panel").querySelector("h2").textContent, state.view];
        type("up"); step(1);
        result.push(state.view > 0, byId("panel").querySelector("h2").textContent);
        leave(); result.push(state.view, text(data.nodes[data.views[0].entry[state.item]].op));
        fit(); paint(); result.push(drawn.boxes === data.views[0].x.length);
        centre(1); state.zoom = 4; centre(1); paint(); result.push(drawn.boxes < 12);
        choose(0); follow(true); result.push(byId("panel").querySelector("h2").textContent);
    """
    found = seen(branched(), script)
    assert found == ["2 of 50", "op1", 0, True, "up", 0, "If", True, True, "op0"]


def test_names_of_the_file_stay_text(seen):
    script = """
        byId("query").value = "cos"; find(); step(1);
        result = [byId("panel").querySelector("h2").textContent, document.scripts.length];
    """
    assert seen(branched(), script) == ["</script><script>alert(1)</script>", 3]
