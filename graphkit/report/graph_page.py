"""Write the HTML page that draws the graph of a model: zoom, search, details of each node, FLOPs, bytes and times."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import TYPE_CHECKING

from graphkit.errors import UsageError
from graphkit.ir.graph import Graph
from graphkit.model import Model
from graphkit.passes.control.specialise import specialise_subgraphs
from graphkit.passes.core.bind import bind
from graphkit.report.graph_data import page_data
from graphkit.report.graph_views import Drawing, drawing_of
from graphkit.report.named_results import named_model, with_results
from graphkit.report.node_times import NodeTimes, measured, read_times
from graphkit.report.page import filled
from graphkit.signatures import typed
from graphkit.text import quantity

if TYPE_CHECKING:
    from graphkit.executor.run.profile import Profile


@typed("gk.graph_page")
def graph_page(
    model: Model,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    profile: Profile | str | os.PathLike[str] | None = None,
    time: bool = False,
) -> str:
    """Return an HTML page that draws the graph of a model. It needs no other files and no network.

    The page shows the operator, attributes, operands, results, parameters, FLOPs and bytes of each node. Each subgraph
    of a branch or loop, and each group of a graph with more than 5,000 nodes, is a view that a box opens.

    Args:
        model: The model.
        shapes: Input shapes by name. Without them, shapes, FLOPs and bytes are shown with symbolic dimensions.
        profile: Times of the nodes: a Profile, or the path of a file that `gk.profile` wrote.
        time: Run the model with generated inputs, and show the times of its nodes.

    Returns:
        The text of the page.

    Raises:
        InputError: The shapes do not fit the model.
        UsageError: The profile cannot be read or belongs to another model, or both `profile` and `time` are given.
    """
    if time and profile is not None:
        raise UsageError("give either a profile or time=True (--time), not both")
    named, made_up = named_model(model) if time or profile else (model, frozenset())
    graph = named.graph
    if shapes:
        graph, _ = specialise_subgraphs(bind(graph, {name: tuple(shape) for name, shape in shapes.items()}))
    drawing = drawing_of(graph)
    times = _times(model, named, shapes or {}, profile) if time or profile else None
    data = page_data(graph, drawing, times, made_up)
    # A "<" in a name could end the script element.
    embedded = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return filled(
        "graph.html", title=escape(graph.name or "unnamed"), about=escape(_about(graph, drawing, times)), data=embedded,
        style=_file("graph.css"), script=_file("graph.js"), draw=_file("graph_draw.js"),
    )  # fmt: skip


def _times(
    model: Model, named: Model, shapes: Mapping[str, Sequence[int]], profile: Profile | str | os.PathLike[str] | None
) -> NodeTimes:
    """Return the times of a profile of `model`, or measure them with `named`, the model with names for all results."""
    if profile is None:
        return read_times(measured(named, shapes))
    times = read_times(profile)
    return times if named is model else with_results(times, named, shapes)


def _file(name: str) -> str:
    return resources.files("graphkit.report").joinpath(name).read_text("utf-8")


def _about(graph: Graph, drawing: Drawing, times: NodeTimes | None) -> str:
    named = (f"{graph.name_of(v)}: {v.type}" for v in graph.inputs if v.role == "data")
    parts = [quantity(len(drawing.entries), "node"), *itertools.islice(named, 3)]
    if times is not None:
        parts.append(f"times: mean of {quantity(times.runs, 'run')}" + (f" in {times.source}" if times.source else ""))
    return ", ".join(parts)
