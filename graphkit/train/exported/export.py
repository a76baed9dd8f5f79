"""Write the training step of a Trainer as ONNX files, and check them in ONNX Runtime."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from graphkit import config
from graphkit.checks.inputs import concrete_shapes, make_feeds
from graphkit.errors import InputError, UnsupportedError, UsageError, did_you_mean
from graphkit.ir.graph import Graph, Value
from graphkit.ir.names import Names
from graphkit.ir.types import DType, TensorType, dtype_of
from graphkit.ops import F
from graphkit.passes.core.bind import match_shapes
from graphkit.passes.core.sweep import rewrite
from graphkit.signatures import shown
from graphkit.text import quantity, short_repr
from graphkit.train import states as optimizer_states
from graphkit.train.base_trainer import BaseTrainer
from graphkit.train.exchange.exchange import StepSpec
from graphkit.train.exported.comparison import StepReport, Subject, compare_steps, random_state
from graphkit.train.exported.description import KEY, describe
from graphkit.train.exported.graph import BATCHES, RANDOM, WEIGHT, Rate, standalone_step, state_values
from graphkit.train.exported.metrics import with_metrics
from graphkit.train.inputs import by_name
from graphkit.train.losses import get as get_loss
from graphkit.train.programs import loss_scale
from graphkit.train.programs.step import STEP

RATES = ("schedule", "input")

_SAMPLES = 4

# First loss scale of a step with a float16 loss: the scaled loss must be below 65504.
_HALF_SCALE = 2.0**10


@dataclass(frozen=True)
class ExportedStep:
    """The files of an exported training step.

    Attributes:
        files: The files that were written; the last three are the step, its init file and its description.
        description: What each input and output is (see docs/training_step.md).
        report: The comparison with graphkit; None with `verify=False`.
    """

    files: tuple[Path, ...]
    description: Mapping[str, Any]
    report: StepReport | None

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield str(self.files[-3])
        yield quantity(len(self.description["states"]), "state")
        yield "not verified" if self.report is None else "verified"


@dataclass(frozen=True)
class StepOptions:
    opset: int | None
    batch: Any
    rate: str
    metrics: Sequence[str]
    loss_scaling: bool
    verify: bool


def export_step(trainer: BaseTrainer, path: Path, options: StepOptions) -> ExportedStep:
    from graphkit.onnx_io import exporter
    from graphkit.onnx_io.writing import write_together

    path, init_path, description_path = step_files(path)
    spec = _exportable(trainer, options.loss_scaling)
    batch = _batch(trainer, spec, options.batch) if options.verify else {}
    graph = standalone_step(spec, _rate(trainer, options.rate))
    graph = with_metrics(graph, options.metrics, trainer._output, trainer._targets)
    graph, renamed = _with_unique_outputs(graph)
    weights = trainer._targets.weight_input if trainer._targets.weighted else None
    description = describe(
        graph, spec, trainer.net.inputs, weights=weights,
        carried={fed: renamed[output] for fed, output in trainer._recurrent_state.names.items()},
        metrics=[renamed[name] for name in options.metrics], init=init_path.name,
    )  # fmt: skip
    states = _first_states(trainer, spec, graph)
    text = json.dumps(description, indent=1)
    outputs, constants = _with_states_as_data(graph, description), _constants(trainer, graph)
    step = exporter.export(
        outputs, constants, opset=options.opset, name=f"{trainer.net.name}_step", meta={KEY: json.dumps(description)}
    )
    report = None
    if options.verify:
        subject = Subject(
            step, description, spec, states, trainer.executor.rng,
            (trainer.updates, trainer._stepper.accumulated, trainer._stepper.accumulated_weight),
            *_compared_outputs(trainer, spec, renamed, options.metrics),
        )  # fmt: skip
        report = compare_steps(subject, batch, _steps(trainer, spec.accumulate), spec.options["threads"])
        report.raise_if_failed()
    init = exporter.export(*_init_graph(states), opset=options.opset, name=f"{trainer.net.name}_init")
    *data, _, _, _ = write_together({init_path: init, description_path: f"{text}\n".encode(), path: step})
    return ExportedStep((*data, path, init_path, description_path), description, report)


def step_files(path: Path) -> tuple[Path, Path, Path]:
    """Return the names of the step, its init file and its description.

    Raises UsageError if `path` does not end in .onnx, its folder does not exist, or a name is a folder.
    """
    if path.suffix != ".onnx":
        raise UsageError(f"{path}: the name of the file of a training step must end in .onnx")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")
    found = path, path.with_name(f"{path.stem}_init.onnx"), path.with_name(f"{path.stem}_roles.json")
    for file in found:
        if file.is_dir():
            raise UsageError(f"{file}: is a directory; choose another name for the training step")
    return found


def _exportable(trainer: BaseTrainer, loss_scaling: bool) -> StepSpec:
    """Return the step on the CPU in float32, whatever the Trainer's device, precision and backends."""
    if trainer._division is not None or not trainer._alone:
        raise UnsupportedError(
            "the training step of several processes (kvstore=, groups=) cannot be exported, because ONNX has no "
            "operators that send values between processes: export from a Trainer of one process"
        )
    if trainer._mixing is not None:
        raise UnsupportedError(
            "a training step with mixup= or cutmix= cannot be exported, because graphkit mixes batches in Python: "
            "leave them out, and mix the batches that you feed to the file"
        )
    trainer._averages.check_not_swapped("to_onnx()")
    spec: StepSpec = trainer._exchange.spec  # type: ignore[attr-defined]  # a LocalExchange: there is one process
    options = {**spec.options, "device": "cpu", "precision": "f32", "backends": ()}
    rule = spec.rule
    if loss_scaling and rule.scale is None:
        rule = replace(rule, scale=loss_scale.state())
    return replace(spec, options=options, rule=rule, recompute=None, swap_memory=False)


