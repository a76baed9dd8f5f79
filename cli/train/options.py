"""The options of `graphkit train`, by group."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from graphkit.cli._groups import (
    DATA,
    EPOCHS,
    LOSS,
    NETWORK,
    OPTIMISATION,
    OUTPUT,
    PRECISION,
    PROCESSES,
    REPORTING,
    option,
)
from graphkit.cli._options import tokenizer_option, trace_file, trust_option
from graphkit.cli._ranges import FloatRange, IntRange
from graphkit.executor.run.precision import PRECISIONS
from graphkit.train import defaults

Command = Callable[..., Any]

_DATA = (
    option(
        "--data", "data_spec", group=DATA, metavar="DATA",
        help="Training data: digits (built in), a folder of images or of MNIST idx files, an .npz, .csv, .tsv, "
        ".parquet or .rec file, ratings:FOLDER, cifar:FOLDER, sentences:FOLDER, text:FILE, or FILE.py:FUNCTION, which "
        "returns the data.",
    ),
    option(
        "--valid", "valid_spec", group=DATA, metavar="DATA",
        help="Validation data, in any form that --data has. Default: the test part of --data, if it has one, as MNIST "
        "has; otherwise a fifth of --data (a tenth of texts) is held out, and training uses the rest. --data-option "
        "test_fraction=X sets another share. With --valid, nothing is held out: training uses the whole training part "
        "of --data, and its test part, if any, is ignored.",
    ),
    option(
        "--validation-split", group=DATA, type=FloatRange(0, 1, min_open=True, max_open=True), metavar="X",
        help="Hold out this share of the training samples for validation, chosen by --seed. A test part of --data, if "
        "it has one, is not used. Without this option, see --valid.",
    ),
    option(
        "--weight-column", group=DATA, metavar="NAME",
        help="Column of a table, or array of an .npz file, with one weight per sample, not negative. The loss is the "
        "weighted mean: sum(weight * loss) / sum(weight), in training and validation. Metrics do not use the weights.",
    ),
    tokenizer_option,
    option(
        "--batch-size", group=DATA, type=IntRange(1), default=defaults.BATCH_SIZE, show_default=True,
        help="Samples per batch in each process.",
    ),
    option(
        "--batch-axis", "batch_axes", group=DATA, multiple=True, metavar="INPUT=AXIS",
        help="AXIS is the batch dimension of INPUT, if that is not 0. INPUT=none: INPUT has no batch dimension, and "
        "every batch gets the whole array. Only for .npz files. Repeatable.",
    ),
    option(
        "--workers", group=DATA, type=IntRange(0),
        help="Number of processes that load samples of data that are not in memory; 0: the training process loads "
        "them. Default: one per two cores.",
    ),
    option(
        "--on-damaged", group=DATA, type=click.Choice(["raise", "skip"]),
        help="If a sample cannot be read from its file: raise stops with an error that names the sample; skip takes "
        "the next readable sample. Default: raise.",
    ),
    option(
        "--mixup", group=DATA, type=FloatRange(0, min_open=True), metavar="ALPHA",
        help="Mixup: blend pairs of samples of a batch, and their losses, with a weight from Beta(ALPHA, ALPHA).",
    ),
    option(
        "--cutmix", group=DATA, type=FloatRange(0, min_open=True), metavar="ALPHA",
        help="CutMix: replace a box of each image by the same box of another image of the batch. The box's share of "
        "the area is drawn from Beta(ALPHA, ALPHA). With --mixup, each batch gets one of the two, with probability "
        "1/2.",
    ),
)  # fmt: skip

_NETWORK = (
    option(
        "--dynamic-batch/--no-dynamic-batch", "--free-batch/--no-free-batch", "free_batch", group=NETWORK,
        help="Make the batch dimension of all inputs dynamic, in a model that was exported for a batch of 1.",
    ),
    option(
        "--constants/--no-constants", group=NETWORK,
        help="Also train the weights that the file stores as Constant nodes.",
    ),
    option(
        "--head", "head_options", group=NETWORK, multiple=True, metavar="auto | classes=N | pool=POOL",
        help="classes=N: replace the last layer by a new one for N classes. auto: N is the number of classes in the "
        "training data. pool=POOL, with --head-at: how to pool the value before the new layer. Sequences: mean, first "
        "(take the first token) or none (classify each token). Images: mean (default) or none (classify each "
        "position). Repeatable.",
    ),
    option(
        "--head-at", group=NETWORK, metavar="VALUE",
        help="Put the new last layer (--head) on this internal value, and remove everything after it.",
    ),
    option(
        "--keep-zeros", group=NETWORK, multiple=True, metavar="PATTERN",
        help="Weights of these parameters that are 0 stay 0, as after graphkit prune. Parameters with fewer than two "
        "axes need their exact name. Repeatable.",
    ),
    option(
        "--freeze", group=NETWORK, multiple=True, metavar="PATTERN",
        help="Do not train parameters whose names match this glob pattern. Repeatable.",
    ),
    option(
        "--train", "train_only", group=NETWORK, multiple=True, metavar="PATTERN",
        help="Train only parameters whose names match this glob pattern. Repeatable.",
    ),
    option(
        "--lora", "lora_options", group=NETWORK, multiple=True, metavar="NAME=VALUE",
        help="LoRA: freeze the weights and train adapters of low rank. rank=8, alpha=16 (the scaling is alpha / rank), "
        "dropout=0.1, dora=true (DoRA), rslora=true (the scaling is alpha / sqrt(rank)). --train lists parameters that "
        "are trained as well; a new last layer (--head) always is. Repeatable.",
    ),
    option(
        "--lora-layers", group=NETWORK, multiple=True, metavar="PATTERN",
        help="With --lora: only layers whose names match this glob pattern get adapters. Default: all MatMul, Gemm and "
        "Conv with weights. Repeatable.",
    ),
    option(
        "--recurrent-state", "--carry", "carries", group=NETWORK, multiple=True, metavar="INPUT=OUTPUT",
        help="Recurrent state: feed OUTPUT of each batch to INPUT of the next one. It is 0 at the start of each epoch. "
        "Repeatable.",
    ),
    option(
        "--batch-norm", group=NETWORK, type=click.Choice(defaults.BATCH_NORM), default=defaults.BATCH_NORM[0],
        show_default=True,
        help="BatchNormalization during training, whatever mode the file has. train: normalise by the statistics of "
        "each batch and update the running statistics. frozen: normalise by the running statistics and keep them.",
    ),
)  # fmt: skip

_LOSS = (
    option(
        "--loss", "loss_specs", group=LOSS, multiple=True, metavar="NAME | OUTPUT=NAME",
        help="Loss function. For several outputs, give one OUTPUT=NAME for each: the losses are added, and each target "
        f"has the name of its output in the .npz file or table. Default: {defaults.LOSS}. Repeatable.",
    ),
    option(
        "--loss-weight", "loss_weights", group=LOSS, multiple=True, metavar="OUTPUT=X",
        help="Factor on the loss of OUTPUT, if there are several. Default: 1. Repeatable.",
    ),
    option(
        "--label-smoothing", group=LOSS, type=FloatRange(0, 1, max_open=True), metavar="X",
        help="Label smoothing factor, 0 to 1.",
    ),
    option(
        "--ignore-index", group=LOSS, type=int, metavar="N",
        help="Ignore targets with this class number, such as padding, in the loss and in metrics.",
    ),
    option(
        "--loss-option", "loss_options", group=LOSS, multiple=True, metavar="NAME=X",
        help="Another option of the loss: gamma (focal, sigmoid_focal), alpha (sigmoid_focal), margin (contrastive, "
        "triplet), blank (ctc: the class number of the blank) or axis (softmax_cross_entropy, focal: the axis of the "
        "output that counts the classes, such as 1 for logits [N, classes, H, W]). Repeatable.",
    ),
    option(
        "--teacher", group=LOSS, type=click.Path(), metavar="FILE",
        help="Knowledge distillation: also compare the logits with those of this model, a .json or .onnx file or a run "
        "folder with the same inputs and classes. It is not trained.",
    ),
    option(
        "--distill", "distill_options", group=LOSS, multiple=True, metavar="NAME=X",
        help="Option of --teacher: weight (the share of the comparison, default 0.5) or temperature (default "
        "2). Repeatable.",
    ),
    option(
        "--class-weights", group=LOSS, metavar="balanced | FILE | A,B,C",
        help="Weights of the classes in the loss: balanced (inversely proportional to the number of samples), a .json "
        "or .npy file with one number per class, or the numbers themselves.",
    ),
    option(
        "--output-name", "output_name", group=LOSS, metavar="NAME",
        help="Output for the loss and the metrics. Needed if the model has several outputs and --loss does not name "
        "one.",
    ),
    option(
        "--metric", "metric_names", group=LOSS, multiple=True, metavar="NAME",
        help="Metric to report: accuracy, top<k>, f1, auc, perplexity, mse, rmse or mae. Default: the metrics "
        "that fit the loss. Repeatable.",
    ),
    option(
        "--on-nonfinite", group=LOSS, type=click.Choice(["raise", "skip", "ignore"]), default="raise",
        show_default=True,
        help="If the loss is NaN or infinite: raise stops with an error that names the node that made it; skip skips "
        "the update, also if a gradient is not finite; ignore applies the update anyway.",
    ),
)  # fmt: skip

_OPTIMIZER = (
    option(
        "--optimizer", "optimizer_name", group=OPTIMISATION, metavar="NAME", default=defaults.OPTIMIZER,
        show_default=True,
        help="Optimizer: sgd, adam, adamw, nadam, rmsprop, adagrad, adadelta, ftrl, lars, lamb or lion.",
    ),
    option(
        "--lr", group=OPTIMISATION, type=FloatRange(0),
        help="Learning rate. Default: 0.05 for sgd, otherwise the default of the optimizer.",
    ),
    option(
        "--momentum", group=OPTIMISATION, type=FloatRange(0, 1),
        help="Momentum of sgd, lars and rmsprop. Default: 0.9 for sgd and lars, 0 for rmsprop.",
    ),
    option(
        "--optimizer-option", "optimizer_options", group=OPTIMISATION, multiple=True, metavar="NAME=VALUE",
        help="Further option of the optimizer, such as weight_decay=1e-4. Repeatable.",
    ),
    option(
        "--lr-schedule", group=OPTIMISATION, type=click.Choice(
            ["constant", "step", "exponential", "cosine", "linear", "polynomial", "one-cycle", "plateau"]
        ),
        default="constant", show_default=True,
        help="Learning rate schedule. cosine, linear, polynomial and one-cycle cover all updates of the run, or the "
        "number given by steps. step multiplies the rate by a factor after every N updates, exponential after every "
        "update, and plateau when --monitor stops improving. Set these numbers with --schedule-option.",
    ),
    option(
        "--warmup", group=OPTIMISATION, type=IntRange(1), metavar="N",
        help="Warmup: over the first N updates, the learning rate rises linearly from 1/N of its full value. Then the "
        "schedule begins.",
    ),
    option(
        "--schedule-option", "schedule_options", group=OPTIMISATION, multiple=True, metavar="NAME=VALUE",
        help="Option of the schedule. step: every (number of updates), factor. exponential: factor. cosine and linear: "
        "steps (number of updates), final (last learning rate). polynomial: steps, final, power. one-cycle: steps, "
        "rise (share of the updates in which the rate rises), start_factor (--lr divided by the first rate), "
        "end_factor (the first rate divided by the last). plateau: patience (epochs without improvement), factor, "
        "cooldown (epochs after a reduction that are not counted), lowest (lower limit of the rate, as a share of "
        "--lr), min_delta (smallest improvement). Repeatable.",
    ),
    option(
        "--lr-mult", "lr_mults", group=OPTIMISATION, multiple=True, metavar="PATTERN=X",
        help="Learning rate multiplier of parameters whose names match PATTERN. Repeatable.",
    ),
    option(
        "--wd-mult", "wd_mults", group=OPTIMISATION, multiple=True, metavar="PATTERN=X",
        help="Weight decay multiplier of parameters whose names match PATTERN; 0: no weight decay. Repeatable.",
    ),
    option(
        "--sparse-update", "--lazy", "lazy", group=OPTIMISATION, multiple=True, metavar="PATTERN",
        help="Row-sparse updates for embedding tables whose names match PATTERN: a step updates only the rows that it "
        "reads. Repeatable.",
    ),
    option(
        "--ema", group=OPTIMISATION, type=FloatRange(0, 1, max_open=True), metavar="DECAY",
        help="Decay of an exponential moving average of the parameters. Validation and the saved model use the "
        "average.",
    ),
    option(
        "--clip-norm", group=OPTIMISATION, type=FloatRange(0, min_open=True),
        help="Gradient clipping: maximum global norm of the gradients.",
    ),
    option(
        "--accumulate", group=OPTIMISATION, type=IntRange(1), default=1, show_default=True,
        help="Gradient accumulation: number of batches per update.",
    ),
    option(
        "--seed", group=OPTIMISATION, type=IntRange(0), default=None,
        help="Seed of the data order, dropout, mixup and CutMix. Default: GRAPHKIT_SEED, else 0.",
    ),
    option(
        "--find-lr", group=OPTIMISATION, is_flag=True,
        help="Learning rate range test instead of training: print a suggested rate, and write learning_rates.csv to "
        "the output folder.",
    ),
)  # fmt: skip

_RUN = (
    option(
        "--epochs", group=EPOCHS, type=IntRange(1),
        help="Number of epochs to train. With --resume, it is the length of the whole run, including the epochs "
        f"already trained. Default: {defaults.EPOCHS}; with --resume, the length that the run had.",
    ),
    option(
        "--max-steps", group=EPOCHS, type=IntRange(1), metavar="N",
        help="End after N updates in total, also within an epoch, with a checkpoint of that position. Without "
        "--epochs, the run has as many epochs as needed; with both, it ends at whichever is reached first. With "
        "--resume, all updates of the run count. Default: no limit; with --resume, that of the run, unless --epochs "
        "is given.",
    ),
    option(
        "--fast-dev-run", group=EPOCHS, type=IntRange(1), is_flag=False, flag_value=1, metavar="[N]",
        help="Try the run: train on N batches (1 if N is left out), validate on N batches, and end. Files are written "
        "only if -o or --profile asks for them. Without N, write the option after MODEL.",
    ),
    option(
        "--early-stop", group=EPOCHS, type=IntRange(1), metavar="PATIENCE",
        help="Stop if --monitor has not improved for this number of epochs.",
    ),
    option(
        "--monitor", group=EPOCHS, metavar="NAME", default=defaults.MONITOR, show_default=True,
        help="Quantity that --early-stop, --keep-best and --lr-schedule plateau watch: loss or the name of a "
        "metric; with the prefix valid_, on the validation data.",
    ),
    option(
        "--min-delta", group=EPOCHS, type=FloatRange(0), default=0.0, show_default=True,
        help="For --early-stop: an improvement of --monitor counts only if it is larger than this.",
    ),
    option(
        "--keep-best/--no-keep-best", group=EPOCHS,
        help="Also save the model of the epoch with the best --monitor, as best.json in the output folder.",
    ),
    option(
        "--keep-best-count", group=EPOCHS, type=IntRange(1), default=1, show_default=True, metavar="K",
        help="For --keep-best: also keep the models of the K best epochs, as best-epoch-N.json, if K is above 1.",
    ),
    option(
        "--log-every", group=REPORTING, type=IntRange(0), default=defaults.LOG_EVERY, show_default=True,
        metavar="N", help="Updates between two lines of log.jsonl; 0: only one line per epoch.",
    ),
    option(
        "--tensorboard/--no-tensorboard", group=REPORTING,
        help="Also write event files for TensorBoard, to the folder tensorboard in the output folder. Histograms of "
        "gradients are only available in Python: gk.TensorBoard(gradients=True).",
    ),
    option(
        "--checkpoint-every", group=OUTPUT, type=IntRange(1), metavar="N",
        help="Also write a checkpoint every N updates. One is always written after each epoch.",
    ),
    option(
        "--resume", group=OUTPUT, is_flag=True,
        help="Continue the run in the output folder from its checkpoint. Options that you leave out, including "
        "--processes and --kvstore, keep the values of the run.",
    ),
    partial(trust_option, folder="given as MODEL, or as -o with --resume", names_data=True),
    option("--overwrite", group=OUTPUT, is_flag=True, help="Replace the run in the output folder by a new one."),
    option(
        "--profile", "trace", group=REPORTING, type=click.Path(dir_okay=False), callback=trace_file,
        help="Profile training steps 3 to 12: write a trace for Perfetto or Chrome to this .json file, and print the "
        "time per operator. One trace covers all processes and their communication.",
    ),
    option(
        "--precision", group=PRECISION, type=click.Choice(PRECISIONS), default="f32", show_default=True,
        help="Number format of matrix products and convolutions; parameters stay float32. bf16: bfloat16. Only on a "
        "GPU: f16 (float16, with loss scaling), tf32 (TensorFloat-32), fp8 (bf16, with 8-bit operands of matrix "
        "products).",
    ),
    option(
        "--deterministic/--no-deterministic", group=PRECISION,
        help="Compute bit-identical results for any number of threads. With several processes, gradients are summed in "
        "rank order.",
    ),
)  # fmt: skip

_PARALLEL = (
    option(
        "--sync-batch-norm/--no-sync-batch-norm", group=PROCESSES,
        help="Compute the batch statistics of BatchNormalization over the samples of all processes, with --kvstore "
        "dist_sync.",
    ),
    option(
        "--shard-optimizer/--no-shard-optimizer", group=PROCESSES,
        help="Shard the optimizer states over the processes, with --kvstore dist_sync.",
    ),
    option(
        "--place", "places", group=PROCESSES, multiple=True, metavar="GROUP=RANK",
        help="Model parallelism: compute the nodes of GROUP, built under gk.attr_scope(ctx_group=GROUP), in process "
        "RANK. If values of the forward pass never flow back to a process, the processes form a pipeline. Needs "
        "several processes and --kvstore dist_sync. Give the option once for each group.",
    ),
    option(
        "--micro-batches", group=PROCESSES, type=IntRange(1), default=1, show_default=True,
        help="Number of micro-batches into which a pipeline (--place) splits each batch.",
    ),
)  # fmt: skip


def _all(decorators: tuple[Callable[[Command], Command], ...]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


data_options, network_options, loss_options = _all(_DATA), _all(_NETWORK), _all(_LOSS)
optimizer_options, run_options, parallel_options = _all(_OPTIMIZER), _all(_RUN), _all(_PARALLEL)
