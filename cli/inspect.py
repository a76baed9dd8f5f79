"""graphkit inspect"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from graphkit.cli._costs import as_json as costs_as_json
from graphkit.cli._costs import cost_cells, label, model_costs, notes
from graphkit.cli._groups import REPORTING, option
from graphkit.cli._inputs import parse_shapes
from graphkit.cli._limits import limit_options
from graphkit.cli._options import json_option, model_file_options, page_file, read_model
from graphkit.cli._output import log, print_json, print_table, show
from graphkit.errors import UnsupportedError, UsageError
from graphkit.frontend.summary import frozen
from graphkit.ir.atomic import write_whole
from graphkit.ir.context import GROUP
from graphkit.ir.counts import counts, elements, parameters
from graphkit.ir.graph import Graph, Value
from graphkit.loading import is_onnx_file
from graphkit.model import Model
from graphkit.onnx_io.outline import Entry, outline
from graphkit.passes.core.captures import captured
from graphkit.passes.core.sweep import is_control
from graphkit.passes.pipeline import effects
from graphkit.text import human, listed
from graphkit.train.imported import float_constants


@click.command()
@click.argument("model")
@click.argument("shapes", nargs=-1, metavar="[NAME:SHAPE]...")
@option("--text", "form", group=REPORTING, flag_value="text", help="Print every node, as text.")
@option("--dot", "form", group=REPORTING, flag_value="dot", help="Print the graph as Graphviz source.")
@option(
    "--passes", "form", group=REPORTING, flag_value="passes", help="Print what each graph pass for inference changes."
)
@option(
    "--summary", "form", group=REPORTING, flag_value="summary", default="summary",
    help="Print a table of nodes. This is the default.",
)  # fmt: skip
@option(
    "--costs", "form", group=REPORTING, flag_value="costs",
    help="Print FLOPs and bytes per operator, for inputs of the given shapes.",
)  # fmt: skip
@option(
    "--html", group=REPORTING, type=click.Path(dir_okay=False), callback=page_file, metavar="FILE",
    help="Write an HTML page that draws the graph, with a search and the details of each node. With input shapes, the "
    "page shows the FLOPs and bytes of each node for them.",
)  # fmt: skip
@option(
    "--profile", group=REPORTING, type=click.Path(dir_okay=False), metavar="TRACE.json",
    help="With --html: show the times in this file, which --profile of `graphkit run` wrote.",
)  # fmt: skip
@option(
    "--time", group=REPORTING, is_flag=True,
    help="With --html: run the model with generated inputs on the CPU, and show the time of each node.",
)  # fmt: skip
@model_file_options
@limit_options
@json_option
def command(
    model: str, shapes: tuple[str, ...], form: str, html: str | None, profile: str | None, time: bool,
    external_root: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Show the nodes, inputs, outputs and parameters of MODEL, and the opset and producer of the file.

    --train and --freeze of `graphkit train` take the names of parameters that are shown here. If graphkit does not
    support an operator of an .onnx file, --summary shows the types that the file declares.

    \b
    graphkit inspect net.onnx
    graphkit inspect net.onnx --dot | dot -Tsvg > net.svg
    graphkit inspect net.onnx --passes
    graphkit inspect net.onnx --costs x:1,3,224,224
    graphkit inspect net.onnx x:1,3,224,224 --html net.html --time
    """
    _check(shapes, form, html, profile, time)
    try:
        net = read_model(model, external_root)
    except UnsupportedError as error:
        if form != "summary" or html is not None or model == "-" or not is_onnx_file(model):
            raise
        _print_outline(model, error, as_json)
        return
    if html is not None:
        _write_page(net, html, parse_shapes(shapes), profile, time, as_json and form != "costs")
        if form != "costs":
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
                "num_trainable": counts(net.graph).trainable,
                "trainable": list(net.trainable),
                "frozen": frozen(net.graph),
                "constants": _constants(net),
                "opset": net.meta.get("onnx.opset", ""),
                "producer": _producer(net),
                "nodes": len(net.graph.nodes),
                "groups": groups(net),
                "operators": dict(Counter(n.op.name for n in net.graph.nodes).most_common()),
                "meta": net.meta,
            },
        )
        return
    show({"text": net.to_text, "dot": net.to_dot, "summary": net.summary}[form]())
    if form == "summary":
        _print_facts(net)


def _check(shapes: tuple[str, ...], form: str, html: str | None, profile: str | None, time: bool) -> None:
    """Raise UsageError if options do not work together."""
    if shapes and form != "costs" and html is None:
        raise UsageError(f"{shapes[0]}: input shapes only work with --costs and --html")
    if html is None and (profile is not None or time):
        raise UsageError(f"{'--time' if time else '--profile'} only works with --html")
    if html is not None and form not in ("summary", "costs"):
        raise UsageError(f"--html does not work with --{form}: give one of them")


