"""Learn the way through a maze by Q-learning; export an ONNX file with the policy and the maze in one loop.

python examples/reinforcement/reinforcement.py
python examples/reinforcement/reinforcement.py --maze maze.txt
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

import click
import numpy as np
from grid_world import GridWorld
from q_learning import QLearner, Settings, rollout

import graphkit as gk

MAZE = Path(__file__).with_name("maze.txt")
LIMIT = 200  # largest number of moves of an episode


def shortest(world: GridWorld) -> int:
    """Return the number of moves from start to goal, by breadth-first search. Raises click.UsageError without a way."""
    start, goal = tuple(world.start.tolist()), tuple(world.goal.tolist())
    moves, open_cells = {start: 0}, deque([start])
    while open_cells:
        row, column = open_cells.popleft()
        for cell in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            inside = 0 <= cell[0] < world.cells.shape[0] and 0 <= cell[1] < world.cells.shape[1]
            if inside and cell not in moves and world.cells[cell] != "#":
                moves[cell] = moves[row, column] + 1
                open_cells.append(cell)
    if goal not in moves:
        raise click.UsageError("the maze has no way from S to G")
    return moves[goal]


@click.command()
@click.option(
    "--maze", default=MAZE, type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Rows of text: S the start, G the goal, # a wall, anything else free. Default: maze.txt beside this file.",
)  # fmt: skip
@click.option("--episodes", default=300, show_default=True, type=click.IntRange(10))
@click.option("--dueling/--no-dueling", default=False, show_default=True, help="Value and advantages apart.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option("-o", "--output", default="runs/reinforcement", show_default=True, type=click.Path(path_type=Path))
def main(maze: Path, episodes: int, dueling: bool, seed: int, output: Path) -> None:
    """Learn, print the learnt way, export the network and the loop, and verify both."""
    output.mkdir(parents=True, exist_ok=True)
    world = GridWorld(maze.read_text(encoding="utf-8").splitlines())
    fewest = shortest(world)
    net = gk.models.build("dqn", observations=world.observations, actions=world.actions, dueling=dueling)
    learner = QLearner(net, world, gk.optim.Adam(1e-3), Settings(discount=0.97, limit=LIMIT), seed=seed)
    for first in range(0, episodes, 20):
        epsilons = np.maximum(0.05, 1 - 2 * np.arange(first, min(first + 20, episodes)) / episodes)
        played = [learner.episode(float(epsilon)) for epsilon in epsilons]
        click.echo(
            f"episodes {first + 1} to {first + len(played)}: exploration {epsilons.mean():.2f}, "
            f"reward {np.mean([e.total for e in played]):.3f}, moves {np.mean([e.steps for e in played]):.1f}"
        )

    net.save(output / "policy.onnx")
    play = rollout(net, world, agents=1, limit=LIMIT)
    play.save(output / "play.onnx")
    greedy = {"epsilon": np.array(0, np.float32), "uniform": np.zeros((LIMIT, 2, 1), np.float32)}
    passed = gk.verify(play, greedy, against=output / "play.onnx").passed
    passed &= gk.verify(net, against=output / "policy.onnx").passed
    end = gk.load(output / "play.onnx").run(greedy)
    steps = int(end["steps"])
    path = end["path"][: steps + 1, 0].tolist()
    click.echo(world.draw(path))
    missed = "" if path[-1] == world.goal.tolist() else "; the goal was not reached"
    click.echo(f"{steps} moves without exploration, of at least {fewest}{missed}")
    click.echo(f"the files in ONNX Runtime: {'PASSED' if passed else 'FAILED'}")
    if not passed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
