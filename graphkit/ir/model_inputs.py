"""The inputs of a model, from its outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphkit.errors import UsageError
from graphkit.ir.graph import Value, topological
from graphkit.signatures import check_values


def ordered_inputs(outputs: Iterable[Value], given: Sequence[Value] | None = None) -> list[Value]:
    """Return the data inputs that the outputs depend on, in the order of their creation, then parameters and states.

    given: the data inputs to return instead.
    """
    outputs = list(outputs)
    check_values("a model's outputs", outputs)
    check_values("a model's inputs", given or ())
    found: dict[Value, None] = {v: None for v in outputs if v.node is None}
    for node in topological(outputs):
        found.update((v, None) for v in node.inputs if v is not None and v.node is None)
    data = sorted((v for v in found if v.role == "data"), key=lambda v: v.serial)
    stored = [v for v in found if v.role != "data"]
    return [*(data if given is None else given), *stored]


def check_input_names(model: str, inputs: Iterable[Value]) -> None:
    """Raise UsageError if two data inputs have the same name, because runs take arrays by name."""
    found: dict[str, Value] = {}
    for value in inputs:
        if value.role == "data" and value.name and found.setdefault(value.name, value) is not value:
            raise UsageError(
                f"gk.Model: model {model!r} has two inputs named {value.name!r}: {found[value.name].type} and "
                f"{value.type}; create one of them by gk.input with another name"
            )
