from __future__ import annotations

import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import UsageError
from graphkit.ir import context


def test_name_scopes_nest_and_qualify_layers_inputs_and_nodes():
    with gk.name_scope("block1") as prefix:
        x = gk.input("x", ["N", 4])
        with gk.name_scope("head") as inner:
            y = gk.relu(gk.nn.linear(x, 3, name="fc"), name="act")
    assert (prefix, inner) == ("block1/", "block1/head/")
    net = gk.Model(y)
    assert net.inputs == ("block1/x",)
    assert list(net.params) == ["block1/head/fc_weight", "block1/head/fc_bias"]
    assert net.graph.node_name(y.node) == "block1/head/act"
    assert context.current().prefix == ""


def test_scopes_end_when_an_error_leaves_them():
    with pytest.raises(ZeroDivisionError), gk.name_scope("a"), gk.attr_scope(k="v"):
        raise ZeroDivisionError
    assert context.current() == context.Scope()


def test_unnamed_layers_are_numbered_in_topological_order_whatever_the_history():
    def build():
        x = gk.input("x", ["N", 4])
        h = gk.nn.linear(x, 3)
        return gk.Model(gk.nn.linear(gk.relu(h), 2))

    first, second = build(), build()
    assert (
        list(first.params)
        == list(second.params)
        == ["linear_weight", "linear_bias", "linear_weight_1", "linear_bias_1"]
    )
    assert str(first) == str(second)


def test_attribute_scopes_reach_nodes_and_parameters_and_inner_ones_win():
    x = gk.input("x", ["N", 4])
    with gk.attr_scope(lr_mult="0.1", stage="a"), gk.attr_scope(lr_mult=2) as merged:
        y = gk.nn.linear(x, 3, name="fc")
    assert merged == {"lr_mult": "2", "stage": "a"}
    assert dict(y.node.meta) == merged
    weight = y.node.inputs[1]
    assert weight.attrs["lr_mult"] == "2"
    assert weight.attrs["init"]["type"] == "fan_in_uniform"
    assert not gk.nn.linear(x, 3).node.meta


@in_one_item()
@pytest.mark.parametrize("name", ["", "/", None])
def test_a_name_scope_needs_a_name(name):
    with pytest.raises(UsageError, match="needs a name"), gk.name_scope(name):
        pass


def test_reserved_attributes_are_refused():
    with pytest.raises(UsageError, match="'init'"), gk.attr_scope(init="zeros"):
        pass
