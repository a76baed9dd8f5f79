"""graphkit ops"""

from __future__ import annotations

from typing import Any

import click

from graphkit.cli._costs import Sized, cost_cells, model_costs, notes
from graphkit.cli._costs import as_json as costs_as_json
from graphkit.cli._limits import limit_options
from graphkit.cli._options import external_root_option, json_option, read_model
from graphkit.cli._output import print_json, print_table, show
from graphkit.errors import UsageError
from graphkit.executor.devices.loading import load_device
from graphkit.executor.devices.registry import has_factory
from graphkit.onnx_io.outline import outline
from graphkit.onnx_io.uses import Means
from graphkit.ops import registry

# Regions of the native program, with gradients of their own.
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})


@click.command()
@click.argument("model", required=False)
@click.argument("shapes", nargs=-1, metavar="[NAME:SHAPE]...")
@click.option("--markdown", is_flag=True, help="Write the page docs/operator_table.md: every operator is tried out.")
@external_root_option
@limit_options
@json_option
def command(
    model: str | None, shapes: tuple[str, ...], markdown: bool, external_root: str | None, as_json: bool
) -> int:
    """List every operator; with MODEL (.onnx or .json), those it uses, how each is supported, and what it costs.

    A row says whether a native kernel of that operator exists; `--markdown` tries them. FLOPs are two for each
    multiply-add of products, convolutions, recurrent layers and attention; bytes are operands and results, as if
    nothing were fused. Operators that the import writes in terms of others are listed on their own. Files that
    cannot be run are listed as well, without costs.

    Exit code 3: the model uses an operator that graphkit does not know.
    """
    if markdown:
        if model is not None or as_json:
            raise UsageError("--markdown lists all operators: it takes no MODEL, and is no JSON")
        from graphkit.checks import operator_table

        click.echo(operator_table.markdown(operator_table.operator_rows()), nl=False)
        return 0
    load_device("cpu")
    if model is None:
        _print_registry(as_json)
        return 0
    written = None if model == "-" or not model.endswith(".onnx") else outline(model)
    lacking = [use for use in written.operators if use[2] is None] if written else []
    if written and lacking:
        rows = [_written_row(*use) | {"count": count} for use, count in sorted(written.operators.items(), key=str)]
        _print_model(model, rows, [], None, as_json)
        return 3
    net = read_model(model, external_root)
    sized = model_costs(net, shapes)
    rows = [
        _row(domain, name) | {"count": cost.nodes} | costs_as_json(cost)
        for (domain, name), cost in sorted((_split(label), cost) for label, cost in sized.costs.operators.items())
    ]
    rewritten = [
        {"operator": _label(domain, name), "count": count, "by": means}
        for (domain, name, means), count in sorted(written.operators.items(), key=str)
        if means != "operator"
    ] if written else []  # fmt: skip
    _print_model(model, rows, rewritten, sized, as_json)
    return 0


def _print_registry(as_json: bool) -> None:
    rows = [_row(cls.domain, cls.name) for cls in sorted(registry, key=lambda c: (c.domain, c.name))]
    if as_json:
        print_json("ops", {"model": None, "operators": rows})
    else:
        columns = ["operator", "runs", "gradient"]
        print_table(f"{len(rows)} operators", columns, [[r[c] for c in columns] for r in rows])


def _print_model(
    model: str,
    rows: list[dict[str, Any]],
    rewritten: list[dict[str, Any]],
    sized: Sized | None,
    as_json: bool,
) -> None:
    """The operators of a model: `rewritten` are those of the file that others stand for, `sized` what it costs."""
    if as_json:
        result: dict[str, Any] = {"model": model, "operators": rows, "rewritten": rewritten}
        if sized is not None:
            result |= {"shapes": sized.shapes, "total": costs_as_json(sized.costs.total), "notes": notes(sized)}
        print_json("ops", result)
        return
    if sized is None:
        columns = ["operator", "count", "runs", "gradient"]
        print_table(f"{len(rows)} operators", columns, [[r[c] for c in columns] for r in rows])
        return
    cells = []
    for row in rows:
        cost = sized.costs.operators[row["operator"]]
        cells.append([row["operator"], row["count"], row["runs"], row["gradient"], *cost_cells(cost)])
    total = sized.costs.total
    title = f"{len(rows)} operators: " + ", ".join(f"{n}{list(s)}" for n, s in sized.shapes.items())
    columns = ["operator", "count", "runs", "gradient", "FLOPs", "bytes"]
    print_table(title, columns, [*cells, ["total", total.nodes, "", "", *cost_cells(total)]])
    for note in notes(sized):
        show(note)
    if rewritten:
        told = {"rule": "in terms of others", "function": "by its definition"}
        print_table("read as others", ["operator", "count", "read"],
                    [[r["operator"], r["count"], told[r["by"]]] for r in rewritten])  # fmt: skip


def _label(domain: str, name: str) -> str:
    return f"{domain}.{name}" if domain else name


def _split(label: str) -> tuple[str, str]:
    domain, _, name = label.rpartition(".")
    return domain, name


def _written_row(domain: str, name: str, means: Means) -> dict[str, Any]:
    """The row of an operator of a file that is not loaded."""
    if means == "operator" or means is None:
        return _row(domain, name)
    how = "by definition" if means == "function" else "by others"
    return {"operator": _label(domain, name), "runs": how, "gradient": how}


def _row(domain: str, name: str) -> dict[str, Any]:
    cls = registry.find(domain, name)
    label = _label(domain, name)
    if cls is None:
        return {"operator": label, "runs": "no", "gradient": "no"}
    differentiable = "yes" if cls.grad is not None else "by expansion" if cls.expand is not None else "no"
    if not domain and name in _CONTROL_FLOW:
        return {"operator": label, "runs": "native", "gradient": "yes"}
    runs = next((how for holds, how in (
        (has_factory("cpu", domain, name), "native"),
        (cls.composite, "by expansion"),
        (cls.views, "view"),
        (bool(cls.formals) and all(f.name in cls.shape_only for f in cls.formals), "shape"),
        (name == "Constant", "constant"),
    ) if holds), "reference")  # fmt: skip
    return {"operator": label, "runs": runs, "gradient": differentiable}
