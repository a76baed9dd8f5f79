"""Deep Q-learning (Mnih et al. 2015) as one program: an episode in an environment that is itself a graph.

The program is a loop of steps. Each step chooses an action (epsilon-greedy), steps the environment, stores the
transition in a replay memory and learns from a batch of it. A target network is copied from the trained one at
intervals. Network, target, optimizer slots and memory are states of the graph. The loop carries them, and they are
updated together at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from graphkit import config
from graphkit.autodiff.reverse_mode import gradient
from graphkit.errors import UsageError
from graphkit.executor.devices.groups import AnyDevice
from graphkit.executor.run.params import JointStore, ParamStore
from graphkit.executor.run.session import Executor
from graphkit.frontend import control, tree
from graphkit.ir.graph import Graph, Value
from graphkit.ir.subgraph import inline
from graphkit.ir.types import DType, TensorType
from graphkit.model import Model
from graphkit.ops import F, as_value
from graphkit.text import short_repr
from graphkit.train import states as slot_states
from graphkit.train.losses import huber
from graphkit.train.optim import Adam, Optimizer
from graphkit.train.programs.step import LEARNING_RATE, STEP

EPSILON = "epsilon"
UNIFORM = "uniform"


class Environment(Protocol):
    """An environment whose methods build graphs. A state is a tensor with one row per agent."""

    actions: int

    def reset(self, agents: int) -> Value:
        """Return the initial states of `agents` episodes."""

    def observe(self, state: Value) -> Value:
        """Return what the network observes: float32 [N, ...]."""

    def step(self, state: Value, action: Value) -> tuple[Value, Value, Value]:
        """Take a step with actions int64 [N]. Return (next state, reward, over).

        reward is float32 [N]; over is bool [N], whether the episode of each agent has ended.
        """


@dataclass(frozen=True)
class Settings:
    """Settings of Q-learning.

    Args:
        discount: Discount factor of rewards per step, in [0, 1].
        capacity: Transitions in the replay memory; new ones replace the oldest.
        batch: Transitions of one update.
        warmup: Transitions that must be stored before the first update.
        sync: Number of updates after which the network is copied to the target network again.
        limit: Steps after which an episode is stopped.
        double: Double Q-learning (van Hasselt et al. 2016): the trained network chooses the next action, and the target
            network gives its value.
    """

    discount: float = 0.95
    capacity: int = 2048
    batch: int = 32
    warmup: int = 64
    sync: int = 50
    limit: int = 100
    double: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.discount <= 1:
            raise UsageError(f"Settings: discount={self.discount}: expected a number in [0, 1]")
        for name in ("capacity", "batch", "warmup", "sync", "limit"):
            if getattr(self, name) < 1:
                raise UsageError(f"Settings: {name}={getattr(self, name)}: expected a positive number")


class LearnerState(NamedTuple):
    """The parameters of the trained network and of the target network, the slots, and the number of updates."""

    weights: list[Value]
    target: list[Value]
    slots: list[list[Value]]
    updates: Value


class Memory(NamedTuple):
    """A ring buffer of transitions, one in each row.

    `stored` is the number of all transitions so far. The next one is written to row `stored % capacity`.
    """

    state: Value
    action: Value
    reward: Value
    following: Value
    final: Value
    stored: Value


class Progress(NamedTuple):
    """The episode of one agent: its state, whether it is over, and the sums over its steps."""

    state: Value
    over: Value
    steps: Value
    total: Value
    loss: Value


class Episode(NamedTuple):
    """The result of an episode: sum of rewards, number of steps, and mean loss of its updates."""

    total: float
    steps: int
    loss: float


def q_values(net: Model, weights: Sequence[Value], observation: Value) -> Value:
    """Return the Q value of each action, from the network with the given weights: float32 [N, actions]."""
    (q,) = inline(net.graph, [observation, *weights])
    return q


def epsilon_greedy(q: Value, actions: int, epsilon: Value, uniform: Value) -> Value:
    """Return actions int64 [N]: with probability epsilon a random one, else the one with the largest q.

    uniform: float32 [2, N] random numbers from 0 to 1 - 2^-24, so that n * uniform never rounds up to the integer n.
    """
    whether, which = F.split(uniform, np.array([1, 1]), axis=0)
    any_action = F.cast(F.mul(F.squeeze(which, np.array([0])), np.float32(actions)), to=DType.INT64)
    greedy = F.arg_max(q, axis=1, keepdims=False)
    return F.where(F.less(F.squeeze(whether, np.array([0])), epsilon), any_action, greedy, name="action")


def rollout(net: Model, world: Environment, *, agents: int = 1, limit: int = 100) -> Model:
    """Return a model that plays `agents` episodes in parallel in one Loop, with the network's epsilon-greedy policy.

    Inputs: epsilon, a float32 scalar (0: greedy); uniform, float32 [limit, 2, agents] random numbers in [0, 1).
    Outputs: steps, int64, the number of steps of the longest episode; path [limit + 1, agents, ...], the state before
    each step and after the last one; total, float32 [agents], the sums of rewards. Only the first `steps` + 1 entries
    of path are valid. The model keeps the parameter values of this call: training the network later
    does not change it.
    """
    epsilon = Value(TensorType(DType.FLOAT32, ()), EPSILON)
    uniform = Value(TensorType(DType.FLOAT32, (limit, 2, agents)), UNIFORM)
    weights = _weights(net, world)
    start = world.reset(agents)
    path = F.expand(F.unsqueeze(start, np.array([0])), np.array([limit + 1] + [1] * (start.rank or 0)))
    begin = (start, path, np.zeros(agents, bool), np.zeros(agents, np.float32), np.int64(0))

    def body(loop_state: Any) -> Any:
        state, path, over, total, steps = loop_state
        q = q_values(net, weights, world.observe(state))
        action = epsilon_greedy(q, world.actions, epsilon, F.gather(uniform, steps, axis=0))
        following, reward, final = world.step(state, action)
        going = F.not_(over)
        following = F.where(_like(going, following), following, state)
        total = F.add(total, F.where(going, reward, np.float32(0)))
        steps = F.add(steps, np.int64(1))
        return following, _put(path, steps, F.unsqueeze(following, np.array([0]))), F.or_(over, final), total, steps

    _, path, _, total, steps = control.while_loop(
        lambda state: F.not_(_all(state[2])), body, begin, maximum_iterations=limit, name="episode"
    )
    outputs = {"path": path, "total": total, "steps": steps}
    graph = Graph([epsilon, uniform, *weights], outputs.values(), name="rollout", output_names=list(outputs))
    return Model.from_graph(graph, {n: net.params[n] for n in net.params})


def _initial_progress(world: Environment) -> Progress:
    no_loss = as_value(np.float32(0))
    return Progress(
        world.reset(1), as_value(np.zeros(1, bool)), as_value(np.int64(0)), as_value(np.zeros(1, np.float32)), no_loss
    )


def learning_episode(
    net: Model, world: Environment, optimizer: Optimizer, settings: Settings, *, feed_uniform: bool = False
) -> Graph:
    """Return a graph of one episode of one agent. After `warmup` transitions, every step updates the network.

    Inputs: epsilon and learning_rate, float32 scalars. With `feed_uniform` also uniform, float32 [limit, 2 + batch]
    random numbers in [0, 1); without it, the graph draws them. Outputs: total, steps and loss, as in Episode. Updates:
    the network's parameters and the states that `initial_states` returns.
    """
    epsilon, rate = (Value(TensorType(DType.FLOAT32, ()), n) for n in (EPSILON, LEARNING_RATE))
    uniform = Value(TensorType(DType.FLOAT32, (settings.limit, 2 + settings.batch)), UNIFORM) if feed_uniform else None
    weights = _weights(net, world)
    names = [net.graph.name_of(v) for v in weights]
    arrays = initial_states(net, world, optimizer, settings)
    states = {n: Value(TensorType(a.dtype, a.shape), n, role="state") for n, a in arrays.items()}
    trained = LearnerState(
        weights,
        [states[f"target/{n}"] for n in names],
        [
            [states[f"{n}/{slot}"] for slot in slot_states.names(optimizer, v.dtype)]
            for n, v in zip(names, weights, strict=True)
        ],
        states[STEP],
    )
    memory = Memory(*(states[f"replay/{field}"] for field in Memory._fields))
    learn = _Learner(net, world, optimizer, settings, rate)

    def body(loop_state: Any) -> Any:
        progress, trained, memory = loop_state
        draws = F.random_uniform(shape=(2 + settings.batch,)) if uniform is None else F.gather(uniform, progress.steps)
        acting, sampling = F.split(draws, np.array([2, settings.batch]))
        q = q_values(net, trained.weights, world.observe(progress.state))
        action = epsilon_greedy(q, world.actions, epsilon, F.reshape(acting, np.array([2, 1])))
        following, reward, final = world.step(progress.state, action)
        memory = _remember(memory, (progress.state, action, reward, following, final), settings.capacity)
        ready = F.greater_or_equal(memory.stored, np.int64(settings.warmup))
        trained, loss = control.cond(
            ready, lambda: learn(trained, memory, sampling), lambda: (trained, as_value(np.float32(0))), name="learn"
        )
        progress = Progress(
            following, final, F.add(progress.steps, np.int64(1)),
            F.add(progress.total, reward), F.add(progress.loss, loss),
        )  # fmt: skip
        return progress, trained, memory

    end, after, remembered = control.while_loop(
        lambda loop_state: F.not_(_all(loop_state[0].over)),
        body,
        (_initial_progress(world), trained, memory),
        settings.limit,
        name="episode",
    )
    done = F.cast(F.sub(after.updates, trained.updates), to=DType.FLOAT32)
    loss = F.div(end.loss, F.max(done, np.float32(1)))
    outputs = {"total": F.squeeze(end.total, np.array([0])), "steps": end.steps, "loss": loss}
    before, new = list(tree.leaves((trained, memory))), list(tree.leaves((after, remembered)))
    inputs = [epsilon, rate, *([] if uniform is None else [uniform]), *before]
    return Graph(
        inputs, outputs.values(), list(zip(before, new, strict=True)), "learning_episode", output_names=list(outputs)
    )


@dataclass(frozen=True)
class _Learner:
    """Builds one update: the gradient of the Huber loss of a batch, the optimizer's step, and the target network."""

    net: Model
    world: Environment
    optimizer: Optimizer
    settings: Settings
    rate: Value

    def __call__(self, trained: LearnerState, memory: Memory, uniform: Value) -> tuple[LearnerState, Value]:
        settings = self.settings
        filled = F.min(memory.stored, np.int64(settings.capacity))
        rows = F.cast(F.mul(uniform, F.cast(filled, to=DType.FLOAT32)), to=DType.INT64)
        batch = Memory._make([*(F.gather(part, rows, axis=0) for part in memory[:-1]), memory.stored])
        loss = self._loss(trained, batch)
        gradients = gradient([loss], trained.weights)
        updates = F.add(trained.updates, np.int64(1))
        weights, slots = [], []
        for weight, grad, own in zip(trained.weights, gradients, trained.slots, strict=True):
            made = slot_states.update(self.optimizer, weight, grad, own, self.rate, updates, 1.0)
            weights.append(made.weight)
            slots.append(made.states)
        copy = F.equal(F.mod(updates, np.int64(settings.sync)), np.int64(0))
        target = [F.where(copy, new, old) for new, old in zip(weights, trained.target, strict=True)]
        return LearnerState(weights, target, slots, updates), loss

    def _loss(self, trained: LearnerState, batch: Memory) -> Value:
        """Return Huber(Q(s, a) - (r + discount * Q'(s', a'))), where Q' is the target network.

        a' is the best action in s' according to Q (with `double`) or Q'. After a final step, Q' counts as 0.
        """
        observation = self.world.observe(batch.following)
        future = q_values(self.net, trained.target, observation)
        chosen = q_values(self.net, trained.weights, observation) if self.settings.double else future
        best = _pick(future, F.arg_max(chosen, axis=1, keepdims=False))
        later = F.where(batch.final, np.float32(0), F.mul(best, np.float32(self.settings.discount)))
        q = _pick(q_values(self.net, trained.weights, self.world.observe(batch.state)), batch.action)
        return huber(q, F.add(batch.reward, later))


