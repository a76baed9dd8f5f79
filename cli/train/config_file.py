"""A training in a TOML file: the network, and options of the command by their long names.

The command line overrides the file, and the file overrides defaults. Relative paths in the file are relative to its
folder.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from graphkit.errors import UsageError, did_you_mean

SUFFIX = ".toml"

# Key in the `meta` of a click.Context: the network that the file names.
_META = "graphkit.config"
# Options of one call, which only the command line may give.
_OF_A_CALL = ("resume", "overwrite", "find-lr", "fast-dev-run", "print-config", "json")
# Options that name output files: config.toml in a run folder leaves them out.
_WRITTEN = ("output", "profile")
# Options whose values may be paths although their type is text.
_DATA, _WEIGHTS = ("data", "valid"), "class-weights"
_NETWORK, _PATH, _NAME, _SEED = "network", "path", "name", "seed"


@dataclass(frozen=True)
class Network:
    """The network of a training: a path, or the name of a model in the zoo (or FILE.py:FUNCTION) with its options.

    file: the TOML file that names it.
    """

    path: str = ""
    name: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None
    file: Path | None = None

    def described(self) -> Any:
        """Return the network as a value for a TOML file. Paths are absolute."""
        if self.name is None:
            return self.path if self.path == "-" else str(Path(self.path).absolute())
        seed = {} if self.seed is None else {_SEED: self.seed}
        return {_NAME: _relocated_function(self.name, Path()), **self.options, **seed}


def argument(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Callback of the argument MODEL: read a .toml file, whose options become the defaults of the command."""
    if value.endswith(SUFFIX):
        found, network = read(Path(value), context.command.params, context)
        context.default_map = {**(context.default_map or {}), **found}
        context.meta[_META] = network
    return value


def network_of(context: click.Context, model: str) -> Network:
    """Return the network of a command line with the argument MODEL."""
    found: Network = context.meta.get(_META, Network(model))
    return found


# --- reading ----------------------------------------------------------------------------------------


def read(path: Path, parameters: list[click.Parameter], context: click.Context) -> tuple[dict[str, Any], Network]:
    """Return the options of a file by parameter name, and its network. Raises UsageError with the file and the key."""
    options = {name: p for p in _options(parameters) for name in _names(p) if name not in _OF_A_CALL}
    found: dict[str, Any] = {}
    network: Network | None = None
    taken: dict[str | None, str] = {}
    for key, value in _table(path).items():
        name = key.replace("_", "-")
        option = options[name].name if name in options else name
        if option in taken:
            raise UsageError(f"{path}: {taken[option]} and {key} are the same option; leave out one of them")
        taken[option] = key
        if name == _NETWORK:
            network = _network(path, value)
            continue
        if name in _OF_A_CALL:
            raise UsageError(f"{path}: {key} cannot be in a file; give --{name} on the command line")
        if name not in options:
            raise UsageError(f"{path}: there is no option {key!r}{_near(name, [*options, _NETWORK])}")
        parameter = options[name]
        assert parameter.name is not None, "options have names"
        found[parameter.name] = _Reader(path, key, name, parameter, context).value(value)
    if network is None:
        raise UsageError(
            f'{path}: the network is missing; add network = "net.json", or a table [network] with name = "..."'
        )
    return found, network


def _near(name: str, known: list[str]) -> str:
    """Return a hint with the closest option, or where all options are listed."""
    hint = did_you_mean(name, known)
    if "did you mean" in hint:
        return hint
    return "; write network, or a long option of graphkit train --help without the leading --"


def _options(parameters: list[click.Parameter]) -> Iterator[click.Option]:
    return (parameter for parameter in parameters if isinstance(parameter, click.Option))


def _names(option: click.Option) -> list[str]:
    """Return the long names of an option without the leading --: the main name, then older ones."""
    return [name.removeprefix("--") for name in option.opts if name.startswith("--")]


