from __future__ import annotations

import io

import graphkit as gk
from graphkit.frontend.summary import print_summary, rows, summary
from graphkit.ir.counts import counts


def network():
    x = gk.input("x", ["batch", 4])
    h = gk.nn.batch_norm(gk.nn.linear(x, 3, name="fc1"), name="bn")
    shared = h.node.inputs[0].node.inputs[1]
    with gk.name_scope("head"):
        y = gk.nn.linear(gk.relu(h), 2, bias=False, name="fc2")
    frozen = gk.parameter("scale", [2], "ones", trainable=False)
    return gk.Model(gk.reduce_sum(y * frozen) + gk.reduce_sum(shared), name="small")


def test_rows_count_each_parameter_once_where_it_is_first_read():
    table = {row.name: row for row in rows(network().graph)}
    assert table["x"] == ("x", "input", "float32[batch, 4]", 0)
    assert table["fc1"] == ("fc1", "Gemm", "float32[batch, 3]", 15)
    assert (table["bn"].operator, table["bn"].parameters) == ("BatchNormalization", 6)
    assert table["head/fc2"].parameters == 6
    assert not any(row.operator == "Constant" for row in table.values())
    assert sum(row.parameters for row in table.values()) == network().num_parameters


def test_totals():
    assert counts(network().graph) == (29, 27, 6, 140)


def test_summary_text_is_plain_and_stable():
    text = summary(network().graph)
    assert text == summary(network().graph) == network().summary()
    lines = text.splitlines()
    assert lines[0] == "small"
    assert lines[2].split() == ["name", "operator", "output", "parameters"]
    assert lines[-3:] == ["parameters: 29 (27 trainable)", "running statistics: 6", "stored: 140 bytes"]
    assert not any(line.endswith(" ") for line in lines)
    assert "\x1b" not in text


def test_a_terminal_gets_a_table_and_a_file_the_text():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    plain, terminal = io.StringIO(), Terminal()
    print_summary(network().graph, plain)
    print_summary(network().graph, terminal)
    assert plain.getvalue() == network().summary() + "\n"
    # Types are text, not markup: [batch, 4] survives.
    assert "float32[batch, 4]" in terminal.getvalue()
    assert "head/fc2" in terminal.getvalue()