def _write_page(
    net: Model, html: str, shapes: Mapping[str, Sequence[int]], profile: str | None, time: bool, as_json: bool
) -> None:
    """Write the page that draws the graph."""
    from graphkit.report.graph_page import graph_page

    page = graph_page(net, shapes=shapes, profile=profile, time=time).encode()
    write_whole(Path(html), [page])
    log(f"wrote {html}")
    if as_json:
        nodes = len(net.graph.nodes)
        print_json("graph_page", {"model": net.name, "file": html, "nodes": nodes, "bytes": len(page)})


def _print_facts(net: Model) -> None:
    """Print what follows the table of nodes: producer, inputs, outputs, names of parameters, groups."""
    _print_file(net.meta.get("onnx.opset", ""), _producer(net))
    for kind, types in (("input", net.input_types), ("output", net.output_types)):
        for name, held in types.items():
            show(f"{kind} {name}: {held}")
    left = frozen(net.graph)
    stored = [(name, net.params.type_of(name), _training(name, net, left)) for name in net.params]
    if stored:
        print_table("parameters, with their names for --train and --freeze", ("name", "type", "training"), stored)
    if constants := _constants(net):
        names = listed(constants, len(constants), 8)
        show(f"constants that `graphkit train --train NAME` can train (--constants: all of them): {names}")
    if found := groups(net):
        print_table("groups", ("group", "nodes", "parameters"), [(n, *f.values()) for n, f in found.items()])


def _print_file(opset: str, producer: str) -> None:
    if opset:
        show(f"file: ONNX, opset {opset}, written by {producer or 'an unknown program'}")


def _producer(net: Model) -> str:
    """Return the program that wrote the file, with its version. Empty if the file does not name it."""
    return " ".join(filter(None, (net.meta.get(f"onnx.producer_{part}", "") for part in ("name", "version"))))


def _constants(net: Model) -> list[str]:
    """Return the floating-point constants that are not scalars: exporters may have stored weights in them."""
    return [name for name, value in float_constants(net.graph).items() if value.rank]


def _training(name: str, net: Model, left: Mapping[str, str]) -> str:
    """Return what training does with a stored tensor."""
    if name in net.trainable:
        return "trained"
    if net.value(name).role == "state":
        return "running statistic"
    return f"not trained ({left[name]})" if name in left else "not trained"


def groups(net: Model) -> dict[str, dict[str, int]]:
    """Count nodes and parameters of each group (ctx_group).

    Nodes in branches and loops count. A parameter counts in the first group that reads it.
    """
    found: dict[str, dict[str, int]] = {}
    counted: set[Value] = set()

    def count(graph: Graph, known: Mapping[Value, Value]) -> None:
        """known: values of the graph that are parameters of the model."""
        for node in graph.nodes:
            bodies = node.op.subgraphs().values() if is_control(node) else ()
            for body in bodies:
                count(body, {inner: known[v] for v, inner in captured(node, body) if v in known})
            if (name := node.meta.get(GROUP)) is None:
                continue
            group = found.setdefault(name, {"nodes": 0, "parameters": 0})
            group["nodes"] += 1
            for value in {known[v] for v in node.operands if v in known} - counted:
                group["parameters"] += elements([value])
                counted.add(value)

    count(net.graph, {v: v for v in parameters(net.graph)})
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
    """Print what the file declares, and on stderr why graphkit cannot run it."""
    found = outline(path)
    if as_json:
        facts = found._asdict() | {"model": found.name, "nodes": len(found.nodes), "unsupported": str(why)}
        operators = {label(d, n): count for (d, n, _), count in found.operators.most_common()}
        print_json("inspect", facts | {"operators": operators})
        return
    _print_file(found.opset, found.producer)
    for kind, types in (("input", found.inputs), ("output", found.outputs)):
        for name, told in types.items():
            show(f"{kind} {name}: {told or 'of unknown type'}")
    print_table(found.name or "unnamed", Entry._fields, found.nodes)
    click.echo(f"stored: {len(found.stored)} tensors, {human(found.stored_bytes)}")
    log(f"the types above are those that the file declares, because graphkit cannot run it: {why}")


def _print_passes(net: Model, as_json: bool) -> None:
    found = list(effects(net.graph))
    if as_json:
        print_json("passes", {"model": net.name, "passes": [e._asdict() for e in found]})
        return
    rows = [(e.name, e.nodes, e.fixed, e.change) for e in found]
    print_table(
        f"{net.name}: passes for inference (nodes that only depend on parameters run once, not in every run)",
        ("pass", "nodes", "run once", "change"),
        rows,
    )
