"""Trainer: runs a model, a loss and an optimizer as compiled programs, step by step and epoch by epoch.

The Trainer delegates its work to other modules. `base_trainer` takes steps: `training_graph` joins the model and its
loss, `programs` writes forward pass, backward pass and update as graphs, `exchange` runs them on one or several ranks,
and `stepper` counts updates. `fit` loops over epochs and batches, from the point that `position` stores. `saving`
writes a run to a folder and restores it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphkit.data import Workers
from graphkit.data.employed import employed
from graphkit.dist.kvstore import KVStore
from graphkit.errors import UsageError
from graphkit.executor.devices.groups import AnyDevice
from graphkit.former_names import former_attribute
from graphkit.ir.types import TensorType
from graphkit.model import Model
from graphkit.signatures import typed
from graphkit.train import defaults, losses, saving
from graphkit.train import optim as optimizers
from graphkit.train.arguments import Range, integer, real
from graphkit.train.average import EMA
from graphkit.train.base_trainer import BaseTrainer
from graphkit.train.callbacks import Callback
from graphkit.train.evaluation import Evaluation, usual_metrics
from graphkit.train.fit import Fit
from graphkit.train.metrics import LOSS, as_list
from graphkit.train.programs.recomputation import Recompute
from graphkit.train.progress import ProgressBar
from graphkit.train.run_folder import RunFolder
from graphkit.train.sample_weights import is_sample, with_sample_weights
from graphkit.train.selection import ParameterSelection
from graphkit.train.settings import Lora, Memory, Numerics, Parallel, Regularisation, group_of
from graphkit.train.training_graph import Criterion

if TYPE_CHECKING:
    from graphkit.backend import Backend
    from graphkit.train.exported.export import ExportedStep


def _advice(name: str, arguments: Mapping[str, Any]) -> str:
    if name in inspect.signature(Trainer.fit).parameters:
        return f"; it is an argument of fit: trainer.fit(data, {name}=...)"
    return optimizers.option_hint(name, arguments)


class Trainer(BaseTrainer):
    """Trains the model `net` in place: after each step, `net.params` contains the new values.

    Arguments that select parameters (`freeze`, `train`, `lazy`, `lr_mult`, `wd_mult`) take names or glob patterns.

    If a loss is not finite and `on_nonfinite` is "raise" or "skip", parameters, optimizer states and running statistics
    keep their exact values from before the step. With `accumulate`, "skip" drops the gradients of all batches that were
    accumulated for this update. All processes make the same decision, except with parameter servers, where each process
    decides for its own steps. If the loss is finite but a gradient is not, "raise" does not raise in that step. It
    raises in the next step, when the loss is no longer finite.

    `groups` divides a model that is too large for one process: each process stores only the parameters of its own
    groups. Every process gets the whole batch. The batch is divided into `micro_batches` parts, which pass through the
    processes as a pipeline (see docs/processes.md). The processes form a pipeline if the dependencies between them
    have no cycle. If there is a cycle, or if the nodes of a branch or loop belong to several ranks, the ranks exchange
    values during a step, and `micro_batches` must be 1.

    Args:
        net: The model.
        loss: A name (see `gk.losses.names()`), a loss with options (`gk.losses.get(name, label_smoothing=...,
            class_weights=...)`), a function, or a dict of losses by output. A function gets the outputs, then the
            targets, as graph values. It returns the mean over the batch, or a pair (sum, weight). The losses of a dict
            are multiplied by `loss_weights` and added; targets are then given by the names of their outputs. The
            default is "softmax_cross_entropy", or for a model from MXNet the losses of its output operators (see
            `gk.losses.of_mxnet`).
        optimizer: An optimizer such as `gk.optim.SGD(0.1)`, or its name.
        device: "cpu" or "cuda". With several processes on a host and "cuda", process n uses GPU n. If there are fewer
            GPUs than processes, several processes share a GPU. A dict such as `{"first": "cuda:0", "second": "cuda:1"}`
            runs the groups of `gk.attr_scope(ctx_group=...)` on several devices of one process (see docs/gpu.md).
        threads: Number of CPU threads (default: GRAPHKIT_NUM_THREADS, else one per core).
        kvstore: A KVStore for several processes. With `dist_sync`, each process contributes its part of the batch to
            every update, unless `groups` is given. With parameter servers, each process takes its steps independently.
            Every process must create its Trainer with the same model and settings; otherwise all of them raise
            RanksDiffer.
        freeze: Parameters that keep their values. If both scale and offset of a BatchNormalization are frozen, its
            running statistics do not change either.
        train: If given, only these parameters are trained.
        lr_mult: Factors on the learning rate: a dict of parameter name or glob pattern to number.
        wd_mult: Factors on the weight decay: a dict of parameter name or glob pattern to number.
        lazy: Embedding tables with row-sparse updates: a step updates only the rows that it reads, and their optimizer
            state. The model must read these parameters only by Gather along axis 0 (see docs/training.md).
        masks: A dict of parameter name to an array of booleans (or 0 and 1) in the shape of the parameter. Where it is
            False, the parameter must be 0, and stays exactly 0. `gk.prune` and `gk.zero_masks` make masks. Checkpoints
            contain the masks, and a resumed run takes them from there. Masks cannot be combined with `groups` or
            parameter servers.
        ema: The decay of a moving average of the parameters, or a `gk.optim.EMA`. Evaluation and the saved model use
            the averages.
        clip_norm: Upper limit of the global gradient norm.
        accumulate: Number of batches whose gradients are averaged for one update.
        carry: A dict of input name to output name, for example for the state of a recurrent layer. `fit` and `evaluate`
            feed the output of each batch to the input of the next batch. The input is 0 at the start of an epoch and
            whenever the batch size changes. Gradients do not flow into earlier batches. `step` does not feed these
            inputs: pass them yourself.
        targets: A dict of target name to TensorType. Required if `loss` is a function.
        output: Name of the output for the loss and the metrics. Required if the model has several outputs and `loss` is
            a name. If `loss` is a function, it gets all outputs unless `output` is given. The metrics use the first
            output by default, or the first output of the dict if `loss` is a dict.
        loss_weights: Factors of the losses, by output, if `loss` is a dict.
        mixup: Mix pairs of samples and their losses, with a weight drawn from Beta(mixup, mixup).
        cutmix: Replace a box of each image by the same box of another image of the batch. The box's share of the area
            is drawn from Beta(cutmix, cutmix).
        recompute: "sqrt" computes most activations again in the backward pass instead of keeping them. A number limits
            the bytes of activations and working memory of a step. None recomputes only nodes that were built in
            `gk.attr_scope(recompute=True)`.
        swap_memory: On a GPU, activations may move to host memory until the backward pass reads them (see
            docs/gpu.md). If False, only activations of nodes built in `gk.attr_scope(swap_memory=True)` may move.
            Without effect on the CPU.
        seed: Seed of dropout, of mixing and of the data order (default: GRAPHKIT_SEED).
        precision: "f32", "bf16", "f16", "tf32" or "fp8". "bf16" rounds operands and results of matrix products and
            convolutions to bfloat16, also in the backward pass. These stay float32: parameters, optimizer states,
            weight gradients of convolutions, depthwise convolutions, and all other operators. "f16", "tf32" and "fp8"
            need a GPU. "f16" rounds to float16 instead, and multiplies the loss by a scale during the backward pass. If
            gradients are not finite, the update is skipped and the scale is halved. If the scale is already 1,
            on_nonfinite="raise" raises NotFinite instead. "tf32" keeps 11 significant bits of the float32 operands of
            matrix products and convolutions. "fp8" is "bf16" with 8-bit operands of matrix products (see docs/gpu.md).
        deterministic: Make results bit-identical for any number of threads.
        straight_through: Let gradients pass through rounding: Round, Floor, Ceil, Sign, and casts to integers and back.
            Through a quantisation followed by a dequantisation, gradients pass even if this is False.
        on_nonfinite: Behaviour if the loss of a step is NaN or infinite. "raise" raises NotFinite, which names the
            first node that produced such a value. "skip" drops the step, also if only a gradient is not finite, and
            counts it in `skipped`. "ignore" updates anyway.
        groups: A dict of group name to rank. A group is the nodes built in `gk.attr_scope(ctx_group=...)`. Each rank
            runs its groups, and stores only their parameters.
        micro_batches: Number of parts into which a pipeline divides a batch.
        batch_axes: A dict of input or target name to the axis that counts samples, where it is not axis 0. If None is
            given instead of an axis, every micro-batch gets the whole array. By default, `fit` uses the axes that the
            data set declares.
        shard_optimizer: Each process of `kvstore` stores a part of the optimizer states, and updates the parameters of
            this part. It receives the other parameters from the other processes. All processes must then call `save`;
            rank 0 writes the files.
        batch_norm: "train": BatchNormalization normalises by the statistics of each batch and updates the running
            statistics, whatever mode the model or file has. "frozen": it normalises by the running statistics, which do
            not change; its scale and offset are trained.
        sync_batch_norm: Compute the statistics of BatchNormalization over the samples of all processes.
        numerics: A `gk.settings.Numerics` instead of the keywords `precision`, `deterministic`, `straight_through` and
            `on_nonfinite`.
        memory: A `gk.settings.Memory` instead of `accumulate`, `recompute` and `swap_memory`.
        parallel: A `gk.settings.Parallel` instead of `kvstore`, `groups`, `micro_batches`, `batch_axes`,
            `shard_optimizer` and `sync_batch_norm`.
        regularisation: A `gk.settings.Regularisation` instead of `clip_norm`, `ema`, `mixup`, `cutmix` and
            `batch_norm`.
        lora: A `gk.settings.Lora`: train LoRA or DoRA adapters, and freeze all other parameters except those that
            `train` lists. `trainer.net` is then a new model with the adapters (see `gk.lora` and docs/lora.md), and
            `net` does not change.
        backends: Other engines for the forward pass, see `Model.compile` and docs/backends.md. graphkit computes
            gradients and updates.
    """

    @typed("gk.Trainer", _advice)
    def __init__(
        self,
        net: Model,
        loss: losses.AnyLoss | None = None,
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
        masks: Mapping[str, Any] | None = None,
        ema: float | EMA | None = None,
        clip_norm: float | None = None,
        accumulate: int = 1,
        carry: Mapping[str, str] | None = None,
        targets: Mapping[str, TensorType] | None = None,
        output: str | None = None,
        loss_weights: Mapping[str, float] | None = None,
        mixup: float | None = None,
        cutmix: float | None = None,
        recompute: Recompute | None = None,
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
        numerics: Numerics | None = None,
        memory: Memory | None = None,
        parallel: Parallel | None = None,
        regularisation: Regularisation | None = None,
        lora: Lora | None = None,
        backends: str | Backend | Sequence[str | Backend] = (),
    ):
        keywords = dict(locals())
        known = loss is None or isinstance(loss, (str, losses.Loss, Mapping)) or callable(loss)
        if isinstance(loss, optimizers.Optimizer) or not known:
            raise UsageError(
                f"Trainer: loss must be a name or a function, not {loss!r}; pass an optimizer as optimizer="
            )
        freeze, train, lazy = (_patterns(p) for p in (freeze, train, lazy))
        if lora is not None:
            from graphkit.train.adapters.training import model_to_train

            net = model_to_train(net, lora, train, seed)
            train = net.trainable
        super().__init__(
            net, Criterion(losses.default_loss(net, loss, output), targets, output, loss_weights),
            optimizers.get(optimizer),
            ParameterSelection(freeze, train, lazy, lr_mult or {}, wd_mult or {}, masks or {}),
            numerics=group_of(Numerics, numerics, keywords), memory=group_of(Memory, memory, keywords),
            parallel=group_of(Parallel, parallel, keywords),
            regularisation=group_of(Regularisation, regularisation, keywords),
            device=device, threads=threads, carry=carry or {},
            seed=None if seed is None else integer("Trainer", "seed", seed, 0), backends=_resolved(backends),
        )  # fmt: skip
        self._evaluation = Evaluation(self._options)
        if backends:
            from graphkit.backend.registry import warn_without_groups

            warn_without_groups(self.executor, 3)

    @typed("Trainer.fit")
    def fit(
        self,
        train: Any,
        valid: Any = None,
        *,
        epochs: int | None = None,
        max_steps: int | None = None,
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
        fast_dev_run: bool | int = False,
        validation_split: float | None = None,
        sample_weight: Any = None,
    ) -> list[dict[str, float]]:
        """Train on a data set for a number of epochs.

        After `resume`, and after a `fit` that was interrupted or failed, this call continues that run. With the same
        number of epochs and of threads (or with `deterministic`), the result is bit-identical to a run without
        interruption. If the resumed run is already complete, `fit` trains nothing and warns. In all other cases, `fit`
        starts a new run.

        With a folder, `fit` writes a checkpoint after every epoch, and logs to `log.jsonl`. Rank 0 writes the files and
        shows the progress.

        Ctrl-C raises KeyboardInterrupt. In a single process, it takes effect after the current batch, and `fit` first
        writes a checkpoint if there is a folder; a note on the exception names the checkpoint. A second Ctrl-C takes
        effect at once, without a checkpoint. With several processes, the first Ctrl-C takes effect at once.

        Args:
            train: Training data: a Dataset, a pair (inputs, targets) in the forms that `step` takes, an object with a
                length and items, or an iterable of samples or batches (see `gk.data.as_dataset`).
            valid: Validation data, in the same forms. With sample weights: a triple (inputs, targets, weights).
            epochs: In a new run: number of epochs to train (default: 1). If this call continues a run: the length of
                the whole run, counted from its first epoch (default: the length that the run already has).
            max_steps: Number of updates after which the run ends, also within an epoch. In a continued run, all updates
                of the run count. Without `epochs`, the run has as many epochs as the updates need; with both, it ends
                at whichever is reached first. If it ends within an epoch, `fit` validates and writes a checkpoint from
                which a longer run continues with the next batch. `on_epoch` and the `on_epoch_end` of
                callbacks are not called for that epoch.
            batch_size: Samples per batch in one process.
            metrics: Metrics by name, functions (output, target), or objects (see `gk.metrics.Metric`).
            folder: Folder for the files of this run. If it contains a model or checkpoint of another run, or if another
                process uses it, `fit` raises UsageError.
            overwrite: If the folder contains another run, remove that run instead of raising UsageError.
            checkpoint_every: Also write a checkpoint every `checkpoint_every` updates, and before validation.
            progress: Show a progress bar on stderr (default: only on a terminal).
            prefetch: Number of batches that background threads load ahead. If updating the metrics takes long, these
                threads do that, too, during the next step. With 0, nothing runs in the background.
            workers: Number of worker processes, or a `gk.data.Workers`, that make samples of lazy data sets and of
                objects with a length and items (default: the workers of the data set). Results are bit-identical for
                any `prefetch` and `workers`.
            on_epoch: Function that is called with (number, record) after each epoch and its checkpoint. The number
                counts from 1; the record is described below. With several processes, each rank calls its own function.
            callbacks: One callback or several. Checkpoints contain their states.
            log_every: Number of updates between lines of the log within an epoch. With 0, only epochs are logged.
            validation_split: Instead of `valid`: the share of the training data that is held out for validation,
                between 0 and 1. `Dataset.split` chooses the samples, with the seed of the trainer. If targets are
                one class number per sample, it holds out this share of each class. All processes, and a resumed run,
                hold out the same samples.
            sample_weight: Weights of the samples of `train`, not negative: an array [N], or the name of the array or
                target of the data that contains them. The loss of a batch is then sum(w * l) / sum(w), where l is the
                loss of each sample. (Keras divides by the number of samples instead.) Means over accumulated batches,
                processes and epochs are weighted by sum(w). Metrics do not use the weights. If `sample_weight` is a
                name, the validation data must have weights of this name, too.
            fast_dev_run: Try the run: train on this number of batches (True: 1), validate on as many, and end. The
                number of epochs is 1. Callbacks are called, and parameters change. Files are written only to
                `folder`, if it is given, and by callbacks.

        Returns:
            One record for each epoch that ended in this call: a dict with `loss`, the metrics by name, the same for
            validation data with the prefix `valid_`, and `skipped` if steps were skipped. If `max_steps` ends the run
            within an epoch, the last record is about the batches of that epoch so far.

        Raises:
            NotFinite: A loss is NaN or infinite, and `on_nonfinite` is "raise".
            RanksDiffer: The processes do not train with the same batches and epochs.
            InputError: The data do not fit the model, or `validation_split` would leave a part empty.
            UsageError: An argument is wrong, the folder belongs to another run, or an interrupt in the middle of a step
                left parameters inconsistent.
        """
        epochs = None if epochs is None else integer("fit", "epochs", epochs, 0)
        max_steps = None if max_steps is None else integer("fit", "max_steps", max_steps, 1)
        batch_size = integer("fit", "batch_size", batch_size, 1)
        checkpoint_every = None if checkpoint_every is None else integer("fit", "checkpoint_every", checkpoint_every, 1)
        log_every = integer("fit", "log_every", log_every, 0)
        held = folder if folder is None or isinstance(folder, RunFolder) else RunFolder(folder)
        batches = self._batches_to_try(fast_dev_run)
        data, weighted = self._parts(train, valid, validation_split, sample_weight)
        self.position.plan(epochs if batches is None else 1, self._resumed, self.updates, max_steps)
        self._resumed = False
        with contextlib.ExitStack() as stack:
            if held is not None and self._writes:
                stack.enter_context(held).claim(self.run, overwrite=overwrite)
            bar = stack.enter_context(ProgressBar(progress if self._writes else False))
            train_data, valid_data = stack.enter_context(employed(workers, *data))
            self._check_data(train_data, valid_data)
            if self.kvstore is not None:
                self.kvstore.transport.compare("fit", {"sample_weight": weighted[0]})
            if weighted[0]:
                self._use_sample_weights()
            stack.enter_context(self._targets.reading(sample_weight, required=weighted[0]))
            self._fit = Fit(
                self, self._evaluation, train_data, valid_data, metrics, batch_size,
                None if held is None else held.path, checkpoint_every, prefetch, bar, on_epoch, callbacks,
                log_every, batches, weighted[1],
            )  # fmt: skip
            stack.callback(setattr, self, "_fit", None)
            return self._fit.run()

    def _parts(
        self, train: Any, valid: Any, share: float | None, sample_weight: Any
    ) -> tuple[tuple[Any, Any], tuple[bool, bool]]:
        """Return the data of training and validation, and whether each has sample weights.

        share: the `validation_split` of `fit`. Other arguments: see `fit`.
        """
        if share is not None:
            share = real("fit", "validation_split", share, Range(0.0, 1.0, open_low=True, open_high=True))
            if valid is not None:
                raise UsageError("fit: give validation data with valid= or with validation_split=, not with both")
        self.position.hold_out(share, self._resumed)
        name = sample_weight if isinstance(sample_weight, str) else None
        data = self._weighted(self._data(train, "train"), sample_weight, name, "fit: sample_weight")
        has_weights = sample_weight is not None
        if share is not None:
            from graphkit.train.validation_split import split_off

            return split_off(data, share, self.seed), (has_weights, has_weights)
        if isinstance(valid, tuple) and len(valid) == 3 and not all(map(is_sample, valid)):
            part = self._weighted(self._data(valid[:2], "valid"), valid[2], name, "fit: the weights of valid")
            return (data, part), (has_weights, True)
        if valid is None:
            return (data, None), (has_weights, False)
        part = self._weighted(self._data(valid, "valid"), name, name, "fit: sample_weight")
        return (data, part), (has_weights, name is not None)

    def _weighted(self, data: Any, weights: Any, name: str | None, argument: str) -> Any:
        if weights is None:
            return data
        self._targets.name_weights(name)
        return with_sample_weights(data, weights, self._targets, argument)

    def _batches_to_try(self, fast_dev_run: bool | int) -> int | None:
        """Return the number of batches of a `fast_dev_run`, or None."""
        if fast_dev_run is False or fast_dev_run == 0:
            return None
        count = 1 if fast_dev_run is True else integer("fit", "fast_dev_run", fast_dev_run, 1)
        if self._resumed or not self.position.finished:
            raise UsageError(
                f"fit: fast_dev_run (--fast-dev-run) tries a new run, but this trainer continues one {self.position}; "
                "use a Trainer that has neither resumed nor been interrupted"
            )
        return count

    def remaining_epochs(self, epochs: int | None = None) -> int:
        """Return the number of epochs that `fit(epochs=epochs)` would complete, if `max_steps` does not end it."""
        return self.position.remaining_epochs(epochs, self._resumed)

    def has_updates_left(self, epochs: int | None = None, max_steps: int | None = None) -> bool:
        """Return whether `fit(epochs=epochs, max_steps=max_steps)` would train anything or complete an epoch."""
        return self.position.has_updates_left(epochs, self._resumed, self.updates, max_steps)

    @typed("Trainer.evaluate")
    def evaluate(
        self,
        data: Any,
        metrics: Any = None,
        *,
        batch_size: int = 256,
        prefetch: int = 2,
        workers: int | Workers | None = None,
        sample_weight: Any = None,
    ) -> dict[str, float]:
        """Compute metrics of the model in inference mode over a data set, with the moving averages if there are any.

        Args:
            data: In the forms that `fit` takes.
            metrics: Names (see `gk.metrics.names()`), "loss" for the mean loss, or objects with the methods of
                `gk.metrics.Metric`. The default depends on the loss: accuracy for classes, squared or absolute error
                for a regression, the loss itself if it is a function.
            batch_size: Samples per batch in one process.
            prefetch: Number of batches that background threads load ahead. With 0, nothing runs in the background.
            workers: Number of worker processes, or a `gk.data.Workers`, that make samples of lazy data sets (default:
                the workers of the data set).
            sample_weight: Weights of the samples, in the forms that `fit` takes. They count in the loss only, so
                `metrics` must contain "loss" (default: the loss and the usual metrics).

        Returns:
            The metrics by name.
        """
        chosen = usual_metrics(self.loss, self._output) if metrics is None else metrics
        weighted = sample_weight is not None
        if weighted and metrics is None:
            chosen = [LOSS, *(name for name in chosen if name != LOSS)]
        elif weighted and LOSS not in [spec for spec in as_list(chosen) if isinstance(spec, str)]:
            raise UsageError(
                "evaluate: sample_weight= has no effect, because only the loss uses weights; add 'loss' to metrics="
            )
        name = sample_weight if isinstance(sample_weight, str) else None
        given = self._weighted(self._data(data), sample_weight, name, "evaluate: sample_weight")
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._targets.reading(sample_weight, required=weighted))
            (found,) = stack.enter_context(employed(workers, given))
            self._check_data(found)
            bar = ProgressBar(False)
            return self._evaluation.scores(self, found, chosen, batch_size, prefetch, bar, weighted=weighted)

    # --- files -----------------------------------------------------------------------------------

    @typed("Trainer.save")
    def save(self, folder: str | Path) -> None:
        """Write the model (`model.json`, weights) and a checkpoint to resume from.

        An earlier model or checkpoint in the folder is replaced only when the new one is complete. The model is in
        inference mode, and contains the moving averages if there are any. The checkpoint contains both weights and
        averages. Every rank must call `save` if ranks store different parts: with groups, shard_optimizer, servers or
        gradient compression. Rank 0 writes the files.
        """
        with self._working():
            saving.save(self, folder)

    @typed("Trainer.save_model")
    def save_model(self, path: str | Path, meta: Mapping[str, str] | None = None) -> None:
        """Write only the model, as `.json` or `.onnx`, in inference mode and with the moving averages if there are any.

        Every rank must call `save_model` in the same cases as `save`. Rank 0 writes the file.

        Args:
            path: The file.
            meta: Texts to add to the metadata.
        """
        with self._working():
            saving.save_model(self, Path(path), meta or {})

    @typed("Trainer.to_onnx")
    def to_onnx(
        self,
        path: str | Path,
        *,
        opset: int | None = None,
        batch: Any = None,
        rate: str = "schedule",
        metrics: str | Sequence[str] = (),
        loss_scaling: bool = False,
        verify: bool = True,
    ) -> ExportedStep:
        """Write the training step as an ONNX file of standard operators, with which other runtimes train.

        States, such as parameters and optimizer states, are inputs and outputs of the file. For `step.onnx`, `to_onnx`
        also writes `step_init.onnx`, which computes the first values of the states, and `step_roles.json`, which
        describes all inputs and outputs (see docs/training_step.md). The file computes in the types of the model.
        `precision`, `device` and `backends` have no effect. If the loss is NaN or infinite, all states, including the
        random state, keep their values, as in `step`; only a loss scale may change (see docs/training_step.md).

        Args:
            path: The file, which must end in `.onnx`.
            opset: Version of the operators (default: 21, or the first later one that has all operators of the step).
            batch: A pair (inputs, targets) for the comparison, in the forms that `step` takes, of at least one sample
                (default: random numbers).
            rate: "schedule": the file computes the learning rate. "input": the caller feeds it in each step.
            metrics: Metrics of the batch that become outputs: "accuracy", "mse" or "mae".
            loss_scaling: Add loss scaling, as `precision="f16"` does: for float16 models, and for runtimes that compute
                in float16.
            verify: Take some steps in ONNX Runtime and in graphkit, and compare losses, outputs and states.

        Returns:
            The files, the description, and the comparison.

        Raises:
            UnsupportedError: Standard operators cannot express the step. The message says why.
            CheckFailed: ONNX Runtime and graphkit differ, or a loss is not finite. No file is written.
            InputError: The arrays of `batch` do not fit the step.
        """
        from graphkit.train.exported.export import StepOptions, export_step

        named = tuple(dict.fromkeys(_patterns(metrics)))
        return export_step(self, Path(path), StepOptions(opset, batch, rate, named, loss_scaling, verify))

    @typed("Trainer.resume")
    def resume(self, folder: str | Path, *, trusted: bool = False) -> None:
        """Restore the checkpoint of a folder: weights, optimizer states, random state, and the position of `fit`.

        The number of processes may differ from that of the saved run, unless the checkpoint was written within an epoch
        and contains carried states (`carry`). If it differs, the residuals of gradient compression are divided equally
        among the processes. If this trainer does not compress gradients, the residuals are dropped with a warning. If
        this trainer has another loss than that run, `resume` warns, and the trainer keeps its own loss.

        If `resume` raises an error, the trainer stays unchanged.

        Args:
            folder: The folder of a run.
            trusted: Accept files that are symbolic links to places outside of the folder.

        Raises:
            InvalidModel: The checkpoint does not fit this trainer.
            UsageError: The number of processes has changed, and the checkpoint was written within an epoch and contains
                carried states; or the checkpoint contains accumulated gradients, and this trainer does not accumulate.
            UnsafeModel: A file of the folder is a symbolic link to a place outside of it.
        """
        saving.resume(self, folder, trusted)

    torn = former_attribute("step_incomplete")
    adds_scores = former_attribute("callbacks_may_add_scores")
    slot_bytes, left = BaseTrainer.optimizer_state_bytes, remaining_epochs


def _resolved(backends: str | Backend | Sequence[str | Backend]) -> Sequence[Backend]:
    if not backends:
        return ()
    from graphkit.backend import resolve

    return resolve(backends)


def _patterns(given: str | Sequence[str]) -> Sequence[str]:
    return (given,) if isinstance(given, str) else given