def _table(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise UsageError(f"there is no file {str(path)!r}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # a TOMLDecodeError is a ValueError
        raise UsageError(
            f'{path} is not valid TOML: {error}. In TOML, text needs quotes: network = "net.json"'
        ) from None


def _network(path: Path, value: Any) -> Network:
    if isinstance(value, str):
        return Network(value if value == "-" else str(path.parent / value))
    if not isinstance(value, dict) or (_PATH in value) == (_NAME in value):
        raise UsageError(f"{path}: network must be a path, or a table with either path or name")
    kind = _PATH if _PATH in value else _NAME
    others = {k: v for k, v in value.items() if k not in (_PATH, _NAME, _SEED)}
    if not isinstance(value[kind], str):
        raise UsageError(f"{path}: network.{kind} must be a string, not {value[kind]!r}")
    if kind == _PATH:
        if others or _SEED in value:
            odd = next(iter(others), _SEED)
            raise UsageError(f"{path}: network.{odd} only works with network.name, not with network.path")
        return Network(str(path.parent / value[_PATH]))
    seed = value.get(_SEED)
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise UsageError(f"{path}: network.seed must be an integer, not {seed!r}")
    options = {k: _text(path, f"network.{k}", v) for k, v in others.items()}
    return Network(name=_relocated_function(value[_NAME], path.parent), options=options, seed=seed, file=path)


@dataclass(frozen=True)
class _Reader:
    """Reads the value of one key in the form that click gets from the command line."""

    path: Path
    key: str
    name: str
    parameter: click.Option
    context: click.Context

    def value(self, given: Any) -> Any:
        parameter = self.parameter
        if parameter.is_flag:
            if not isinstance(given, bool):
                raise self._wrong("true or false", given)
            return given
        if not parameter.multiple:
            return self._one(given)
        if isinstance(given, dict):
            if "=" not in str(parameter.metavar):
                raise self._wrong("a list", given)
            return [f"{name}={_text(self.path, f'{self.key}.{name}', value)}" for name, value in given.items()]
        return [self._one(value) for value in (given if isinstance(given, list) else [given])]

    def _one(self, given: Any) -> Any:
        kind = self.parameter.type
        if isinstance(kind, (click.IntRange, click.types.IntParamType)):
            right, wanted = isinstance(given, int) and not isinstance(given, bool), "an integer"
        elif isinstance(kind, (click.FloatRange, click.types.FloatParamType)):
            right, wanted = isinstance(given, (int, float)) and not isinstance(given, bool), "a number"
        elif isinstance(kind, (click.Choice, click.Path, click.types.StringParamType)):
            right, wanted = isinstance(given, str), "a string"
        else:
            right, wanted = isinstance(given, (str, int)) and not isinstance(given, bool), "a string or an integer"
        if not right:
            raise self._wrong(wanted, given)
        if isinstance(given, str):
            given = self._relocated(given)
        try:
            return kind.convert(given, self.parameter, self.context)
        except click.UsageError as error:
            raise UsageError(f"{self.path}: {self.key}: {error.message}") from None

    def _relocated(self, text: str) -> str:
        folder = self.path.parent
        if isinstance(self.parameter.type, click.Path):
            return str(folder / text)
        if self.name in _DATA:
            return relocated_data(text, folder)
        if self.name == _WEIGHTS and text != "balanced" and not _are_numbers(text):
            return str(folder / text)
        return text

    def _wrong(self, wanted: str, given: Any) -> UsageError:
        return UsageError(f"{self.path}: {self.key} must be {wanted}, not {given!r}")


def relocated_data(spec: str, folder: Path) -> str:
    """Return a data set with its path relative to a folder."""
    from graphkit import data

    if spec in data.names() or "://" in spec:
        return spec
    kind, separator, rest = spec.partition(":")
    if separator and rest and re.fullmatch(r"[a-z]{2,}", kind):
        return f"{kind}:{folder / rest}"
    return str(folder / spec)


def _relocated_function(name: str, folder: Path) -> str:
    """Return FILE.py:FUNCTION with an absolute path. Other names are models of the zoo, and stay."""
    file, separator, function = name.rpartition(":")
    return f"{(folder / file).absolute()}:{function}" if separator else name


def _are_numbers(text: str) -> bool:
    try:
        return bool([float(part) for part in text.split(",")])
    except ValueError:
        return False


def _text(path: Path, key: str, value: Any) -> str:
    """Return a value as it is typed after NAME= on the command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, list):
        return ",".join(_text(path, key, part) for part in value)
    raise UsageError(f"{path}: {key} must be a string, a number, true, false, or a list of these, not {value!r}")


# --- writing ----------------------------------------------------------------------------------------


def effective(command: click.Command, values: Mapping[str, Any], network: Network, *, outputs: bool = True) -> str:
    """Return the options in effect as the text of a file that repeats the training. Paths are absolute.

    values: by parameter name. outputs: include the paths of output files.
    """
    plain: dict[str, Any] = {}
    tables: dict[str, Mapping[str, Any]] = {}
    here = Path().absolute()
    for parameter in _options(command.params):
        name = _names(parameter)[0]  # the name that --help shows first
        value = values.get(parameter.name or "")
        if name in (*_OF_A_CALL, "help") or value is None or value in ((), []) or (name in _WRITTEN and not outputs):
            continue
        if parameter.multiple and "=" in str(parameter.metavar) and all("=" in text for text in value):
            tables[name] = dict(text.split("=", 1) for text in value)
        elif isinstance(parameter.type, click.Path):
            plain[name] = str(here / value)
        elif name in _DATA:
            plain[name] = relocated_data(value, here)
        elif name == _WEIGHTS and value != "balanced" and not _are_numbers(value):
            plain[name] = str(here / value)
        else:
            plain[name] = list(value) if isinstance(value, tuple) else value
    described = network.described()
    if isinstance(described, Mapping):
        tables = {_NETWORK: described, **tables}
    else:
        plain = {_NETWORK: described, **plain}
    lines = [f"{_key(name)} = {_written(value)}" for name, value in plain.items()]
    for name, table in tables.items():
        lines += ["", f"[{_key(name)}]", *(f"{_key(k)} = {_written(v)}" for k, v in table.items())]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)  # as TOML has them, inf and nan too
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_written, value))}]"
    return _quoted(str(value))


_ESCAPES: dict[str, str] = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _quoted(text: str) -> str:
    """Return a basic string of TOML."""
    return '"' + re.sub(r'[\x00-\x1f\x7f"\\]', _escape, text) + '"'


def _escape(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[0], f"\\u{ord(found[0]):04x}")
