"""Deep Q-learning in a grid world: environment, exploration, replay memory and updates are one graph."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from combinations import in_one_item
from grid_world import MOVES, GridWorld
from q_learning import QLearner, Settings, learning_episode, rollout

import graphkit as gk
from graphkit.errors import UsageError
from graphkit.onnx_io.compare import OnnxRuntimeModel

EPISODES = 80


def shortest(world):
    """Moves on the shortest way from start to goal, by breadth-first search."""
    distances, queue = {tuple(world.start): 0}, deque([tuple(world.start)])
    while queue:
        cell = queue.popleft()
        for action in range(world.actions):
            following, _, _ = simulated(world, cell, action)
            if following not in distances:
                distances[following] = distances[cell] + 1
                queue.append(following)
    return distances[tuple(world.goal)]


def simulated(world, cell, action):
    """A step of the world in plain Python: (next cell, reward, over)."""
    row, column = cell[0] + MOVES[action][0], cell[1] + MOVES[action][1]
    rows, columns = world.cells.shape
    if not (0 <= row < rows and 0 <= column < columns) or world.cells[row, column] == "#":
        row, column = cell
    over = world.cells[row, column] == "G"
    return (int(row), int(column)), world.rewards[0 if over else 1], bool(over)


@pytest.fixture(scope="module")
def trained():
    world = GridWorld()
    net = gk.models.build("dqn", observations=world.observations, actions=world.actions)
    learner = QLearner(net, world, seed=1)
    return world, net, learner, learner.fit(EPISODES)


def test_a_step_is_what_the_rules_say():
    world = GridWorld(("S.#", ".#.", "..G"), goal=2.0, cost=-0.5)
    state, action = gk.input("state", ["N", 2], "int64"), gk.input("action", ["N"], "int64")
    following, reward, over = world.step(state, action)
    outputs = {"state": following, "reward": reward, "over": over, "seen": world.observe(following)}
    free = [tuple(map(int, cell)) for cell in np.argwhere(world.cells != "#")]
    pairs = [(cell, a) for cell in free for a in range(4)]
    feeds = {"state": np.array([c for c, _ in pairs]), "action": np.array([a for _, a in pairs])}
    found = gk.Model(outputs).compile(threads=1).run(feeds)
    expected = [simulated(world, cell, a) for cell, a in pairs]
    np.testing.assert_array_equal(found["state"], [cell for cell, _, _ in expected])
    np.testing.assert_array_equal(found["reward"], np.array([r for _, r, _ in expected], np.float32))
    np.testing.assert_array_equal(found["over"], [o for _, _, o in expected])
    cells = [row * 3 + column for (row, column), _, _ in expected]
    np.testing.assert_array_equal(found["seen"], np.eye(9, dtype=np.float32)[cells])


def reward_curve(history, best):
    lines = [f"episodes  mean reward (at best {best:.2f})  mean steps"]
    for i in range(0, len(history), 10):
        mean, steps = (float(np.mean([getattr(e, key) for e in history[i : i + 10]])) for key in ("total", "steps"))
        lines.append(f"{i + 1:3} to {i + 10:3}  {mean:6.3f} {'#' * round(20 * max(mean + 1, 0)):40} {steps:5.1f}")
    return lines


def test_it_learns_the_shortest_way(trained, capsys):
    world, net, _, history = trained
    best = world.rewards[0] + world.rewards[1] * (shortest(world) - 1)
    played = rollout(net, world).run({"epsilon": np.float32(0), "uniform": np.zeros((100, 2, 1), np.float32)})
    drawn = world.draw(played["path"][: played["steps"] + 1, 0])
    with capsys.disabled():
        print("", *reward_curve(history, best), drawn, sep="\n")  # noqa: T201
    assert np.mean([e.total for e in history[:10]]) < 0
    # The cost of one random action in twenty, and a little more.
    assert np.mean([e.total for e in history[-20:]]) > best - 0.1
    assert played["steps"] == shortest(world)
    np.testing.assert_allclose(played["total"], best, rtol=1e-6)


def test_the_same_seed_gives_the_same_curve():
    def curve(seed):
        learner = QLearner(gk.models.build("dqn", hidden=(16,)), GridWorld(), seed=seed)
        return learner.fit(4), {n: a.tobytes() for n, a in learner.net.params.items()}

    assert curve(3) == curve(3)
    assert curve(3) != curve(4)


def test_the_policy_exports(trained):
    _, net, _, _ = trained
    report = gk.verify(net, {"x": np.eye(25, dtype=np.float32)}, threads=1)
    assert report.passed, str(report)


@pytest.mark.parametrize("opset", [17, 21, 26])
def test_the_loop_of_environment_and_policy_exports(trained, opset):
    world, net, _, _ = trained
    model = rollout(net, world, agents=5, limit=60)
    proto = model.to_onnx(opset=opset)
    assert [node.op_type for node in proto.graph.node].count("Loop") == 1
    assert {node.domain for node in proto.graph.node} == {""}
    feeds = {"epsilon": np.array(0.5, np.float32), "uniform": np.random.default_rng(2).random((60, 2, 5), np.float32)}
    ours, theirs = model.run(feeds), OnnxRuntimeModel(proto, threads=1).run(feeds)
    assert len(np.unique(ours["path"].transpose(1, 0, 2), axis=0)) == 5
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


def test_a_rollout_runs_without_python(trained, monkeypatch):
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
    world, net, _, _ = trained
    feeds = {"epsilon": np.float32(0.2), "uniform": np.zeros((10, 2, 4), np.float32)}
    assert rollout(net, world, agents=4, limit=10).compile(threads=1).run(feeds)["steps"] == 10


def test_a_rollout_follows_the_rules(trained):
    world, net, _, _ = trained
    uniform = np.random.default_rng(0).random((50, 2, 3), np.float32)
    played = rollout(net, world, agents=3, limit=50).run({"epsilon": np.float32(1), "uniform": uniform})
    for agent in range(3):
        cell, total, over = tuple(map(int, world.start)), np.float32(0), False
        for t in range(int(played["steps"])):
            if not over:
                cell, reward, over = simulated(world, cell, int(uniform[t, 1, agent] * 4))
                total += reward
            assert tuple(played["path"][t + 1, agent]) == cell
        assert total == played["total"][agent]


def episodes_with_fed_numbers(settings, seed=5, **options):
    """A learning episode that takes its random numbers as an input, as a Model, and feeds for it."""
    world = GridWorld(("S..", ".#.", "..G"))
    net = gk.models.build("dqn", observations=9, hidden=(8,), **options)
    optimizer = gk.optim.Adam(1e-2)
    model = gk.CustomTrainer(learning_episode(net, world, optimizer, settings, feed_uniform=True)).model()
    uniform = np.random.default_rng(seed).random((settings.limit, 2 + settings.batch), np.float32)
    feeds = {"epsilon": np.array(0.5, np.float32), "learning_rate": np.array(1e-2, np.float32), "uniform": uniform}
    return world, model, feeds


@pytest.mark.parametrize("opset", [17, 26])
def test_a_learning_episode_runs_in_onnx_runtime(opset):
    """Environment, memory, gradients and Adam, in a Loop with an If inside, as standard operators."""
    _, model, feeds = episodes_with_fed_numbers(Settings(capacity=16, batch=8, warmup=4, sync=5, limit=25))
    proto = model.to_onnx(opset=opset, with_updates=True)
    theirs = OnnxRuntimeModel(proto, threads=1).run(feeds)
    before = {n: a.copy() for n, a in model.params.items()}
    ours = model.compile(threads=1).run(feeds)
    ours |= {f"{n}_updated": a for n, a in model.params.items()}
    assert set(ours) == set(theirs)
    assert ours["updates_updated"] == ours["steps"] - 3 > 5
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], rtol=1e-4, atol=1e-5, err_msg=name)
    assert not np.array_equal(model.params["fc1_weight"], before["fc1_weight"])


def test_the_memory_is_a_ring_of_transitions():
    settings = Settings(capacity=8, batch=2, warmup=1000, limit=21)
    world, model, feeds = episodes_with_fed_numbers(settings)
    feeds["epsilon"] = np.float32(1)
    weights = {n: a.copy() for n, a in model.params.items() if "replay" not in n and n != "step_count"}
    steps = int(model.compile(threads=1).run(feeds)["steps"])
    cell, over, rows = tuple(map(int, world.start)), False, []
    for t in range(steps):
        action = int(feeds["uniform"][t, 1] * 4)
        following, reward, over = simulated(world, cell, action)
        rows.append((cell, action, reward, following, over))
        cell = following
    assert steps > settings.capacity
    assert model.params["replay/stored"] == steps
    for index in range(steps - settings.capacity, steps):
        kept = [
            model.params[f"replay/{part}"][index % 8] for part in ("state", "action", "reward", "following", "final")
        ]
        for found, expected in zip(kept, rows[index], strict=True):
            np.testing.assert_array_equal(found, expected)
    # Fewer transitions than `warmup`: nothing was learnt.
    for name, array in weights.items():
        np.testing.assert_array_equal(model.params[name], array, err_msg=name)


@pytest.mark.pytorch
@pytest.mark.parametrize("double", [False, True])
def test_an_update_is_that_of_the_papers(double):
    """Compare one step from a full memory with the formulas in PyTorch."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    settings = Settings(capacity=6, batch=5, warmup=1, limit=1, discount=0.9, double=double)
    world, model, feeds = episodes_with_fed_numbers(settings, dueling=False)
    rng = np.random.default_rng(1)
    for name, array in dict(model.params).items():
        if array.dtype == np.float32 and not name.endswith(("mean", "variance")):
            model.params[name] = rng.standard_normal(array.shape, np.float32)
    model.params["replay/state"] = rng.integers(0, 3, (6, 2))
    model.params["replay/following"] = rng.integers(0, 3, (6, 2))
    model.params["replay/action"] = rng.integers(0, 4, 6)
    model.params["replay/final"] = np.array([False, True, False, False, True, False])
    model.params["replay/stored"] = np.array(7, np.int64)
    names = ["fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias"]
    p = {n: torch.tensor(model.params[n], requires_grad=True) for n in names}
    target = {n: torch.tensor(model.params[f"target/{n}"]) for n in names}
    loss = model.compile(threads=1).run(feeds)["loss"]

    def q(parameters, cells):
        x = torch.eye(9)[cells[:, 0] * 3 + cells[:, 1]]
        w1, b1, w2, b2 = parameters.values()
        return torch.relu(x @ w1.T + b1) @ w2.T + b2

    # Stored in row 7 % 6 before the update drew from all six rows.
    rows = torch.tensor((feeds["uniform"][0, 2:] * 6).astype(np.int64))
    memory = {
        n: torch.tensor(model.params[f"replay/{n}"])[rows] for n in ("state", "action", "reward", "following", "final")
    }
    assert (model.params["replay/state"][1] == world.start).all()
    later = q(target, memory["following"])
    best = q(p, memory["following"]).argmax(1) if double else later.argmax(1)
    later = torch.where(memory["final"], 0.0, later.gather(1, best[:, None])[:, 0])
    chosen = q(p, memory["state"]).gather(1, memory["action"][:, None])[:, 0]
    expected = torch.nn.functional.huber_loss(chosen, (memory["reward"] + 0.9 * later).detach())
    optimizer = torch.optim.Adam(p.values(), lr=1e-2)
    expected.backward()
    optimizer.step()
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-5)
    for name in names:
        np.testing.assert_allclose(model.params[name], p[name].detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
        np.testing.assert_array_equal(model.params[f"target/{name}"], target[name].numpy())


def test_the_target_network_follows_at_intervals():
    settings = Settings(capacity=16, batch=4, warmup=1, sync=5, limit=5)
    _, model, feeds = episodes_with_fed_numbers(settings)
    feeds["epsilon"] = np.float32(1)
    feeds["uniform"][:, 1] = 0  # up, against the edge: the episode takes all its steps
    first = model.params["fc1_weight"].copy()
    exe = model.compile(threads=1)
    exe.run(feeds)
    assert model.params["updates"] == 5
    np.testing.assert_array_equal(model.params["target/fc1_weight"], model.params["fc1_weight"])
    assert not np.array_equal(model.params["fc1_weight"], first)


class Corridor:
    """Ten cells in a row, states without a second axis; action 1 goes right, 0 left, and the right end pays."""

    actions = 2

    def reset(self, agents):
        return gk.constant(value=np.zeros(agents, np.int64))

    def observe(self, state):
        return gk.gather(gk.constant(value=np.eye(10, dtype=np.float32)), state, axis=0)

    def step(self, state, action):
        state = gk.min(gk.max(state + action * np.int64(2) - np.int64(1), np.int64(0)), np.int64(9))
        over = gk.equal(state, np.int64(9))
        return state, gk.where(over, np.float32(1), np.float32(-0.01)), over


def test_a_world_of_ones_own():
    net = gk.models.build("dqn", observations=10, actions=2, hidden=(16,), dueling=True)
    history = QLearner(net, Corridor(), gk.optim.AdamW(3e-3), seed=0).fit(20)
    assert history[-1].steps < 20 < history[0].steps
    play = rollout(net, Corridor(), agents=3, limit=20)
    feeds = {"epsilon": np.float32(0), "uniform": np.zeros((20, 2, 3), np.float32)}
    assert play.run(feeds)["path"][9].tolist() == [9, 9, 9]
    assert gk.verify(play, feeds).passed


@in_one_item()
@pytest.mark.parametrize(
    "optimizer",
    [gk.optim.SGD(0.05), gk.optim.SGD(0.05, momentum=0.9), gk.optim.Adagrad(0.01), gk.optim.Lamb(0.01)],
    ids=lambda o: f"{o.kind}-{len(o.slots)}",
)
def test_any_optimizer(optimizer):
    net = gk.models.build("dqn", observations=10, actions=2, hidden=(8,))
    before = {n: a.copy() for n, a in net.params.items()}
    learner = QLearner(net, Corridor(), optimizer, Settings(limit=20, warmup=8), seed=0)
    (episode,) = learner.fit(1)
    assert learner.trainer.states["updates"] == episode.steps - 7
    for name, array in net.params.items():
        assert np.isfinite(array).all()
        assert not np.array_equal(array, before[name]), name
        for slot in optimizer.slots:
            assert np.ptp(learner.trainer.states[f"{name}/{slot}"]) > 0


@in_one_item()
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GridWorld(("S.", "G")), "must be strings of equal length"),
        (lambda: GridWorld(("S.", "..")), r"one goal \(G\), not 0"),
        (lambda: Settings(discount=1.5), r"discount=1.5: expected a number in \[0, 1\]"),
        (lambda: Settings(batch=0), "batch=0: expected a positive number"),
        (lambda: QLearner(gk.models.build("dqn", actions=3), GridWorld()), "for 4 actions, a Q network must return"),
        (lambda: QLearner(gk.models.build("vae"), GridWorld()), "one input, the observation, and one output"),
    ],
)
def test_what_does_not_fit(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_a_run_goes_on_from_a_checkpoint(tmp_path):
    def learner(seed=0):
        net = gk.models.build("dqn", observations=10, actions=2, hidden=(8,))
        return QLearner(net, Corridor(), settings=Settings(limit=20, warmup=8), seed=seed)

    whole = learner()
    history = [whole.episode(0.5) for _ in range(4)]
    first = learner()
    again = [first.episode(0.5) for _ in range(2)]
    first.trainer.save(tmp_path)
    second = learner(seed=5)
    second.trainer.resume(tmp_path)
    assert second.trainer.steps == 2
    assert again + [second.episode(0.5) for _ in range(2)] == history
    for name, array in whole.net.params.items():
        np.testing.assert_array_equal(second.net.params[name], array, err_msg=name)
