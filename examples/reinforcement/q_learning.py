"""Deep Q-learning (Mnih et al. 2015) as one program: an episode in an environment that is itself a graph.

The program is a loop of steps. Each step chooses an action (epsilon-greedy), steps the environment, stores the
transition in a replay memory and learns from a batch of it. A target network is copied from the trained one at
intervals. Network, target, optimizer slots and memory are states of the graph. The loop carries them, and they are
updated together at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

import graphkit as gk

EPSILON, UNIFORM, LEARNING_RATE = "epsilon", "uniform", "learning_rate"
# The state that counts updates.
UPDATES = "updates"


class Environment(Protocol):
    """An environment whose methods build graphs. A state is a tensor with one row per agent."""

    actions: int

    def reset(self, agents: int) -> gk.Value:
        """Return the initial states of `agents` episodes."""

    def observe(self, state: gk.Value) -> gk.Value:
        """Return what the network observes: float32 [N, ...]."""

    def step(self, state: gk.Value, action: gk.Value) -> tuple[gk.Value, gk.Value, gk.Value]:
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
            raise gk.errors.UsageError(f"Settings: discount={self.discount}: expected a number in [0, 1]")
        for name in ("capacity", "batch", "warmup", "sync", "limit"):
            if getattr(self, name) < 1:
                raise gk.errors.UsageError(f"Settings: {name}={getattr(self, name)}: expected a positive number")


class LearnerState(NamedTuple):
    """The trained network, the target network and the optimizer's states by parameter, and the number of updates."""

    weights: dict[str, gk.Value]
    target: dict[str, gk.Value]
    slots: dict[str, list[gk.Value]]
    updates: gk.Value


class Memory(NamedTuple):
    """A ring buffer of transitions, one in each row.

    `stored` is the number of all transitions so far. The next one is written to row `stored % capacity`.
    """

    state: gk.Value
    action: gk.Value
    reward: gk.Value
    following: gk.Value
    final: gk.Value
    stored: gk.Value


class Progress(NamedTuple):
    """The episode of one agent: its state, whether it is over, and the sums over its steps."""

    state: gk.Value
    over: gk.Value
    steps: gk.Value
    total: gk.Value
    loss: gk.Value


class Episode(NamedTuple):
    """The result of an episode: sum of rewards, number of steps, and mean loss of its updates."""

    total: float
    steps: int
    loss: float


def epsilon_greedy(q: gk.Value, actions: int, epsilon: gk.Value, uniform: gk.Value) -> gk.Value:
    """Return actions int64 [N]: with probability epsilon a random one, else the one with the largest q.

    uniform: float32 [2, N] random numbers from 0 to 1 - 2^-24, so that n * uniform never rounds up to the integer n.
    """
    whether, which = gk.split(uniform, np.array([1, 1]), axis=0)
    any_action = gk.cast(gk.mul(gk.squeeze(which, np.array([0])), np.float32(actions)), to=gk.DType.INT64)
    greedy = gk.arg_max(q, axis=1, keepdims=False)
    return gk.where(gk.less(gk.squeeze(whether, np.array([0])), epsilon), any_action, greedy, name="action")