def initial_states(net: Model, world: Environment, optimizer: Optimizer, settings: Settings) -> dict[str, np.ndarray]:
    """Return the initial states of a learning episode: target network, slots, number of updates, replay memory."""
    names = list(net.params)
    start: Any = world.reset(1)
    capacity = settings.capacity
    return {
        **{f"target/{n}": np.array(net.params[n]) for n in names},
        **{
            key: array
            for n in names
            for key, array in slot_states.initial_arrays(optimizer, n, net.params.type_of(n)).items()
        },
        STEP: np.zeros((), np.int64),
        "replay/state": np.zeros((capacity, *start.tensor.static_shape[1:]), start.dtype.numpy),
        "replay/action": np.zeros(capacity, np.int64),
        "replay/reward": np.zeros(capacity, np.float32),
        "replay/following": np.zeros((capacity, *start.tensor.static_shape[1:]), start.dtype.numpy),
        "replay/final": np.zeros(capacity, bool),
        "replay/stored": np.zeros((), np.int64),
    }


class QLearner:
    """Trains `net` in place by episodes in `world`.

    Args:
        net: A network with one input, the observation, and one output, a value per action.
        world: The environment.
        optimizer: An optimizer (default: Adam(1e-3)). A learning-rate schedule counts episodes, not updates.
        settings: See Settings.
        device: "cpu" or "cuda".
        threads: Number of CPU threads. More than one is useful only for large networks.
        seed: Seed of exploration and replay (default: GRAPHKIT_SEED).

    Raises:
        UsageError: The network does not match the environment.
    """

    def __init__(
        self,
        net: Model,
        world: Environment,
        optimizer: Optimizer | None = None,
        settings: Settings | None = None,
        *,
        device: AnyDevice = "cpu",
        threads: int = 1,
        seed: int | None = None,
    ):
        self.net, self.world = net, world
        self.optimizer = Adam(1e-3) if optimizer is None else optimizer
        self.settings = settings or Settings()
        self.graph = learning_episode(net, world, self.optimizer, self.settings)
        arrays = initial_states(net, world, self.optimizer, self.settings)
        self.states = ParamStore({n: TensorType(a.dtype, a.shape) for n, a in arrays.items()}, arrays)
        self.episodes = 0
        seed = config.SEED.get() if seed is None else seed
        self._executor = Executor(
            self.graph, JointStore([net.params, self.states]), device=device, threads=threads, seed=seed
        )

    def episode(self, epsilon: float) -> Episode:
        """Play one episode and learn from every step of it."""
        rate = self.optimizer.schedule(self.episodes)
        found = self._executor.run({EPSILON: np.float32(epsilon), LEARNING_RATE: np.float32(rate)})
        self.episodes += 1
        return Episode(float(found["total"]), int(found["steps"]), float(found["loss"]))

    def fit(self, episodes: int, epsilon: Callable[[int], float] | None = None) -> list[Episode]:
        """Play `episodes` episodes and learn from them. Return their results.

        Args:
            episodes: Number of episodes.
            epsilon: Function that returns the exploration rate of episode i. By default, it falls from 1 to 0.05 in the
                first half of the episodes.
        """

        def falling(i: int) -> float:
            return max(0.05, 1 - 2 * i / episodes)

        return [self.episode((epsilon or falling)(i)) for i in range(episodes)]

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield repr(self.net.name)
        yield type(self.world).__name__
        yield type(self.optimizer).__name__


