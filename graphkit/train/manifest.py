"""Check the types of all values in the manifest of a checkpoint before they are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from graphkit.errors import InvalidModel
from graphkit.ir.types import DType

Kind: TypeAlias = Callable[[Any], bool]


def _integer(value: Any) -> bool:
    return type(value) is int


def _count(value: Any) -> bool:
    return _integer(value) and value >= 0


def _uint64(value: Any) -> bool:
    return _count(value) and value < 1 << 64


def _number(value: Any) -> bool:
    return type(value) in (int, float)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _list_of(kind: Kind) -> Kind:
    return lambda value: isinstance(value, list) and all(map(kind, value))


def _dict_of(kind: Kind) -> Kind:
    return lambda value: isinstance(value, dict) and all(map(kind, value.values()))


def _or_null(kind: Kind) -> Kind:
    return lambda value: value is None or kind(value)


def _rng_state(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_uint64, value))


def _weights(value: Any) -> bool:
    """Whether a value may describe a weights file: a dict of texts, in which only `bytes`, the size, is a number."""
    return isinstance(value, dict) and all(_count(v) if key == "bytes" else _text(v) for key, v in value.items())


_KINDS: Mapping[str, Kind] = {
    "weights": _weights,
    "arrays": _dict_of(_object),
    "parts": _list_of(_list_of(_text)),
    "residuals": _list_of(_list_of(_text)),
    "optimizer": _object,
    "loss": _text,
    "rng": _rng_state,
    "position": _object,
    "run": _text,
    "updates": _count,
    "data_seed": _integer,
    "settings": _object,
    "notes": _object,
    "callbacks": _dict_of(_object),
    "epoch": _count,
    "batch": _count,
}

_DTYPES = frozenset(d.value for d in DType)


def _dtype(value: Any) -> bool:
    return isinstance(value, str) and value in _DTYPES


_OF_ARRAYS: Mapping[str, Kind] = {"dtype": _dtype, "shape": _list_of(_count)}

_OF_POSITION: Mapping[str, Kind] = {
    **dict.fromkeys(
        (
            "epoch",
            "batch",
            "offset",
            "width",
            "start",
            "until",
            "seen",
            "skipped",
            "first_update",
        ),
        _count,
    ),
    **dict.fromkeys(("loss_sum", "loss_weight", "seconds"), _number),
    "length": _or_null(_count),
    "stopped": _or_null(_text),
    "trained": _or_null(_dict_of(_or_null(_number))),
}

_OF_SETTINGS: Mapping[str, Kind] = {
    **dict.fromkeys(("accumulate", "waiting", "skipped", "processes"), _count),
    "waiting_weight": _number,
    "ema": _or_null(_object),
}


def check(manifest: Mapping[str, Any], where: str) -> None:
    _check(manifest, _KINDS, where)
    for name, entry in manifest.get("arrays", {}).items():
        _check(entry, _OF_ARRAYS, f"{where}: array {name!r}")
    _check(manifest.get("position", {}), _OF_POSITION, f"{where}: position")
    settings = manifest.get("settings", {})
    _check(settings, _OF_SETTINGS, f"{where}: settings")
    if settings.get("waiting", 0) >= max(settings.get("accumulate", 1), 1):
        raise InvalidModel(f"{where} is damaged: it contains more accumulated batches than `accumulate` allows")


def _check(entry: Mapping[str, Any], kinds: Mapping[str, Kind], where: str) -> None:
    for name, kind in kinds.items():
        if name in entry and not kind(entry[name]):
            raise InvalidModel(f"{where} is damaged: {name!r} is {_shown(entry[name])}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
