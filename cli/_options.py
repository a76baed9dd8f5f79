"""Options that several commands share."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from graphkit import config, models
from graphkit.cli._groups import COMPARISON, DATA, IMAGES, INPUTS, LIMITS, NETWORK, OUTPUT, PRECISION, REPORTING, option
from graphkit.cli._meta import MXNET_PARAMETERS
from graphkit.cli._output import log
from graphkit.cli._ranges import FloatRange, IntRange
from graphkit.errors import UsageError, did_you_mean
from graphkit.loading import is_mxnet, load
from graphkit.model import Model

# Engines, by the names that options and functions take.
ENGINES = ("graphkit", "onnxruntime")

# NAME:SIZES, with numbers; and with names for sizes that vary.
_SHAPE = re.compile(r"(?P<name>.+):(?P<sizes>\d*(,\d+)*)", re.ASCII)
_SYMBOLIC_SHAPE = re.compile(r"(?P<name>.+):(?P<sizes>\w*(,\w+)*)", re.ASCII)

# In the context of a command, whether --trust-run-folder is given.
_TRUSTED = "graphkit.trust_run_folder"
# There too: the shapes of --shape, by input name.
_SHAPES = "graphkit.model_shapes"
# There too: the name given as --preprocessing.
_PREPROCESSING = "graphkit.preprocessing"
# The names that --preprocessing takes: those of `graphkit.data.preprocessing.families`, which imports much more.
_FAMILIES = ("gluoncv", "gluoncv-detection", "insightface", "mxnet-imagenet", "raw")


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return option(
        "--json", "as_json", group=REPORTING, is_flag=True, help="Print the result, or the error, as JSON on stdout."
    )(command)


def check_needed(needed: str, is_given: bool, names: Sequence[str]) -> None:
    """Raise UsageError if the command line has an option, but not the one that it needs.

    Args:
        needed: The option that is needed.
        is_given: Whether it is given.
        names: Parameter names of the options that need it.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in names and not is_given and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"{parameter.opts[0]} only works with {needed}")


def _permitted(ctx: click.Context, parameter: click.Parameter, threads: int | None) -> int | None:
    return None if threads is None else config.num_threads(threads)


def trace_file(ctx: click.Context, parameter: click.Parameter, path: str | None) -> str | None:
    """Return the path given as --profile. Raises UsageError if it does not end in .json."""
    if path is not None and not path.endswith(".json"):
        raise UsageError(f"--profile {path}: the name of the file must end in .json")
    return path


def page_file(ctx: click.Context, parameter: click.Parameter, path: str | None) -> str | None:
    """Return the path given as --html. Raises UsageError if it does not end in .html, or its folder does not exist."""
    if path is not None and not path.endswith((".html", ".htm")):
        raise UsageError(f"--html {path}: the name of the file must end in .html")
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise UsageError(f"--html {path}: there is no folder {Path(path).parent}")
    return path


def threads_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return option(
        "--threads", group=PRECISION, type=IntRange(1), callback=_permitted,
        help="Number of CPU threads. Default: GRAPHKIT_NUM_THREADS, else one per core that the process may use.",
    )(command)  # fmt: skip


def device_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = threads_option(command)
    return option(
        "--device", group=PRECISION, default="cpu", show_default=True, metavar="DEVICE | GROUP=DEVICE,...",
        help="Device: cpu, cuda (a GPU; each process of a host uses its own) or cuda:1 (the second GPU). "
        "a=cuda:0,b=cuda:1,cpu puts the nodes of groups a and b, built under gk.attr_scope(ctx_group=...), on their "
        "own GPUs, all other nodes on the CPU.",
    )(command)  # fmt: skip


