"""The options of `graphkit train`, by what they are about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from graphkit.cli._options import trust_option
from graphkit.executor.run.precision import PRECISIONS
from graphkit.train import defaults

Command = Callable[..., Any]

_DATA = (
    click.option(
        "--data", "data_spec",
        help="digits, a folder of pictures or MNIST idx files, an .npz, .csv, .tsv, .parquet or .rec file, "
        "ratings:FOLDER, cifar:FOLDER, sentences:FOLDER, text:FILE, or FILE.py:FUNCTION, which makes the data.",
    ),
    click.option(
        "--valid", "valid_spec",
        help="Data to validate on; --data are then all trained on, but for a test part of their own (default: the part "
        "of --data held out for testing).",
    ),
    click.option(
        "--batch-size", type=click.IntRange(1), default=defaults.BATCH_SIZE, show_default=True,
        help="Samples per batch and process.",
    ),
    click.option(
        "--batch-axis", "batch_axes", multiple=True, metavar="INPUT=AXIS",
        help="The axis of an input that counts samples, where it is not 0; none: every batch gets all of it. Repeat.",
    ),
    click.option(
        "--workers", type=click.IntRange(0),
        help="Processes that make the samples of data that are not in memory (default: one for every two cores); 0: "
        "none.",
    ),
    click.option(
        "--on-damaged", type=click.Choice(["raise", "skip"]),
        help="A sample of such data that cannot be read: end, naming it (the default), or take the next whole one.",
    ),
    click.option("--mixup", type=click.FloatRange(0, min_open=True), metavar="ALPHA",
                 help="Mix the samples of a batch, and their losses, by shares from Beta(ALPHA, ALPHA)."),
    click.option("--cutmix", type=click.FloatRange(0, min_open=True), metavar="ALPHA",
                 help="Put boxes of images of a batch into others; with --mixup, each batch has either by half."),
)  # fmt: skip

_NETWORK = (
    click.option(
        "--free-batch/--no-free-batch", help="Let inputs whose first dimension is 1 take batches of any size."
    ),
    click.option("--constants/--no-constants", help="Train also the weights that the file has as Constant nodes."),
    click.option(
        "--head", "head_options", multiple=True, metavar="classes=N",
        help="A fresh last layer for that many classes; with --head-at also pool=mean, first or none. Repeat.",
    ),
    click.option(
        "--head-at", metavar="VALUE", help="Put the new layer on this value, in place of what comes after it."
    ),
    click.option("--freeze", multiple=True, metavar="PATTERN", help="Parameters that keep their values; repeat."),
    click.option(
        "--train", "train_only", multiple=True, metavar="PATTERN", help="Train only these parameters; repeat."
    ),
    click.option(
        "--carry", "carries", multiple=True, metavar="INPUT=OUTPUT", help="State that goes from batch to batch; repeat."
    ),
)  # fmt: skip

_LOSS = (
    click.option(
        "--loss", "loss_specs", multiple=True, metavar="NAME | OUTPUT=NAME",
        help=f"What is minimised (default: {defaults.LOSS}); for several outputs, a loss for each, which are added up. "
        "Targets, in an .npz file or a table, then have the names of the outputs.",
    ),
    click.option(
        "--loss-weight", "loss_weights", multiple=True, metavar="OUTPUT=X", help="A factor on one of several; repeat."
    ),
    click.option(
        "--label-smoothing", type=click.FloatRange(0, 1, max_open=True), metavar="X",
        help="So much of a target goes to all classes alike.",
    ),
    click.option(
        "--class-weights", metavar="balanced | FILE | A,B,C",
        help="A weight for each class: as their numbers of samples ask for, of a .json or .npy file, or these.",
    ),
    click.option("--output-name", "output_name", help="The output that loss and metrics look at, of several."),
    click.option(
        "--metric", "metric_names", multiple=True,
        help="accuracy, top<k>, f1, auc, perplexity, mse, rmse or mae; repeat (default: what fits the loss).",
    ),
    click.option(
        "--on-nonfinite", type=click.Choice(["raise", "skip", "ignore"]), default="raise", show_default=True,
        help="A loss that is not finite: end, naming the node that made it; skip the step (also where a gradient is "
        "not finite); or go on.",
    ),
)  # fmt: skip

_OPTIMIZER = (
    click.option(
        "--optimizer", "optimizer_name", default=defaults.OPTIMIZER, show_default=True,
        help="sgd, adam, adamw, rmsprop, adagrad, adadelta, ftrl, lars or lamb.",
    ),
    click.option(
        "--lr", type=click.FloatRange(0), help="Learning rate (default: 0.05 for sgd, else the optimizer's own)."
    ),
    click.option(
        "--momentum", type=click.FloatRange(0, 1), help="Momentum of sgd and lars (default 0.9) and rmsprop (0)."
    ),
    click.option(
        "--optimizer-option", "optimizer_options", multiple=True, metavar="NAME=VALUE", help="Further options; repeat."
    ),
    click.option(
        "--lr-schedule", type=click.Choice(
            ["constant", "step", "exponential", "cosine", "linear", "polynomial", "one-cycle", "plateau"]
        ),
        default="constant", show_default=True,
        help="How the learning rate goes on: over all updates of the run (cosine, linear, polynomial, one-cycle), by "
        "every=N and factor=X (step), factor=X (exponential), or down where --monitor stands still (plateau).",
    ),
    click.option(
        "--warmup", type=click.IntRange(1), metavar="N", help="Updates in which the learning rate rises from 0."
    ),
    click.option(
        "--schedule-option", "schedule_options", multiple=True, metavar="NAME=VALUE",
        help="Of the schedule: steps, final, power, every, factor, rise, start_factor, end_factor; of plateau: "
        "patience, factor, cooldown, lowest, min_delta. Repeat.",
    ),
    click.option(
        "--lr-mult", "lr_mults", multiple=True, metavar="PATTERN=X", help="Factor on the learning rate of parameters."
    ),
    click.option("--wd-mult", "wd_mults", multiple=True, metavar="PATTERN=X",
                 help="Factor on their weight decay; 0: none."),
    click.option(
        "--lazy", multiple=True, metavar="PATTERN",
        help="Tables of which a step updates only the rows that it reads.",
    ),
    click.option(
        "--ema", type=click.FloatRange(0, 1, max_open=True), metavar="DECAY",
        help="Keep a moving average of the parameters, and save that.",
    ),
    click.option("--clip-norm", type=click.FloatRange(0, min_open=True),
                 help="Limit on the global norm of the gradients."),
    click.option("--accumulate", type=click.IntRange(1), default=1, show_default=True, help="Batches per update."),
    click.option(
        "--batch-norm", type=click.Choice(defaults.BATCH_NORM), default=defaults.BATCH_NORM[0], show_default=True,
        help="BatchNormalization by statistics of each batch, or by the running ones, which it then keeps.",
    ),
    click.option(
        "--find-lr", is_flag=True,
        help="Look for a learning rate in place of training: print it, and write learning_rates.csv to -o.",
    ),
)  # fmt: skip

_RUN = (
    click.option(
        "--epochs", type=click.IntRange(1),
        help="Epochs from the beginning of the run (default: 1; with --resume, what the run was planned for).",
    ),
    click.option(
        "--early-stop", type=click.IntRange(1), metavar="PATIENCE",
        help="End when --monitor has not become better for so many epochs.",
    ),
    click.option(
        "--monitor", default=defaults.MONITOR, show_default=True,
        help="The number that --early-stop, --keep-best and a plateau look at: loss, a metric, or either with valid_.",
    ),
    click.option("--min-delta", type=click.FloatRange(0), default=0.0, show_default=True,
                 help="By how much it has to be better for --early-stop."),
    click.option("--keep-best/--no-keep-best",
                 help="Keep the model of the best epoch by --monitor too, as best.json in -o."),
    click.option(
        "--log-every", type=click.IntRange(0), default=defaults.LOG_EVERY, show_default=True, metavar="N",
        help="A line in log.jsonl every so many updates; 0: only those of epochs.",
    ),
    click.option("--tensorboard/--no-tensorboard",
                 help="Also write what TensorBoard shows, to the folder tensorboard in -o."),
    click.option("--checkpoint-every", type=click.IntRange(1), help="Also write a checkpoint every so many updates."),
    click.option(
        "--resume", is_flag=True,
        help="Go on from the checkpoint in the output folder; options that are not given are those of the run, "
        "--processes and --kvstore among them.",
    ),
    trust_option,
    click.option("--overwrite", is_flag=True, help="Replace the run that the output folder holds."),
    click.option(
        "--profile", "trace", type=click.Path(dir_okay=False),
        help="Write a trace of ten runs, from the third on, for Perfetto or Chrome to this .json file, and print the "
        "time of each operator. Of several processes, one trace of all, with what is on its way between them.",
    ),
    click.option("--seed", type=click.IntRange(0), default=None, help="Seed of data order, dropout and mixing."),
    click.option(
        "--precision", type=click.Choice(PRECISIONS), default="f32", show_default=True,
        help="bf16: matrix work in bfloat16, parameters in float32; on a card, f16: in float16, with scaled losses; "
        "tf32: products of float32 by 11 bits; fp8: bf16 with operands of products in 8 bits.",
    ),
    click.option("--deterministic/--no-deterministic", help="The same bits for any number of threads."),
)  # fmt: skip

_PARALLEL = (
    click.option(
        "--sync-batch-norm/--no-sync-batch-norm",
        help="Statistics of BatchNormalization over the samples of all processes.",
    ),
    click.option(
        "--shard-optimizer/--no-shard-optimizer",
        help="Divide the optimizer's states among the processes of --kvstore dist_sync.",
    ),
    click.option(
        "--place", "places", multiple=True, metavar="GROUP=RANK",
        help="Compute a group of nodes (ctx_group) in a process of the job, as a stage of a pipeline where no process "
        "needs a later one; repeat for all.",
    ),
    click.option(
        "--micro-batches", type=click.IntRange(1), default=1, show_default=True,
        help="Into so many parts each batch is cut, which go through the pipeline one behind the other.",
    ),
)  # fmt: skip


def _all(options: tuple[Callable[[Command], Command], ...]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


data_options, network_options, loss_options = _all(_DATA), _all(_NETWORK), _all(_LOSS)
optimizer_options, run_options, parallel_options = _all(_OPTIMIZER), _all(_RUN), _all(_PARALLEL)
