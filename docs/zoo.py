"""Write docs/models/NAME.md: a page for each network of gk.models with its inputs, outputs, options and costs.

python docs/zoo.py                  write all pages
python docs/zoo.py lenet resnet     write these pages
python docs/zoo.py --times          measure times too, and store them in times.json
python docs/zoo.py --check          list pages that are out of date; exit code 1 if there are any

Sizes are computed from the code, so the pages do not depend on the machine. Times are read from times.json.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markup import code, prose, table

import graphkit as gk
from graphkit import config
from graphkit.checks import timing
from graphkit.checks.inputs import concrete_shapes, make_feeds
from graphkit.executor.devices import cpu
from graphkit.ir.dims import evaluate
from graphkit.models.ssd import multibox_loss
from graphkit.models.vae import negative_elbo
from graphkit.ops.cost import costs
from graphkit.passes.control.specialise import specialise_subgraphs
from graphkit.passes.core.bind import bind
from graphkit.text import human, si
from graphkit.train.programs.step import LEARNING_RATE

FOLDER = Path(__file__).resolve().parent / "models"
TIMES = FOLDER / "times.json"

Options = Mapping[str, Any]
Shapes = dict[str, tuple[int, ...]]

# Lengths of sequences, by the name of the symbolic dimension.
STEPS: dict[str, dict[str, int]] = {
    "bert": {"T": 128},
    "lstm_lm": {"T": 35},
    "seq2seq": {"S": 30, "T": 30},
    "text_classifier": {"T": 50},
    "text_cnn": {"T": 50},
    "transformer_lm": {"T": 128},
}
# Batch sizes of a training step; 32 for networks that are not listed.
BATCHES = {"bert": 8, "dlrm": 128, "lstm_lm": 20, "ncf": 256, "ssd": 4, "unet": 4, "vgg": 16, "vit": 8}
# Networks whose training step takes too long to measure: minutes.
UNTIMED = {"bert", "ssd", "unet", "vgg", "vit"}
# Losses; softmax cross entropy for networks that are not listed. None: the step of examples/gan has its own.
LOSSES: dict[str, str | None] = {
    "dlrm": "sigmoid_binary_cross_entropy",
    "dqn": "huber",
    "gan": None,
    "matrix_factorization": "mse",
    "ncf": "sigmoid_binary_cross_entropy",
    "ssd": "multibox_loss",
    "unet": "softmax_cross_entropy_loss",
    "vae": "negative_elbo",
    "wide_and_deep": "sigmoid_binary_cross_entropy",
}
# Variants that get a row of their own in the table of sizes.
FORMS: dict[str, list[dict[str, Any]]] = {
    "densenet": [{"layers": n} for n in (161, 169, 201)],
    "dqn": [{"dueling": True}],
    "gan": [{"part": "discriminator"}],
    "googlenet": [{"batch_norm": False}],
    "mobilenetv3": [{"size": "small"}],
    "resnet": [{"layers": n} for n in (18, 34, 101, 152)] + [{"preactivation": True}],
    "seq2seq": [{"decode": 30}, {"decode": 30, "beam": 4}],
    "text_classifier": [{"pooling": "last"}],
    "unet": [{"batch_norm": True}],
    "vgg": [{"layers": n} for n in (11, 13, 19)],
    "vit": [{"size": n} for n in ("tiny", "small", "large")],
}


# --- sizes ------------------------------------------------------------------------------------------


def shapes_of(name: str, net: gk.Model, batch: int) -> Shapes:
    """Return the shapes of the inputs for a batch size, with the sequence lengths of STEPS."""
    sizes = {"N": batch, **STEPS.get(name, {})}
    return {key: tuple(sizes.get(str(d), d) for d in kind.shape) for key, kind in net.input_types.items()}


def trainer_of(name: str, net: gk.Model, **options: Any) -> gk.Trainer | None:
    """Return a trainer with the loss of the network, or None for two networks that train each other."""
    loss: Any = LOSSES.get(name, "softmax_cross_entropy")
    if loss is None:
        return None
    targets = None
    if name == "vae":
        loss, targets = negative_elbo, {"target": net.input_types["x"]}
    elif name == "ssd":
        boxes = net.output_types["logits"].shape[1]
        classes, offsets = gk.TensorType("int64", ["N", boxes]), gk.TensorType("float32", ["N", boxes, 4])
        loss, targets = multibox_loss, {"target_classes": classes, "target_offsets": offsets}
    elif name == "unet":
        loss = lambda logits, target: gk.softmax_cross_entropy_loss(logits, target)[0]  # noqa: E731
        targets = {"target": gk.TensorType("int64", ["N", *net.output_types["logits"].shape[2:]])}
    # The rate is so small that measuring hardly changes the parameters.
    return gk.Trainer(net, loss, gk.optim.Adam(1e-6), targets=targets, **options)


class Size(NamedTuple):
    """Costs of one variant of a network. `inference` and `training` are peak bytes of live activations."""

    parameters: int
    flops: str
    inference: int
    training: int | None


def size_of(name: str, options: Options, batch: int) -> Size:
    """Return FLOPs and activations of inference with one sample, and activations of a training step with `batch`."""
    net = gk.models.build(name, **options)
    one = shapes_of(name, net, 1)
    sized, _ = specialise_subgraphs(bind(net.graph, one))
    found = costs(sized)
    flops = si(evaluate(found.total.flops, {}))
    if found.open_loops:
        flops += " with one token"
    inference = net.compile(shapes=one, threads=1).plan.activation_bytes
    # Networks that generate sequences themselves are not trained.
    trainer = None if options.get("decode") else trainer_of(name, net, threads=1)
    training = None
    if trainer is not None:
        given, _ = concrete_shapes(trainer, shapes_of(name, net, batch), batch)
        training = trainer.plan(given).activation_bytes
    return Size(net.num_parameters, flops, inference, training)


# --- times ------------------------------------------------------------------------------------------


def milliseconds(call: Any) -> float:
    """Return the median time of runs within two seconds, after two warm-up runs."""
    call()
    call()
    return 1e3 * timing.summarise(timing.interleave({"run": call}, 10, seconds=0.2)["run"]).p50


def measured(name: str) -> dict[str, Any]:
    """Return milliseconds of a run with one sample, and of a training step with the batch size of BATCHES."""
    net = gk.models.build(name)
    executor = net.compile()
    feeds = make_feeds(net, shapes=shapes_of(name, net, 1)).arrays
    times: dict[str, Any] = {"inference": milliseconds(lambda: executor.run(feeds))}
    batch = BATCHES.get(name, 32)
    if name in UNTIMED or (trainer := trainer_of(name, net)) is None:
        return times
    given, _ = concrete_shapes(trainer, shapes_of(name, net, batch), batch)
    arrays = make_feeds(trainer, shapes=given).arrays
    inputs = {key: arrays[key] for key in net.inputs}
    targets = {key: array for key, array in arrays.items() if key not in inputs and key != LEARNING_RATE}
    if LOSSES.get(name) == "sigmoid_binary_cross_entropy":
        targets = {key: (array > 0).astype(array.dtype) for key, array in targets.items()}
    times["training"] = milliseconds(lambda: float(trainer.step(inputs, targets)))
    return times


def machine() -> str:
    """Describe the machine and versions that times depend on."""
    facts = cpu.describe()
    features = [f for f in facts["cpu features"].split(", ") if f in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16")]
    kind = f"{platform.machine()} ({', '.join(features)})" if features else platform.machine()
    threads = config.num_threads()
    return (
        f"{kind}, {threads} thread{'s' * (threads > 1)}, Python {platform.python_version()}, "
        f"graphkit {gk.__version__}, oneDNN {facts['oneDNN'].split()[0]}"
    )


# --- the page ---------------------------------------------------------------------------------------


def source_of(name: str) -> str:
    """Return the first paragraph of the network's module: its name and its paper."""
    text = importlib.import_module(gk.models.find(name).__module__).__doc__ or ""
    return text.split("\n\n")[0]


