"""Requests and answers of the Open Inference Protocol, version 2, with its extension for binary tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphkit.errors import InputError, did_you_mean
from graphkit.ir.types import DType
from graphkit.named_tuples import NamedTuple
from graphkit.serving.errors import TooLarge
from graphkit.serving.tensors import (
    NAMES,
    Constant,
    checked_shape,
    datatype,
    from_binary,
    from_json,
    shown,
    to_binary,
    to_json,
)

# Functions of json would make these for each call.
_DECODER = json.JSONDecoder(parse_constant=Constant)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)

# A number of bytes in a header has fewer digits.
_DIGITS = 18
# Longer names of clients are not compared with those of the model.
_LONGEST = 200


class Tensor(NamedTuple):
    """An input or output of a model. shape: sizes; -1 for a size that varies; None if the rank is not known."""

    name: str
    dtype: DType
    shape: tuple[int, ...] | None

    def description(self) -> dict[str, Any]:
        """Return the metadata of the tensor, as the protocol writes it. The shape is null if the rank is not known."""
        return {
            "name": self.name,
            "datatype": NAMES[self.dtype],
            "shape": None if self.shape is None else list(self.shape),
        }


class Wanted(NamedTuple):
    """An output that a request asks for. binary: whether its values are sent as bytes."""

    name: str
    binary: bool


@dataclass(frozen=True)
class InferRequest:
    """A request for one run.

    Attributes:
        id: Text that the answer repeats; None if there is none.
        inputs: Arrays by input name.
        outputs: The outputs to return.
    """

    id: str | None
    inputs: Mapping[str, np.ndarray]
    outputs: Sequence[Wanted]


@dataclass
class _Body:
    """The body of a request: its JSON object, and the bytes of binary tensors that have not been read."""

    header: dict[str, Any]
    rest: memoryview
    position: int = field(default=0)

    def take(self, size: Any, where: str) -> memoryview:
        if type(size) is not int or size < 0:
            raise InputError(f"{where}: expected a number of bytes, not {shown(size)}")
        end = self.position + size
        if end > len(self.rest):
            raise InputError(
                f"{where}: {size} bytes are announced, but only {len(self.rest) - self.position} follow the JSON object"
            )
        found = self.rest[self.position : end]
        self.position = end
        return found


def parse_request(
    body: bytes, header_length: str | None, inputs: Sequence[Tensor], outputs: Sequence[Tensor], max_json: int
) -> InferRequest:
    """Return the request in a body.

    Args:
        body: The body, decompressed.
        header_length: The header Inference-Header-Content-Length; None if the body is only JSON.
        inputs: The inputs of the model.
        outputs: Its outputs.
        max_json: Most bytes of JSON.

    Raises:
        InputError: The request is malformed, or does not fit the model. The message names the field.
        TooLarge: There is too much JSON.
    """
    parsed = _parsed(body, header_length, max_json)
    header = parsed.header
    name = header.get("id")
    if name is not None and not isinstance(name, str):
        raise InputError(f"id: expected a string, not {shown(name)}")
    arrays: dict[str, np.ndarray] = {}
    for place, tensor in enumerate(_objects(header, "inputs", required=True)):
        array = _input(tensor, f"inputs[{place}]", parsed, inputs)
        if tensor["name"] in arrays:
            raise InputError(f"inputs[{place}]: input {tensor['name']!r} is given twice")
        arrays[tensor["name"]] = array
    if parsed.position != len(parsed.rest):
        raise InputError(
            f"the body has {len(parsed.rest) - parsed.position} bytes after the tensors that the JSON object announces"
        )
    if missing := [tensor.name for tensor in inputs if tensor.name not in arrays]:
        raise InputError(f"inputs: there is no tensor for input {missing[0]!r}")
    return InferRequest(name, arrays, _wanted(header, outputs))


def json_bytes(body: bytes, header_length: str | None) -> int:
    """Return the bytes of JSON at the beginning of a body. Arguments and errors: see `parse_request`."""
    if header_length is None:
        return len(body)
    is_number = header_length.isascii() and header_length.isdecimal() and len(header_length) < _DIGITS
    if not is_number or int(header_length) > len(body):
        raise InputError(
            f"Inference-Header-Content-Length: expected a number of at most {len(body)}, the bytes of the body, not "
            f"{shown(header_length)}"
        )
    return int(header_length)


def _parsed(body: bytes, header_length: str | None, max_json: int) -> _Body:
    size = json_bytes(body, header_length)
    if size > max_json:
        raise TooLarge(
            f"the body has {size} bytes of JSON, and at most {max_json} are allowed (--max-json). Send tensors as "
            "binary data"
        )
    view = memoryview(body)
    try:
        header = _DECODER.decode(str(view[:size], "utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"the body is not valid JSON: {error}") from None
    if not isinstance(header, dict):
        raise InputError("the body must be a JSON object")
    return _Body(header, view[size:])


def _objects(header: dict[str, Any], key: str, required: bool) -> list[dict[str, Any]]:
    found = header.get(key)
    if found is None and not required:
        return []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise InputError(f"{key}: expected a list of objects")
    for place, item in enumerate(found):
        if not isinstance(item.get("name"), str):
            raise InputError(f"{key}[{place}].name: expected a string")
        _parameters(item, f"{key}[{place}]")
    return found


def _parameters(item: dict[str, Any], where: str) -> dict[str, Any]:
    found = item.get("parameters")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise InputError(f"{where}.parameters: expected an object")
    return found


def _input(tensor: dict[str, Any], where: str, body: _Body, known: Sequence[Tensor]) -> np.ndarray:
    name = tensor["name"]
    where = f"{where} ({shown(name)})"
    declared = next((item for item in known if item.name == name), None)
    if declared is None:
        raise InputError(
            f"{where}: the model has no such input{did_you_mean(name[:_LONGEST], [item.name for item in known])}"
        )
    dtype = datatype(tensor.get("datatype"), f"{where}.datatype")
    if dtype is not declared.dtype:
        raise InputError(f"{where}.datatype: {NAMES[dtype]}, but the model needs {NAMES[declared.dtype]}")
    shape = checked_shape(tensor.get("shape"), f"{where}.shape")
    _check_shape(shape, declared, where)
    parameters = _parameters(tensor, where)
    if "shared_memory_region" in parameters:
        raise InputError(f"{where}.parameters: shared memory is not supported")
    if "binary_data_size" in parameters:
        if "data" in tensor:
            raise InputError(f"{where}: it has both data and binary_data_size; give one of them")
        taken = body.take(parameters["binary_data_size"], f"{where}.parameters.binary_data_size")
        return from_binary(taken, dtype, shape, where)
    return from_json(tensor.get("data"), dtype, shape, f"{where}.data")


def _check_shape(shape: tuple[int, ...], declared: Tensor, where: str) -> None:
    wanted = declared.shape
    if wanted is None:
        return
    if len(shape) != len(wanted) or any(need not in (-1, size) for size, need in zip(shape, wanted, strict=True)):
        raise InputError(f"{where}.shape: {list(shape)}, but the model needs {list(wanted)} (-1: any size)")


def _wanted(header: dict[str, Any], outputs: Sequence[Tensor]) -> list[Wanted]:
    usual = _flag(_parameters(header, "the request"), "binary_data_output", False)
    names = [item.name for item in outputs]
    asked = _objects(header, "outputs", required=False)
    if not asked:
        return [Wanted(name, usual) for name in names]
    found: list[Wanted] = []
    for place, item in enumerate(asked):
        where = f"outputs[{place}] ({shown(item['name'])})"
        if item["name"] not in names:
            raise InputError(f"{where}: the model has no such output{did_you_mean(item['name'][:_LONGEST], names)}")
        parameters = _parameters(item, where)
        for key in ("classification", "shared_memory_region"):
            if key in parameters:
                raise InputError(f"{where}.parameters.{key} is not supported")
        found.append(Wanted(item["name"], _flag(parameters, "binary_data", usual)))
    return found


def _flag(parameters: dict[str, Any], key: str, usual: bool) -> bool:
    value = parameters.get(key, usual)
    if not isinstance(value, bool):
        raise InputError(f"parameters.{key}: expected true or false, not {shown(value)}")
    return value


class Answer(NamedTuple):
    """The body of an answer. header_length: bytes of its JSON; None if there is nothing else."""

    body: bytes
    header_length: int | None


def answer(
    name: str, version: str, request: InferRequest, arrays: Mapping[str, np.ndarray], outputs: Sequence[Tensor]
) -> Answer:
    """Return the answer to a request.

    Args:
        name: Name of the model.
        version: Its version.
        request: The request.
        arrays: Outputs by name.
        outputs: The outputs of the model.
    """
    dtypes = {item.name: item.dtype for item in outputs}
    described: list[dict[str, Any]] = []
    binary: list[bytes] = []
    for wanted in request.outputs:
        array, dtype = arrays[wanted.name], dtypes[wanted.name]
        item: dict[str, Any] = {"name": wanted.name, "datatype": NAMES[dtype], "shape": list(array.shape)}
        if wanted.binary:
            binary.append(to_binary(array, dtype))
            item["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            item["data"] = to_json(array, dtype)
        described.append(item)
    header: dict[str, Any] = {"model_name": name, "model_version": version, "outputs": described}
    if request.id is not None:
        header["id"] = request.id
    text = _ENCODER.encode(header).encode("utf-8", "replace")
    return Answer(b"".join((text, *binary)), len(text) if binary else None)
