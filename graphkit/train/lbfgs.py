"""L-BFGS: a trainer that evaluates a loss several times in each step, with PyTorch's rules."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from graphkit import config
from graphkit.autodiff.reverse_mode import gradient
from graphkit.errors import NotFinite, UsageError
from graphkit.executor.devices.groups import AnyDevice
from graphkit.executor.run.session import Executor
from graphkit.ir.types import TensorType
from graphkit.model import Model
from graphkit.signatures import typed
from graphkit.text import quantity, short_repr
from graphkit.train.arguments import NOT_NEGATIVE, POSITIVE, integer, real
from graphkit.train.inputs import Inputs, by_name
from graphkit.train.line_search import Point, strong_wolfe
from graphkit.train.losses import AnyLoss, default_loss
from graphkit.train.metrics import LOSS
from graphkit.train.selection import ParameterSelection, select_parameters
from graphkit.train.training_graph import Criterion, training_graph

# Pairs whose curvature is not above this are left out.
_LEAST_CURVATURE = 1e-10


class LBFGS:
    """Trains the model `net` in place with L-BFGS (Nocedal and Wright, 2006), by the rules of torch.optim.LBFGS.

    L-BFGS is for smooth losses of few samples, such as regression, physics and fine fits: give all samples to each
    `step`. A step evaluates the loss up to `max_eval` times. Each evaluation updates running statistics, and draws
    other random numbers for dropout. One process only; there are no checkpoints.

    Args:
        net: The model.
        loss: A name, a loss with options, a function, or a dict of losses by output, as for gk.Trainer.
        lr: Factor on the step length, above 0; the first length that the line search tries.
        max_iter: Largest number of iterations of a step.
        max_eval: Number of evaluations after which a step ends (default: 1.25 * max_iter).
        tolerance_grad: A step ends if no element of the gradient is larger than this.
        tolerance_change: A step ends if parameters or the loss change by less than this.
        history_size: Number of earlier changes of the parameters that approximate the curvature.
        line_search: "strong_wolfe", or None for steps of length `lr`.
        freeze: Parameters that keep their values: names or glob patterns.
        train: If given, only these parameters are trained.
        targets: A dict of target name to TensorType. Required if `loss` is a function.
        output: Name of the output for the loss, if the model has several.
        device: "cpu" or "cuda".
        threads: Number of CPU threads (default: GRAPHKIT_NUM_THREADS, else one per core).
        seed: Seed of dropout (default: GRAPHKIT_SEED).

    Attributes:
        evaluations: Number of evaluations of the loss so far.
        iterations: Number of iterations so far.

    Raises:
        UsageError: An argument is wrong, or there is nothing to train.
    """

    @typed("gk.LBFGS")
    def __init__(
        self,
        net: Model,
        loss: Any = None,
        *,
        lr: float = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search: str | None = "strong_wolfe",
        freeze: Sequence[str] = (),
        train: Sequence[str] = (),
        targets: Mapping[str, TensorType] | None = None,
        output: str | None = None,
        device: AnyDevice = "cpu",
        threads: int | None = None,
        seed: int | None = None,
    ):
        if line_search not in (None, "strong_wolfe"):
            raise UsageError(f"LBFGS: line_search must be 'strong_wolfe' or None, not {line_search!r}")
        self.net = net
        self.lr = real("LBFGS", "lr", lr, POSITIVE)
        self.max_iter = integer("LBFGS", "max_iter", max_iter, 1)
        self.max_eval = self.max_iter * 5 // 4 if max_eval is None else integer("LBFGS", "max_eval", max_eval, 1)
        self.tolerance_grad = real("LBFGS", "tolerance_grad", tolerance_grad, NOT_NEGATIVE)
        self.tolerance_change = real("LBFGS", "tolerance_change", tolerance_change, NOT_NEGATIVE)
        self.history_size = integer("LBFGS", "history_size", history_size, 1)
        self.line_search = line_search
        self.evaluations = self.iterations = 0
        self._create_program(loss, targets, output, ParameterSelection(freeze, train), device, threads, seed)
        # By index: changes of the gradient and of the parameters, and the reciprocals of their products.
        self._pairs: list[tuple[np.ndarray, np.ndarray, float]] = []
        self._scale = 1.0
        # The last direction and step length, and the gradient before it.
        self._direction = self._gradient = np.zeros(0)
        self._length = 0.0

    def _create_program(
        self, loss: AnyLoss | None, targets: Mapping[str, TensorType] | None, output: str | None,
        selection: ParameterSelection, device: AnyDevice, threads: int | None, seed: int | None,
    ) -> None:  # fmt: skip
        self.net.separate_roles()
        graph, self._targets = training_graph(
            self.net, Criterion(default_loss(self.net, loss, output), targets, output, None), selection,
            mixed=False, straight_through=False, batch_statistics=True, statistics_over=None,
        )  # fmt: skip
        trained = select_parameters(graph, selection)
        self.trained = tuple(t.name for t in trained)
        types = {t.value.dtype for t in trained}
        if len(types) > 1:
            raise UsageError(f"LBFGS: all trained parameters need one type, not {', '.join(sorted(map(str, types)))}")
        gradients = gradient([graph.outputs[0]], [t.value for t in trained])
        names = [LOSS, *(f"{name}_grad" for name in self.trained)]
        program = graph.replace(outputs=[graph.outputs[0], *gradients], output_names=names)
        seed = config.SEED.get() if seed is None else integer("LBFGS", "seed", seed, 0)
        self._executor = Executor(program, self.net.params, device=device, threads=threads, seed=seed)
        self._inputs = Inputs(self.net.input_types)

    @typed("LBFGS.step")
    def step(self, inputs: Any, targets: Any) -> float:
        """Take up to `max_iter` iterations on these samples. Return the loss before the first one.

        Args:
            inputs: An array, a tuple, or a dict by name.
            targets: An array, a tuple, or a dict by name.

        Raises:
            NotFinite: The loss or a gradient is NaN or infinite. Parameters then have their values from before the
                iteration.
        """
        feeds = self._inputs.converted(by_name(inputs, self._inputs.names, "input")) | self._targets.fitted(targets)
        here = self._evaluate(feeds)
        first, done = here.loss, self.evaluations - 1
        for iteration in range(1, self.max_iter + 1):
            if _largest(here.gradient) <= self.tolerance_grad:
                break
            before, length = here, self._choose_direction(here.gradient)
            slope = float(before.gradient @ self._direction)
            if slope > -self.tolerance_change:
                break
            is_last = iteration == self.max_iter
            here = self._move(feeds, before._replace(t=0.0, slope=slope), length, evaluates=not is_last)
            is_small = _largest(self._direction * self._length) <= self.tolerance_change
            if is_last or self.evaluations - done >= self.max_eval or is_small:
                break
            if abs(here.loss - before.loss) < self.tolerance_change:
                break
        return first

    def _choose_direction(self, current: np.ndarray) -> float:
        """Set the direction, from the gradient and the stored pairs. Return the step length to try first."""
        self.iterations += 1
        if self.iterations == 1:
            self._direction = -current
            length = min(1.0, 1.0 / float(np.abs(current).sum())) * self.lr
        else:
            self._store_pair(current - self._gradient, self._direction * current.dtype.type(self._length))
            r = -current
            factors = []
            for change, move, factor in reversed(self._pairs):
                factors.append(float(move @ r) * factor)
                r = r - change * r.dtype.type(factors[-1])
            r = r * r.dtype.type(self._scale)
            for (change, move, factor), earlier in zip(self._pairs, reversed(factors), strict=True):
                r = r + move * r.dtype.type(earlier - float(change @ r) * factor)
            self._direction, length = r, self.lr
        self._gradient = current
        return length

    def _store_pair(self, change: np.ndarray, move: np.ndarray) -> None:
        """Store a change of the gradient and of the parameters, if the loss is convex between them."""
        curvature = float(change @ move)
        if curvature > _LEAST_CURVATURE:
            if len(self._pairs) == self.history_size:
                del self._pairs[0]
            self._pairs.append((change, move, 1.0 / curvature))
            self._scale = curvature / float(change @ change)

    def _move(self, feeds: Mapping[str, Any], start: Point, length: float, *, evaluates: bool) -> Point:
        """Move the parameters along the direction, and return the point there.

        evaluates: whether a move of fixed length needs the loss and gradient at its end.
        """
        origin = self._parameters()

        def point(t: float) -> Point:
            self._set_parameters(origin + self._direction * origin.dtype.type(t))
            found = self._evaluate(feeds)
            return found._replace(t=t, slope=float(found.gradient @ self._direction))

        try:
            if self.line_search is not None:
                found, _ = strong_wolfe(
                    point, start, length, _largest(self._direction), self.tolerance_change
                )  # fmt: skip
                self._set_parameters(origin + self._direction * origin.dtype.type(found.t))
            elif evaluates:
                found = point(length)
            else:
                self._set_parameters(origin + self._direction * origin.dtype.type(length))
                found = start._replace(t=length)
        except BaseException:
            self._set_parameters(origin)
            self._length = 0.0  # a move of 0: its pair is not stored
            raise
        self._length = found.t
        return found

    # --- the loss -----------------------------------------------------------------------------------

    def _evaluate(self, feeds: Mapping[str, Any]) -> Point:
        found = self._executor.run(feeds)
        loss = float(found[LOSS])
        flat = np.concatenate([found[f"{name}_grad"].reshape(-1) for name in self.trained])
        self.evaluations += 1
        if not (math.isfinite(loss) and np.isfinite(flat).all()):
            what = "the loss" if not math.isfinite(loss) else "a gradient"
            raise NotFinite(f"LBFGS: {what} of evaluation {self.evaluations} is not finite; try a smaller lr")
        return Point(0.0, loss, flat, 0.0)

    def _parameters(self) -> np.ndarray:
        return np.concatenate([self.net.params[name].reshape(-1) for name in self.trained])

    def _set_parameters(self, flat: np.ndarray) -> None:
        end = 0
        for name in self.trained:
            old = self.net.params[name]
            begin, end = end, end + old.size
            self.net.params[name] = flat[begin:end].reshape(old.shape)

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield repr(self.net.name)
        yield quantity(self.iterations, "iteration")


def _largest(vector: np.ndarray) -> float:
    return float(np.abs(vector).max(initial=0.0))
