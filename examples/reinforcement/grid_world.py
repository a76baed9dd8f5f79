"""A grid with walls, a start and a goal: an environment whose step is a graph, for q_learning.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import graphkit as gk

# Up, down, left, right, as (row, column).
MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]], np.int64)

SMALL = ("S.#..", "..#..", "....#", ".##..", "...#G")


class GridWorld:
    """A grid given as rows of text: S is the start, G the goal, # a wall, anything else is free.

    There may be any number of agents. A state is int64 [N, 2], the row and column of every agent; an observation
    float32 [N, rows * columns], 1 at the agent's cell; an action int64 [N]: 0 up, 1 down, 2 left, 3 right. A move into
    a wall or over the edge leaves the agent where it is. The reward is `goal` for the move that reaches the goal, which
    ends the episode, and `cost` for any other. Raises UsageError for a map that is not a rectangle with one S and one
    G.
    """

    actions = len(MOVES)

    def __init__(self, rows: Sequence[str] = SMALL, *, goal: float = 1.0, cost: float = -0.02):
        if not rows or len({len(row) for row in rows}) != 1:
            raise gk.errors.UsageError("the rows of a grid world must be strings of equal length")
        self.cells = np.array([list(row) for row in rows])
        for mark, meaning in (("S", "start"), ("G", "goal")):
            if (count := int((self.cells == mark).sum())) != 1:
                raise gk.errors.UsageError(f"a grid world must have one {meaning} ({mark}), not {count}")
        self.start, self.goal = (np.argwhere(self.cells == mark)[0].astype(np.int64) for mark in "SG")
        self.rewards = np.float32(goal), np.float32(cost)
        self.observations = self.cells.size

    def reset(self, agents: int) -> gk.Value:
        """Return the states of `agents` agents at the start."""
        return gk.constant(value=np.tile(self.start, (agents, 1)))

    def observe(self, state: gk.Value) -> gk.Value:
        """Return the observations for states: the agents' cells, one-hot."""
        hot = np.eye(self.cells.size, dtype=np.float32).reshape(*self.cells.shape, -1)
        return gk.gather_nd(gk.constant(value=hot), state, name="observation")

    def step(self, state: gk.Value, action: gk.Value) -> tuple[gk.Value, gk.Value, gk.Value]:
        """Move the agents. Returns (next state, reward float32 [N], bool [N]: whether the episode is over)."""
        moved = gk.add(state, gk.gather(gk.constant(value=MOVES), action, axis=0))
        inside = gk.min(gk.max(moved, np.zeros(2, np.int64)), np.array(self.cells.shape, np.int64) - 1)
        wall = gk.gather_nd(gk.constant(value=self.cells == "#"), inside)
        state = gk.where(gk.unsqueeze(wall, np.array([1])), state, inside, name="state")
        away = gk.reduce_sum(gk.abs(gk.sub(state, self.goal)), np.array([1]), keepdims=False)
        arrived = gk.equal(away, np.int64(0), name="arrived")
        goal, cost = self.rewards
        return state, gk.where(arrived, goal, cost, name="reward"), arrived

    def draw(self, path: Sequence[Sequence[int]]) -> str:
        """Return the map as text, with the cells of a path (rows of a state) marked by `*`."""
        cells = self.cells.copy()
        for row, column in path:
            if cells[row, column] not in ("S", "G"):
                cells[row, column] = "*"
        return "\n".join("".join(row) for row in cells)
