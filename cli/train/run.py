"""Trains a model as the options of `graphkit train` say."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphkit import config
from graphkit.cli._images import log_preprocessing
from graphkit.cli._meta import ARGUMENTS
from graphkit.cli._options import check_run_folder, device_of, key_values, source_options, with_tokenizer
from graphkit.cli._output import is_terminal, log
from graphkit.cli.train import config_file, data, objective, record, telling
from graphkit.cli.train.config_file import Network
from graphkit.cli.train.network import head_of_data, load_network, prepare_network
from graphkit.cli.train.resume import check_classes, kept, taken_over
from graphkit.errors import UsageError
from graphkit.frontend.summary import frozen
from graphkit.ir.counts import counts, elements, parameters
from graphkit.passes.training.to_training import batch_norms
from graphkit.text import listed, quantity
from graphkit.train import defaults
from graphkit.train.adapter_marks import has_adapters

if TYPE_CHECKING:
    from graphkit.data import Splits
    from graphkit.dist.kvstore import KVStore
    from graphkit.train.callbacks import Callback
    from graphkit.train.run_folder import RunFolder
    from graphkit.train.trainer import Trainer

# --profile skips the first runs, which also allocate memory and pack weights; number of runs that it records.
_SKIPPED, _RECORDED = 2, 10

# File with the result of --find-lr, in the output folder.
_CURVE = "learning_rates.csv"


def train(
    context: click.Context, source: Network, folder: Path | None, store: KVStore, options: Mapping[str, Any]
) -> None:
    """Train a model. options: of the command line, by parameter name."""
    from graphkit.executor.run.profile import profile
    from graphkit.train import checkpoint
    from graphkit.train.run_folder import RunFolder
    from graphkit.train.traces import write_merged

    o, writes, resume = dict(options), store.rank == 0, options["resume"]
    run = None if folder is None else RunFolder(folder)
    with contextlib.ExitStack() as stack:
        if run is not None:
            if resume:
                check_run_folder(run.path)
            before = checkpoint.notes_of(run.path) if resume else {}
            if writes:
                stack.enter_context(run)
                record.check(run.path)
                if not (resume or o["overwrite"]):
                    run.check()
            if resume:
                o = taken_over(context, o, before, store.num_workers, log if writes else None)
        # Runs whose checkpoint does not record the split were split by the positions of their samples.
        o["split"] = before.get("split", "position") if resume else "name"
        callbacks = objective.callbacks({**o, "folder": folder})
        with store.working():
            trainer, parts = _made(source, store, o)
            if resume and folder is not None:
                trainer.resume(folder, trusted=o["trust_run_folder"])
        if writes:
            _announce(trainer, parts, o)
            if o["fast_dev_run"] is not None:
                log(_trial(o["fast_dev_run"], folder))
        over = resume and not trainer.has_updates_left(o["epochs"], o["max_steps"])
        if over and writes:
            log(f"nothing left to train: the run in {folder} {_done(trainer)}. {_longer(trainer)}")
        classes = None if parts.train.classes is None else [str(name) for name in parts.train.classes]
        if resume:
            check_classes(before.get("classes"), classes)
        trainer.notes = {**kept(o, trainer.seed, store.num_workers), "classes": classes}
        if run is not None and writes:
            run.claim(trainer.run, overwrite=o["overwrite"])
            if not over:
                with store.working():
                    _describe(context, run, trainer, parts, source, store, o)
        trace, alone = o["trace"], store.num_workers == 1
        recording = profile(trace if alone else None, skip=_SKIPPED, runs=_RECORDED)
        recorded = None if trace is None else stack.enter_context(recording)
        history = None if over else _fit(trainer, parts, run, store, callbacks, o)
    if recorded is not None and not alone:
        write_merged(recorded, trainer, store, trace)
    if writes:
        telling.report(trainer, store, folder, history, recorded, trace, o["as_json"])


def _announce(trainer: Trainer, parts: Splits, o: Mapping[str, Any]) -> None:
    """Log the data, the parameters and the mode of BatchNormalization before training begins."""
    from graphkit.train.masks import note_on_zeros

    log(data.counted(*parts, divided=_divided(o)))
    log(_counted(trainer))
    if not o["loss_specs"] and isinstance(trainer.loss, Mapping):
        shown = listed((f"{name}={loss}" for name, loss in trainer.loss.items()), len(trainer.loss))
        log(f"loss of MXNet's output operators: {shown}. To use another one: --loss NAME")
    if has_adapters(trainer.net.graph):
        from graphkit.train.adapters.files import described

        log(described(trainer.net))
    if note := note_on_zeros(trainer.net, trainer.trained, trainer.masks(), "--keep-zeros '*'"):
        log(note)
    if left := frozen(trainer.net.graph):
        shown = listed((f"{name} ({why})" for name, why in left.items()), len(left))
        log(f"not trained: {shown}. To train one of them: --train NAME")
    if trainer.dense_tables:
        log(
            f"{listed(trainer.dense_tables, 8)}: a step updates all rows. To update only the rows that it reads, which "
            "is faster but changes how the optimizer treats the others: --sparse-update NAME"
        )
    if count := batch_norms(trainer.graph):
        log(
            f"BatchNormalization ({count} node{'s' * (count != 1)}): normalises by the statistics of each batch and "
            "updates the running statistics. To normalise by the running statistics and keep them: --batch-norm frozen"
        )


def find_rate(
    context: click.Context, source: Network, folder: Path | None, store: KVStore, options: Mapping[str, Any]
) -> None:
    """Run `graphkit train --find-lr`. The model is not changed, and the folder holds no run afterwards."""
    from graphkit.train.find_lr import find_lr

    if options["resume"]:
        raise UsageError("--find-lr looks for the learning rate of a new run: leave out --resume")
    trainer, parts = _made(source, store, options)
    workers = data.workers(options["workers"], parts.train)
    curve = find_lr(
        trainer, parts.train, batch_size=options["batch_size"], workers=workers, sample_weight=options["weight_column"]
    )
    file = None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / _CURVE
        curve.save(file)
    telling.report_rate(curve, file, options["as_json"])


def _made(source: Network, store: KVStore, o: Mapping[str, Any]) -> tuple[Trainer, Splits]:
    """Return the trainer and its data."""
    from graphkit import data as sources

    optimizer = objective.optimizer(o)
    axes = data.axis_options(o["batch_axes"])
    seed = config.SEED.get() if o["seed"] is None else o["seed"]
    given = (
        o["data_spec"], o["valid_spec"],
        with_tokenizer(source_options(o["data_options"]), o["data_spec"], o["tokenizer"]), axes, o.get("split"),
        o["validation_split"], seed, o["weight_column"],
    )  # fmt: skip
    parts = data.read_data(None, *given) if source.name is not None else None
    net = load_network(source, None if parts is None else parts.train, o)
    if parts is None and head_of_data(o["head_options"]):
        parts = data.read_data(net, *given)
    net, head = prepare_network(net, None if parts is None else parts.train, axes, o)
    targets = objective.target_names(net, o["loss_specs"], o["output_name"])
    parts = data.fitted(net, parts or data.read_data(net, *given), targets)
    if store.rank == 0 and data.is_imported(net):
        log_preprocessing(net, parts.train, with_options=bool(o["data_options"]))
    net = sources.described(net, parts.train)
    trainer = _trainer(net, head, objective.loss(net, parts.train, o), optimizer, store, o)
    return trainer, data.skipping(parts, o["on_damaged"])


def _trainer(
    net: Any, head: Sequence[str], loss: Any, optimizer: Any, store: KVStore, o: Mapping[str, Any]
) -> Trainer:  # fmt: skip
    """Return the trainer. head: the parameters of a new last layer, which are trained besides adapters."""
    from graphkit.train.adapters.settings import from_options
    from graphkit.train.masks import zero_masks
    from graphkit.train.trainer import Trainer

    lora = from_options(key_values(o["lora_options"], "--lora"), o["lora_layers"], "--lora", "--lora-layers")
    return Trainer(
        net, loss, optimizer, device=device_of(o["device"]), threads=o["threads"],
        kvstore=store if store.num_workers > 1 or store.is_remote else None,
        output=o["output_name"], freeze=o["freeze"],
        train=o["train_only"] if lora is None else (*o["train_only"], *head), lora=lora, lazy=o["lazy"], ema=o["ema"],
        masks=zero_masks(net, o["keep_zeros"]) if o["keep_zeros"] else None,
        lr_mult=objective.multipliers(o["lr_mults"], "--lr-mult"),
        wd_mult=objective.multipliers(o["wd_mults"], "--wd-mult"),
        loss_weights=objective.multipliers(o["loss_weights"], "--loss-weight", "OUTPUT=X"),
        mixup=o["mixup"], cutmix=o["cutmix"],
        carry=key_values(o["carries"], "--recurrent-state", "INPUT=OUTPUT"),
        clip_norm=o["clip_norm"], accumulate=o["accumulate"],
        seed=o["seed"], deterministic=o["deterministic"], recompute=o["recompute"],
        swap_memory=o["swap_memory"], precision=o["precision"],
        on_nonfinite=o["on_nonfinite"], shard_optimizer=o["shard_optimizer"], sync_batch_norm=o["sync_batch_norm"],
        batch_norm=o["batch_norm"],
        groups=placed(o["places"]), micro_batches=o["micro_batches"],
    )  # fmt: skip


def _fit(
    trainer: Trainer, parts: Splits, run: RunFolder | None, store: KVStore, callbacks: list[Callback],
    o: Mapping[str, Any],
) -> list[dict[str, float]]:  # fmt: skip
    if o["tensorboard"] and (o["fast_dev_run"] is None or run is not None):
        from graphkit.report.tensorboard import TensorBoard

        callbacks.append(TensorBoard(samples=parts.test))
    tell = telling.lines(store, o["as_json"]) if store.rank == 0 else None
    if store.rank == 0 and is_terminal() and not o["as_json"]:
        table = telling.Table()
        callbacks.append(table)
        tell = table.tell
    try:
        return trainer.fit(
            parts.train, parts.test, epochs=o["epochs"], max_steps=o["max_steps"], batch_size=o["batch_size"],
            metrics=_metrics(trainer, o),
            folder=run, checkpoint_every=o["checkpoint_every"], workers=data.workers(o["workers"], *parts),
            on_epoch=tell, callbacks=callbacks, log_every=o["log_every"], fast_dev_run=o["fast_dev_run"] or False,
            sample_weight=o["weight_column"],
        )  # fmt: skip
    except UsageError:
        if run is not None and store.rank == 0 and not (o["resume"] or trainer.updates):
            record.withdraw(run.path)
        raise


def _trial(batches: int, folder: Path | None) -> str:
    """Describe a --fast-dev-run in a line."""
    written = "no model or checkpoint is written" if folder is None else f"the results are written to {folder} (-o)"
    return f"--fast-dev-run: training and validation end after {batches} batch{'es' * (batches != 1)}; {written}"


def _metrics(trainer: Trainer, o: Mapping[str, Any]) -> Sequence[str]:
    """Return the names of the metrics. Default: those of the loss."""
    name = objective.first_loss(trainer.net, o["loss_specs"], o["output_name"])
    found: Sequence[str] = o["metric_names"] or defaults.METRICS.get(name, ())
    return found


def _describe(
    context: click.Context, run: RunFolder, trainer: Trainer, parts: Splits, source: Network, store: KVStore,
    o: Mapping[str, Any],
) -> None:  # fmt: skip
    """Write the vocabulary, config.toml and run.json into the folder, before training begins or continues."""
    if parts.train.vocabulary is not None:
        parts.train.vocabulary.save(run.path / "vocabulary.json")
    position = trainer.position
    epochs, max_steps = o["epochs"], o["max_steps"]
    if (epochs, max_steps) == (None, None):
        epochs, max_steps = defaults.EPOCHS, None
        if o["resume"]:
            epochs = None if position.open_ended else position.until - position.start
            max_steps = position.max_steps
    values = {**context.params, **o, "seed": trainer.seed, "epochs": epochs, "max_steps": max_steps}
    if not o["places"]:
        values["processes"] = store.num_workers  # also if mpiexec started them
    settings = config_file.effective(context.command, values, source, outputs=False)
    file = source.path if source.name is None and source.path != "-" else None
    threads = o["threads"] or config.num_threads()
    call = record.call(context.meta.get(ARGUMENTS, ()), trainer.seed, store.num_workers, threads, file)
    record.write(run.path, settings, call, goes_on=o["resume"])


def _divided(o: Mapping[str, Any]) -> str | None:
    """Return how the data were split; None if --valid gives the validation data."""
    given = source_options(o["data_options"])
    chosen = "last" if given.get("held_out") == "last" else given.get("split", o["split"])
    return str(chosen) if o["valid_spec"] is None else None


def _counted(trainer: Trainer) -> str:
    """Describe the number of parameters of the network, and how many of them this run trains."""
    graph = trainer.net.graph
    trained = elements([v for v in parameters(graph) if graph.name_of(v) in trainer.trained])
    return f"{trainer.net.name}: {counts(graph).parameters:,} parameters, of which {trained:,} are trained"


def _done(trainer: Trainer) -> str:
    """Describe how a finished run ended."""
    position = trainer.position
    done = trainer.epoch - position.start
    if position.stopped is not None:
        whole = "" if position.open_ended else f" of its {quantity(position.until - position.start, 'epoch')}"
        return f"was stopped after {done if whole else quantity(done, 'epoch')}{whole}: {position.stopped}"
    if position.at_limit:
        return f"has made its {quantity(position.max_steps or 0, 'update')}"
    return f"has finished its {quantity(done, 'epoch')}"


def _longer(trainer: Trainer) -> str:
    """Describe how a finished run is continued."""
    position = trainer.position
    option, counted, length = "--epochs", "length", position.until - position.start
    if position.at_limit or position.open_ended:
        option, counted, length = "--max-steps", "number of updates", position.max_steps or 0
    return f"With --resume, {option} is the {counted} of the whole run: {option} {length + 1} continues it"


def placed(texts: tuple[str, ...]) -> dict[str, int] | None:
    """Return the ranks of `GROUP=RANK` texts by group; None without any."""
    found = key_values(texts, "--place", "GROUP=RANK")
    for name, text in found.items():
        if not text.isdecimal():
            raise UsageError(f"--place {name}={text}: expected the rank of a process, from 0")
    return {name: int(text) for name, text in found.items()} or None