# --- helpers ----------------------------------------------------------------------------------------


def _weights(net: Model, world: Environment) -> list[Value]:
    """Return the network's parameters. Raises UsageError if the network does not match the environment."""
    observation, *weights = net.graph.inputs
    if observation.role != "data" or any(v.role == "data" for v in weights) or len(net.outputs) != 1:
        raise UsageError(f"a Q network must have one input, the observation, and one output, not {net!r}")
    if other := [net.graph.name_of(v) for v in weights if v.role != "parameter" or not v.dtype.is_float]:
        raise UsageError(f"a Q network must have only trainable parameters; {other[0]!r} is not one")
    shape = net.graph.outputs[0].tensor.shape
    if shape is None or len(shape) != 2 or shape[1] != world.actions:
        raise UsageError(
            f"for {world.actions} actions, a Q network must return [N, {world.actions}], not {net.graph.outputs[0]}"
        )
    return weights


def _remember(memory: Memory, transition: Sequence[Value], capacity: int) -> Memory:
    """Return the memory with one more transition: values [1, ...] in the order of the fields of Memory."""
    row = F.mod(memory.stored, np.int64(capacity))
    parts = [_put(part, row, new) for part, new in zip(memory[:-1], transition, strict=True)]
    return Memory._make([*parts, F.add(memory.stored, np.int64(1))])


def _put(rows: Value, at: Value, new: Value) -> Value:
    """Return `rows` with row `at` (int64 scalar) replaced by `new` [1, ...]."""
    return F.scatter_nd(rows, F.reshape(at, np.array([1, 1])), new)


def _pick(q: Value, action: Value) -> Value:
    """Return q[i, action[i]] for each i: [N]."""
    return F.squeeze(F.gather_elements(q, F.unsqueeze(action, np.array([1])), axis=1), np.array([1]))


def _like(flags: Value, rows: Value) -> Value:
    """Return flags [N] as [N, 1, ...], to broadcast against `rows` [N, ...]."""
    return F.unsqueeze(flags, np.arange(1, rows.rank or 1))


def _all(flags: Value) -> Value:
    """Return whether all flags [N] are true, as a bool scalar."""
    lowest: Value = F.reduce_min(F.cast(flags, to=DType.INT64), keepdims=False)
    return F.cast(lowest, to=DType.BOOL)
