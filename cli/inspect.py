"""graphkit inspect"""

from __future__ import annotations

from collections import Counter

import click

from graphkit.cli._options import external_root_option, json_option, read_model
from graphkit.cli._output import print_json


@click.command()
@click.argument("model")
@click.option("--text", "form", flag_value="text", help="Print every node.")
@click.option("--dot", "form", flag_value="dot", help="Print Graphviz source.")
@click.option(
    "--summary", "form", flag_value="summary", default="summary", help="Print a table of nodes (the default)."
)
@external_root_option
@json_option
def command(model: str, form: str, external_root: str | None, as_json: bool) -> None:
    """Show what is in MODEL: inputs, outputs, nodes, parameters.

    \b
    graphkit inspect net.onnx
    graphkit inspect net.onnx --dot | dot -Tsvg > net.svg
    """
    net = read_model(model, external_root)
    if as_json:
        print_json(
            "inspect",
            {
                "model": net.name,
                "inputs": {n: str(t) for n, t in net.input_types.items()},
                "outputs": {n: str(t) for n, t in net.output_types.items()},
                "parameters": {n: str(net.params.type_of(n)) for n in net.params},
                "num_parameters": net.num_parameters,
                "nodes": len(net.graph.nodes),
                "operators": dict(Counter(n.op.name for n in net.graph.nodes).most_common()),
                "meta": net.meta,
            },
        )
        return
    click.echo({"text": net.__str__, "dot": net.to_dot, "summary": net.summary}[form]())
