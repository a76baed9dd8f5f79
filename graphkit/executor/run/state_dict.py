"""Parameters and states by name, as PyTorch's state_dict: read from mappings and files, or copied."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.distribution import how_to_install
from graphkit.errors import (
    InputError,
    InvalidModel,
    MissingDependency,
    OutOfMemory,
    RuntimeFailure,
    UsageError,
    lacks_memory,
)  # fmt: skip
from graphkit.executor.run.params import ParamStore
from graphkit.ir.arrays import array_of
from graphkit.ir.graph import Graph
from graphkit.ir.npz import read_npz
from graphkit.ir.origin import titled
from graphkit.ir.types import TensorType, dtype_of
from graphkit.ir.weights import read_arrays
from graphkit.named_tuples import NamedTuple
from graphkit.signatures import shown
from graphkit.text import listed

# Key of a model's metadata for tensors with several names: a JSON object, the parameter's name by each other name.
TIED = "tied"

# PyTorch counts the batches of each batch normalisation, in a tensor next to the running variance.
_COUNT, _VARIANCES = "num_batches_tracked", ("running_var", "running_variance")
# Names that a message lists, of each kind.
_MOST = 20
_TORCH_FILES = (".pt", ".pth", ".bin", ".ckpt")
# In messages of PyTorch: a class that weights_only=True does not allow, and codes of terminals.
_FORBIDDEN = re.compile(r"GLOBAL ([\w.]+) was not an allowed global")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class LoadedNames(NamedTuple):
    """The names that `load_state_dict` left out.

    Attributes:
        missing_keys: Parameters and states without an array.
        unexpected_keys: Arrays without a parameter or state.
    """

    missing_keys: tuple[str, ...]
    unexpected_keys: tuple[str, ...]


def state_dict(graph: Graph, params: ParamStore, names: Mapping[str, str] | None) -> dict[str, np.ndarray]:
    """Return copies of all parameters and states. See `Model.state_dict`."""
    tied = _tied(graph, params)
    names = _checked_names(graph, params, tied, names)
    found = {names.get(name, name): np.array(params[name]) for name in params}
    for other, name in tied.items():
        found.setdefault(names.get(other, other), found[names.get(name, name)])
    return found


def load_state_dict(
    graph: Graph, params: ParamStore, state: Any, strict: bool, names: Mapping[str, str] | None
) -> LoadedNames:
    """Set parameters and states. See `Model.load_state_dict`."""
    owner = titled(graph, "model")
    tied = _tied(graph, params)
    names = _checked_names(graph, params, tied, names)
    given = dict(_read(state))
    faults = _merge_tied(given, tied, names)
    wanted = {names.get(name, name): name for name in params}
    missing = [key for key, name in wanted.items() if key not in given and not name.endswith(_COUNT)]
    unexpected = [key for key in given if key not in wanted and not _is_count_of(key, wanted)]
    arrays: dict[str, np.ndarray] = {}
    for key, name in wanted.items():
        if key in given:
            try:
                arrays[name] = fitting(key, given[key], params.type_of(name))
            except InputError as error:
                faults.append(str(error))
    if strict:
        faults = [*_named("missing", missing), *_named("unexpected", unexpected), *faults]
    elif not arrays and not faults and wanted:
        faults = [f"no name matches; the names given begin with {listed(map(repr, given), len(given), 3)}"]
    if faults:
        nested = [key for key in given if isinstance(given[key], Mapping)]
        hint = f". {nested[0]!r} is a dict of its own: pass state[{nested[0]!r}]" if nested else ""
        listing = "\n  ".join(faults)
        raise InputError(f"load_state_dict: the arrays do not fit {owner}, and nothing changed:\n  {listing}{hint}")
    for name, array in arrays.items():
        params[name] = array
    return LoadedNames(tuple(missing), tuple(unexpected))


def _named(what: str, names: list[str]) -> list[str]:
    return [f"{what}: {listed(map(repr, names), len(names), _MOST)}"] if names else []


def _checked_names(
    graph: Graph, params: ParamStore, tied: Mapping[str, str], names: Mapping[str, str] | None
) -> Mapping[str, str]:
    """Return other names by name. Raises UsageError if one is that of no parameter, or two parameters have one."""
    names = names or {}
    if unknown := [name for name in names if name not in params and name not in tied]:
        raise UsageError(f"names=: {titled(graph, 'model')} has no parameter {unknown[0]!r}")
    owners: dict[str, str] = {}
    for other, name in (*zip(params, params, strict=True), *tied.items()):
        key = names.get(other, other)
        if owners.setdefault(key, name) != name:
            raise UsageError(
                f"{titled(graph, 'model')}: names= has the same name for two parameters or states: {owners[key]!r} and "
                f"{name!r} are both {key!r}"
            )
    return names


def _tied(graph: Graph, params: ParamStore) -> dict[str, str]:
    """Return the name of the parameter by each other name of the same tensor.

    Names that a change of the graph made wrong are left out: the parameter is gone, or the other name is another one's.
    """
    try:
        found = json.loads(graph.meta.get(TIED, "{}"))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {k: v for k, v in found.items() if k not in params and isinstance(v, str) and v in params}


def _merge_tied(given: dict[str, Any], tied: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    """Leave one array of each tensor with several names. Return a message for each one whose arrays differ."""
    faults = []
    for other, name in tied.items():
        key, alias = names.get(name, name), names.get(other, other)
        if alias not in given:
            continue
        array = given.pop(alias)
        if given.setdefault(key, array) is not array and not _are_equal(key, given[key], array):
            faults.append(f"{key!r} and {alias!r} are one tensor here, but their arrays differ")
    return faults


def _are_equal(key: str, one: Any, other: Any) -> bool:
    return np.array_equal(array_of_tensor(key, one), array_of_tensor(key, other), equal_nan=True)


def _is_count_of(key: str, wanted: Mapping[str, str]) -> bool:
    """Whether a name is that of the count of batches of a normalisation that does not count them here."""
    prefix, found, _ = key.rpartition(_COUNT)
    return bool(found) and any(prefix + name in wanted for name in _VARIANCES)


def array_of_tensor(key: str, given: Any) -> np.ndarray:
    """Return a tensor of any library as an array. Raises InputError if that is not possible."""
    if getattr(given, "is_meta", False) is True:
        raise InputError(f"{key!r} is a tensor on the device 'meta', which has no elements")
    if getattr(given, "is_nested", False) is True:
        raise InputError(f"{key!r} is a nested tensor, which is not an array; convert it with to_padded_tensor")
    if str(getattr(given, "dtype", "")) == "torch.bfloat16":  # numpy has no such type
        import ml_dtypes

        bits: np.ndarray = given.detach().cpu().contiguous().view(importlib.import_module("torch").int16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    if hasattr(given, "detach") and hasattr(given, "cpu"):
        given = given.detach().cpu()
    return array_of(repr(key), given)


def fitting(key: str, given: Any, kind: TensorType) -> np.ndarray:
    """Return an array with the type of a parameter. Raises InputError if the shape or kind of number differs."""
    array = array_of_tensor(key, given)
    if kind.shape is not None and kind.is_static and array.shape != kind.shape:
        raise InputError(f"{key!r} has shape {list(array.shape)}, the parameter {list(kind.static_shape)}")
    own, wanted = dtype_of(array.dtype), kind.dtype
    if own is wanted:
        return array
    if own.is_float != wanted.is_float or not (own.is_float or np.can_cast(array.dtype, wanted.numpy, "same_kind")):
        raise InputError(f"{key!r} has elements of {own}, the parameter of {wanted}")
    with np.errstate(over="ignore"):
        converted = array.astype(wanted.numpy)
    if not np.array_equal(np.isfinite(converted), np.isfinite(array)) if own.is_float else (converted != array).any():
        raise InputError(f"{key!r} has values of {own} that are too large for {wanted}")
    return converted


# --- files ----------------------------------------------------------------------------------------------


def _read(state: Any) -> Mapping[str, Any]:
    """Return the arrays of a mapping or file by name."""
    if isinstance(state, Mapping):
        if odd := [key for key in state if not isinstance(key, str)]:
            raise InputError(f"load_state_dict: the names of state must be texts, not {shown(odd[0])}")
        return state
    if not isinstance(state, (str, os.PathLike)):
        raise InputError(f"load_state_dict: state must be a dict of arrays by name, or a path, not {shown(state)}")
    path = os.fspath(state)
    if not os.path.isfile(path):
        raise UsageError(f"load_state_dict: there is no file {path!r}")
    suffix = os.path.splitext(path)[1].lower()
    if suffix == ".safetensors":
        return read_arrays(Path(path))
    if suffix == ".npz":
        return read_npz(path)
    if suffix in _TORCH_FILES:
        return _torch_file(path)
    raise UsageError(
        f"load_state_dict: {path!r} has an unknown type {suffix!r}; use .safetensors, .npz or {', '.join(_TORCH_FILES)}"
    )


def _reason(message: str) -> str:
    """Return why PyTorch cannot read a file with weights_only=True. message: the text of its exception."""
    if found := _FORBIDDEN.search(message):
        is_module = found[1].startswith("torch.nn.modules.")
        contents = "a whole module" if is_module else f"objects that are not tensors ({found[1]}), such as a module"
        return f"the file contains {contents}; in PyTorch, save module.state_dict()"
    lines = _ANSI.sub("", message).strip().splitlines() or [""]
    chosen = next((line.strip() for line in lines if "WeightsUnpickler error" in line), lines[0])
    return f"PyTorch cannot read it with weights_only=True: {chosen}"


def _torch_file(path: str) -> Mapping[str, Any]:
    if importlib.util.find_spec("torch") is None:
        raise MissingDependency(f"reading {path} needs PyTorch; install it with: {how_to_install('pytorch')}")
    torch: Any = importlib.import_module("torch")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise RuntimeFailure(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # pickle's, zip's and PyTorch's own
        if lacks_memory(error):
            raise OutOfMemory(f"{path}: {error}") from None
        raise InvalidModel(f"{path}: {_reason(str(error))}") from error
    if not isinstance(found, Mapping):
        raise InvalidModel(f"{path} contains {shown(found)}, not a dict of tensors by name")
    return _read(found)
