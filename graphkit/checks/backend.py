"""graphkit as the standard ONNX backend: `prepare`, `run_model`, `run_node`, `supports_device`.

    from graphkit.checks import backend
    backend.prepare(model_proto).run([array, ...])

The interface is documented at https://onnx.ai/onnx/api/backend.html; ONNX's own backend test suite runs on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict

from graphkit.errors import InputError, UsageError
from graphkit.ir.types import DType, TensorType
from graphkit.loading import load
from graphkit.model import Model
from graphkit.text import quantity, short_repr

_DEVICES = {"CPU": "cpu"}


class GraphkitRep(BackendRep):
    """A prepared model. `run(inputs)` takes a sequence in the order of the graph's inputs, or a dict by name."""

    def __init__(self, model: Model, executor: Any):
        self.model = model
        self._executor = executor
        self._result = namedtupledict("Outputs", list(model.outputs))

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model; return outputs as a named tuple. Raises InputError if the inputs do not fit."""
        if kwargs:
            raise UsageError(f"run takes no option {next(iter(kwargs))!r}")
        names = self.model.inputs
        if isinstance(inputs, Mapping):
            feeds = dict(inputs)
        else:
            arrays = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
            if len(arrays) > len(names):
                raise InputError(
                    f"{quantity(len(arrays), 'input')} given, but the model takes {len(names)}: {', '.join(names)}"
                )
            feeds = dict(zip(names, arrays, strict=False))
        results = self._executor.run({name: self._typed(name, value) for name, value in feeds.items()})
        values: tuple[Any, ...] = self._result(*(results[name] for name in self.model.outputs))
        return values

    def _typed(self, name: str, value: Any) -> Any:
        """View uint16 as bfloat16 if the input is bfloat16: ONNX's test data store the bits of bfloat16 as uint16."""
        declared = self.model.input_types.get(name)
        is_bits = isinstance(value, np.ndarray) and value.dtype == np.uint16
        if is_bits and isinstance(declared, TensorType) and declared.dtype is DType.BFLOAT16:
            return value.view(DType.BFLOAT16.numpy)
        return value

    def __repr__(self) -> str:
        return short_repr(self, lambda: [f"of {self.model!r}"])


class GraphkitBackend(Backend):
    """The backend; the functions of this module are its class methods."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether `prepare` would succeed: every operator is known and the file is well formed."""
        from graphkit.errors import GraphkitError

        try:
            cls.prepare(model, device, **kwargs)
        except GraphkitError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> GraphkitRep:
        """Import and compile a model. Options are those of Model.compile; raises as `graphkit.load` does."""
        loaded = load(model)
        return GraphkitRep(loaded, loaded.compile(device=_device(device), **kwargs))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """`prepare` and `run` in one call."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node.

        `inputs` has one entry per input that is not absent: an array, or a list of arrays for a sequence. An empty list
        is a sequence of float32. `opset_version` selects the version of the operator.
        """
        opset = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        names = [name for name in node.input if name]
        arrays = list(inputs.values()) if isinstance(inputs, Mapping) else list(inputs)
        if len(arrays) != len(names):
            raise InputError(f"{node.op_type} has {quantity(len(names), 'input')}, but got {len(arrays)}")
        graph = onnx.helper.make_graph(
            [node],
            node.op_type,
            [onnx.helper.make_value_info(name, _type_of(name, item)) for name, item in zip(names, arrays, strict=True)],
            [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name],
        )
        imports = [onnx.helper.make_opsetid(node.domain, opset)]
        model = onnx.helper.make_model(graph, opset_imports=imports)
        return cls.prepare(model, device, **kwargs).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether `device` ("CPU", "CUDA:0", ...) can be given to `prepare`."""
        return device.split(":")[0].upper() in _DEVICES


def _type_of(name: str, value: Any) -> onnx.TypeProto:
    """The type of an input, derived from its value: a list is a sequence, a dict a map, anything else a tensor."""
    helper = onnx.helper
    if isinstance(value, Mapping):
        keys = np.asarray(list(value))
        return helper.make_map_type_proto(_element_type(keys), _type_of(name, np.asarray(list(value.values()))[0]))
    if isinstance(value, (list, tuple)):
        if not value:
            raise InputError(f"input {name!r} is an empty sequence of unknown element type")
        kinds = {_type_of(name, item).SerializeToString() for item in value}
        tensors = [np.asarray(item) for item in value if not isinstance(item, (Mapping, list, tuple))]
        if len(kinds) == 1:
            return helper.make_sequence_type_proto(_type_of(name, value[0]))
        if len(tensors) < len(value) or len({t.dtype for t in tensors}) > 1:
            raise InputError(f"input {name!r} is a sequence of several types")
        return helper.make_sequence_type_proto(helper.make_tensor_type_proto(_element_type(tensors[0]), None))
    if value is None:
        raise InputError(f"input {name!r} is an empty optional of unknown element type")
    array = np.asarray(value)
    return helper.make_tensor_type_proto(_element_type(array), array.shape)


def _element_type(array: np.ndarray) -> int:
    code: int = onnx.TensorProto.STRING
    return code if array.dtype.kind in "OUS" else onnx.helper.np_dtype_to_tensor_dtype(array.dtype)


def _device(device: str) -> str:
    kind = device.split(":")[0].upper()
    if kind not in _DEVICES:
        raise UsageError(f"device {device!r} is not supported; known: {', '.join(_DEVICES)}")
    return _DEVICES[kind]


is_compatible = GraphkitBackend.is_compatible
prepare = GraphkitBackend.prepare
run_model = GraphkitBackend.run_model
run_node = GraphkitBackend.run_node
supports_device = GraphkitBackend.supports_device
