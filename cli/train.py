"""graphkit train"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphkit.cli import _stopping as stopping
from graphkit.cli._limits import limit_options
from graphkit.cli._options import (
    data_option,
    device_options,
    external_root_option,
    json_option,
    key_values,
    read_model,
    recompute_option,
    source_options,
)
from graphkit.cli._output import log, print_json, print_table
from graphkit.cli._processes import ARGUMENTS, Job, process_options
from graphkit.cli._resume import kept, taken_over
from graphkit.cli._training import make_optimizer
from graphkit.cores import loading_workers
from graphkit.errors import UsageError
from graphkit.model import Model

if TYPE_CHECKING:
    from graphkit.data import Dataset, Splits
    from graphkit.dist.kvstore import KVStore
    from graphkit.executor.run.profile import Profile
    from graphkit.train.optim import Optimizer
    from graphkit.train.trainer import Trainer

# What is measured beside the loss when nothing is asked for.
_METRICS = {
    "softmax_cross_entropy": ("accuracy",),
    "sigmoid_binary_cross_entropy": ("accuracy",),
    "mse": ("mse",),
    "huber": ("mse",),
    "l1": ("mae",),
}

# What --profile leaves out, which also pays for fresh memory and packed weights, and how much it records.
_SKIPPED, _RECORDED = 2, 10


@click.command()
@click.pass_context
@click.argument("model")
@click.option(
    "--data",
    "data_spec",
    help="digits, a folder of pictures or MNIST idx files, an .npz or .csv file, cifar:FOLDER, sentences:FOLDER or "
    "text:FILE.",
)
@data_option
@click.option(
    "--valid",
    "valid_spec",
    help="Data to validate on; --data are then all trained on, but for a test part of their own (default: the part of "
    "--data held out for testing).",
)
@click.option(
    "-o", "--output", "folder", type=click.Path(file_okay=False), help="Folder for model, checkpoint and log."
)
@click.option(
    "--epochs",
    type=click.IntRange(1),
    help="Epochs from the beginning of the run (default: 1; with --resume, what the run was planned for).",
)
@click.option(
    "--batch-size", type=click.IntRange(1), default=64, show_default=True, help="Samples per batch and process."
)
@click.option("--loss", default="softmax_cross_entropy", show_default=True)
@click.option("--output-name", "output_name", help="The output that loss and metrics look at, of several.")
@click.option(
    "--optimizer",
    "optimizer_name",
    default="sgd",
    show_default=True,
    help="sgd, adam, adamw, rmsprop, adagrad, adadelta, ftrl, lars or lamb.",
)
@click.option("--lr", type=click.FloatRange(0), help="Learning rate (default: 0.05 for sgd, else the optimizer's own).")
@click.option("--momentum", type=click.FloatRange(0, 1), help="Momentum of sgd and lars (default 0.9) and rmsprop (0).")
@click.option(
    "--optimizer-option", "optimizer_options", multiple=True, metavar="NAME=VALUE", help="Further options; repeat."
)
@click.option(
    "--metric",
    "metric_names",
    multiple=True,
    help="accuracy, top<k>, f1, auc, perplexity, mse, rmse or mae; repeat (default: what fits the loss).",
)
@click.option(
    "--carry", "carries", multiple=True, metavar="INPUT=OUTPUT", help="State that goes from batch to batch; repeat."
)
@click.option("--freeze", multiple=True, metavar="PATTERN", help="Parameters that keep their values; repeat.")
@click.option("--train", "train_only", multiple=True, metavar="PATTERN", help="Train only these parameters; repeat.")
@click.option("--free-batch", is_flag=True, help="Let inputs whose first dimension is 1 take batches of any size.")
@click.option(
    "--batch-axis",
    "batch_axes",
    multiple=True,
    metavar="INPUT=AXIS",
    help="The axis of an input that counts samples, where it is not 0; none: every batch gets all of it. Repeat.",
)
@click.option("--constants", is_flag=True, help="Train also the weights that the file has as Constant nodes.")
@click.option(
    "--head",
    "head_options",
    multiple=True,
    metavar="classes=N",
    help="A fresh last layer for that many classes; with --head-at also pool=mean, first or none. Repeat.",
)
@click.option("--head-at", metavar="VALUE", help="Put the new layer on this value, in place of what comes after it.")
@click.option(
    "--lr-mult", "lr_mults", multiple=True, metavar="PATTERN=X", help="Factor on the learning rate of parameters."
)
@click.option(
    "--wd-mult", "wd_mults", multiple=True, metavar="PATTERN=X", help="Factor on their weight decay; 0: none."
)
@click.option(
    "--lazy", multiple=True, metavar="PATTERN", help="Tables of which a step updates only the rows that it reads."
)
@click.option(
    "--ema",
    type=click.FloatRange(0, 1, max_open=True),
    metavar="DECAY",
    help="Keep a moving average of the parameters, and save that.",
)
@click.option(
    "--on-nonfinite", type=click.Choice(["raise", "skip", "ignore"]), default="raise", show_default=True,
    help="A loss that is not finite: end, naming the node that made it; skip the step (also where a gradient is not "
    "finite); or go on.",
)  # fmt: skip
@click.option(
    "--sync-batch-norm", is_flag=True, help="Statistics of BatchNormalization over the samples of all processes."
)
@click.option("--clip-norm", type=click.FloatRange(0, min_open=True), help="Limit on the global norm of the gradients.")
@click.option("--accumulate", type=click.IntRange(1), default=1, show_default=True, help="Batches per update.")
@recompute_option
@click.option("--checkpoint-every", type=click.IntRange(1), help="Also write a checkpoint every so many updates.")
@click.option(
    "--resume",
    is_flag=True,
    help="Go on from the checkpoint in the output folder; options that are not given are those of the run.",
)
@click.option("--overwrite", is_flag=True, help="Replace the run that the output folder holds.")
@click.option(
    "--profile",
    "trace",
    type=click.Path(dir_okay=False),
    help="Write a trace of ten runs, from the third on, for Perfetto or Chrome to this .json file, and print the time "
    "of each operator. Of several processes, one trace of all, with what is on its way between them.",
)
@click.option(
    "--workers",
    type=click.IntRange(0),
    help="Processes that make the samples of data that are not in memory (default: one for every two cores); 0: none.",
)
@click.option(
    "--on-damaged",
    type=click.Choice(["raise", "skip"]),
    help="A sample of such data that cannot be read: end, naming it (the default), or take the next whole one.",
)
@click.option("--seed", type=click.IntRange(0), default=None, help="Seed of data order and dropout.")
@click.option(
    "--precision",
    type=click.Choice(["f32", "bf16"]),
    default="f32",
    show_default=True,
    help="bf16: matrix work in bfloat16, parameters in float32.",
)
@click.option(
    "--shard-optimizer", is_flag=True, help="Divide the optimizer's states among the processes of --kvstore dist_sync."
)
@click.option("--deterministic", is_flag=True, help="The same bits for any number of threads.")
@click.option(
    "--place",
    "places",
    multiple=True,
    metavar="GROUP=RANK",
    help="Compute a group of nodes (ctx_group) in a process of the job, as a stage of a pipeline where no process "
    "needs a later one; repeat for all.",
)
@click.option(
    "--micro-batches",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Into so many parts each batch is cut, which go through the pipeline one behind the other.",
)
@process_options
@device_options
@external_root_option
@limit_options
@json_option
def command(
    context: click.Context, model: str, folder: str | None, resume: bool, overwrite: bool, **options: Any
) -> int:
    """Train MODEL (.json, .onnx, or a folder that an earlier training wrote).

    \b
    graphkit train net.json --data digits --epochs 10 -o run/
    graphkit train net.json --data photos/ --data-option augment=crop,flip --epochs 20 -o run/
    graphkit train net.onnx --data mnist/ --optimizer adam --lr 1e-3 -o run/
    graphkit train net.onnx --data pets.npz --head classes=37 --train 'fc*' -o run/
    graphkit train bert.onnx --data reviews.npz --head classes=2 --head pool=first --head-at last_hidden_state -o run/
    graphkit train net.json --data digits --processes 2 --kvstore dist_sync -o run/
    mpiexec -n 2 graphkit train net.json --data digits --kvstore dist_sync -o run/
    graphkit train net.json --data digits --processes 2 --kvstore dist_sync --place a=0 --place b=1 --micro-batches 8
    graphkit train net.json --data sentences:reviews/ --optimizer adam -o run/
    graphkit train net.json -o run/ --resume
    graphkit train net.json --data text:book.txt --metric perplexity --carry h=last_h --carry c=last_c -o run/
    """
    job = Job.taken(options)
    if job.is_to_be_started:
        return job.run(context.meta[ARGUMENTS], folder)
    if resume and folder is None:
        raise UsageError("--resume needs the folder, -o")
    if resume and overwrite:
        raise UsageError("--resume goes on with the run that --overwrite would remove: choose one")
    if not resume and options["data_spec"] is None:
        raise click.MissingParameter(param=next(p for p in context.command.params if p.name == "data_spec"))
    path = None if folder is None else Path(folder)
    with stopping.told(model, path):
        _train(context, model, path, resume, overwrite, job.store(), **options)
    return 0


def _train(
    context: click.Context, model: str, folder: Path | None, resume: bool, overwrite: bool, store: KVStore, *,
    external_root: str | None, epochs: int | None, as_json: bool, **o: Any,
) -> None:  # fmt: skip
    from graphkit import data
    from graphkit.executor.run.profile import profile
    from graphkit.train import checkpoint
    from graphkit.train.run_folder import RunFolder
    from graphkit.train.traces import write_merged

    writes = store.rank == 0
    run = None if folder is None else RunFolder(folder)
    with contextlib.ExitStack() as stack:
        if run is not None:
            before = checkpoint.notes_of(run.path) if resume else {}
            if writes:
                stack.enter_context(run)
                if not (resume or overwrite):
                    run.check()
            if resume:
                o = taken_over(context, o, before, log if writes else None)
        further = key_values(o["optimizer_options"], "--optimizer-option")
        optimizer = make_optimizer(o["optimizer_name"], o["lr"], o["momentum"], further)
        axes = axis_options(o["batch_axes"])
        with store.working():
            net = _network(model, external_root, axes, o)
            options = source_options(o["data_options"])
            parts = read_data(net, o["data_spec"], o["valid_spec"], options, axes)
            train_set, valid_set = _skipping(parts, o["on_damaged"])
            trainer = _trainer(data.described(net, train_set), optimizer, store, o)
            if resume and folder is not None:
                trainer.resume(folder)
        over = resume and not trainer.left(epochs)
        if over and writes:
            done = trainer.epoch - trainer.position.start
            log(f"{folder} has trained its {done} epochs; --epochs N, with N above that, trains more")
        trainer.notes = kept(o)
        if run is not None and writes:
            run.claim(trainer.run, overwrite=overwrite)
            if train_set.vocabulary is not None:
                train_set.vocabulary.save(run.path / "vocabulary.json")
        trace, alone = o["trace"], store.num_workers == 1
        recording = profile(trace if alone else None, skip=_SKIPPED, runs=_RECORDED)
        recorded = None if trace is None else stack.enter_context(recording)
        history = [] if over else trainer.fit(
            train_set, valid_set, epochs=epochs, batch_size=o["batch_size"],
            metrics=o["metric_names"] or _METRICS.get(o["loss"], ()), folder=run,
            checkpoint_every=o["checkpoint_every"], workers=_workers(o["workers"], train_set, valid_set),
            on_epoch=_teller(store, as_json) if writes else None,
        )  # fmt: skip
    if recorded is not None and not alone:
        write_merged(recorded, trainer, store, trace)
    if writes:
        _report(trainer, store, None if over else folder, folder, history, recorded, trace, as_json)


def _skipping(parts: Splits, on_damaged: str | None) -> Splits:
    """The data with the choice of what damaged samples do."""
    from graphkit.data import LazyDataset, Splits

    if on_damaged is None:
        return parts
    if not any(isinstance(part, LazyDataset) for part in parts):
        raise UsageError(f"--on-damaged {on_damaged}: the data are in memory, with no sample that could be damaged")
    return Splits(*(p.configured(on_damaged=on_damaged) if isinstance(p, LazyDataset) else p for p in parts))


def _workers(given: int | None, *parts: Dataset) -> int:
    """How many processes make samples; by themselves, none for arrays in memory."""
    from graphkit.data import LazyDataset

    if given is None:
        return loading_workers() if any(isinstance(part, LazyDataset) for part in parts) else 0
    return given


def _network(
    model: str, external_root: str | None, axes: Mapping[str, int | None] | None, o: Mapping[str, Any]
) -> Model:
    """The network to train: with a new head, constants that train, a batch dimension, as the options want."""
    from graphkit.train import imported

    net = read_model(model, external_root)
    if o["constants"]:
        net = imported.constants_to_parameters(net)
    net = with_head(net, o["head_options"], o["head_at"], o["output_name"], o["seed"])
    return imported.free_batch(net, axes=axes) if o["free_batch"] else net


def _trainer(net: Model, optimizer: Optimizer, store: KVStore, o: Mapping[str, Any]) -> Trainer:
    from graphkit.train.trainer import Trainer

    return Trainer(
        net, o["loss"], optimizer,
        device=o["device"], threads=o["threads"], kvstore=store if store.num_workers > 1 or store.is_remote else None,
        output=o["output_name"], freeze=o["freeze"], train=o["train_only"], lazy=o["lazy"], ema=o["ema"],
        lr_mult=multipliers(o["lr_mults"], "--lr-mult"), wd_mult=multipliers(o["wd_mults"], "--wd-mult"),
        carry=key_values(o["carries"], "--carry"), clip_norm=o["clip_norm"], accumulate=o["accumulate"],
        seed=o["seed"], deterministic=o["deterministic"], recompute=o["recompute"], precision=o["precision"],
        on_nonfinite=o["on_nonfinite"], shard_optimizer=o["shard_optimizer"], sync_batch_norm=o["sync_batch_norm"],
        groups=placed(o["places"]), micro_batches=o["micro_batches"],
    )  # fmt: skip


def _teller(store: KVStore, as_json: bool) -> Callable[[int, dict[str, float]], None]:
    """What prints a line for each epoch."""
    together = f" ({store.num_workers} processes)" if store.num_workers > 1 else ""

    def tell(epoch: int, record: dict[str, float]) -> None:
        line = f"epoch {epoch}{together}: " + ", ".join(f"{k} {v:.5g}" for k, v in record.items())
        click.echo(line, err=as_json)

    return tell


def _report(
    trainer: Trainer, store: KVStore, written: Path | None, folder: Path | None,
    history: Sequence[Mapping[str, float]], recorded: Profile | None, trace: str | None, as_json: bool,
) -> None:  # fmt: skip
    result = {
        "model": trainer.net.name,
        "folder": None if folder is None else str(folder),
        "epochs": trainer.epoch,
        "updates": trainer.updates,
        "processes": store.num_workers,
        "history": history,
    }
    if recorded is not None:
        result["operators"] = [asdict(operator) for operator in recorded.operators]
    if as_json:
        print_json("train", result)
        return
    if recorded is not None:
        print_table("time by operator", *recorded.table())
        log(f"wrote {trace}")
    if written is not None:
        log(f"wrote {written}: model.json, checkpoint.json, log.jsonl")


def read_data(
    net: Model, spec: str, valid_spec: str | None, options: dict[str, Any], axes: dict[str, int | None]
) -> Splits:
    """What to train on, and to validate on: text and pictures as the model's metadata say."""
    from graphkit import data

    options = _of_model(net, spec) | options
    if valid_spec is None:
        train, valid = data.load(spec, axes=axes, **options)
    else:
        train = data.read(spec, axes=axes, held_out=False, **options)
        if train.vocabulary is not None:
            valid = data.read(valid_spec, **options | {"vocabulary": train.vocabulary})
        else:
            valid = data.read(valid_spec, axes=axes, like=train)
    train = _numbered(net, train)
    return data.Splits(train, valid if train.classes is None else valid.renumbered(train.classes))


