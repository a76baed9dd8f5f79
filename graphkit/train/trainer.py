"""Trainer: a model, a loss and an optimizer as programs that run step by step.

What it is made of: `training_graph` joins the model and its loss, `step` writes forward, backward and update as graphs,
`stepper` runs them on a batch and keeps what waits for the next one, `fit` goes through epochs of batches from wherever
`position` says that a run stands, and `saving` takes all of it to a folder and back.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from graphkit import config
from graphkit.data import Batch, Dataset, Iterated, Workers, as_dataset
from graphkit.data.employed import employed
from graphkit.dist.kvstore import KVStore
from graphkit.errors import UsageError
from graphkit.executor.devices.groups import AnyDevice
from graphkit.executor.report.plan import Plan
from graphkit.executor.run.interruption import uninterrupted
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph
from graphkit.ir.types import TensorType
from graphkit.model import Model
from graphkit.passes.training.to_training import is_in_training, to_inference
from graphkit.signatures import typed
from graphkit.text import short_repr
from graphkit.train import defaults, devices, finite, loss_scale, losses, metrics, placed, recomputation, saving
from graphkit.train import optim as optimizers
from graphkit.train import step as steps
from graphkit.train.agreement import agreement_of, compare_setup
from graphkit.train.arguments import NOT_NEGATIVE, POSITIVE, integer, real
from graphkit.train.average import EMA, Averages
from graphkit.train.average import ema as moving_average
from graphkit.train.callbacks import Callback
from graphkit.train.calling import States
from graphkit.train.distributed import DistributedInference, DistributedStepper
from graphkit.train.evaluation import LOSS, Evaluation, listed, usual_metrics
from graphkit.train.fit import Fit
from graphkit.train.inputs import Inputs, by_name, with_types
from graphkit.train.lazy_scalar import LazyScalar
from graphkit.train.mixing import Mixing
from graphkit.train.pipeline import PipelineInference, PipelineStepper
from graphkit.train.position import Position
from graphkit.train.probabilities import are_probabilities
from graphkit.train.progress import ProgressBar
from graphkit.train.rates import Rates
from graphkit.train.recurrent_state import RecurrentState
from graphkit.train.remote_step import stepper_for
from graphkit.train.run_folder import RunFolder
from graphkit.train.selection import ParameterSelection, select_parameters
from graphkit.train.stepper import Stepper
from graphkit.train.training_graph import Criterion, training_graph


class Trainer:
    """Trains `net` in place: after a step `net.params` holds the new values.

    loss: a name (see `gk.losses.names()`), `gk.losses.get(name, label_smoothing=..., class_weights=...)`, a function of
    (outputs..., targets...) with `targets` giving the targets' types, or a dict of losses by output, which are added
    up, each times its `loss_weights`; their targets have the names of the outputs. output: the one that a loss by name
    and the metrics look at, where a model has several (default: the first, for the metrics). mixup, cutmix: alpha of
    the Beta distribution by which samples of a batch, and their losses, are mixed (see `train.mixing`). optimizer:
    `gk.optim.SGD(...)`, ... or a name. clip_norm: limit on the global gradient norm. accumulate: gradients of that many
    batches are averaged per update. kvstore: a KVStore whose processes share each update, every one with its part of
    the batch; RanksDiffer is raised in all of them unless they make the same Trainer. seed: of dropout, of mixing and
    of the data order.

    Parameters by shell patterns of their names: freeze and train say which keep their values and which alone do not (a
    BatchNormalization whose scale and offset they freeze keeps its statistics too); lr_mult and wd_mult are factors on
    the learning rate and the weight decay; lazy are tables with row-sparse updates (see `graphkit.train.sparse`).
    recompute: "sqrt" to compute most activations again in the backward pass in place of keeping them, or the number of
    bytes that activations and working memory of a step may take; with None, what `gk.attr_scope(recompute=True)` marks.
    swap_memory: on a card, what the forward pass saves may wait in the host's memory until the backward pass reads it
    (see docs/gpu.md); without, what `gk.attr_scope(swap_memory=True)` marks. On the processor it means nothing.
    precision: "bf16" rounds the operands and results of matrix products and convolutions, those of the backward pass
    too, to bfloat16; gradients of convolutions' weights, convolutions with one filter for each channel, parameters,
    slots and all else are float32. On a card, "f16" does the same with float16, and multiplies losses before the
    backward pass (see `train.loss_scale`): an update whose gradients are not finite is skipped, and the factor halved,
    as long as it is above 1; "tf32" multiplies float32 elements by their leading 11 bits; "fp8" is "bf16" with operands
    of matrix products in 8 bits (see docs/gpu.md).
    device: "cuda" is for each process of a host the card of its number, and the first one again where there are fewer;
    names by group, `{"first": "cuda:0", "second": "cuda:1"}`, run the groups of `gk.attr_scope(ctx_group=...)` on
    devices of one process (see docs/training.md).
    deterministic: the same bits for any number of threads.
    straight_through: gradients pass through rounding (Round, Floor, Ceil, Sign, casts to integers and back). Through
    quantisation and dequantisation behind it they always pass.
    batch_norm: "train": BatchNormalization normalises by the statistics of each batch and updates the running ones,
    whatever mode the model or file has; "frozen": it normalises by the running statistics, which stay as they are, and
    its scale and offset are trained. sync_batch_norm: statistics are over the samples of all processes.
    ema: the decay of a moving average of the parameters, or an EMA: evaluation and the saved model take the averages.

    on_nonfinite: "raise" ends a step whose loss is not finite with NotFinite, which names the first node that made it;
    "skip" drops it, also when a gradient is not finite, and counts it in `skipped`; "ignore" updates all the same. In
    the first two parameters, slots and running statistics stay, to the bit, what they were before the step (before the
    group of batches, with `accumulate`, but for statistics), and all processes decide alike; gradients that are not
    finite while the loss is, "raise" finds at the next step.

    groups: the rank of each group of nodes (`gk.attr_scope(ctx_group=...)`), for a model that is larger than a rank.
    Each process has the parameters of its own, and every batch, which all of them are given whole, goes through them as
    a pipeline of `micro_batches` (see docs/processes.md). Where ranks need each other, or branches and loops have nodes
    of several, they exchange values in the middle of a step, and there is one micro-batch. batch_axes: the axis that
    counts samples by input and target, where it is not 0; None: every micro-batch gets all of it. Data sets say it
    themselves.
    shard_optimizer: each process of the kvstore holds a part of the optimizer's slots, updates what they belong to, and
    gets the rest of the parameters from the others; `save` is then called by all of them, and rank 0 writes.

    carry: input name to output name, of state that `fit` and `evaluate` feed from each batch to the next; it is 0 at
    the start of an epoch and whenever the batch size changes. Gradients do not reach back into earlier batches. `step`
    takes such inputs like all others.
    """

    @typed("gk.Trainer")
    def __init__(
        self,
        net: Model,
        loss: losses.AnyLoss = defaults.LOSS,
        optimizer: optimizers.Optimizer | str | Mapping[str, Any] = defaults.OPTIMIZER,
        *,
        device: AnyDevice = "cpu",
        threads: int | None = None,
        kvstore: KVStore | None = None,
        freeze: str | Sequence[str] = (),
        train: str | Sequence[str] = (),
        lr_mult: Mapping[str, float] | None = None,
        wd_mult: Mapping[str, float] | None = None,
        lazy: str | Sequence[str] = (),
        ema: float | EMA | None = None,
        clip_norm: float | None = None,
        accumulate: int = 1,
        carry: Mapping[str, str] | None = None,
        targets: Mapping[str, TensorType] | None = None,
        output: str | None = None,
        loss_weights: Mapping[str, float] | None = None,
        mixup: float | None = None,
        cutmix: float | None = None,
        recompute: recomputation.Recompute | None = None,
        swap_memory: bool = False,
        seed: int | None = None,
        precision: str = "f32",
        deterministic: bool = False,
        straight_through: bool = False,
        on_nonfinite: str = "raise",
        groups: Mapping[str, int] | None = None,
        micro_batches: int = 1,
        batch_axes: Mapping[str, int | None] | None = None,
        shard_optimizer: bool = False,
        batch_norm: str = defaults.BATCH_NORM[0],
        sync_batch_norm: bool = False,
    ):
        recomputation.check(recompute)
        if not isinstance(swap_memory, bool):
            raise UsageError(f"Trainer: swap_memory is True or False, not {swap_memory!r}")
        on_nonfinite = finite.choice(on_nonfinite)
        micro_batches = integer("Trainer", "micro_batches", micro_batches, 1)
        accumulate = integer("Trainer", "accumulate", accumulate, 1)
        clip_norm = None if clip_norm is None else real("Trainer", "clip_norm", clip_norm, POSITIVE)
        seed = None if seed is None else integer("Trainer", "seed", seed, 0)
        alphas = {"mixup": mixup, "cutmix": cutmix}
        alphas = {n: real("Trainer", n, alpha, POSITIVE) for n, alpha in alphas.items() if alpha is not None}
        known = isinstance(loss, (str, losses.Loss, Mapping)) or callable(loss)
        if isinstance(loss, optimizers.Optimizer) or not known:
            raise UsageError(f"Trainer: loss is a name or a function, not {loss!r}; optimizer= takes an optimizer")
        freeze, train, lazy = (_patterns(p) for p in (freeze, train, lazy))
        net.separate_roles()
        self.net = net
        self.loss = loss
        self.optimizer = optimizers.get(optimizer)
        self.kvstore = kvstore
        self.accumulate = accumulate
        self.seed = config.SEED.get() if seed is None else seed
        self.position = Position()
        # All checkpoints of a run have its name.
        self.run = secrets.token_hex(8)
        # Goes along in checkpoints: anything that JSON has.
        self.notes: dict[str, Any] = {}
        # Whether a step was stopped in its middle, which leaves some parameters new and some old.
        self.torn = False
        self._resumed = False
        self._fit: Fit | None = None
        # Why a callback wants the run to end; the states of callbacks outside of `fit`.
        self.stop_reason: str | None = None
        self._callback_states: States = {}
        self._rates = Rates()
        self._recurrent_state = RecurrentState(net, carry or {})
        self._mixing = Mixing(alphas.get("mixup"), alphas.get("cutmix")) if alphas else None
        self._inputs = Inputs(net.input_types)
        refused = {
            "accumulate": accumulate > 1, "carry": bool(carry), "lazy": bool(lazy), "recompute": recompute is not None,
            "swap_memory": swap_memory,
            "shard_optimizer": shard_optimizer, "sync_batch_norm": sync_batch_norm, "mixup or cutmix": bool(alphas),
            "compression": kvstore is not None and kvstore.compresses, "precision='f16'": precision == "f16",
        }  # fmt: skip
        self._pipeline = placed.create(groups, micro_batches, batch_axes, kvstore, net.inputs, refused)
        # Which part of the data this process takes, and of how many; stages of a pipeline take the same.
        self._place = (0, 1) if kvstore is None or self._pipeline else (kvstore.rank, kvstore.num_workers)
        self._alone = kvstore is None or kvstore.num_workers == 1
        self._writes = kvstore is None or kvstore.rank == 0
        # Around what an interrupt has to leave whole. One of several ranks may wait for the others there for ever, and
        # is interrupted at once.
        self._interrupts = uninterrupted if self._alone else contextlib.nullcontext()

        self.ema = moving_average(ema)
        selection = ParameterSelection(freeze, train, lazy, lr_mult or {}, wd_mult or {})
        self._criterion = Criterion(loss, targets, output, loss_weights)
        graph, self._targets = training_graph(
            net, self._criterion, selection,
            mixed=bool(alphas), straight_through=straight_through,
            batch_statistics=_batch_statistics(batch_norm, sync_batch_norm),
            statistics_over=kvstore if sync_batch_norm else None,
        )  # fmt: skip
        first = next(iter(loss)) if isinstance(loss, Mapping) else net.outputs[0]
        self._output = first if output is None else output
        trained = select_parameters(graph, selection)
        scale = loss_scale.state() if precision == "f16" else None
        rule = steps.UpdateRule(self.optimizer, clip_norm, self.ema, on_nonfinite, scale)
        options: dict[str, Any] = {
            "device": devices.chosen(device, graph, kvstore),
            "threads": threads, "seed": self.seed, "precision": precision, "deterministic": deterministic,
        }  # fmt: skip
        compare_setup(
            kvstore, rule, trained, net.params,
            {
                "loss": losses.described(loss), "loss_weights": loss_weights, "accumulate": accumulate,
                "precision": precision, "deterministic": deterministic, "shard_optimizer": shard_optimizer,
                "batch_norm": batch_norm, "sync_batch_norm": sync_batch_norm, "straight_through": straight_through,
                **alphas,
                "groups": groups, "micro_batches": micro_batches, "batch_axes": batch_axes, "carry": carry,
                "seed": self.seed if groups else None,
            },
        )  # fmt: skip
        self._chosen = f"device {options['device']}, {config.num_threads(threads)} threads, precision {precision}"
        self._stepper: Stepper | PipelineStepper | DistributedStepper
        self._inference_graph = to_inference(net.graph) if is_in_training(net.graph) else net.graph
        self._inference: Executor | PipelineInference | DistributedInference
        if self._pipeline is not None:
            found = graph.outputs[1 + net.outputs.index(self._output)]
            given = (graph, trained, rule, net.params, self._pipeline, found, self._output, options)
            for_inference = (self._inference_graph, net.params)
            if self._pipeline.is_pipeline(graph):
                self._stepper = PipelineStepper(*given)
                self._inference = PipelineInference(*for_inference, self._stepper, self._output, options)
            else:
                self._stepper = DistributedStepper(*given)
                self._inference = DistributedInference(*for_inference, self._stepper, self._output, options)
        else:
            self._stepper = stepper_for(kvstore)(
                graph, trained, rule, net.params,
                kvstore=kvstore, accumulate=accumulate, recompute=recompute, swap_memory=swap_memory,
                options={**options, "rng_stride": self._place[1]}, shard=shard_optimizer,
            )  # fmt: skip
            self._draw_from((self.seed, 0))
            self._inference = Executor(self._inference_graph, net.params, **options)
        self._evaluation = Evaluation(options)
        self.trained = self._stepper.trained
        self._averages = Averages(net.params, self._stepper, self.ema is not None)
        if self.optimizer.schedule.is_open and not self._stepper.sets_rates:
            raise UsageError("servers have the learning rate, and no run to go over: give steps= to the schedule")
        if kvstore is not None and not self._alone and self._pipeline is None:
            names = list(net.params)
            for name, array in zip(names, kvstore.broadcast(names, [net.params[n] for n in names]), strict=True):
                net.params[name] = array
            self._averages.start()
        self._stepper.spread()
        self._agreement = agreement_of(kvstore, net.params, placed=self._pipeline is not None)

    def __reduce__(self) -> Any:
        raise UsageError(
            "a Trainer holds memory and native code of this process and cannot be copied or pickled: save(folder) it, "
            "and let a Trainer made alike resume(folder); or copy trainer.net, the Model"
        )

    # --- moving average --------------------------------------------------------------------------

    def swap(self) -> None:
        """Exchange the parameters of `net` and their moving averages; a second call changes them back.

        While `net` has the averages no step can be taken. Raises UsageError without `ema`.
        """
        self._averages.exchange()

    @contextlib.contextmanager
    def averaged(self) -> Iterator[Model]:
        """`with trainer.averaged() as net:` - inside, `net` has the moving averages; without `ema` its own values."""
        with self._averages.in_their_place():
            yield self.net

    # --- one step --------------------------------------------------------------------------------

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The training programs: one fused step, or an accumulating and an updating one; recomputation shows from the
        first step on."""
        return tuple(self._stepper.programs)

    @property
    def graph(self) -> Graph:
        """The program that a batch goes through: its inputs are those of the model, the targets and the settings."""
        return self._stepper.programs[0]

    @property
    def executor(self) -> Executor:
        """What runs `graph`."""
        return self._stepper.executors[0]

    def plan(self, shapes: Mapping[str, Sequence[int]]) -> Plan:
        """The memory plan of the step for inputs and targets of the given shapes (of the accumulating program)."""
        return self._stepper.plan(shapes)

    @typed("Trainer.slot_bytes")
    def slot_bytes(self, processes: int = 1) -> int:
        """Bytes of the optimizer's slots, of the most that one process has where so many divide them
        (`shard_optimizer`)."""
        processes = integer("Trainer.slot_bytes", "processes", processes, 1)
        return self._stepper.slot_bytes(processes)

    @property
    def epoch(self) -> int:
        """How many epochs are over."""
        return self.position.epoch

    @property
    def batch(self) -> int:
        """How many batches of the next epoch `fit` has trained on."""
        return self.position.batch

    @property
    def updates(self) -> int:
        """How many updates there were; the learning rate depends on it."""
        return self._stepper.updates

    @updates.setter
    def updates(self, count: int) -> None:
        self._stepper.updates = count

    @property
    def skipped(self) -> int:
        """How many steps were not taken: with `on_nonfinite="skip"`, and with `precision="f16"`."""
        return self._stepper.skipped

    @property
    def learning_rate(self) -> float:
        """Of the next update. Raises UsageError for a schedule over the updates of a run, outside of `fit`."""
        return self._rates.at(self.optimizer.schedule, self.updates, self.position.first_update)

    @property
    def rate_scale(self) -> float:
        """What the optimizer's learning rates are multiplied by, 1 at first; for callbacks, which keep it.

        Raises UsageError where rates are those of servers.
        """
        return self._rates.scale

    @rate_scale.setter
    def rate_scale(self, scale: float) -> None:
        if not self._stepper.sets_rates:
            raise UsageError("servers have the learning rate, by the optimizer's schedule: nothing else changes it")
        self._rates.scale = real("Trainer", "rate_scale", scale, NOT_NEGATIVE)

    @property
    def rank(self) -> int:
        """Which process this one is, of those that train together; 0 writes."""
        return 0 if self.kvstore is None else self.kvstore.rank

    @property
    def folder(self) -> Path | None:
        """Where the `fit` that goes on writes."""
        return None if self._fit is None else self._fit.folder

    @property
    def scores(self) -> tuple[str, ...]:
        """The names of losses and metrics that each epoch of the `fit` under way has; empty outside of one."""
        return () if self._fit is None else self._fit.scores()

    @property
    def adds_scores(self) -> bool:
        """Whether a callback of the user's sees the numbers of an epoch, to which it may add some."""
        return self._fit is not None and self._fit.calls.adds_scores

    @property
    def callback_states(self) -> States:
        """Of the callbacks of the `fit` that goes on, and of those before it, by name."""
        return self._callback_states | ({} if self._fit is None else self._fit.calls.states())

    def stop(self, reason: str) -> None:
        """End the run: for callbacks. The epoch ends with the batch under way, its validation and its checkpoint.

        reason: for the log, and whoever goes on. `fit` then returns; see `Callback` for several processes.
        """
        self.stop_reason = reason

    def step(self, inputs: Any, targets: Any) -> LazyScalar:
        """Train on one batch; return its mean loss. inputs, targets: an array, a tuple, or a dict by name.

        With `accumulate` the update happens at every so-many-th call; with a kvstore in every process together,
        and the loss is the mean over all of them. Raises NotFinite, at once and not when the loss is read, as
        `on_nonfinite` says; the loss of a step that was skipped is NaN. Raises RanksDiffer in all processes, and
        changes nothing, where their learning rates, counts of updates or assigned parameters differ.
        """
        with self._interrupts:
            self._stepper.read(False)
            return LazyScalar(self._step(inputs, targets)[0])

    def _step(self, inputs: Any, targets: Any, size: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """The loss, and the network's outputs as far as they are read, see `Stepper.read`."""
        if self._averages.are_in_place:
            raise UsageError("the model holds the moving averages: call swap() before the next step")
        if self.kvstore is not None:
            self.kvstore.begin_step()
        compared = self._targets.fitted(targets)
        feeds = by_name(inputs, self._inputs.names, "inputs")
        rate = self.learning_rate
        with self._working(), self._agreement.of_step(rate, self._stepper):
            if self._mixing is None:
                feeds |= compared
            else:
                rank, ranks = self._place
                batch = self._stepper.waiting * ranks + rank  # of the update
                key = (self.seed, self._stepper.updates, batch, self._stepper.skipped, 0)
                feeds = self._mixing.mixed(feeds, compared, size, key)
            return self._stepper.take(feeds, size, rate, None if self._fit is None else self.position)

    def _draw_from(self, rng: tuple[int, int]) -> None:
        """Let the next step draw from (seed, step): of n ranks, rank r draws from r steps later, and n steps further
        in its next step. So ranks draw what one process draws that takes their batches one after the other."""
        seed, step = rng
        self.executor.rng = seed, step + self._place[0]

    def flush(self) -> None:
        """Apply gradients that were accumulated and not yet used (the last, shorter group of an epoch).

        With servers all workers call it, and go on from the servers' values.
        """
        if self._averages.are_in_place:
            raise UsageError("the model holds the moving averages: call swap() before flush()")
        with self._working():
            self._stepper.flush(self.learning_rate)

    def _working(self) -> contextlib.AbstractContextManager[None]:
        """Other processes may wait for this one meanwhile, which has not stalled."""
        return contextlib.nullcontext() if self.kvstore is None else self.kvstore.working()

    def _running(self, code: str) -> contextlib.AbstractContextManager[None]:
        """Code of the user's runs meanwhile, for which other processes do not wait for ever."""
        return contextlib.nullcontext() if self.kvstore is None else self.kvstore.running(code)

    # --- many steps ------------------------------------------------------------------------------

    @typed("Trainer.fit")
    def fit(
        self,
        train: Any,
        valid: Any = None,
        *,
        epochs: int | None = None,
        batch_size: int = defaults.BATCH_SIZE,
        metrics: Any = (),
        folder: str | Path | RunFolder | None = None,
        overwrite: bool = False,
        checkpoint_every: int | None = None,
        progress: bool | None = None,
        prefetch: int = 2,
        workers: int | Workers | None = None,
        on_epoch: Callable[[int, dict[str, float]], None] | None = None,
        callbacks: Callback | Sequence[Callback] = (),
        log_every: int = defaults.LOG_EVERY,
    ) -> list[dict[str, float]]:
        """Train for `epochs` more epochs (default: one); return the records of the epochs that end in this call.

        train, valid: a Dataset, (inputs, targets) in the forms that `step` takes, an object with a length and items, or
        an iterable of samples or batches (see `gk.data.as_dataset`).

        After `resume`, and after a `fit` that was interrupted or failed, the call goes on with that run, to the bit as
        if it had not been: `epochs` is then the length of the whole run, counted from its first epoch (default: the
        length that it had). If nothing is left of it, a warning says so.

        batch_size counts the samples of one process. With a folder, a checkpoint is written after every epoch (and
        every `checkpoint_every` updates, and before validation then), and `log.jsonl` grows by a line an epoch, and one
        every `log_every` updates (0: none). Rank 0 writes and shows. Ctrl-C takes effect between two batches, or at
        once when it comes twice; a single process leaves a checkpoint there, and the KeyboardInterrupt tells it.

        A folder is that of one run, and of one process at a time: one with a model or a checkpoint that is not of this
        run is refused (UsageError), unless `overwrite`, which removes them; so is one that another process has.

        progress: a bar on stderr, by default on a terminal. on_epoch(number, record): called after each epoch and its
        checkpoint, by every rank that was given it. callbacks: one or several; checkpoints have their states.

        prefetch: while a step runs, so many batches after it are loaded, and long metrics of the one before it
        computed, on threads of their own; 0: nothing is. workers: processes that make samples of lazy data sets and of
        objects with a length and items, or `gk.data.Workers` (default: those of the data). No bit depends on either.
        """
        epochs = None if epochs is None else integer("fit", "epochs", epochs, 0)
        batch_size = integer("fit", "batch_size", batch_size, 1)
        checkpoint_every = None if checkpoint_every is None else integer("fit", "checkpoint_every", checkpoint_every, 1)
        log_every = integer("fit", "log_every", log_every, 0)
        held = folder if folder is None or isinstance(folder, RunFolder) else RunFolder(folder)
        self.position.plan(epochs, self._resumed, self.updates)
        self._resumed = False
        with contextlib.ExitStack() as stack:
            if held is not None and self._writes:
                stack.enter_context(held).claim(self.run, overwrite=overwrite)
            bar = stack.enter_context(ProgressBar(progress if self._writes else False))
            data = self._data(train), None if valid is None else self._data(valid)
            ours, held_out = stack.enter_context(employed(workers, *data))
            self._check_classes(ours, held_out)
            self._fit = Fit(
                self, ours, held_out, metrics, batch_size, None if held is None else held.path, checkpoint_every,
                prefetch, bar, on_epoch, callbacks, log_every,
            )  # fmt: skip
            stack.callback(setattr, self, "_fit", None)
            return self._fit.run()

    def left(self, epochs: int | None = None) -> int:
        """How many epochs a `fit` of so many would end."""
        return self.position.left(epochs, self._resumed)

    def _metrics(self, specs: Sequence[Any]) -> list[metrics.Metric]:
        output = self.net.graph.outputs[self.net.outputs.index(self._output)]
        specs = [spec for spec in listed(specs) if not (isinstance(spec, str) and spec == LOSS)]
        return metrics.get_all(specs, probabilities=are_probabilities(output))

    def _data(self, given: Any) -> Dataset | Iterated:
        kinds = {n: t for n, t in self._inputs.types.items() if n not in self._recurrent_state.names}
        ranks = {n: t.rank if isinstance(t, TensorType) else None for n, t in kinds.items()}
        found = as_dataset(with_types(given, kinds), ranks)
        if self._pipeline is not None:
            self._pipeline.follow(found)
        return found

    def _check_classes(self, *parts: Dataset | Iterated | None) -> None:
        """Raise InputError for data that have another number of classes than the network."""
        for part in parts:
            if isinstance(part, Dataset):
                self._targets.check_classes(part, self.net.name)

    def _prepared(self, batch: Batch) -> Batch:
        """The batch with its inputs by name, in arrays that programs take without a copy, on their way to a card."""
        inputs = self._recurrent_state.named(batch.inputs)
        if not batch.size:
            return replace(batch, inputs=inputs)
        inputs = self._inputs.converted(inputs)
        if self._mixing is None:
            self._stepper.send_ahead(inputs)
        return replace(batch, inputs=inputs)

    @typed("Trainer.evaluate")
    def evaluate(
        self,
        data: Any,
        metrics: Any = None,
        *,
        batch_size: int = 256,
        prefetch: int = 2,
        workers: int | Workers | None = None,
    ) -> dict[str, float]:
        """Compute metrics of the inference graph over a data set, with the moving averages if there are any.

        metrics: names (see `gk.metrics.names()`), "loss" for the mean loss, or objects with the methods of
        `gk.metrics.Metric`. By default those of the loss: accuracy for classes, the squared or absolute error for a
        regression, the loss itself for a loss that is a function. prefetch, workers: as for `fit`.
        """
        chosen = usual_metrics(self.loss, self._output) if metrics is None else metrics
        with employed(workers, self._data(data)) as (found,):
            self._check_classes(found)
            return self._evaluation.scores(self, found, chosen, batch_size, prefetch, ProgressBar(False))

    # --- files -----------------------------------------------------------------------------------

    @typed("Trainer.save")
    def save(self, folder: str | Path) -> None:
        """Write the model (`model.json`, weights) and a checkpoint to resume from; each replaces the last whole.

        The model is in inference mode and has the moving averages where there are any; the checkpoint has both. Every
        rank calls it where each has a part of what is saved: of a pipeline, with shard_optimizer, with servers, and
        where gradients are compressed. Rank 0 writes.
        """
        with self._working():
            saving.save(self, folder)

    @typed("Trainer.save_model")
    def save_model(self, path: str | Path, meta: Mapping[str, str] | None = None) -> None:
        """Write the model alone, in inference mode and with the moving averages where there are any, as `.json` or
        `.onnx`. meta: goes into its metadata. Every rank calls it where each has a part of it; rank 0 writes."""
        with self._working():
            saving.save_model(self, Path(path), meta or {})

    @typed("Trainer.resume")
    def resume(self, folder: str | Path, *, trusted: bool = False) -> None:
        """Take over a folder's checkpoint: weights, slots, random state, and the position from which `fit` goes on.

        It may be that of another number of processes, unless it is within an epoch and they carried state; what
        compression had left out in them is shared alike, and dropped with a warning where nothing is compressed. Raises
        InvalidModel when it does not fit, UsageError for what they carried, and where gradients wait in the checkpoint
        for an update that this trainer does not make; nothing is changed then. A file of the folder that is a symbolic
        link out of it raises UnsafeModel, unless `trusted`.
        """
        saving.resume(self, folder, trusted)

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield repr(self.net.name)
        yield f"update {self.updates}, epoch {self.epoch}"
        if self.torn:
            yield "stopped in the middle of a step"
        yield self._chosen
        yield f"{type(self.optimizer).__name__}, loss {losses.described(self.loss)}"
        yield f"{self.net.num_parameters:,} parameters"
        if self.kvstore is not None:
            yield f"rank {self.kvstore.rank} of {self.kvstore.num_workers}, {self.kvstore.type}"


def _batch_statistics(batch_norm: str, synchronised: bool) -> bool:
    """Whether BatchNormalization normalises by its batch."""
    if batch_norm not in defaults.BATCH_NORM:
        raise UsageError(f"Trainer: batch_norm is {' or '.join(map(repr, defaults.BATCH_NORM))}, not {batch_norm!r}")
    if synchronised and batch_norm == "frozen":
        raise UsageError("Trainer: sync_batch_norm=True has no statistics to share with batch_norm='frozen'")
    return batch_norm == "train"


def _patterns(given: str | Sequence[str]) -> Sequence[str]:
    """Shell patterns; one alone is no sequence of letters."""
    return (given,) if isinstance(given, str) else given
