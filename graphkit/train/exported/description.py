"""The description of the inputs and outputs of an exported training step, as JSON.

It is a file beside the step, and in the metadata of the step under KEY.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Graph, Value
from graphkit.ir.names import Names
from graphkit.ir.types import TensorType
from graphkit.train import states
from graphkit.train.average import AVERAGE
from graphkit.train.exchange.exchange import StepSpec
from graphkit.train.exported.graph import BATCHES, FLUSH, RANDOM, WEIGHT, state_values
from graphkit.train.programs import loss_scale
from graphkit.train.programs import step as steps
from graphkit.train.programs.weights import BATCH_WEIGHT

KEY = "graphkit.training_step"
FORMAT, VERSION = "graphkit.training_step", 1

_COUNTERS = {
    steps.STEP: "step", RANDOM: "random", BATCHES: "accumulated_batches", WEIGHT: "accumulated_weight",
    loss_scale.NAME: "loss_scale",
}  # fmt: skip
_CONTROLS = {steps.LEARNING_RATE: "learning_rate", FLUSH: "flush"}

_ADVICE = (
    "In each run, feed every state. In the next run, feed the output that the state names. The first values are the "
    "outputs of the init file, under the names of the inputs."
)


def describe(
    graph: Graph, spec: StepSpec, inputs: Sequence[str], *, weights: str | None, carried: Mapping[str, str],
    metrics: Sequence[str], init: str,
) -> dict[str, Any]:  # fmt: skip
    """Return the description of a step as plain data.

    Args:
        graph: The graph of `standalone_step`, or one with more outputs.
        carried: Input name to output name, for recurrent states.
    """
    names = list(graph.output_names)
    loss, further = names[0], [n for n in names[1:] if n not in metrics and n != BATCH_WEIGHT]
    replaced = set(state_values(graph))
    taken = Names([*names, *(graph.name_of(v) for v in graph.inputs)])
    listed = [
        {"input": name, "output": taken.take(f"{name}_updated"), **_role(name, spec), **_type(v)}
        for v in state_values(graph)
        for name in [graph.name_of(v)]
    ]  # fmt: skip
    return {
        "format": FORMAT, "version": VERSION, "advice": _ADVICE, "init": init, "loss": loss,
        "outputs": further, "metrics": list(metrics),
        "batch_weight": BATCH_WEIGHT if BATCH_WEIGHT in names else None,
        "inputs": [
            {"name": graph.name_of(v), "role": _input_role(graph.name_of(v), inputs, weights), **_type(v)}
            for v in graph.inputs
            if v not in replaced and v.role == "data"
        ],
        "states": listed,
        "carried": [{"input": a, "output": b} for a, b in carried.items()],
        "accumulate": spec.accumulate, "optimizer": spec.rule.optimizer.describe(),
    }  # fmt: skip


def _type(value: Value) -> dict[str, Any]:
    kind = value.type
    if not isinstance(kind, TensorType):
        raise UnsupportedError(f"the input {value.name!r} is {kind}; the step of such a model cannot be exported")
    shape = None if kind.shape is None else [d if isinstance(d, int) else str(d) for d in kind.shape]
    return {"type": str(kind.dtype), "shape": shape}


def _input_role(name: str, inputs: Sequence[str], weights: str | None) -> str:
    if name in inputs:
        return "data"
    return "sample_weight" if name == weights else _CONTROLS.get(name, "target")


def _role(name: str, spec: StepSpec) -> dict[str, str]:
    if name in _COUNTERS and (name != loss_scale.NAME or spec.rule.scale is not None):
        return {"role": _COUNTERS[name]}
    for parameter, slot, role in _slots(spec):
        if name == (f"{parameter}/{slot}" if slot else parameter):
            return {"role": role, "parameter": parameter} | ({"slot": slot} if role == "optimizer" else {})
    return {"role": "statistic"}


def _slots(spec: StepSpec) -> Iterator[tuple[str, str, str]]:
    """Yield (parameter, slot, role) for all states of trained parameters. The slot of a parameter itself is ""."""
    for t in spec.trained:
        yield t.name, "", "parameter"
        yield t.name, AVERAGE, "average"
        yield t.name, steps.GRADIENT_SUM, "gradient_sum"
        for slot in states.names(spec.rule.optimizer, t.value.dtype):
            yield t.name, slot, "optimizer"
