"""L-BFGS: a trainer that evaluates a loss several times in each step, with PyTorch's rules."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphkit import config
from graphkit.autodiff.reverse_mode import gradient
from graphkit.errors import InputError, InvalidModel, NotFinite, UnsupportedError, UsageError
from graphkit.executor.devices.groups import AnyDevice
from graphkit.executor.run.interruption import uninterrupted
from graphkit.executor.run.session import Executor
from graphkit.ir.types import TensorType
from graphkit.model import Model
from graphkit.signatures import typed
from graphkit.text import quantity, short_repr
from graphkit.train import checkpoint as checkpoints
from graphkit.train import losses
from graphkit.train.arguments import NOT_NEGATIVE, POSITIVE, integer, real
from graphkit.train.inputs import Inputs, by_name
from graphkit.train.lbfgs_history import History, names_in
from graphkit.train.line_search import Point, strong_wolfe
from graphkit.train.losses import default_loss
from graphkit.train.masks import check as check_masks
from graphkit.train.metrics import LOSS
from graphkit.train.position import Position
from graphkit.train.run_folder import RunFolder, check_links
from graphkit.train.selection import MASK, ParameterSelection, select_parameters
from graphkit.train.training_graph import Criterion, training_graph


class LBFGS:
    """Trains the model `net` in place with L-BFGS (Nocedal and Wright, 2006), by the rules of torch.optim.LBFGS.

    Use L-BFGS for smooth losses of few samples, for example in regression or physics, or to fit data very precisely.
    Give all samples to each `step`.

    A step evaluates the loss several times (see `max_eval`). Each evaluation updates running statistics, and draws new
    random numbers for dropout. Several processes are not supported.

    Args:
        net: The model.
        loss: A name, a loss with options, a function, or a dict of losses by output, as for gk.Trainer.
        lr: Step length, above 0. With a line search, it is the first length that the search tries. In the first
            iteration, this length is multiplied by min(1, 1 / sum(|gradient|)).
        max_iter: Largest number of iterations of a step.
        max_eval: Number of evaluations after which a step begins no further iteration (default: 1.25 * max_iter). The
            line search of the last iteration may exceed it.
        tolerance_grad: A step ends if no element of the gradient is larger than this.
        tolerance_change: A step ends if parameters or the loss change by less than this.
        history_size: Number of earlier changes of the parameters that approximate the curvature.
        line_search: "strong_wolfe", or None for steps of length `lr`.
        freeze: Parameters that keep their values: names or glob patterns.
        train: If given, only these parameters are trained.
        masks: A dict of parameter name to an array of booleans (or 0 and 1) in the shape of the parameter. Where it is
            False, the parameter must be 0, and stays exactly 0. `gk.prune` and `gk.zero_masks` make masks. Checkpoints
            contain the masks, and a resumed run takes them from there.
        targets: A dict of target name to TensorType. Required if `loss` is a function.
        output: Name of the output for the loss, if the model has several.
        device: "cpu" or "cuda".
        threads: Number of CPU threads (default: GRAPHKIT_NUM_THREADS, else one per core).
        seed: Seed of dropout (default: GRAPHKIT_SEED).

    Attributes:
        notes: JSON values of yours, which checkpoints contain.

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
        masks: Mapping[str, Any] | None = None,
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
        self.loss, self.notes = default_loss(net, loss, output), dict[str, Any]()
        self.seed = config.SEED.get() if seed is None else integer("LBFGS", "seed", seed, 0)
        self._run = secrets.token_hex(8)
        selection = ParameterSelection(freeze, train, masks=masks or {})
        self._create_program(targets, output, selection, device, threads)
        nothing = self._parameters()[:0].copy()
        self._history = History(self.history_size, nothing, nothing)

    def _create_program(
        self, targets: Mapping[str, TensorType] | None, output: str | None, selection: ParameterSelection,
        device: AnyDevice, threads: int | None,
    ) -> None:  # fmt: skip
        self.net.separate_roles()
        graph, self._targets = training_graph(
            self.net, Criterion(self.loss, targets, output, None), selection,
            mixed=False, straight_through=False, batch_statistics=True, statistics_over=None,
        )  # fmt: skip
        trained = select_parameters(graph, selection)
        self.trained = tuple(t.name for t in trained)
        check_masks(trained, self.net.params, None)
        self._set_masks({t.name: t.mask.array for t in trained if t.mask is not None})
        types = {t.value.dtype for t in trained}
        if len(types) > 1:
            raise UsageError(f"LBFGS: all trained parameters need one type, not {', '.join(sorted(map(str, types)))}")
        gradients = gradient([graph.outputs[0]], [t.value for t in trained])
        names = [LOSS, *(f"{name}_grad" for name in self.trained)]
        program = graph.replace(outputs=[graph.outputs[0], *gradients], output_names=names)
        self._executor = Executor(program, self.net.params, device=device, threads=threads, seed=self.seed)
        self._inputs = Inputs(self.net.input_types)

    def _set_masks(self, masks: Mapping[str, np.ndarray]) -> None:
        self._masks = dict(masks)
        self._kept: np.ndarray | None = None
        if masks:
            shapes = {name: self.net.params.type_of(name).static_shape for name in self.trained}
            kept = [masks.get(name, np.ones(shape, bool)).reshape(-1) for name, shape in shapes.items()]
            self._kept = np.concatenate(kept)

    def _masked(self, flat: np.ndarray) -> np.ndarray:
        return flat if self._kept is None else np.where(self._kept, flat, flat.dtype.type(0))

    def masks(self) -> dict[str, np.ndarray]:
        """Return the masks by parameter name: booleans, False where the parameter stays 0."""
        return {name: mask.copy() for name, mask in self._masks.items()}

    @property
    def iterations(self) -> int:
        """Number of iterations so far."""
        return self._history.iterations

    @property
    def evaluations(self) -> int:
        """Number of evaluations of the loss so far."""
        return self._history.evaluations

    def to_onnx(self, path: Any, **options: Any) -> None:
        """Raise UnsupportedError: the step of L-BFGS is not one graph."""
        raise UnsupportedError(
            "a step of L-BFGS cannot be exported: it evaluates the loss several times, and its line search decides in "
            "Python how often. Train with gk.Trainer and an optimizer of gk.optim to export the step"
        )

    @typed("LBFGS.step")
    def step(self, inputs: Any, targets: Any) -> float:
        """Take up to `max_iter` iterations on these samples. Return the loss before the first iteration.

        Args:
            inputs: An array, a tuple, or a dict by name.
            targets: An array, a tuple, or a dict by name.

        Raises:
            InputError: The batch is empty, or does not fit the model.
            NotFinite: The loss or a gradient is NaN or infinite. Parameters then have their values from before the
                iteration.
        """
        fitted = self._targets.fitted(targets)
        if any(np.size(array) == 0 for array in fitted.values()):
            raise InputError("LBFGS.step: the batch is empty; give at least one sample")
        feeds = self._inputs.converted(by_name(inputs, self._inputs.names, "input")) | fitted
        here = self._evaluate(feeds)
        first, done = here.loss, self.evaluations - 1
        for iteration in range(1, self.max_iter + 1):
            if _largest(here.gradient) <= self.tolerance_grad:
                break
            before, length = here, self._choose_direction(here.gradient)
            slope = float(before.gradient @ self._history.direction)
            if slope > -self.tolerance_change:
                break
            is_last = iteration == self.max_iter
            here = self._move(feeds, before._replace(t=0.0, slope=slope), length, evaluates=not is_last)
            is_small = _largest(self._history.direction * self._history.length) <= self.tolerance_change
            if is_last or self.evaluations - done >= self.max_eval or is_small:
                break
            if abs(here.loss - before.loss) < self.tolerance_change:
                break
        return first

    def _choose_direction(self, current: np.ndarray) -> float:
        """Set the direction. Return the step length to try first."""
        history = self._history
        history.iterations += 1
        if history.iterations == 1:
            history.direction = -current
            length = min(1.0, 1.0 / float(np.abs(current).sum())) * self.lr
        else:
            move = history.direction * current.dtype.type(history.length)
            history.store_pair(current - history.gradient, move)
            history.direction, length = self._masked(history.approximate_newton_step(current)), self.lr
        history.gradient = current
        return length

    def _move(self, feeds: Mapping[str, Any], start: Point, length: float, *, evaluates: bool) -> Point:
        """Move the parameters along the direction. Return the new point.

        evaluates: whether a move of fixed length needs the loss and gradient at its end.
        """
        origin = self._parameters()

        def point(t: float) -> Point:
            self._set_parameters(origin + self._history.direction * origin.dtype.type(t))
            found = self._evaluate(feeds)
            return found._replace(t=t, slope=float(found.gradient @ self._history.direction))

        try:
            if self.line_search is not None:
                found = strong_wolfe(
                    point, start, length, _largest(self._history.direction), self.tolerance_change
                )  # fmt: skip
                self._set_parameters(origin + self._history.direction * origin.dtype.type(found.t))
            elif evaluates:
                found = point(length)
            else:
                self._set_parameters(origin + self._history.direction * origin.dtype.type(length))
                found = start._replace(t=length)
        except BaseException:
            self._set_parameters(origin)
            # Record a move of 0, so that the next iteration stores no pair for it. The failed direction may contain
            # NaN, so it must not get into a checkpoint.
            self._history.direction, self._history.length = np.zeros_like(origin), 0.0
            raise
        self._history.length = found.t
        return found

    # --- the loss -----------------------------------------------------------------------------------

    def _evaluate(self, feeds: Mapping[str, Any]) -> Point:
        found = self._executor.run(feeds)
        loss = float(found[LOSS])
        flat = self._masked(np.concatenate([found[f"{name}_grad"].reshape(-1) for name in self.trained]))
        self._history.evaluations += 1
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

    # --- checkpoints --------------------------------------------------------------------------------

    @typed("LBFGS.save")
    def save(self, folder: str | Path) -> None:
        """Write a checkpoint of the parameters and of the state of L-BFGS. Call it between two steps.

        When the checkpoint is complete, it replaces any checkpoint in the folder, even one of another run. It does not
        contain the network itself: write the network with `net.save`.

        Raises RuntimeFailure if it cannot be written; the folder then contains the previous checkpoint.
        """
        with RunFolder(folder) as held:
            checkpoints.save(
                held.path,
                checkpoints.Checkpoint(
                    arrays={
                        **self.net.params,
                        **{f"{name}/{MASK}": mask for name, mask in self._masks.items()},
                        **self._history.arrays(),
                    },
                    optimizer={"kind": "lbfgs", "trained": list(self.trained)},
                    loss=losses.described(self.loss),
                    rng=self._executor.rng,
                    position=Position().describe(),
                    run=self._run,
                    updates=self.iterations,
                    data_seed=self.seed,
                    notes=self.notes,
                ),
            )

    @typed("LBFGS.resume")
    def resume(self, folder: str | Path, *, trusted: bool = False) -> None:
        """Restore the parameters and the state of L-BFGS from the checkpoint in a folder.

        Further steps on the same samples then give the same bits as without an interruption. If `history_size` is
        smaller than in that run, only the last pairs are kept. If `resume` fails, nothing changes.

        Args:
            folder: The folder.
            trusted: Accept files that are symbolic links to places outside of the folder.

        Raises:
            UsageError: There is no checkpoint.
            InvalidModel: The checkpoint is damaged, or does not fit this model, its trained parameters or L-BFGS.
            UnsafeModel: A file is a link to a place outside, and the folder is not trusted.
        """
        if not trusted:
            check_links(folder)
        saved, params = checkpoints.load(folder), self.net.params
        masks = {name: f"{name}/{MASK}" for name in self._masks}
        checkpoints.check_names(set(saved.arrays), {*params, *masks.values(), *names_in(saved.arrays)}, folder)
        try:
            arrays = {name: params.fitting(name, saved.arrays[name]) for name in params}
        except InputError as error:
            raise InvalidModel(
                f"the checkpoint in {folder} does not fit this model: {error}. {checkpoints.ADVICE}"
            ) from None
        if saved.optimizer.get("trained") != list(self.trained):
            raise InvalidModel(
                f"the checkpoint in {folder} does not fit: that run trained other parameters. {checkpoints.ADVICE}"
            )
        if saved.loss != losses.described(self.loss):
            raise InvalidModel(
                f"the checkpoint in {folder} does not fit: that run has the loss {saved.loss}, but this one has "
                f"{losses.described(self.loss)}, and L-BFGS uses the gradients of earlier steps. To train the model "
                "with another loss, load its parameters into a new LBFGS"
            )
        elements, where = self._parameters().size, f"the checkpoint in {folder}"
        history = self._history.restored(saved.arrays, elements, where)
        masks_before = {name: _mask_of(name, saved.arrays[key], arrays[name], where) for name, key in masks.items()}
        with uninterrupted:
            self._set_masks(masks_before)
            for name, array in arrays.items():
                params.commit(name, array)
            self._history, self._executor.rng = history, saved.rng
            self._run, self.seed, self.notes = saved.run, saved.data_seed, saved.notes

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield repr(self.net.name)
        yield quantity(self.iterations, "iteration")


def _mask_of(name: str, mask: np.ndarray, parameter: np.ndarray, where: str) -> np.ndarray:
    """Return the mask of a checkpoint."""
    if mask.dtype != bool or mask.shape != parameter.shape:
        raise InvalidModel(
            f"{where} does not fit: '{name}/{MASK}' is {mask.dtype}{list(mask.shape)}, not bool{list(parameter.shape)}"
        )
    if np.any(parameter[~mask]):
        raise InvalidModel(f"{where} is damaged: parameter {name!r} is not 0 everywhere where its mask is False")
    return np.array(mask)


def _largest(vector: np.ndarray) -> float:
    return float(np.abs(vector).max(initial=0.0))
