"""graphkit build"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from click.core import ParameterSource

from graphkit import config, data, models
from graphkit.cli._groups import option
from graphkit.cli._limits import limit_options
from graphkit.cli._options import (
    data_option,
    json_option,
    key_values,
    read_model,
    source_options,
    tokenizer_option,
    trust_option,
    with_tokenizer,
)
from graphkit.cli._output import log, print_json
from graphkit.data.preprocessing.encoding import CODES, NUMBERS
from graphkit.errors import InputError, UsageError, did_you_mean
from graphkit.model import Model
from graphkit.user_code import function_of, running

# Elements of the default of an option that `--help` shows.
_MOST = 5


class _BuildCommand(click.Command):
    """A command whose `--help` ends with the networks of the zoo and their options."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        networks = [(name, ", ".join(map(_shown, models.options(name)))) for name in models.names()]
        with formatter.section("Networks and their options (-p), with defaults; docs/models.md describes them"):
            formatter.write_dl(networks)


def _shown(option: models.Option) -> str:
    """Return an option of a network with its default, as it is typed after -p. Long lists are cut."""
    value = option.default
    if isinstance(value, tuple):
        parts = [str(part) for part in value]
        text = "x".join(parts) if option.name == "image" else ",".join(parts[:_MOST] + ["..."] * (len(parts) > _MOST))
    else:
        text = str(value).lower() if value is None or isinstance(value, bool) else str(value)
    return f"{option.name}={text}"


def _write_c_runtime(target: str, as_json: bool) -> None:
    """Write the C library to a folder or an archive. Raises UsageError for arguments that build a model."""
    from graphkit.executor.run.c_package import ARCHIVE, write_c_runtime

    context = click.get_current_context()
    for parameter in context.command.params:
        name = str(parameter.name)
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE and name not in ("c_runtime", "as_json"):
            other = parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.human_readable_name
            raise UsageError(f"--c-runtime writes a library, and builds no model: leave out {other}")
    if not target:
        raise UsageError(f"--c-runtime: give the name of a folder, or of an archive FILE{ARCHIVE}")
    if not target.endswith(ARCHIVE) and Path(target).is_file():
        raise UsageError(f"--c-runtime: {target} is a file; give the name of a folder, or of an archive FILE{ARCHIVE}")
    files = [str(path) for path in write_c_runtime(Path(target))]
    if as_json:
        print_json("build", {"files": files})
    for path in files:
        log(f"wrote {path}")


