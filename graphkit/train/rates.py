"""The learning rate of an update, by the optimizer's schedule, the length of the run, and callbacks."""

from __future__ import annotations

from graphkit.train.schedules import Schedule


class Rates:
    """scale: what every rate is multiplied by. run_updates: how many the run has, for a schedule that goes over all of
    them; None: nobody knows.
    """

    def __init__(self) -> None:
        self.scale = 1.0
        self.run_updates: int | None = None
        # A schedule over so many updates, and what it is then.
        self._over: tuple[tuple[Schedule, int], Schedule] | None = None

    def at(self, schedule: Schedule, update: int, first: int) -> float:
        """Of an update, 0 for the first one ever; first: the one with which the run began.

        Raises UsageError for a schedule over a run of which nobody knows the length.
        """
        if not schedule.is_open or self.run_updates is None:
            return schedule(update) * self.scale
        if self._over is None or self._over[0] != (schedule, self.run_updates):
            self._over = (schedule, self.run_updates), schedule.over(self.run_updates)
        return self._over[1](update - first) * self.scale
