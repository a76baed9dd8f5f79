"""Trainer: runs a model, a loss and an optimizer as compiled programs, step by step.

The Trainer delegates its work to other modules. `training_graph` joins the model and its loss. `step` writes forward
pass, backward pass and update as graphs. `stepper` runs them on batches and keeps accumulated gradients. `fit` loops
over epochs and batches, from the point that `position` stores. `saving` writes a run to a folder and restores it.
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
from graphkit.data import Batch, Dataset, IterableDataset, Workers, as_dataset
from graphkit.data.employed import employed
from graphkit.dist.kvstore import KVStore
from graphkit.errors import UsageError
from graphkit.executor.devices.groups import AnyDevice
from graphkit.executor.report.plan import Plan
from graphkit.executor.run.interruption import uninterrupted
from graphkit.executor.run.session import Executor
from graphkit.former_names import former_attribute
from graphkit.ir.graph import Graph
from graphkit.ir.types import TensorType
from graphkit.model import Model
from graphkit.passes.training.to_training import is_in_training, to_inference
from graphkit.signatures import typed
from graphkit.text import quantity, short_repr
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
    """Trains the model `net` in place: after each step, `net.params` contains the new values.

    Arguments that select parameters (`freeze`, `train`, `lazy`, `lr_mult`, `wd_mult`) take names or glob patterns.

    If a loss is not finite and `on_nonfinite` is "raise" or "skip", parameters, optimizer states and running statistics
    keep their exact values from before the step. With `accumulate`, "skip" drops the gradients of all batches that were
    accumulated for this update. All processes make the same decision. If a gradient is not finite although the loss is,
    "raise" only notices it in the next step, when the loss is no longer finite.

    `groups` divides a model that is too large for one process: each process stores only the parameters of its own
    groups. Every process gets the whole batch. It is divided into `micro_batches` parts, which pass through the
    processes as a pipeline (see docs/processes.md). Values then flow from lower to higher ranks only. If they flow in
    both directions, or if the nodes of a branch or loop belong to several ranks, the ranks exchange values during a
    step, and `micro_batches` must be 1.

    Args:
        net: The model.
        loss: A name (see `gk.losses.names()`), a loss with options (`gk.losses.get(name, label_smoothing=...,
            class_weights=...)`), a function of (outputs..., targets...), or a dict of losses by output. The losses of a
            dict are multiplied by `loss_weights` and added; their targets have the names of the outputs.
        optimizer: An optimizer such as `gk.optim.SGD(0.1)`, or its name.
        device: "cpu" or "cuda". With several processes on a host, "cuda" gives process n GPU n, and starts again at the
            first GPU if there are fewer. A dict such as `{"first": "cuda:0", "second": "cuda:1"}` runs the groups of
            `gk.attr_scope(ctx_group=...)` on several devices of one process (see docs/training.md).
        threads: Number of CPU threads.
        kvstore: A KVStore for several processes. Each process contributes its part of the batch to every update. If the
            processes do not create equal Trainers, all of them raise RanksDiffer.
        freeze: Parameters that keep their values. If both scale and offset of a BatchNormalization are frozen, its
            running statistics do not change either.
        train: If given, only these parameters are trained.
        lr_mult: Factors on the learning rate, by parameter.
        wd_mult: Factors on the weight decay, by parameter.
        lazy: Embedding tables with row-sparse updates: a step updates only the rows that it reads, and their optimizer
            state. The model must read these parameters only by Gather along axis 0 (see `graphkit.train.sparse`).
        ema: The decay of a moving average of the parameters, or a `gk.optim.EMA`. Evaluation and the saved model use
            the averages.
        clip_norm: Upper limit of the global gradient norm.
        accumulate: Number of batches whose gradients are averaged for one update.
        carry: Input name to output name. `fit` and `evaluate` feed the output of each batch to the input of the next
            one, such as the state of a recurrent layer. The input is 0 at the start of an epoch and whenever the batch
            size changes. Gradients do not flow into earlier batches. For `step`, pass these inputs yourself.
        targets: Types of the targets by name. Required if `loss` is a function.
        output: Name of the output for a loss given by name, and for the metrics. If the model has several outputs, a
            loss given by name requires it; the metrics use the first output by default.
        loss_weights: Factors of the losses, by output, if `loss` is a dict.
        mixup: Mix pairs of samples and their losses, with shares from Beta(mixup, mixup) (see `graphkit.train.mixing`).
        cutmix: Replace a box of each image by the same box of another image of the batch. The box's share of the area
            is drawn from Beta(cutmix, cutmix).
        recompute: "sqrt" computes most activations again in the backward pass instead of keeping them. A number limits
            the bytes of activations and working memory of a step. None recomputes only nodes that were built in
            `gk.attr_scope(recompute=True)`.
        swap_memory: On a GPU, activations may move to host memory until the backward pass reads them (see
            docs/gpu.md). If False, only those of nodes built in `gk.attr_scope(swap_memory=True)` do. It has no
            effect on the CPU.
        seed: Seed of dropout, of mixing and of the data order.
        precision: "f32", "bf16", "f16", "tf32" or "fp8". "bf16" rounds operands and results of matrix products and
            convolutions to bfloat16, also in the backward pass. These stay float32: parameters, optimizer
            states, weight gradients of convolutions, depthwise convolutions, and all other operators. The other three
            precisions need a GPU.
            "f16" does the same with float16, and multiplies the loss by a scale during the backward pass (see
            `graphkit.train.loss_scale`). If gradients are not finite, the update is skipped and the scale is halved.
            At a scale of 1, on_nonfinite="raise" raises NotFinite instead. "tf32" keeps 11 significant bits of the
            float32 operands of matrix products and convolutions. "fp8" is "bf16" with 8-bit operands of matrix products
            (see docs/gpu.md).
        deterministic: Make results bit-identical for any number of threads.
        straight_through: Let gradients pass through rounding: Round, Floor, Ceil, Sign, and casts to integers and back.
            They always pass through a quantisation followed by a dequantisation.
        on_nonfinite: Behaviour if the loss of a step is NaN or infinite. "raise" raises NotFinite, which names the
            first node that produced such a value. "skip" drops the step, also if only a gradient is not finite, and
            counts it in `skipped`. "ignore" updates anyway.
        groups: Group name to rank. Groups are the nodes built in `gk.attr_scope(ctx_group=...)`. Each rank runs its
            groups, and stores only their parameters.
        micro_batches: Number of parts into which a pipeline divides a batch.
        batch_axes: The axis that counts samples, for each input and target where it is not 0. With None, every
            micro-batch gets the whole array. Data sets provide these axes themselves.
        shard_optimizer: Each process of `kvstore` stores a part of the optimizer states, updates the parameters of this
            part, and receives the others. All processes must then call `save`; rank 0 writes.
        batch_norm: "train": BatchNormalization normalises by the statistics of each batch and updates the running
            statistics, whatever mode the model or file has. "frozen": it normalises by the running statistics, which do
            not change; its scale and offset are trained.
        sync_batch_norm: Compute the statistics of BatchNormalization over the samples of all processes.
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
            raise UsageError(f"Trainer: swap_memory must be True or False, not {swap_memory!r}")
        on_nonfinite = finite.choice(on_nonfinite)
        micro_batches = integer("Trainer", "micro_batches", micro_batches, 1)
        accumulate = integer("Trainer", "accumulate", accumulate, 1)
        clip_norm = None if clip_norm is None else real("Trainer", "clip_norm", clip_norm, POSITIVE)
        seed = None if seed is None else integer("Trainer", "seed", seed, 0)
        alphas = {"mixup": mixup, "cutmix": cutmix}
        alphas = {n: real("Trainer", n, alpha, POSITIVE) for n, alpha in alphas.items() if alpha is not None}
        known = isinstance(loss, (str, losses.Loss, Mapping)) or callable(loss)
        if isinstance(loss, optimizers.Optimizer) or not known:
            raise UsageError(
                f"Trainer: loss must be a name or a function, not {loss!r}; pass an optimizer as optimizer="
            )
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
        # Stored in checkpoints: any JSON value.
        self.notes: dict[str, Any] = {}
        # Whether a step was interrupted, so that some parameters are updated and some are not.
        self.step_incomplete = False
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
            "accumulate= (--accumulate)": accumulate > 1, "carry= (--recurrent-state)": bool(carry),
            "lazy= (--sparse-update)": bool(lazy), "recompute= (--recompute)": recompute is not None,
            "swap_memory= (--swap-memory)": swap_memory, "shard_optimizer= (--shard-optimizer)": shard_optimizer,
            "sync_batch_norm= (--sync-batch-norm)": sync_batch_norm,
            "mixup= or cutmix= (--mixup, --cutmix)": bool(alphas),
            "gradient compression (--compression)": kvstore is not None and kvstore.transport.compresses,
            "precision='f16' (--precision f16)": precision == "f16",
        }  # fmt: skip
        self._pipeline = placed.create(groups, micro_batches, batch_axes, kvstore, net.inputs, refused)
        # Which part of the data this process takes, and of how many; stages of a pipeline take the same.
        self._place = (0, 1) if kvstore is None or self._pipeline else (kvstore.rank, kvstore.num_workers)
        self._alone = kvstore is None or kvstore.num_workers == 1
        self._writes = kvstore is None or kvstore.rank == 0
        # Delays an interrupt until a block is complete. With several ranks it interrupts at once, because a rank might
        # wait for the others forever.
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
        many = quantity(config.num_threads(threads), "thread")
        self._chosen = f"device {options['device']}, {many}, precision {precision}"
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
            raise UsageError(
                "servers apply the learning rate and do not know the length of the run: pass steps= to the schedule"
            )
        if kvstore is not None and not self._alone and self._pipeline is None:
            names = list(net.params)
            for name, array in zip(names, kvstore.broadcast(names, [net.params[n] for n in names]), strict=True):
                net.params[name] = array
            self._averages.start()
        self._stepper.spread()
        self._agreement = agreement_of(kvstore, net.params, placed=self._pipeline is not None)

    def __reduce__(self) -> Any:
        raise UsageError(
            "a Trainer holds memory and native code of this process and cannot be copied or pickled: call save(folder) "
            "and resume(folder) in an equal Trainer; or copy trainer.net, the Model"
        )

    # --- moving average --------------------------------------------------------------------------

    def swap(self) -> None:
        """Exchange the parameters of `net` and their moving averages. A second call exchanges them back.

        While `net` contains the averages, you cannot train. Raises UsageError if the Trainer has no `ema`.
        """
        self._averages.exchange()

    @contextlib.contextmanager
    def averaged(self) -> Iterator[Model]:
        """Context manager that gives `net` with its moving averages, or with its own values without `ema`."""
        with self._averages.in_their_place():
            yield self.net

    # --- one step --------------------------------------------------------------------------------

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The training programs: one fused step, or two programs that accumulate and update.

        They contain recomputation after the first step.
        """
        return tuple(self._stepper.programs)

    @property
    def graph(self) -> Graph:
        """The program that runs on a batch. Its inputs are those of the model, the targets and the settings."""
        return self._stepper.programs[0]

    @property
    def executor(self) -> Executor:
        """The Executor of `graph`."""
        return self._stepper.executors[0]

    def plan(self, shapes: Mapping[str, Sequence[int]]) -> Plan:
        """Return the memory plan of `graph` for the given shapes of inputs and targets."""
        return self._stepper.plan(shapes)

    @typed("Trainer.optimizer_state_bytes")
    def optimizer_state_bytes(self, processes: int = 1) -> int:
        """Return the bytes of optimizer state in one process.

        If `processes` ranks share it (`shard_optimizer`), return the largest number of bytes of one rank.
        """
        processes = integer("Trainer.optimizer_state_bytes", "processes", processes, 1)
        return self._stepper.optimizer_state_bytes(processes)

    @property
    def epoch(self) -> int:
        """Number of complete epochs."""
        return self.position.epoch

    @property
    def batch(self) -> int:
        """Number of batches of the next epoch that `fit` has already trained on."""
        return self.position.batch

    @property
    def updates(self) -> int:
        """Number of updates so far. Learning-rate schedules depend on it."""
        return self._stepper.updates

    @updates.setter
    def updates(self, count: int) -> None:
        self._stepper.updates = count

    @property
    def skipped(self) -> int:
        """Number of steps that were skipped, because of `on_nonfinite="skip"` or `precision="f16"`."""
        return self._stepper.skipped

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next update. A schedule over all updates of a run raises UsageError outside of `fit`."""
        return self._rates.at(self.optimizer.schedule, self.updates, self.position.first_update)

    @property
    def rate_scale(self) -> float:
        """Factor on the optimizer's learning rates, 1 at first. Callbacks may set it, and must store it in their state.

        Raises UsageError on assignment if servers store the learning rate.
        """
        return self._rates.scale

    @rate_scale.setter
    def rate_scale(self, scale: float) -> None:
        if not self._stepper.sets_rates:
            raise UsageError(
                "servers apply the learning rate, by the optimizer's schedule; rate_scale cannot change it"
            )
        self._rates.scale = real("Trainer", "rate_scale", scale, NOT_NEGATIVE)

    @property
    def rank(self) -> int:
        """Rank of this process among those that train together. Rank 0 writes the files."""
        return 0 if self.kvstore is None else self.kvstore.rank

    @property
    def folder(self) -> Path | None:
        """Folder that the current `fit` writes to, or None."""
        return None if self._fit is None else self._fit.folder

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the losses and metrics that each epoch of the current `fit` has. Empty outside of `fit`."""
        return () if self._fit is None else self._fit.scores()

    @property
    def callbacks_may_add_scores(self) -> bool:
        """Whether a callback of the user defines `on_epoch_end`, which may add numbers to the record of the epoch."""
        return self._fit is not None and self._fit.calls.adds_scores

    @property
    def callback_states(self) -> States:
        """States of the callbacks of this `fit` and of earlier ones, by name."""
        return self._callback_states | ({} if self._fit is None else self._fit.calls.states())

    def stop(self, reason: str) -> None:
        """End the run early; callbacks call it. The rest of the epoch's batches is left out.

        After the current batch, `fit` validates, writes the checkpoint of the epoch, and returns. With several
        processes, it is enough if one rank calls it (see `Callback`).

        Args:
            reason: Why the run ends. The log contains this text; a later `fit` that continues the run shows it.
        """
        self.stop_reason = reason

    def step(self, inputs: Any, targets: Any) -> LazyScalar:
        """Train on one batch and return its mean loss.

        With `accumulate=N`, the update happens at every N-th call. With a kvstore, every process calls `step`, and the
        loss is the mean over all of them.

        Args:
            inputs: An array, a tuple, or a dict by name.
            targets: An array, a tuple, or a dict by name.

        Returns:
            The loss, which is read from the device when you convert it to float. It is NaN if the step was skipped.

        Raises:
            NotFinite: The loss is NaN or infinite, and `on_nonfinite` is "raise". It is raised at once, not when the
                loss is read.
            RanksDiffer: The processes differ in learning rate, number of updates or assigned parameters. All processes
                raise it, and nothing changes.
        """
        with self._interrupts:
            self._stepper.read(False)
            return LazyScalar(self._step(inputs, targets)[0])

    def _step(self, inputs: Any, targets: Any, size: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """The loss, and the network's outputs as far as they are read, see `Stepper.read`."""
        if self._averages.are_in_place:
            raise UsageError("the model holds the moving averages: call swap() before the next step")
        if self.kvstore is not None:
            self.kvstore.transport.begin_step()
        compared = self._targets.fitted(targets)
        feeds = by_name(inputs, self._inputs.names, "input")
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
        in its next step. So ranks draw what one process draws that takes their batches one after the other.
        """
        seed, step = rng
        self.executor.rng = seed, step + self._place[0]

    def flush(self) -> None:
        """Update with gradients that were accumulated but not used (the last, shorter group of an epoch).

        With servers, all workers must call it; they then continue with the values of the servers.
        """
        if self._averages.are_in_place:
            raise UsageError("the model holds the moving averages: call swap() before flush()")
        with self._working():
            self._stepper.flush(self.learning_rate)

    def _working(self) -> contextlib.AbstractContextManager[None]:
        """Context in which other processes may wait for this one, which has not stalled."""
        return contextlib.nullcontext() if self.kvstore is None else self.kvstore.transport.working()

    def _running(self, code: str) -> contextlib.AbstractContextManager[None]:
        """Context that runs the user's code, for which other processes wait only for a limited time."""
        return contextlib.nullcontext() if self.kvstore is None else self.kvstore.transport.running(code)

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
        """Train on a data set for a number of epochs.

        After `resume`, and after a `fit` that was interrupted or failed, this call continues that run. The result is
        bit-identical to a run without interruption. If the run is already complete, you get a warning.

        With a folder, `fit` writes a checkpoint after every epoch, and logs to `log.jsonl`. Rank 0 writes the files and
        shows the progress.

        Ctrl-C raises KeyboardInterrupt. In a single process, it takes effect after the current batch, and `fit` first
        writes a checkpoint if there is a folder; a note on the exception names it. A second Ctrl-C takes effect at
        once, without a checkpoint. With several processes, the first Ctrl-C takes effect at once.

        Args:
            train: Training data: a Dataset, a pair (inputs, targets) in the forms that `step` takes, an object with a
                length and items, or an iterable of samples or batches (see `gk.data.as_dataset`).
            valid: Validation data, in the same forms.
            epochs: In a new run: number of epochs to train (default: 1). If this call continues a run: the length of
                the whole run, counted from its first epoch (default: the length that it had).
            batch_size: Samples per batch in one process.
            metrics: Metrics by name, or objects (see `gk.metrics.Metric`).
            folder: Where the run is written. One process at a time can use it, for one run. If it contains a model or
                checkpoint of another run, or another process uses it, `fit` raises UsageError.
            overwrite: Remove the other run in the folder.
            checkpoint_every: Also write a checkpoint every `checkpoint_every` updates, and before validation.
            progress: Show a progress bar on stderr (default: only on a terminal).
            prefetch: Number of batches that background threads load ahead. They also compute slow metrics. With 0,
                nothing runs in the background.
            workers: Number of worker processes, or a `gk.data.Workers`, that make samples of lazy data sets and of
                objects with a length and items (default: those of the data). Neither `prefetch` nor `workers` changes a
                bit of the result.
            on_epoch: Function that is called with (number, record) after each epoch and its checkpoint. The number
                counts from 1; the record is described below. Each rank calls the function that it was given.
            callbacks: One callback or several. Checkpoints contain their states.
            log_every: Number of updates between lines of the log within an epoch. With 0, only epochs are logged.

        Returns:
            One record for each epoch that ended in this call: a dict with `loss`, the metrics by name, the same for
            validation data with the prefix `valid_`, and `skipped` if steps were skipped.

        Raises:
            NotFinite: A loss is NaN or infinite, and `on_nonfinite` is "raise".
            RanksDiffer: The processes do not train with the same batches and epochs.
            UsageError: An argument is wrong, the folder belongs to another run, or the last step is incomplete.
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
            self._check_data(ours, held_out)
            self._fit = Fit(
                self, ours, held_out, metrics, batch_size, None if held is None else held.path, checkpoint_every,
                prefetch, bar, on_epoch, callbacks, log_every,
            )  # fmt: skip
            stack.callback(setattr, self, "_fit", None)
            return self._fit.run()

    def remaining_epochs(self, epochs: int | None = None) -> int:
        """Return the number of epochs that `fit(epochs=epochs)` would complete."""
        return self.position.left(epochs, self._resumed)

    def _metrics(self, specs: Sequence[Any]) -> list[metrics.Metric]:
        output = self.net.graph.outputs[self.net.outputs.index(self._output)]
        specs = [spec for spec in listed(specs) if not (isinstance(spec, str) and spec == LOSS)]
        return metrics.get_all(specs, probabilities=are_probabilities(output))

    def _data(self, given: Any) -> Dataset | IterableDataset:
        kinds = {n: t for n, t in self._inputs.types.items() if n not in self._recurrent_state.names}
        ranks = {n: t.rank if isinstance(t, TensorType) else None for n, t in kinds.items()}
        found = as_dataset(with_types(given, kinds), ranks)
        if self._pipeline is not None:
            self._pipeline.follow(found)
        return found

    def _check_data(self, *parts: Dataset | IterableDataset | None) -> None:
        """Raise InputError for data with arrays or a number of classes that the network does not have."""
        for part in parts:
            if isinstance(part, Dataset):
                self._inputs.check_names(part)
                self._inputs.check_shapes(part)
                self._targets.check_classes(part, self.net.name)

    def _prepared(self, batch: Batch) -> Batch:
        """The batch with inputs by name, as arrays that programs take without a copy. Their copy to a GPU begins."""
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
        """Compute metrics of the model in inference mode over a data set. Uses the moving averages if there are any.

        Args:
            data: In the forms that `fit` takes.
            metrics: Names (see `gk.metrics.names()`), "loss" for the mean loss, or objects with the methods of
                `gk.metrics.Metric`. The default depends on the loss: accuracy for classes, squared or absolute error
                for a regression, the loss itself if it is a function.
            batch_size: Samples per batch in one process.
            prefetch: As for `fit`.
            workers: As for `fit`.

        Returns:
            The metrics by name.
        """
        chosen = usual_metrics(self.loss, self._output) if metrics is None else metrics
        with employed(workers, self._data(data)) as (found,):
            self._check_data(found)
            return self._evaluation.scores(self, found, chosen, batch_size, prefetch, ProgressBar(False))

    # --- files -----------------------------------------------------------------------------------

    @typed("Trainer.save")
    def save(self, folder: str | Path) -> None:
        """Write the model (`model.json`, weights) and a checkpoint to resume from.

        Each replaces the previous one when it is complete. The model is in inference mode, and has the moving averages
        if there are any. The checkpoint contains both weights and averages. Every rank must call `save` if ranks store
        different parts: in a pipeline, with shard_optimizer, with servers, and with gradient compression. Rank 0
        writes.
        """
        with self._working():
            saving.save(self, folder)

    @typed("Trainer.save_model")
    def save_model(self, path: str | Path, meta: Mapping[str, str] | None = None) -> None:
        """Write only the model, as `.json` or `.onnx`, in inference mode and with the moving averages if there are any.

        Every rank must call it if ranks store different parts of the model; rank 0 writes.

        Args:
            path: The file.
            meta: Texts to add to the metadata.
        """
        with self._working():
            saving.save_model(self, Path(path), meta or {})

    @typed("Trainer.resume")
    def resume(self, folder: str | Path, *, trusted: bool = False) -> None:
        """Restore the checkpoint of a folder: weights, optimizer states, random state, and the position of `fit`.

        The number of processes may have changed, unless the checkpoint is within an epoch and contains carried state.
        The residuals of gradient compression are then divided equally. If this trainer does not compress, they are
        dropped with a warning.

        If an error is raised, nothing changes.

        Args:
            folder: The folder of a run.
            trusted: Accept files that are symbolic links to places outside of the folder.

        Raises:
            InvalidModel: The checkpoint does not fit this trainer.
            UsageError: The number of processes has changed, and the checkpoint contains carried state; or it contains
                accumulated gradients, and this trainer does not accumulate.
            UnsafeModel: A file of the folder is a symbolic link to a place outside of it.
        """
        saving.resume(self, folder, trusted)

    # Former names.
    torn = former_attribute("step_incomplete")
    adds_scores = former_attribute("callbacks_may_add_scores")
    slot_bytes, left = optimizer_state_bytes, remaining_epochs

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield repr(self.net.name)
        yield f"update {self.updates}, epoch {self.epoch}"
        if self.step_incomplete:
            yield "stopped in the middle of a step"
        yield self._chosen
        yield f"{type(self.optimizer).__name__}, loss {losses.described(self.loss)}"
        yield quantity(self.net.num_parameters, "parameter")
        if self.kvstore is not None:
            yield f"rank {self.kvstore.rank} of {self.kvstore.num_workers}, {self.kvstore.type}"


def _batch_statistics(batch_norm: str, synchronised: bool) -> bool:
    """Whether BatchNormalization uses the statistics of the batch."""
    if batch_norm not in defaults.BATCH_NORM:
        raise UsageError(
            f"Trainer: batch_norm must be {' or '.join(map(repr, defaults.BATCH_NORM))}, not {batch_norm!r}"
        )
    if synchronised and batch_norm == "frozen":
        raise UsageError(
            "Trainer: sync_batch_norm (--sync-batch-norm) has no effect with batch_norm='frozen' "
            "(--batch-norm frozen), which computes no statistics; leave out one of them"
        )
    return batch_norm == "train"


def _patterns(given: str | Sequence[str]) -> Sequence[str]:
    """A sequence of glob patterns; a single string is one pattern."""
    return (given,) if isinstance(given, str) else given