def shown(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return code(text.lower() if isinstance(value, bool) or value is None else text)


def sizes(name: str, batch: int) -> Iterator[tuple[str, ...]]:
    for options in ({}, *FORMS.get(name, ())):
        size = size_of(name, options, batch)
        label = ", ".join(f"`{k}={str(v).lower() if isinstance(v, bool) else v}`" for k, v in options.items())
        training = "" if size.training is None else human(size.training)
        yield label or "defaults", f"{size.parameters:,}", size.flops, human(size.inference), training


def _ms(time: float) -> str:
    """Return milliseconds with three digits."""
    return f"{time:,.0f} ms" if time >= 100 else f"{time:.3g} ms"


def times_of(name: str, batch: int, record: Mapping[str, Any]) -> Iterator[str]:
    found = record.get("networks", {}).get(name)
    if found is None:
        return
    rows = [("a run with 1 sample", _ms(found["inference"]))]
    if "training" in found:
        per_second = 1e3 * batch / found["training"]
        text = f"{_ms(found['training'])} ({per_second:,.0f} samples a second)"
        rows.append((f"a training step with {batch} samples", text))
    yield "## Time"
    yield table(("", "median"), rows)
    yield f"Measured on {found['machine']}."


# A paragraph of a network's documentation that belongs to a section of its page begins with one of these words.
_LABEL = re.compile(r"(Inputs|Outputs|Inputs and outputs|Options|Parameters): ")

_SIZE = """\
FLOPs are for one sample{steps}: two for each multiply-add of matrix products, convolutions and recurrent layers.
Activations are the planned peak memory of intermediate values, without outputs. Inference has one sample.{training}"""
_TRAINING = """
Training has a batch of {batch}, `{loss}` and Adam.
Parameters, and two optimizer states for each, need additional memory."""


def description(name: str) -> dict[str, list[str]]:
    """Return the paragraphs of a network's documentation as Markdown, by label; "" for those without one."""
    found: dict[str, list[str]] = {}
    for paragraph in gk.models.describe(name).split("\n\n"):
        label = _LABEL.match(paragraph)
        text = paragraph[label.end() :] if label else paragraph
        found.setdefault(label[1] if label else "", []).append(prose(text))
    return found


def page(name: str, record: Mapping[str, Any]) -> str:
    """Return the page of one network. `record` is the content of times.json."""
    net = gk.models.build(name)
    batch = BATCHES.get(name, 32)
    ends = [("input", net.input_types), ("output", net.output_types)]
    steps = "".join(f", {k} = {v}" for k, v in STEPS.get(name, {}).items())
    loss = LOSSES.get(name, "softmax_cross_entropy")
    training = "" if loss is None else _TRAINING.format(batch=batch, loss=loss)
    texts = description(name)
    options = [(code(o.name), code(o.type), shown(o.default)) for o in gk.models.options(name)]
    blocks = [
        f"# {name}",
        prose(source_of(name)),
        *texts.get("", ()),
        f"```sh\ngraphkit build {name} -o {name}.onnx\n```",
        "## Options",
        table(("option", "type", "default"), options),
        *texts.get("Options", ()),
        "## Inputs and outputs",
        table(("", "name", "type"), [(kind, code(n), code(str(t))) for kind, types in ends for n, t in types.items()]),
        *(text for label in ("Inputs", "Outputs", "Inputs and outputs") for text in texts.get(label, ())),
        "## Size",
        _SIZE.format(steps=steps, training=training),
        table(("", "parameters", "FLOPs", "activations, inference", "activations, training"), sizes(name, batch)),
        *(f"Parameters: {text}" for text in texts.get("Parameters", ())),
        *times_of(name, batch, record),
        "See [all networks](../models.md). `python docs/zoo.py` writes this page, and a test checks it.",
    ]
    return "\n\n".join(blocks) + "\n"


def recorded() -> dict[str, Any]:
    return json.loads(TIMES.read_text("utf-8")) if TIMES.exists() else {"networks": {}}


def stale(names: Sequence[str]) -> list[str]:
    """Return the networks whose pages are out of date."""
    record = recorded()
    paths = {name: FOLDER / f"{name}.md" for name in names}
    return [n for n, path in paths.items() if not path.exists() or path.read_text("utf-8") != page(n, record)]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="networks (default: all)")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help="list pages that are out of date, and write nothing")
    action.add_argument("--times", action="store_true", help="measure times too")
    chosen = parser.parse_args(arguments)
    names = chosen.names or gk.models.names()
    if chosen.check:
        found = stale(names)
        sys.stderr.writelines(f"docs/models/{name}.md is out of date: python docs/zoo.py {name}\n" for name in found)
        return 1 if found else 0
    record = recorded()
    FOLDER.mkdir(exist_ok=True)
    for name in names:
        if chosen.times:
            record["networks"][name] = measured(name) | {"machine": machine()}
            TIMES.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", "utf-8")
        (FOLDER / f"{name}.md").write_text(page(name, record), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
