"""graphkit build"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

import click

from graphkit import data, models
from graphkit.cli._options import json_option, key_values
from graphkit.cli._output import log, print_json
from graphkit.errors import UsageError, did_you_mean
from graphkit.model import Model


@click.command()
@click.argument("model")
@click.option("-o", "--output", type=click.Path(dir_okay=False), required=True, help="File to write: .json or .onnx.")
@click.option("-p", "--option", "options", multiple=True, metavar="NAME=VALUE", help="An option of the model; repeat.")
@click.option("--dataset", help="Take image size, inputs and classes from a data set (digits, a folder, a file).")
@click.option("--seed", type=int, default=None, help="Seed of the initialisers.")
@json_option
def command(
    model: str, output: str, options: tuple[str, ...], dataset: str | None, seed: int | None, as_json: bool
) -> None:
    """Write MODEL: a name of the zoo (`mlp`, `lenet`, `resnet`, ...), or FILE.py:FUNCTION, which returns a gk.Model.

    \b
    graphkit build lenet --dataset digits -o net.json
    graphkit build resnet -p layers=50 -p classes=10 -o net.onnx
    graphkit build mynet.py:make -p width=64 -o net.json
    """
    built = build_model(model, key_values(options, "--option"), dataset, seed)
    built.save(Path(output))
    if as_json:
        print_json(
            "build",
            {"model": built.name, "file": output, "parameters": built.num_parameters, "nodes": len(built.graph.nodes)},
        )
    else:
        log(f"wrote {output}: {built!r}")


def build_model(name: str, options: dict[str, str], dataset: str | None, seed: int | None) -> Model:
    """The model, with options from the data set first and from texts after; seed: of the initialisers."""
    path, separator, attribute = name.rpartition(":")
    function = _function(path, attribute) if separator else models.find(name)
    known = inspect.signature(function).parameters
    chosen: dict[str, Any] = {}
    if dataset is not None:
        train = data.load(dataset).train
        inputs = train.shape if len(train.shape) > 1 else train.shape[0]
        facts = {"image": train.shape, "inputs": inputs, "classes": train.num_classes}
        chosen = {k: v for k, v in facts.items() if k in known and v is not None}
    for key, text in options.items():
        if key not in known:
            raise UsageError(f"model {name!r} has no option {key!r}{did_you_mean(key, known)}")
        kind = known[key].annotation
        kind = kind if isinstance(kind, str) else inspect.formatannotation(kind)
        chosen[key] = models.Option(key, None, kind).parse(text)
    missing = [k for k, p in known.items() if p.default is p.empty and k not in chosen]
    if missing:
        raise UsageError(f"model {name!r} needs {', '.join(f'-p {k}=...' for k in missing)}")
    built = function(**chosen)
    if not isinstance(built, Model):
        raise UsageError(f"{name} returned a {type(built).__name__}, not a gk.Model")
    return built if seed is None else Model.from_graph(built.graph, {}, seed=seed)


def _function(path: str, attribute: str) -> Any:
    if not Path(path).is_file():
        raise UsageError(f"there is no file {path!r}")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Annotations and dataclasses look their module up there.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    function = getattr(module, attribute, None)
    if not callable(function):
        raise UsageError(f"{path} has no function {attribute!r}{did_you_mean(attribute, vars(module))}")
    return function