def rollout(net: gk.Model, world: Environment, *, agents: int = 1, limit: int = 100) -> gk.Model:
    """Return a model that plays `agents` episodes in parallel in one Loop, with the network's epsilon-greedy policy.

    Inputs: epsilon, a float32 scalar (0: greedy); uniform, float32 [limit, 2, agents] random numbers in [0, 1).
    Outputs: steps, int64, the number of steps of the longest episode; path [limit + 1, agents, ...], the state before
    each step and after the last one; total, float32 [agents], the sums of rewards. Only the first `steps` + 1 entries
    of path are valid. The model keeps the parameter values of this call: training the network later
    does not change it.
    """
    epsilon, uniform = gk.input(EPSILON, []), gk.input(UNIFORM, [limit, 2, agents])
    weights = _weights(net, world)
    start = world.reset(agents)
    path = gk.expand(gk.unsqueeze(start, np.array([0])), np.array([limit + 1] + [1] * (start.rank or 0)))
    begin = (start, path, np.zeros(agents, bool), np.zeros(agents, np.float32), np.int64(0))

    def body(loop_state):
        state, path, over, total, steps = loop_state
        q = net.functional_call(weights, world.observe(state))
        action = epsilon_greedy(q, world.actions, epsilon, gk.gather(uniform, steps, axis=0))
        following, reward, final = world.step(state, action)
        going = gk.not_(over)
        following = gk.where(_like(going, following), following, state)
        total = gk.add(total, gk.where(going, reward, np.float32(0)))
        steps = gk.add(steps, np.int64(1))
        return following, _put(path, steps, gk.unsqueeze(following, np.array([0]))), gk.or_(over, final), total, steps

    _, path, _, total, steps = gk.while_loop(
        lambda state: gk.not_(_all(state[2])), body, begin, maximum_iterations=limit, name="episode"
    )
    outputs = {"path": path, "total": total, "steps": steps}
    inputs = [epsilon, uniform, *weights.values()]
    graph = gk.Graph(inputs, outputs.values(), name="rollout", output_names=list(outputs))
    return gk.Model.from_graph(graph, dict(net.params))


def _initial_progress(world: Environment) -> Progress:
    no_loss = gk.constant(value=np.float32(0))
    return Progress(
        world.reset(1),
        gk.constant(value=np.zeros(1, bool)),
        gk.constant(value=np.int64(0)),
        gk.constant(value=np.zeros(1, np.float32)),
        no_loss,
    )


def learning_episode(
    net: gk.Model, world: Environment, optimizer: gk.optim.Optimizer, settings: Settings, *, feed_uniform: bool = False
) -> gk.TrainingStep:
    """Return one episode of one agent as a training step. After `warmup` transitions, every move updates the network.

    Inputs: epsilon and learning_rate, float32 scalars. With `feed_uniform` also uniform, float32 [limit, 2 + batch]
    random numbers in [0, 1); without it, the graph draws them. Outputs: total, steps and loss, as in Episode. Updates:
    the network's parameters and the states that `initial_states` returns.
    """
    epsilon, rate = gk.input(EPSILON, []), gk.input(LEARNING_RATE, [])
    uniform = gk.input(UNIFORM, [settings.limit, 2 + settings.batch]) if feed_uniform else None
    weights = _weights(net, world)
    arrays = initial_states(net, world, optimizer, settings)
    states = {n: gk.Value(gk.TensorType(a.dtype.name, a.shape), n, role="state") for n, a in arrays.items()}
    slots = {n: [states[k] for k in optimizer.initial_states(n, v.tensor)] for n, v in weights.items()}
    trained = LearnerState(weights, {n: states[f"target/{n}"] for n in weights}, slots, states[UPDATES])
    memory = Memory(*(states[f"replay/{field}"] for field in Memory._fields))
    learn = _Learner(net, world, optimizer, settings, rate)

    def body(loop_state):
        progress, trained, memory = loop_state
        draws = (
            gk.random_uniform(shape=(2 + settings.batch,)) if uniform is None else gk.gather(uniform, progress.steps)
        )
        acting, sampling = gk.split(draws, np.array([2, settings.batch]))
        q = net.functional_call(trained.weights, world.observe(progress.state))
        action = epsilon_greedy(q, world.actions, epsilon, gk.reshape(acting, np.array([2, 1])))
        following, reward, final = world.step(progress.state, action)
        memory = _remember(memory, (progress.state, action, reward, following, final), settings.capacity)
        ready = gk.greater_or_equal(memory.stored, np.int64(settings.warmup))
        trained, loss = gk.cond(
            ready,
            lambda: learn(trained, memory, sampling),
            lambda: (trained, gk.constant(value=np.float32(0))),
            name="learn",
        )
        progress = Progress(
            following, final, gk.add(progress.steps, np.int64(1)),
            gk.add(progress.total, reward), gk.add(progress.loss, loss),
        )  # fmt: skip
        return progress, trained, memory

    end, after, remembered = gk.while_loop(
        lambda loop_state: gk.not_(_all(loop_state[0].over)),
        body,
        (_initial_progress(world), trained, memory),
        settings.limit,
        name="episode",
    )
    done = gk.cast(gk.sub(after.updates, trained.updates), to=gk.DType.FLOAT32)
    outputs = {
        "total": gk.squeeze(end.total, np.array([0])),
        "steps": end.steps,
        "loss": gk.div(end.loss, gk.max(done, np.float32(1))),
    }
    updates = [*zip(_values(trained), _values(after), strict=True), *zip(memory, remembered, strict=True)]
    inputs = [epsilon, rate, *([] if uniform is None else [uniform]), *(state for state, _ in updates)]
    graph = gk.Graph(inputs, outputs.values(), updates, "learning_episode", output_names=list(outputs))
    return gk.TrainingStep(graph, (net,), arrays, {LEARNING_RATE: optimizer})