def _of_model(net: Model, spec: str) -> dict[str, Any]:
    """Options of data that the model gives: its vocabulary, what pictures go through; else the size of its input."""
    from graphkit.data.description import preprocessing_of
    from graphkit.data.images.feeding import options_for
    from graphkit.data.sources import takes
    from graphkit.data.text.vocabulary import Vocabulary

    if "vocabulary" in net.meta and takes(spec, "vocabulary"):
        return {"vocabulary": Vocabulary.from_json(net.meta["vocabulary"])}
    if not takes(spec, "preprocess"):
        return {}
    known = preprocessing_of(net.meta)
    return options_for(net.input_types) if known is None else {"preprocess": known}


def _numbered(net: Model, train: Dataset) -> Dataset:
    """The data with classes in the order that the model has them, if it knows them all."""
    if net.classes is None or train.classes is None or net.classes == train.classes:
        return train
    if set(train.classes) <= set(net.classes):
        return train.renumbered(net.classes)
    log(f"the classes of the model ({_few(net.classes)}) become those of the data ({_few(train.classes)})")
    return train


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def with_head(net: Model, texts: tuple[str, ...], at: str | None, output: str | None, seed: int | None) -> Model:
    """The model with what `--head classes=N` and `--head-at` ask for."""
    from graphkit.train.head import replace_head

    fields = key_values(texts, "--head")
    if not fields and at is not None:
        raise UsageError("--head-at needs the number of classes, --head classes=N")
    if not fields:
        return net
    if not {"classes"} <= set(fields) <= {"classes", "pool"} or not fields["classes"].isdecimal():
        raise UsageError(f"--head {' '.join(texts)!r}: expected classes=N")
    return replace_head(net, int(fields["classes"]), seed=seed, output=output, at=at, pool=fields.get("pool"))


def axis_options(texts: tuple[str, ...]) -> dict[str, int | None]:
    """`INPUT=AXIS` texts as axes by input; `none` is None."""
    axes: dict[str, int | None] = {}
    for name, text in key_values(texts, "--batch-axis").items():
        if text != "none" and not text.isdecimal():
            raise UsageError(f"--batch-axis {name}={text}: expected the number of an axis, or none")
        axes[name] = None if text == "none" else int(text)
    return axes


def placed(texts: tuple[str, ...]) -> dict[str, int] | None:
    """`GROUP=RANK` texts as ranks by group; None without any."""
    found = key_values(texts, "--place")
    for name, text in found.items():
        if not text.isdecimal():
            raise UsageError(f"--place {name}={text}: expected the number of a process, from 0")
    return {name: int(text) for name, text in found.items()} or None


def multipliers(texts: tuple[str, ...], option: str) -> dict[str, float]:
    """`PATTERN=X` texts as factors by pattern."""
    try:
        return {pattern: float(text) for pattern, text in key_values(texts, option).items()}
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