def _backends(ctx: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> Any:
    if not names:
        return ()
    from graphkit.backend import resolve

    return resolve([_imported(name) for name in names])


def _imported(backend: str) -> str:
    """Execute the file of FILE.py:NAME, which registers the backend, and return the name. A NAME is returned as it is.

    Raises UsageError if the file does not exist or does not register the backend.
    """
    path, _, name = backend.rpartition(":")
    if backend.endswith(".py"):
        raise UsageError(f"--backend {backend}: also give the name of the backend that it registers: {backend}:NAME")
    if not path.endswith(".py"):
        return backend
    from graphkit.backend import names
    from graphkit.user_code import module_of

    before = names()
    module_of(path)
    if name not in names():
        registered = [each for each in names() if each not in before]
        raise UsageError(
            f"--backend {backend}: {path} registers no backend {name!r}{did_you_mean(name, registered)}; call "
            f"gk.backend.register({name!r}, ...) in it"
        )
    return name


def backend_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return option(
        "--backend", "backends", group=PRECISION, multiple=True, metavar="NAME | FILE.py:NAME",
        callback=_backends,
        help="Another engine, such as onnxruntime, which computes the parts of the model that it supports. "
        "FILE.py:NAME is a backend that a Python file registers with gk.backend.register; the file is executed. "
        "Repeatable: the first one chooses its nodes first.",
    )(command)  # fmt: skip


def log_backends(executor: Any, backends: Any) -> None:
    """Print how many nodes of an executor the backends get, if there are any."""
    if backends:
        from graphkit.backend.registry import summary

        log(f"backends: {summary(executor)}")


def device_of(text: str) -> str | dict[str | None, str]:
    """Parse `--device`.

    Returns:
        The name of a device, or a dict of device names by group of nodes; its key None is for nodes without a group.

    Raises:
        UsageError: There are two devices without a group, or the text is malformed.
    """
    parts = text.split(",")
    if len(parts) == 1 and "=" not in text:
        return text
    alone = [part for part in parts if "=" not in part]
    if len(alone) > 1:
        raise UsageError(
            f"--device {text!r}: only one device may have no group, but {' and '.join(alone)} have none; write "
            "GROUP=DEVICE"
        )
    default: dict[str | None, str] = {None: alone[0]} if alone else {}
    return default | dict(key_values(tuple(part for part in parts if "=" in part), "--device").items())


class Recompute(click.ParamType):
    """`sqrt`, or an amount of memory."""

    name = "sqrt|MEMORY"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        if value == "sqrt" or isinstance(value, int):
            return value
        size = config.memory_size(value)
        if size is None:
            self.fail(f"{value!r} is neither sqrt nor an amount of memory such as 500MB", param, ctx)
        return size


def memory_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--recompute and --swap-memory, which reduce the memory of a training step."""
    command = option(
        "--swap-memory", group=PRECISION, is_flag=True,
        help="On a GPU: offload activations to host memory until the backward pass needs them. Without effect on the "
        "CPU.",
    )(command)  # fmt: skip
    return option(
        "--recompute", group=PRECISION, type=Recompute(), metavar="sqrt | MEMORY",
        help="Activation checkpointing: recompute activations in the backward pass instead of storing them. sqrt: "
        "recompute most of them; an amount such as 500MB: recompute until activations fit into it.",
    )(command)  # fmt: skip


def input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = option(
        "--seed", group=INPUTS, type=int, default=0, show_default=True, help="Seed of inputs that are filled at random."
    )(command)
    command = option(
        "--fill", group=INPUTS, type=click.Choice(["random", "ones", "zeros", "arange"]), default="random",
        show_default=True, help="Values of inputs that are not read from a file.",
    )(command)  # fmt: skip
    return click.argument("inputs", nargs=-1, metavar="[NAME:SHAPE | NAME=FILE | IMAGE]...")(command)


def tolerance_options(command: Callable[..., Any], *, where: str = "") -> Callable[..., Any]:
    """--rtol and --atol. where: the beginning of their help, such as "With --run: "."""
    for name, title, default in (("--atol", "absolute", "1e-5"), ("--rtol", "relative", "1e-4")):
        help_text = f"{where}{title} tolerance. Default: by element type, {default} for float32."
        command = option(
            name, group=COMPARISON, type=FloatRange(min=0), default=None, help=help_text[0].upper() + help_text[1:]
        )(command)
    return command


def verify_option(command: Callable[..., Any], *, text: str, name: str = "check") -> Callable[..., Any]:
    """--verify/--no-verify. text: what the verification does. name: of the parameter."""
    return option(
        "--verify/--no-verify", name, group=COMPARISON, default=True, show_default=True, help=text
    )(command)  # fmt: skip


def opset_option(command: Callable[..., Any], *, what: str) -> Callable[..., Any]:
    """--opset of a written file. what: the thing whose operators decide."""
    return option(
        "--opset", group=OUTPUT, type=int, default=None,
        help=f"Opset of the .onnx file, 13 or newer. Default: 21, or the first later one that has all operators of the "
        f"{what}.",
    )(command)  # fmt: skip


def engine_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--engine: what runs the model."""
    return option(
        "--engine", group=PRECISION, type=click.Choice(ENGINES), default=ENGINES[0], show_default=True,
        help="Engine that runs the model. onnxruntime runs an .onnx file as it is; any other MODEL is exported first.",
    )(command)  # fmt: skip


def shape_option(command: Callable[..., Any], *, text: str) -> Callable[..., Any]:
    """--shape, as `shapes`. text: what the shape of an input is for."""
    return option(
        "--shape", "shapes", group=NETWORK, multiple=True, metavar="NAME:SIZES", help=f"{text} Repeatable."
    )(command)  # fmt: skip


def shapes_of(texts: Sequence[str], *, symbols: bool = False) -> dict[str, tuple[Any, ...]]:
    """Parse `--shape`. Raises UsageError for a malformed text, and for a name that is given twice.

    symbols: whether a size may be a name, for a size that varies.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        match = (_SYMBOLIC_SHAPE if symbols else _SHAPE).fullmatch(text)
        if match is None or (symbols and not match["sizes"]):
            raise UsageError(f"--shape {text!r}: expected NAME:SIZES, such as x:1,3,224,224")
        if match["name"] in found:
            raise UsageError(f"--shape {match['name']} is given twice; give it once")
        sizes = [size for size in match["sizes"].split(",") if size]
        found[match["name"]] = tuple(int(size) if size.isdecimal() else size for size in sizes)
    return found


# --batch-axis, as `batch_axes`.
batch_axis_option = option(
    "--batch-axis", "batch_axes", group=DATA, multiple=True, metavar="INPUT=AXIS",
    help="AXIS is the batch dimension of INPUT, if that is not 0. INPUT=none: INPUT has no batch dimension. Only for "
    ".npz files. Repeatable.",
)  # fmt: skip

# --part of the data that an evaluation uses.
part_option = option(
    "--part", group=DATA, type=click.Choice(["all", "train", "test"]),
    help="Part of the data for the evaluation. Default: the test part if the data have one, otherwise all samples.",
)  # fmt: skip


def tokenizer_option(command: Callable[..., Any], default: str = "the vocabulary in the model's metadata") -> Any:
    """--tokenizer, a path or None: see `with_tokenizer`. default: what is used without the option, for the help."""
    return option(
        "--tokenizer", group=DATA, type=click.Path(dir_okay=False), metavar="FILE",
        help="How texts become numbers of tokens: a Hugging Face tokenizer.json (needs the package tokenizers), or the "
        f"vocabulary.json of a run folder. Default: {default}.",
    )(command)  # fmt: skip


def external_root_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return option(
        "--allow-external-root", "external_root", group=LIMITS, type=click.Path(exists=True, file_okay=False),
        default=None,
        help="Another folder from which an ONNX file may read external data. Default: only the folder of the file.",
    )(command)  # fmt: skip


def model_file_options(command: Callable[..., Any], *, shapes: bool = True) -> Callable[..., Any]:
    """Options for `read_model`: --shape, and which other files a command may read.

    shapes: whether to add --shape. A command with its own --shape calls `set_model_shapes`.
    """
    command = external_root_option(trust_option(command, folder="given as MODEL", expose=False))
    return model_shape_option(command) if shapes else command


def preprocessing_option(command: Callable[..., Any], *, expose: bool = False) -> Callable[..., Any]:
    """--preprocessing, which `read_model` writes into the metadata. expose: whether the command gets the option."""
    return option(
        "--preprocessing", group=IMAGES, type=click.Choice(_FAMILIES), expose_value=expose, callback=_with_family,
        help="How images become inputs of MODEL, by the library that it comes from: see with_preprocessing in the "
        "documentation of gk.data. Default: the model's metadata.",
    )(command)  # fmt: skip


def _with_family(ctx: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    ctx.meta[_PREPROCESSING] = name
    return name


def model_shape_option(command: Callable[..., Any], *, expose: bool = False) -> Callable[..., Any]:
    """--shape for the inputs of MXNet's models, which `read_model` uses. expose: whether the command gets `shape`."""
    return option(
        "--shape", group=NETWORK, multiple=True, metavar="NAME:SIZES", expose_value=expose, callback=_with_shapes,
        help="For a model of MXNet: the shape of an input, such as data:N,3,224,224. A name stands for a size that "
        "varies. Default: what the operators that read the input require. Repeatable.",
    )(command)  # fmt: skip


def _with_shapes(ctx: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    set_model_shapes(ctx, shapes_of(texts, symbols=True))
    return texts


def set_model_shapes(ctx: click.Context, shapes: Mapping[str, Any]) -> None:
    """Set the shapes with which `read_model` reads models of MXNet."""
    ctx.meta[_SHAPES] = shapes


def _model_shapes(source: str) -> Mapping[str, Any] | None:
    """Return the shapes of --shape for a model. Raises UsageError if no argument of the command is a model of MXNet."""
    context = click.get_current_context(silent=True)
    shapes: Mapping[str, Any] = {} if context is None else context.meta.get(_SHAPES, {})
    if context is None or not shapes:
        return None
    if is_mxnet(source):
        return shapes
    if not any(is_mxnet(value) for value in context.params.values()):
        raise UsageError(f"--shape is for models of MXNet, not for {source!r}; leave it out")
    return None


def read_model(source: str, external_root: str | None = None, *, best: bool = False) -> Model:
    """Load a model.

    Args:
        source: A path, or `-` for stdin.
        external_root: Another folder from which external data may be read.
        best: Load the best model (--keep-best) of a run folder that has one, and log this.

    Raises:
        UsageError: There is no such file, but a model of the zoo with that name: the message says how to build it. Or
            --shape is given, but no model is of MXNet.
    """
    found = _read(source, external_root, best)
    context = click.get_current_context(silent=True)
    family = None if context is None else context.meta.get(_PREPROCESSING)
    if family is None:
        return found
    from graphkit.data.preprocessing.families import with_preprocessing

    return with_preprocessing(found, family)


def _read(source: str, external_root: str | None, best: bool) -> Model:
    """Load a model. Arguments: see `read_model`."""
    shapes = _model_shapes(source)
    if source == "-":
        data = sys.stdin.buffer.read()
        return load(data, external_root=external_root)
    if not Path(source).exists() and source in models.names():
        raise UsageError(
            f"there is no file {source!r}. To build the model {source} of the zoo: "
            f"graphkit build {source} -o {source}.json"
        )
    path = Path(source)
    external_root = external_root or trusted_root()
    if path.is_dir():
        check_run_folder(path)
    if best and path.is_dir():
        from graphkit.train.run_folder import BEST, MODEL

        if not (path / BEST).exists():
            return load(path, external_root=external_root)
        found = load(path / BEST, external_root=external_root)
        epoch = found.meta.get("best_epoch", "unknown")
        log(f"{source}: using the best model, of epoch {epoch}. The last one is {path / MODEL}")
        return found
    context = click.get_current_context(silent=True)
    files: Mapping[str, str] = {} if context is None else context.meta.get(MXNET_PARAMETERS, {})
    return load(path, params=files.get(source), external_root=external_root, shapes=shapes)


def with_files_beside(model: Model, source: str) -> Model:
    """Return a model of Hugging Face with the tokenizer and class names beside its file, and log what was read."""
    from graphkit.inference import hugging_face

    found, note = hugging_face.with_files_beside(model, source)
    if note:
        log(note)
    return found


def trust_option(
    command: Callable[..., Any], *, folder: str, names_data: bool = False, expose: bool = True
) -> Callable[..., Any]:
    """--trust-run-folder, for `check_run_folder`.

    Args:
        command: The command that gets the option.
        folder: Which argument is the run folder, for the help: "given as MODEL".
        names_data: Whether the command also reads the data that the folder names.
        expose: Whether the command gets the option as `trust_run_folder`.
    """
    data = "read the data files and run the Python functions that it names, and " if names_data else ""
    return option(
        "--trust-run-folder", group=LIMITS, is_flag=True, expose_value=expose, callback=_trusted,
        help=f"Trust the run folder {folder}: {data}follow symbolic links that lead out of it. Only use it for folders "
        "that you made.",
    )(command)  # fmt: skip


def _trusted(ctx: click.Context, parameter: click.Parameter, value: bool) -> bool:
    ctx.meta[_TRUSTED] = value
    return value


def trusted_root() -> str | None:
    """Return the folder that symbolic links of a run folder may lead to: any, or None without --trust-run-folder."""
    context = click.get_current_context(silent=True)
    return os.sep if context is not None and context.meta.get(_TRUSTED) else None


def check_run_folder(folder: str | Path) -> None:
    """Raise an error if symbolic links lead out of a run folder, unless --trust-run-folder is given."""
    from graphkit.train.run_folder import check_links

    if trusted_root() is None:
        check_links(folder)


def data_option(
    command: Callable[..., Any],
    text: str = "Option of the data, such as size=64 or augment=crop,flip for images, level=char for text, decimal=, "
    "for tables. Repeatable.",
) -> Callable[..., Any]:
    return option("--data-option", "data_options", group=DATA, multiple=True, metavar="NAME=VALUE", help=text)(command)


def source_options(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Return `--data-option` texts as keywords of `data.load`; whole numbers become int, decimal fractions float."""
    return {name: _number(text) for name, text in key_values(pairs, "--data-option").items()}


def with_tokenizer(options: dict[str, Any], spec: str, tokenizer: str | None, *, rows: bool = False) -> dict[str, Any]:
    """Return the options of a data set with the file of --tokenizer. Raises UsageError if the data are not text.

    rows: whether the command also reads texts from the rows of a file.
    """
    if tokenizer is None:
        return options
    from graphkit.data.preprocessing.tokenizer import read_vocabulary
    from graphkit.data.sources import takes
    from graphkit.data.text.rows import SUFFIXES

    if not (rows and Path(spec).suffix.lower() in SUFFIXES) and not takes(spec, "vocabulary"):
        known = ", ".join(["sentences:FOLDER", "text:FILE", *(SUFFIXES if rows else ())])
        raise UsageError(f"--tokenizer is for texts ({known}), and {spec} is not a text data set: leave it out")
    if given := [name for name in ("level", "min_count", "size") if name in options]:
        raise UsageError(f"--tokenizer determines the tokens: leave out --data-option {given[0]}")
    return options | {"vocabulary": read_vocabulary(tokenizer)}


def _number(text: str) -> int | float | str:
    if text.isdecimal():
        return int(text)
    return float(text) if re.fullmatch(r"\d+\.\d*|\.\d+", text) else text


def key_values(pairs: tuple[str, ...], option: str, form: str = "NAME=VALUE") -> dict[str, str]:
    """Return `name=value` texts as a dict. Raises UsageError for other texts, and for a name that is given twice.

    form: of these texts, for the error.
    """
    table: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise UsageError(f"{option} {pair!r}: expected {form}")
        if name in table:
            raise UsageError(f"{option} {name} is given twice, as {table[name]} and as {value}; give it once")
        table[name] = value
    return table