@dataclass(frozen=True)
class _Learner:
    """Builds one update: the gradient of the Huber loss of a batch, the optimizer's step, and the target network."""

    net: gk.Model
    world: Environment
    optimizer: gk.optim.Optimizer
    settings: Settings
    rate: gk.Value

    def __call__(self, trained: LearnerState, memory: Memory, uniform: gk.Value) -> tuple[LearnerState, gk.Value]:
        settings = self.settings
        filled = gk.min(memory.stored, np.int64(settings.capacity))
        rows = gk.cast(gk.mul(uniform, gk.cast(filled, to=gk.DType.FLOAT32)), to=gk.DType.INT64)
        batch = Memory._make([*(gk.gather(part, rows, axis=0) for part in memory[:-1]), memory.stored])
        loss = self._loss(trained, batch)
        gradients = gk.gradient([loss], list(trained.weights.values()))
        updates = gk.add(trained.updates, np.int64(1))
        weights, slots = {}, {}
        for (name, weight), grad in zip(trained.weights.items(), gradients, strict=True):
            weights[name], slots[name] = self.optimizer.apply(weight, grad, trained.slots[name], self.rate, updates)
        copy = gk.equal(gk.mod(updates, np.int64(settings.sync)), np.int64(0))
        target = {name: gk.where(copy, new, trained.target[name]) for name, new in weights.items()}
        return LearnerState(weights, target, slots, updates), loss

    def _loss(self, trained: LearnerState, batch: Memory) -> gk.Value:
        """Return Huber(Q(s, a) - (r + discount * Q'(s', a'))), where Q' is the target network.

        a' is the best action in s' according to Q (with `double`) or Q'. After a final step, Q' counts as 0.
        """
        observation = self.world.observe(batch.following)
        future = self.net.functional_call(trained.target, observation)
        chosen = self.net.functional_call(trained.weights, observation) if self.settings.double else future
        best = _pick(future, gk.arg_max(chosen, axis=1, keepdims=False))
        later = gk.where(batch.final, np.float32(0), gk.mul(best, np.float32(self.settings.discount)))
        q = _pick(self.net.functional_call(trained.weights, self.world.observe(batch.state)), batch.action)
        return gk.losses.huber(q, gk.add(batch.reward, later))