def _rate(trainer: BaseTrainer, kind: str) -> Rate:
    if kind not in RATES:
        raise UsageError(f"to_onnx: rate must be one of {', '.join(map(repr, RATES))}, not {kind!r}")
    if kind == "input":
        return Rate(None)
    schedule, first = trainer.optimizer.schedule, 0
    if schedule.is_open and trainer._rates.run_updates is not None:
        schedule, first = schedule.over(trainer._rates.run_updates), trainer.position.first_update
    if schedule.is_open:
        raise UsageError(
            f"the schedule {type(schedule).__name__} covers all updates of a run, and their number is unknown: "
            "give steps= (--schedule-option steps=N), or feed the rate (rate='input', --rate-input)"
        )
    count = int(trainer._stepper.slots[STEP])
    return Rate(schedule, trainer.rate_scale, trainer.updates - count - first)


def _compared_outputs(
    trainer: BaseTrainer, spec: StepSpec, renamed: Mapping[str, str], metrics: Sequence[str]
) -> tuple[dict[str, str], dict[str, tuple[str, str, str]]]:
    outputs = {renamed[name]: name for name in spec.graph.output_names[1:]}
    if not metrics:
        return outputs, {}
    targets, output = trainer._targets, trainer._output
    target = targets.program_input(targets.name_for(output))
    return outputs, {renamed[name]: (name, renamed[output], target) for name in metrics}


def _steps(trainer: BaseTrainer, accumulate: int) -> list[tuple[float, bool]]:
    """Return the steps of the comparison: the learning rate of each, and whether it flushes.

    First come all steps up to the next update. With `accumulate`, a step with `flush` follows, which updates with one
    batch. One more step follows, which begins directly after an update.
    """
    schedule, count = trainer.optimizer.schedule, accumulate - trainer._stepper.accumulated
    if schedule.is_open and trainer._rates.run_updates is None:
        schedule = schedule.over(1000)
        rates = [schedule(0), schedule(1)]
    else:
        position = trainer.position.first_update
        rates = [trainer._rates.at(schedule, trainer.updates + n, position) for n in range(2)]
    after = [(rates[1], True), (rates[1], False)] if accumulate > 1 else [(rates[1], False)]
    return [(rates[0], False)] * max(count, 1) + after


# --- states -----------------------------------------------------------------------------------------


def _first_states(trainer: BaseTrainer, spec: StepSpec, graph: Graph) -> dict[str, np.ndarray]:
    stepper = trainer._stepper
    own = {
        RANDOM: random_state(trainer.executor.rng),
        BATCHES: np.asarray(stepper.accumulated, np.int64),
        WEIGHT: np.asarray(stepper.accumulated_weight, np.float32),
        loss_scale.NAME: loss_scale.start(),
    }
    if spec.graph.outputs[0].dtype is DType.FLOAT16:
        own[loss_scale.NAME][0] = _HALF_SCALE  # the product of loss and scale must be below 65504
    found = {}
    for value in state_values(graph):
        name = graph.name_of(value)
        found[name] = np.array(stepper.store[name] if name in stepper.store else own[name])
    for t in spec.trained:
        # A master weight of 0 means that the update starts from the parameter. In the file, the master weight
        # starts with the value of the parameter.
        master = f"{t.name}/{optimizer_states.MASTER}"
        if master in found and not found[master].any():
            found[master] = np.asarray(found[t.name], np.float32)
    return found


