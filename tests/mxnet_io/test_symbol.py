"""Symbols of all generations, and damaged ones."""

from __future__ import annotations

import json
import random

import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.mxnet_io.symbol import read_symbol
from tests.mxnet_io.files import node, symbol


def _read(tmp_path, document):
    path = tmp_path / "net-symbol.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return read_symbol(path)


@in_one_item()
@pytest.mark.parametrize("key", ["param", "attr", "attrs"])
def test_attributes_of_every_generation(tmp_path, key):
    found = _read(tmp_path, symbol([node("null", "x"), node("clip", "c", [(0, 0)], **{key: {"a_min": "0"}})], [(1, 0)]))
    assert found.nodes[1].attributes == {"a_min": "0"}
    assert found.nodes[1].inputs == ((0, 0),)
    assert found.heads == ((1, 0),)


def test_annotations_are_apart_from_attributes(tmp_path):
    fields = {"param": {"num_filter": "8"}, "attr": {"weight_lr_mult": "2", "ctx_group": "a", "__wd_mult__": "0"}}
    nodes = [node("null", "x", attrs={"__shape__": "(1, 2)", "lr_mult": "3"}), node("Convolution", "c", **fields)]
    x, c = _read(tmp_path, symbol(nodes, [(1, 0)])).nodes
    assert x.annotations == {"shape": "(1, 2)", "lr_mult": "3"}
    assert c.attributes == {"num_filter": "8"}
    assert c.annotations == {"weight_lr_mult": "2", "ctx_group": "a", "wd_mult": "0"}


def test_inputs_without_a_version_are_read(tmp_path):
    document = symbol([node("null", "x"), {"op": "relu", "name": "r", "inputs": [[0, 0]]}], [])
    document["heads"] = [[1, 0]]
    assert _read(tmp_path, document).nodes[1].inputs == ((0, 0),)


def test_subgraphs_are_read(tmp_path):
    inner = symbol([node("null", "a"), node("relu", "r", [(0, 0)])], [(1, 0)])
    nodes = [node("null", "x"), node("_foreach", "f", [(0, 0)], subgraphs=[inner])]
    (body,) = _read(tmp_path, symbol(nodes, [(1, 0)])).nodes[1].subgraphs
    assert [n.op for n in body.nodes] == ["null", "relu"]


@in_one_item()
@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("", "is empty"),
        ("{]", "not valid JSON"),
        ("[1, 2]", "no list of nodes"),
        ({"nodes": 3}, "no list of nodes"),
        ({"nodes": [3], "heads": [[0, 0]]}, "node 0 is damaged"),
        ({"nodes": [{"op": "null"}], "heads": [[0, 0]]}, "node 0 is damaged: KeyError: 'name'"),
        ({"nodes": [{"op": 1, "name": "x"}], "heads": [[0, 0]]}, "op and name must be texts"),
        ({"nodes": [node("relu", "r", [(0, 0)])], "heads": [[0, 0]]}, r"\[0, 0, 0\] is not \[node, output\]"),
        ({"nodes": [node("relu", "r", attrs={"a": 1})], "heads": [[0, 0]]}, "attribute a is not a text"),
        ({"nodes": [node("null", "x")], "heads": []}, "has no outputs"),
        ({"nodes": [node("null", "x")]}, "must be a list"),
        ({"nodes": [node("null", "x")], "heads": [[5, 0, 0]]}, r"\[5, 0, 0\] is not \[node, output\]"),
        ({"nodes": [node("null", "x")], "heads": [[0, -1, 0]]}, r"\[0, -1, 0\] is not \[node, output\]"),
        ({"nodes": [node("null", "x")], "heads": [[True, 0, 0]]}, "is not"),
    ],
)
def test_a_damaged_symbol_is_an_error_that_names_the_node(tmp_path, document, words):
    with pytest.raises(gk.errors.InvalidModel, match=words) as caught:
        _read(tmp_path, document)
    assert "net-symbol.json" in str(caught.value)


def test_deeply_nested_json_is_an_error(tmp_path):
    with pytest.raises(gk.errors.InvalidModel):
        _read(tmp_path, "[" * 100_000)


def test_a_missing_symbol_is_named(tmp_path):
    with pytest.raises(gk.errors.UsageError, match="no such file"):
        read_symbol(tmp_path / "net-symbol.json")


def test_randomly_damaged_symbols_end_in_named_errors(tmp_path):
    nodes = [node("null", "x"), node("clip", "c", [(0, 0)], attrs={"a_min": "0", "a_max": "1"})]
    text = json.dumps(symbol(nodes, [(1, 0)]))
    draw = random.Random(0)
    errors = 0
    for _ in range(300):
        place = draw.randrange(len(text))
        damaged = text[:place] + draw.choice(['"', "{", "1", "null", "-", ""]) + text[place + draw.randint(0, 3) :]
        try:
            _read(tmp_path, damaged)
        except gk.GraphkitError:
            errors += 1
    assert errors > 150