def initial_states(
    net: gk.Model, world: Environment, optimizer: gk.optim.Optimizer, settings: Settings
) -> dict[str, np.ndarray]:
    """Return the initial states of a learning episode: target network, slots, number of updates, replay memory."""
    start = world.reset(1)
    capacity, slots = settings.capacity, {}
    for name in net.params:
        slots |= optimizer.initial_states(name, net.params.type_of(name))
    return {
        **{f"target/{name}": np.array(array) for name, array in net.params.items()},
        **slots,
        UPDATES: np.zeros((), np.int64),
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
        threads: Number of CPU threads. More than one is useful only for large networks.
        options: Of gk.CustomTrainer: device, seed.

    Attributes:
        trainer: The gk.CustomTrainer, which saves and resumes checkpoints; its steps are episodes.

    Raises:
        gk.errors.UsageError: The network does not match the environment.
    """

    def __init__(
        self,
        net: gk.Model,
        world: Environment,
        optimizer: gk.optim.Optimizer | None = None,
        settings: Settings | None = None,
        *,
        threads: int = 1,
        **options: Any,
    ):
        self.net = net
        optimizer = gk.optim.Adam(1e-3) if optimizer is None else optimizer
        step = learning_episode(net, world, optimizer, settings or Settings())
        self.trainer = gk.CustomTrainer(step, threads=threads, **options)

    def episode(self, epsilon: float) -> Episode:
        """Play one episode and learn from every step of it."""
        found = self.trainer.step({EPSILON: np.float32(epsilon)})
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


# --- helpers ----------------------------------------------------------------------------------------


def _weights(net: gk.Model, world: Environment) -> dict[str, gk.Value]:
    """Return the network's parameters by name.

    Raises gk.errors.UsageError if the network does not match the environment.
    """
    observation, *weights = net.graph.inputs
    if observation.role != "data" or any(v.role == "data" for v in weights) or len(net.outputs) != 1:
        raise gk.errors.UsageError(f"a Q network must have one input, the observation, and one output, not {net!r}")
    if other := [net.graph.name_of(v) for v in weights if v.role != "parameter" or not v.dtype.is_float]:
        raise gk.errors.UsageError(f"a Q network must have only trainable parameters; {other[0]!r} is not one")
    shape = net.graph.outputs[0].tensor.shape
    if shape is None or len(shape) != 2 or shape[1] != world.actions:
        raise gk.errors.UsageError(
            f"for {world.actions} actions, a Q network must return [N, {world.actions}], not {net.graph.outputs[0]}"
        )
    return {net.graph.name_of(v): v for v in weights}


def _values(state: LearnerState) -> list[gk.Value]:
    """Return all values of a LearnerState, in a fixed order."""
    slots = [slot for of_parameter in state.slots.values() for slot in of_parameter]
    return [*state.weights.values(), *state.target.values(), *slots, state.updates]


def _remember(memory: Memory, transition: Sequence[gk.Value], capacity: int) -> Memory:
    """Return the memory with one more transition: values [1, ...] in the order of the fields of Memory."""
    row = gk.mod(memory.stored, np.int64(capacity))
    parts = [_put(part, row, new) for part, new in zip(memory[:-1], transition, strict=True)]
    return Memory._make([*parts, gk.add(memory.stored, np.int64(1))])


def _put(rows: gk.Value, at: gk.Value, new: gk.Value) -> gk.Value:
    """Return `rows` with row `at` (int64 scalar) replaced by `new` [1, ...]."""
    return gk.scatter_nd(rows, gk.reshape(at, np.array([1, 1])), new)


def _pick(q: gk.Value, action: gk.Value) -> gk.Value:
    """Return q[i, action[i]] for each i: [N]."""
    return gk.squeeze(gk.gather_elements(q, gk.unsqueeze(action, np.array([1])), axis=1), np.array([1]))


def _like(flags: gk.Value, rows: gk.Value) -> gk.Value:
    """Return flags [N] as [N, 1, ...], to broadcast against `rows` [N, ...]."""
    return gk.unsqueeze(flags, np.arange(1, rows.rank or 1))


def _all(flags: gk.Value) -> gk.Value:
    """Return whether all flags [N] are true, as a bool scalar."""
    lowest: gk.Value = gk.reduce_min(gk.cast(flags, to=gk.DType.INT64), keepdims=False)
    return gk.cast(lowest, to=gk.DType.BOOL)