def _constants(trainer: BaseTrainer, graph: Graph) -> dict[str, Any]:
    store, changed = trainer._stepper.store, set(state_values(graph))
    kept = [graph.name_of(v) for v in graph.inputs if v.role in ("parameter", "state") and v not in changed]
    params = trainer.net.params
    return {name: params.entry(name) if name in params else np.asarray(store[name]) for name in kept}


def _with_states_as_data(graph: Graph, description: Mapping[str, Any]) -> Graph:
    states = state_values(graph)
    table = {v: Value(v.type, graph.name_of(v)) for v in states}
    plain = rewrite(graph, lambda _node, _operands: None, inputs=table)
    new = dict(plain.updates)
    names = [state["output"] for state in description["states"]]
    return Graph(
        plain.inputs, [*plain.outputs, *(new[table[v]] for v in states)], name=graph.name,
        output_names=[*graph.output_names, *names],
    )  # fmt: skip


def _with_unique_outputs(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """Rename outputs that have the name of an input: ONNX forbids them. Return the graph, and new names by old ones."""
    free = Names(graph.name_of(v) for v in graph.inputs)
    names = {name: free.take(name) for name in graph.output_names}
    return graph.replace(output_names=names.values()), names


def _init_graph(states: Mapping[str, np.ndarray]) -> tuple[Graph, dict[str, np.ndarray]]:
    free = Names(states)
    inputs = {
        name: Value(TensorType(dtype_of(array.dtype), array.shape), free.take(f"{name}/first"), role="parameter")
        for name, array in states.items()
    }
    graph = Graph(inputs.values(), [F.identity(v) for v in inputs.values()], output_names=inputs)
    return graph, {graph.name_of(v): states[name] for name, v in inputs.items()}


# --- the batch for the comparison -------------------------------------------------------------------


def target_inputs(trainer: BaseTrainer) -> dict[str, str]:
    return {trainer._targets.program_input(name): name for name in trainer._targets.names}


@dataclass(frozen=True)
class _GraphOnly:
    graph: Graph


def _batch(trainer: BaseTrainer, spec: StepSpec, given: Any) -> dict[str, Any]:
    """Return the arrays of the batch for the comparison.

    Missing sample weights are random: equal weights would test nothing.
    """
    targets = trainer._targets
    feeds = _generated(trainer, spec) if given is None else _given(trainer, spec, given)
    if targets.weighted and (given is None or targets.weight_name not in targets.named(given[1])):
        array = feeds[targets.weight_input]
        feeds[targets.weight_input] = np.random.default_rng(0).uniform(0.25, 2, array.shape).astype(array.dtype)
    return feeds


def _generated(trainer: BaseTrainer, spec: StepSpec) -> dict[str, Any]:
    subject = _GraphOnly(spec.graph)
    shapes, _ = concrete_shapes(subject, None, _SAMPLES)
    feeds = make_feeds(subject, shapes=shapes, seed=config.SEED.get()).arrays
    loss = get_loss(trainer.loss) if isinstance(trainer.loss, str) else trainer.loss
    if getattr(loss, "probabilities", False):
        for name in feeds.keys() - {*trainer.net.inputs, trainer._targets.weight_input}:
            feeds[name] = (feeds[name] > 0).astype(feeds[name].dtype)
    return feeds


def _given(trainer: BaseTrainer, spec: StepSpec, given: Any) -> dict[str, Any]:
    """Return the arrays of a batch by name."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise InputError(f"to_onnx: batch must be a pair (inputs, targets), not {shown(given)}")
    inputs, targets = given
    feeds = trainer._inputs.converted(by_name(inputs, trainer._inputs.names, "input"))
    feeds |= trainer._targets.fitted(targets)
    kinds = {spec.graph.name_of(v): v.type for v in spec.graph.inputs if v.role == "data"}
    if unknown := [name for name in feeds if name not in kinds]:
        raise InputError(f"to_onnx: batch: the step has no input {unknown[0]!r}{did_you_mean(unknown[0], kinds)}")
    if missing := [name for name in kinds if name not in feeds]:
        raise InputError(f"to_onnx: batch: there is no array for {', '.join(map(repr, missing))}")
    tensors = {name: kind for name, kind in kinds.items() if isinstance(kind, TensorType)}
    arrays = {name: np.asarray(feeds[name]) for name in tensors}
    try:
        match_shapes([(n, kind, TensorType(dtype_of(arrays[n].dtype), arrays[n].shape)) for n, kind in tensors.items()])
    except InputError as error:
        raise InputError(f"to_onnx: batch: {error}") from None
    if empty := [name for name, array in arrays.items() if not array.size]:
        raise InputError(
            f"to_onnx: batch: the array for {empty[0]!r} has the shape {list(arrays[empty[0]].shape)}, but a batch "
            "needs at least one sample"
        )
    return feeds
