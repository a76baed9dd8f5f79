"""The base of Trainer: takes single steps."""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from graphkit import config
from graphkit.collector import without_gc
from graphkit.data import Batch, Dataset, IterableDataset
from graphkit.data.foreign import are_samples, dataset_of
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
from graphkit.text import quantity, short_repr
from graphkit.train import losses, metrics
from graphkit.train import masks as masks_of_training
from graphkit.train import optim as optimizers
from graphkit.train.adapter_marks import LORA
from graphkit.train.agreement import agreement_of, compare_setup
from graphkit.train.arguments import NOT_NEGATIVE, integer, real
from graphkit.train.average import Averages
from graphkit.train.average import ema as moving_average
from graphkit.train.device import choose_device
from graphkit.train.exchange.division import division_of
from graphkit.train.exchange.exchange import Inference, StepSpec
from graphkit.train.inputs import Inputs, by_name, with_types
from graphkit.train.mixing import Mixing
from graphkit.train.position import MetricStates, Position
from graphkit.train.probabilities import are_probabilities
from graphkit.train.programs import loss_scale, sparse
from graphkit.train.programs import step as steps
from graphkit.train.programs.masks import with_masked_reads
from graphkit.train.recurrent_state import RecurrentState
from graphkit.train.schedules import RunRate
from graphkit.train.selection import MASK, ParameterSelection, select_parameters
from graphkit.train.settings import Memory, Numerics, Parallel, Regularisation
from graphkit.train.stepper import LazyScalar, Stepper, create_exchange
from graphkit.train.training_graph import Criterion, training_graph

States = dict[str, dict[str, Any]]


class Loop(Protocol):
    @property
    def folder(self) -> Path | None: ...

    def scores(self) -> tuple[str, ...]: ...

    def metric_states(self) -> MetricStates: ...

    def callback_states(self) -> States: ...

    @property
    def callbacks_may_add_scores(self) -> bool: ...