@click.command(cls=_BuildCommand)
@click.argument("model", required=False)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Output file, .json or .onnx. Required.")
@click.option(
    "-p", "--option", "options", multiple=True, metavar="NAME=VALUE",
    help="Option of the network, or argument of FUNCTION, such as layers=50. Repeatable.",
)  # fmt: skip
@option(
    "--data",
    "--dataset",
    "dataset",
    metavar="DATA",
    help="Data set (digits, a folder, a file, ...) that gives the model its sizes: image size, number of inputs and "
    "classes, vocabulary, columns of a table, users and items.",
)
@data_option
@partial(tokenizer_option, default="a vocabulary of the words or characters in DATA")
@partial(trust_option, folder="given as --weights", expose=False)
@click.option(
    "--weights", metavar="MODEL",
    help="Copy parameters of the same names from this model: a .json or .onnx file, or a run folder.",
)  # fmt: skip
@click.option("--seed", type=int, default=None, help="Seed of the initial values. Default: GRAPHKIT_SEED, else 0.")
@click.option(
    "--c-runtime", type=click.Path(), metavar="FOLDER",
    help="Instead of building a model: write libgraphkit.so, its headers, the library of oneDNN, and files for "
    "pkg-config and CMake to FOLDER, or to an archive FILE.tar.gz. Programs in C run .gkp files with them; see "
    "graphkit export.",
)  # fmt: skip
@limit_options
@json_option
def command(
    model: str | None, output: str | None, options: tuple[str, ...], dataset: str | None,
    data_options: tuple[str, ...], tokenizer: str | None, weights: str | None, seed: int | None,
    c_runtime: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Build MODEL and write it to a file. MODEL is the name of a network of the zoo, or FILE.py:FUNCTION, a function
    that returns a gk.Model. `graphkit build --help` ends with a list of the networks and their options.

    \b
    graphkit build lenet --data digits -o net.json
    graphkit build lenet --data photos/ --data-option size=64 -o net.json
    graphkit build resnet -p layers=50 -p classes=10 -o net.onnx
    graphkit build text_classifier --data sentences:reviews/ --data-option min_count=2 -o net.json
    graphkit build transformer_lm --data text:book.txt --tokenizer tokenizer.json -o net.json
    graphkit build seq2seq -p decode=20 --weights run/ -o translate.onnx
    graphkit build mynet.py:make -p width=64 -o net.json
    graphkit build --c-runtime graphkit-c.tar.gz
    """
    if c_runtime is not None:
        _write_c_runtime(c_runtime, as_json)
        return
    if model is None:
        raise UsageError("give the name of a network, or FILE.py:FUNCTION; graphkit build --help lists the networks")
    if output is None:
        raise UsageError("give the name of the output file: -o net.json")
    if dataset is None and tokenizer is not None:
        raise UsageError("--tokenizer determines the vocabulary of texts: also give them (--data)")
    train = None
    if dataset is not None:
        train = data.load(dataset, **with_tokenizer(source_options(data_options), dataset, tokenizer)).train
    built = build_model(model, key_values(options, "--option"), train, seed)
    if weights is not None:
        built = with_weights(built, read_model(weights), weights)
    built.save(Path(output))
    if as_json:
        print_json(
            "build",
            {"model": built.name, "file": output, "parameters": built.num_parameters, "nodes": len(built.graph.nodes)},
        )
    else:
        log(f"wrote {output}: {built!r}")


def build_model(name: str, options: dict[str, str], train: data.Dataset | None, seed: int | None) -> Model:
    """Build a model.

    The names of classes, and the vocabulary of text, are stored in the model's metadata.

    Args:
        name: Of a model in the zoo, or FILE.py:FUNCTION.
        options: Options of the model as text. They override those from the data set.
        train: Data set that gives the model its sizes.
        seed: Of the initial values. None: GRAPHKIT_SEED.
    """
    path, separator, attribute = name.rpartition(":")
    if not separator and name.endswith(".py"):
        raise UsageError(f"{name} is a Python file: also name the function that builds the model: {name}:FUNCTION")
    function = function_of(path, attribute) if separator else models.find(name)
    known = inspect.signature(function).parameters
    chosen: dict[str, Any] = {}
    if train is not None:
        chosen = {k: v for k, v in _facts(train).items() if k in known and v is not None}
    for key, text in options.items():
        if key not in known:
            raise UsageError(f"network {name!r} has no option {key!r}{did_you_mean(key, known, most=len(known))}")
        chosen[key] = models.Option(key, None, _kind(known[key])).parse(text)
    missing = [k for k, p in known.items() if p.default is p.empty and k not in chosen]
    if missing:
        raise UsageError(
            f"model {name!r} has no default for {', '.join(missing)}; add {' '.join(f'-p {k}=...' for k in missing)}"
        )
    try:
        with running(path) if separator else contextlib.nullcontext(), _seeded(seed):
            built = function(**chosen)
    except UsageError as error:
        measured = [f"{k}={v}" for k, v in chosen.items() if k not in options and k in str(error)]
        if separator or train is None or not measured:
            raise
        raise UsageError(f"{error}. From the data {train.name}: {', '.join(measured)}") from None
    if not isinstance(built, Model):
        raise UsageError(f"{name} returned {type(built).__name__}; expected a gk.Model")
    return built if train is None else data.described(built, train)


def _facts(train: data.Dataset) -> dict[str, Any]:
    """Return the options of models in the zoo that a data set determines, by name."""
    facts: dict[str, Any] = {
        "image": train.shape,
        "inputs": train.shape[0] if len(train.shape) == 1 else train.shape,
        "classes": _outputs(train),
        "vocab": None if train.vocabulary is None else len(train.vocabulary),
    }
    if train.encoding is not None and CODES in train.arrays:
        numbers = train.arrays.get(NUMBERS)
        facts |= {"numbers": 0 if numbers is None else numbers.shape[1], "sizes": train.encoding.sizes}
    if isinstance(train, data.Ratings):
        facts |= {"users": len(train.users), "items": len(train.items)}
    return facts


def _outputs(train: data.Dataset) -> int | None:
    """Return the number of outputs per sample: the number of classes, or of numbers in a floating-point target."""
    if train.num_classes is not None or train.targets is None:
        return train.num_classes
    return int(np.prod(train.targets.shape[1:])) if train.targets.ndim <= 2 else None


def _kind(parameter: inspect.Parameter) -> str:
    """Return the type of an option: its annotation, else the type of its default, else str."""
    if parameter.annotation is not parameter.empty:
        kind = parameter.annotation
    else:
        kind = str if parameter.default in (parameter.empty, None) else type(parameter.default)
    if kind is tuple:
        return "tuple[int, ...]"
    return kind if isinstance(kind, str) else inspect.formatannotation(kind)


def with_weights(model: Model, source: Model, path: str) -> Model:
    """Return the model with the parameters of the same names in `source`, read from `path`, and its metadata.

    LoRA adapters of `source` are merged into its weights.

    Raises InputError for shapes that differ, UsageError if no name is the same.
    """
    from graphkit.train.adapter_marks import has_adapters

    if has_adapters(source.graph):
        from graphkit.train.adapters.merge import merge_lora

        source = merge_lora(source)
    shared = [name for name in model.params if name in source.params]
    if not shared:
        raise UsageError(
            f"--weights {path}: {source.name} and {model.name} have no parameter name in common; {model.name} has "
            f"{', '.join(list(model.params)[:5])}, ..."
        )
    for name in shared:
        try:
            model.params[name] = source.params.entry(name)
        except InputError as error:
            raise InputError(f"--weights {path}: {error}; build {model.name} with the same options") from None
    if unused := [name for name in source.params if name not in model.params]:
        log(f"not in {model.name}, so these parameters of {source.name} are not used: {', '.join(unused)}")
    if missing := [name for name in model.params if name not in source.params]:
        log(f"not in {source.name}, so these parameters keep their initial values: {', '.join(missing)}")
    return Model.from_graph(model.graph, model.params.entries(), meta={**source.meta, **model.meta})


@contextlib.contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Initialise models that are built inside from `seed`. None: from GRAPHKIT_SEED."""
    before = os.environ.get(config.SEED.name)
    if seed is not None:
        os.environ[config.SEED.name] = str(seed)
    try:
        yield
    finally:
        if before is not None:
            os.environ[config.SEED.name] = before
        elif seed is not None:
            os.environ.pop(config.SEED.name, None)
