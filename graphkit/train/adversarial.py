"""Adversarial training of two networks (Goodfellow et al. 2014): both updates run in one program per step.

The discriminator learns to distinguish real samples from generated ones. Then the generator learns to make samples that
the updated discriminator classifies as real. Parameters, optimizer slots and running statistics of both networks are
states of the graph. All of them are written at the end of a step.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from graphkit import config
from graphkit.autodiff.reverse_mode import gradient
from graphkit.errors import InputError, InvalidModel, NotFinite, UsageError
from graphkit.executor.devices.groups import AnyDevice
from graphkit.executor.run.interruption import uninterrupted
from graphkit.executor.run.params import JointStore, ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.subgraph import inline
from graphkit.ir.types import DType, TensorType
from graphkit.model import Model
from graphkit.ops import F
from graphkit.ops.pointwise import scalar_like
from graphkit.passes.training.randomness import bind_rng
from graphkit.passes.training.to_training import to_training
from graphkit.text import listed, short_repr
from graphkit.train import checkpoint as checkpoints
from graphkit.train import states
from graphkit.train.losses import sigmoid_binary_cross_entropy
from graphkit.train.optim import Adam, Optimizer
from graphkit.train.position import Position
from graphkit.train.programs import finite
from graphkit.train.programs.step import STEP, guarded_updates
from graphkit.train.run_folder import RunFolder, check_links
from graphkit.train.selection import ParameterSelection, select_parameters

# The name of the loss in checkpoints.
_LOSS = "adversarial"
# The advice if a checkpoint does not fit.
_ADVICE = "To resume it, use the networks and optimizers of that run. Otherwise start a new run in another folder"

REAL = "real"
NOISE = "noise"
RATES = ("generator_learning_rate", "discriminator_learning_rate")


class Losses(NamedTuple):
    """Binary cross entropies before the updates of a step.

    `discriminator` is the sum of its losses for real and for generated samples.
    """

    generator: float
    discriminator: float


def adversarial_step(
    generator: Model,
    discriminator: Model,
    optimizers: tuple[Optimizer, Optimizer],
    *,
    smoothing: float = 0.0,
    feed_noise: bool = False,
) -> Graph:
    """Return a graph of one update of the discriminator, then one of the generator.

    The graph's inputs are the real samples [N, ...], with the type of the discriminator's input, and the learning rates
    RATES, float32 scalars. With `feed_noise`, the noise for the generator is another input. Without it, the graph draws
    the noise of N samples from the standard normal distribution. Outputs are the losses of generator and discriminator,
    as in Losses. The graph updates the parameters and running statistics of both networks, the slots and the number of
    updates. `initial_states` returns the slots and the number before the first step.

    smoothing: the discriminator's target for real samples is 1 - smoothing (Salimans et al. 2016). The generator's loss
    is the non-saturating -log D(G(z)). Raises UsageError for networks that do not match.
    """
    if not 0 <= smoothing < 1:
        raise UsageError(f"smoothing={smoothing}: expected a number in [0, 1)")
    _check_networks(generator, discriminator)
    g, d = _Network(generator), _Network(discriminator)
    real = Value(d.data.type, REAL)
    noise = Value(g.data.type, NOISE) if feed_noise else _random_noise(g.data, real)
    rates = [Value(TensorType(DType.FLOAT32, ()), name) for name in RATES]
    count = Value(TensorType(DType.INT64, ()), STEP, role="state")
    step = F.add(count, np.int64(1))

    fake = g(noise)
    real_loss = _cross_entropy(d(real), 1 - smoothing)
    fake_loss = _cross_entropy(d(F.stop_gradient(fake)), 0.0)
    loss = F.add(real_loss, fake_loss, name="discriminator")
    d.learn(loss, optimizers[1], rates[1], step)
    # The discriminator's update depends on the generator's samples. No gradient may flow back through it.
    d.stop_gradients()
    generator_loss = _cross_entropy(d(fake), 1.0)
    g.learn(generator_loss, optimizers[0], rates[0], step)

    guard = F.add(loss, generator_loss)
    updates = [(count, step), *g.updates(), *d.updates()]
    return Graph(
        [real, *([noise] if feed_noise else []), *rates, count, *g.states(), *d.states()],
        [generator_loss, loss],
        guarded_updates(updates, guard),
        "adversarial_step",
        output_names=list(Losses._fields),
    )


class _Network:
    """A network in training mode within a larger graph, with the current values of its parameters and statistics."""

    def __init__(self, net: Model):
        graph = to_training(net.graph)
        self.data = next(v for v in graph.inputs if v.role == "data")
        self.trained = select_parameters(graph, ParameterSelection())
        self._statistics = [state for state, _ in graph.updates]
        self._graph = Graph(graph.inputs, [*graph.outputs, *(new for _, new in graph.updates)])
        self._stored = [v for v in graph.inputs if v is not self.data]
        # For each parameter and statistic: its current value in the larger graph.
        self._current = {v: v for v in self._stored}
        self._slots: list[Value] = []
        self._new_slots: list[Value] = []

    def __call__(self, x: Value) -> Value:
        """Return the output for input x. This also updates the running statistics."""
        y, *statistics = inline(self._graph, [self._current.get(v, x) for v in self._graph.inputs])
        self._current.update(zip(self._statistics, statistics, strict=True))
        return y

    def learn(self, loss: Value, optimizer: Optimizer, rate: Value, step: Value) -> None:
        """Update the parameters to reduce a loss. Later calls use the new values."""
        gradients = gradient([loss], [p.value for p in self.trained])
        for parameter, grad in zip(self.trained, gradients, strict=True):
            slots = states.inputs(optimizer, parameter.name, parameter.value.tensor)
            lr = rate if parameter.lr_mult == 1.0 else F.mul(rate, scalar_like(parameter.lr_mult, rate))
            made = states.update(optimizer, parameter.value, grad, slots, lr, step, parameter.decay_mult)
            self._current[parameter.value] = made.weight
            self._slots += slots
            self._new_slots += made.states

    def stop_gradients(self) -> None:
        """Stop gradients at the current values, so that none flows through the updates that computed them."""
        self._current = {v: F.stop_gradient(current) for v, current in self._current.items()}

    def states(self) -> list[Value]:
        """Return the graph inputs: parameters, running statistics and slots."""
        return [*self._stored, *self._slots]

    def updates(self) -> list[tuple[Value, Value]]:
        """Return the pairs (state, new value) of all states that change."""
        changed = [(v, self._current[v]) for v in self._stored if self._current[v] is not v]
        return [*changed, *zip(self._slots, self._new_slots, strict=True)]


def initial_states(
    generator: Model, discriminator: Model, optimizers: tuple[Optimizer, Optimizer]
) -> dict[str, np.ndarray]:
    """Return the initial states of a step that are not in the networks: slots, and the number of updates."""
    arrays = {STEP: np.zeros((), np.int64)}
    for net, optimizer in zip((generator, discriminator), optimizers, strict=True):
        for parameter in select_parameters(net.graph, ParameterSelection()):
            arrays |= states.initial_arrays(optimizer, parameter.name, parameter.value.tensor)
    return arrays


class AdversarialTrainer:
    """Trains a generator and a discriminator in place, such as the two parts of the zoo's `gan`.

    Args:
        generator: A network with one input, noise [N, ...], and one output, a sample [N, ...].
        discriminator: A network with one input, a sample, and one output, the logit for "this sample is real". Its
            parameters must have other names than the generator's (`name_scope`).
        optimizer: The generator's optimizer, by default Adam(2e-4, beta1=0.5), as in Radford et al. 2016.
        discriminator_optimizer: The discriminator's optimizer, by default `optimizer`.
        smoothing: See `adversarial_step`.
        device: "cpu" or "cuda".
        threads: Number of CPU threads (default: GRAPHKIT_NUM_THREADS, else one per core).
        seed: Seed of the noise and of the order of samples (default: GRAPHKIT_SEED).

    Attributes:
        states: Slots and number of updates.
        epochs: Number of complete epochs.

    Raises:
        UsageError: The networks do not match.
    """

    def __init__(
        self,
        generator: Model,
        discriminator: Model,
        optimizer: Optimizer | None = None,
        discriminator_optimizer: Optimizer | None = None,
        *,
        smoothing: float = 0.0,
        device: AnyDevice = "cpu",
        threads: int | None = None,
        seed: int | None = None,
    ):
        self.generator, self.discriminator = generator, discriminator
        first = Adam(2e-4, beta1=0.5) if optimizer is None else optimizer
        self.optimizers = first, discriminator_optimizer or first
        self.graph = adversarial_step(generator, discriminator, self.optimizers, smoothing=smoothing)
        arrays = initial_states(generator, discriminator, self.optimizers)
        self.states = ParamStore({n: TensorType(a.dtype, a.shape) for n, a in arrays.items()}, arrays)
        self.seed = config.SEED.get() if seed is None else seed
        self.epochs = 0
        self.run = secrets.token_hex(8)
        self._store = JointStore([generator.params, discriminator.params, self.states])
        self._executor = Executor(self.graph, self._store, device=device, threads=threads, seed=self.seed)

    def step(self, real: Any) -> Losses:
        """Update both networks on a batch of real samples, [N, ...].

        If a loss is not finite, NotFinite is raised and nothing changes.
        """
        done = int(self.states[STEP])
        rates = {name: np.float32(o.schedule(done)) for name, o in zip(RATES, self.optimizers, strict=True)}
        feeds, generator = {REAL: real, **rates}, self._executor.rng
        try:
            found = self._executor.run(feeds)
        except NotFinite:
            origin = finite.origin(bind_rng(self.graph), self._store, feeds, generator)
            raise NotFinite(
                f"the losses of step {done + 1} are not finite, {origin}; both networks are unchanged"
            ) from None
        return Losses(float(found["generator"]), float(found["discriminator"]))

    def fit(
        self,
        data: Any,
        epochs: int = 1,
        batch_size: int = 64,
        *,
        folder: str | Path | None = None,
        overwrite: bool = False,
    ) -> list[Losses]:
        """Train on the inputs of a data set for `epochs` epochs. Targets are ignored.

        Each call trains `epochs` more epochs. Epochs before `resume` do not count.

        A last, smaller batch is left out, because its batch statistics would differ. With a folder, a checkpoint is
        written after each epoch; `resume` continues from it bit for bit. If the folder contains another run, `fit`
        raises UsageError; with `overwrite`, it replaces that run.

        Returns:
            The mean losses of each epoch.
        """
        history = []
        with contextlib.ExitStack() as stack:
            held = None if folder is None else RunFolder(folder)
            if held is not None:
                stack.enter_context(held).claim(self.run, overwrite=overwrite)
            for _ in range(epochs):
                batches = data.batches(batch_size, seed=self.seed, epoch=self.epochs, drop_last=True)
                losses = [self.step(_samples(inputs)) for inputs, _ in batches]
                if not losses:
                    raise InputError(
                        f"{data!r}: there are fewer samples than batch_size={batch_size}; choose smaller batches"
                    )
                history.append(Losses(*(float(m) for m in np.mean(losses, axis=0))))
                self.epochs += 1
                if held is not None:
                    self._write(held.path)
        return history

    def save(self, folder: str | Path) -> None:
        """Write a checkpoint. When it is complete, it replaces any checkpoint in the folder, also one of another run.

        After `resume`, an interrupted epoch begins again. Raises RuntimeFailure if the checkpoint cannot be written.
        """
        with RunFolder(folder) as held:
            self._write(held.path)

    def resume(self, folder: str | Path, *, trusted: bool = False) -> None:
        """Restore both networks, slots, random state, seed and `epochs` from a folder's checkpoint.

        If it fails, nothing changes. Raises UsageError if there is no checkpoint, and InvalidModel if it is damaged or
        does not match the networks or optimizers. Raises UnsafeModel if a file is a symbolic link out of the folder,
        unless `trusted`.
        """
        if not trusted:
            check_links(folder)
        saved, store = checkpoints.load(folder), self._store
        odd = sorted(set(saved.arrays) ^ set(store))
        if saved.loss != _LOSS or odd:
            what = f"missing or unexpected arrays {listed(odd, len(odd), 5)}" if odd else f"its loss is {saved.loss}"
            raise InvalidModel(
                f"the checkpoint in {folder} does not fit these networks and optimizers: {what}. {_ADVICE}"
            )
        try:
            arrays = {name: store.fitting(name, array) for name, array in saved.arrays.items()}
        except InputError as error:
            raise InvalidModel(f"the checkpoint in {folder} does not fit these networks: {error}. {_ADVICE}") from None
        with uninterrupted:
            for name, array in arrays.items():
                store.commit(name, array)
            self.epochs = Position.read(saved.position, {}).epoch
            self.run, self.seed, self._executor.rng = saved.run, saved.data_seed, saved.rng

    def _write(self, folder: Path) -> None:
        """Write a checkpoint into a folder that this process has locked."""
        generator, discriminator = (optimizer.describe() for optimizer in self.optimizers)
        checkpoints.save(
            folder,
            checkpoints.Checkpoint(
                arrays=dict(self._store),
                optimizer={"generator": generator, "discriminator": discriminator},
                loss=_LOSS,
                rng=self._executor.rng,
                position=Position(epoch=self.epochs, until=self.epochs).describe(),
                run=self.run,
                updates=int(self.states[STEP]),
                data_seed=self.seed,
            ),
        )

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield f"{self.generator.name!r} against {self.discriminator.name!r}"
        yield f"{type(self.optimizers[0]).__name__} and {type(self.optimizers[1]).__name__}"


# --- helpers ----------------------------------------------------------------------------------------


def _samples(inputs: Any) -> Any:
    """Return the samples of a batch, the only input of its data set."""
    if isinstance(inputs, dict):
        if len(inputs) != 1:
            raise InputError(f"expected a data set with one input, the samples, not {', '.join(inputs)}")
        (inputs,) = inputs.values()
    return inputs


def _cross_entropy(logits: Value, target: float) -> Value:
    """Return the binary cross entropy of logits with the same target for all."""
    return sigmoid_binary_cross_entropy(logits, scalar_like(target, logits))


def _random_noise(noise: Value, real: Value) -> Value:
    """Return standard normal noise with the number of samples of `real`, and otherwise the sizes of `noise`."""
    rest = noise.tensor.known_shape[1:]
    rows = F.shape(real, start=0, end=1)
    shape = F.concat(rows, np.array(rest, np.int64), axis=0)
    return F.random_normal_like(F.expand(np.zeros((), noise.dtype.numpy), shape))


def _check_networks(generator: Model, discriminator: Model) -> None:
    """Raise UsageError if the networks do not match.

    Each must have one input and one output. The discriminator must take the generator's output. No parameter of one may
    have the name of a parameter of the other.
    """
    for who, net in (("generator", generator), ("discriminator", discriminator)):
        data = [v for v in net.graph.inputs if v.role == "data"]
        others = [net.graph.name_of(v) for v in net.graph.inputs if v.role not in ("data", "parameter", "state")]
        if len(data) != 1 or others or len(net.outputs) != 1 or not data[0].dtype.is_float:
            raise UsageError(f"a {who} must have one floating-point input and one output, not {net!r}")
    (noise,), (sample,) = ([v for v in net.graph.inputs if v.role == "data"] for net in (generator, discriminator))
    shape = noise.tensor.shape
    if shape is None or not shape or not all(isinstance(d, int) for d in shape[1:]):
        raise UsageError(f"the input of the generator must have a batch axis and otherwise fixed sizes, not {noise}")
    made = generator.graph.outputs[0].tensor
    if made.dtype != sample.dtype or _sizes(made.shape) != _sizes(sample.tensor.shape):
        raise UsageError(f"the generator returns {made}, but the discriminator takes {sample.tensor}")
    if both := sorted(set(generator.params) & set(discriminator.params)):
        raise UsageError(f"both networks have a parameter {both[0]!r}: build each in its own name_scope")


def _sizes(shape: Sequence[Any] | None) -> Sequence[Any] | None:
    """Return the sizes of a sample: a shape without the batch axis, with None for symbolic dimensions."""
    return None if shape is None else [d if isinstance(d, int) else None for d in shape[1:]]
