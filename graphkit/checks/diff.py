"""Compare two models: structure, attributes, weights, metadata, and outputs on the same inputs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphkit.checks.differences.behaviour import compared_outputs
from graphkit.checks.differences.graphs import GraphDiff
from graphkit.checks.differences.ports import Ports
from graphkit.checks.differences.result import ModelDiff
from graphkit.checks.inputs import fixed_sizes, make_feeds
from graphkit.loading import load
from graphkit.model import Model
from graphkit.signatures import typed


@typed("gk.diff")
def diff(
    a: Model | str | Path,
    b: Model | str | Path,
    *,
    run: bool = False,
    inputs: Mapping[str, Any] | None = None,
    fill: str = "random",
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    threads: int | None = None,
) -> ModelDiff:
    """Compare two models, and return what differs.

    Nodes are matched by structure: first nodes that are computed or used in the same way, then neighbours of matched
    nodes, nodes with equal names, and nodes whose attributes or operators differ. The time is linear in the number of
    nodes. Names of inputs and outputs are compared. Other names of nodes, internal values and weights are reported, but
    are not a difference.

    Args:
        a: A model, or the path of a file or run folder that `gk.load` reads.
        b: The other one.
        run: Also run both models on the same inputs, and compare the outputs.
        inputs: Arrays for `run`, by the names of inputs of `a`. Missing ones are generated.
        fill: Contents of generated inputs: "random", "ones", "zeros" or "arange".
        shapes: Input name to shape, for generated inputs with unknown sizes.
        seed: Seed of generated inputs.
        rtol: Relative tolerance of outputs, with `a` as the reference (default: that of `gk.verify`).
        atol: Absolute tolerance of outputs (default: that of `gk.verify`). If neither tolerance is given, an output
            that is not within them passes if both models are about equally far from `a` in double precision (see
            `gk.verify`).
        threads: Number of CPU threads for `run` (default: GRAPHKIT_NUM_THREADS, else one per core).

    Raises:
        UsageError: There is no such file; or `run` is given, and a model draws random numbers.
        InputError: An input is unknown, or does not fit `a`.
    """
    one, other = (model if isinstance(model, Model) else load(os.fspath(model)) for model in (a, b))
    ports = Ports.of_models(one, other)
    found = GraphDiff(one.graph, other.graph, ports, (one, other)).result()
    if not run:
        return found
    fixed = fixed_sizes((a.type, b.type) for a, b in ports.value_pairs)
    feeds = make_feeds(one, fill, given=inputs or {}, shapes=shapes, fixed=fixed, seed=seed)
    ran = compared_outputs(one, other, ports, feeds, fill=fill, seed=seed, rtol=rtol, atol=atol, threads=threads)
    return replace(found, behaviour=ran)