class BaseTrainer:
    """Takes steps. `Trainer` documents the arguments."""

    def __init__(
        self,
        net: Model,
        criterion: Criterion,
        optimizer: optimizers.Optimizer,
        selection: ParameterSelection,
        *,
        numerics: Numerics,
        memory: Memory,
        parallel: Parallel,
        regularisation: Regularisation,
        device: AnyDevice,
        threads: int | None,
        carry: Mapping[str, str],
        seed: int | None,
        backends: Sequence[Any] = (),
    ):
        net.separate_roles()
        kvstore = parallel.kvstore
        self.net, self.loss, self.optimizer = net, criterion.loss, optimizer
        self.kvstore, self.accumulate = kvstore, memory.accumulate
        self.ema = moving_average(regularisation.ema)
        self.seed = config.SEED.get() if seed is None else seed
        self.position = Position()
        # The name of the run, which all its checkpoints contain.
        self.run = secrets.token_hex(8)
        self.notes: dict[str, Any] = {}
        # Whether an interrupted step updated only some of the parameters.
        self.step_incomplete = self._resumed = False
        self._fit: Loop | None = None
        self.stop_reason: str | None = None
        self._callback_states: States = {}
        self._rates = RunRate()
        self._recurrent_state = RecurrentState(net, carry)
        mixes = regularisation.mixes
        self._mixing = Mixing(mixes.get("mixup"), mixes.get("cutmix")) if mixes else None
        self._inputs, self._backends = Inputs(net.input_types), backends
        conflicting = _settings_conflicting_with_groups(selection, carry, numerics, memory, parallel, mixes, backends)
        self._division = division_of(
            parallel.groups, parallel.micro_batches, parallel.batch_axes, kvstore, net.inputs, conflicting
        )
        # The part of each batch that this process takes: (index, number of parts).
        self._place = (0, 1) if kvstore is None or self._division else (kvstore.rank, kvstore.num_workers)
        self._alone = kvstore is None or kvstore.num_workers == 1
        self._writes = kvstore is None or kvstore.rank == 0
        # Delays an interrupt until a block is complete. With several ranks, an interrupt takes effect at once, because
        # ranks may wait for each other.
        self._interrupts = uninterrupted if self._alone else contextlib.nullcontext()

        self._criterion = criterion
        self._settings = selection, numerics, memory, parallel, regularisation, device, threads
        self._shards = parallel.shard_optimizer
        spec = self._describe_step(*self._settings)
        compared = _compared_options(criterion, numerics, memory, parallel, regularisation)
        compared |= {"carry": carry or None, "seed": self.seed if parallel.groups else None, "lora": net.meta.get(LORA)}
        compare_setup(kvstore, spec.rule, spec.trained, net.params, compared)
        self._create_programs(spec)

    @without_gc
    def _describe_step(
        self, selection: ParameterSelection, numerics: Numerics, memory: Memory, parallel: Parallel,
        regularisation: Regularisation, device: AnyDevice, threads: int | None, *, sample_weights: bool = False,
    ) -> StepSpec:  # fmt: skip
        net, criterion = self.net, self._criterion
        graph, self._targets = training_graph(
            net, criterion, selection,
            mixed=bool(regularisation.mixes), straight_through=numerics.straight_through,
            batch_statistics=_uses_batch_statistics(regularisation, parallel),
            statistics_over=self.kvstore if parallel.sync_batch_norm else None,
            sample_weights=sample_weights,
        )  # fmt: skip
        first = next(iter(criterion.loss)) if isinstance(criterion.loss, Mapping) else net.outputs[0]
        self._output = first if criterion.output is None else criterion.output
        trained = select_parameters(graph, selection)
        self._masked = masks_of_training.check(trained, net.params, parallel.kvstore)
        graph = with_masked_reads(graph, trained)
        scale = loss_scale.state() if numerics.precision == "f16" else None
        rule = steps.UpdateRule(self.optimizer, regularisation.clip_norm, self.ema, numerics.on_nonfinite, scale)
        self._options: dict[str, Any] = {
            "device": choose_device(device, graph, self.kvstore), "threads": threads, "seed": self.seed,
            "precision": numerics.precision, "deterministic": numerics.deterministic, "backends": self._backends,
        }  # fmt: skip
        if _may_update_rows(self._options, memory, parallel):
            trained = sparse.with_exact_row_updates(graph, trained, self.optimizer)
        may_be_sparse = self.optimizer.elementwise and memory.accumulate == 1
        tables = sparse.large_tables(graph, trained) if may_be_sparse else []
        # Large tables with dense updates. `lazy` would give them row-sparse updates, which may change results.
        self.dense_tables = tuple(t.name for t in tables if not t.lazy)
        thread_count = quantity(config.num_threads(threads), "thread")
        self._described_options = f"device {self._options['device']}, {thread_count}, precision {numerics.precision}"
        return StepSpec(
            graph, trained, rule, net.params, self._output, self._options,
            accumulate=memory.accumulate, recompute=memory.recompute, swap_memory=memory.swap_memory,
        )  # fmt: skip

    @without_gc
    def _create_programs(self, spec: StepSpec) -> None:
        net, kvstore = self.net, self.kvstore
        self._exchange = create_exchange(spec, kvstore, self._division, self._shards)
        self._stepper = Stepper(spec, self._exchange)
        if self._division is None:
            self._set_rng((self.seed, 0))
        self._inference_graph = to_inference(net.graph) if is_in_training(net.graph) else net.graph
        self.trained = self._stepper.trained
        self._averages = Averages(net.params, self._exchange, self.ema is not None)
        if self.optimizer.schedule.is_open and not self._exchange.sets_rates:
            raise UsageError(
                "parameter servers compute the learning rate and do not know the length of the run: pass steps= to the "
                "schedule (--schedule-option steps=N)"
            )
        if kvstore is not None and not self._alone and self._division is None:
            names = list(net.params)
            for name, array in zip(names, kvstore.broadcast(names, [net.params[n] for n in names]), strict=True):
                net.params[name] = array
            self._averages.start()
        self._exchange.publish()
        self._agreement = agreement_of(kvstore, net.params, divided=self._division is not None)

    def _use_sample_weights(self) -> None:
        """Collective: create the training programs again, with a loss that takes sample weights. States are kept."""
        if self._targets.weighted:
            return
        if self._division is not None or (self.kvstore is not None and self.kvstore.is_remote):
            raise UsageError(
                "sample_weight= (--weight-column) does not work with groups= (--place) or parameter servers; use one "
                "process, or several with dist_sync"
            )
        self._averages.check_not_swapped("sample_weight=")
        if self.kvstore is not None:
            # If only some ranks have weights, all ranks raise an error that names "sample_weight=".
            self.kvstore.transport.compare("sample_weight=", {"updates": self.updates})
        old, exchange, rng = self._stepper, self._exchange, self.executor.rng
        spec = self._describe_step(*self._settings, sample_weights=True)
        self._exchange = create_exchange(spec, self.kvstore, self._division, self._shards)
        self._stepper = Stepper(spec, self._exchange)
        with uninterrupted:
            for name, array in old.slots.items():
                self._stepper.store.commit(name, self._stepper.store.fitting(name, array))
            self._stepper.continue_from(old)
            self.executor.rng = rng
        if exchange.compressing:
            self._exchange.restore_residuals(exchange.residuals())
        self._averages = Averages(self.net.params, self._exchange, self.ema is not None)

    @functools.cached_property
    def _inference(self) -> Inference:
        return self._exchange.inference(self._inference_graph)

    def __reduce__(self) -> Any:
        raise UsageError(
            "a Trainer holds memory and native code of this process and cannot be copied or pickled: call save(folder) "
            "and resume(folder) in an equal Trainer; or copy trainer.net, the Model"
        )

    # --- masks ---

    def masks(self) -> dict[str, np.ndarray]:
        """Return the masks by parameter name: booleans, False where the parameter stays 0."""
        return {name: np.asarray(self._stepper.slots[f"{name}/{MASK}"]) for name in self._masked}

    @typed("Trainer.set_masks")
    def set_masks(self, masks: Mapping[str, Any]) -> None:
        """Replace masks, and set the parameters and their moving averages to 0 where the new masks are False.

        Every rank must call it with the same masks. If an element was False and is now True, its training starts at its
        present value, usually 0.

        Args:
            masks: Booleans by parameter name. The Trainer must have masks for these parameters.

        Raises:
            UsageError: The Trainer has no mask for a parameter, or a mask has another shape.
        """
        self._averages.check_not_swapped("set_masks()")
        masks_of_training.replace_masks(masks, self._masked, self.net.params, self._stepper.slots)

    # --- moving average --------------------------------------------------------------------------

    def swap(self) -> None:
        """Exchange the parameters of `net` and their moving averages. A second call exchanges them back.

        While `net` contains the averages, training raises UsageError. Without `ema`, `swap` raises UsageError.
        """
        self._averages.swap()

    @contextlib.contextmanager
    def averaged(self) -> Iterator[Model]:
        """Context manager: in the block, `net` contains its moving averages. Without `ema`, `net` does not change."""
        with self._averages.in_use():
            yield self.net

    # --- one step --------------------------------------------------------------------------------

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The training graphs: one for a whole step, or with `accumulate` one that accumulates and one that updates.

        In a pipeline, a rank has four graphs, for its stage: forward pass, backward pass, sum of the squared gradients
        (with a check that they are finite), and update. A stage without trained parameters has only the first two.

        With `recompute`, the first step adds nodes that recompute activations to the first graph.
        """
        return tuple(self._stepper.programs)

    @property
    def graph(self) -> Graph:
        """The graph that runs on a batch. Inputs: model inputs, targets, and scalars such as the learning rate."""
        return self._stepper.programs[0]

    @property
    def executor(self) -> Executor:
        """The Executor of `graph`."""
        return self._stepper.executors[0]

    def plan(self, shapes: Mapping[str, Sequence[int]]) -> Plan:
        """Return the memory plan of `graph` for the given shapes of inputs and targets."""
        return self._exchange.plan(shapes)

    @typed("Trainer.optimizer_state_bytes")
    def optimizer_state_bytes(self, processes: int = 1) -> int:
        """Return the bytes of optimizer state in one process.

        If `processes` ranks share the state (`shard_optimizer`), return the bytes of the rank that stores most.
        """
        processes = integer("Trainer.optimizer_state_bytes", "processes", processes, 1)
        return self._exchange.optimizer_state_bytes(processes)

    @property
    def epoch(self) -> int:
        """Number of complete epochs."""
        return self.position.epoch

    @property
    def batch(self) -> int:
        """Number of batches of the unfinished epoch that `fit` has trained on; 0 between epochs.

        If the batch size has changed within the epoch, only batches of the new size count.
        """
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
        """Learning rate of the next update.

        A schedule such as Cosine without `steps` spans the whole run, whose length only `fit` knows. With such a
        schedule, `learning_rate` raises UsageError before the first `fit`.
        """
        return self._rates.at(self.optimizer.schedule, self.updates, self.position.first_update)

    @property
    def rate_scale(self) -> float:
        """Factor on the optimizer's learning rates, 1 at first. A callback that sets it must store it in its own state.

        With `dist_async` and `dist_bounded`, servers compute the learning rate, and setting this raises UsageError.
        """
        return self._rates.scale

    @rate_scale.setter
    def rate_scale(self, scale: float) -> None:
        if not self._exchange.sets_rates:
            raise UsageError(
                "rate_scale cannot be set with parameter servers: they compute the learning rate from the optimizer's "
                "schedule"
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
        """Names of the learning rate, losses and metrics that the current `fit` records. Empty outside of `fit`."""
        return () if self._fit is None else self._fit.scores()

    @property
    def callbacks_may_add_scores(self) -> bool:
        """Whether a callback of the user defines `on_epoch_end`, which may add numbers for later callbacks."""
        return self._fit is not None and self._fit.callbacks_may_add_scores

    @property
    def callback_states(self) -> States:
        """States of the callbacks of this `fit` and of earlier ones, by name."""
        return self._callback_states | ({} if self._fit is None else self._fit.callback_states())

    def stop(self, reason: str) -> None:
        """End the run early; callbacks call it. The remaining batches of the epoch are not trained on.

        After the current batch, `fit` validates, writes the checkpoint of the epoch, and returns. With several
        processes, it is enough if one rank calls it (see `Callback`).

        Args:
            reason: Why the run ends. The log contains this text; a later `fit` that continues the run shows it.
        """
        self.stop_reason = reason

    def step(self, inputs: Any, targets: Any, sample_weight: Any = None) -> LazyScalar:
        """Train on one batch and return its mean loss.

        With `accumulate=N`, the update happens at every N-th call. With a kvstore, every process calls `step`. With
        `dist_sync`, the loss is the mean over all processes. With servers, it is the loss of this process.

        Args:
            inputs: An array, a tuple, or a dict by name.
            targets: An array, a tuple, or a dict by name.
            sample_weight: One weight per sample, not negative: the loss is sum(w * l) / sum(w), and 0 if all weights
                are 0. With several processes, both sums are over the samples of all processes, and every process must
                give weights. If only some steps have weights, all samples of the other steps have the weight 1.

        Returns:
            The loss, which is read from the device when you convert it to float. It is NaN if the step was skipped.

        Raises:
            NotFinite: The loss is NaN or infinite, and `on_nonfinite` is "raise". `step` itself raises it, not the
                later conversion to float.
            RanksDiffer: The processes differ in the learning rate, in the number of updates, or in parameters that your
                code has set (`net.params["w"] = array`). All processes raise it, and nothing changes.
        """
        if sample_weight is not None:
            self._use_sample_weights()
            targets = self._targets.with_weights(targets, sample_weight)
        with self._interrupts:
            self._exchange.return_outputs(False)
            return LazyScalar(self._step(inputs, targets)[0])

    def _step(self, inputs: Any, targets: Any, size: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Return the loss, and the outputs that `Exchange.return_outputs` requested."""
        self._averages.check_not_swapped("the next step")
        if self.kvstore is None:
            return self._take(inputs, targets, size, self.learning_rate)
        self.kvstore.transport.begin_step()
        rate = self.learning_rate
        with self.kvstore.transport.working(), self._agreement.step(rate, self._stepper):
            return self._take(inputs, targets, size, rate)

    def _take(self, inputs: Any, targets: Any, size: int | None, rate: float) -> tuple[np.ndarray, dict[str, Any]]:
        fitted = self._targets.fitted(targets)
        feeds = by_name(inputs, self._inputs.names, "input")
        if self._mixing is None:
            feeds |= fitted
        else:
            rank, ranks = self._place
            batch = self._stepper.accumulated * ranks + rank  # number of the batch within the update
            key = (self.seed, self._stepper.updates, batch, self._stepper.skipped, 0)
            feeds = self._mixing.mixed(feeds, fitted, size, key)
        return self._stepper.take(feeds, size, rate, None if self._fit is None else self.position)

    def _set_rng(self, rng: tuple[int, int]) -> None:
        """Set the random state for the next step. rng: (seed, step) for rank 0.

        Rank r of n draws the random numbers of step + r, then adds n to its step. Ranks thus draw the numbers of one
        process that trains on their batches in turn.
        """
        seed, step = rng
        self.executor.rng = seed, step + self._place[0]

    def flush(self) -> None:
        """Update the parameters with the gradients accumulated so far, even from fewer than `accumulate` batches.

        With parameter servers, all workers must call `flush`. Then they fetch the parameters from the servers.
        """
        self._averages.check_not_swapped("flush()")
        with self._working():
            self._stepper.flush(self.learning_rate)

    def _working(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.kvstore is None else self.kvstore.transport.working()

    def _running_user_code(self, code: str) -> contextlib.AbstractContextManager[None]:
        """Context in which user code runs: other ranks wait for this rank only for a limited time.

        code: name of the user code, for messages.
        """
        return contextlib.nullcontext() if self.kvstore is None else self.kvstore.transport.running(code)

    # --- data ---

    def _metrics(self, specs: Sequence[Any]) -> list[metrics.Metric]:
        output = self.net.graph.outputs[self.net.outputs.index(self._output)]
        specs = [spec for spec in metrics.as_list(specs) if not (isinstance(spec, str) and spec == metrics.LOSS)]
        return metrics.get_all(specs, probabilities=are_probabilities(output))

    def _data(self, given: Any, argument: str = "data") -> Dataset | IterableDataset:
        kinds = {n: t for n, t in self._inputs.types.items() if n not in self._recurrent_state.names}
        ranks = {n: t.rank if isinstance(t, TensorType) else None for n, t in kinds.items()}
        found = dataset_of(given if are_samples(given, ranks) else with_types(given, kinds), ranks, argument)
        if self._division is not None:
            self._division.follow(found)
        return found

    def _check_data(self, *parts: Dataset | IterableDataset | None) -> None:
        for part in parts:
            if isinstance(part, Dataset):
                self._inputs.check_names(part)
                self._inputs.check_shapes(part)
                self._targets.check_classes(part, self.net.name)
            if type(part) is Dataset:  # subclasses may create targets when a batch is loaded
                self._targets.check_given(part)

    def _prepared(self, batch: Batch) -> Batch:
        """Return the batch with inputs by name and of the program's types. Start to copy them to a GPU."""
        inputs = self._recurrent_state.named(batch.inputs)
        if not batch.size:
            return replace(batch, inputs=inputs)
        inputs = self._inputs.converted(inputs)
        if self._mixing is None:
            self._exchange.send_ahead(inputs)
        return replace(batch, inputs=inputs)

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield repr(self.net.name)
        yield f"update {self.updates}, epoch {self.epoch}"
        if self.step_incomplete:
            yield "stopped in the middle of a step"
        yield self._described_options
        yield f"{type(self.optimizer).__name__}, loss {losses.described(self.loss)}"
        yield quantity(self.net.num_parameters, "parameter")
        if self.kvstore is not None:
            yield f"rank {self.kvstore.rank} of {self.kvstore.num_workers}, {self.kvstore.type}"


def _uses_batch_statistics(regularisation: Regularisation, parallel: Parallel) -> bool:
    if parallel.sync_batch_norm and regularisation.batch_norm == "frozen":
        raise UsageError(
            "Trainer: sync_batch_norm (--sync-batch-norm) has no effect with batch_norm='frozen' "
            "(--batch-norm frozen), which computes no statistics; leave out one of them"
        )
    return regularisation.batch_norm == "train"


def _may_update_rows(options: Mapping[str, Any], memory: Memory, parallel: Parallel) -> bool:
    """Whether tables may get row-sparse updates without `lazy`: see `with_exact_row_updates`."""
    is_plain = memory.accumulate == 1 and memory.recompute is None and options["precision"] == "f32"
    return is_plain and parallel.kvstore is None and str(options["device"]) == "cpu"


def _settings_conflicting_with_groups(
    selection: ParameterSelection, carry: Mapping[str, str], numerics: Numerics, memory: Memory, parallel: Parallel,
    mixes: Mapping[str, float], backends: Sequence[Any],
) -> dict[str, bool]:  # fmt: skip
    return {
        "accumulate= (--accumulate)": memory.accumulate > 1,
        "carry= (--recurrent-state)": bool(carry),
        "lazy= (--sparse-update)": bool(selection.lazy),
        "masks= (--keep-zeros)": bool(selection.masks),
        "recompute= (--recompute)": memory.recompute is not None,
        "swap_memory= (--swap-memory)": memory.swap_memory,
        "shard_optimizer= (--shard-optimizer)": parallel.shard_optimizer,
        "sync_batch_norm= (--sync-batch-norm)": parallel.sync_batch_norm,
        "mixup= or cutmix= (--mixup, --cutmix)": bool(mixes),
        "gradient compression (--compression)": parallel.kvstore is not None and parallel.kvstore.transport.compresses,
        "precision='f16' (--precision f16)": numerics.precision == "f16",
        "backends=": bool(backends),
    }


def _compared_options(
    criterion: Criterion, numerics: Numerics, memory: Memory, parallel: Parallel, regularisation: Regularisation
) -> dict[str, Any]:
    return {
        "loss": losses.described(criterion.loss),
        "loss_weights": criterion.weights,
        "accumulate": memory.accumulate,
        "precision": numerics.precision,
        "deterministic": numerics.deterministic,
        "shard_optimizer": parallel.shard_optimizer,
        "batch_norm": regularisation.batch_norm,
        "sync_batch_norm": parallel.sync_batch_norm,
        "straight_through": numerics.straight_through,
        **regularisation.mixes,
        "groups": parallel.groups,
        "micro_batches": parallel.micro_batches,
        "batch_axes": parallel.batch_axes,
    }
