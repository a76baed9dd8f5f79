"""The page that draws a graph: its views and layout, its data, escaping, times, growth."""

import json
import re
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
from combinations import default_at, in_one_item

import graphkit as gk
from graphkit.errors import InputError, UsageError
from graphkit.report.graph_page import graph_page
from graphkit.report.graph_views import MOST_NODES, drawing_of

INPUT, OUTPUT, NODE, GROUP = range(4)


def data_of(page):
    """The JSON that the page embeds."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


def details(data, name):
    """The details of the node with a name, with texts in place of their numbers."""
    text = data["texts"].__getitem__
    (node,) = (n for n in data["nodes"] if text(n["name"]) == name)
    return node | {
        "op": text(node["op"]),
        "attributes": {text(k): text(v) for k, v in node["attributes"]},
        "inputs": [[text(f), text(n), text(t), source, text(stored)] for f, n, t, source, stored in node["inputs"]],
        "outputs": [[text(n), text(t)] for n, t in node["outputs"]],
    }


def chain(length, name=lambda i: f"op{i}"):
    h = skip = gk.input("x", ["N", 8])
    for i in range(length):
        h = gk.add(h, skip, name=name(i)) if i % 7 == 6 else gk.relu(h, name=name(i))
        skip = h if i % 50 == 0 else skip
    return gk.Model({"y": h}, name="chain")


def looped():
    """A Loop with an If in its body."""
    x = gk.input("x", [3])
    weight = gk.parameter("w", [3], init=gk.init.Ones())

    def body(h, step):
        taken = gk.cond(
            gk.reduce_sum(h, keepdims=False) > 0, lambda: gk.sin(h, name="up"), lambda: gk.cos(h, name="down")
        )
        return gk.mul(taken * step, weight, name="scaled")

    return gk.Model({"y": gk.fold(body, x, gk.constant(np.arange(4.0, dtype=np.float32)))}, name="looped")


@pytest.mark.usefixtures("unset_parameters")
@in_one_item()
@pytest.mark.parametrize("name", ["lenet", "googlenet", "unet", "transformer_lm", "seq2seq"])
def test_boxes_do_not_overlap_and_edges_go_down(name):
    data = data_of(graph_page(gk.models.build(name)))
    shown = sorted(view["entry"][i] for view in data["views"] for i, kind in enumerate(view["kind"]) if kind == NODE)
    assert shown == list(range(len(data["nodes"])))  # each node has one box
    for view in data["views"]:
        spans = [(y, x, x + w) for x, y, w in zip(view["x"], view["y"], view["w"], strict=True)]
        middles = [y + h / 2 for y, h in zip(view["y"], view["h"], strict=True)]
        layers = {}
        for (_, left, right), middle in zip(spans, middles, strict=True):
            layers.setdefault(round(middle), []).append((left, right))
        for layer in layers.values():
            layer.sort()
            assert all(a[1] <= b[0] for a, b in pairwise(layer))
        for source, target, *points in view["edges"]:
            heights = [view["y"][source] + view["h"][source], *points[1::2], view["y"][target]]
            assert heights == sorted(heights)
            assert heights[0] < heights[-1]


@pytest.mark.usefixtures("unset_parameters")
def test_edges_are_those_of_the_graph():
    net = gk.models.build("googlenet")
    data = data_of(graph_page(net))
    (view,) = data["views"]
    drawn = {
        (view["entry"][a], view["entry"][b]) for a, b, *_ in view["edges"]
        if view["kind"][a] == NODE and view["kind"][b] == NODE
    }  # fmt: skip
    nodes = [n for n in net.graph.nodes if n.op.name != "Constant"]
    number = {n: i for i, n in enumerate(nodes)}
    expected = {(number[v.node], number[n]) for n in nodes for v in n.operands if v.node in number}
    assert drawn == expected
    assert [data["texts"][n["name"]] for n in data["nodes"]] == [net.graph.node_name(n) for n in nodes]


def test_the_same_model_gives_the_same_page():
    assert graph_page(gk.models.build("lenet")) == graph_page(gk.models.build("lenet"))


def test_details_of_a_node():
    net = gk.models.build("lenet", image=(1, 28, 28))
    data = data_of(graph_page(net, shapes={"x": (2, 1, 28, 28)}))
    conv = details(data, "conv2")
    assert conv["op"] == "Conv"
    assert conv["inputs"][0] == ["x", "pool1_0", "float32[2, 20, 12, 12]", 2, ""]
    weight = conv["inputs"][1]
    assert weight[:4] == ["w", "conv2_weight", "float32[50, 20, 5, 5]", -1]
    assert weight[4] == "parameter, 25,000 elements, 97.7 KiB"
    assert conv["outputs"] == [["conv2", "float32[2, 50, 8, 8]"]]
    assert conv["flops"] == 2 * 2 * 50 * 8 * 8 * 20 * 25
    # Operands and the result, 4 bytes for each element.
    assert conv["bytes"] == 4 * (2 * 20 * 12 * 12 + 50 * 20 * 25 + 50 + 2 * 50 * 8 * 8)
    assert conv["attributes"]["strides"] == str(net.graph.nodes[3].op.attributes()["strides"])
    assert not data["timed"]


def test_without_shapes_amounts_are_symbolic():
    data = data_of(graph_page(gk.models.build("lenet", image=(1, 28, 28))))
    conv = details(data, "conv2")
    assert conv["outputs"] == [["conv2", "float32[N, 50, 8, 8]"]]
    assert conv["flops"] == f"{2 * 50 * 8 * 8 * 20 * 25}*N"
    with pytest.raises(InputError):
        graph_page(gk.models.build("lenet"), shapes={"missing": (1,)})


def test_subgraphs_are_views_of_their_node():
    data = data_of(graph_page(looped()))
    text = data["texts"].__getitem__
    titles = [text(view["title"]) for view in data["views"]]
    assert len(titles) == 4
    (repeating,) = (n for n in data["nodes"] if text(n["op"]) in ("Loop", "Scan"))
    assert repeating["at"][0] == 0
    ((part, body),) = repeating["bodies"]
    assert text(part) == "body"
    assert data["views"][body]["parent"] == 0
    up = details(data, "up")
    assert data["views"][up["at"][0]]["parent"] == body
    # The parameter is stored outside of the loop: no box, but details.
    scaled = details(data, "scaled")
    assert [i[4] for i in scaled["inputs"]] == ["", "parameter, 3 elements, 12 B"]
    assert "w" not in [text(name) for name in data["views"][body]["name"]]


def test_text_of_the_file_is_harmless():
    evil = "</script><script>alert(1)</script><!--"
    x = gk.input(evil, ["N"])
    page = graph_page(gk.Model({f"{evil}out": gk.relu(x, name=evil)}, name=evil))
    scripts = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attrs):
            if tag == "script":
                scripts.append(dict(attrs).get("id"))
            assert not any(key.startswith("on") for key, _ in attrs)

    Reader().feed(page)
    assert scripts == ["data", None]
    assert "alert(1)</script" not in page
    data = data_of(page)
    assert evil in data["texts"]
    # The script inserts texts as text only.
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", page)
    assert not re.search(r"https?://|src=", page)


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    net = gk.models.build("lenet", image=(1, 8, 8))
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    executor = net.compile()
    feeds = {"x": np.zeros((2, 1, 8, 8), np.float32)}
    executor.run(feeds)
    with gk.profile(path) as profile:
        executor.run(feeds)
        executor.run(feeds)
    return net, path, profile


def test_times_are_those_of_the_profile(traced):
    net, path, profile = traced
    data = data_of(graph_page(net, profile=path))
    assert data == data_of(graph_page(net, profile=profile))
    assert data["timed"]
    shown = sum(node.get("time", 0) for node in data["nodes"]) + data["unmatched"]
    assert shown == pytest.approx(sum(o.seconds for o in profile.operators) / 2, rel=1e-6)
    ((_, _, seconds, calls),) = details(data, "conv1")["steps"]
    assert calls == 2
    assert seconds > 0
    assert "steps" not in details(data, "tanh1")  # fused into the convolution


def test_times_inside_subgraphs():
    net = looped()
    with gk.profile() as profile:
        net.run({"x": np.ones(3, np.float32)})
    data = data_of(graph_page(net, profile=profile))
    timed = [data["texts"][n["op"]] for n in data["nodes"] if "time" in n and n["at"][0] > 0]
    assert timed
    outer = next(n for n in data["nodes"] if n["bodies"])
    inside = sum(n.get("time", 0) for n in data["nodes"] if n["at"][0] == outer["bodies"][0][1])
    assert outer["time"] >= inside


def test_measured_times():
    data = data_of(graph_page(gk.models.build("lenet", image=(1, 8, 8)), time=True))
    assert details(data, "conv1")["time"] > 0


@in_one_item()
@pytest.mark.parametrize("source", ["time", "file", "profile"])
def test_times_of_nodes_without_names(source, tmp_path):
    h = gk.input("x", ["N", 8])
    for i in range(4):
        h = gk.tanh(h @ np.eye(8, dtype=np.float32), name="named" if i == 2 else "")
    net = gk.Model({"y": gk.reduce_sum(gk.fold(lambda s, row: gk.sin(s + row), gk.zeros_like(h[0]), h))})
    with gk.profile(tmp_path / "own.json") as profile:
        net.run({"x": np.ones((3, 8), np.float32)})
    given = (
        {"time": True} if source == "time" else {"profile": profile if source == "profile" else tmp_path / "own.json"}
    )
    data = data_of(graph_page(net, **given))
    timed = [data["texts"][n["op"]] for n in data["nodes"] if n["at"][0] == 0 and "time" in n]
    assert timed.count("Tanh") == 4
    assert {"ReduceSum"} < set(timed)
    assert data["unmatched"] < 0.1 * sum(n.get("time", 0) for n in data["nodes"])
    assert [n["name"] for n in data["nodes"]] == [n["name"] for n in data_of(graph_page(net))["nodes"]]


def test_profiles_that_do_not_fit(traced, tmp_path):
    _, path, profile = traced
    with pytest.raises(UsageError, match="another model: 'lenet', expected 'chain'"):
        graph_page(chain(3), profile=path)
    other = gk.Model({"y": gk.relu(gk.input("x", [2]), name="only")}, name="lenet")
    with pytest.raises(UsageError, match="another model, or of training: only 0 of its"):
        graph_page(other, profile=path)
    # The names are those of the profile, but the shapes are others.
    with gk.profile(tmp_path / "chain.json"):
        chain(6).run({"x": np.ones((2, 8), np.float32)})
    h = gk.input("x", ["N", 9])
    for i in range(6):
        h = gk.relu(h, name=f"op{i}")
    with pytest.raises(UsageError, match=r"other shapes than .*, such as float32\[2, 8\] and float32\[N, 9\]"):
        graph_page(gk.Model({"y": h}, name="chain"), profile=tmp_path / "chain.json")
    for name, content, message in (
        ("broken.json", "{", "is not a JSON file"),
        ("list.json", "[1]", "expected a file that"),
        ("empty.json", '{"traceEvents": [3, {"ph": "X"}]}', "contains no steps"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(UsageError, match=message):
            graph_page(chain(3), profile=tmp_path / name)
    with pytest.raises(UsageError, match="No such file"):
        graph_page(chain(3), profile=tmp_path / "missing.json")
    with pytest.raises(UsageError, match="not both"):
        graph_page(chain(3), profile=profile, time=True)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("dur", float("nan"), "the duration nan"),
        ("dur", float("inf"), "the duration inf"),
        ("dur", 10**400, "the duration 1000"),
        ("dur", -1, "the duration -1"),
        ("dur", True, "the duration True"),
        ("outputs", 5, "outputs 5;"),
        ("results", "abc", "results 'abc';"),
    ],
)
def test_damaged_steps_of_profiles(traced, tmp_path, key, value, message):
    net, path, _ = traced
    content = json.loads(path.read_text())
    step = next(event for event in content["traceEvents"] if "node" in event.get("args", ()))
    (step if key == "dur" else step["args"])[key] = value
    (tmp_path / "damaged.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=rf"damaged\.json: step '.*' has {message}"):
        graph_page(net, profile=tmp_path / "damaged.json")


@default_at(1)
@pytest.mark.parametrize(
    "name", [lambda i: f"op{i}", lambda i: f"a{i // 500}/b{i // 50}/op{i}"], ids=["plain", "scoped"]
)
def test_large_graphs_are_divided_into_groups(name, monkeypatch):
    monkeypatch.setattr("graphkit.report.graph_views.MOST_NODES", 100)
    data = data_of(graph_page(chain(2000, name)))
    assert len(data["nodes"]) == 2000
    assert max(len(view["kind"]) for view in data["views"]) <= 100 + 60
    shown = [view["entry"][i] for view in data["views"] for i, kind in enumerate(view["kind"]) if kind == NODE]
    assert sorted(shown) == list(range(2000))
    for number, view in enumerate(data["views"]):
        for i, kind in enumerate(view["kind"]):
            if kind == GROUP:
                assert data["views"][view["opens"][i]]["parent"] == number
    # A value of another group is an input that names the node.
    view = data["views"][data["nodes"][150]["at"][0]]
    assert any(kind == INPUT and entry >= 0 for kind, entry in zip(view["kind"], view["entry"], strict=True))


def test_work_grows_linearly(steps, monkeypatch):
    monkeypatch.setattr("graphkit.report.graph_views.MOST_NODES", 100)
    small, large = (chain(n) for n in (250, 1000))
    few, many = (steps(lambda net=net: graph_page(net)) for net in (small, large))
    assert many < 4.3 * few
    assert MOST_NODES == 5_000


def test_odd_graphs():
    x = gk.input("x", [2])
    data = data_of(graph_page(gk.Model({"y": x, "z": x}, name="nothing")))
    assert data["views"][0]["kind"] == [INPUT, OUTPUT, OUTPUT]
    assert len(data["views"][0]["edges"]) == 2
    constant = gk.Model({"y": gk.constant(np.ones(2, np.float32))}, name="constant")
    assert data_of(graph_page(constant))["views"][0]["kind"] == [OUTPUT]
    drawing = drawing_of(gk.Model({"y": gk.relu(gk.input("x", [2]))}).graph)
    assert [item.kind for item in drawing.views[0].items] == ["input", "node", "output"]
