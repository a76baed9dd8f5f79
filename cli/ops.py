"""graphkit ops"""

from __future__ import annotations

from typing import Any

import click

from graphkit.cli._costs import Sized, cost_cells, label, model_costs, notes
from graphkit.cli._costs import as_json as costs_as_json
from graphkit.cli._limits import limit_options
from graphkit.cli._options import json_option, model_file_options, read_model
from graphkit.cli._output import log, print_json, print_table, show
from graphkit.errors import UnsupportedError, UsageError
from graphkit.executor.devices.loading import load_device
from graphkit.executor.devices.registry import rule_of
from graphkit.onnx_io.outline import Outline, outline
from graphkit.ops import registry
from graphkit.text import quantity

# Operators that the native program executes as regions, with their own gradients.
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
# How an operator of a file runs, if the registry does not have it.
_READ = {"rule": "rewritten on import", "function": "by its definition"}


@click.command()
@click.argument("model", required=False)
@click.argument("shapes", nargs=-1, metavar="[NAME:SHAPE]...")
@click.option(
    "--markdown", is_flag=True, help="Run the kernels of all operators, and print the page docs/operator_table.md."
)
@model_file_options
@limit_options
@json_option
def command(
    model: str | None, shapes: tuple[str, ...], markdown: bool, external_root: str | None, as_json: bool
) -> int:
    """List all operators. With MODEL (.onnx or .json), list the operators that it uses, how each is supported, and what
    it costs.

    The column "runs" says how an operator runs, for example "native" (it has a native kernel) or "reference" (it is
    interpreted). A multiply-add of a matrix product, convolution, recurrent layer or attention counts as two FLOPs.
    Bytes counts the operands and results of every node, without fusion. Operators that the import replaces by others
    are listed in a second table. If graphkit cannot run the file, the list has no costs.

    Exit code 3: the model uses an operator that graphkit does not know.
    """
    if markdown:
        if model is not None or as_json:
            raise UsageError("--markdown lists all operators: leave out MODEL and --json")
        from graphkit.checks import operator_table

        click.echo(operator_table.markdown(operator_table.operator_rows()), nl=False)
        return 0
    load_device("cpu")
    if model is None:
        _print_registry(as_json)
        return 0
    written = outline(model) if model.endswith(".onnx") else None
    try:
        net = read_model(model, external_root)
    except UnsupportedError as error:
        if written is None:
            raise
        _print_written(model, written, as_json)
        log(f"graphkit cannot run this file: {error}")
        return error.exit_code
    _print_model(model, model_costs(net, shapes), _rewritten(written) if written else [], as_json)
    return 0


def _print_registry(as_json: bool) -> None:
    rows = [_row(cls.domain, cls.name) for cls in sorted(registry, key=lambda c: (c.domain, c.name))]
    if as_json:
        print_json("ops", {"model": None, "operators": rows})
    else:
        columns = ["operator", "runs", "gradient"]
        print_table(quantity(len(rows), "operator"), columns, [[r[c] for c in columns] for r in rows])


def _print_written(model: str, written: Outline, as_json: bool) -> None:
    """Print the operators of a file that graphkit cannot run."""
    rows = []
    for (domain, name, means), count in sorted(written.operators.items(), key=str):
        how = _READ.get(means or "")
        row = _row(domain, name) if how is None else {"operator": label(domain, name), "runs": how, "gradient": how}
        rows.append(row | {"count": count})
    if as_json:
        print_json("ops", {"model": model, "operators": rows, "rewritten": []})
        return
    columns = ["operator", "count", "runs", "gradient"]
    print_table(quantity(len(rows), "operator"), columns, [[r[c] for c in columns] for r in rows])


def _rewritten(written: Outline) -> list[dict[str, Any]]:
    """Return the operators of a file that the import replaces by others."""
    return [
        {"operator": label(domain, name), "count": count, "by": means}
        for (domain, name, means), count in sorted(written.operators.items(), key=str)
        if means != "operator"
    ]


def _print_model(model: str, sized: Sized, rewritten: list[dict[str, Any]], as_json: bool) -> None:
    """Print the operators of a model with their costs."""
    costs = sorted(sized.costs.operators.items(), key=lambda item: item[0])
    rows = [_row(*key) | {"count": cost.nodes} | costs_as_json(cost) for key, cost in costs]
    total = sized.costs.total
    if as_json:
        facts = {"shapes": sized.shapes, "total": costs_as_json(total), "notes": notes(sized)}
        print_json("ops", {"model": model, "operators": rows, "rewritten": rewritten} | facts)
        return
    cells = [
        [row["operator"], row["count"], row["runs"], row["gradient"], *cost_cells(cost)]
        for row, (_, cost) in zip(rows, costs, strict=True)
    ]
    title = f"{quantity(len(rows), 'operator')}: " + ", ".join(f"{n}{list(s)}" for n, s in sized.shapes.items())
    columns = ["operator", "count", "runs", "gradient", "FLOPs", "bytes"]
    print_table(title, columns, [*cells, ["total", total.nodes, "", "", *cost_cells(total)]])
    for note in notes(sized):
        show(note)
    if rewritten:
        read = [[r["operator"], r["count"], _READ[r["by"]]] for r in rewritten]
        print_table("replaced by other operators on import", ["operator", "count", "runs"], read)


def _row(domain: str, name: str) -> dict[str, Any]:
    cls, text = registry.find(domain, name), label(domain, name)
    if cls is None:
        return {"operator": text, "runs": "no", "gradient": "no"}
    differentiable = "yes" if cls.grad is not None else "by expansion" if cls.expand is not None else "no"
    if not domain and name in _CONTROL_FLOW:
        return {"operator": text, "runs": "native", "gradient": "yes"}
    rule = rule_of("cpu", cls)
    runs = next((how for holds, how in (
        (rule.has_kernels, "native"),
        (cls.composite, "by expansion"),
        (cls.views, "view"),
        (rule.string_function is not None, "native"),
        (bool(cls.formals) and all(f.name in cls.shape_only for f in cls.formals), "shape"),
        (name == "Constant", "constant"),
    ) if holds), "reference")  # fmt: skip
    return {"operator": text, "runs": runs, "gradient": differentiable}
