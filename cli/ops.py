"""graphkit ops"""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from graphkit.cli._options import json_option
from graphkit.cli._output import print_json, print_table
from graphkit.errors import UsageError

# Regions of the native program, with gradients of their own.
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})


@click.command()
@click.argument("model", required=False)
@click.option("--markdown", is_flag=True, help="Write the page docs/operator_table.md: every operator is tried out.")
@json_option
def command(model: str | None, markdown: bool, as_json: bool) -> int:
    """List every operator; with MODEL (.onnx or .json), those it uses and how each is supported: all gaps at once.

    A row says whether a native kernel of that operator exists; `--markdown` tries them.

    Exit code 3: the model uses an operator that graphkit does not know.
    """
    if markdown:
        if model is not None or as_json:
            raise UsageError("--markdown lists all operators: it takes no MODEL, and is no JSON")
        from graphkit.checks import operator_table

        click.echo(operator_table.markdown(operator_table.operator_rows()), nl=False)
        return 0
    rows = _registry_rows() if model is None else _model_rows(model)
    unknown = [r for r in rows if r["runs"] == "no"]
    if as_json:
        print_json("ops", {"model": model, "operators": rows})
    else:
        columns = ["operator", *(["count"] if model else []), "runs", "gradient"]
        print_table(f"{len(rows)} operators", columns, [[r[c] for c in columns] for r in rows])
    return 3 if unknown else 0


def _expanded_row(domain: str, name: str) -> dict[str, Any]:
    """Of an operator that import writes as others."""
    return {"operator": f"{domain}.{name}" if domain else name, "runs": "by expansion", "gradient": "by expansion"}


def _row(domain: str, name: str) -> dict[str, Any]:
    from graphkit.executor.devices.registry import has_factory
    from graphkit.ops import registry

    cls = registry.find(domain, name)
    label = f"{domain}.{name}" if domain else name
    if cls is None:
        return {"operator": label, "runs": "no", "gradient": "no"}
    differentiable = "yes" if cls.grad is not None else "by expansion" if cls.expand is not None else "no"
    if not domain and name in _CONTROL_FLOW:
        return {"operator": label, "runs": "native", "gradient": "yes"}
    runs = next((how for holds, how in (
        (has_factory("cpu", domain, name), "native"),
        (cls.composite, "by expansion"),
        (cls.views, "view"),
        (name == "Constant", "constant"),
    ) if holds), "reference")  # fmt: skip
    return {"operator": label, "runs": runs, "gradient": differentiable}


def _registry_rows() -> list[dict[str, Any]]:
    from graphkit.executor.devices.loading import load_device
    from graphkit.ops import registry

    load_device("cpu")
    return [_row(cls.domain, cls.name) for cls in sorted(registry, key=lambda c: (c.domain, c.name))]


def _model_rows(model: str) -> list[dict[str, Any]]:
    from graphkit.executor.devices.loading import load_device

    load_device("cpu")
    if model.endswith(".onnx"):
        from graphkit.onnx_io.importer import list_operators

        counts, expanded = list_operators(model)
    else:
        from graphkit.cli._options import read_model

        counts = Counter((n.op.domain, n.op.name) for n in read_model(model).graph.nodes)
        expanded = frozenset()
    return [
        (_expanded_row(*key) if key in expanded else _row(*key)) | {"count": count}
        for key, count in sorted(counts.items())
    ]
