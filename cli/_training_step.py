"""`graphkit grad --training-step`: write the training step of a model, with options of `graphkit train`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from graphkit.cli._groups import STEP_FILE, option
from graphkit.cli._inputs import Batch
from graphkit.cli._options import key_values, opset_option, verify_option
from graphkit.cli._output import log, print_json, print_table
from graphkit.cli.train import command as train_command
from graphkit.errors import UsageError
from graphkit.model import Model

if TYPE_CHECKING:
    from graphkit.train.exported.export import ExportedStep
    from graphkit.train.trainer import Trainer

# The options of `graphkit train` that describe a step.
_OF_TRAIN = (
    "free_batch", "head_options", "head_at", "keep_zeros", "freeze", "train_only", "lora_options", "lora_layers",
    "carries", "batch_norm", "loss_weights", "label_smoothing", "ignore_index", "loss_options", "class_weights",
    "output_name", "on_nonfinite", "optimizer_name", "lr", "momentum", "optimizer_options", "lr_schedule", "warmup",
    "schedule_options", "lr_mults", "wd_mults", "lazy", "ema", "clip_norm", "accumulate",
)  # fmt: skip

# Number of samples of a generated batch.
SAMPLES = 4


def step_options(command: click.Command) -> click.Command:
    """--training-step with its options, which a command gets in this order."""
    own = (
        option(
            "--training-step", group=STEP_FILE, is_flag=True,
            help="Write a whole training step instead (forward, loss, backward, update), with which ONNX Runtime "
            "trains. Beside -o step.onnx, step_init.onnx computes the first states, and step_roles.json describes all "
            "inputs and outputs.",
        ),
        option(
            "--rate-input", group=STEP_FILE, is_flag=True,
            help="The learning rate is an input of the file. Default: the file computes it.",
        ),
        option(
            "--metric", "metrics", group=STEP_FILE, multiple=True, type=click.Choice(["accuracy", "mse", "mae"]),
            help="Metric of the batch that becomes an output of the file. Repeatable.",
        ),
        option(
            "--loss-scaling", group=STEP_FILE, is_flag=True,
            help="Scale the loss before the backward pass, and lower the scale if a gradient is not finite: for "
            "float16.",
        ),
    )  # fmt: skip
    for add in own:
        add(command)
    known = {option.name: option for option in train_command.params}
    for name in _OF_TRAIN:
        shared: Any = copy.copy(known[name])
        shared.group = STEP_FILE
        command.params.append(shared)
    verify_option(
        command, text="With --training-step: take some steps in ONNX Runtime and in graphkit, and compare them.",
        name="check_step",
    )  # fmt: skip
    opset_option(command, what="training step")
    return command


def check_step_options(training_step: bool) -> None:
    """Raise UsageError if options of --training-step are given without it, or options of gradients with it."""
    context = click.get_current_context()

    def given(names: tuple[str, ...]) -> str | None:
        parameters = {p.name: p for p in context.command.params}
        found = next((n for n in names if context.get_parameter_source(n) is ParameterSource.COMMANDLINE), None)
        return None if found is None else parameters[found].opts[0]

    if training_step:
        if flag := given(("of", "wrt", "suffix", "check", "together")):
            raise UsageError(f"{flag} is about gradients, and --training-step writes a step: leave out one of them")
        return
    if flag := given((*_OF_TRAIN, "rate_input", "metrics", "loss_scaling", "opset", "check_step")):
        raise UsageError(f"{flag} only works with --training-step")


def check_files(output: str, model: str) -> None:
    """Raise UsageError if one of the three files cannot be written, or is the file of the model."""
    from graphkit.cli._compression import check_output
    from graphkit.train.exported.export import step_files

    if not output.endswith(".onnx"):
        raise UsageError(f"-o {output}: a training step is an .onnx file; choose a name that ends in .onnx")
    for file in step_files(Path(output)):
        check_output(str(file), model)


def write_step(net: Model, output: str, batch: Batch, o: Mapping[str, Any]) -> int:
    """Write the step, and print what it contains. o: the options of the command by parameter name."""
    from graphkit.train.masks import note_on_zeros

    trainer = _trainer(net, o)
    if note := note_on_zeros(trainer.net, trainer.trained, trainer.masks(), "--keep-zeros '*'"):
        log(note)
    given = _batch(trainer, batch) if o["check_step"] else None
    exported = trainer.to_onnx(
        Path(output), opset=o["opset"], batch=given, rate="input" if o["rate_input"] else "schedule",
        metrics=o["metrics"], loss_scaling=o["loss_scaling"], verify=o["check_step"],
    )  # fmt: skip
    _report(exported, o["as_json"])
    return 0


def _trainer(net: Model, o: Mapping[str, Any]) -> Trainer:
    """Return a Trainer whose step is written."""
    from graphkit.cli.train import objective
    from graphkit.cli.train.network import head_of_data, prepare_network
    from graphkit.train.adapters.settings import from_options
    from graphkit.train.masks import zero_masks
    from graphkit.train.trainer import Trainer

    if head_of_data(o["head_options"]):
        raise UsageError("--head auto takes the number of classes from data: give it, as --head classes=N")
    if o["lr_schedule"] == "plateau" and not o["rate_input"]:
        raise UsageError(
            "--lr-schedule plateau depends on validation, which is not part of a step: feed the rate (--rate-input)"
        )
    if o["class_weights"] == "balanced":
        raise UsageError("--class-weights balanced depends on data: give the weights, as numbers or as a file")
    net, head = prepare_network(net, None, {}, o)
    settings = {**o, "teacher": None, "distill_options": ()}
    loss = objective.loss(net, None, settings)
    lora = from_options(key_values(o["lora_options"], "--lora"), o["lora_layers"], "--lora", "--lora-layers")
    return Trainer(
        net, loss, objective.optimizer(o), output=o["output_name"], freeze=o["freeze"],
        train=o["train_only"] if lora is None else (*o["train_only"], *head), lora=lora, lazy=o["lazy"], ema=o["ema"],
        masks=zero_masks(net, o["keep_zeros"]) if o["keep_zeros"] else None,
        lr_mult=objective.multipliers(o["lr_mults"], "--lr-mult"),
        wd_mult=objective.multipliers(o["wd_mults"], "--wd-mult"),
        loss_weights=objective.multipliers(o["loss_weights"], "--loss-weight", "OUTPUT=X"),
        carry=key_values(o["carries"], "--recurrent-state", "INPUT=OUTPUT"),
        clip_norm=o["clip_norm"], accumulate=o["accumulate"], seed=o["seed"], on_nonfinite=o["on_nonfinite"],
        batch_norm=o["batch_norm"], straight_through=o["straight_through"],
    )  # fmt: skip


def _batch(trainer: Trainer, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs and targets of the comparison."""
    from graphkit.train import losses
    from graphkit.train.exported.export import target_inputs

    by_input = target_inputs(trainer)
    names, targets = list(trainer.net.inputs), list(by_input)
    single = trainer.loss if isinstance(trainer.loss, losses.Loss) else None
    zero_or_one = targets if single is not None and single.probabilities else []
    feeds = batch.arrays(trainer, [*names, *targets], zero_or_one=zero_or_one)
    return {n: feeds[n] for n in names}, {t: feeds[n] for n, t in by_input.items()}


def _report(exported: ExportedStep, as_json: bool) -> None:
    described, report = exported.description, exported.report
    files = [str(file) for file in exported.files]
    if as_json:
        result = {"files": files, "states": len(described["states"]), "inputs": described["inputs"]}
        print_json("grad", result | {"verified": None if report is None else report.as_dict()})
        return
    for file in files:
        log(f"wrote {file}")
    roles: dict[str, int] = {}
    for item in (*described["inputs"], *described["states"]):
        roles[item["role"]] = roles.get(item["role"], 0) + 1
    found = {} if report is None else {r.role: (f"{r.difference:.2e}", f"{r.limit:.0e}") for r in report.roles}
    counts = {"loss": 1} | {r.role: r.count for r in (report.roles if report else ()) if r.role not in {"loss", *roles}}
    rows = [(role, count, *found.get(role, ("", ""))) for role, count in {**counts, **roles}.items()]
    title = "not compared with graphkit" if report is None else f"{report.steps} steps in ONNX Runtime and in graphkit"
    print_table(title, ["role", "count", "relative difference", "limit"], rows)
