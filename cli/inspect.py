"""graphkit inspect"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import click

from graphkit.cli._costs import as_json as costs_as_json
from graphkit.cli._costs import cost_cells, label, model_costs, notes
from graphkit.cli._limits import limit_options
from graphkit.cli._options import external_root_option, json_option, read_model
from graphkit.cli._output import log, print_json, print_table, show
from graphkit.errors import UnsupportedError, UsageError
from graphkit.frontend.summary import frozen
from graphkit.ir.context import GROUP
from graphkit.ir.graph import Graph, Value
from graphkit.model import Model
from graphkit.onnx_io.outline import Entry, outline
from graphkit.passes.core.captures import captured
from graphkit.passes.core.sweep import is_control
from graphkit.passes.pipeline import effects
from graphkit.text import human


@click.command()
@click.argument("model")
@click.argument("shapes", nargs=-1, metavar="[NAME:SHAPE]...")
@click.option("--text", "form", flag_value="text", help="Print every node.")
@click.option("--dot", "form", flag_value="dot", help="Print Graphviz source.")
@click.option("--passes", "form", flag_value="passes", help="Print what each pass for inference does to the graph.")
@click.option(
    "--summary", "form", flag_value="summary", default="summary", help="Print a table of nodes (the default)."
)
@click.option("--costs", "form", flag_value="costs", help="Print FLOPs and bytes by operator, for inputs of SHAPE.")
@external_root_option
@limit_options
@json_option
def command(model: str, shapes: tuple[str, ...], form: str, external_root: str | None, as_json: bool) -> None:
    """Show what is in MODEL: inputs, outputs, nodes, parameters.

    Of a file that graphkit cannot run, the default form shows what the file says of itself.

    \b
    graphkit inspect net.onnx
    graphkit inspect net.onnx --dot | dot -Tsvg > net.svg
    graphkit inspect net.onnx --passes
    graphkit inspect net.onnx --costs x:1,3,224,224
    """
    if shapes and form != "costs":
        raise UsageError(f"{shapes[0]}: shapes are for --costs")
    try:
        net = read_model(model, external_root)
    except UnsupportedError as error:
        if form != "summary" or model == "-":
            raise
        _print_outline(model, error, as_json)
        return
    if form == "costs":
        _print_costs(net, shapes, as_json)
        return
    if form == "passes":
        _print_passes(net, as_json)
        return
    if as_json:
        print_json(
            "inspect",
            {
                "model": net.name,
                "inputs": {n: str(t) for n, t in net.input_types.items()},
                "outputs": {n: str(t) for n, t in net.output_types.items()},
                "parameters": {n: str(net.params.type_of(n)) for n in net.params},
                "num_parameters": net.num_parameters,
                "trainable": list(net.trainable),
                "frozen": frozen(net.graph),
                "nodes": len(net.graph.nodes),
                "groups": groups(net),
                "operators": dict(Counter(n.op.name for n in net.graph.nodes).most_common()),
                "meta": net.meta,
            },
        )
        return
    show({"text": net.to_text, "dot": net.to_dot, "summary": net.summary}[form]())
    if form == "summary" and (found := groups(net)):
        print_table("groups", ("group", "nodes", "parameters"), [(n, *f.values()) for n, f in found.items()])


def groups(net: Model) -> dict[str, dict[str, int]]:
    """By group (ctx_group): its nodes, inside of branches and loops too, and the elements of the parameters that it is
    the first to read."""
    found: dict[str, dict[str, int]] = {}
    counted: set[Value] = set()

    def count(graph: Graph, parameters: Mapping[Value, Value]) -> None:
        """parameters: what stands in the graph for parameters of the model, and these."""
        for node in graph.nodes:
            bodies = node.op.subgraphs().values() if is_control(node) else ()
            for body in bodies:
                count(body, {inner: parameters[v] for v, inner in captured(node, body) if v in parameters})
            if (name := node.meta.get(GROUP)) is None:
                continue
            group = found.setdefault(name, {"nodes": 0, "parameters": 0})
            group["nodes"] += 1
            for value in {parameters[v] for v in node.operands if v in parameters} - counted:
                group["parameters"] += math.prod(value.tensor.static_shape)
                counted.add(value)

    count(net.graph, {v: v for v in net.graph.inputs if v.role == "parameter"})
    return found


def _print_costs(net: Model, shapes: tuple[str, ...], as_json: bool) -> None:
    sized = model_costs(net, shapes)
    total, operators = sized.costs.total, sized.costs.operators
    if as_json:
        result = {"model": net.name, "shapes": sized.shapes, "total": costs_as_json(total), "notes": notes(sized)}
        print_json("costs", result | {"operators": {label(*key): costs_as_json(c) for key, c in operators.items()}})
        return
    rows = [(label(*key), cost.nodes, *cost_cells(cost)) for key, cost in operators.items()]
    title = ", ".join((net.name, *(f"{n}{list(s)}" for n, s in sized.shapes.items())))
    print_table(title, ("operator", "nodes", "FLOPs", "bytes"), [*rows, ("total", total.nodes, *cost_cells(total))])
    for note in notes(sized):
        show(note)


def _print_outline(path: str, why: UnsupportedError, as_json: bool) -> None:
    """What the file says, and on stderr why there is no more."""
    found = outline(path)
    if as_json:
        facts = found._asdict() | {"model": found.name, "nodes": len(found.nodes), "unsupported": str(why)}
        operators = {label(d, n): count for (d, n, _), count in found.operators.most_common()}
        print_json("inspect", facts | {"operators": operators})
        return
    for kind, types in (("input", found.inputs), ("output", found.outputs)):
        for name, told in types.items():
            show(f"{kind} {name}: {told or 'of unknown type'}")
    print_table(found.name or "unnamed", Entry._fields, found.nodes)
    click.echo(f"stored: {len(found.stored)} tensors, {human(found.stored_bytes)}")
    log(f"the types are those that the file declares, since graphkit cannot run it: {why}")


def _print_passes(net: Model, as_json: bool) -> None:
    found = list(effects(net.graph))
    if as_json:
        print_json("passes", {"model": net.name, "passes": [e._asdict() for e in found]})
        return
    rows = [(e.name, e.nodes, e.fixed, e.change) for e in found]
    print_table(
        f"{net.name}: passes for inference (nodes on parameters alone run once, not with every input)",
        ("pass", "nodes", "on parameters", "change"),
        rows,
    )
