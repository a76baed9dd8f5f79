"""Build a training step of one or more networks as one graph: forward passes, losses, gradients and updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphkit.autodiff.reverse_mode import gradient, reached
from graphkit.errors import UsageError
from graphkit.ir.graph import Graph, Value
from graphkit.ir.model_inputs import check_input_names, ordered_inputs
from graphkit.ir.origin import titled
from graphkit.ir.subgraph import inline
from graphkit.ir.types import DType, TensorType, dtype_of
from graphkit.model import Model
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F, as_value
from graphkit.ops.pointwise import scalar_like
from graphkit.passes.control.count_loops import count_loops
from graphkit.passes.core.draws import is_undetermined
from graphkit.passes.fuse.recognise import recognise
from graphkit.passes.simplify.sequences import resolve_sequences
from graphkit.passes.training.fake_quantise import fake_quantise
from graphkit.passes.training.to_training import to_training
from graphkit.signatures import operands_by_name, typed
from graphkit.text import quantity, short_repr
from graphkit.train.adapter_marks import frozen_parameters
from graphkit.train.adapters.settings import check_differentiable
from graphkit.train.optim import Optimizer
from graphkit.train.programs.finite import zero_if_finite
from graphkit.train.programs.step import LEARNING_RATE, STEP, guarded_updates
from graphkit.train.selection import ParameterSelection, TrainedParameter, select_parameters


class TrainingStep(NamedTuple):
    """A training step as a graph, and what `gk.CustomTrainer` needs to run it.

    Attributes:
        graph: Inputs are data, learning rates, parameters and states. Updates change parameters and states.
        models: The models whose parameters the graph reads and updates.
        states: The initial values of its other states by name, such as those of optimizers.
        rates: Optimizers by the name of the input for their learning rate, float32 []. In each step,
            `CustomTrainer` feeds the rate of the optimizer's schedule.
    """

    graph: Graph
    models: tuple[Model, ...]
    states: Mapping[str, np.ndarray]
    rates: Mapping[str, Optimizer]

    def __repr__(self) -> str:
        return short_repr(self, lambda: [repr(self.graph.name), ", ".join(repr(model.name) for model in self.models)])


class StepNetwork:
    """A network in a training step. `StepBuilder.network` creates it.

    Call it like a Model, with graph values. Each call uses the current values of its parameters, and updates the
    running statistics of its batch normalisations. If you call the model itself instead, it uses the parameters from
    before the step.
    """

    def __init__(self, model: Model, name: str, training: bool):
        self.model = model
        self.name = name
        if training:
            check_differentiable(model.graph)
        graph = (
            to_training(model.graph, frozen_parameters(model.graph)) if training else model.graph.replace(updates=())
        )
        self._graph = fake_quantise(recognise(resolve_sequences(count_loops(graph))))
        self._with_updates = Graph(self._graph.inputs, [*self._graph.outputs, *(new for _, new in self._graph.updates)])
        # The current value of each parameter and state in the step.
        self.current = {v: v for v in self._graph.inputs if v.role in ("parameter", "state")}

    def __call__(self, *operands: Any, **named: Any) -> Any:
        """Return the output, or a tuple if there are several.

        Args:
            operands: The data inputs by position: values of the step, or constant arrays.
            named: The data inputs by name.
        """
        graph = self._with_updates
        table = operands_by_name(titled(graph, "model"), self.model.inputs, operands, named)
        arguments = [self.current[v] if v in self.current else as_value(table[graph.name_of(v)]) for v in graph.inputs]
        results = inline(graph, arguments, is_undetermined)
        outputs, states = results[: len(self._graph.outputs)], results[len(self._graph.outputs) :]
        self.current.update(zip([state for state, _ in self._graph.updates], states, strict=True))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def updates(self) -> list[tuple[Value, Value]]:
        """Return each changed parameter or state with its new value."""
        return [(v, new) for v, new in self.current.items() if new is not v]

    def trained(self, loss: Value) -> list[TrainedParameter]:
        """Return the trainable parameters whose current values the loss depends on."""
        found = reached([loss], through_stops=False)
        trainable = select_parameters(self._graph, ParameterSelection(), self._graph.outputs)
        return [p for p in trainable if self.current[p.value] in found]

    def __repr__(self) -> str:
        return short_repr(self, lambda: [repr(self.name), repr(self.model)])


class StepBuilder:
    """Builds a training step of your own, for example one that trains two networks by two losses.

    Create the networks of the step with `network`, and inputs with `gk.input`. Compute losses with calls of the
    networks, operators and `gk.losses`. `minimize` adds an update. `build` returns the step, which `gk.CustomTrainer`
    runs.
    """

    def __init__(self) -> None:
        self._networks: dict[str, StepNetwork] = {}
        self._rates: dict[str, tuple[Value, Optimizer]] = {}
        self._losses: list[Value] = []
        # Optimizer states by name: initial arrays, inputs of the step, and current values in the step.
        self._initial: dict[str, np.ndarray] = {}
        self._states: dict[str, Value] = {}
        self._current: dict[str, Value] = {}

    @typed("StepBuilder.network")
    def network(self, model: Model, name: str = "", *, training: bool = True) -> StepNetwork:
        """Return a network of the step, which you call like the model.

        Args:
            model: The model. No other network of the step may have a parameter of the same name (`gk.name_scope`).
            name: Prefix for the names of its learning rate and number of updates (default: the name of the model).
            training: Whether batch normalisations use the statistics of the batch, and dropout drops elements. Choose
                False for a network that is not trained, such as a teacher.

        Raises:
            UsageError: Another network has this name, or a parameter of the same name.
        """
        name = name or model.name
        if name in self._networks:
            raise UsageError(f"the step already has a network {name!r}: give another name=")
        for other in self._networks.values():
            if both := sorted(set(model.params) & set(other.model.params)):
                raise UsageError(
                    f"the networks {other.name!r} and {name!r} both have a parameter {both[0]!r}: build each in its "
                    "own gk.name_scope"
                )
        self._networks[name] = StepNetwork(model, name, training)
        return self._networks[name]

    @typed("StepBuilder.minimize")
    def minimize(self, loss: Value, network: StepNetwork, optimizer: Optimizer) -> None:
        """Update the trainable parameters of a network, by one step of an optimizer that decreases a loss.

        Later calls of the network use the new parameters. No gradient flows through the update. A network can be
        updated several times in a step, always by the same optimizer.

        Args:
            loss: A float scalar, computed by a call of the network since its last update.
            network: A network of this step.
            optimizer: Computes the update. Its learning rate is an input of the step.

        Raises:
            UsageError: The loss is not a float scalar, or depends on no trainable parameter of the network; or the
                network is already updated by another optimizer.
        """
        if not isinstance(network, StepNetwork) or self._networks.get(network.name) is not network:
            raise UsageError("StepBuilder.minimize: network must be a result of `network` of this builder")
        if loss.shape != () or not loss.dtype.is_float:
            raise UsageError(
                f"a loss must be a float scalar, not {loss}; gk.reduce_mean(..., keepdims=False) makes one"
            )
        trained = network.trained(loss)
        if not trained:
            raise UsageError(
                f"the loss {loss} depends on no current trainable parameter of the network {network.name!r}; call the "
                "network again after each update"
            )
        rate = self._rate(network, optimizer)
        count = self._state(f"{network.name}/{STEP}", np.zeros((), np.int64))
        step = self._current[count] = F.add(self._current[count], np.int64(1))
        gradients = gradient([loss], [network.current[p.value] for p in trained])
        for parameter, grad in zip(trained, gradients, strict=True):
            initial = optimizer.initial_states(parameter.name, parameter.value.tensor)
            names = [self._state(name, array) for name, array in initial.items()]
            lr = rate if parameter.lr_mult == 1.0 else F.mul(rate, scalar_like(parameter.lr_mult, rate))
            weight = network.current[parameter.value]
            new, states = optimizer.apply(
                weight, grad, [self._current[n] for n in names], lr, step, parameter.decay_mult
            )
            network.current[parameter.value] = new
            self._current.update(zip(names, states, strict=True))
        # Without StopGradient, gradients of later losses would flow through this update into earlier calls.
        network.current = {v: new if new is v else F.stop_gradient(new) for v, new in network.current.items()}
        self._losses.append(loss)

    @typed("StepBuilder.build")
    def build(self, outputs: Mapping[str, Value], name: str = "step") -> TrainingStep:
        """Return the step.

        If a loss is NaN or infinite, a run of the step raises NotFinite, and no parameter or state changes.

        Args:
            outputs: The values that a step returns, such as losses, by name.
            name: Name of the graph.

        Raises:
            UsageError: No loss is minimized, two inputs have the same name, or the step contains a parameter that
                belongs to no network.
        """
        if not self._losses:
            raise UsageError("the step trains nothing: call StepBuilder.minimize before build")
        networks = self._networks.values()
        updates = [
            *((self._states[n], new) for n, new in self._current.items()),
            *(u for n in networks for u in n.updates()),
        ]
        found = ordered_inputs([*outputs.values(), *self._losses, *(new for _, new in updates)])
        rates = {name: rate for name, (rate, _) in self._rates.items()}
        known = [*rates.values(), *self._states.values(), *(v for n in networks for v in n.current)]
        data = [v for v in found if v not in set(known)]
        if stored := [v for v in data if v.role != "data"]:
            raise UsageError(
                f"{stored[0]} belongs to no network of the step: make it part of a Model, and call `network`"
            )
        check_input_names(name, [*data, *known])
        graph = Graph(
            [*data, *known], outputs.values(), guarded_updates(updates, zero_if_finite(self._losses)), name,
            output_names=outputs,
        )  # fmt: skip
        optimizers = {name: optimizer for name, (_, optimizer) in self._rates.items()}
        return TrainingStep(graph, tuple(n.model for n in networks), dict(self._initial), optimizers)

    def _rate(self, network: StepNetwork, optimizer: Optimizer) -> Value:
        name = f"{network.name}/{LEARNING_RATE}"
        rate, known = self._rates.setdefault(name, (Value(TensorType(DType.FLOAT32, ()), name), optimizer))
        if known != optimizer:
            raise UsageError(f"the network {network.name!r} is already updated by another optimizer, {known}")
        return rate

    def _state(self, name: str, initial: np.ndarray) -> str:
        """Add a state to the step, unless it exists. Return its name."""
        if name not in self._states:
            self._initial[name] = initial
            kind = TensorType(dtype_of(initial.dtype), initial.shape)
            self._states[name] = self._current[name] = Value(kind, name, role="state")
        return name

    def __repr__(self) -> str:
        return short_repr(self, lambda: [", ".join(map(repr, self._networks)), quantity(len(self._losses), "update")])
